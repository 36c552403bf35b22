"""Figures in TensorBoard."""

import shutil
from pathlib import Path
from typing import Any

from fedaudit.sinks.base import import_library

FOLDER = "tensorboard"


class TensorBoard:
    """Event file for ``tensorboard --logdir``, in the folder "tensorboard" of the run's folder."""

    def __init__(self, name: str, folder: Path) -> None:
        module = import_library("torch.utils.tensorboard", "tensorboard")
        self._folder = folder / FOLDER
        self._writer: Any = module.SummaryWriter(str(self._folder))

    def metric(self, name: str, value: float, step: int | None) -> None:
        """Log a scalar; numbers of the whole run are at step 0."""
        self._writer.add_scalar(name, value, step or 0)
        self._writer.flush()

    def text(self, name: str, value: str) -> None:
        """Log a text."""
        self._writer.add_text(name, value)

    def artifact(self, path: Path) -> None:
        """Copy a file next to the events, and log Markdown as a text."""
        if path.suffix == ".md":
            self._writer.add_text(path.stem, path.read_text(encoding="utf-8"))
        shutil.copyfile(path, self._folder / path.name)

    def close(self) -> None:
        """Write all events."""
        self._writer.close()
