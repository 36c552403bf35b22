"""Interface of trackers of experiments, such as MLflow, to which figures are sent."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from fedaudit.core.errors import Unsupported


@runtime_checkable
class Sink(Protocol):
    """Receiver of the figures of one run, such as a run of MLflow.

    Names consist of letters, digits, "-", "_", "." and "/".
    """

    def metric(self, name: str, value: float, step: int | None) -> None:
        """Log a number; ``step`` is the round, or None for a number of the whole run."""

    def text(self, name: str, value: str) -> None:
        """Log a short text, such as the verdict."""

    def artifact(self, path: Path) -> None:
        """Log a file, such as the report."""

    def close(self) -> None:
        """End the run."""


SinkLike: TypeAlias = str | Sink
"""Name of a tracker ("mlflow", "tensorboard", "wandb"), or an object with the methods of a sink."""


def flush(sink: Sink) -> None:
    """Send the numbers that a sink has collected. The method ``flush`` of a sink is optional."""
    send = getattr(sink, "flush", None)
    if send is not None:
        send()


def import_library(module: str, sink: str) -> Any:
    """Import the library of a sink.

    Raises:
        Unsupported: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise Unsupported(
            f"the sink {sink!r} needs a library that is not installed ({error}); run "
            f"pip install 'fedaudit[{sink}]'"
        ) from error


class Sinks:
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def metric(self, name: str, value: float, step: int | None) -> None:
        """Log a number to each sink."""
        for sink in self._sinks:
            sink.metric(name, value, step)

    def text(self, name: str, value: str) -> None:
        """Log a text to each sink."""
        for sink in self._sinks:
            sink.text(name, value)

    def artifact(self, path: Path) -> None:
        """Log a file to each sink."""
        for sink in self._sinks:
            sink.artifact(path)

    def flush(self) -> None:
        """Send the numbers that sinks have collected."""
        for sink in self._sinks:
            flush(sink)

    def close(self) -> None:
        """Close each sink."""
        for sink in self._sinks:
            sink.close()
