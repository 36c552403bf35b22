"""The figure of signals over rounds, by origin of the samples."""

from collections.abc import Sequence

from fedaudit.report.choosing import distinct
from fedaudit.report.drawing import (
    Figures,
    Panel,
    Spec,
    choices_of,
    origin_keys,
    plotly_text,
    run_setting,
    series_line,
    spec_of,
)
from fedaudit.report.grid import shortened
from fedaudit.report.styles import ORIGIN_NAMES, ORIGIN_STYLES, Style, see_through
from fedaudit.report.words import capital, signal_name
from fedaudit.study.record import Trajectory


def trajectory_figure(trajectories: Sequence[Trajectory]) -> Figures | None:
    """A signal at the target over rounds, by origin: mean and 10-90% band."""
    if not trajectories:
        return None

    def panels(inside: list[Trajectory]) -> tuple[Panel, ...]:
        signals = distinct(part.signal for part in inside)
        return tuple(
            _trajectory_panel([part for part in inside if part.signal == signal])
            for signal in signals
        )

    return Figures(
        "trajectories",
        "What the adversary measures on the target's uploads, round by round: the mean over "
        "samples of each origin, with the range that holds 80% of them (10th to 90th "
        "percentile). Where bands part, samples can be told apart. Every signal is turned so that "
        "larger stands for members: a loss is drawn as minus the loss.",
        choices_of(trajectories, run_setting, panels),
        origin_keys(distinct(part.origin for part in trajectories)),
    )


def _trajectory_panel(parts: list[Trajectory]) -> Panel:
    traces: list[Spec] = []
    for part in parts:
        look = ORIGIN_STYLES[part.origin]
        traces += _band(part, look)
    for part in parts:
        look = ORIGIN_STYLES[part.origin]
        name = ORIGIN_NAMES[part.origin]
        line = series_line(part.rounds, part.mean, look, name, marks=8)
        line["hovertemplate"] = "%{y:.4g} in round %{x}<extra>" + name + "</extra>"
        traces.append(line)
    signal = parts[0].signal
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Round"}, "tickformat": "d", "nticks": 8},
        yaxis={"title": {"text": plotly_text(capital(signal_name(signal)))}, "nticks": 6},
    )
    return Panel(
        shortened(signal),
        f"{capital(shortened(signal_name(signal)))} over rounds, by origin of the samples.",
        spec,
    )


def _band(part: Trajectory, look: Style) -> list[Spec]:
    edge: Spec = {
        "type": "scatter",
        "name": plotly_text(ORIGIN_NAMES[part.origin]),
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    fill = {"fill": "tonexty", "fillcolor": see_through(look.color, 0.16)}
    lower = edge | {"x": part.rounds, "y": part.low}
    return [lower, edge | fill | {"x": part.rounds, "y": part.high}]
