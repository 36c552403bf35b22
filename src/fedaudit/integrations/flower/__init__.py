"""Audits of federations that Flower runs; needs ``pip install "fedaudit[flower]"``.

On the server, :class:`RecordingStrategy` wraps a strategy, and :class:`RecordingGrid` wraps the
grid of a custom loop. :func:`gathered_audit` asks clients for their audited samples. On clients,
:func:`client_id_mod` adds the client's identity to replies, :func:`defense_mod` defends uploads,
and :func:`guard_mod` withholds replies that leak. :func:`audit_mod` and :func:`audit_reply` answer
a request for audited samples, and :func:`audit_decline` declines it. Secure aggregation in Flower's
older interface is recorded by :mod:`fedaudit.integrations.flower.secure_sum`.

Names are imported at first use, since in a deployment every message starts a client process.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedaudit.core.lazy import lazy_names

if find_spec("flwr") is None:
    raise ImportError(
        "fedaudit.integrations.flower needs Flower, which is not installed; install "
        '"fedaudit[flower]"'
    )

if TYPE_CHECKING:
    from fedaudit.integrations.flower.guarding import guard_mod as guard_mod
    from fedaudit.integrations.flower.messages import audit_decline as audit_decline
    from fedaudit.integrations.flower.messages import audit_mod as audit_mod
    from fedaudit.integrations.flower.messages import audit_reply as audit_reply
    from fedaudit.integrations.flower.messages import client_id_mod as client_id_mod
    from fedaudit.integrations.flower.mods import defense_mod as defense_mod
    from fedaudit.integrations.flower.recording import RecordingGrid as RecordingGrid
    from fedaudit.integrations.flower.recording import RecordingStrategy as RecordingStrategy
    from fedaudit.integrations.flower.recording import gathered_audit as gathered_audit
else:
    _load, __dir__, __all__ = lazy_names(__name__)

    def __getattr__(name: str) -> object:
        if name in ("study_client", "study_server"):
            raise ImportError(
                f"fedaudit.integrations.flower.{name} was removed: studies no longer run as Flower "
                "apps; run the study with `fedaudit run STUDY --workers N`, or on several machines "
                "with `--engine ray:auto`"
            )
        return _load(name)
