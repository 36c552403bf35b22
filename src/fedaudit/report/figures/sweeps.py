"""Figures of security games against what was turned: a setting, or the rounds averaged."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from fedaudit.report.figures import drawing
from fedaudit.report.grid import shortened
from fedaudit.report.text.points import ShownPoint, defense_words, families, in_rounds, shown_points
from fedaudit.report.words import count, plural
from fedaudit.results.games import DISTANCE, PointPlayed
from fedaudit.results.record import Record

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star")

LEAST_VALUES = 3
"""Values of a setting from which on it is drawn: two are read in the table."""

MOST_LINES = 6
MOST_CHOICES = 12
MOST_SETTINGS = 8

_MUCH = 20.0
"""Largest over smallest value from which on the axis is logarithmic."""

_EPSILONS = ("mechanism.options.epsilon", "mechanism.options.nominal_epsilon")
_ADV = drawing.Style(drawing.OKABE_ITO[0])
_TPR = drawing.Style(drawing.OKABE_ITO[1], "dash", "square")
_TNR = drawing.Style(drawing.OKABE_ITO[2], "dot", "diamond")

Figure = Callable[[PointPlayed], drawing.WithLimits | None]


class Placed(NamedTuple):
    """A point where its setting puts it."""

    at: float
    point: PointPlayed


class Sweep(NamedTuple):
    """A setting with the points that differ in nothing else.

    Attributes:
        setting: Its dotted name.
        lines: Points in the order of its values; by the other settings in which they differ from
            the study, as words.
    """

    setting: str
    lines: dict[str, list[Placed]]

    @property
    def short(self) -> str:
        """The setting without its sections."""
        return shortened(self.setting.rpartition(".")[2], 40)


def sweep_figure(points: Sequence[PointPlayed], config: object) -> drawing.Figures | None:
    """Success against each setting that was turned through several numbers; None for none.

    Epsilons are not among them: they have a figure of their own.
    """
    found = sweeps(points, config)[:MOST_SETTINGS]
    choices = [
        drawing.Choice(f"Success against {one.short}", (_sweep_panel(one),)) for one in found
    ]
    if not choices:
        return None
    return drawing.Figures(
        "games-sweeps",
        "Points that differ in one setting only, with 95% intervals: how often the server is right "
        "(Adv), and, of a single line, both kinds of games.",
        tuple(choices),
        drawing.legend({"Adv": _ADV, "TPR": _TPR, "TNR": _TNR})
        if any(len(one.lines) == 1 for one in found)
        else (),
    )


def sweeps(points: Sequence[PointPlayed], config: object) -> list[Sweep]:
    """The settings that take several numbers while all others stay as they are."""
    names = list(dict.fromkeys(name for point in points for name in point.settings))
    found = [
        _sweep(points, name, _number(_own(config, name))) for name in names if name not in _EPSILONS
    ]
    return [one for one in found if one.lines]


def _sweep(points: Sequence[PointPlayed], name: str, own: float | None) -> Sweep:
    lines: dict[str, list[Placed]] = {}
    for point in points:
        at = _number(point.settings[name]) if name in point.settings else own
        if at is None:
            continue
        others = sorted((key, value) for key, value in point.settings.items() if key != name)
        words = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in others)
        lines.setdefault(words, []).append(Placed(at, point))
    long = {
        words: sorted(placed, key=lambda one: one.at)
        for words, placed in lines.items()
        if len({one.at for one in placed}) >= LEAST_VALUES
    }
    return Sweep(name, dict(list(long.items())[:MOST_LINES]))


def _own(config: object, name: str) -> object:
    """The study's own value of a setting; None where it has none."""
    for part in name.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _sweep_panel(one: Sweep) -> drawing.Panel:
    if len(one.lines) == 1:
        (placed,) = one.lines.values()
        kinds: tuple[tuple[str, drawing.Style, Figure], ...] = (
            ("TNR", _TNR, lambda point: point.tnr),
            ("TPR", _TPR, lambda point: point.tpr),
            ("Adv", _ADV, lambda point: point.adv),
        )
        series = [_line(placed, look, name, figure, "%{y:.1%}") for name, look, figure in kinds]
    else:
        series = _lines(one, lambda point: point.adv, "%{y:.1%}")
    played = [at.point for placed in one.lines.values() for at in placed]
    least = min(0.5, *(f.low for p in played for f in (p.adv, p.tpr, p.tnr))) - 0.04
    return _panel(one, series, drawing.Scale("Share of games", "%", (least, 1.04)), "Success")


def _lines(one: Sweep, figure: Figure, hover: str) -> list[drawing.Series]:
    """A series for each line in which enough points have the figure."""
    lines = [
        _line(placed, _look(at), words or "as it is", figure, hover)
        for at, (words, placed) in enumerate(one.lines.items())
    ]
    return [line for line in lines if len(line.x) >= LEAST_VALUES]


def _panel(
    one: Sweep, series: Sequence[drawing.Series], y: drawing.Scale, what: str
) -> drawing.Panel:
    values = sorted({at.at for placed in one.lines.values() for at in placed})
    x = drawing.Scale(one.short)
    if values[0] > 0 and values[-1] > _MUCH * values[0]:
        # Only values that were played: a logarithmic axis has few numbers of its own.
        x = drawing.Scale(one.short, ticks={value: f"{value:g}" for value in values}, log=True)
    summary = f"{what} against {one.short}, {plural(len(one.lines), 'line')}."
    return drawing.Panel("", summary, x, y, series, height=380)


def _line(
    placed: Sequence[Placed], look: drawing.Style, name: str, figure: Figure, hover: str
) -> drawing.Series:
    shown = [(one.at, found) for one in placed if (found := figure(one.point)) is not None]
    return drawing.Series(
        name,
        [at for at, _ in shown],
        [found.value for _, found in shown],
        look,
        f"%{{x:g}}: {hover}",
        marks=len(shown),
        limits=[found for _, found in shown],
    )


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
    """The largest share of right verdicts between normal draws that lie so far apart."""
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
