"""Figures of security games: success against epsilon, both kinds of games, and the neuron."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedaudit.games.record import GameRecord, PointPlayed, Rate, Spread, Success
from fedaudit.report.drawing import (
    Choice,
    Figures,
    Panel,
    Spec,
    error_bars,
    hover_text,
    plotly_text,
    series_line,
    spec_of,
    upright,
)
from fedaudit.report.game_axis import EpsilonAxis, epsilon_axis
from fedaudit.report.game_paper import PRINTED, SAME_MECHANISMS, Printed
from fedaudit.report.game_points import (
    NO_MECHANISM,
    Shown,
    epsilon,
    families,
    overtaken,
    shown_points,
)
from fedaudit.report.game_rounds import by_signs, rounds_figure
from fedaudit.report.game_sweeps import sweep_figure
from fedaudit.report.grid import shortened
from fedaudit.report.styles import OKABE_ITO, Key, Style, see_through, swatch
from fedaudit.report.words import count, percent

MOST_LINES = 14
"""Lines of one figure; the table has the others."""

MOST_PANELS = 12

NEAR = 20.0
"""Epsilons up to here, which papers speak of, have a view of their own beside much larger ones."""

_HEIGHT = 400

_GUESS = Style("#7A7A7A", "dot", "circle")
_CEILING = Style("#7A7A7A", "solid", "circle")
_REFUTED = Style("#C3362B", "solid", "circle")
_PRINTED = Style("#8A6FB0", "solid", "star")
_TPR = Style(OKABE_ITO[1], "solid", "circle")
_TNR = Style(OKABE_ITO[0], "dash", "square")
_PREDICTED = Style("#7A7A7A", "dot", "diamond")

_COLORS = OKABE_ITO[:6]
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down")
_GUESSING, _HONEST, _WRONG = "Guessing", "Most under an honest ε", "Contradicts the named ε"

Families = dict[str, list[Shown]]


def game_figures(record: GameRecord) -> dict[str, Figures]:
    """Every figure that a record of games has data for, by its name in the document."""
    groups = families(by_signs(shown_points(record.points)))
    points = [one.point for inside in groups.values() for one in inside]
    sweep = sweep_figure(record.model_copy(update={"points": points}))
    found = [sweep, spread_figure(record), rounds_figure(record)]
    budgets = [one for point in points for one in (_named(point), _true(point))]
    # Without any epsilon there is nothing to draw against but what was turned.
    if (points and sweep is None) or any(one is not None for one in budgets):
        found += [success_figure(groups), kinds_figure(groups)]
    return {figure.ident: figure for figure in found if figure is not None}


def success_figure(groups: Families) -> Figures:
    """Adv against the named epsilon, or against the true one; a line for each mechanism."""
    drawn = _first(groups, MOST_LINES)
    looks = _looks(drawn)
    points = [one.point for inside in drawn.values() for one in inside]
    ways = _ways(drawn)
    papers = _papers(points, ways[0].axis)
    choices = tuple(Choice(way.label, (_success_panel(way, looks, papers),)) for way in ways)
    keys = [Key(shortened(name), plotly_text(name), swatch(look)) for name, look in looks.items()]
    keys.append(Key(_HONEST, _HONEST, swatch(_CEILING, marked=False)))
    keys.append(Key(_GUESSING, _GUESSING, swatch(_GUESS, marked=False)))
    if any(point.refuted or overtaken(point) for point in points):
        keys.append(Key(_WRONG, _WRONG, swatch(_REFUTED, lined=False)))
    for place, paper in enumerate(papers):
        keys.append(Key(paper.label, plotly_text(paper.label), swatch(_paper_look(place))))
    return Figures(
        "games-success",
        "How often the server is right (Adv), with its 95% interval. The grey line is the most "
        "that any server reaches against a mechanism that keeps the epsilon on the axis, "
        "e^ε / (1 + e^ε). Without a mechanism there is no epsilon: that success is a level across "
        "the figure. Points at one epsilon are set a little apart."
        + (_PAPER_CAPTION if papers else "")
        + _left_out(len(groups) - len(drawn), "line"),
        choices,
        tuple(keys),
    )


def kinds_figure(groups: Families) -> Figures:
    """TPR and TNR against epsilon, a panel for each mechanism."""
    drawn = _first(groups, MOST_PANELS)
    choices = tuple(
        Choice(way.label, tuple(_kinds_panel(name, way) for name in way.groups))
        for way in _ways(drawn, all_placed=True)
    )
    return Figures(
        "games-kinds",
        "Both kinds of games apart, with their 95% intervals. A TPR of 100% beside a TNR of 0% is "
        "a server that always says “in”. The dotted line is the TNR if each target’s neuron "
        "fired for every other record by itself, as often as it did; the TNR is above it where "
        "records of a batch share their noise. Points without such an "
        "epsilon stand in the table only." + _left_out(len(groups) - len(drawn), "panel"),
        choices,
        (
            Key("TPR: “in” where the target is in the batch", "TPR", swatch(_TPR)),
            Key("TNR: “out” where it is not", "TNR", swatch(_TNR)),
            Key("Predicted TNR", "Predicted TNR", swatch(_PREDICTED)),
        ),
    )


def spread_figure(record: GameRecord) -> Figures | None:
    """How the neuron's values are spread for the target and for others; a choice a point."""
    shown = [one for one in shown_points(record.points) if one.point.spread is not None]
    choices = tuple(
        Choice(shortened(one.name, 80), (_spread_panel(shortened(one.name), one.point.spread),))
        for one in shown
        if one.point.spread is not None
    )
    if not choices:
        return None
    return Figures(
        "games-spread",
        "Values of the first target’s neuron on fresh randomised copies of the target and on other "
        "records, as a share of each. The neuron fires right of the dotted line at zero. The less "
        "the two overlap there, the surer the server; one record of the others right of it is "
        "enough to spoil a batch.",
        choices,
        (
            Key("The target", "The target", swatch(_TPR, marked=False)),
            Key("Other records", "Other records", swatch(_TNR, marked=False)),
        ),
    )


_NAMED, _TRUE = "against the named epsilon", "against the true epsilon"
_PAPER_CAPTION = (
    " Marks of the AMI paper are what its text says, for its own data, batches and neurons, which "
    "are not those here: CelebA (batches of 20), ImageNet (64) and CIFAR-10 (100). ≥ is a lower "
    "end. The paper’s published code gives all records of a batch the same noise under BitRand, "
    "as “shared mask” does."
)

Of = Callable[[PointPlayed], float | None]


class Way(NamedTuple):
    """One way to look at points: by which epsilon, and which of them."""

    label: str
    axis: EpsilonAxis
    of: Of
    groups: Families


def _named(point: PointPlayed) -> float | None:
    return point.nominal_epsilon


def _true(point: PointPlayed) -> float | None:
    return point.true_epsilon


def _ways(groups: Families, *, all_placed: bool = False) -> list[Way]:
    """The axes that a reader can choose between; one only without any epsilon.

    Args:
        groups: What is drawn.
        all_placed: Leave out points that have no epsilon of the kind.
    """
    ways = [
        _way(_NAMED, "ε that is named (nats)", "none", _named, groups, all_placed),
        _way(_TRUE, "ε that is true (nats)", "no bound", _true, groups, all_placed),
    ]
    near = {
        name: [one for one in inside if (_named(one.point) or 0.0) <= NEAR]
        for name, inside in groups.items()
    }
    few = {name: inside for name, inside in near.items() if inside}
    named = [e for inside in few.values() for one in inside if (e := _named(one.point))]
    if ways[0].axis.log and max(named, default=0.0) > 1 and ways[0].axis.most > 2 * NEAR:
        label = f"{_NAMED}, up to {NEAR:g}"
        ways.insert(0, _way(label, "ε that is named (nats)", "none", _named, few, all_placed))
    placed = [way for way in ways if not way.axis.bare]
    return placed or [_way(_NAMED, "ε that is named (nats)", "none", _named, groups, False)]


def _way(label: str, title: str, none: str, of: Of, groups: Families, all_placed: bool) -> Way:
    if all_placed:
        placed = {
            name: [one for one in inside if of(one.point) is not None]
            for name, inside in groups.items()
        }
        groups = {name: inside for name, inside in placed.items() if inside}
    values = [of(one.point) for inside in groups.values() for one in inside]
    return Way(label, epsilon_axis(values, title=title, none=none), of, groups)


def _first(groups: Families, most: int) -> Families:
    return dict(list(groups.items())[:most])


def _looks(names: Families) -> dict[str, Style]:
    """Masks by dash, mechanisms by colour, both by marker."""
    colors: dict[str, int] = {}
    looks = {}
    for place, (name, inside) in enumerate(names.items()):
        point = inside[0].point
        base = name.replace(", shared mask", "", 1) if point.shared_mask else name
        at = colors.setdefault(base, len(colors))
        dash = ("solid", "dot", "dashdot")[at // len(_COLORS) % 3]
        if point.shared_mask or point.mechanism == NO_MECHANISM:
            dash = "dash" if point.shared_mask else "longdash"
        looks[name] = Style(_COLORS[at % len(_COLORS)], dash, _SYMBOLS[place % len(_SYMBOLS)])
    return looks


def _success_panel(way: Way, looks: dict[str, Style], papers: Sequence[Printed]) -> Panel:
    axis, drawn = way.axis, way.groups
    printed = papers if way.of is _named else ()
    traces = [
        series_line(axis.ends(), [0.5, 0.5], _GUESS, _GUESSING, hover="%{y:.0%}"),
        *([] if axis.bare else [_ceiling(axis)]),
        *(_printed(paper, place, axis) for place, paper in enumerate(printed)),
    ]
    middle, apart = (len(drawn) - 1) / 2, min(0.012, 0.05 / len(drawn))
    for place, (name, inside) in enumerate(drawn.items()):
        aside = (place - middle) * apart
        if inside[0].point.mechanism == NO_MECHANISM:
            traces += [
                series_line(axis.ends(), [one.point.adv.value] * 2, looks[name], name)
                | {"hoverinfo": "skip"}
                for one in inside
            ]
        traces.append(_dots(inside, looks[name], name, way, aside, _adv, "right in"))
        traces += _rings(inside, way, aside)
    low = min(one.point.adv.low for inside in drawn.values() for one in inside)
    yaxis = _share_axis("Right (Adv)", min(0.38, low - 0.03))
    spec = spec_of(traces, xaxis=axis.spec(), yaxis=yaxis, height=_HEIGHT)
    return Panel("", f"Success of the server, {len(drawn)} lines; the table has the numbers.", spec)


def _kinds_panel(name: str, way: Way) -> Panel:
    inside = way.groups[name]
    predicted = series_line(
        [way.axis.place(way.of(one.point)) for one in inside],
        [one.point.predicted_tnr for one in inside],
        _PREDICTED,
        "Predicted TNR",
        marks=20,
        hover="%{y:.1%}",
    )
    traces = [
        predicted,
        _dots(inside, _TNR, "TNR", way, 0.006, lambda point: point.tnr, "TNR"),
        _dots(inside, _TPR, "TPR", way, -0.006, lambda point: point.tpr, "TPR"),
    ]
    yaxis = _share_axis("Share of games", -0.04)
    spec = spec_of(traces, xaxis=way.axis.spec(), yaxis=yaxis)
    return Panel(shortened(name), f"TPR and TNR of {shortened(name)}.", spec)


def _dots(
    inside: Sequence[Shown],
    look: Style,
    name: str,
    way: Way,
    aside: float,
    figure: Callable[[PointPlayed], Rate | Success],
    said: str,
) -> Spec:
    """Points of one line with their intervals; those without an epsilon are not joined."""
    values = [figure(one.point) for one in inside]
    budgets = [way.of(one.point) for one in inside]
    line = series_line(
        [way.axis.place(budget, aside=aside) for budget in budgets],
        [value.value for value in values],
        look,
        name,
        marks=len(inside) + 1,
        hover=f"%{{text}}: {said} %{{y:.1%}}",
    )
    return line | {
        "mode": "markers" if None in budgets else "lines+markers",
        "text": [plotly_text(one.name) for one in inside],
        "error_y": error_bars(values, color=look.color),
    }


def _rings(inside: Sequence[Shown], way: Way, aside: float) -> list[Spec]:
    """A ring round each point that contradicts its epsilon."""
    wrong = [one for one in inside if one.point.refuted or overtaken(one.point)]
    if not wrong:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": _WRONG,
            "x": [way.axis.place(way.of(one.point), aside=aside) for one in wrong],
            "y": [one.point.adv.value for one in wrong],
            "text": [f"proves ε ≥ {epsilon(one.point.proven_epsilon)}" for one in wrong],
            "marker": {
                "symbol": "circle-open",
                "size": 17,
                "color": _REFUTED.color,
                "line": {"width": 3},
            },
            "hovertemplate": hover_text("%{text}", _WRONG),
        }
    ]


def _ceiling(axis: EpsilonAxis) -> Spec:
    steps = axis.steps()
    most = [1 / (1 + math.exp(-step)) for step in steps]
    return series_line(steps, most, _CEILING, _HONEST, hover="at most %{y:.2%}")


def _papers(points: Sequence[PointPlayed], axis: EpsilonAxis) -> tuple[Printed, ...]:
    """Marks of the paper for the mechanisms that were played, as far as the axis goes."""
    there = {
        mechanism
        for mechanism in SAME_MECHANISMS
        if any(p.mechanism == mechanism and p.nominal_epsilon is not None for p in points)
    }
    reach = axis.most if there else 0.0
    return tuple(one for one in PRINTED if one.mechanism in there and one.epsilons[0] < reach)


def _printed(paper: Printed, place: int, axis: EpsilonAxis) -> Spec:
    line = series_line(
        [axis.place(min(at, axis.most)) for at in paper.epsilons],
        [paper.adv] * 2,
        _paper_look(place),
        paper.label,
        marks=2,
        hover=f"{paper.said} (ε {paper.epsilons[0]:g} to {paper.epsilons[1]:g})",
    )
    thin = {"color": _PRINTED.color, "dash": _paper_look(place).dash, "width": 1.2}
    return line | {"line": thin, "opacity": 0.85}


def _paper_look(place: int) -> Style:
    dashes = ("solid", "dash", "dot", "dashdot", "longdash")
    symbols = ("star", "triangle-up", "square", "diamond", "triangle-down", "circle")
    return _PRINTED._replace(dash=dashes[place % len(dashes)], symbol=symbols[place % len(symbols)])


def _spread_panel(name: str, spread: Spread) -> Panel:
    traces = [
        outline(spread.edges, amounts, look, said)
        for amounts, look, said in (
            (spread.of_others, _TNR, "Other records"),
            (spread.of_target, _TPR, "The target"),
        )
        if sum(amounts)
    ]
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Value of the neuron"}, "nticks": 7},
        yaxis={"title": {"text": "Share"}, "tickformat": ".0%", "rangemode": "tozero", "nticks": 5},
        shapes=[upright(0.0)],
    )
    fired = [
        percent(_right_of_zero(spread.edges, amounts))
        for amounts in (spread.of_target, spread.of_others)
    ]
    summary = (
        f"Values of the neuron for {name}: about {fired[0]} of the target’s copies and {fired[1]} "
        "of other records above zero."
    )
    return Panel(name, summary, spec)


def outline(edges: Sequence[float], amounts: Sequence[int], look: Style, name: str) -> Spec:
    """Bins as one stepped outline that starts and ends on the axis."""
    shares = [amount / sum(amounts) for amount in amounts]
    x, y = [edges[0], *edges], [0.0, *shares, 0.0]
    line = series_line(x, y, look, name, shape="hv", hover="%{y:.1%} from %{x:.3g} on")
    return line | {"fill": "tozeroy", "fillcolor": see_through(look.color, 0.14)}


def _right_of_zero(edges: Sequence[float], amounts: Sequence[int]) -> float:
    above = sum(a for left, a in zip(edges, amounts, strict=False) if left >= 0)
    return above / sum(amounts) if sum(amounts) else 0.0


def _share_axis(title: str, least: float) -> Spec:
    return {
        "title": {"text": title},
        "tickformat": ".0%",
        "range": [least, 1.04],
        "nticks": 7,
    }


def _adv(point: PointPlayed) -> Success:
    return point.adv


def _left_out(number: int, kind: str) -> str:
    if number <= 0:
        return ""
    return f" {count(number)} more {kind}{'s' * (number > 1)} would not fit; the table has them."
