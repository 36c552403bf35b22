"""Figures of security games: success and epsilon, kinds of games, neuron values."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedaudit.report.figures import drawing
from fedaudit.report.figures.svg import tick_step
from fedaudit.report.figures.sweeps import SYMBOLS, kinds_keys, rounds_figure, sweep_figure
from fedaudit.report.grid import shortened
from fedaudit.report.text.points import (
    NO_MECHANISM,
    Families,
    ShownPoint,
    by_signs,
    contradicted,
    epsilon,
    families,
    shown_points,
)
from fedaudit.report.words import count, percent
from fedaudit.results.games import PREDICTED_NEGATIVES, PointPlayed, Rate, Spread
from fedaudit.results.record import Record

_WIDE = 20.0
"""Largest over smallest epsilon from which on the axis is logarithmic."""

_SMALL = 1e-9
"""Budgets below this are drawn as none at all."""

_ASIDE = 0.08
"""Share of the axis by which the place for none is right of the largest epsilon."""

_STEPS = 80
_MOST_TICKS = 7


@dataclass(frozen=True)
class EpsilonAxis:
    """Axis of privacy budgets.

    Attributes:
        title: Of the axis.
        least: Its left end.
        most: Its right end, where budgets end.
        log: Whether it is logarithmic.
        none: What its last place is called, for points that have no such epsilon; empty if none.
        bare: Whether no point has one.
    """

    title: str
    least: float
    most: float
    log: bool
    none: str
    bare: bool

    def place(self, value: float | None, *, aside: float = 0.0) -> float:
        """Place of an epsilon; none at all stands right of all others.

        Args:
            value: The epsilon.
            aside: Share of the axis by which it is moved, so that dots do not cover each other.
        """
        return self._at(self._share(value) + aside)

    def steps(self) -> list[float]:
        """Budgets from end to end, for a curve."""
        return [self._at(step / _STEPS) for step in range(_STEPS + 1)]

    def ends(self) -> list[float]:
        """Both ends of the axis, with the place for none."""
        return [self._at(0.0), self._at(1 + 2 * _ASIDE if self.none else 1.0)]

    def scale(self) -> drawing.Scale:
        """The axis as a panel has it."""
        left, right = (math.log10(end) if self.log else end for end in self.ends())
        room = 0.03 * (right - left)
        ticks = {tick: epsilon(tick) for tick in self._ticks()}
        if self.none:
            ticks[self.place(None)] = self.none
        ends = (left - room, right + (0 if self.none else room))
        return drawing.Scale(self.title, ends=ends, ticks=ticks, log=self.log)

    def _share(self, value: float | None) -> float:
        if value is None:
            return 1 + _ASIDE
        if self.log:
            # Nothing, and what is too small to draw, stands at the left end.
            above = math.log10(max(value, self.least) / self.least)
            return above / math.log10(self.most / self.least)
        return (value - self.least) / (self.most - self.least)

    def _at(self, share: float) -> float:
        """A place on the axis, 0 at its left end and 1 where budgets end."""
        if not self.log:
            return self.least + share * (self.most - self.least)
        low, high = math.log10(self.least), math.log10(self.most)
        return float(10 ** (low + share * (high - low)))

    def _ticks(self) -> list[float]:
        if self.bare:
            return []
        if self.log:
            low, high = math.ceil(math.log10(self.least)), math.floor(math.log10(self.most))
            step = max(1, math.ceil((high - low + 1) / _MOST_TICKS))
            return [float(10.0**at) for at in range(low, high + 1, step)]
        span = self.most - self.least
        width = tick_step(span, _MOST_TICKS)
        return [at * width for at in range(math.floor(span / width + 1e-9) + 1)]


def epsilon_axis(values: Sequence[float | None], *, title: str, none: str) -> EpsilonAxis:
    """An axis on which all of some budgets have a place.

    Args:
        values: The budgets; None for points that have none.
        title: Of the axis.
        none: What the place of these is called.
    """
    above = [value for value in values if value is not None and value > _SMALL]
    none = none if None in values else ""
    bare = all(value is None for value in values)
    least, most = min(above, default=1.0), max(above, default=10.0)
    if most > _WIDE * least:
        least = max(min(0.5, least / 1.5), most * 1e-12)
        return EpsilonAxis(title, least, most * 1.3, True, none, bare)
    return EpsilonAxis(title, 0.0, most * 1.08, False, none, bare)


class Printed(NamedTuple):
    """A figure that stands in the paper's text.

    Attributes:
        mechanism: That it is of.
        label: In a legend; names the data.
        epsilons: First and last claimed epsilon that it is said of.
        adv: The success.
        said: How it is said.
    """

    mechanism: str
    label: str
    epsilons: tuple[float, float]
    adv: float
    said: str


PRINTED = (
    Printed("bitrand", "AMI paper, BitRand, CelebA: ≥ 67%", (3.0, 4.0), 0.67, "at least 67%"),
    Printed("bitrand", "AMI paper, BitRand, ImageNet: ≥ 58%", (3.0, 4.0), 0.58, "at least 58%"),
    Printed("bitrand", "AMI paper, BitRand, CIFAR-10: ≥ 62%", (3.0, 4.0), 0.62, "at least 62%"),
    Printed("bitrand", "AMI paper, BitRand, all three: ≥ 77%", (5.0, 10.0), 0.77, "at least 77%"),
    Printed("bitrand", "AMI paper, BitRand, all three: ~99%", (9.0, 10.0), 0.99, "near 99%"),
    Printed("ome", "AMI paper, OME, CelebA, CIFAR-10: ~90%", (1.0, 10.0), 0.9, "about 90%"),
    Printed("ome", "AMI paper, OME, ImageNet: > 95%", (1.0, 10.0), 0.95, "more than 95%"),
)
"""Section 5 and appendix D of the paper. Its figures draw curves without numbers."""


NEAR = 20.0
"""Epsilons up to here, which papers speak of, have a view of their own beside much larger ones."""

_NAMED, _TRUE = "against the claimed epsilon", "against the actual epsilon"

Of = Callable[[PointPlayed], float | None]


class Way(NamedTuple):
    """One way to look at points: by which epsilon, and which of them."""

    label: str
    axis: EpsilonAxis
    of: Of
    groups: Families


def named(point: PointPlayed) -> float | None:
    """The epsilon that a point's mechanism has by name."""
    return point.claimed_epsilon


def true(point: PointPlayed) -> float | None:
    """The epsilon that its mechanism keeps; None where it keeps none."""
    return point.actual_epsilon


def ways(groups: Families, *, all_placed: bool = False) -> list[Way]:
    """The axes that a reader can choose between; one only without any epsilon.

    Args:
        groups: What is drawn.
        all_placed: Leave out points that have no epsilon of the kind.
    """
    ways = [
        _way(_NAMED, "claimed ε (nats)", "none", named, groups, all_placed),
        _way(_TRUE, "actual ε (nats)", "no bound", true, groups, all_placed),
    ]
    few = _only(groups, lambda point: (named(point) or 0.0) <= NEAR)
    budgets = [e for inside in few.values() for one in inside if (e := named(one.point))]
    if ways[0].axis.log and max(budgets, default=0.0) > 1 and ways[0].axis.most > 2 * NEAR:
        label = f"{_NAMED}, up to {NEAR:g}"
        ways.insert(0, _way(label, "claimed ε (nats)", "none", named, few, all_placed))
    placed = [way for way in ways if not way.axis.bare]
    return placed or [_way(_NAMED, "claimed ε (nats)", "none", named, groups, False)]


def _way(label: str, title: str, none: str, of: Of, groups: Families, all_placed: bool) -> Way:
    if all_placed:
        groups = _only(groups, lambda point: of(point) is not None)
    values = [of(one.point) for inside in groups.values() for one in inside]
    return Way(label, epsilon_axis(values, title=title, none=none), of, groups)


def _only(groups: Families, keeps: Callable[[PointPlayed], bool]) -> Families:
    """The lines with the points that are kept, where they have any."""
    kept = {name: [one for one in inside if keeps(one.point)] for name, inside in groups.items()}
    return {name: inside for name, inside in kept.items() if inside}


def dots(
    inside: Sequence[ShownPoint],
    look: drawing.Style,
    name: str,
    way: Way,
    aside: float,
    figure: Callable[[PointPlayed], Rate],
    said: str,
) -> drawing.Series:
    """Points of one line with their intervals; those without an epsilon are not joined."""
    values = [figure(one.point) for one in inside]
    budgets = [way.of(one.point) for one in inside]
    return drawing.Series(
        name,
        [way.axis.place(budget, aside=aside) for budget in budgets],
        [value.value for value in values],
        look,
        f"%{{text}}: {said} %{{y:.1%}}",
        joined=None not in budgets,
        marks=len(inside),
        texts=[drawing.series_name(one.name) for one in inside],
        limits=values,
    )


def left_out(number: int, kind: str) -> str:
    """That some did not fit; empty where all did.

    Args:
        number: How many did not.
        kind: What they are: "line" or "panel".
    """
    if number <= 0:
        return ""
    return f" {count(number)} more {kind}{'s' * (number > 1)} would not fit; the table has them."


_SPREAD = {
    "The target": drawing.Style(drawing.OKABE_ITO[1]),
    "Other records": drawing.Style(drawing.OKABE_ITO[0], "dash"),
}


def spread_figure(record: Record) -> drawing.Figures | None:
    """Spread of the neuron's values for the target and for others; a choice a point."""
    choices = tuple(
        drawing.Choice(shortened(one.name, 80), (_spread_panel(shortened(one.name), spread),))
        for one in shown_points(record.games)
        if (spread := one.point.spread) is not None
    )
    if not choices:
        return None
    return drawing.Figures(
        "games-spread",
        "Values of the first target’s neuron on fresh randomised copies of the target and on other "
        "records, as a share of each. The neuron fires right of the dotted line at zero. The less "
        "the two overlap there, the surer the server; one record of the others right of it is "
        "enough to spoil a batch.",
        choices,
        drawing.legend(_SPREAD, marked=False),
    )


def _spread_panel(name: str, spread: Spread) -> drawing.Panel:
    amounts = {"Other records": spread.of_others, "The target": spread.of_target}
    series = [
        drawing.outline(spread.edges, found, _SPREAD[said], said)
        for said, found in amounts.items()
        if sum(found)
    ]
    others, own = (percent(_right_of_zero(spread.edges, found)) for found in amounts.values())
    return drawing.Panel(
        name,
        f"Values of the neuron for {name}: about {own} of the target’s copies and {others} "
        "of other records above zero.",
        drawing.Scale("Value of the neuron", count=7),
        drawing.SHARES,
        series,
        uprights=(0.0,),
    )


def _right_of_zero(edges: Sequence[float], amounts: Sequence[int]) -> float:
    above = sum(a for left, a in zip(edges, amounts, strict=False) if left >= 0)
    return above / sum(amounts) if sum(amounts) else 0.0


MOST_LINES_OF_SUCCESS = 14
"""Lines of one figure; the table has the others."""

_GUESS = drawing.Style(drawing.GREY, "dot")
_CEILING = drawing.Style(drawing.GREY)
_REFUTED = drawing.Style("#C3362B", symbol="circle-open")
_PRINTED = "#8A6FB0"

_COLORS = drawing.OKABE_ITO[:6]
_GUESSING, _HONEST, _WRONG = "Guessing", "Most under an honest ε", "Contradicts the claimed ε"

_PAPER_CAPTION = (
    " Marks of the AMI paper are what its text says, for its own data, batches and neurons, which "
    "are not those here: CelebA (batches of 20), ImageNet (64) and CIFAR-10 (100). ≥ is a lower "
    "end. The paper’s published code gives all records of a batch the same noise under BitRand, "
    "as “shared mask” does."
)


def success_figure(groups: Families) -> drawing.Figures:
    """Adv against the claimed epsilon, or against the true one; a line for each mechanism."""
    drawn = dict(list(groups.items())[:MOST_LINES_OF_SUCCESS])
    looks = _looks(drawn)
    points = [one.point for inside in drawn.values() for one in inside]
    looked = ways(drawn)
    papers = _papers(points, looked[0].axis)
    choices = tuple(
        drawing.Choice(way.label, (_success_panel(way, looks, papers),)) for way in looked
    )
    wrong = any(contradicted(point) for point in points)
    keys = (
        *drawing.legend(looks),
        *drawing.legend({_HONEST: _CEILING, _GUESSING: _GUESS}, marked=False),
        *drawing.legend({_WRONG: _REFUTED} if wrong else {}, lined=False),
        *drawing.legend({paper.label: look for paper, look in papers.items()}),
    )
    return drawing.Figures(
        "games-success",
        "How often the server is right (Adv), with its 95% interval. The grey line is the most "
        "that any server reaches against a mechanism that keeps the epsilon on the axis, "
        "e^ε / (1 + e^ε). Without a mechanism there is no epsilon: that success is a level across "
        "the figure. Points at one epsilon are set a little apart."
        + (_PAPER_CAPTION if papers else "")
        + left_out(len(groups) - len(drawn), "line"),
        choices,
        keys,
    )


def _looks(names: Families) -> dict[str, drawing.Style]:
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
        looks[name] = drawing.Style(_COLORS[at % len(_COLORS)], dash, SYMBOLS[place % len(SYMBOLS)])
    return looks


def _success_panel(
    way: Way, looks: Mapping[str, drawing.Style], papers: Mapping[Printed, drawing.Style]
) -> drawing.Panel:
    axis, drawn = way.axis, way.groups
    ends, steps = axis.ends(), axis.steps()
    series: list[drawing.Drawn] = [drawing.level(ends, 0.5, _GUESS, _GUESSING, "%{y:.0%}")]
    if not axis.bare:
        most = [1 / (1 + math.exp(-step)) for step in steps]
        series.append(drawing.Series(_HONEST, steps, most, _CEILING, "at most %{y:.2%}"))
    if way.of is named:
        series += [_printed(paper, look, axis) for paper, look in papers.items()]
    middle, apart = (len(drawn) - 1) / 2, min(0.012, 0.05 / len(drawn))
    for place, (name, inside) in enumerate(drawn.items()):
        aside = (place - middle) * apart
        if inside[0].point.mechanism == NO_MECHANISM:
            series += [
                drawing.level(ends, one.point.adv.value, looks[name], name) for one in inside
            ]
        series.append(
            dots(inside, looks[name], name, way, aside, lambda point: point.adv, "right in")
        )
        wrong = [one for one in inside if contradicted(one.point)]
        series += [_rings(wrong, way, aside)] if wrong else []
    low = min(one.point.adv.low for inside in drawn.values() for one in inside)
    said = f"Success of the server, {len(drawn)} lines; the table has the numbers."
    y = drawing.Scale("Right (Adv)", "%", (min(0.38, low - 0.03), 1.04), count=7)
    return drawing.Panel("", said, axis.scale(), y, series, height=400)


def _rings(wrong: Sequence[ShownPoint], way: Way, aside: float) -> drawing.Series:
    """A ring round each point that contradicts its epsilon."""
    return drawing.Series(
        _WRONG,
        [way.axis.place(way.of(one.point), aside=aside) for one in wrong],
        [one.point.adv.value for one in wrong],
        _REFUTED,
        "%{text}",
        joined=False,
        size=17,
        texts=[f"proves ε ≥ {epsilon(one.point.proven_epsilon)}" for one in wrong],
    )


def _papers(points: Sequence[PointPlayed], axis: EpsilonAxis) -> dict[Printed, drawing.Style]:
    """Marks of the paper for the mechanisms that were played, as far as the axis goes."""
    there = {point.mechanism for point in points if point.claimed_epsilon is not None}
    found = [one for one in PRINTED if one.mechanism in there and one.epsilons[0] < axis.most]
    dashes = ("solid", "dash", "dot", "dashdot", "longdash")
    return {
        one: drawing.Style(_PRINTED, dashes[at % len(dashes)], SYMBOLS[-1 - at % len(SYMBOLS)])
        for at, one in enumerate(found)
    }


def _printed(paper: Printed, look: drawing.Style, axis: EpsilonAxis) -> drawing.Series:
    return drawing.Series(
        paper.label,
        [axis.place(min(at, axis.most)) for at in paper.epsilons],
        [paper.adv] * 2,
        look,
        f"{paper.said} (ε {paper.epsilons[0]:g} to {paper.epsilons[1]:g})",
        marks=2,
        width=1.2,
        opacity=0.85,
    )


MOST_PANELS = 12
_TPR = drawing.Style(drawing.OKABE_ITO[1])
_TNR = drawing.Style(drawing.OKABE_ITO[0], "dash", "square")
_PREDICTED = drawing.Style(drawing.GREY, "dot", "diamond")


def game_figures(record: Record) -> dict[str, drawing.Figures]:
    """Every figure that a record of games has data for, by its name in the document."""
    groups = families(by_signs(shown_points(record.games)))
    points = [one.point for inside in groups.values() for one in inside]
    sweep = sweep_figure(points, record.config)
    found = [sweep, spread_figure(record), rounds_figure(record)]
    budgets = [one for point in points for one in (named(point), true(point))]
    # Without any epsilon there is nothing to draw against but what was turned.
    if (points and sweep is None) or any(one is not None for one in budgets):
        found += [success_figure(groups), kinds_figure(groups)]
    return {figure.ident: figure for figure in found if figure is not None}


def kinds_figure(groups: Families) -> drawing.Figures:
    """TPR and TNR against epsilon, a panel for each mechanism."""
    drawn = dict(list(groups.items())[:MOST_PANELS])
    choices = tuple(
        drawing.Choice(way.label, tuple(_kinds_panel(name, way) for name in way.groups))
        for way in ways(drawn, all_placed=True)
    )
    return drawing.Figures(
        "games-kinds",
        "Both kinds of games apart, with their 95% intervals. A TPR of 100% beside a TNR of 0% is "
        "a server that always says “in”. The dotted line is the TNR if each target’s neuron "
        "fired for every other record by itself, as often as it did; the TNR is above it where "
        "records of a batch share their noise. Points without such an epsilon stand in the table "
        "only." + left_out(len(groups) - len(drawn), "panel"),
        choices,
        (*kinds_keys(_TPR, _TNR), *drawing.legend({"Predicted TNR": _PREDICTED})),
    )


def _kinds_panel(name: str, way: Way) -> drawing.Panel:
    inside = way.groups[name]
    predicted = drawing.Series(
        "Predicted TNR",
        [way.axis.place(way.of(one.point)) for one in inside],
        [one.point.figure(PREDICTED_NEGATIVES) for one in inside],
        _PREDICTED,
        "%{y:.1%}",
        marks=20,
    )
    series = [
        predicted,
        dots(inside, _TNR, "TNR", way, 0.006, lambda point: point.tnr, "TNR"),
        dots(inside, _TPR, "TPR", way, -0.006, lambda point: point.tpr, "TPR"),
    ]
    said, y = (
        f"TPR and TNR of {shortened(name)}.",
        drawing.Scale("Share of games", "%", (-0.04, 1.04)),
    )
    return drawing.Panel(shortened(name), said, way.axis.scale(), y, series)
