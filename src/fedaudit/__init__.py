"""fedaudit measures how much a federated-learning run gives away about who was in it.

:func:`audit` audits a :class:`Federation` of objects or plays :class:`Games`, and
:func:`run_study` carries out a study file;
:class:`Run` is what came out. :func:`record` watches somebody's own loop, and :func:`evaluate`
turns scores into figures; :func:`check_dp` tries out a privacy filter. The nouns of the field are
rooms: ``attacks``, ``defenses``, ``algorithms``, ``datasets``, ``partitions``, ``models``,
``tasks``, ``views``, ``metrics``, ``plots``, ``errors``. Below, :func:`simulate` yields rounds,
:func:`seen_from` hides what an adversary does not see, and :func:`measure` turns rounds into
numbers. All are imported when first used, so that ``import fedaudit`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from fedaudit import algorithms as algorithms
    from fedaudit import attacks as attacks
    from fedaudit import datasets as datasets
    from fedaudit import defenses as defenses
    from fedaudit import errors as errors
    from fedaudit import metrics as metrics
    from fedaudit import models as models
    from fedaudit import partitions as partitions
    from fedaudit import plots as plots
    from fedaudit import tasks as tasks
    from fedaudit import views as views
    from fedaudit.core.metric_names import Origin
    from fedaudit.core.naming import named
    from fedaudit.core.values import Samples
    from fedaudit.filters.check import check_dp
    from fedaudit.fl.simulate import simulate
    from fedaudit.live.attack import attack_recording
    from fedaudit.live.audited import audit_samples, fair_split, join_audits
    from fedaudit.live.models import CanaryClients, unlearning
    from fedaudit.live.recorder import record
    from fedaudit.live.splitting import split_dataset
    from fedaudit.metrics.table import evaluate
    from fedaudit.observe.views import seen_from
    from fedaudit.plan.file import read_study
    from fedaudit.plan.games import DetectorSection as Detector
    from fedaudit.plan.games import GameSection as Game
    from fedaudit.plan.games import NeuronSection as Neuron
    from fedaudit.plan.games import RoundsSection as Rounds
    from fedaudit.plan.optional import AttackerSection as Attacker
    from fedaudit.plan.optional import CanariesSection as Canaries
    from fedaudit.plan.optional import ReferencesSection as References
    from fedaudit.plan.optional import SecureSumSection as SecureSum
    from fedaudit.plan.optional import ShadowSection as Shadow
    from fedaudit.plan.optional import UnlearningSection as Unlearning
    from fedaudit.plan.sections import AuditSection as Audit
    from fedaudit.plan.sections import FiguresSection as Figures
    from fedaudit.plan.sections import RiskSection as Risk
    from fedaudit.plan.sections import ShiftSection as Shift
    from fedaudit.plan.sections import TrainingSection as Training
    from fedaudit.plan.values import study_from
    from fedaudit.results.record import Record
    from fedaudit.signals.measure import measure
    from fedaudit.study.front.audit import AuditOptions, Run, audit
    from fedaudit.study.front.federation import Federation
    from fedaudit.study.front.games import Games
    from fedaudit.study.running.reattack import reattack
    from fedaudit.study.running.run import run_study

    def report(record: Record, path: Path | str) -> Path:
        """See :mod:`fedaudit.report`, a module that can be called."""
        ...


__version__ = "0.1.0"

_DOORS = {
    "Attacker": "fedaudit.plan.optional:AttackerSection",
    "Audit": "fedaudit.plan.sections:AuditSection",
    "AuditOptions": "fedaudit.study.front.audit:AuditOptions",
    "Canaries": "fedaudit.plan.optional:CanariesSection",
    "CanaryClients": "fedaudit.live.models:CanaryClients",
    "Detector": "fedaudit.plan.games:DetectorSection",
    "Federation": "fedaudit.study.front.federation:Federation",
    "Figures": "fedaudit.plan.sections:FiguresSection",
    "Game": "fedaudit.plan.games:GameSection",
    "Games": "fedaudit.study.front.games:Games",
    "Neuron": "fedaudit.plan.games:NeuronSection",
    "Origin": "fedaudit.core.metric_names:Origin",
    "Risk": "fedaudit.plan.sections:RiskSection",
    "Rounds": "fedaudit.plan.games:RoundsSection",
    "Run": "fedaudit.study.front.audit:Run",
    "Samples": "fedaudit.core.values:Samples",
    "References": "fedaudit.plan.optional:ReferencesSection",
    "SecureSum": "fedaudit.plan.optional:SecureSumSection",
    "Shadow": "fedaudit.plan.optional:ShadowSection",
    "Shift": "fedaudit.plan.sections:ShiftSection",
    "Training": "fedaudit.plan.sections:TrainingSection",
    "Unlearning": "fedaudit.plan.optional:UnlearningSection",
    "reattack": "fedaudit.study.running.reattack:reattack",
    "attack_recording": "fedaudit.live.attack:attack_recording",
    "audit": "fedaudit.study.front.audit:audit",
    "audit_samples": "fedaudit.live.audited:audit_samples",
    "check_dp": "fedaudit.filters.check:check_dp",
    "evaluate": "fedaudit.metrics.table:evaluate",
    "fair_split": "fedaudit.live.audited:fair_split",
    "join_audits": "fedaudit.live.audited:join_audits",
    "measure": "fedaudit.signals.measure:measure",
    "named": "fedaudit.core.naming:named",
    "read_study": "fedaudit.plan.file:read_study",
    "record": "fedaudit.live.recorder:record",
    "run_study": "fedaudit.study.running.run:run_study",
    "seen_from": "fedaudit.observe.views:seen_from",
    "split_dataset": "fedaudit.live.splitting:split_dataset",
    "simulate": "fedaudit.fl.simulate:simulate",
    "study_from": "fedaudit.plan.values:study_from",
    "unlearning": "fedaudit.live.models:unlearning",
}

_ROOMS = (
    "algorithms",
    "attacks",
    "datasets",
    "defenses",
    "errors",
    "metrics",
    "models",
    "partitions",
    "plots",
    "report",
    "tasks",
    "views",
)

__all__ = [
    "Attacker",
    "Audit",
    "AuditOptions",
    "Canaries",
    "CanaryClients",
    "Detector",
    "Federation",
    "Figures",
    "Game",
    "Games",
    "Neuron",
    "Origin",
    "References",
    "Risk",
    "Rounds",
    "Run",
    "Samples",
    "SecureSum",
    "Shadow",
    "Shift",
    "Training",
    "Unlearning",
    "__version__",
    "algorithms",
    "attack_recording",
    "attacks",
    "audit",
    "audit_samples",
    "check_dp",
    "datasets",
    "defenses",
    "errors",
    "evaluate",
    "fair_split",
    "join_audits",
    "measure",
    "metrics",
    "models",
    "named",
    "partitions",
    "plots",
    "read_study",
    "reattack",
    "record",
    "report",
    "run_study",
    "seen_from",
    "simulate",
    "split_dataset",
    "study_from",
    "tasks",
    "unlearning",
    "views",
]


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"fedaudit.{name}")
    if name not in _DOORS:
        raise AttributeError(f"module 'fedaudit' has no attribute {name!r}")
    module, _, attribute = _DOORS[name].partition(":")
    found: object = getattr(import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return __all__
