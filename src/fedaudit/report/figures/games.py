"""Figures of security games: success against epsilon or rounds, and the first picture."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from fedaudit.report.figures import drawing
from fedaudit.report.figures.forest import DEFENDED, PLAIN, Line, Mark, Picture, Track, forest
from fedaudit.report.grid import shortened
from fedaudit.report.text.points import (
    NO_MECHANISM,
    Families,
    ShownPoint,
    contradicted,
    defense_words,
    families,
    most_right,
    plan_words,
    shown_points,
)
from fedaudit.report.words import interval, percent
from fedaudit.results.games import DISTANCE, PointPlayed
from fedaudit.results.record import Record

MOST_ROWS = 18
"""Rows of the first picture; the tables have the others."""

MOST_LINES = 14
"""Lines of a chart; the table has the others."""

_MOST_CHOICES = 12
_STEPS = 60
_WIDE = 20.0
"""Largest over smallest place from which on an axis is logarithmic."""

_GUESSING, _BOUND = "Guessing", "Most that any server reaches"
_WRONG = "contradicts its ε or noise bound"
_GUESS = drawing.Style(drawing.GREY, "dot")
_CEILING = drawing.Style(drawing.GREY)
_REFUTED = drawing.Style("#C3362B", symbol="circle-open")


class _View(NamedTuple):
    """Points of some lines at places on one axis, and the most that any server reaches there."""

    label: str
    title: str
    lines: Families
    place: Callable[[PointPlayed], float | None]
    most: Callable[[float], float]


def game_figures(record: Record) -> dict[str, drawing.Figures]:
    """Return the charts of a record of games: against epsilon, and against rounds averaged."""
    shown = shown_points(record.games)
    by_signs = families([item for item in shown if item.point.rounds is None])
    against_epsilon = [
        _View(
            f"against the {which} epsilon", f"{which} ε (nats)", by_signs, place, _most_at_epsilon
        )
        for which, place in (
            ("claimed", lambda point: point.claimed_epsilon),
            ("actual", lambda point: point.actual_epsilon),
        )
    ]
    charts = [
        _figure(
            "games-success",
            "Grey: the most that any server reaches against a mechanism that keeps the epsilon on "
            "the axis, e^ε / (1 + e^ε). Points without such an epsilon are in the table.",
            against_epsilon,
        ),
        _figure(
            "games-rounds",
            "The server averages the scores of so many rounds. Grey: the most that any server "
            "reaches behind this noise.",
            _round_views(shown),
        ),
    ]
    return {figure.ident: figure for figure in charts if figure is not None}


def _most_at_epsilon(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def _round_views(shown: Sequence[ShownPoint]) -> list[_View]:
    """Return a view for each noise whose points average several numbers of rounds."""
    by_noise: dict[str, list[ShownPoint]] = {}
    for item in shown:
        how = item.point.rounds
        if how is not None and item.point.figure(DISTANCE):
            noise = shortened(defense_words(how), 60) + f", sum of {how.clients}" * (
                how.clients > 1
            )
            plan = f"{plan_words(how) or '1 neuron'}, batch {item.point.batch}"
            by_noise.setdefault(noise, []).append(item._replace(family=plan))
    views = [
        _View(noise, "Rounds averaged", families(inside), _averaged, _most_over(inside[0].point))
        for noise, inside in by_noise.items()
        if len({_averaged(item.point) for item in inside}) > 1
    ]
    return views[:_MOST_CHOICES]


def _averaged(point: PointPlayed) -> float:
    return float(point.rounds.averaged) if point.rounds else 0.0


def _most_over(point: PointPlayed) -> Callable[[float], float]:
    one_round = (point.figure(DISTANCE) or 0.0) / math.sqrt(_averaged(point))
    return lambda rounds: NormalDist().cdf(one_round * math.sqrt(rounds) / 2)


def _figure(ident: str, caption: str, views: Sequence[_View]) -> drawing.Figures | None:
    left = max((len(view.lines) - MOST_LINES for view in views), default=0)
    if left > 0:
        caption += f" {left} more lines would not fit; the table has them."
    views = [view._replace(lines=dict(list(view.lines.items())[:MOST_LINES])) for view in views]
    names = dict.fromkeys(name for view in views for name in view.lines)
    looks = {name: drawing.style(place) for place, name in enumerate(names)}
    panels = {view.label: panel for view in views if (panel := _panel(view, looks)) is not None}
    if not panels:
        return None
    points = [item.point for view in views for inside in view.lines.values() for item in inside]
    wrong = {_WRONG: _REFUTED} if any(map(contradicted, points)) else {}
    return drawing.Figures(
        ident,
        f"How often the server is right (Adv), with its 95% interval. {caption}",
        tuple(drawing.Choice(label, (panel,)) for label, panel in panels.items()),
        (
            *drawing.legend(looks),
            *drawing.legend({_BOUND: _CEILING, _GUESSING: _GUESS}, marked=False),
            *drawing.legend(wrong, lined=False, hides=False),
        ),
    )


def _panel(view: _View, looks: Mapping[str, drawing.Style]) -> drawing.Panel | None:
    """Return the panel of a view; None if no point has a place on its axis."""
    every = [item for inside in view.lines.values() for item in inside]
    places = [place for item in every if (place := view.place(item.point))]
    if not places:
        return None
    most, log = max(places), max(places) > _WIDE * min(places)
    start = min(places) if log else 0.0

    def moved(place: float, share: float) -> float:
        """Move a place by a share of the axis."""
        return place * (most / start) ** share if log else place + share * (most - start)

    steps = [moved(start, step / _STEPS) for step in range(_STEPS + 1)]
    series: list[drawing.Drawn] = [
        drawing.level(steps, 0.5, _GUESS, _GUESSING, "%{y:.0%}"),
        drawing.Series(_BOUND, steps, [view.most(x) for x in steps], _CEILING, "at most %{y:.2%}"),
    ]
    # Intervals at the same place lie next to each other.
    middle, apart = (len(view.lines) - 1) / 2, min(0.012, 0.05 / len(view.lines))
    for index, (name, inside) in enumerate(view.lines.items()):
        aside = (index - middle) * apart
        placed = [(moved(x, aside), item) for item in inside if (x := view.place(item.point))]
        series.append(_line(name, placed, looks[name]))
        series += [
            drawing.level(steps, item.point.adv.value, looks[name], name)
            for item in inside
            if item.point.mechanism == NO_MECHANISM and view.place(item.point) is None
        ]
    low = min(item.point.adv.low for item in every)
    return drawing.Panel(
        "",
        f"Success of the server, {len(view.lines)} lines; the table has the numbers.",
        drawing.Scale(view.title, log=log, from_zero=True),
        drawing.Scale("Right (Adv)", "%", (min(0.38, low - 0.03), 1.04), count=7),
        series,
        height=400,
    )


def _line(
    name: str, placed: Sequence[tuple[float, ShownPoint]], look: drawing.Style
) -> drawing.Series:
    values = [item.point.adv for _, item in placed]
    return drawing.Series(
        name,
        [place for place, _ in placed],
        [value.value for value in values],
        look,
        "%{text}: right in %{y:.1%}",
        marks=len(placed),
        looks=[_REFUTED if contradicted(item.point) else look for _, item in placed],
        texts=[drawing.series_name(item.name) for _, item in placed],
        limits=values,
    )


def games_picture(record: Record) -> Picture:
    """Return the first picture: a row per point, with its epsilon or rounds, against guessing.

    Of many points it has the ends of each family, in the order of epsilons or rounds, or the point
    of each family where the server does best.
    """
    groups = families(shown_points(record.games)).values()
    selections = {
        "": [item for inside in groups for item in inside],
        " The smallest and the largest of each mechanism or defense are shown.": [
            item for inside in groups for item in (inside[0], inside[-1])[: len(inside)]
        ],
        " Of each mechanism or defense the point is shown where the server does best.": [
            most_right(inside) for inside in groups
        ],
    }
    fitting = [(text, points) for text, points in selections.items() if len(points) <= MOST_ROWS]
    text, points = fitting[0] if fitting else list(selections.items())[-1]
    points = points[:MOST_ROWS]
    looks = {"success": PLAIN}
    if any(contradicted(item.point) for item in points):
        looks[_WRONG] = DEFENDED[0]
    caption = (
        "Share of games in which the server is right about a record, with 95% intervals; ε is "
        f"claimed, the dashed line is guessing.{text}"
    )
    if left := len(record.games) - len(points):
        caption += f" The tables have {left} more points."
    track, lines = Track("Attack success rate", "%", 0.5), [_row(one) for one in points]
    title = "Success of the server against guessing"
    return (forest(title, "success", caption, (track,), lines, looks),)


def _row(item: ShownPoint) -> Line:
    adv, look = item.point.adv, DEFENDED[0] if contradicted(item.point) else PLAIN
    limits = interval(adv.low, adv.high, "accuracy")
    text = f"{item.name}: right in {percent(adv.value)} ({limits})"
    mark = Mark(adv.value, adv.low, adv.high, look, text)
    return Line(shortened(item.name, 60), ((mark,),), (percent(adv.value),), (limits,))
