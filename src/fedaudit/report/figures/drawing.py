"""The parts that figures are made of: styles, panels, choices between settings, lines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from markupsafe import Markup

from fedaudit.report.grid import shortened
from fedaudit.report.words import ORIGINS, defense_name
from fedaudit.results.record import Curve, Histogram, Trajectory

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A7A")
"""Okabe and Ito's palette; its black and yellow give way to a grey that reads on any ground."""

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

RESERVED = "cross"
"""The marker of no defense, which no series has."""


class Style(NamedTuple):
    """Colour, dash and marker of a series."""

    color: str
    dash: str
    symbol: str


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
    """The style of the series at a position; repeats after 210 series."""
    dashes, symbols = list(DASHES), [mark for mark in MARKS if mark != RESERVED]
    return Style(
        OKABE_ITO[position % len(OKABE_ITO)],
        dashes[position % len(dashes)],
        symbols[position % len(symbols)],
    )


ORIGIN_STYLES = {
    "member": Style(OKABE_ITO[1], "solid", "circle"),
    "other_client": Style(OKABE_ITO[0], "dash", "square"),
    "unseen": Style(OKABE_ITO[2], "dot", "diamond"),
}


def swatch(look: Style, *, marked: bool = True, lined: bool = True) -> Markup:
    """A legend's drawing of a style. Holds fixed strings only, so it is safe as markup."""
    mark = MARKS[look.symbol] if marked else ""
    line = (
        f'<path d="M0 7h34" stroke="{look.color}" stroke-width="2" '
        f'stroke-dasharray="{DASHES[look.dash]}"/>'
    )
    dot = f'<g fill="{look.color}" transform="translate(17 7)">{mark}</g>'
    return Markup(
        '<svg class="swatch" width="34" height="14" viewBox="0 0 34 14" aria-hidden="true">'
        f"{line if lined else ''}{dot}</svg>"
    )


def see_through(color: str, opacity: float) -> str:
    """A colour as rgba with an opacity, for bands and areas."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


Spec = dict[str, object]


Item = TypeVar("Item")


class Panel(NamedTuple):
    """One set of axes; ``summary`` says in words what it shows."""

    title: str
    summary: str
    spec: Spec


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


@runtime_checkable
class WithLimits(Protocol):
    """A figure that may have limits."""

    @property
    def value(self) -> float | None:
        """The figure."""
        ...

    @property
    def low(self) -> float | None:
        """Its lower limit."""
        ...

    @property
    def high(self) -> float | None:
        """Its upper limit."""
        ...


def error_bars(
    figures: Sequence[WithLimits], *, color: str, thickness: float = 1.2, width: int = 3
) -> Spec:
    """Bars from each figure to its limits; none where it has no limits."""

    def reach(far: float | None, near: float | None) -> float:
        return 0.0 if far is None or near is None else max(far - near, 0.0)

    return {
        "type": "data",
        "symmetric": False,
        "array": [reach(one.high, one.value) for one in figures],
        "arrayminus": [reach(one.value, one.low) for one in figures],
        "color": color,
        "thickness": thickness,
        "width": width,
    }


def series_name(text: str) -> str:
    """The name of a series, as its traces and its key in the legend carry it."""
    return shortened(text, 40)


def choices_of(
    items: Sequence[Item],
    setting: Callable[[Item], tuple[str, ...]],
    panels: Callable[[list[Item]], tuple[Panel, ...]],
) -> tuple[Choice, ...]:
    """One choice a setting, labelled by what differs between settings."""
    inside: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        inside.setdefault(setting(item), []).append(item)
    varies = [len(set(values)) > 1 for values in zip(*inside, strict=True)]
    return tuple(
        Choice(
            " · ".join(part for part, differs in zip(key, varies, strict=True) if differs),
            panels(found),
        )
        for key, found in inside.items()
    )


def series_line(
    x: Sequence[int | float],
    y: Sequence[int | float | None],
    look: Style,
    name: str,
    *,
    shape: str = "linear",
    marks: int = 0,
    hover: str = "",
) -> Spec:
    """A trace in a style.

    Args:
        x: Places on the horizontal axis.
        y: Values, one a place; None leaves a gap.
        look: Its style.
        name: The series as a reader sees it.
        shape: "linear", or "hv" for steps.
        marks: How many markers it carries at most.
        hover: The text of a point under the pointer, beside the name.
    """
    trace: Spec = {
        "type": "scatter",
        "name": series_name(name),
        "x": list(x),
        "y": list(y),
        "mode": "lines+markers" if marks else "lines",
        "line": {"color": look.color, "dash": look.dash, "width": 2, "shape": shape},
    }
    if marks:
        trace["marker"] = {"symbol": look.symbol, "size": 7, "maxdisplayed": marks}
    if hover:
        trace["hovertemplate"] = hover_text(hover, name)
    return trace


def hover_text(text: str, name: str) -> str:
    """The text of a point under the pointer, and the name of the series beside it."""
    return f"{text}<extra>{series_name(name)}</extra>"


def origin_line(
    x: Sequence[int | float],
    y: Sequence[int | float | None],
    origin: str,
    *,
    hover: str,
    shape: str = "linear",
    marks: int = 0,
) -> Spec:
    """A trace of the samples of one origin."""
    look, name = ORIGIN_STYLES[origin], ORIGINS[origin]
    return series_line(x, y, look, name, shape=shape, marks=marks, hover=hover)


def spec_of(traces: Sequence[Spec], **layout: object) -> Spec:
    """The traces of a panel and its axes, as plain values in plotly's notation.

    Traces are scatter (lines, markers, fills, error bars), bar and heatmap; :mod:`svg` draws
    them, and refuses what it does not know.
    """
    return {"data": list(traces), "layout": layout}


def upright(at: float) -> Spec:
    """A dotted line across the panel at a place on the horizontal axis."""
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": "#7A7A7A", "width": 1, "dash": "dot"},
    }


def run_setting(part: Curve | Trajectory | Histogram) -> tuple[str, ...]:
    """Setting that tells one run's panels from another's."""
    return (shortened(defense_name(part.defense)), f"client {part.target}", f"seed {part.seed}")


def origin_keys(origins: Sequence[str]) -> tuple[LegendEntry, ...]:
    """The legend of origins, in a report's order."""
    return tuple(
        LegendEntry(ORIGINS[origin], series_name(ORIGINS[origin]), swatch(look))
        for origin, look in ORIGIN_STYLES.items()
        if origin in origins
    )
