"""How a neuron's values lie for its target and for others, drawn."""

from collections.abc import Sequence

from fedaudit.report.drawing import (
    Choice,
    Figures,
    Panel,
    Spec,
    series_line,
    spec_of,
    upright,
)
from fedaudit.report.game_points import (
    shown_points,
)
from fedaudit.report.grid import shortened
from fedaudit.report.reading import GameRecord, Spread
from fedaudit.report.styles import OKABE_ITO, Key, Style, see_through, swatch
from fedaudit.report.words import percent

_TARGET = Style(OKABE_ITO[1], "solid", "circle")
_OTHERS = Style(OKABE_ITO[0], "dash", "square")


def spread_figure(record: GameRecord) -> Figures | None:
    """How the neuron's values are spread for the target and for others; a choice a point."""
    shown = [one for one in shown_points(record.points) if one.point.spread is not None]
    choices = tuple(
        Choice(shortened(one.name, 80), (_spread_panel(shortened(one.name), one.point.spread),))
        for one in shown
        if one.point.spread is not None
    )
    if not choices:
        return None
    return Figures(
        "games-spread",
        "Values of the first target’s neuron on fresh randomised copies of the target and on other "
        "records, as a share of each. The neuron fires right of the dotted line at zero. The less "
        "the two overlap there, the surer the server; one record of the others right of it is "
        "enough to spoil a batch.",
        choices,
        (
            Key("The target", "The target", swatch(_TARGET, marked=False)),
            Key("Other records", "Other records", swatch(_OTHERS, marked=False)),
        ),
    )


def _spread_panel(name: str, spread: Spread) -> Panel:
    traces = [
        outline(spread.edges, amounts, look, said)
        for amounts, look, said in (
            (spread.of_others, _OTHERS, "Other records"),
            (spread.of_target, _TARGET, "The target"),
        )
        if sum(amounts)
    ]
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Value of the neuron"}, "nticks": 7},
        yaxis={"title": {"text": "Share"}, "tickformat": ".0%", "rangemode": "tozero", "nticks": 5},
        shapes=[upright(0.0)],
    )
    fired = [
        percent(_right_of_zero(spread.edges, amounts))
        for amounts in (spread.of_target, spread.of_others)
    ]
    summary = (
        f"Values of the neuron for {name}: about {fired[0]} of the target’s copies and {fired[1]} "
        "of other records above zero."
    )
    return Panel(name, summary, spec)


def outline(edges: Sequence[float], amounts: Sequence[int], look: Style, name: str) -> Spec:
    """Bins as one stepped outline that starts and ends on the axis."""
    shares = [amount / sum(amounts) for amount in amounts]
    x, y = [edges[0], *edges], [0.0, *shares, 0.0]
    line = series_line(x, y, look, name, shape="hv", hover="%{y:.1%} from %{x:.3g} on")
    return line | {"fill": "tozeroy", "fillcolor": see_through(look.color, 0.14)}


def _right_of_zero(edges: Sequence[float], amounts: Sequence[int]) -> float:
    above = sum(a for left, a in zip(edges, amounts, strict=False) if left >= 0)
    return above / sum(amounts) if sum(amounts) else 0.0
