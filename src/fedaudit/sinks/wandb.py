"""Figures in Weights & Biases."""

import os
from pathlib import Path
from typing import Any

from fedaudit.sinks.base import import_library

_CONFIGURED_BY = ("WANDB_MODE", "WANDB_API_KEY")
"""Variables with which a user chooses where runs go. Without them, nothing leaves the machine."""
_ROUND = "round"


class WandB:
    """Run of Weights & Biases: the active one, or an offline run in the run's folder.

    To send runs to a server, set the environment variable ``WANDB_MODE`` or ``WANDB_API_KEY``.
    """

    def __init__(self, name: str, folder: Path) -> None:
        wandb = import_library("wandb", "wandb")
        self._is_own = wandb.run is None
        self._run: Any = wandb.run
        self._new_artifact = wandb.Artifact
        if self._is_own:
            folder.mkdir(parents=True, exist_ok=True)
            is_configured = any(os.environ.get(variable) for variable in _CONFIGURED_BY)
            mode = {} if is_configured else {"mode": "offline"}
            self._run = wandb.init(project="fedaudit", name=name, dir=str(folder), **mode)

    def metric(self, name: str, value: float, step: int | None) -> None:
        """Log a value by round, or a value of the summary."""
        if step is None:
            self._run.summary[name] = value
            return
        self._run.define_metric(name, step_metric=_ROUND)
        self._run.log({name: value, _ROUND: step})

    def text(self, name: str, value: str) -> None:
        """Add an entry to the configuration."""
        self._run.config.update({f"fedaudit.{name}": value}, allow_val_change=True)

    def artifact(self, path: Path) -> None:
        """Add a file as an artifact."""
        artifact = self._new_artifact(f"fedaudit-{path.stem}", type="audit")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        """End the run, unless it was started elsewhere."""
        if self._is_own:
            self._run.finish()
