"""Errors that fedaudit raises: subclasses of :class:`FedauditError` and ``ValueError``."""

from fedaudit.core.errors import (
    BadArgument,
    BadInput,
    Damaged,
    FedauditError,
    NotVisible,
    TooFewPeers,
    TooFewRounds,
    Unsupported,
)

__all__ = [
    "BadArgument",
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
