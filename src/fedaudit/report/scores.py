"""The figure of scores: how each attack scores samples of each origin."""

from collections.abc import Sequence

from fedaudit.report.drawing import (
    Figures,
    Panel,
    Spec,
    choices_of,
    origin_keys,
    origin_line,
    plotly_text,
    run_setting,
    spec_of,
)
from fedaudit.report.grid import shortened
from fedaudit.report.names import ORIGINS, signal_name
from fedaudit.report.reading import AttackRow, Histogram
from fedaudit.report.styles import ORIGIN_STYLES, see_through
from fedaudit.report.words import capital


def histogram_figure(
    histograms: Sequence[Histogram], attacks: Sequence[AttackRow] = ()
) -> Figures | None:
    """Scores by origin, a panel an attack, as the share of that origin's samples in each bin."""
    if not histograms:
        return None
    units = {attack.name: _unit(attack) for attack in attacks}

    def panels(inside: list[Histogram]) -> tuple[Panel, ...]:
        return tuple(_histogram_panel(part, units.get(part.attack, "")) for part in inside)

    return Figures(
        "histograms",
        "How each attack scores samples of each origin, as the share of that origin's samples "
        "in each bin. Larger scores stand for members; what a score is stands below its axis. "
        "Scores beyond an axis are counted in its end bins.",
        choices_of(histograms, run_setting, panels),
        origin_keys(list(ORIGINS)),
    )


def _unit(attack: AttackRow) -> str:
    """What an attack's scores are, where that is one signal of the target over rounds."""
    if attack.over_clients != "target only" or len(attack.signals) != 1:
        return ""
    signal = signal_name(attack.signals[0])
    ways = {"last": f"{signal}, last round", "mean": f"mean of {signal}"}
    ways["slope"] = f"slope of {signal}"
    return ways.get(attack.over_rounds, "")


def _histogram_panel(part: Histogram, unit: str) -> Panel:
    counts = {"member": part.member, "other_client": part.other_client, "unseen": part.unseen}
    traces = [
        _outline(part.edges, amounts, origin) for origin, amounts in counts.items() if sum(amounts)
    ]
    spec = spec_of(
        traces,
        xaxis={"title": {"text": plotly_text(capital(unit or "score"))}, "nticks": 6},
        yaxis={"title": {"text": "Share"}, "tickformat": ".0%", "rangemode": "tozero", "nticks": 5},
    )
    name = shortened(part.attack)
    return Panel(name, f"Scores that {name} gives, by origin of the samples.", spec)


def _outline(edges: list[float], amounts: list[int], origin: str) -> Spec:
    """Bins as one stepped outline that starts and ends on the axis."""
    total = sum(amounts)
    shares = [amount / total for amount in amounts]
    x = [edges[0], *edges]
    y = [0.0, *shares, 0.0]
    line = origin_line(x, y, origin, hover="%{y:.1%} from %{x:.3g} on", shape="hv")
    color = see_through(ORIGIN_STYLES[origin].color, 0.12)
    return line | {"fill": "tozeroy", "fillcolor": color}
