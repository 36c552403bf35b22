"""Forest plots: a row an attack, model or point, its figures with limits against guessing.

The same rows make the first picture of a page and the table of a terminal.
"""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.report.figures.drawing import OKABE_ITO, LegendEntry, Style
from fedaudit.report.figures.svg import mark, tick_step
from fedaudit.report.grid import shortened

PLAIN = Style(OKABE_ITO[0], "solid", "circle")
DEFENDED = (
    Style(OKABE_ITO[1], "solid", "diamond"),
    Style(OKABE_ITO[2], "solid", "square"),
    Style(OKABE_ITO[3], "solid", "triangle-up"),
    Style(OKABE_ITO[4], "solid", "triangle-down"),
)
BASELINE = Style("#7A7A7A", "solid", "diamond-open")


class Mark(NamedTuple):
    """A figure in a track: its value, its limits, how it looks, what it is, and its size."""

    value: float
    low: float | None
    high: float | None
    look: Style
    said: str
    size: float = 9.0


class Track(NamedTuple):
    """A scale that all rows share.

    Attributes:
        title: The metric.
        low: Left end.
        high: Right end.
        guess: What guessing gives; None where rows have baselines of their own.
        ticks: Values with their texts.
    """

    title: str
    low: float
    high: float
    guess: float | None
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """A value's place, as a share of the track that never leaves it."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


class Line(NamedTuple):
    """A row.

    Attributes:
        label: The attack, model or point.
        marks: For each track the figures in it; the first is drawn on top.
        values: For each track a figure as text.
        limits: Its limits as text.
        tone: Colour of the first value, as in tables.
        band: Ends of a band in the first track, such as the margin of a comparison.
    """

    label: str
    marks: tuple[tuple[Mark, ...], ...]
    values: tuple[str, ...]
    limits: tuple[str, ...]
    tone: str = ""
    band: tuple[float, float] | None = None


class Forest(NamedTuple):
    """Rows upon tracks: a picture, or one choice of it.

    Attributes:
        title: What it shows.
        label: Its name among several.
        caption: How to read it, in a sentence or two.
        tracks: Scales from left to right.
        lines: Rows from top to bottom.
        keys: Looks of marks, where there are several.
    """

    title: str
    label: str
    caption: str
    tracks: tuple[Track, ...]
    lines: tuple[Line, ...]
    keys: tuple[LegendEntry, ...] = ()


Picture = tuple[Forest, ...]
"""The first picture of a page: the forest that the verdict speaks of, and others to choose."""


def percent_track(title: str, values: Sequence[float], *, guess: float | None) -> Track:
    """A track of shares from 0, as long as the largest value needs."""
    most = max([*values, 0.0])
    high = next(end for end in (0.05, 0.1, 0.2, 0.4, 0.6, 1.0) if most <= end or end == 1.0)
    step = high / 4 if high in (0.2, 0.4) else high / 5 if high > 0.05 else high / 2
    count = round(high / step)
    ticks = tuple((at * step, f"{100 * at * step:g}%") for at in range(count + 1))
    return Track(title, 0.0, high, guess, ticks[:: 2 if count == 5 and high == 1.0 else 1])


def half_track(title: str, values: Sequence[float], *, shares: bool) -> Track:
    """A track about guessing at one half: of an AUC, or of a balanced accuracy in per cent."""
    low = 0.4 if min([*values, 0.5]) >= 0.4 else 0.2 if min(values) >= 0.2 else 0.0
    places = [at / 10 for at in range(round(10 * low), 11) if at % 2 == (round(10 * low) % 2)]
    places += [0.5] if 0.5 not in places and low == 0.0 else []
    ticks = tuple((at, f"{100 * at:g}%" if shares else f"{at:g}") for at in sorted(places))
    return Track(title, low, 1.0, 0.5, ticks)


def number_track(title: str, most: float) -> Track:
    """Return a track of numbers from 0 to somewhat more than the largest."""
    step = tick_step(1.15 * most or 1.0, 5)
    high = step * (int(1.15 * most / step) + 1)
    places = [at * step for at in range(round(high / step) + 1)]
    return Track(title, 0.0, high, None, tuple((at, f"{at:g}") for at in places))


def forest_drawn(forest: Forest) -> Markup:
    """The rows as HTML: text at its own size, and a drawing that follows the width."""
    head = Markup("").join(
        Markup('<span class="ft-head">{}</span><span class="fv"></span>').format(track.title)
        for track in forest.tracks
    )
    rows = Markup("").join(_row(line, forest.tracks) for line in forest.lines)
    foot = Markup("").join(
        Markup('<span class="ft-foot">{}</span><span class="fv"></span>').format(_foot(track))
        for track in forest.tracks
    )
    label = "; ".join(
        f"{line.label}: {', '.join(value for value in line.values if value)}"
        for line in forest.lines[:20]
    )
    return Markup(
        '<div class="forest t{}" role="img" aria-label="{}">'
        '<div class="frow fhead"><span class="fl"></span>{}</div>{}'
        '<div class="frow ffoot"><span class="fl"></span>{}</div></div>'
    ).format(len(forest.tracks), shortened(label, 380), head, rows, foot)


def _row(line: Line, tracks: Sequence[Track]) -> Markup:
    cells = Markup("").join(
        Markup('<span class="ft">{}</span><span class="fv {}">{}<small>{}</small></span>').format(
            _track(track, marks, line.band if place == 0 else None),
            line.tone if place == 0 else "",
            value,
            limits,
        )
        for place, (track, marks, value, limits) in enumerate(
            zip(tracks, line.marks, line.values, line.limits, strict=True)
        )
    )
    return Markup('<div class="frow"><span class="fl">{}</span>{}</div>').format(line.label, cells)


def _track(track: Track, marks: Sequence[Mark], band: tuple[float, float] | None) -> Markup:
    parts = []
    if band is not None:
        left, right = (100 * track.at(end) for end in band)
        shape = '<rect class="band" x="{:.2f}%" width="{:.2f}%" y="0" height="100%"/>'
        parts.append(Markup(shape).format(left, right - left))
    parts += [
        Markup('<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%"/>').format(
            100 * track.at(at)
        )
        for at, _ in track.ticks
    ]
    if track.guess is not None:
        at = 100 * track.at(track.guess)
        line = '<line class="guess" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%"/>'
        parts.append(Markup(line).format(at))
    # A few settings are drawn below each other in a row, baselines behind them and small marks in
    # the lower half: many of these would hide the figure that they are compared with.
    own = [one for one in marks if one.look != BASELINE and one.size >= 9]
    room = 0.6 if any(one.size < 9 for one in marks) else 1.0
    for one in [one for one in marks if one not in own][::-1] + own[::-1]:
        up = room * (own.index(one) + 0.5) / len(own) if one in own and len(own) < 5 else room / 2
        parts.append(_mark(track, one, up if one.size >= 9 else 0.8))
    return Markup('<svg width="100%" height="100%" overflow="visible">{}</svg>').format(
        Markup("").join(parts)
    )


def _mark(track: Track, one: Mark, up: float) -> Markup:
    limits = Markup("")
    if one.low is not None or one.high is not None:
        low = track.low if one.low is None else one.low
        high = track.high if one.high is None else one.high
        limits = Markup(
            '<line x1="{:.2f}%" x2="{:.2f}%" y1="{:.1f}%" y2="{:.1f}%" stroke="{}" '
            'stroke-width="2.5"/>'
        ).format(100 * track.at(low), 100 * track.at(high), 100 * up, 100 * up, one.look.color)
    drawing = mark(one.look.symbol, one.look.color, (track.at(one.value), up), one.size)
    return Markup("<g><title>{}</title>{}{}</g>").format(one.said, limits, drawing)


def _foot(track: Track) -> Markup:
    ticks = [
        Markup('<span class="tx" style="left:{:.2f}%">{}</span>').format(100 * track.at(at), text)
        for at, text in track.ticks
    ]
    return Markup("").join(ticks)
