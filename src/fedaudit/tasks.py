"""Tasks, what clients train their models for: every one of ``fedaudit list tasks``, and one's own.

``next_token(padding=3)`` makes one with settings; :func:`of_loss` takes a loss of outputs and
targets that gives one number a sample.
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
