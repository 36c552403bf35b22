"""Figure of security games: success against epsilon."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedaudit.report.figures import drawing
from fedaudit.report.figures.rounds import SYMBOLS, rounds_figure
from fedaudit.report.figures.svg import tick_step
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
from fedaudit.report.words import count
from fedaudit.results.games import PointPlayed
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


def ways(groups: Families) -> list[Way]:
    """Return the axes that a reader can choose between; one only without any epsilon."""
    ways = [
        _way(_NAMED, "claimed ε (nats)", "none", named, groups),
        _way(_TRUE, "actual ε (nats)", "no bound", true, groups),
    ]
    few = _only(groups, lambda point: (named(point) or 0.0) <= NEAR)
    budgets = [e for inside in few.values() for one in inside if (e := named(one.point))]
    if ways[0].axis.log and max(budgets, default=0.0) > 1 and ways[0].axis.most > 2 * NEAR:
        label = f"{_NAMED}, up to {NEAR:g}"
        ways.insert(0, _way(label, "claimed ε (nats)", "none", named, few))
    placed = [way for way in ways if not way.axis.bare]
    return placed or [_way(_NAMED, "claimed ε (nats)", "none", named, groups)]


def _way(label: str, title: str, none: str, of: Of, groups: Families) -> Way:
    values = [of(one.point) for inside in groups.values() for one in inside]
    return Way(label, epsilon_axis(values, title=title, none=none), of, groups)


def _only(groups: Families, keeps: Callable[[PointPlayed], bool]) -> Families:
    kept = {name: [one for one in inside if keeps(one.point)] for name, inside in groups.items()}
    return {name: inside for name, inside in kept.items() if inside}


def _dots(
    inside: Sequence[ShownPoint], look: drawing.Style, name: str, way: Way, aside: float
) -> drawing.Series:
    """Return the points of a line with their intervals; those without an epsilon are not joined."""
    values = [one.point.adv for one in inside]
    budgets = [way.of(one.point) for one in inside]
    return drawing.Series(
        name,
        [way.axis.place(budget, aside=aside) for budget in budgets],
        [value.value for value in values],
        look,
        "%{text}: right in %{y:.1%}",
        joined=None not in budgets,
        marks=len(inside),
        texts=[drawing.series_name(one.name) for one in inside],
        limits=values,
    )


def left_out(number: int) -> str:
    """Return how many lines did not fit; empty if all did."""
    if number <= 0:
        return ""
    return f" {count(number)} more line{'s' * (number > 1)} would not fit; the table has them."


MOST_LINES_OF_SUCCESS = 14
"""Lines of one figure; the table has the others."""

_GUESS = drawing.Style(drawing.GREY, "dot")
_CEILING = drawing.Style(drawing.GREY)
_REFUTED = drawing.Style("#C3362B", symbol="circle-open")

_COLORS = drawing.OKABE_ITO[:6]
_GUESSING, _HONEST, _WRONG = "Guessing", "Most under an honest ε", "Contradicts the claimed ε"


def success_figure(groups: Families) -> drawing.Figures:
    """Adv against the claimed epsilon, or against the true one; a line for each mechanism."""
    drawn = dict(list(groups.items())[:MOST_LINES_OF_SUCCESS])
    looks = _looks(drawn)
    points = [one.point for inside in drawn.values() for one in inside]
    looked = ways(drawn)
    choices = tuple(drawing.Choice(way.label, (_success_panel(way, looks),)) for way in looked)
    wrong = any(contradicted(point) for point in points)
    keys = (
        *drawing.legend(looks),
        *drawing.legend({_HONEST: _CEILING, _GUESSING: _GUESS}, marked=False),
        *drawing.legend({_WRONG: _REFUTED} if wrong else {}, lined=False),
    )
    return drawing.Figures(
        "games-success",
        "How often the server is right (Adv), with its 95% interval. Grey: the most that any "
        "server "
        "reaches against a mechanism that keeps the epsilon on the axis, e^ε / (1 + e^ε)."
        + left_out(len(groups) - len(drawn)),
        choices,
        keys,
    )


def _looks(names: Families) -> dict[str, drawing.Style]:
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


def _success_panel(way: Way, looks: Mapping[str, drawing.Style]) -> drawing.Panel:
    axis, drawn = way.axis, way.groups
    ends, steps = axis.ends(), axis.steps()
    series: list[drawing.Drawn] = [drawing.level(ends, 0.5, _GUESS, _GUESSING, "%{y:.0%}")]
    if not axis.bare:
        most = [1 / (1 + math.exp(-step)) for step in steps]
        series.append(drawing.Series(_HONEST, steps, most, _CEILING, "at most %{y:.2%}"))
    middle, apart = (len(drawn) - 1) / 2, min(0.012, 0.05 / len(drawn))
    for place, (name, inside) in enumerate(drawn.items()):
        aside = (place - middle) * apart
        if inside[0].point.mechanism == NO_MECHANISM:
            series += [
                drawing.level(ends, one.point.adv.value, looks[name], name) for one in inside
            ]
        series.append(_dots(inside, looks[name], name, way, aside))
        wrong = [one for one in inside if contradicted(one.point)]
        series += [_rings(wrong, way, aside)] if wrong else []
    low = min(one.point.adv.low for inside in drawn.values() for one in inside)
    said = f"Success of the server, {len(drawn)} lines; the table has the numbers."
    y = drawing.Scale("Right (Adv)", "%", (min(0.38, low - 0.03), 1.04), count=7)
    return drawing.Panel("", said, axis.scale(), y, series, height=400)


def _rings(wrong: Sequence[ShownPoint], way: Way, aside: float) -> drawing.Series:
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


def game_figures(record: Record) -> dict[str, drawing.Figures]:
    """Return the figures of a record of games: against epsilon, and over rounds averaged."""
    groups = families(by_signs(shown_points(record.games)))
    success = success_figure(groups) if groups else None
    found = [success, rounds_figure(record)]
    return {figure.ident: figure for figure in found if figure is not None}
