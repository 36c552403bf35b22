"""Charts as data; the template ``charts.html.j2`` draws them as SVG."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fedaudit.formatting.grid import shorten
from fedaudit.results.estimate import Interval

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#C2649A", "#B97800", "#2F93CC", "#7A7A7A")
"""Okabe and Ito's hues, changed to a contrast of at least 3:1 on light and dark backgrounds."""

# The template draws these dashes and symbols.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star")
MUTED = "#8A939E"  # for further lines, since only a few colours can be distinguished
RESERVED = "cross"  # symbol of "no defense", which nothing else uses
GREY = "#7A7A7A"  # for guessing, baselines and limits


class Style(NamedTuple):
    """Colour, line dash and symbol of a mark; a symbol whose name ends in "-open" is hollow."""

    color: str
    dash: str = ""
    symbol: str = ""

    @property
    def is_open(self) -> bool:
        """True for a hollow mark."""
        return self.symbol.endswith("-open")


def style(position: int) -> Style:
    """Return the style at a position; the first 210 styles are distinct."""
    return Style(*(kind[position % len(kind)] for kind in (OKABE_ITO, DASHES, SYMBOLS)))


class LegendEntry(NamedTuple):
    """A line of a legend: a name and its style."""

    name: str
    look: Style


def legend(looks: Mapping[str, Style], limit: int = 80) -> tuple[LegendEntry, ...]:
    """Return a legend of styles by name; names are cut to a number of characters."""
    return tuple(LegendEntry(shorten(name, limit), look) for name, look in looks.items())


class Placed(NamedTuple):
    """A mark and line segments (x1, y1, x2, y2) in fractions of a panel, from the upper left."""

    text: str
    look: Style
    size: float
    x: float
    y: float
    segments: tuple[tuple[float, float, float, float], ...]


class Axis(NamedTuple):
    """An axis with title, ends and ticks; the ends of a logarithmic axis are exponents of ten.

    ``form`` is "%" for fractions, and ``guess`` is the chance level.
    """

    title: str
    low: float = 0.0
    high: float = 0.0
    ticks: tuple[tuple[float, str], ...] = ()
    log: bool = False
    form: str = ""
    guess: float | None = None

    def at(self, value: float) -> float:
        """Return the position of a value, as a fraction of the axis."""
        scaled = math.log10(max(value, 1e-300)) if self.log else value
        return (scaled - self.low) / ((self.high - self.low) or 1.0)

    def ends(self, value: float, limits: Interval | None) -> tuple[float, float]:
        """Return the positions of two limits; a missing limit is at the position of the value."""
        low, high = (limits.low, limits.high) if limits else (None, None)
        return self.at(value if low is None else low), self.at(value if high is None else high)

    def clipped(self, value: float) -> float:
        """Return the position of a value; values outside are moved to the nearer end."""
        return min(max(self.at(value), 0.0), 1.0)

    def tick_positions(self) -> list[tuple[float, str]]:
        """Return the positions and texts of the ticks between the ends."""
        positions = [(self.at(value), text) for value, text in self.ticks]
        return [(position, text) for position, text in positions if -1e-9 <= position <= 1 + 1e-9]


class Curve(NamedTuple):
    """A line through points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: Style

    def path(self, x: Axis, y: Axis) -> str:
        """Return the line as an SVG path in a box of 1,000 by 1,000."""
        points = [(x.at(across), 1 - y.at(up)) for across, up in zip(self.x, self.y, strict=True)]
        texts = [" ".join(f"{1000 * c:.1f}".removesuffix(".0") for c in point) for point in points]
        return "M" + "L".join(text for text, _ in groupby(texts))


class Point(NamedTuple):
    """A mark with intervals on both axes, and its tooltip."""

    x: float
    y: float
    look: Style
    text: str
    x_limits: Interval | None = None
    y_limits: Interval | None = None

    def placed(self, x: Axis, y: Axis) -> Placed:
        """Return the mark at its position between two axes."""
        across, up = x.at(self.x), 1 - y.at(self.y)
        left, right = x.ends(self.x, self.x_limits)
        low, high = y.ends(self.y, self.y_limits)
        segments = ((across, 1 - high, across, 1 - low), (left, up, right, up))
        return Placed(self.text, self.look, 10, across, up, segments)


class Panel(NamedTuple):
    """Axes with lines and marks in drawing order; ``uprights`` are dotted vertical lines."""

    title: str
    summary: str
    x: Axis
    y: Axis
    curves: Sequence[Curve] = ()
    points: Sequence[Point] = ()
    uprights: Sequence[float] = ()

    @property
    def left_margin(self) -> int:
        """Approximate width of the vertical axis's texts, in pixels."""
        longest = max((len(text) for _, text in self.y.tick_positions()), default=0)
        return round(30 + 6.4 * min(longest, 24))


class Choice(NamedTuple):
    """The panels of one setting that a reader can select."""

    label: str
    panels: tuple[Panel, ...]


class Figures(NamedTuple):
    """A chart with choices to select; at first, the first choice is drawn."""

    ident: str
    caption: str
    choices: tuple[Choice, ...]
    keys: tuple[LegendEntry, ...]
    shape: str


def ticks(low: float, high: float, count: int, form: str = "") -> tuple[tuple[float, str], ...]:
    """Return about ``count`` ticks between two ends with texts; form "%" is for fractions."""
    step = tick_step(high - low, count)
    scale = 100 if form == "%" else 1
    decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [multiple * step for multiple in range(first, last + 1)]
    # Adding zero turns a negative zero into a positive one.
    texts = [f"{round(value * scale, decimals) + 0.0:,.{decimals}f}{form}" for value in values]
    return tuple(zip(values, (text.replace("-", "−") for text in texts), strict=True))


def tick_step(span: float, count: int) -> float:
    """Return a tick distance of 1, 2 or 5 times a power of ten, for about ``count`` ticks."""
    rough = abs(span) / max(count, 1) or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * size for size in (1, 2, 5, 10) if unit * size >= rough * (1 - 1e-9))


def css_percent(fraction: float) -> str:
    """Format a fraction in per cent for an SVG attribute."""
    if not math.isfinite(fraction):
        raise ValueError(f"a position in a chart must be finite, got {fraction!r}")
    return f"{100 * fraction:.2f}".rstrip("0").rstrip(".")
