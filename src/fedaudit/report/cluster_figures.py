"""Figures of clustered learning: who went where, risk against thresholds, loss."""

from fedaudit.report.cluster_drawing import each, rounds_axis, setting
from fedaudit.report.cluster_migration import migration_panels
from fedaudit.report.cluster_risk_figures import (
    risk_figure,
    thresholds_figure,
    violations_figure,
)
from fedaudit.report.clusters import Run, shown_models
from fedaudit.report.drawing import (
    Figures,
    Panel,
    choices_of,
    plotly_text,
    series_line,
    spec_of,
)
from fedaudit.report.reading import Record
from fedaudit.report.styles import Key, swatch


def cluster_figures(record: Record) -> list[Figures]:
    """The figures that the record has data for."""
    if not record.clusters:
        return []
    found = (
        migration_figure(record),
        risk_figure(record),
        thresholds_figure(record),
        violations_figure(record),
        loss_figure(record),
    )
    return [figure for figure in found if figure is not None]


def migration_figure(record: Record) -> Figures:
    """For each group, its clients by model after every measured round."""
    late = any(run.joined for run in record.clusters)
    return Figures(
        "clusters-migration",
        "Each bar holds the clients of one group after a measured round, by the model that they "
        "last trained, stacked from the bottom in the legend’s order. Pale bands are clients that "
        "keep their model until the next bar, strong ones clients that change to the model whose "
        "colour they have. "
        + ("Clients that have not taken part yet are in no bar. " if late else "")
        + "Groups have scales of their own. The table of rounds has the numbers.",
        choices_of(record.clusters, setting, each(migration_panels)),
        _model_keys(record),
        shape="flow",
    )


def loss_figure(record: Record) -> Figures | None:
    """Convergence: each model's loss on test samples like its clients', round by round."""
    runs = [
        run
        for run in record.clusters
        if sum(any(m.loss is not None for m in one.models) for one in run.rounds) > 1
    ]
    if not runs:
        return None

    def panels(inside: list[Run]) -> tuple[Panel, ...]:
        (run,) = inside[:1]
        rounds = [one.round for one in run.rounds]
        traces = [
            series_line(
                rounds,
                [one.models[shown.model].loss for one in run.rounds],
                shown.look,
                shown.label,
                marks=12,
                hover="%{y:.3f} after round %{x}",
            )
            for shown in shown_models(run)
        ]
        axis = {"title": {"text": "Loss"}, "rangemode": "tozero", "nticks": 6}
        spec = spec_of(traces, xaxis=rounds_axis(run), yaxis=axis)
        return (Panel("", "Loss of each model by round.", spec),)

    return Figures(
        "clusters-loss",
        "Convergence: mean loss of each model on test samples like its clients’, after each "
        "measured round. A gap is a round in which nobody trained it.",
        choices_of(runs, setting, panels),
        _model_keys(record),
    )


def _model_keys(record: Record) -> tuple[Key, ...]:
    """The models of all runs: one group's model looks the same in each."""
    looks = {shown.label: shown.look for run in record.clusters for shown in shown_models(run)}
    return tuple(Key(label, plotly_text(label), swatch(look)) for label, look in looks.items())
