"""Figures of security games, by their names in the document."""

from fedaudit.report.drawing import (
    Choice,
    Figures,
    Panel,
    series_line,
    spec_of,
)
from fedaudit.report.game_points import (
    Families,
    families,
    shown_points,
)
from fedaudit.report.game_rounds import by_signs, rounds_figure
from fedaudit.report.game_spread import spread_figure
from fedaudit.report.game_success import success_figure
from fedaudit.report.game_sweeps import sweep_figure
from fedaudit.report.game_ways import Way, dots, first, left_out, named, share_axis, true, ways
from fedaudit.report.grid import shortened
from fedaudit.report.reading import GameRecord
from fedaudit.report.styles import OKABE_ITO, Key, Style, swatch

MOST_PANELS = 12

_TPR = Style(OKABE_ITO[1], "solid", "circle")
_TNR = Style(OKABE_ITO[0], "dash", "square")
_PREDICTED = Style("#7A7A7A", "dot", "diamond")


def game_figures(record: GameRecord) -> dict[str, Figures]:
    """Every figure that a record of games has data for, by its name in the document."""
    groups = families(by_signs(shown_points(record.points)))
    points = [one.point for inside in groups.values() for one in inside]
    sweep = sweep_figure(record.model_copy(update={"points": points}))
    found = [sweep, spread_figure(record), rounds_figure(record)]
    budgets = [one for point in points for one in (named(point), true(point))]
    # Without any epsilon there is nothing to draw against but what was turned.
    if (points and sweep is None) or any(one is not None for one in budgets):
        found += [success_figure(groups), kinds_figure(groups)]
    return {figure.ident: figure for figure in found if figure is not None}


def kinds_figure(groups: Families) -> Figures:
    """TPR and TNR against epsilon, a panel for each mechanism."""
    drawn = first(groups, MOST_PANELS)
    choices = tuple(
        Choice(way.label, tuple(_kinds_panel(name, way) for name in way.groups))
        for way in ways(drawn, all_placed=True)
    )
    return Figures(
        "games-kinds",
        "Both kinds of games apart, with their 95% intervals. A TPR of 100% beside a TNR of 0% is "
        "a server that always says “in”. The dotted line is the TNR if each target’s neuron "
        "fired for every other record by itself, as often as it did; the TNR is above it where "
        "records of a batch share their noise. Points without such an "
        "epsilon stand in the table only." + left_out(len(groups) - len(drawn), "panel"),
        choices,
        (
            Key("TPR: “in” where the target is in the batch", "TPR", swatch(_TPR)),
            Key("TNR: “out” where it is not", "TNR", swatch(_TNR)),
            Key("Predicted TNR", "Predicted TNR", swatch(_PREDICTED)),
        ),
    )


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
        dots(inside, _TNR, "TNR", way, 0.006, lambda point: point.tnr, "TNR"),
        dots(inside, _TPR, "TPR", way, -0.006, lambda point: point.tpr, "TPR"),
    ]
    yaxis = share_axis("Share of games", -0.04)
    spec = spec_of(traces, xaxis=way.axis.spec(), yaxis=yaxis)
    return Panel(shortened(name), f"TPR and TNR of {shortened(name)}.", spec)
