"""Tasks that clients train their models for: those of ``fedaudit list tasks``, and custom ones.

Tasks with settings are functions, such as ``next_token(padding=3)``. :func:`of_loss` makes a task
from a loss function of outputs and targets that returns one number per sample.
"""

from fedaudit.core.tasks import (
    TASKS,
    Denoising,
    NextTokens,
    Reading,
    Task,
    Utility,
    binary,
    classification,
    denoising,
    multi_label,
    next_token,
    of_loss,
    regression,
)

__all__ = [
    "TASKS",
    "Denoising",
    "NextTokens",
    "Reading",
    "Task",
    "Utility",
    "binary",
    "classification",
    "denoising",
    "multi_label",
    "next_token",
    "of_loss",
    "regression",
]


def __dir__() -> list[str]:
    return __all__
