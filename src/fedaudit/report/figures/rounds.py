"""Figure of security games against the number of rounds that are averaged."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from fedaudit.report.figures import drawing
from fedaudit.report.grid import shortened
from fedaudit.report.text.points import ShownPoint, defense_words, families, in_rounds, shown_points
from fedaudit.report.words import count
from fedaudit.results.games import DISTANCE
from fedaudit.results.record import Record

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star")


MOST_LINES = 6
MOST_CHOICES = 12


def _look(place: int) -> drawing.Style:
    return drawing.Style(drawing.OKABE_ITO[place % 6], symbol=SYMBOLS[place % len(SYMBOLS)])


_CEILING = drawing.Style(drawing.GREY)
_SILENT = drawing.Style(drawing.GREY, "dash")
_GUESS = drawing.Style(drawing.GREY, "dot")
_STEPS = 60

_MOST = "Most that the noise allows"
_MOST_SILENT = "Most that a silent neuron reaches"


def rounds_figure(record: Record) -> drawing.Figures | None:
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
    looks: dict[str, drawing.Style] = {}
    for lines in by_noise.values():
        for line in _round_lines(lines):
            looks.setdefault(line, _look(len(looks)))
    choices = tuple(
        drawing.Choice(shortened(words, 60), (_rounds_panel(inside, looks),))
        for words, inside in list(by_noise.items())[:MOST_CHOICES]
    )
    keys = (
        *drawing.legend(looks),
        *drawing.legend({_MOST: _CEILING, _MOST_SILENT: _SILENT}, marked=False),
    )
    return drawing.Figures(
        "games-rounds",
        "How often the server is right (Adv), with its 95% interval, if it averages the scores of "
        "so "
        "many rounds. Grey: the most that any server reaches behind this noise; dashed: the most "
        "of a neuron that is silent for all other records.",
        choices,
        keys,
    )


def _rounds_panel(
    inside: Mapping[str, Sequence[ShownPoint]], looks: Mapping[str, drawing.Style]
) -> drawing.Panel:
    first = next(iter(inside.values()))[0]
    one_round = (first.point.figure(DISTANCE) or 0.0) / math.sqrt(_averaged(first))
    values = sorted({_averaged(one) for points in inside.values() for one in points})
    steps = [values[0] * (values[-1] / values[0]) ** (i / _STEPS) for i in range(_STEPS + 1)]
    series: list[drawing.Drawn] = [drawing.level(steps, 0.5, _GUESS, "Guessing", "%{y:.0%}")]
    for part, look, name in ((1.0, _CEILING, _MOST), (0.5, _SILENT, _MOST_SILENT)):
        most = [_reached(part * one_round * math.sqrt(step)) for step in steps]
        series.append(drawing.Series(name, steps, most, look, "%{x:.0f} rounds: at most %{y:.1%}"))
    lines = _round_lines(inside)
    series += [_success(line, inside[name], looks[line]) for line, name in lines.items()]
    low = min(one.point.adv.low for points in inside.values() for one in points)
    return drawing.Panel(
        "",
        f"Success against rounds averaged, {len(lines)} lines; the table has the numbers.",
        drawing.Scale("Rounds averaged", ticks={value: count(value) for value in values}, log=True),
        drawing.Scale("Right (Adv)", "%", (min(0.45, low - 0.02), 1.03), count=7),
        series,
        height=400,
    )


def _reached(distance: float) -> float:
    return NormalDist().cdf(distance / 2)


def _round_lines(inside: Mapping[str, Sequence[ShownPoint]]) -> dict[str, str]:
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


def _success(line: str, inside: Sequence[ShownPoint], look: drawing.Style) -> drawing.Series:
    values = [one.point.adv for one in inside]
    return drawing.Series(
        line,
        [_averaged(one) for one in inside],
        [value.value for value in values],
        look,
        "%{x:,} rounds: right in %{y:.1%}",
        marks=len(inside),
        limits=values,
    )


def _averaged(one: ShownPoint) -> int:
    return one.point.rounds.averaged if one.point.rounds else 0
