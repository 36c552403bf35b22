"""The ways to look at points of games: by the named epsilon or by the true one."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedaudit.report.drawing import (
    Spec,
    error_bars,
    plotly_text,
    series_line,
)
from fedaudit.report.game_axis import EpsilonAxis, epsilon_axis
from fedaudit.report.game_points import (
    Families,
    Shown,
)
from fedaudit.report.reading import PointPlayed, Rate, Success
from fedaudit.report.styles import Style
from fedaudit.report.words import count

NEAR = 20.0
"""Epsilons up to here, which papers speak of, have a view of their own beside much larger ones."""

_NAMED, _TRUE = "against the named epsilon", "against the true epsilon"

Of = Callable[[PointPlayed], float | None]


class Way(NamedTuple):
    """One way to look at points: by which epsilon, and which of them."""

    label: str
    axis: EpsilonAxis
    of: Of
    groups: Families


def named(point: PointPlayed) -> float | None:
    """The epsilon that a point's mechanism has by name."""
    return point.nominal_epsilon


def true(point: PointPlayed) -> float | None:
    """The epsilon that its mechanism keeps; None where it keeps none."""
    return point.true_epsilon


def ways(groups: Families, *, all_placed: bool = False) -> list[Way]:
    """The axes that a reader can choose between; one only without any epsilon.

    Args:
        groups: What is drawn.
        all_placed: Leave out points that have no epsilon of the kind.
    """
    ways = [
        _way(_NAMED, "ε that is named (nats)", "none", named, groups, all_placed),
        _way(_TRUE, "ε that is true (nats)", "no bound", true, groups, all_placed),
    ]
    near = {
        name: [one for one in inside if (named(one.point) or 0.0) <= NEAR]
        for name, inside in groups.items()
    }
    few = {name: inside for name, inside in near.items() if inside}
    budgets = [e for inside in few.values() for one in inside if (e := named(one.point))]
    if ways[0].axis.log and max(budgets, default=0.0) > 1 and ways[0].axis.most > 2 * NEAR:
        label = f"{_NAMED}, up to {NEAR:g}"
        ways.insert(0, _way(label, "ε that is named (nats)", "none", named, few, all_placed))
    placed = [way for way in ways if not way.axis.bare]
    return placed or [_way(_NAMED, "ε that is named (nats)", "none", named, groups, False)]


def _way(label: str, title: str, none: str, of: Of, groups: Families, all_placed: bool) -> Way:
    if all_placed:
        placed = {
            name: [one for one in inside if of(one.point) is not None]
            for name, inside in groups.items()
        }
        groups = {name: inside for name, inside in placed.items() if inside}
    values = [of(one.point) for inside in groups.values() for one in inside]
    return Way(label, epsilon_axis(values, title=title, none=none), of, groups)


def first(groups: Families, most: int) -> Families:
    """The first lines or panels, for as many as fit."""
    return dict(list(groups.items())[:most])


def dots(
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


def share_axis(title: str, least: float) -> Spec:
    """An axis of shares up to all.

    Args:
        title: Of the axis.
        least: Where it starts.
    """
    return {
        "title": {"text": title},
        "tickformat": ".0%",
        "range": [least, 1.04],
        "nticks": 7,
    }


def left_out(number: int, kind: str) -> str:
    """That some did not fit; empty where all did.

    Args:
        number: How many did not.
        kind: What they are: "line" or "panel".
    """
    if number <= 0:
        return ""
    return f" {count(number)} more {kind}{'s' * (number > 1)} would not fit; the table has them."
