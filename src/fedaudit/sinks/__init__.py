"""Sinks: trackers of experiments that receive the figures of audits and recordings.

To add a sink, write a class with the methods of :class:`fedaudit.sinks.base.Sink` in a file that is
named after it, and list it here. Its arguments are the name of the run and a folder for its files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.lazy import Catalogue, lazy_names
from fedaudit.sinks.base import Sink, SinkLike, Sinks

if TYPE_CHECKING:
    from fedaudit.sinks.mlflow import MLflow as MLflow
    from fedaudit.sinks.tensorboard import TensorBoard as TensorBoard
    from fedaudit.sinks.wandb import WandB as WandB
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, "SINKS", "open_sinks")

SINKS = Catalogue[type]("fedaudit.sinks")


def open_sinks(to: SinkLike | Sequence[SinkLike], name: str, folder: Path) -> Sink:
    """Start a run in one or several sinks.

    Args:
        to: Names of sinks, or objects with the methods of a sink.
        name: Name of the run.
        folder: Folder for files of sinks that write to a folder.

    Raises:
        BadInput: There is no such sink.
        Unsupported: Its library is not installed.
    """
    is_one = isinstance(to, str | Sink) or not isinstance(to, Sequence)
    chosen = [cast("SinkLike", to)] if is_one else [*cast("Sequence[SinkLike]", to)]
    for sink in chosen:
        if isinstance(sink, str) and sink not in SINKS:
            raise unknown_name("sink", sink, SINKS)
        if not isinstance(sink, str | Sink):
            raise BadInput(
                f"a sink is one of {', '.join(SINKS)} or has the methods metric, text, artifact "
                f"and close, got {type_of(sink)}"
            )
    return Sinks([SINKS[s](name, folder) if isinstance(s, str) else s for s in chosen])
