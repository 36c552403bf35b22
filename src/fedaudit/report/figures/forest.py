"""Interval charts: a row for each attack, model or point, with its figures and their limits.

The same rows make the first picture of a page and the table of a terminal.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.report import evidence, wording
from fedaudit.report.figures.charts import (
    GREY,
    OKABE_ITO,
    LegendEntry,
    Style,
    figure,
    legend,
    tick_step,
    tick_texts,
    ticks,
    upright,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import NOT_RELIED_ON

PLAIN, *DEFENDED = (
    Style(color, "", symbol)
    for color, symbol in zip(
        OKABE_ITO, ("circle", "diamond", "square", "triangle-up", "triangle-down"), strict=False
    )
)
BASELINE = Style(GREY, "", "diamond-open")
DOUBTED = Style(GREY, "", "circle-open")

MOST_LINES = 20
"""Rows of a picture at most; the tables have the others."""


def doubted(look: Style) -> Style:
    """Return the look of a figure that a failed control takes back: the same symbol in outline."""
    return Style(GREY, "", f"{look.symbol.removesuffix('-open')}-open")


class Mark(NamedTuple):
    """A figure in a track: its value, its limits, how it looks, its text, and its size."""

    value: float
    low: float | None
    high: float | None
    look: Style
    text: str
    size: float = 9.0


class Track(NamedTuple):
    """A scale that all rows share.

    Attributes:
        title: The metric.
        form: "%" for shares.
        guess: Value of a guess; None if rows have their own baselines.
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
        """Return a value's place as a share of the track, from 0 to 1."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


class TrackCell(NamedTuple):
    """A row's figures in a track: marks, the first on top, and the main figure as text."""

    marks: tuple[Mark, ...] = ()
    value: str = wording.MISSING
    limits: str = ""


class Line(NamedTuple):
    """A row.

    Attributes:
        label: The attack, model or point.
        cells: Its figures in each track.
        tone: Colour of the first value, as in tables.
        band: Ends of a band in the first track, such as the margin of a comparison.
    """

    label: str
    cells: tuple[TrackCell, ...]
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
"""The first picture of a page: the forest that supports the verdict, and others to choose."""


def mark_of(estimate: Estimate, look: Style, name: str) -> Mark:
    """Return the mark of a figure, whose text has its name, value and interval."""
    limits = evidence.DOUBTED.word if estimate.doubt else wording.interval_of(estimate)
    text = f"{name} {wording.value_of(estimate)}" + f" ({limits})" * bool(limits)
    look = doubted(look) if estimate.doubt else look
    return Mark(estimate.value or 0.0, estimate.low, estimate.high, look, text)


def cell_of(estimate: Estimate, marks: Sequence[Mark], sign: str = "") -> TrackCell:
    """Return a cell whose text is a figure with a sign, or that it is not relied on."""
    value, limits = wording.value_of(estimate), wording.interval_of(estimate)
    if estimate.doubt:
        sign, limits = evidence.DOUBTED.sign, evidence.DOUBTED.word
    return TrackCell(tuple(marks), f"{sign}{value}", limits)


def forest(
    title: str,
    label: str,
    caption: str,
    tracks: Sequence[Track],
    lines: Sequence[Line],
    looks: Mapping[str, Style] | None = None,
) -> Picture:
    """Return rows upon tracks that are as long as their marks need; nothing without rows.

    Args:
        title: What it shows.
        label: Its name among several.
        caption: How to read it.
        tracks: Scales from left to right.
        lines: Rows from top to bottom, of which the first are drawn.
        looks: Looks of marks by name; a legend shows those that are drawn if there are several.
    """
    drawn, hidden = tuple(lines[:MOST_LINES]), len(lines) - MOST_LINES
    if not drawn:
        return ()
    if hidden > 0:
        verb = "is" if hidden == 1 else "are"
        caption += f" {wording.plural(hidden, 'more row')} {verb} in the tables."
    by_track = [
        [mark for line in drawn for mark in line.cells[place].marks] for place in range(len(tracks))
    ]
    keys = _keys(looks or {}, {mark.look for marks in by_track for mark in marks})
    fitted = tuple(_fitted(*pair) for pair in zip(tracks, by_track, strict=True))
    return (Forest(title, label, caption, fitted, drawn, keys),)


def _keys(looks: Mapping[str, Style], used: set[Style]) -> tuple[LegendEntry, ...]:
    """Return the legend of used looks; empty for a single look that is relied on."""
    keys = {name: look for name, look in looks.items() if look in used}
    in_doubt = {
        f"{name}, {evidence.DOUBTED.sign}{evidence.DOUBTED.word}": doubted(look)
        for name, look in looks.items()
        if doubted(look) in used - set(looks.values())
    }
    if not in_doubt and DOUBTED in used:
        in_doubt = {f"{evidence.DOUBTED.sign}{NOT_RELIED_ON}": DOUBTED}
    keys |= in_doubt
    return legend(keys) if len(keys) > 1 or in_doubt else ()


def _fitted(track: Track, marks: Sequence[Mark]) -> Track:
    """Return a track with ends and ticks.

    A track with chance level one half gets that in its left part, and one of other shares starts
    at 0.
    """
    ends = [end for mark in marks for end in (mark.value, mark.low, mark.high) if end is not None]
    low, high, least, most = 0.0, track.high, min([*ends, 0.5]), max([*ends, 0.0])
    if track.guess == 0.5:
        low, high = next(end for end in (0.4, 0.2, 0.0) if end <= max(least, 0.0)), 1.0
    elif high <= low and track.form == "%":
        high = next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6) if most <= end), 1.0)
    elif high <= low:
        step = tick_step(1.15 * most or 1.0, 4)
        high = step * (int(1.15 * most / step) + 1)
    texts = ticks(low, high, 4, track.form)
    return track._replace(low=low, high=high, ticks=tuple(texts.items()))


def forest_drawn(forest: Forest) -> Markup:
    """Return the rows as HTML: text at its own size, and a drawing that follows the width.

    Its texts are a table for screen readers, which skip the drawing.
    """
    heads = [
        Markup(
            '<span class="ft-head" role="columnheader">{}</span><span class="fv"></span>'
        ).format(track.title)
        for track in forest.tracks
    ]
    feet = [
        Markup('<span class="ft-foot">{}</span><span class="fv"></span>').format(
            tick_texts([(track.at(value), text) for value, text in track.ticks])
        )
        for track in forest.tracks
    ]
    rows = [_line(line, forest.tracks) for line in forest.lines]
    return Markup(
        '<div class="forest t{}" role="table" aria-label="{}">'
        '<div class="frow fhead" role="row"><span class="fl" role="cell"></span>{}</div>{}'
        '<div class="frow ffoot" aria-hidden="true"><span class="fl"></span>{}</div></div>'
    ).format(len(forest.tracks), forest.title, *map(Markup("").join, (heads, rows, feet)))


def _line(line: Line, tracks: Sequence[Track]) -> Markup:
    form = Markup(
        '<span class="ft" aria-hidden="true">{}</span>'
        '<span class="fv {}" role="cell">{}<small>{}</small></span>'
    )
    cells = [
        form.format(
            _track(track, cell.marks, None if place else line.band),
            "" if place else line.tone,
            cell.value,
            f" {cell.limits}" if cell.limits else "",
        )
        for place, (track, cell) in enumerate(zip(tracks, line.cells, strict=True))
    ]
    row = Markup('<div class="frow" role="row"><span class="fl" role="rowheader">{}</span>{}</div>')
    return row.format(line.label, Markup("").join(cells))


def _track(track: Track, marks: Sequence[Mark], band: tuple[float, float] | None) -> Markup:
    parts = []
    if band is not None:
        left, right = (100 * track.at(end) for end in band)
        shape = '<rect class="band" x="{:.2f}%" width="{:.2f}%" y="0" height="100%"/>'
        parts.append(Markup(shape).format(left, right - left))
    parts += [upright("grid", track.at(value)) for value, _ in track.ticks]
    if track.guess is not None:
        parts.append(upright("guess", track.at(track.guess)))
    # Up to four main marks of a row are drawn below each other. Baselines lie behind them, and
    # small marks in the lower half, where they cannot hide the figure that they belong to.
    main = [mark for mark in marks if mark.look != BASELINE and mark.size >= 9]
    room = 0.6 if any(mark.size < 9 for mark in marks) else 1.0
    for mark in [mark for mark in marks if mark not in main][::-1] + main[::-1]:
        has_lane = mark in main and len(main) < 5
        up = room * (main.index(mark) + 0.5) / len(main) if has_lane else room / 2
        parts.append(_mark(track, mark, up if mark.size >= 9 else 0.8))
    form = '<svg width="100%" height="100%" overflow="visible">{}</svg>'
    return Markup(form).format(Markup("").join(parts))


def _mark(track: Track, mark: Mark, up: float) -> Markup:
    middle = track.at(mark.value)
    low, high = middle, middle
    if mark.low is not None or mark.high is not None:
        low = 0.0 if mark.low is None else track.at(mark.low)
        high = 1.0 if mark.high is None else track.at(mark.high)
    return figure(mark.text, [(low, up, high, up)], mark.look, (middle, up), mark.size)
