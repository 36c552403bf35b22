"""Interval charts (forest plots) with a row for each attack, model or point.

A page draws them as its first picture. A terminal prints them as tables.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.formatting import wording
from fedaudit.report import evidence
from fedaudit.report.figures import charts
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import NOT_RELIED_ON

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down")
PLAIN, *DEFENDED = (
    charts.Style(charts.OKABE_ITO[i], "", symbol) for i, symbol in enumerate(_SYMBOLS)
)
BASELINE = charts.Style(charts.GREY, "", "diamond-open")
DOUBTED = charts.Style(charts.GREY, "", "circle-open")

COMPARED = "membership, row by row"  # label of the chart on membership in a comparison
MOST_LINES = 20  # largest number of rows of a picture; the tables have the others


def hollow(look: charts.Style) -> charts.Style:
    """Return the style of an estimate that a failed control invalidates: a hollow grey symbol."""
    return charts.Style(charts.GREY, "", f"{look.symbol.removesuffix('-open')}-open")


class Mark(NamedTuple):
    """Mark of an estimate in a track: value, limits, style, tooltip and size."""

    value: float
    low: float | None
    high: float | None
    look: charts.Style
    text: str
    size: float = 9.0


class TrackCell(NamedTuple):
    """Cell of a row in a track: marks (the first is on top), and the main estimate as text."""

    marks: tuple[Mark, ...] = ()
    value: str = wording.MISSING
    limits: str = ""

    def placed(self, track: charts.Axis) -> list[charts.Placed]:
        """Return the marks at their positions, in drawing order.

        Up to four main marks are drawn below each other, and baselines behind them. Small marks are
        drawn near the lower edge, where they cannot hide a main mark.
        """
        main = [mark for mark in self.marks if mark.look != BASELINE and mark.size >= 9]
        room = 0.6 if any(mark.size < 9 for mark in self.marks) else 1.0
        placed = []
        for mark in [mark for mark in self.marks if mark not in main][::-1] + main[::-1]:
            has_lane = mark in main and len(main) < 5
            up = room * (main.index(mark) + 0.5) / len(main) if has_lane else room / 2
            up = up if mark.size >= 9 else 0.8
            middle = track.clipped(mark.value)
            low, high = middle, middle
            if mark.low is not None or mark.high is not None:
                low = 0.0 if mark.low is None else track.clipped(mark.low)
                high = 1.0 if mark.high is None else track.clipped(mark.high)
            ends = ((low, up, high, up),)
            placed.append(charts.Placed(mark.text, mark.look, mark.size, middle, up, ends))
        return placed


class ForestRow(NamedTuple):
    """A row: label, a cell for each track, and the tone and the shaded band of the first track."""

    label: str
    cells: tuple[TrackCell, ...]
    tone: str = ""
    band: tuple[float, float] | None = None


class Forest(NamedTuple):
    """Interval chart; ``label`` distinguishes it from other charts of the same page."""

    title: str
    label: str
    caption: str
    tracks: tuple[charts.Axis, ...]
    lines: tuple[ForestRow, ...]
    keys: tuple[charts.LegendEntry, ...] = ()


Picture = tuple[Forest, ...]
"""First picture of a page: the chart that supports the verdict, and alternatives to select."""


def mark_of(estimate: Estimate, look: charts.Style, name: str) -> Mark:
    """Return the mark of an estimate; its text has name, value and interval."""
    limits = evidence.DOUBTED.word if estimate.doubt else wording.interval_text(estimate)
    text = f"{name} {wording.value_text(estimate)}" + f" ({limits})" * bool(limits)
    look = hollow(look) if estimate.doubt else look
    return Mark(estimate.value or 0.0, estimate.low, estimate.high, look, text)


def track_cell(estimate: Estimate, marks: Sequence[Mark], sign: str = "") -> TrackCell:
    """Return a cell with an estimate and its sign; doubtful estimates are marked as such."""
    value, limits = wording.value_text(estimate), wording.interval_text(estimate)
    if estimate.doubt:
        sign, limits = evidence.DOUBTED.sign, evidence.DOUBTED.word
    return TrackCell(tuple(marks), f"{sign}{value}", limits)


def build_forest(
    title: str,
    label: str,
    caption: str,
    tracks: Sequence[charts.Axis],
    lines: Sequence[ForestRow],
    looks: Mapping[str, charts.Style] | None = None,
) -> Picture:
    """Return a chart of the first rows with a legend; axes are extended to contain all marks."""
    shown_lines, hidden = tuple(lines[:MOST_LINES]), len(lines) - MOST_LINES
    if not shown_lines:
        return ()
    if hidden > 0:
        rows = wording.format_count(hidden, "more row is", "more rows are")
        caption += f" {rows} in the tables."
    columns = zip(*(line.cells for line in shown_lines), strict=True)
    by_track = [[mark for cell in cells for mark in cell.marks] for cells in columns]
    keys = _keys(looks or {}, {mark.look for marks in by_track for mark in marks})
    fitted = tuple(_fitted(*pair) for pair in zip(tracks, by_track, strict=True))
    return (Forest(title, label, caption, fitted, shown_lines, keys),)


def _keys(
    looks: Mapping[str, charts.Style], used_styles: set[charts.Style]
) -> tuple[charts.LegendEntry, ...]:
    keys = {name: look for name, look in looks.items() if look in used_styles}
    in_doubt = {
        f"{name}, {evidence.DOUBTED.sign}{evidence.DOUBTED.word}": hollow(look)
        for name, look in looks.items()
        if hollow(look) in used_styles - set(looks.values())
    }
    if not in_doubt and DOUBTED in used_styles:
        in_doubt = {f"{evidence.DOUBTED.sign}{NOT_RELIED_ON}": DOUBTED}
    keys |= in_doubt
    return charts.legend(keys) if len(keys) > 1 or in_doubt else ()


def _fitted(track: charts.Axis, marks: Sequence[Mark]) -> charts.Axis:
    """Return a track with ends and ticks, from 0 or from slightly below a chance level of 0.5."""
    ends = [end for mark in marks for end in (mark.value, mark.low, mark.high) if end is not None]
    low, high, smallest, largest = 0.0, track.high, min([*ends, 0.5]), max([*ends, 0.0])
    if track.guess == 0.5:
        low, high = next(end for end in (0.4, 0.2, 0.0) if end <= max(smallest, 0.0)), 1.0
    elif high <= low and track.form == "%":
        high = next((end for end in (0.05, 0.1, 0.2, 0.4, 0.6) if largest <= end), 1.0)
    elif high <= low:
        step = charts.tick_step(1.15 * largest or 1.0, 4)
        high = step * (int(1.15 * largest / step) + 1)
    return track._replace(low=low, high=high, ticks=charts.ticks(low, high, 4, track.form))
