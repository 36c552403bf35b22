"""Figures of a setting that was turned through several values: success, and epochs of training."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedaudit.report.drawing import Choice, Figures, Panel, Spec, error_bars, series_line, spec_of
from fedaudit.report.grid import shortened
from fedaudit.report.reading import Epochs, GameRecord, PointPlayed, Rate, Success
from fedaudit.report.styles import OKABE_ITO, Key, Style, swatch
from fedaudit.report.words import plural

LEAST_VALUES = 3
"""Values of a setting from which on it is drawn: two are read in the table."""

MOST_LINES = 6
MOST_SETTINGS = 8

_MUCH = 20.0
"""Largest over smallest value from which on the axis is logarithmic."""

_EPSILONS = ("mechanism.options.epsilon", "mechanism.options.nominal_epsilon")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star")
_ADV = Style(OKABE_ITO[0], "solid", "circle")
_TPR = Style(OKABE_ITO[1], "dash", "square")
_TNR = Style(OKABE_ITO[2], "dot", "diamond")

Figure = Callable[[PointPlayed], Rate | Success | Epochs | None]


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


def sweep_figure(record: GameRecord) -> Figures | None:
    """Success against each setting that was turned through several numbers; None for none.

    Epsilons are not among them: they have a figure of their own.
    """
    found = sweeps(record)[:MOST_SETTINGS]
    choices = [Choice(f"Success against {one.short}", (_success_panel(one),)) for one in found]
    choices += [
        Choice(f"Epochs against {one.short}", (panel,))
        for one in found
        if (panel := _epochs_panel(one)) is not None
    ]
    if not choices:
        return None
    return Figures(
        "games-sweeps",
        "Points that differ in one setting only, with 95% intervals. Success: how often the server "
        "is right (Adv); with one line also both kinds of games apart. Epochs: how long neurons "
        "were trained until they told validation records apart, mean over targets.",
        tuple(choices),
        (
            Key("Adv", "Adv", swatch(_ADV)),
            Key("TPR: “in” where the target is in the batch", "TPR", swatch(_TPR)),
            Key("TNR: “out” where it is not", "TNR", swatch(_TNR)),
        )
        if any(len(one.lines) == 1 for one in found)
        else (),
    )


def sweeps(record: GameRecord) -> list[Sweep]:
    """The settings that take several numbers while all others stay as they are."""
    names = list(dict.fromkeys(name for point in record.points for name in point.settings))
    found = [_sweep(record, name) for name in names if name not in _EPSILONS]
    return [one for one in found if one.lines]


def _sweep(record: GameRecord, name: str) -> Sweep:
    own = _number(_own(record.config, name))
    lines: dict[str, list[Placed]] = {}
    for point in record.points:
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


def _success_panel(one: Sweep) -> Panel:
    if len(one.lines) == 1:
        (placed,) = one.lines.values()
        kinds: tuple[tuple[str, Style, Figure], ...] = (
            ("TNR", _TNR, lambda point: point.tnr),
            ("TPR", _TPR, lambda point: point.tpr),
            ("Adv", _ADV, lambda point: point.adv),
        )
        traces = [_line(placed, look, name, figure, "%{y:.1%}") for name, look, figure in kinds]
    else:
        traces = [
            _line(placed, _look(at), words or "as it is", lambda point: point.adv, "%{y:.1%}")
            for at, (words, placed) in enumerate(one.lines.items())
        ]
    figures = [f for placed in one.lines.values() for at in placed for f in _kinds(at.point)]
    least = min(0.5, *(figure.low for figure in figures)) - 0.04
    yaxis: Spec = {"title": {"text": "Share of games"}, "tickformat": ".0%", "range": [least, 1.04]}
    return _panel(one, traces, yaxis, "Success")


def _kinds(point: PointPlayed) -> tuple[Rate | Success, ...]:
    return point.adv, point.tpr, point.tnr


def _epochs_panel(one: Sweep) -> Panel | None:
    known = {
        words: [at for at in placed if at.point.epochs is not None]
        for words, placed in one.lines.items()
    }
    traces = [
        _line(placed, _look(at), words or "as it is", lambda point: point.epochs, "%{y:,.0f}")
        for at, (words, placed) in enumerate(known.items())
        if len(placed) >= LEAST_VALUES
    ]
    if not traces:
        return None
    yaxis: Spec = {"title": {"text": "Epochs"}, "rangemode": "tozero", "nticks": 6}
    return _panel(one, traces, yaxis, "Epochs of training")


def _panel(one: Sweep, traces: Sequence[Spec], yaxis: Spec, what: str) -> Panel:
    values = sorted({at.at for placed in one.lines.values() for at in placed})
    much = values[0] > 0 and values[-1] > _MUCH * values[0]
    xaxis: Spec = {"title": {"text": one.short}}
    if much:
        # Only values that were played: a logarithmic axis has few numbers of its own.
        xaxis |= {"type": "log", "tickvals": values, "ticktext": [f"{v:g}" for v in values]}
    summary = f"{what} against {one.short}, {plural(len(one.lines), 'line')}."
    return Panel("", summary, spec_of(traces, xaxis=xaxis, yaxis=yaxis, height=380))


def _line(placed: Sequence[Placed], look: Style, name: str, figure: Figure, hover: str) -> Spec:
    shown = [(one.at, found) for one in placed if (found := figure(one.point)) is not None]
    line = series_line(
        [at for at, _ in shown],
        [found.value for _, found in shown],
        look,
        name,
        marks=len(shown),
        hover=f"%{{x:g}}: {hover}",
    )
    return line | {"error_y": error_bars([found for _, found in shown], color=look.color)}


def _look(place: int) -> Style:
    return Style(OKABE_ITO[place % 6], "solid", _SYMBOLS[place % len(_SYMBOLS)])
