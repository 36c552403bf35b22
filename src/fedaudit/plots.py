"""Results of audits as matplotlib figures; needs ``pip install "fedaudit[plots]"``.

Figures have the width of one column of a paper. Change them with matplotlib's methods, and save
them with ``savefig``.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedaudit.core.arguments import check_arguments
from fedaudit.core.errors import BadInput, Unsupported, type_of
from fedaudit.core.metric_names import AUC

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedaudit.api.comparing import ComparedRuns
    from fedaudit.results.estimate import Estimate, Interval
    from fedaudit.results.record import Curve, Record

__all__ = ["accuracy", "bars", "front", "roc", "trajectory"]


def __dir__() -> list[str]:
    return __all__


_MIN_RATE = 1e-4  # lower end of both axes of the ROC curves
_SIZE = (4.8, 3.4)
"""Width and height of a figure in inches."""
_LONGEST_IN_TWO_COLUMNS = 30
"""Largest number of characters of a label in a legend of two columns."""
_ORIGINS = {
    "member": "members",
    "other_client": "other clients' samples",
    "unseen": "unseen samples",
}


class _HasRecord(Protocol):
    """An object with a record, such as a run."""

    @property
    def record(self) -> "Record": ...


@check_arguments
def roc(
    result: "_HasRecord | Record", *, contrast: str = "mixed", attacks: Sequence[str] = ()
) -> "Figure":
    """Plot the ROC curves of an audit's attacks on logarithmic axes.

    With several seeds, a line is the mean true-positive rate over the seeds, and a band extends
    from the smallest to the largest rate of a seed.

    Args:
        result: A run, or its record.
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
    record = _record_of(result)
    curves = [
        curve
        for curve in record.curves
        if curve.contrast == contrast and (not attacks or curve.attack in attacks)
    ]
    if not curves:
        raise BadInput(f"the record has no curves of contrast {contrast!r} and these attacks")
    lines: dict[tuple[str, int], list[Curve]] = {}
    for curve in curves:
        lines.setdefault((curve.attack, curve.target), []).append(curve)
    figure, axes = _figure("false-positive rate", "true-positive rate")
    for (attack, target), curves_of_seeds in lines.items():
        fprs = np.unique(np.concatenate([curve.fpr for curve in curves_of_seeds]))
        tprs = np.array([_tpr_at(curve, fprs) for curve in curves_of_seeds])
        label = (
            attack
            if len({curve.target for curve in curves}) == 1
            else _client_label(attack, target)
        )
        (line,) = axes.plot(fprs, tprs.mean(0), drawstyle="steps-post", label=label)
        if len(curves_of_seeds) > 1:
            low, high = tprs.min(0), tprs.max(0)
            axes.fill_between(fprs, low, high, step="post", alpha=0.2, color=line.get_color())
    # Smaller rates than that of a single non-member cannot be measured.
    smallest_rate = max(min(rate for curve in curves for rate in curve.fpr if rate > 0), _MIN_RATE)
    axes.plot([smallest_rate, 1], [smallest_rate, 1], ":", color="grey", label="chance level")
    axes.set(xscale="log", yscale="log", xlim=(smallest_rate, 1), ylim=(smallest_rate, 1.05))
    _legend(figure)
    return figure


def _legend(figure: "Figure") -> None:
    """Add a legend below the axes, where it hides no data."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    # Two columns of long labels would be wider than the figure.
    is_narrow = max(map(len, labels), default=0) <= _LONGEST_IN_TWO_COLUMNS
    figure.legend(
        handles, labels, loc="outside lower center", fontsize="small", ncols=2 if is_narrow else 1
    )


def _tpr_at(curve: "Curve", fprs: np.ndarray) -> np.ndarray:
    """Return the largest true-positive rate at or below each false-positive rate, or else 0."""
    last = np.searchsorted(curve.fpr, fprs, side="right") - 1
    rates = np.maximum.accumulate(curve.tpr)
    return np.where(last >= 0, rates[np.maximum(last, 0)], 0.0)


def _client_label(name: str, client: int) -> str:
    return f"{name}, client {client}"


@check_arguments
def bars(
    result: "_HasRecord | Record | Mapping[str, _HasRecord | Record]",
    *,
    metric: str = AUC,
    contrast: str = "mixed",
    attacks: Sequence[str] = (),
) -> "Figure":
    """Plot an estimate of each attack with its confidence interval, with a line at chance level.

    Args:
        result: A run or its record, or a mapping from legend labels to runs or records, such as the
            result of :meth:`fedaudit.Grid.audit`.
        metric: Metric with a value per attack, such as "auc" or "tpr@0.01".
        contrast: Non-members that members are compared with: "other_client", "unseen" or "mixed".
        attacks: Names of the attacks to plot; all attacks if empty.

    Raises:
        BadInput: No record has a value of this metric and contrast.
        Unsupported: matplotlib is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/plotted")
        >>> fa.plots.bars(run).savefig("auc.png")
    """
    from fedaudit.api.paper_table import estimates_by_attack

    results = result if isinstance(result, Mapping) else {"": result}
    estimates = {
        name: estimates_by_attack(_record_of(item), metric, contrast, attacks)
        for name, item in results.items()
    }
    labels = list(dict.fromkeys(label for rows in estimates.values() for label in rows))
    figure, axes = _figure("", metric.upper() if metric == AUC else metric)
    chance = 0.5 if metric == AUC else float(metric.rpartition("@")[2]) if "@" in metric else 0.0
    base, width = (0.5 if metric == AUC else 0.0), 0.8 / len(estimates)
    for index, (name, rows) in enumerate(estimates.items()):
        places = [
            labels.index(label) + (index - (len(estimates) - 1) / 2) * width for label in rows
        ]
        heights = [float(row.value or 0.0) - base for row in rows.values()]
        errors = np.array([_error_bar_lengths(row.value or 0.0, row) for row in rows.values()]).T
        axes.bar(places, heights, width, bottom=base, yerr=errors, capsize=2, label=name or None)
    axes.axhline(chance, linestyle=":", color="grey")
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    if len(estimates) > 1:
        _legend(figure)
    return figure


def _error_bar_lengths(value: float, limits: "Estimate | Interval | None") -> tuple[float, float]:
    """Return the distances from a value to its limits, 0 for a missing limit."""
    low = value if limits is None or limits.low is None else limits.low
    high = value if limits is None or limits.high is None else limits.high
    # Limits of a mean over seeds may, by rounding, not contain the mean.
    return max(value - low, 0.0), max(high - value, 0.0)


@check_arguments
def front(
    compared: "ComparedRuns", *, metric: str = AUC, contrast: str = "", attack: str = ""
) -> "Figure":
    """Plot test accuracy against leakage for all audits of a comparison, with intervals.

    Args:
        compared: Result of :func:`fedaudit.compare`.
        metric: Metric of leakage: "auc", plotted as the membership advantage 2 AUC - 1, or a rate
            such as "tpr@0.01".
        contrast: Non-members that members are compared with; by default, the comparison's first.
        attack: Name of an attack; by default, the strongest attack on each audited client.

    Raises:
        BadInput: The comparison has no trade-off for these arguments.
        Unsupported: matplotlib is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> training = fa.Training(rounds=2)
        >>> federation = fa.Federation("digits", training=training)
        >>> defense = fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.5)
        >>> noisy = fa.Federation("digits", training=training, defenses=[defense])
        >>> first = fa.audit(federation, attacks=["loss-series"], out="runs/plain")
        >>> second = fa.audit(noisy, attacks=["loss-series"], out="runs/noisy")
        >>> fa.plots.front(fa.compare(first, second)).savefig("front.png")
    """
    from fedaudit.report.comparison.tradeoffs import labels_of
    from fedaudit.results.comparison import STRONGEST_ATTACK

    attack = attack or STRONGEST_ATTACK
    fronts = [f for f in compared.comparison.fronts if (f.attack, f.metric) == (attack, metric)]
    fronts = [f for f in fronts if f.contrast == (contrast or fronts[0].contrast)]
    points = {point.row: point for f in fronts for point in f.points}
    if not points:
        raise BadInput(
            f"the comparison has no trade-off of {attack!r}, {metric!r} and contrast "
            f"{contrast or 'any'!r}; compare audits that have an accuracy and this attack"
        )
    leakage = "membership advantage" if metric == AUC else metric
    figure, axes = _figure(f"{leakage}, {attack}", "test accuracy")
    labels = labels_of(compared.comparison)
    for row, point in sorted(points.items()):
        low, high = _error_bar_lengths(point.error, point.error_limits)
        axes.errorbar(
            point.leakage,
            1 - point.error,
            xerr=np.array([_error_bar_lengths(point.leakage, point.leakage_limits)]).T,
            yerr=np.array([[high], [low]]),
            fmt="o",
            capsize=2,
            label=labels[row],
        )
    _legend(figure)
    return figure


@check_arguments
def trajectory(
    result: "_HasRecord | Record",
    *,
    signal: str = "",
    target: int | None = None,
    seed: int | None = None,
) -> "Figure":
    """Plot a signal of the target client by round, for members and non-members.

    Lines are means over samples, and bands contain 80 % of the samples. Signals are larger for
    likelier members; "loss" is the negative loss.

    Args:
        result: A run, or its record.
        signal: Name of the signal; by default, the first signal of the record.
        target: Id of the audited client; by default, the first.
        seed: Seed of the run; by default, the first.

    Raises:
        BadInput: The record has no such trajectory.
        Unsupported: matplotlib is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/plotted")
        >>> fa.plots.trajectory(run, signal="loss").savefig("loss.png")
    """
    trajectories = _record_of(result).trajectories
    first = next(iter(trajectories), None)
    wanted = first and (
        signal or first.signal,
        first.target if target is None else target,
        first.seed if seed is None else seed,
    )
    chosen = [t for t in trajectories if (t.signal, t.target, t.seed) == wanted]
    if not chosen:
        known = sorted({t.signal for t in trajectories})
        raise BadInput(
            f"the record has no trajectory of signal {signal!r}, target {target} and seed {seed}; "
            f"signals with trajectories: {', '.join(known) or 'none'}"
        )
    figure, axes = _figure("round", f"signal {chosen[0].signal!r}, larger for members")
    for item in chosen:
        mean, low, high = (np.array(v, float) for v in (item.mean, item.low, item.high))
        (line,) = axes.plot(item.rounds, mean, label=_ORIGINS[item.origin])
        axes.fill_between(item.rounds, low, high, alpha=0.2, color=line.get_color())
    _legend(figure)
    return figure


@check_arguments
def accuracy(result: "_HasRecord | Record") -> "Figure":
    """Plot the test accuracy of an audit's federations by round, with one line per seed.

    Args:
        result: A run, or its record.

    Raises:
        Unsupported: matplotlib is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/plotted")
        >>> fa.plots.accuracy(run).savefig("accuracy.png")
    """
    figure, axes = _figure("round", "test accuracy")
    for series in _record_of(result).accuracies:
        label = f"defense: {series.defense}, seed {series.seed}"
        axes.plot(series.rounds, series.accuracy, marker="o", label=label)
    _legend(figure)
    return figure


@cache
def _figure_class() -> "type[Figure]":
    """Return a subclass of matplotlib's figure that notebooks display without pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unsupported(
            'plots need matplotlib, which is not installed; install "fedaudit[plots]"'
        ) from error

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            image = BytesIO()
            self.savefig(image, format="png", dpi=150)
            return image.getvalue()

    return NotebookFigure


def _figure(x_label: str, y_label: str) -> "tuple[Figure, Axes]":
    """Return a figure that is not shown in a window, and its axes."""
    figure = _figure_class()(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.locator_params(nbins=6)
    axes.grid(alpha=0.3)
    return figure, axes


def _record_of(result: "_HasRecord | Record") -> "Record":
    from fedaudit.results.record import Record

    record = getattr(result, "record", result)
    if not isinstance(record, Record):
        raise BadInput(
            f"plots need a fedaudit.Run or its record, got {type_of(result)}; open the folder "
            "of an audit with fedaudit.Run(folder)"
        )
    return record
