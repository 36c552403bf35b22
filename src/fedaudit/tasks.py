"""Tasks that clients train their models for: those of ``fedaudit list tasks``, and custom ones.

Tasks with settings are functions, such as ``next_token(padding=3)``. :func:`of_loss` makes a task
from a loss function of outputs and targets that returns one number per sample.
"""

from fedaudit.core.denoising import Denoising, denoising
from fedaudit.core.next_token import next_token
from fedaudit.core.task_catalogue import TASKS, binary, multi_label, of_loss, regression
from fedaudit.core.tasks import NextTokens, OutputKind, Task, Utility, classification

__all__ = [
    "TASKS",
    "Denoising",
    "NextTokens",
    "OutputKind",
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
