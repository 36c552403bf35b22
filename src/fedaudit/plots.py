"""Results of an audit as matplotlib figures; needs ``pip install "fedaudit[plots]"``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fedaudit.core.arguments import checked
from fedaudit.core.errors import BadInput, Unsupported, type_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedaudit.results.record import Record

__all__ = ["accuracy", "roc"]


def __dir__() -> list[str]:
    return __all__


_MIN_RATE = 1e-4  # lower end of both axes of the ROC curves


class _Audited(Protocol):
    """An object with a record, such as a run."""

    @property
    def record(self) -> "Record": ...


@checked
def roc(
    audited: "_Audited | Record", *, contrast: str = "mixed", attacks: Sequence[str] = ()
) -> "Figure":
    """Plot the ROC curves of an audit's attacks on logarithmic axes.

    Args:
        audited: A run, or its record.
        contrast: Non-members that members are compared with: "other_client", "unseen" or "mixed".
        attacks: Names of the attacks to plot; all attacks if empty.

    Raises:
        BadInput: The record has no curve of these attacks and this contrast.
        Unsupported: matplotlib is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/plotted")
        >>> fa.plots.roc(run).savefig("roc.png")
    """
    curves = [
        curve
        for curve in _record_of(audited).curves
        if curve.contrast == contrast and (not attacks or curve.attack in attacks)
    ]
    if not curves:
        raise BadInput(f"the record has no curves of contrast {contrast!r} and these attacks")
    figure, axes = _figure("false-positive rate", "true-positive rate")
    for curve in curves:
        label = f"{curve.attack}, client {curve.target}, seed {curve.seed}"
        axes.plot(curve.fpr, curve.tpr, drawstyle="steps-post", label=label)
    axes.plot([_MIN_RATE, 1], [_MIN_RATE, 1], ":", color="grey", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(_MIN_RATE, 1), ylim=(_MIN_RATE, 1.05))
    axes.legend(fontsize="small")
    return figure


@checked
def accuracy(audited: "_Audited | Record") -> "Figure":
    """Plot the test accuracy of an audit's federations by round, with one line per seed.

    Args:
        audited: A run, or its record.

    Raises:
        Unsupported: matplotlib is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/plotted")
        >>> fa.plots.accuracy(run).savefig("accuracy.png")
    """
    figure, axes = _figure("round", "test accuracy")
    for series in _record_of(audited).accuracies:
        label = f"defense: {series.defense}, seed {series.seed}"
        axes.plot(series.rounds, series.accuracy, marker="o", label=label)
    axes.legend(fontsize="small")
    return figure


def _figure(x_label: str, y_label: str) -> "tuple[Figure, Axes]":
    """Return a figure that is not shown in a window, and its axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unsupported(
            'plots need matplotlib, which is not installed; install "fedaudit[plots]"'
        ) from error
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _record_of(audited: "_Audited | Record") -> "Record":
    from fedaudit.results.record import Record

    record = getattr(audited, "record", audited)
    if not isinstance(record, Record):
        raise BadInput(
            f"plots need a fedaudit.Run or its record, got {type_of(audited)}; open the folder "
            "of an audit with fedaudit.Run(folder)"
        )
    return record
