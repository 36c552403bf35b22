"""The horizontal axis of epsilon: logarithmic where budgets span much, with a place for none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.report.drawing import Spec
from fedaudit.report.game_points import epsilon

_MUCH = 20.0
"""Largest over smallest epsilon from which on the axis is logarithmic."""

_SMALL = 1e-9
"""Budgets below this are drawn as none at all."""

_ASIDE = 0.08
"""Share of the axis by which the place for none is right of the largest epsilon."""

_STEPS = 80
_MOST_TICKS = 7


@dataclass(frozen=True)
class EpsilonAxis:
    """Where budgets stand.

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
        """Where an epsilon stands; none at all stands right of all others.

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

    def spec(self) -> Spec:
        """The axis as plotly reads it."""
        left, right = (math.log10(end) if self.log else end for end in self.ends())
        room = 0.03 * (right - left)
        places = self._ticks()
        texts = [epsilon(tick) for tick in places]
        if self.none:
            places, texts = [*places, self.place(None)], [*texts, self.none]
        axis: Spec = {
            "title": {"text": self.title},
            "range": [left - room, right + (0 if self.none else room)],
            "tickmode": "array",
            "tickvals": places,
            "ticktext": texts,
        }
        return axis | ({"type": "log"} if self.log else {})

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
        unit = 10.0 ** math.floor(math.log10(span / 2))
        width = next(unit * size for size in (1, 2, 5, 10) if span / (unit * size) <= _MOST_TICKS)
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
    if most > _MUCH * least:
        least = max(min(0.5, least / 1.5), most * 1e-12)
        return EpsilonAxis(title, least, most * 1.3, True, none, bare)
    return EpsilonAxis(title, 0.0, most * 1.08, False, none, bare)
