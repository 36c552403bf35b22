"""Success of games in real rounds against the rounds averaged."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from fedaudit.report.figures.drawing import (
    OKABE_ITO,
    Choice,
    Figures,
    LegendEntry,
    Panel,
    Spec,
    Style,
    error_bars,
    series_line,
    series_name,
    spec_of,
    swatch,
)
from fedaudit.report.grid import shortened
from fedaudit.report.text.games import (
    ShownPoint,
    defense_words,
    families,
    in_rounds,
    shown_points,
)
from fedaudit.report.words import count
from fedaudit.results.games import DISTANCE
from fedaudit.results.record import Record

MOST_LINES = 6
MOST_CHOICES = 12

_CEILING = Style("#7A7A7A", "solid", "circle")
_SILENT = Style("#7A7A7A", "dash", "circle")
_GUESS = Style("#7A7A7A", "dot", "circle")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star")
_STEPS = 60

_MOST = "Most that the noise allows"
_MOST_SILENT = "Most that a silent neuron reaches"


def rounds_figure(record: Record) -> Figures | None:
    """Success against the rounds that are averaged; a choice for each noise, None for none."""
    by_noise: dict[str, dict[str, list[ShownPoint]]] = {}
    for name, inside in families(in_rounds(shown_points(record.games))).items():
        rounds = inside[0].point.rounds
        distance = inside[0].point.figure(DISTANCE)
        if rounds and distance and len({_averaged(one) for one in inside}) > 1:
            words = defense_words(rounds) + (f", sum of {rounds.clients}" * (rounds.clients > 1))
            by_noise.setdefault(words, {})[name] = inside
    if not by_noise:
        return None
    looks: dict[str, Style] = {}
    for lines in by_noise.values():
        for line in _lines(lines):
            looks.setdefault(line, _look(len(looks)))
    choices = tuple(
        Choice(shortened(words, 60), (_panel(inside, looks),))
        for words, inside in list(by_noise.items())[:MOST_CHOICES]
    )
    keys = [LegendEntry(line, series_name(line), swatch(look)) for line, look in looks.items()]
    keys.append(LegendEntry(_MOST, series_name(_MOST), swatch(_CEILING, marked=False)))
    keys.append(LegendEntry(_MOST_SILENT, series_name(_MOST_SILENT), swatch(_SILENT, marked=False)))
    return Figures(
        "games-rounds",
        "How often the server is right (Adv), with its 95% interval, where it averages the scores "
        "of so many rounds. The solid grey line is the most that any server reaches behind this "
        "noise; the dashed one what a neuron reaches that is silent for all other records and has "
        "the whole of the target’s clipped gradient in its row. Several copies of a neuron share "
        "one clipped gradient: they gain only what it would otherwise leave elsewhere.",
        choices,
        tuple(keys),
    )


def _panel(inside: dict[str, list[ShownPoint]], looks: dict[str, Style]) -> Panel:
    first = next(iter(inside.values()))[0]
    one_round = (first.point.figure(DISTANCE) or 0.0) / math.sqrt(_averaged(first))
    values = sorted({_averaged(one) for points in inside.values() for one in points})
    steps = [values[0] * (values[-1] / values[0]) ** (i / _STEPS) for i in range(_STEPS + 1)]
    traces = [
        series_line(steps, [0.5] * len(steps), _GUESS, "Guessing", hover="%{y:.0%}"),
        *(
            series_line(
                steps,
                [_reached(part * one_round * math.sqrt(step)) for step in steps],
                look,
                name,
                hover="%{x:.0f} rounds: at most %{y:.1%}",
            )
            for part, look, name in ((1.0, _CEILING, _MOST), (0.5, _SILENT, _MOST_SILENT))
        ),
    ]
    lines = _lines(inside)
    for line, name in lines.items():
        traces.append(_success(line, inside[name], looks[line]))
    ticks = {"tickvals": values, "ticktext": [count(value) for value in values]}
    xaxis: Spec = {"title": {"text": "Rounds averaged"}, "type": "log", **ticks}
    low = min(one.point.adv.low for points in inside.values() for one in points)
    yaxis: Spec = {
        "title": {"text": "Right (Adv)"},
        "tickformat": ".0%",
        "range": [min(0.45, low - 0.02), 1.03],
        "nticks": 7,
    }
    said = f"Success against rounds averaged, {len(lines)} lines; the table has the numbers."
    return Panel("", said, spec_of(traces, xaxis=xaxis, yaxis=yaxis, height=400))


def _reached(distance: float) -> float:
    """The largest share of right verdicts between normal draws that lie so far apart."""
    return NormalDist().cdf(distance / 2)


def _lines(inside: dict[str, list[ShownPoint]]) -> dict[str, str]:
    """Families by what they do not have in common with the noise that they are drawn for."""
    found = {}
    for name, points in list(inside.items())[:MOST_LINES]:
        rounds = points[0].point.rounds
        assert rounds is not None
        words = [f"{rounds.neurons} neuron{'s' * (rounds.neurons > 1)}"]
        words += ["louder"] * (rounds.louder != 1)
        words += [
            {"dead": "others dead", "planted": "all planted", "honest": "others honest"}[
                rounds.others
            ]
        ] * (rounds.clients > 1)
        words.append(f"batch {count(points[0].point.batch)}")
        found[", ".join(words)] = name
    return found


def _success(line: str, inside: Sequence[ShownPoint], look: Style) -> Spec:
    values = [one.point.adv for one in inside]
    trace = series_line(
        [_averaged(one) for one in inside],
        [value.value for value in values],
        look,
        line,
        marks=len(inside) + 1,
        hover="%{x:,} rounds: right in %{y:.1%}",
    )
    return trace | {"error_y": error_bars(values, color=look.color)}


def _averaged(one: ShownPoint) -> int:
    return one.point.rounds.averaged if one.point.rounds else 0


def _look(place: int) -> Style:
    return Style(OKABE_ITO[place % 6], "solid", _SYMBOLS[place % len(_SYMBOLS)])
