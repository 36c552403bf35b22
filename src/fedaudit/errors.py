"""Errors that fedaudit raises; all derive from :class:`FedauditError` and from ``ValueError``."""

from fedaudit.core.errors import (
    BadInput,
    Damaged,
    FedauditError,
    NotVisible,
    TooFewPeers,
    TooFewRounds,
    Unsupported,
)

__all__ = [
    "BadInput",
    "Damaged",
    "FedauditError",
    "NotVisible",
    "TooFewPeers",
    "TooFewRounds",
    "Unsupported",
]


def __dir__() -> list[str]:
    return __all__
