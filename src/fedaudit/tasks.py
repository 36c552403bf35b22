"""Tasks that clients train their models for, those of ``fedaudit list tasks`` and custom ones.

``next_token(padding=3)`` is a task with settings. :func:`of_loss` takes a loss of outputs and
targets that returns one number per sample.
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
