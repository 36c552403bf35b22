"""Panels drawn as SVG that follows the width of the page: no script, no library, and it prints.

Text is HTML at its own size beside the drawing. Paths stand in a box of 1,000 by 1,000 that is
stretched to the panel, with lines of a constant width; marks stand at percentages of it. So one
drawing serves a wide screen, a phone and paper.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.report.figures import drawing
from fedaudit.report.grid import shortened
from fedaudit.results.estimate import Interval

SIDE = 1000
_LEFT, _BELOW = 12, 40
_LETTER = 6.4
"""Pixels that a letter of a tick's text takes, about."""
_OUTSIDE = 0.002
"""Share of an axis by which a mark may lie outside of it."""

Spot = tuple[float, float]
"""Shares of a panel from its upper left corner."""


class Axis(NamedTuple):
    """A scale with its ends, which places values as shares of the panel.

    Attributes:
        scale: As the panel has it.
        low: Its start; of a logarithmic axis the exponent of ten.
        high: Its end.
    """

    scale: drawing.Scale
    low: drawing.Number
    high: drawing.Number

    def at(self, value: drawing.Number) -> float:
        """Return the place of a value as a share of the axis."""
        place = math.log10(max(value, 1e-300)) if self.scale.log else value
        return (place - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the shares of the axis at which it is marked, with their texts."""
        ticks = ticks_of(self.scale, self.low, self.high)
        return [(self.at(value), text) for value, text in ticks.items()]


def drawn(panel: drawing.Panel) -> Markup:
    """Return a panel as HTML: its axes' text, and the drawing between them."""
    x, y = (_axis(panel, across=True), _axis(panel, across=False))
    across, up = x.ticks(), [(1 - share, text) for share, text in y.ticks()]
    longest = max((len(text) for _, text in up), default=0)
    left = round(_LEFT + _LETTER * min(longest, 24) + (18 if y.scale.title else 0))
    body = [
        *(upright("grid", share) for share, _ in across),
        *(_level("grid", share) for share, _ in up),
        _level("axis", 1.0),
        *(upright("mark", x.at(value)) for value in panel.uprights),
        *(_trace(series, x, y) for series in panel.series),
    ]
    titles = [
        Markup('<span class="{}">{}</span>').format(kind, axis.scale.title)
        for kind, axis in (("xt", x), ("yt", y))
        if axis.scale.title
    ]
    return Markup(
        '<div class="plot" role="img" aria-label="{}" style="--l:{}px;--b:{}px">'
        '<div class="area"><svg width="100%" height="100%" overflow="visible">{}</svg>{}</div>'
        "{}</div>"
    ).format(
        panel.summary,
        left,
        _BELOW if x.scale.title else _BELOW - 16,
        Markup("").join(body),
        tick_texts(across) + tick_texts(up, across=False),
        Markup("").join(titles),
    )


# Axes.


def _axis(panel: drawing.Panel, *, across: bool) -> Axis:
    scale = panel.x if across else panel.y
    reached = [value for series in panel.series for value in series.reach(across)]
    if wrong := [value for value in reached if not math.isfinite(value)]:
        raise ValueError(f"a figure has {wrong[0]!r} where a number belongs")
    if scale.ends:
        return Axis(scale, *scale.ends)
    low, high = min(reached, default=0.0), max(reached, default=1.0)
    room = 0.05 * (high - low) or 0.5
    return Axis(scale, low - room, high + room)


def ticks_of(
    scale: drawing.Scale, low: drawing.Number, high: drawing.Number
) -> Mapping[drawing.Number, str]:
    """Return the values between two ends at which an axis is marked, with their texts."""
    if scale.ticks is not None:
        return {
            value: text
            for value, text in scale.ticks.items()
            if low - 1e-9 <= (math.log10(value) if scale.log else value) <= high + 1e-9
        }
    step = tick_step(high - low, scale.count, scale.form)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [place * step for place in range(first, last + 1)]
    return {value: _tick_text(value, step, scale.form) for value in values}


def tick_step(span: drawing.Number, most: int, form: str = "") -> float:
    """Return the distance between ticks: 1, 2 or 5 times a power of ten, so that they are few."""
    rough = abs(span) / max(most, 1) or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * size for size in (1, 2, 5, 10) if unit * size >= rough * (1 - 1e-9))
    return max(step, 1.0) if form == "d" else step


def _tick_text(value: drawing.Number, step: drawing.Number, form: str) -> str:
    scale = 100 if form == "%" else 1
    decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    # Adding zero turns a negative zero into one.
    text = f"{round(value * scale, decimals) + 0.0:,.{decimals}f}" + "%" * (scale == 100)
    return _minus(text)


def _minus(text: str) -> str:
    return text.replace("-", "−")


def tick_texts(places: Iterable[tuple[float, str]], *, across: bool = True) -> Markup:
    """Return the texts of an axis at shares of it, from the left or from the top."""
    kind, side = ("tx", "left") if across else ("ty", "top")
    form = Markup('<span class="{}" style="{}:{}%">{}</span>')
    return Markup("").join(form.format(kind, side, _percent(at), text) for at, text in places)


def upright(kind: str, at: float) -> Markup:
    """Return a line from top to bottom at a share of the width."""
    form = '<line class="{0}" x1="{1}%" x2="{1}%" y1="0" y2="100%"/>'
    return Markup(form).format(kind, _percent(at))


def _level(kind: str, at: float) -> Markup:
    form = '<line class="{0}" x1="0" x2="100%" y1="{1}%" y2="{1}%"/>'
    return Markup(form).format(kind, _percent(at))


# Series.


def _trace(series: drawing.Series, x: Axis, y: Axis) -> Markup:
    pairs = zip(series.x, series.y, strict=True)
    places = [None if up is None else (x.at(across), 1 - y.at(up)) for across, up in pairs]
    parts = [_line(places, series.look)] if series.look.dash else []
    step = max(1, -(-len(places) // series.marks)) if series.look.dash else 1
    for index, place in enumerate(places):
        look = series.looks[index] if series.looks else series.look
        if place is None or not look.symbol or index % step:
            continue
        across, up = place
        low, high = _ends(series.limits, index, y, 1 - up)
        left, right = _ends(series.limits_across, index, x, across)
        segments = [((across, 1 - high), (across, 1 - low)), ((left, up), (right, up))]
        text = series.texts[index] if series.texts else shortened(series.name)
        values = series.hover.format(x=series.x[index], y=series.y[index])
        said = f"{text}: {values}" if values else text
        parts.append(figure(said, segments, look, place, series.size))
    form = Markup("<g><title>{}</title>{}</g>")
    return form.format(shortened(series.name), Markup("").join(parts)) if parts else Markup("")


def _ends(
    intervals: Sequence[Interval | None], index: int, axis: Axis, middle: float
) -> tuple[float, float]:
    """Return the ends of an interval as shares of an axis; its middle where one is not known."""
    interval = (intervals[index] if intervals else None) or Interval()
    low, high = interval.low, interval.high
    return middle if low is None else axis.at(low), middle if high is None else axis.at(high)


def figure(
    text: str,
    segments: Iterable[tuple[Spot, Spot]],
    look: drawing.Style,
    place: Spot,
    size: drawing.Number,
) -> Markup:
    """Return a mark with the lines of its intervals, and its text under the pointer.

    A symbol that ends in "-open" is hollow. A mark outside of the panel is left out.
    """
    lines = [_segment(*ends, look.color) for ends in segments if ends[0] != ends[1]]
    if all(-_OUTSIDE <= share <= 1 + _OUTSIDE for share in place):
        lines.append(_mark(look, place, size))
    return Markup("<g><title>{}</title>{}</g>").format(text, Markup("").join(lines))


def _segment(start: Spot, end: Spot, color: str) -> Markup:
    form = '<line x1="{}%" x2="{}%" y1="{}%" y2="{}%" stroke="{}" stroke-width="2.2"/>'
    return Markup(form).format(*map(_percent, (start[0], end[0], start[1], end[1])), color)


def _mark(look: drawing.Style, place: Spot, size: drawing.Number) -> Markup:
    symbol = look.symbol.removesuffix("-open")
    if symbol not in drawing.MARKS:
        known = ", ".join(drawing.MARKS)
        raise ValueError(f"no mark is called {look.symbol!r}; known: {known}")
    ink = Markup('fill="{}"')
    if symbol != look.symbol:
        ink = Markup('fill="var(--card)" stroke="{}" stroke-width="2"')
    shape = Markup(drawing.MARKS[symbol])
    return Markup(
        '<svg x="{}%" y="{}%" overflow="visible"><g {} transform="scale({:.2g})">{}</g></svg>'
    ).format(*map(_percent, place), ink.format(look.color), size / 8, shape)


def _line(places: Sequence[Spot | None], look: drawing.Style) -> Markup:
    dash = drawing.DASHES[look.dash]
    return Markup(
        '<svg viewBox="0 0 {0} {0}" width="100%" height="100%" preserveAspectRatio="none">'
        '<path class="line" d="{1}" stroke="{2}" stroke-width="2"{3}/></svg>'
    ).format(
        SIDE,
        _path(places),
        look.color,
        Markup(' stroke-dasharray="{}"').format(dash) if dash else "",
    )


def _path(places: Sequence[Spot | None]) -> str:
    """Return a line through places, which starts again after a gap."""
    spots = [
        f"{_thousandth(place[0])} {_thousandth(place[1])}" if place else "" for place in places
    ]
    pairs = zip(["", *spots], spots, strict=False)
    return "".join(
        f"{'L' if before else 'M'}{spot}" for before, spot in pairs if spot and spot != before
    )


def _thousandth(share: float) -> str:
    return f"{max(-9.0, min(share, 9.0)) * SIDE:.1f}".removesuffix(".0")


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".")
