"""fedaudit measures how much a federated-learning run gives away about who was in it.

Doors: :func:`evaluate` turns scores into figures, :func:`run_study` carries a study out,
:func:`attack_again` attacks what a study has kept, :func:`record` watches somebody's own loop and
:func:`attack_recording` attacks what it saw. Below them, :func:`simulate` yields rounds,
:func:`seen_from` hides what an adversary does not see, and :func:`measure` turns rounds into
numbers. They are imported when first used, so that ``import fedaudit`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedaudit.fl.simulate import simulate
    from fedaudit.live.attack import attack_recording
    from fedaudit.live.audited import audit_samples, fair_split, join_audits
    from fedaudit.live.beginning import record
    from fedaudit.metrics.evaluate import evaluate
    from fedaudit.observe.views import seen_from
    from fedaudit.origin import Origin
    from fedaudit.signals.measure import measure
    from fedaudit.study.again import attack_again
    from fedaudit.study.run import run_study
    from fedaudit.study.study_file import read_study
    from fedaudit.study.values import study_from

__version__ = "0.1.0"

_DOORS = {
    "Origin": "fedaudit.origin",
    "attack_again": "fedaudit.study.again",
    "attack_recording": "fedaudit.live.attack",
    "audit_samples": "fedaudit.live.audited",
    "evaluate": "fedaudit.metrics.evaluate",
    "fair_split": "fedaudit.live.audited",
    "join_audits": "fedaudit.live.audited",
    "measure": "fedaudit.signals.measure",
    "read_study": "fedaudit.study.study_file",
    "record": "fedaudit.live.beginning",
    "run_study": "fedaudit.study.run",
    "seen_from": "fedaudit.observe.views",
    "simulate": "fedaudit.fl.simulate",
    "study_from": "fedaudit.study.values",
}

__all__ = [
    "Origin",
    "__version__",
    "attack_again",
    "attack_recording",
    "audit_samples",
    "evaluate",
    "fair_split",
    "join_audits",
    "measure",
    "read_study",
    "record",
    "run_study",
    "seen_from",
    "simulate",
    "study_from",
]


def __getattr__(name: str) -> object:
    if name not in _DOORS:
        raise AttributeError(f"module 'fedaudit' has no attribute {name!r}")
    found: object = getattr(import_module(_DOORS[name]), name)
    return found
