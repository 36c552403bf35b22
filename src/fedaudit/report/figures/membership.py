"""Figures of membership inference: ROC, signals, scores, risk by client and class."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.report.evidence import distinct
from fedaudit.report.figures.drawing import (
    OKABE_ITO,
    ORIGIN_STYLES,
    Choice,
    Figures,
    LegendEntry,
    Panel,
    Spec,
    Style,
    choices_of,
    error_bars,
    hover_text,
    origin_keys,
    origin_line,
    run_setting,
    see_through,
    series_line,
    series_name,
    spec_of,
    style,
    swatch,
    upright,
)
from fedaudit.report.grid import shortened
from fedaudit.report.tables.membership import group_name, target_figures
from fedaudit.report.words import (
    ORIGINS,
    capital,
    contrast_meaning,
    contrast_name,
    contrast_order,
    defense_name,
    listed,
    signal_name,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import AccuracyByRound, AttackRow, Curve, Histogram, Record, Trajectory

MOST_TOLD_APART = 4
"""Curves in colour; eight of them could not be told apart at 1% and below."""

_NEUTRAL = Style("#7A7A7A", "dot", "circle")
_GREY = Style("#9AA3AD", "solid", "circle")
_OTHERS = "other attacks"
_LOWEST_RATE = 1e-5


def roc_figure(curves: Sequence[Curve]) -> Figures | None:
    """Receiver operating characteristics of all attacks, a panel a contrast, both axes log.

    The strongest attacks have a colour each; the others are grey, since more than a few curves
    cannot be told apart where it matters.
    """
    if not curves:
        return None
    ranked = _ranked(curves)
    told, others = ranked[:MOST_TOLD_APART], ranked[MOST_TOLD_APART:]
    looks = {attack: style(position) for position, attack in enumerate(told)}
    floor = _floor(curves)

    def panels(inside: list[Curve]) -> tuple[Panel, ...]:
        contrasts = sorted({curve.contrast for curve in inside}, key=contrast_order)
        return tuple(
            _roc_panel([c for c in inside if c.contrast == contrast], looks, floor)
            for contrast in contrasts
        )

    keys = [
        LegendEntry(shortened(attack), series_name(attack), swatch(looks[attack]))
        for attack in told
    ]
    if others:
        names = "others: " + listed([shortened(attack) for attack in others])
        keys.append(LegendEntry(shortened(names, 200), _OTHERS, swatch(_GREY, marked=False)))
    return Figures(
        "roc",
        "True-positive against false-positive rate, both axes logarithmic, so that the left "
        "side shows what matters: members identified at few false alarms. Dotted uprights mark "
        "false-positive rates of 0.1% and 1%; the dotted diagonal is guessing. Curves are "
        "steps through observed points, not interpolated: at the far left each step is a single "
        "sample."
        + (
            f" In colour stand the {len(told)} attacks that find most members at 1% false alarms "
            "or fewer."
            if others
            else ""
        ),
        choices_of(curves, _curve_setting, panels),
        (*keys, LegendEntry("guessing", "", swatch(_NEUTRAL, marked=False))),
        "square",
    )


def _ranked(curves: Sequence[Curve]) -> list[str]:
    """The attacks by the members that they find at 1% false alarms and at 0.1%, on average."""
    found: dict[str, list[float]] = {}
    for curve in curves:
        heights = [_height(curve, rate) for rate in (0.01, 0.001)]
        found.setdefault(curve.attack, []).append(fmean(heights))
    return sorted(found, key=lambda attack: -fmean(found[attack]))


def _height(curve: Curve, rate: float) -> float:
    """The true-positive rate at a false-positive rate or just below it."""
    points = zip(curve.fpr, curve.tpr, strict=False)
    return max((tpr for fpr, tpr in points if fpr <= rate), default=0.0)


def _floor(curves: Iterable[Curve]) -> float:
    """The left end of the axes: half of the smallest rate there is, at most 0.05%."""
    smallest = min((rate for curve in curves for rate in curve.fpr if rate > 0), default=1.0)
    return max(_LOWEST_RATE, min(smallest / 2, 5e-4))


def _roc_panel(curves: list[Curve], looks: dict[str, Style], floor: float) -> Panel:
    contrast = curves[0].contrast
    axis: Spec = {
        "type": "log",
        "range": [math.log10(floor), 0.02],
        "tickvals": [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1],
        "ticktext": ["0.001%", "0.01%", "0.1%", "1%", "10%", "100%"],
    }
    chance = series_line([floor, 1], [floor, 1], _NEUTRAL, "guessing") | {"hoverinfo": "skip"}
    spec = spec_of(
        # Grey ones first, so that they lie below.
        [
            chance,
            *(_roc_curve(c, None, floor) for c in curves if c.attack not in looks),
            *(_roc_curve(c, looks[c.attack], floor) for c in curves if c.attack in looks),
        ],
        xaxis=axis | {"title": {"text": "False-positive rate"}},
        yaxis=axis | {"title": {"text": "True-positive rate"}},
        shapes=[upright(0.001), upright(0.01)],
    )
    meaning = contrast_meaning(contrast)
    return Panel(
        f"Members v. {contrast_name(contrast).lower()}",
        f"Curves of {len(curves)} attacks telling members from {meaning}; "
        "the table of attacks gives their numbers.",
        spec,
    )


def _roc_curve(curve: Curve, look: Style | None, floor: float) -> Spec:
    # A logarithmic axis has no zero: such points go to the edge, below it for the TPR.
    fpr = [max(rate, floor) for rate in curve.fpr]
    tpr = [max(rate, floor / 10) for rate in curve.tpr]
    hover = "TPR %{y:.2%} at FPR %{x:.3%}"
    if look is None:
        line = series_line(fpr, tpr, _GREY, _OTHERS, shape="hv")
        return line | {"hovertemplate": hover_text(hover, curve.attack), "opacity": 0.55}
    return series_line(fpr, tpr, look, curve.attack, shape="hv", marks=5, hover=hover)


def _curve_setting(curve: Curve) -> tuple[str, ...]:
    return (*run_setting(curve), f"view: {shortened(curve.view)}")


def trajectory_figure(trajectories: Sequence[Trajectory]) -> Figures | None:
    """A signal at the target over rounds, by origin: mean and 10-90% band."""
    if not trajectories:
        return None

    def panels(inside: list[Trajectory]) -> tuple[Panel, ...]:
        signals = distinct(part.signal for part in inside)
        return tuple(
            _trajectory_panel([part for part in inside if part.signal == signal])
            for signal in signals
        )

    return Figures(
        "trajectories",
        "What the adversary measures on the target's uploads, round by round: the mean over "
        "samples of each origin, with the range that holds 80% of them (10th to 90th "
        "percentile). Where bands part, samples can be told apart. Every signal is turned so that "
        "larger stands for members: a loss is drawn as minus the loss.",
        choices_of(trajectories, run_setting, panels),
        origin_keys(distinct(part.origin for part in trajectories)),
    )


def _trajectory_panel(parts: list[Trajectory]) -> Panel:
    traces: list[Spec] = []
    for part in parts:
        traces += _band(part)
    # Means lie above all bands.
    for part in parts:
        hover = "%{y:.4g} in round %{x}"
        traces.append(origin_line(part.rounds, part.mean, part.origin, hover=hover, marks=8))
    name = capital(signal_name(parts[0].signal))
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Round"}, "tickformat": "d", "nticks": 8},
        yaxis={"title": {"text": "Signal"}, "nticks": 6},
    )
    return Panel(name, f"{name} over rounds, by origin of the samples.", spec)


def _band(part: Trajectory) -> list[Spec]:
    edge: Spec = {
        "type": "scatter",
        "name": series_name(ORIGINS[part.origin]),
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    fill = {"fill": "tonexty", "fillcolor": see_through(ORIGIN_STYLES[part.origin].color, 0.16)}
    lower = edge | {"x": part.rounds, "y": part.low}
    return [lower, edge | fill | {"x": part.rounds, "y": part.high}]


def histogram_figure(
    histograms: Sequence[Histogram], attacks: Sequence[AttackRow] = ()
) -> Figures | None:
    """Scores by origin, a panel an attack, as the share of that origin's samples in each bin."""
    if not histograms:
        return None
    units = {attack.name: _unit(attack) for attack in attacks}

    def panels(inside: list[Histogram]) -> tuple[Panel, ...]:
        return tuple(_histogram_panel(part, units.get(part.attack, "")) for part in inside)

    return Figures(
        "histograms",
        "How each attack scores samples of each origin, as the share of that origin's samples "
        "in each bin. Larger scores stand for members; what a score is stands below its axis. "
        "Scores beyond an axis are counted in its end bins.",
        choices_of(histograms, run_setting, panels),
        origin_keys(list(ORIGINS)),
    )


def _unit(attack: AttackRow) -> str:
    """Meaning of an attack's scores, where that is one signal of the target over rounds."""
    if attack.over_clients != "target only" or len(attack.signals) != 1:
        return ""
    signal = signal_name(attack.signals[0])
    ways = {"last": f"{signal}, last round", "mean": f"mean of {signal}"}
    ways["slope"] = f"slope of {signal}"
    return ways.get(attack.over_rounds, "")


def _histogram_panel(part: Histogram, unit: str) -> Panel:
    counts = {"member": part.member, "other_client": part.other_client, "unseen": part.unseen}
    traces = [
        _outline(part.edges, amounts, origin) for origin, amounts in counts.items() if sum(amounts)
    ]
    spec = spec_of(
        traces,
        xaxis={"title": {"text": series_name(capital(unit or "score"))}, "nticks": 6},
        yaxis={"title": {"text": "Share"}, "tickformat": ".0%", "rangemode": "tozero", "nticks": 5},
    )
    name = shortened(part.attack)
    return Panel(name, f"Scores that {name} gives, by origin of the samples.", spec)


def _outline(edges: list[float], amounts: list[int], origin: str) -> Spec:
    """Bins as one stepped outline that starts and ends on the axis."""
    total = sum(amounts)
    shares = [amount / total for amount in amounts]
    x = [edges[0], *edges]
    y = [0.0, *shares, 0.0]
    line = origin_line(x, y, origin, hover="%{y:.1%} from %{x:.3g} on", shape="hv")
    color = see_through(ORIGIN_STYLES[origin].color, 0.12)
    return line | {"fill": "tozeroy", "fillcolor": color}


_CAPTIONS = {
    "client": "How well the target's members are told from the samples of each other client. This "
    "is not how exposed those clients are: only the target's own data count as members here. A "
    "client without a dot had too few audited samples.",
    "class": "AUC for each class with its interval; the dotted line is guessing. An average hides "
    "who carries the risk. The intervals are not corrected for the number of classes, so that one "
    "in twenty may miss by chance. A class without a dot had too few samples for a figure.",
}


class Dot(NamedTuple):
    """A row of the figure."""

    name: str
    value: float | None
    low: float | None
    high: float | None


def target_figure(record: Record) -> Figures | None:
    """AUC of each audited client, the strongest attack first; None where only one was audited."""
    figures = target_figures(record)
    if not figures:
        return None
    figures = sorted(figures, key=lambda figure: figure.target or 0)

    def panels(inside: list[Estimate]) -> tuple[Panel, ...]:
        dots = [Dot(f"Client {f.target}", f.value, f.low, f.high) for f in inside]
        title = _title(inside[0].attack, inside[0].contrast, inside[0].defense)
        return (_panel(dots, title, "audited client"),)

    return Figures(
        "target",
        "How well the members of each audited client are told from non-members, with the "
        "interval; the dotted line is guessing. Clients that were not audited are missing: "
        "nothing is known of them.",
        _strongest_first(choices_of(figures, _target_setting, panels), figures),
        shape="tall",
    )


def _strongest_first(
    choices: tuple[Choice, ...], figures: Sequence[Estimate]
) -> tuple[Choice, ...]:
    """Choices in the order of the largest AUC behind them."""
    best: dict[tuple[str, ...], float] = {}
    for figure in figures:
        setting = _target_setting(figure)
        best[setting] = max(best.get(setting, 0.0), figure.value or 0.0)
    # Both are in the order in which settings first appear.
    pairs = zip(choices, best.values(), strict=True)
    return tuple(choice for choice, _ in sorted(pairs, key=lambda pair: -pair[1]))


def group_figure(groups: Sequence[Estimate], by: str) -> Figures | None:
    """AUC by whose samples ("client") or by "class", as dots; the strongest attack first."""
    parts = [group for group in groups if group.by == by]
    if not parts:
        return None
    best: dict[str, float] = {}
    for part in parts:
        best[part.attack] = max(best.get(part.attack, 0.0), part.value or 0.0)
    parts.sort(key=lambda part: (-best[part.attack], contrast_order(part.contrast)))

    def panels(inside: list[Estimate]) -> tuple[Panel, ...]:
        dots = [Dot(_row_name(group), group.value, group.low, group.high) for group in inside]
        title = _title(inside[0].attack, inside[0].contrast, inside[0].defense)
        return (_panel(dots, _of(inside[0], title), by),)

    return Figures(by, _CAPTIONS[by], choices_of(parts, _group_setting, panels), shape="tall")


def _row_name(group: Estimate) -> str:
    return f"v. client {group.group}" if group.by == "client" else group_name(group)


def _of(group: Estimate, title: str) -> str:
    if group.by != "client":
        return title
    whose = "the target" if group.target is None else f"client {group.target}"
    return (
        f"{shortened(group.attack)}: members of {whose} v. samples of each other client, "
        f"{shortened(defense_name(group.defense))}"
    )


def _title(attack: str, contrast: str, defense: str) -> str:
    against = contrast_name(contrast).lower()
    return f"{shortened(attack)}: members v. {against}, {shortened(defense_name(defense))}"


def _panel(dots: Sequence[Dot], title: str, by: str) -> Panel:
    names = [series_name(dot.name) for dot in dots]
    spec = spec_of(
        [_dots([dot for dot in dots if dot.value is not None])],
        xaxis={"title": {"text": "AUC"}, "range": _range(dots), "nticks": 8},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names,
            "range": [len(names) - 0.5, -0.5],
            "dtick": 1,
        },
        shapes=[upright(0.5)],
        height=110 + 30 * len(names),
    )
    return Panel(title, f"AUC of {title} by {by}; the table has the numbers.", spec)


def _dots(given: Sequence[Dot]) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [dot.value or 0.0 for dot in given],
        "y": [series_name(dot.name) for dot in given],
        "marker": {"size": 10, "color": OKABE_ITO[0], "symbol": "circle"},
        "error_x": error_bars(given, color=OKABE_ITO[0], thickness=2.0, width=4),
        "hovertemplate": "%{y}: AUC %{x:.3f}<extra></extra>",
    }


def _range(dots: Sequence[Dot]) -> list[float]:
    limits = [limit for dot in dots for limit in (dot.low, dot.high, dot.value)]
    known = [limit for limit in limits if limit is not None]
    return [min([0.45, *known]) - 0.02, max([0.75, *known]) + 0.02]


def _target_setting(figure: Estimate) -> tuple[str, ...]:
    return (
        shortened(figure.attack),
        f"v. {contrast_name(figure.contrast).lower()}",
        shortened(defense_name(figure.defense)),
        f"view: {shortened(figure.view)}",
        "mean over seeds" if figure.seed is None else f"seed {figure.seed}",
    )


def _group_setting(group: Estimate) -> tuple[str, ...]:
    return (
        shortened(group.attack),
        f"v. {contrast_name(group.contrast).lower()}",
        shortened(defense_name(group.defense)),
        "" if group.target is None else f"target {group.target}",
        f"seed {group.seed}",
    )


def accuracy_figure(
    accuracies: Sequence[AccuracyByRound], *, chosen: bool = False
) -> Figures | None:
    """Test accuracy by round, a curve for each defense and seed.

    Args:
        accuracies: Of every run.
        chosen: Whether clients choose between models, so that there is no global one.
    """
    parts = [result for result in accuracies if result.rounds]
    if not parts:
        return None
    defenses = distinct(result.defense for result in parts)
    looks = {defense: style(position) for position, defense in enumerate(defenses)}
    traces = []
    for result in parts:
        line = series_line(
            result.rounds,
            result.accuracy,
            looks[result.defense],
            f"{defense_name(result.defense)}, seed {result.seed}",
            marks=8,
            hover="%{y:.1%} after round %{x}",
        )
        traces.append(line)
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Round"}, "tickformat": "d", "nticks": 8},
        yaxis={"title": {"text": "Test accuracy"}, "tickformat": ".0%", "nticks": 6},
    )
    return Figures(
        "accuracy",
        f"Accuracy of {'the models that clients chose' if chosen else 'the global model'} on test "
        "samples, round by round; a line for each seed.",
        (Choice("", (Panel("", "Test accuracy by round.", spec),)),),
        tuple(
            LegendEntry(shortened(defense_name(name)), "", swatch(look))
            for name, look in looks.items()
        ),
    )
