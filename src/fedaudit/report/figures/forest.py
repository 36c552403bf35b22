"""Forest plots: a row an attack, model or point, its figures with limits against guessing.

The same rows make the first picture of a page and the table of a terminal.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.report.figures.drawing import OKABE_ITO, LegendEntry, Scale, Style, legend
from fedaudit.report.figures.svg import mark, segment, tick_step, tick_texts, ticks_of, upright
from fedaudit.report.grid import shortened
from fedaudit.report.words import plural

PLAIN = Style(OKABE_ITO[0], "solid", "circle")
DEFENDED = (
    Style(OKABE_ITO[1], "solid", "diamond"),
    Style(OKABE_ITO[2], "solid", "square"),
    Style(OKABE_ITO[3], "solid", "triangle-up"),
    Style(OKABE_ITO[4], "solid", "triangle-down"),
)
BASELINE = Style("#7A7A7A", "solid", "diamond-open")

MOST_LINES = 20
"""Rows of a picture at most; the tables have the others."""


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
        form: "%" for shares.
        guess: What guessing gives; None where rows have baselines of their own.
        low: Left end.
        high: Right end; chosen for the marks if it is not above the left one.
        ticks: Values with their texts.
    """

    title: str
    form: str = ""
    guess: float | None = None
    low: float = 0.0
    high: float = 0.0
    ticks: tuple[tuple[float, str], ...] = ()

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


def forest(
    title: str,
    label: str,
    caption: str,
    tracks: Sequence[Track],
    lines: Sequence[Line],
    looks: Mapping[str, Style] | None = None,
) -> Forest:
    """Return rows upon tracks that are as long as their marks need.

    Args:
        title: What it shows.
        label: Its name among several.
        caption: How to read it.
        tracks: Scales from left to right.
        lines: Rows from top to bottom, of which the first are drawn.
        looks: Looks of marks by name; a legend shows them where there are several.
    """
    shown, left = tuple(lines[:MOST_LINES]), len(lines) - MOST_LINES
    if left > 0:
        caption += f" {plural(left, 'more row')} {'is' if left == 1 else 'are'} in the tables."
    known = looks or {}
    keys = legend(known, lined=False, hides=False) if len(known) > 1 else ()
    fitted = tuple(_fitted(track, place, shown) for place, track in enumerate(tracks))
    return Forest(title, label, caption, fitted, shown, keys)


def _fitted(track: Track, place: int, lines: Sequence[Line]) -> Track:
    """Return a track with ends and ticks: about one half, of shares from 0, or of numbers."""
    marks = [mark for line in lines for mark in line.marks[place]]
    ends = [end for one in marks for end in (one.value, one.low, one.high) if end is not None]
    low, high, least, most = 0.0, track.high, min([*ends, 0.5]), max([*ends, 0.0])
    if track.guess == 0.5:
        low, high = next(end for end in (0.4, 0.2, 0.0) if end <= max(least, 0.0)), 1.0
    elif high <= low and track.form == "%":
        high = next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6) if most <= end), 1.0)
    elif high <= low:
        step = tick_step(1.15 * most or 1.0, 4)
        high = step * (int(1.15 * most / step) + 1)
    step = tick_step(high - low, 4)
    scale = Scale(form="%" if track.form == "%" else "", step=step)
    return track._replace(low=low, high=high, ticks=tuple(ticks_of(scale, low, high).items()))


def forest_drawn(forest: Forest) -> Markup:
    """The rows as HTML: text at its own size, and a drawing that follows the width."""
    label = "; ".join(
        f"{line.label}: {', '.join(value for value in line.values if value)}"
        for line in forest.lines[:20]
    )
    heads = [_cell("ft-head", track.title) for track in forest.tracks]
    feet = [
        _cell("ft-foot", tick_texts([(track.at(at), text) for at, text in track.ticks]))
        for track in forest.tracks
    ]
    rows = [_row("", "fhead", heads), *(_line(line, forest.tracks) for line in forest.lines)]
    return Markup('<div class="forest t{}" role="img" aria-label="{}">{}{}</div>').format(
        len(forest.tracks), shortened(label, 380), Markup("").join(rows), _row("", "ffoot", feet)
    )


def _row(label: str, kind: str, cells: Sequence[Markup]) -> Markup:
    form = '<div class="frow {}"><span class="fl">{}</span>{}</div>'
    return Markup(form).format(kind, label, Markup("").join(cells))


def _cell(kind: str, inside: str, tone: str = "", value: str = "", limits: str = "") -> Markup:
    form = '<span class="{}">{}</span><span class="fv {}">{}<small>{}</small></span>'
    return Markup(form).format(kind, inside, tone, value, limits)


def _line(line: Line, tracks: Sequence[Track]) -> Markup:
    columns = zip(tracks, line.marks, line.values, line.limits, strict=True)
    cells = [
        _cell("ft", _track(track, marks, None if at else line.band), "" if at else line.tone, *text)
        for at, (track, marks, *text) in enumerate(columns)
    ]
    return _row(line.label, "", cells)


def _track(track: Track, marks: Sequence[Mark], band: tuple[float, float] | None) -> Markup:
    parts = []
    if band is not None:
        left, right = (100 * track.at(end) for end in band)
        shape = '<rect class="band" x="{:.2f}%" width="{:.2f}%" y="0" height="100%"/>'
        parts.append(Markup(shape).format(left, right - left))
    parts += [upright("grid", track.at(at)) for at, _ in track.ticks]
    if track.guess is not None:
        parts.append(upright("guess", track.at(track.guess)))
    # A few settings are drawn below each other in a row, baselines behind them and small marks in
    # the lower half: many of these would hide the figure that they are compared with.
    own = [one for one in marks if one.look != BASELINE and one.size >= 9]
    room = 0.6 if any(one.size < 9 for one in marks) else 1.0
    for one in [one for one in marks if one not in own][::-1] + own[::-1]:
        up = room * (own.index(one) + 0.5) / len(own) if one in own and len(own) < 5 else room / 2
        parts.append(_mark(track, one, up if one.size >= 9 else 0.8))
    form = '<svg width="100%" height="100%" overflow="visible">{}</svg>'
    return Markup(form).format(Markup("").join(parts))


def _mark(track: Track, one: Mark, up: float) -> Markup:
    limits = Markup("")
    if one.low is not None or one.high is not None:
        low = 0.0 if one.low is None else track.at(one.low)
        high = 1.0 if one.high is None else track.at(one.high)
        limits = segment((low, up), (high, up), one.look.color, 2.5)
    drawing = mark(one.look.symbol, one.look.color, (track.at(one.value), up), one.size)
    return Markup("<g><title>{}</title>{}{}</g>").format(one.said, limits, drawing)
