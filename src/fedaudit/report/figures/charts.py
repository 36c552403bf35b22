"""Charts as data, and as SVG that adapts to the width of the page without script or library.

Text is HTML at its own size, outside of the drawing. Lines lie in a box of 1,000 by 1,000 that is
stretched to the panel, with a constant width. Marks lie at percentages of the panel. One drawing
thus serves a wide screen, a phone and paper.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.report.grid import shortened
from fedaudit.results.estimate import Interval

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#C2649A", "#B97800", "#2F93CC", "#7A7A7A")
"""Okabe and Ito's hues, each with a contrast of at least 3:1 on the light and the dark card."""

DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4"}
MARKS = {
    "circle": '<circle r="4"/>',
    "square": '<path d="M-3.6-3.6h7.2v7.2h-7.2z"/>',
    "diamond": '<path d="M0-5l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M0-4.6l4.8 8.2h-9.6z"/>',
    "triangle-down": '<path d="M0 4.6l4.8-8.2h-9.6z"/>',
    "star": '<path d="M0-5.4l1.5 3.4 3.7.4-2.8 2.5.8 3.6-3.2-1.9-3.2 1.9.8-3.6-2.8-2.5 3.7-.4z"/>',
    "cross": '<path d="M-1.6-4.4h3.2v2.8h2.8v3.2h-2.8v2.8h-3.2v-2.8h-2.8v-3.2h2.8z"/>',
}
"""Marks about the origin, eight units wide. They are fixed strings and thus safe as markup."""

MUTED = "#8A939E"
"""Colour of lines beyond the few that colours can distinguish."""
RESERVED = "cross"
"""Marker of no defense, which nothing else has."""
GREY = "#7A7A7A"
"""Colour of guessing, baselines and limits."""

_SIDE = 1000
_LETTER = 6.4
"""Approximate width of a letter of a tick's text, in pixels."""


class Style(NamedTuple):
    """Colour, dash of a line and symbol of a mark; a symbol that ends in "-open" is hollow."""

    color: str
    dash: str = ""
    symbol: str = ""

    @property
    def shape(self) -> Markup:
        """The mark as SVG; empty without a symbol."""
        symbol = self.symbol.removesuffix("-open")
        if symbol and symbol not in MARKS:
            raise ValueError(f"no mark is called {self.symbol!r}; known: {', '.join(MARKS)}")
        ink = 'fill="{}"' if symbol == self.symbol else 'fill="var(--card)" stroke="{}"'
        form = Markup("<g {} {}>{}</g>")
        width = Markup('stroke-width="2"' * (symbol != self.symbol))
        ink = Markup(ink).format(self.color)
        return form.format(ink, width, Markup(MARKS[symbol])) if symbol else Markup("")


def style(position: int) -> Style:
    """Return the style at a position; no two of the first 210 have all parts in common."""
    kinds = (OKABE_ITO, list(DASHES), [mark for mark in MARKS if mark != RESERVED])
    return Style(*(kind[position % len(kind)] for kind in kinds))


class LegendEntry(NamedTuple):
    """A line of a legend: a name, and its style as a small drawing."""

    name: str
    swatch: Markup


def legend(looks: Mapping[str, Style], limit: int = 80) -> tuple[LegendEntry, ...]:
    """Return a legend of styles by name; names are cut to a number of characters."""
    return tuple(LegendEntry(shortened(name, limit), _swatch(look)) for name, look in looks.items())


def _swatch(look: Style) -> Markup:
    width, line = 34 if look.dash else 14, Markup("")
    if look.dash:
        form = '<path d="M0 7h34" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>'
        line = Markup(form).format(look.color, DASHES[look.dash])
    return Markup(
        '<svg class="swatch" width="{0}" height="14" viewBox="0 0 {0} 14" aria-hidden="true">'
        '{1}<g transform="translate({2} 7)">{3}</g></svg>'
    ).format(width, line, width // 2, look.shape)


class Axis(NamedTuple):
    """An axis with its ends, of a logarithmic one as exponents of ten, and its ticks with texts."""

    title: str
    low: float
    high: float
    ticks: Mapping[float, str]
    log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value as a share of the axis."""
        place = math.log10(max(value, 1e-300)) if self.log else value
        return (place - self.low) / ((self.high - self.low) or 1.0)

    def places(self) -> list[tuple[float, str]]:
        """Return the ticks between the ends as shares of the axis, with their texts."""
        places = [(self.at(value), text) for value, text in self.ticks.items()]
        return [(place, text) for place, text in places if -1e-9 <= place <= 1 + 1e-9]


class Curve(NamedTuple):
    """A line through points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: Style


class Point(NamedTuple):
    """A mark with its intervals on both axes and its text under the pointer."""

    x: float
    y: float
    look: Style
    text: str
    x_limits: Interval | None = None
    y_limits: Interval | None = None


class Panel(NamedTuple):
    """One set of axes with its lines and marks, the first below the others.

    Attributes:
        title: Title above it.
        summary: What it shows, for readers who cannot see it.
        x: The horizontal axis.
        y: The vertical axis.
        curves: Lines.
        points: Marks.
        uprights: Values of the horizontal axis at which a dotted line crosses it.
    """

    title: str
    summary: str
    x: Axis
    y: Axis
    curves: Sequence[Curve] = ()
    points: Sequence[Point] = ()
    uprights: Sequence[float] = ()


class Choice(NamedTuple):
    """The panels of one setting."""

    label: str
    panels: tuple[Panel, ...]


class Figures(NamedTuple):
    """A figure of the report: its choices, of which the first is drawn at the start.

    Attributes:
        ident: Its name in the document.
        caption: What it shows and how to read it.
        choices: At least one.
        keys: The legend, outside of the panels so that it never covers a curve.
        shape: "square" for ROC curves, "tall" for others.
    """

    ident: str
    caption: str
    choices: tuple[Choice, ...]
    keys: tuple[LegendEntry, ...]
    shape: str


def drawn(panel: Panel) -> Markup:
    """Return a panel as HTML: its axes' text, and the drawing between them."""
    x, y = panel.x, panel.y
    across, up = x.places(), [(1 - share, text) for share, text in y.places()]
    longest = max((len(text) for _, text in up), default=0)
    body = [
        *(upright("grid", share) for share, _ in across),
        *(_level("grid", share) for share, _ in up),
        _level("axis", 1.0),
        *(upright("mark", x.at(value)) for value in panel.uprights),
        *(_line(curve, x, y) for curve in panel.curves),
        *(_cross(point, x, y) for point in panel.points),
    ]
    return Markup(
        '<div class="plot" role="img" aria-label="{}" style="--l:{}px;--b:40px">'
        '<div class="area"><svg width="100%" height="100%" overflow="visible">{}</svg>{}</div>'
        '<span class="xt">{}</span><span class="yt">{}</span></div>'
    ).format(
        panel.summary,
        round(30 + _LETTER * min(longest, 24)),
        Markup("").join(body),
        tick_texts(across) + tick_texts(up, across=False),
        x.title,
        y.title,
    )


def ticks(low: float, high: float, count: int, form: str = "") -> dict[float, str]:
    """Return about a number of ticks between two ends, with their texts; "%" is for shares."""
    step = tick_step(high - low, count)
    scale = 100 if form == "%" else 1
    decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Adding zero turns a negative zero into a positive one.
    return {
        place * step: f"{round(place * step * scale, decimals) + 0.0:,.{decimals}f}{form}".replace(
            "-", "−"
        )
        for place in range(first, last + 1)
    }


def tick_step(span: float, count: int) -> float:
    """Return a distance between ticks of 1, 2 or 5 times a power of ten that gives few ticks."""
    rough = abs(span) / max(count, 1) or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * size for size in (1, 2, 5, 10) if unit * size >= rough * (1 - 1e-9))


def tick_texts(places: Iterable[tuple[float, str]], *, across: bool = True) -> Markup:
    """Return the texts of an axis at shares of it, from the left or from the top."""
    kind, side = ("tx", "left") if across else ("ty", "top")
    form = Markup('<span class="{}" style="{}:{}%">{}</span>')
    return Markup("").join(form.format(kind, side, _percent(share), text) for share, text in places)


def upright(kind: str, share: float) -> Markup:
    """Return a line from top to bottom at a share of the width."""
    form = '<line class="{0}" x1="{1}%" x2="{1}%" y1="0" y2="100%"/>'
    return Markup(form).format(kind, _percent(share))


def _level(kind: str, share: float) -> Markup:
    form = '<line class="{0}" x1="0" x2="100%" y1="{1}%" y2="{1}%"/>'
    return Markup(form).format(kind, _percent(share))


def _cross(point: Point, x: Axis, y: Axis) -> Markup:
    across, up = x.at(point.x), 1 - y.at(point.y)
    (left, right), (low, high) = (
        [axis.at(value if end is None else end) for end in (limits.low, limits.high)]
        for axis, value, limits in (
            (x, point.x, point.x_limits or Interval()),
            (y, point.y, point.y_limits or Interval()),
        )
    )
    segments = [(across, 1 - high, across, 1 - low), (left, up, right, up)]
    return figure(point.text, segments, point.look, (across, up), 10)


def figure(
    text: str,
    segments: Iterable[tuple[float, float, float, float]],
    look: Style,
    place: tuple[float, float],
    size: float,
) -> Markup:
    """Return a mark at shares of a panel, with its text under the pointer.

    The segments are the lines of its intervals, each as the shares x1, y1, x2 and y2.
    """
    lines = [_segment(*ends, look.color) for ends in segments if ends[:2] != ends[2:]]
    form = '<svg x="{}%" y="{}%" overflow="visible"><g transform="scale({:.2g})">{}</g></svg>'
    lines.append(Markup(form).format(*map(_percent, place), size / 8, look.shape))
    return Markup("<g><title>{}</title>{}</g>").format(text, Markup("").join(lines))


def _segment(x1: float, y1: float, x2: float, y2: float, color: str) -> Markup:
    form = '<line x1="{}%" y1="{}%" x2="{}%" y2="{}%" stroke="{}" stroke-width="2.2"/>'
    return Markup(form).format(*map(_percent, (x1, y1, x2, y2)), color)


def _line(curve: Curve, x: Axis, y: Axis) -> Markup:
    spots = [
        f"{_thousandth(x.at(across))} {_thousandth(1 - y.at(up))}"
        for across, up in zip(curve.x, curve.y, strict=True)
    ]
    return Markup(
        '<svg viewBox="0 0 {0} {0}" width="100%" height="100%" preserveAspectRatio="none">'
        '<title>{1}</title><path class="line" d="M{2}" stroke="{3}" stroke-width="2" '
        'stroke-dasharray="{4}"/></svg>'
    ).format(
        _SIDE,
        shortened(curve.name),
        "L".join(spot for spot, _ in groupby(spots)),
        curve.look.color,
        DASHES[curve.look.dash],
    )


def _thousandth(share: float) -> str:
    return f"{max(-9.0, min(share, 9.0)) * _SIDE:.1f}".removesuffix(".0")


def _percent(share: float) -> str:
    if not math.isfinite(share):
        raise ValueError(f"a figure has {share!r} where a number belongs")
    return f"{100 * share:.2f}".rstrip("0").rstrip(".")
