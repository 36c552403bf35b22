"""Audits of federations that Flower runs; needs ``pip install "fedaudit[flower]"``.

Server: :class:`RecordingStrategy` around a strategy, or :class:`RecordingGrid` around the grid of a
loop of its own. Client: :func:`identity_mod` says who a reply is from, :func:`defense_mod` defends
what is uploaded. :func:`gathered_audit` asks clients for their parts of an audit, which they answer
by :func:`audit_reply`. :func:`study_server` and :func:`study_client` are a whole study of fedaudit
as a Flower app. Flower's older interface, with its secure aggregation, is in
:mod:`fedaudit.integrations.flower.secure_sum`.
"""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ImportError(
        "fedaudit.integrations.flower needs Flower, which is not installed; install "
        '"fedaudit[flower]"'
    )

from fedaudit.integrations.flower.defending import defense_mod
from fedaudit.integrations.flower.ledger import identity_mod
from fedaudit.integrations.flower.recording import (
    RecordingGrid,
    RecordingStrategy,
    audit_reply,
    gathered_audit,
)
from fedaudit.integrations.flower.study_client import study_client
from fedaudit.integrations.flower.study_server import study_server

__all__ = [
    "RecordingGrid",
    "RecordingStrategy",
    "audit_reply",
    "defense_mod",
    "gathered_audit",
    "identity_mod",
    "study_client",
    "study_server",
]
