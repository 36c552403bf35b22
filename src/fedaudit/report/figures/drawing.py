"""The parts that figures are made of: styles, panels with their axes and series, choices, legends.

A figure is data until :mod:`svg` draws it. Text under the pointer has values in its places, as in
"%{y:.1%} in round %{x}".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from markupsafe import Markup

from fedaudit.report.evidence import grouped
from fedaudit.report.grid import shortened
from fedaudit.report.words import client_name, defense_name
from fedaudit.results.record import Curve

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
"""The marker of no defense, which no series has."""
GREY = "#7A7A7A"
"""Colour of guessing, baselines and limits."""


class Style(NamedTuple):
    """Colour, dash and marker of a series."""

    color: str
    dash: str = "solid"
    symbol: str = "circle"


class LegendEntry(NamedTuple):
    """A line of a legend.

    Attributes:
        name: The series as a reader sees it.
        series: The name that its traces carry; empty where it cannot be hidden.
        swatch: Its style as a small drawing (SVG), made of fixed strings only.
    """

    name: str
    series: str
    swatch: Markup


def style(position: int) -> Style:
    """Return the style of the series at a position; repeats after 210 series."""
    kinds = (OKABE_ITO, list(DASHES), [mark for mark in MARKS if mark != RESERVED])
    return Style(*(kind[position % len(kind)] for kind in kinds))


def swatch(look: Style, *, marked: bool = True, lined: bool = True) -> Markup:
    """Return a legend's drawing of a style, of fixed strings only, so that it is safe as markup."""
    wide = 34 if lined else 14
    line = f'<path d="M0 7h34" stroke="{look.color}" stroke-width="2" '
    line = f'{line}stroke-dasharray="{DASHES[look.dash]}"/>' if lined else ""
    ink = f'fill="{look.color}"'
    if look.symbol.endswith("-open"):
        ink = f'fill="none" stroke="{look.color}" stroke-width="2"'
    mark = MARKS[look.symbol.removesuffix("-open")] if marked else ""
    return Markup(
        f'<svg class="swatch" width="{wide}" height="14" viewBox="0 0 {wide} 14" '
        f'aria-hidden="true">{line}<g {ink} transform="translate({wide // 2} 7)">{mark}</g></svg>'
    )


def legend(
    looks: Mapping[str, Style],
    *,
    marked: bool = True,
    lined: bool = True,
    hides: bool = True,
    series: str = "",
    limit: int = 80,
) -> tuple[LegendEntry, ...]:
    """Return lines of a legend.

    Args:
        looks: Styles of series by their names.
        marked: Whether swatches have a mark.
        lined: Whether they have a line.
        hides: Whether a click on a line hides its series.
        series: Name of the series, if the legend says more than that.
        limit: Characters of a name at most.
    """
    entries = []
    for name, look in looks.items():
        hidden = series_name(series or name) if hides else ""
        drawing = swatch(look, marked=marked, lined=lined)
        entries.append(LegendEntry(shortened(name, limit), hidden, drawing))
    return tuple(entries)


Item = TypeVar("Item")
Number = int | float
Place = Number | str
"""A number, or a name of an axis that has names."""


@runtime_checkable
class Limits(Protocol):
    """An interval; a limit may be missing."""

    @property
    def low(self) -> float | None:
        """The lower limit."""
        ...

    @property
    def high(self) -> float | None:
        """The upper limit."""
        ...


@dataclass(frozen=True)
class Scale:
    """An axis of a panel.

    Attributes:
        title: What it measures.
        form: "%" for shares, "d" for whole numbers.
        ends: Where it starts and ends, of a logarithmic one in exponents of ten, of one with names
            in their places; None for what the series reach.
        count: How many ticks there are, about; None for all names.
        ticks: Values at which it is marked, with their texts; chosen where there are none.
        step: From one tick to the next; chosen if None.
        log: Whether it is logarithmic.
        from_zero: Whether it starts at zero.
        names: Of an axis of categories.
        grid: Whether lines cross the panel at its ticks.
    """

    title: str = ""
    form: Literal["", "%", "d"] = ""
    ends: tuple[Number, Number] | None = None
    count: int | None = None
    ticks: Mapping[Number, str] | None = None
    step: Number | None = None
    log: bool = False
    from_zero: bool = False
    names: Sequence[str] = ()
    grid: bool = True


def round_scale(rounds: Sequence[int] = (), *, named: int = 6) -> Scale:
    """An axis of rounds; few are named one by one, since marks between them would mean nothing."""
    shown = sorted(set(rounds))
    if shown and len(shown) <= named:
        return Scale("Round", "d", ticks={at: f"{at:,}" for at in shown})
    return Scale("Round", "d", count=8)


@dataclass(frozen=True)
class Series:
    """Values at places, as a line, as marks or both.

    Attributes:
        name: As a reader sees it; a click on this name in the legend hides it.
        x: Places on the horizontal axis.
        y: Values, one a place; None leaves a gap.
        look: Its style.
        hover: The text of a point under the pointer; without one it says nothing.
        beside: What stands below that text; the name, if None.
        joined: Whether a line joins the values.
        steps: Whether that line goes across first and then up.
        marks: How many marks a line carries at most; what is not joined has all.
        size: Of the marks; 0 for points that show under the pointer alone.
        looks: Styles of single marks, where they differ.
        texts: What "%{text}" stands for, one a place.
        names: Words beside marks, one a place; what would cover another is left out.
        limits: Intervals of the values, one a place.
        limits_across: Intervals of the places, likewise.
        opacity: Of everything.
    """

    name: str
    x: Sequence[Place]
    y: Sequence[Place | None]
    look: Style
    hover: str = ""
    beside: str | None = None
    joined: bool = True
    steps: bool = False
    marks: int = 0
    size: Number = 7
    looks: Sequence[Style] = ()
    texts: Sequence[str] = ()
    names: Sequence[str] = ()
    limits: Sequence[Limits] = ()
    limits_across: Sequence[Limits] = ()
    opacity: float = 1.0

    def reach(self, across: bool) -> Iterator[Number]:
        """Every value that an axis has to hold."""
        yield from (one for one in (self.x if across else self.y) if isinstance(one, float | int))
        for one in self.limits_across if across else self.limits:
            yield from (limit for limit in (one.low, one.high) if limit is not None)


@dataclass(frozen=True)
class Band:
    """An area between two lines, in parts where either has a gap."""

    name: str
    x: Sequence[Number]
    low: Sequence[Number | None]
    high: Sequence[Number | None]
    color: str
    opacity: float

    def reach(self, across: bool) -> Iterator[Number]:
        """Every value that an axis has to hold."""
        values = self.x if across else (*self.low, *self.high)
        yield from (value for value in values if value is not None)


@dataclass(frozen=True)
class Heat:
    """Fields of a map, darker for larger shares.

    Attributes:
        names: Of rows and columns.
        shares: Row by row.
        counts: What each is a share of, under the pointer.
        written: Whether counts stand in the fields as well.
        apart: Whether lines part the fields.
        hover: The text of a field under the pointer.
    """

    names: Sequence[str]
    shares: Sequence[Sequence[float]]
    counts: Sequence[Sequence[str]]
    written: bool
    apart: bool
    hover: str

    def reach(self, across: bool) -> Iterator[Number]:
        """Every value that an axis has to hold: its axes have names."""
        yield from ()


Drawn = Series | Band | Heat


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: Above it.
        summary: What it shows, in words.
        x: The horizontal axis.
        y: The vertical one.
        series: What it shows, the first below the others.
        uprights: Values of the horizontal axis at which a dotted line crosses it.
        levels: The same of the vertical one.
        height: In pixels, if it has its own.
    """

    title: str
    summary: str
    x: Scale
    y: Scale
    series: Sequence[Drawn]
    uprights: Sequence[Number] = ()
    levels: Sequence[Number] = ()
    height: int | None = None


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


def series_name(text: str) -> str:
    """The name of a series, as its drawing and its key in the legend carry it."""
    return shortened(text, 40)


def choices_of(
    items: Sequence[Item],
    setting: Callable[[Item], tuple[str, ...]],
    panels: Callable[[list[Item]], Sequence[Panel]],
) -> tuple[Choice, ...]:
    """One choice a setting, labelled by what differs between settings."""
    inside = grouped(items, setting)
    varies = [len(set(values)) > 1 for values in zip(*inside, strict=True)]
    return tuple(
        Choice(
            " · ".join(part for part, differs in zip(key, varies, strict=True) if differs),
            tuple(panels(found)),
        )
        for key, found in inside.items()
    )


def level(ends: Sequence[Number], value: float, look: Style, name: str, hover: str = "") -> Series:
    """A line across at one value: guessing, or what a baseline gives."""
    return Series(name, [ends[0], ends[-1]], [value] * 2, look, hover)


def run_setting(part: Curve) -> tuple[str, ...]:
    """Return the setting that distinguishes one run's panels from another's."""
    return (shortened(defense_name(part.defense)), client_name(part.target), f"seed {part.seed}")
