"""Audits of federations that Flower runs; needs ``pip install "fedaudit[flower]"``.

On the server, :class:`RecordingStrategy` wraps a strategy, and :class:`RecordingGrid` the grid of a
custom loop. On clients, :func:`identity_mod` adds the client's identity to replies, and
:func:`defense_mod` defends uploads. :func:`gathered_audit` asks clients for their parts of an
audit, which they answer by :func:`audit_mod` or :func:`audit_reply`, or decline. Flower's secure
aggregation (older interface) is in :mod:`fedaudit.integrations.flower.secure_sum`.

Names are imported at first use, since in a deployment every message starts a client process.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if find_spec("flwr") is None:
    raise ImportError(
        "fedaudit.integrations.flower needs Flower, which is not installed; install "
        '"fedaudit[flower]"'
    )

if TYPE_CHECKING:
    from fedaudit.integrations.flower.guarding import guard_mod
    from fedaudit.integrations.flower.messages import (
        audit_decline,
        audit_mod,
        audit_reply,
        identity_mod,
    )
    from fedaudit.integrations.flower.mods import defense_mod
    from fedaudit.integrations.flower.recording import (
        RecordingGrid,
        RecordingStrategy,
        gathered_audit,
    )

_MODULES = {
    "RecordingGrid": "recording",
    "RecordingStrategy": "recording",
    "audit_decline": "messages",
    "audit_mod": "messages",
    "audit_reply": "messages",
    "defense_mod": "mods",
    "gathered_audit": "recording",
    "guard_mod": "guarding",
    "identity_mod": "messages",
}

__all__ = [
    "RecordingGrid",
    "RecordingStrategy",
    "audit_decline",
    "audit_mod",
    "audit_reply",
    "defense_mod",
    "gathered_audit",
    "guard_mod",
    "identity_mod",
]


_REMOVED = ("study_client", "study_server")


def __getattr__(name: str) -> object:
    if name in _REMOVED:
        raise ImportError(
            f"fedaudit.integrations.flower.{name} was removed: studies no longer run as Flower "
            "apps; run the study with `fedaudit run STUDY --workers N`, or on several machines "
            "with `--engine ray:auto`"
        )
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
