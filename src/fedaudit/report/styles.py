"""How series are told apart: colour, dash and marker together, never colour alone."""

from typing import NamedTuple

from markupsafe import Markup

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A7A")
"""Okabe and Ito's palette; its black and yellow give way to a grey that reads on any ground."""

_DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4"}
_MARKS = {
    "circle": '<circle cx="17" cy="7" r="4"/>',
    "square": '<rect x="13.4" y="3.4" width="7.2" height="7.2"/>',
    "diamond": '<path d="M17 2l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M17 2.4l4.8 8.2h-9.6z"/>',
    "triangle-down": '<path d="M17 11.6l4.8-8.2h-9.6z"/>',
    "star": '<path d="M17 1.6l1.5 3.4 3.7.4-2.8 2.5.8 3.6-3.2-1.9-3.2 1.9.8-3.6-2.8-2.5 3.7-.4z"/>',
    "cross": '<path d="M15.4 2.6h3.2v2.8h2.8v3.2h-2.8v2.8h-3.2V8.6h-2.8V5.4h2.8z"/>',
}


RESERVED = "cross"
"""The marker of no defense, which no series has."""


class Style(NamedTuple):
    """Colour, dash and marker of a series."""

    color: str
    dash: str
    symbol: str


class Key(NamedTuple):
    """A line of a legend.

    Attributes:
        name: The series as a reader sees it.
        series: The name that its traces carry in plotly; empty where it cannot be hidden.
        swatch: Its style as a small drawing (SVG), made of fixed strings only.
    """

    name: str
    series: str
    swatch: Markup


def style(position: int) -> Style:
    """The style of the series at a position; repeats after 210 series."""
    dashes, symbols = list(_DASHES), [mark for mark in _MARKS if mark != RESERVED]
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
    mark = _MARKS[look.symbol] if marked else ""
    line = (
        f'<path d="M0 7h34" stroke="{look.color}" stroke-width="2" '
        f'stroke-dasharray="{_DASHES[look.dash]}"/>'
    )
    return Markup(
        '<svg class="swatch" width="34" height="14" viewBox="0 0 34 14" aria-hidden="true">'
        f'{line if lined else ""}<g fill="{look.color}">{mark}</g></svg>'
    )


def see_through(color: str, opacity: float) -> str:
    """A colour as rgba with an opacity, for bands and areas."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
