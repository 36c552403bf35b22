"""The parts of a figure: styles, axes, series, panels, choices and legends.

A figure is data until :mod:`svg` draws it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from markupsafe import Markup

from fedaudit.report.evidence import grouped
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
"""Marks about the middle, eight units wide; fixed strings only, so they are safe as markup."""

MUTED = "#8A939E"
"""Colour of series beyond the few that colours can distinguish."""
RESERVED = "cross"
"""The marker of no defense, which no other series has."""
GREY = "#7A7A7A"
"""Colour of guessing, baselines and limits."""


class Style(NamedTuple):
    """Colour, dash and marker of a series; an empty dash draws no line, an empty symbol no mark."""

    color: str
    dash: str = "solid"
    symbol: str = "circle"


class LegendEntry(NamedTuple):
    """A line of a legend: a name, and its style as a small drawing of fixed strings only."""

    name: str
    swatch: Markup


def style(position: int) -> Style:
    """Return the style of the series at a position; repeats after 210 series."""
    kinds = (OKABE_ITO, list(DASHES), [mark for mark in MARKS if mark != RESERVED])
    return Style(*(kind[position % len(kind)] for kind in kinds))


def legend(looks: Mapping[str, Style], limit: int = 80) -> tuple[LegendEntry, ...]:
    """Return a legend of styles by the names of their series, cut to a number of characters."""
    return tuple(LegendEntry(shortened(name, limit), _swatch(look)) for name, look in looks.items())


def _swatch(look: Style) -> Markup:
    wide = 34 if look.dash else 14
    line = f'<path d="M0 7h34" stroke="{look.color}" stroke-width="2" '
    line = f'{line}stroke-dasharray="{DASHES[look.dash]}"/>' if look.dash else ""
    ink = f'fill="{look.color}"'
    if look.symbol.endswith("-open"):
        ink = f'fill="none" stroke="{look.color}" stroke-width="2"'
    mark = MARKS[look.symbol.removesuffix("-open")] if look.symbol else ""
    return Markup(
        f'<svg class="swatch" width="{wide}" height="14" viewBox="0 0 {wide} 14" '
        f'aria-hidden="true">{line}<g {ink} transform="translate({wide // 2} 7)">{mark}</g></svg>'
    )


Item = TypeVar("Item")
Number = int | float


@dataclass(frozen=True)
class Scale:
    """An axis of a panel.

    Attributes:
        title: What it measures.
        form: "%" for shares, "d" for whole numbers.
        ends: Its start and end, of a logarithmic axis as exponents of ten; None for what the
            series reach.
        count: About how many ticks there are.
        ticks: Values at which it is marked, with their texts; chosen if None.
        log: Whether it is logarithmic, which needs ends and ticks.
    """

    title: str = ""
    form: Literal["", "%", "d"] = ""
    ends: tuple[Number, Number] | None = None
    count: int = 7
    ticks: Mapping[Number, str] | None = None
    log: bool = False


@dataclass(frozen=True)
class Series:
    """Values as a line, as marks or both.

    Attributes:
        name: What the series shows, for a reader who points at it.
        x: Places on the horizontal axis.
        y: Values, one a place; None leaves a gap.
        look: Its style.
        hover: Format of a mark's text under the pointer, such as "{y:.1%} in round {x}".
        marks: Number of marks, with their intervals, on a line at most; without a line every
            value has one.
        size: Size of the marks.
        looks: Styles of single marks, if they differ.
        texts: Values of "{text}" in the format, one a place.
        limits: Intervals of the values, one a place.
        limits_across: Intervals of the places.
    """

    name: str
    x: Sequence[Number]
    y: Sequence[Number | None]
    look: Style
    hover: str = ""
    marks: int = 12
    size: Number = 7
    looks: Sequence[Style] = ()
    texts: Sequence[str] = ()
    limits: Sequence[Interval | None] = ()
    limits_across: Sequence[Interval | None] = ()

    def reach(self, across: bool) -> Iterator[Number]:
        """Yield every value that an axis has to hold."""
        values = [*(self.x if across else self.y)]
        for interval in self.limits_across if across else self.limits:
            values += [interval.low, interval.high] if interval else []
        yield from (value for value in values if value is not None)


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: Title above it.
        summary: What it shows, in words.
        x: The horizontal axis.
        y: The vertical one.
        series: What it shows, the first below the others.
        uprights: Values of the horizontal axis at which a dotted line crosses it.
    """

    title: str
    summary: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    uprights: Sequence[Number] = ()


class Choice(NamedTuple):
    """The panels of one setting."""

    label: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Figures:
    """A figure of the report.

    Attributes:
        ident: Its name in the document.
        caption: What it shows and how to read it.
        choices: At least one; the first is drawn at the start.
        keys: The legend, outside of the panels so that it never covers a curve.
        shape: "square" for receiver operating characteristics, "wide" or "tall" for others.
    """

    ident: str
    caption: str
    choices: tuple[Choice, ...]
    keys: tuple[LegendEntry, ...] = ()
    shape: str = "wide"


def choices_of(
    items: Sequence[Item],
    setting: Callable[[Item], tuple[str, ...]],
    panels: Callable[[list[Item]], Sequence[Panel]],
) -> tuple[Choice, ...]:
    """Return a choice for each setting, labelled by what differs between settings."""
    inside = grouped(items, setting)
    varies = [len(set(values)) > 1 for values in zip(*inside, strict=True)]
    return tuple(
        Choice(
            " · ".join(part for part, differs in zip(key, varies, strict=True) if differs),
            tuple(panels(found)),
        )
        for key, found in inside.items()
    )


def level(ends: Sequence[Number], value: float, look: Style, name: str) -> Series:
    """Return a line across at one value: guessing, or what a baseline gives."""
    return Series(name, [ends[0], ends[-1]], [value] * 2, look)
