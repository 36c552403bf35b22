"""The figures of a report: plotly descriptions as plain JSON values, and their legends.

A figure is a row of panels that share a legend; where the record holds several settings, each
is a choice of the same figure, drawn when the reader picks it.
"""

import math
from collections.abc import Iterable, Sequence

from fedaudit.report.choosing import defense_name, distinct
from fedaudit.report.drawing import (
    Choice,
    Figures,
    Panel,
    Spec,
    choices_of,
    plotly_text,
    series_line,
    spec_of,
)
from fedaudit.report.grid import shortened
from fedaudit.report.styles import (
    OKABE_ITO,
    ORIGIN_NAMES,
    ORIGIN_STYLES,
    Key,
    Style,
    see_through,
    style,
    swatch,
)
from fedaudit.report.words import CONTRAST_MEANINGS, contrast_name, contrast_order
from fedaudit.study.record import Curve, GroupFigure, Histogram, Record, Trajectory, UtilityResult

_NEUTRAL = Style("#7A7A7A", "dot", "circle")
_LOWEST_RATE = 1e-5


def figures_of(record: Record) -> dict[str, Figures]:
    """Every figure that the record has data for, by its name in the document."""
    found = [
        roc_figure(record.curves),
        trajectory_figure(record.trajectories),
        histogram_figure(record.histograms),
        group_figure(record.groups, "client"),
        group_figure(record.groups, "class"),
        accuracy_figure(record.utility),
    ]
    return {figure.ident: figure for figure in found if figure is not None}


def roc_figure(curves: Sequence[Curve]) -> Figures | None:
    """Receiver operating characteristics of all attacks, a panel a contrast, both axes log."""
    if not curves:
        return None
    attacks = distinct(curve.attack for curve in curves)
    looks = {attack: style(position) for position, attack in enumerate(attacks)}
    floor = _floor(curves)

    def panels(inside: list[Curve]) -> tuple[Panel, ...]:
        contrasts = sorted({curve.contrast for curve in inside}, key=contrast_order)
        return tuple(
            _roc_panel([c for c in inside if c.contrast == contrast], looks, floor)
            for contrast in contrasts
        )

    keys = [
        Key(shortened(attack), plotly_text(attack), swatch(looks[attack])) for attack in attacks
    ]
    return Figures(
        "roc",
        "True-positive against false-positive rate, both axes logarithmic, so that the left "
        "side shows what matters: members identified at few false alarms. Dotted uprights mark "
        "false-positive rates of 0.1% and 1%; the dotted diagonal is guessing. Curves are "
        "steps through observed points, not interpolated.",
        choices_of(curves, _curve_setting, panels),
        (*keys, Key("guessing", "", swatch(_NEUTRAL, marked=False))),
        "square",
    )


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
        [chance, *(_roc_curve(curve, looks[curve.attack], floor) for curve in curves)],
        xaxis=axis | {"title": {"text": "False-positive rate"}},
        yaxis=axis | {"title": {"text": "True-positive rate"}},
        shapes=[_upright(0.001), _upright(0.01)],
    )
    meaning = CONTRAST_MEANINGS.get(contrast, shortened(contrast))
    return Panel(
        f"Members v. {contrast_name(contrast).lower()}",
        f"Curves of {len(curves)} attacks telling members from {meaning}; "
        "the table of attacks gives their numbers.",
        spec,
    )


def _roc_curve(curve: Curve, look: Style, floor: float) -> Spec:
    # A logarithmic axis has no zero: such points go to the edge, below it for the TPR.
    fpr = [max(rate, floor) for rate in curve.fpr]
    tpr = [max(rate, floor / 10) for rate in curve.tpr]
    line = series_line(fpr, tpr, look, curve.attack, shape="hv", marks=5)
    line["hovertemplate"] = "TPR %{y:.2%} at FPR %{x:.3%}"
    return line


def _upright(at: float) -> Spec:
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": "#7A7A7A", "width": 1, "dash": "dot"},
    }


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
        "percentile). Where bands part, samples can be told apart.",
        choices_of(trajectories, _run_setting, panels),
        _origin_keys(distinct(part.origin for part in trajectories)),
    )


def _trajectory_panel(parts: list[Trajectory]) -> Panel:
    traces: list[Spec] = []
    for part in parts:
        look = ORIGIN_STYLES[part.origin]
        traces += _band(part, look)
    for part in parts:
        look = ORIGIN_STYLES[part.origin]
        name = ORIGIN_NAMES[part.origin]
        line = series_line(part.rounds, part.mean, look, name, marks=8)
        line["hovertemplate"] = "%{y:.4g} in round %{x}<extra>" + name + "</extra>"
        traces.append(line)
    signal = parts[0].signal
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Round"}, "tickformat": "d", "nticks": 8},
        yaxis={"nticks": 6},
    )
    return Panel(
        shortened(signal),
        f"Signal {shortened(signal)} over rounds, by origin of the samples.",
        spec,
    )


def _band(part: Trajectory, look: Style) -> list[Spec]:
    edge: Spec = {
        "type": "scatter",
        "name": plotly_text(ORIGIN_NAMES[part.origin]),
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    fill = {"fill": "tonexty", "fillcolor": see_through(look.color, 0.16)}
    lower = edge | {"x": part.rounds, "y": part.low}
    return [lower, edge | fill | {"x": part.rounds, "y": part.high}]


def histogram_figure(histograms: Sequence[Histogram]) -> Figures | None:
    """Scores by origin, a panel an attack, as the share of that origin's samples in each bin."""
    if not histograms:
        return None

    def panels(inside: list[Histogram]) -> tuple[Panel, ...]:
        return tuple(_histogram_panel(part) for part in inside)

    return Figures(
        "histograms",
        "How each attack scores samples of each origin, as the share of that origin's samples "
        "in each bin. Larger scores stand for members.",
        choices_of(histograms, _run_setting, panels),
        _origin_keys(list(ORIGIN_NAMES)),
    )


def _histogram_panel(part: Histogram) -> Panel:
    counts = {"member": part.member, "other_client": part.other_client, "unseen": part.unseen}
    traces = [
        _outline(part.edges, amounts, ORIGIN_STYLES[origin], ORIGIN_NAMES[origin])
        for origin, amounts in counts.items()
        if sum(amounts)
    ]
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Score"}, "nticks": 6},
        yaxis={"title": {"text": "Share"}, "tickformat": ".0%", "rangemode": "tozero", "nticks": 5},
    )
    name = shortened(part.attack)
    return Panel(name, f"Scores that {name} gives, by origin of the samples.", spec)


def _outline(edges: list[float], amounts: list[int], look: Style, name: str) -> Spec:
    """Bins as one stepped outline that starts and ends on the axis."""
    total = sum(amounts)
    shares = [amount / total for amount in amounts]
    x = [edges[0], *edges]
    y = [0.0, *shares, 0.0]
    line = series_line(x, y, look, name, shape="hv")
    line |= {"fill": "tozeroy", "fillcolor": see_through(look.color, 0.12)}
    line["hovertemplate"] = "%{y:.1%} from %{x:.3g} on<extra>" + name + "</extra>"
    return line


def group_figure(groups: Sequence[GroupFigure], by: str) -> Figures | None:
    """AUC of each client or class with its interval, as dots; the strongest attack first."""
    parts = [group for group in groups if group.by == by]
    if not parts:
        return None
    best: dict[str, float] = {}
    for part in parts:
        best[part.attack] = max(best.get(part.attack, 0.0), part.value or 0.0)
    parts.sort(key=lambda part: (-best[part.attack], contrast_order(part.contrast)))

    def panels(inside: list[GroupFigure]) -> tuple[Panel, ...]:
        return (_group_panel(inside, by),)

    return Figures(
        by,
        f"AUC for each {by} with its interval; the dotted line is guessing. An average hides "
        f"who carries the risk. A {by} without a dot had too few samples for a figure.",
        choices_of(parts, _group_setting, panels),
        shape="tall",
    )


def _group_panel(groups: list[GroupFigure], by: str) -> Panel:
    label = f"{by.capitalize()} "
    given = [group for group in groups if group.value is not None]
    names = [plotly_text(label + group.group) for group in groups]
    values = [group.value or 0.0 for group in given]
    trace: Spec = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": [plotly_text(label + group.group) for group in given],
        "marker": {"size": 10, "color": OKABE_ITO[0], "symbol": "circle"},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_reach(group.high, group.value) for group in given],
            "arrayminus": [_reach(group.value, group.low) for group in given],
            "color": OKABE_ITO[0],
            "thickness": 2,
            "width": 4,
        },
        "hovertemplate": "%{y}: AUC %{x:.3f}<extra></extra>",
    }
    limits = [limit for g in given for limit in (g.low, g.high, g.value) if limit is not None]
    spec = spec_of(
        [trace],
        xaxis={
            "title": {"text": "AUC"},
            "range": [min([0.45, *limits]) - 0.02, max([0.75, *limits]) + 0.02],
            "nticks": 8,
        },
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names,
            "range": [len(names) - 0.5, -0.5],
            "dtick": 1,
        },
        shapes=[_upright(0.5)],
        height=110 + 30 * len(names),
    )
    first = groups[0]
    title = (
        f"{shortened(first.attack)}: members v. {contrast_name(first.contrast).lower()}, "
        f"{shortened(defense_name(first.defense))}"
    )
    return Panel(title, f"AUC of {title} by {by}; the table has the numbers.", spec)


def _reach(far: float | None, near: float | None) -> float:
    return 0.0 if far is None or near is None else max(far - near, 0.0)


def accuracy_figure(utility: Sequence[UtilityResult]) -> Figures | None:
    """Test accuracy by round, a curve for each defense and seed."""
    parts = [result for result in utility if result.rounds]
    if not parts:
        return None
    defenses = distinct(result.defense for result in parts)
    looks = {defense: style(position) for position, defense in enumerate(defenses)}
    traces = []
    for result in parts:
        name = plotly_text(f"{defense_name(result.defense)}, seed {result.seed}")
        line = series_line(
            result.rounds, result.accuracy_by_round, looks[result.defense], name, marks=8
        )
        line["hovertemplate"] = "%{y:.1%} after round %{x}<extra>" + name + "</extra>"
        traces.append(line)
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Round"}, "tickformat": "d", "nticks": 8},
        yaxis={"title": {"text": "Test accuracy"}, "tickformat": ".0%", "nticks": 6},
    )
    return Figures(
        "accuracy",
        "Accuracy of the global model on test samples, round by round; a line for each seed.",
        (Choice("", (Panel("", "Test accuracy by round.", spec),)),),
        tuple(Key(shortened(defense_name(name)), "", swatch(look)) for name, look in looks.items()),
    )


def _curve_setting(curve: Curve) -> tuple[str, ...]:
    return (*_run_setting(curve), f"view: {shortened(curve.view)}")


def _run_setting(part: Curve | Trajectory | Histogram) -> tuple[str, ...]:
    return (shortened(defense_name(part.defense)), f"client {part.target}", f"seed {part.seed}")


def _group_setting(group: GroupFigure) -> tuple[str, ...]:
    return (
        shortened(group.attack),
        f"v. {shortened(contrast_name(group.contrast)).lower()}",
        shortened(defense_name(group.defense)),
        f"seed {group.seed}",
    )


def _origin_keys(origins: Sequence[str]) -> tuple[Key, ...]:
    return tuple(
        Key(ORIGIN_NAMES[origin], plotly_text(ORIGIN_NAMES[origin]), swatch(look))
        for origin, look in ORIGIN_STYLES.items()
        if origin in origins
    )
