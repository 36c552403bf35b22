"""The figure of signals over rounds, by origin of the samples."""

from collections.abc import Sequence

from fedaudit.report.choosing import distinct
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
from fedaudit.report.names import ORIGINS, signal_name
from fedaudit.report.reading import Trajectory
from fedaudit.report.styles import ORIGIN_STYLES, see_through
from fedaudit.report.words import capital


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
        traces += _band(part)
    # Means lie above all bands.
    for part in parts:
        hover = "%{y:.4g} in round %{x}"
        traces.append(origin_line(part.rounds, part.mean, part.origin, hover=hover, marks=8))
    name = capital(signal_name(parts[0].signal))
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Round"}, "tickformat": "d", "nticks": 8},
        yaxis={"title": {"text": "Signal"}, "nticks": 6},
    )
    return Panel(name, f"{name} over rounds, by origin of the samples.", spec)


def _band(part: Trajectory) -> list[Spec]:
    edge: Spec = {
        "type": "scatter",
        "name": plotly_text(ORIGINS[part.origin]),
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    fill = {"fill": "tonexty", "fillcolor": see_through(ORIGIN_STYLES[part.origin].color, 0.16)}
    lower = edge | {"x": part.rounds, "y": part.low}
    return [lower, edge | fill | {"x": part.rounds, "y": part.high}]
