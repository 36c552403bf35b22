"""The figures of a report, by their names in the document.

A figure is a row of panels that share a legend; where the record holds several settings, each
is a choice of the same figure, drawn when the reader picks it.
"""

from collections.abc import Sequence

from fedaudit.report.choosing import distinct
from fedaudit.report.cluster_figures import cluster_figures
from fedaudit.report.dots import group_figure, target_figure
from fedaudit.report.drawing import Choice, Figures, Panel, series_line, spec_of
from fedaudit.report.grid import shortened
from fedaudit.report.names import defense_name
from fedaudit.report.reading import Record, UtilityResult
from fedaudit.report.roc import roc_figure
from fedaudit.report.scores import histogram_figure
from fedaudit.report.signals import trajectory_figure
from fedaudit.report.source_figures import source_figures
from fedaudit.report.styles import Key, style, swatch


def figures_of(record: Record) -> dict[str, Figures]:
    """Every figure that the record has data for, by its name in the document."""
    found = [
        roc_figure(record.curves),
        trajectory_figure(record.trajectories),
        histogram_figure(record.histograms, record.attacks),
        target_figure(record),
        group_figure(record.groups, "client"),
        group_figure(record.groups, "class"),
        accuracy_figure(record.utility, chosen=bool(record.clusters)),
        *source_figures(record),
        *cluster_figures(record),
    ]
    return {figure.ident: figure for figure in found if figure is not None}


def accuracy_figure(utility: Sequence[UtilityResult], *, chosen: bool = False) -> Figures | None:
    """Test accuracy by round, a curve for each defense and seed.

    Args:
        utility: Of every run.
        chosen: Whether clients choose between models, so that there is no global one.
    """
    parts = [result for result in utility if result.rounds]
    if not parts:
        return None
    defenses = distinct(result.defense for result in parts)
    looks = {defense: style(position) for position, defense in enumerate(defenses)}
    traces = []
    for result in parts:
        line = series_line(
            result.rounds,
            result.accuracy_by_round,
            looks[result.defense],
            f"{defense_name(result.defense)}, seed {result.seed}",
            marks=8,
            hover="%{y:.1%} after round %{x}",
        )
        traces.append(line)
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Round"}, "tickformat": "d", "nticks": 8},
        yaxis={"title": {"text": "Test accuracy"}, "tickformat": ".0%", "nticks": 6},
    )
    return Figures(
        "accuracy",
        f"Accuracy of {'the models that clients chose' if chosen else 'the global model'} on test "
        "samples, round by round; a line for each seed.",
        (Choice("", (Panel("", "Test accuracy by round.", spec),)),),
        tuple(Key(shortened(defense_name(name)), "", swatch(look)) for name, look in looks.items()),
    )
