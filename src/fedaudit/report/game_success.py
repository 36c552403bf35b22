"""Success of the server against epsilon, drawn."""

import math
from collections.abc import Sequence

from fedaudit.report.drawing import (
    Choice,
    Figures,
    Panel,
    Spec,
    hover_text,
    plotly_text,
    series_line,
    spec_of,
)
from fedaudit.report.game_axis import EpsilonAxis
from fedaudit.report.game_paper import PRINTED, SAME_MECHANISMS, Printed
from fedaudit.report.game_points import (
    NO_MECHANISM,
    Families,
    Shown,
    epsilon,
    overtaken,
)
from fedaudit.report.game_ways import Way, dots, first, left_out, named, share_axis, ways
from fedaudit.report.grid import shortened
from fedaudit.report.reading import PointPlayed, Success
from fedaudit.report.styles import OKABE_ITO, Key, Style, swatch

MOST_LINES = 14
"""Lines of one figure; the table has the others."""

_HEIGHT = 400

_GUESS = Style("#7A7A7A", "dot", "circle")
_CEILING = Style("#7A7A7A", "solid", "circle")
_REFUTED = Style("#C3362B", "solid", "circle")
_PRINTED = Style("#8A6FB0", "solid", "star")

_COLORS = OKABE_ITO[:6]
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down")
_GUESSING, _HONEST, _WRONG = "Guessing", "Most under an honest ε", "Contradicts the named ε"

_PAPER_CAPTION = (
    " Marks of the AMI paper are what its text says, for its own data, batches and neurons, which "
    "are not those here: CelebA (batches of 20), ImageNet (64) and CIFAR-10 (100). ≥ is a lower "
    "end. The paper’s published code gives all records of a batch the same noise under BitRand, "
    "as “shared mask” does."
)


def success_figure(groups: Families) -> Figures:
    """Adv against the named epsilon, or against the true one; a line for each mechanism."""
    drawn = first(groups, MOST_LINES)
    looks = _looks(drawn)
    points = [one.point for inside in drawn.values() for one in inside]
    looked = ways(drawn)
    papers = _papers(points, looked[0].axis)
    choices = tuple(Choice(way.label, (_success_panel(way, looks, papers),)) for way in looked)
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
        + left_out(len(groups) - len(drawn), "line"),
        choices,
        tuple(keys),
    )


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
    printed = papers if way.of is named else ()
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
        traces.append(dots(inside, looks[name], name, way, aside, _adv, "right in"))
        traces += _rings(inside, way, aside)
    low = min(one.point.adv.low for inside in drawn.values() for one in inside)
    yaxis = share_axis("Right (Adv)", min(0.38, low - 0.03))
    spec = spec_of(traces, xaxis=axis.spec(), yaxis=yaxis, height=_HEIGHT)
    return Panel("", f"Success of the server, {len(drawn)} lines; the table has the numbers.", spec)


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


def _adv(point: PointPlayed) -> Success:
    return point.adv
