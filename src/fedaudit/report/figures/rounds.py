"""Games in real rounds: a table, and success against the rounds averaged."""

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
from fedaudit.report.grid import Cell, Grid, Heading, columns_of, named, shortened
from fedaudit.report.reading import GameRecord, InRounds, Success
from fedaudit.report.text.games import (
    IN_ROUNDS,
    ShownPoint,
    defense_words,
    families,
    in_rounds,
    overtaken,
    shown_points,
)
from fedaudit.report.words import MISSING, count, interval, percent

MOST_LINES = 6
MOST_CHOICES = 12

_PREFIX = f"{IN_ROUNDS}, "

_EMPTY = Cell(MISSING, tone="muted")
_CEILING = Style("#7A7A7A", "solid", "circle")
_SILENT = Style("#7A7A7A", "dash", "circle")
_GUESS = Style("#7A7A7A", "dot", "circle")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star")
_STEPS = 60

_MOST = "Most that the noise allows"
_MOST_SILENT = "Most that a silent neuron reaches"

REMARK = (
    "Each game is a round of FedSGD: the client is sent the planted model and answers with a "
    "gradient, which the server scores by the target’s own. Scores of rounds are averaged, of one "
    "batch with fresh noise. At most: what no server exceeds behind this noise, where one record "
    "in another’s place moves a clipped sum by two clips. Noise leaves: what is to be expected of "
    "neurons that are silent for all other records, with their share of the target’s gradient. "
    "Sign: the success if the server could see the neuron’s sign. Share: how much of the target’s "
    "gradient, by length, lies in the planted rows. Simulated: where a defense ends in normal "
    "noise, the rest of it is simulated once, and the noise of all rounds is drawn for the mean "
    "score, which it reaches as one normal number. Intervals: Clopper-Pearson, 95%."
)


def rounds_table(record: GameRecord) -> Grid | None:
    """Every figure of points in rounds; None where there are none."""
    played = [(one, r) for one in shown_points(record.points) if (r := one.point.rounds)]
    if not played:
        return None
    numeric = ("Adv", "At most", "Noise leaves", "Sign", "TPR", "TNR")
    plan = ("Rounds", "Share", "Fires for another")
    rows = tuple(
        (
            named(_name(one), _batch(one, record)),
            _share(one.point.adv, alarm=overtaken(one.point)),
            _most(one, rounds),
            _EMPTY if rounds.expected is None else Cell(percent(rounds.expected)),
            Cell(percent(rounds.by_signs.value)),
            Cell(percent(one.point.tpr.value)),
            Cell(percent(one.point.tnr.value)),
            Cell(count(rounds.averaged), _simulated(rounds)),
            Cell(percent(rounds.share)),
            Cell(percent(one.point.by_others.value)),
        )
        for one, rounds in played
    )
    every = (*numeric, *plan)
    return Grid(
        "Games in rounds",
        columns_of("Point", *every, numeric=every),
        rows,
        headings=(Heading("", 1), Heading("Right", 4), Heading("Games", 2), Heading("Server", 3)),
        remark=REMARK,
    )


def short_rounds_table(record: GameRecord) -> Grid | None:
    """The same, narrow enough for a terminal."""
    played = [(one, r) for one in shown_points(record.points) if (r := one.point.rounds)]
    if not played:
        return None
    numeric = ("Adv", "At most", "TPR", "TNR", "Rounds")
    rows = tuple(
        (
            named(_name(one)),
            _share(one.point.adv, alarm=overtaken(one.point)),
            _most(one, rounds),
            Cell(percent(one.point.tpr.value)),
            Cell(percent(one.point.tnr.value)),
            Cell(count(rounds.averaged)),
        )
        for one, rounds in played
    )
    columns = columns_of("Point", *numeric, numeric=numeric)
    remark = "At most: what no server exceeds behind the noise on gradients."
    return Grid("Games in rounds", columns, rows, remark=remark)


def rounds_figure(record: GameRecord) -> Figures | None:
    """Success against the rounds that are averaged; a choice for each noise, None for none."""
    by_noise: dict[str, dict[str, list[ShownPoint]]] = {}
    for name, inside in families(in_rounds(shown_points(record.points))).items():
        rounds = inside[0].point.rounds
        if rounds and rounds.distance and len({_averaged(one) for one in inside}) > 1:
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
    first = next(iter(inside.values()))[0].point.rounds
    assert first is not None
    assert first.distance is not None
    one_round = first.distance / math.sqrt(first.averaged)
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


def _share(found: Success, *, alarm: bool) -> Cell:
    limits = interval(found.low, found.high, "accuracy")
    return Cell(percent(found.value), limits, "alarm" if alarm else "")


def _most(one: ShownPoint, rounds: InRounds) -> Cell:
    if rounds.distance is None:
        return Cell("no bound", tone="muted")
    return Cell(percent(one.point.most), "exceeded" * overtaken(one.point))


def _simulated(rounds: InRounds) -> str:
    if rounds.simulated == rounds.averaged:
        return "all simulated" * (rounds.averaged > 1)
    return f"{count(rounds.simulated)} simulated"


def _name(one: ShownPoint) -> str:
    """Its name without what columns and section say."""
    return (one.family if one.name == one.setting else one.name).removeprefix(_PREFIX)


def _batch(one: ShownPoint, record: GameRecord) -> str:
    several = len({point.batch for point in record.points}) > 1
    told = f"batch {count(one.point.batch)}"
    return told if several and told not in _name(one) else ""
