"""The parts that figures are made of: panels, choices between settings, and lines for plotly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from fedaudit.report.grid import shortened
from fedaudit.report.names import ORIGINS, defense_name
from fedaudit.report.reading import Curve, Histogram, Trajectory
from fedaudit.report.styles import ORIGIN_STYLES, Key, Style, swatch

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
        keys: The legend, outside of plotly so that it never covers a curve.
        shape: "square" for receiver operating characteristics, "wide" or "tall" for others.
    """

    ident: str
    caption: str
    choices: tuple[Choice, ...]
    keys: tuple[Key, ...] = ()
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


def plotly_text(text: str) -> str:
    """Text that plotly shows as it stands: it reads some tags, entities and %{...} otherwise."""
    text = shortened(text, 40).replace("<", "‹").replace(">", "›")
    return text.replace("&", "&amp;").replace("%{", "% {").replace("$", "＄")


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
        hover: What plotly says of a point under the pointer, beside the name.
    """
    trace: Spec = {
        "type": "scatter",
        "name": plotly_text(name),
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
    """What plotly says of a point: a text of its own, and the name of the series beside it."""
    return f"{text}<extra>{plotly_text(name)}</extra>"


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
    """A figure as plotly.js reads it.

    plotly's own Python objects would check every value of every report again; that the values
    are ones it knows is what the tests see to.
    """
    common = {
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": False,
        "margin": {"l": 56, "r": 24, "t": 8, "b": 46},
    }
    return {"data": list(traces), "layout": common | layout}


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
    """What sets one run's panels apart from another's."""
    return (shortened(defense_name(part.defense)), f"client {part.target}", f"seed {part.seed}")


def origin_keys(origins: Sequence[str]) -> tuple[Key, ...]:
    """The legend of origins, in a report's order."""
    return tuple(
        Key(ORIGINS[origin], plotly_text(ORIGINS[origin]), swatch(look))
        for origin, look in ORIGIN_STYLES.items()
        if origin in origins
    )
