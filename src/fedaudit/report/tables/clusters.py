"""Tables of clustered learning: figures by group, and models at the end."""

from collections.abc import Iterator, Sequence

from fedaudit.report import words
from fedaudit.report.evidence import Look
from fedaudit.report.grid import Cell, Filled, Footnotes, Grid, below, named, shortened, tabled
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.report.text.clusters import (
    Clustered,
    Run,
    above,
    cluster_sentence,
    clustered_of,
    columns_of_groups,
    label_of,
    shown_models,
)
from fedaudit.results import metrics
from fedaudit.results.clusters import ModelState, choices, groups_by_size
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record

FIGURES = {
    metrics.ACCURACY: "Accuracy",
    metrics.MODEL_RISK: "Risk of the group’s model",
    metrics.MODEL_ESTIMATE: "Estimated risk of the group’s model",
    metrics.CLIENT_RISK: "Mean risk of a client",
    metrics.CLIENT_ESTIMATE: "Estimated mean risk of a client",
    metrics.ESTIMATE_ERROR: "Error of the estimate",
    metrics.VIOLATIONS: "Violations",
    metrics.SURE_VIOLATIONS: "Sure violations",
    metrics.EXPECTED_VIOLATIONS: "Violations as estimated",
    metrics.CHANCE_VIOLATIONS: "Violations by chance",
    metrics.OWN_MODEL: "Clients with the group’s model",
    metrics.MOVED: "Clients that changed model",
    metrics.MOVED_AT_THE_END: "… before the last measured round",
    metrics.AGREEMENT: "Agreement of models and groups",
}
"""Names of figures; fairness gaps go by their own names."""

_REMARK = (
    "Risk: balanced accuracy of membership inference on the model’s real members; 50% is guessing. "
    "Violations: clients whose model’s risk is above what they accept; sure: by its lower limit; "
    "by chance: if every true risk were 50%. Agreement: adjusted Rand index."
)


def cluster_table(record: Record) -> list[Grid]:
    """Every figure by group: one table for each algorithm and defense."""
    studies = clustered_of(record)
    return [_figures(one, label_of(one, studies)) for one in studies]


def _figures(one: Clustered, label: str) -> Grid:
    notes, groups = Footnotes(), columns_of_groups(one)
    order = [*FIGURES, *(figure for figure, _ in one.means if figure not in FIGURES)]
    means = sorted(
        (mean for mean in one.means.values() if mean.group in groups),
        key=lambda mean: (order.index(mean.metric), groups.index(mean.group)),
    )
    several = f" over these {words.plural(len(one.runs), 'run')}" if len(one.runs) > 1 else ""
    return estimate_table(
        "Figures by group" + (f" · {label}" if label else ""),
        means,
        rows=lambda mean: named(FIGURES.get(mean.metric, words.capital(mean.metric))),
        columns=lambda mean: ("", words.capital(shortened(mean.group, 24))),
        cell=lambda mean: _mean_cell(mean, notes),
        order=[("", words.capital(shortened(group, 24))) for group in groups],
        first="Figure",
        notes=notes,
        remark=f"{_REMARK} Intervals: Clopper-Pearson 95%, of fairness gaps bootstrap{several}; "
        f"numbers of clients have none.{words.about_runs(mean.further for mean in means)}",
    )


def _mean_cell(mean: Estimate | None, notes: Footnotes) -> Cell | None:
    if mean is None:
        return None
    raised = mean.metric == metrics.VIOLATIONS and mean.number
    look = Look(tone="raised" if raised else "")
    return measured(mean, look, mark=notes.mark(mean.note), unbounded="")


def models_table(record: Record) -> Grid:
    """Every model at the end of every run: who trains it, its risk, and who accepts less."""
    return tabled(
        "The models at the end",
        [row for run in record.clusters for row in _model_rows(run)],
        varying=_RUN,
        remark="Estimated: by the server after the round, with its error in points and the size of "
        "shadow models. True risk: on real members, with Clopper-Pearson limits. Accept less: "
        "clients whose threshold is below the true risk.",
    )


_RUN = ("Algorithm", "Defense", "Seed")


def _of_run(run: Run) -> Filled:
    return dict(zip(_RUN, (named(run.algorithm), named(run.defense), str(run.seed)), strict=True))


def _model_rows(run: Run) -> Iterator[Filled]:
    last, used = run.rounds[-1], choices(run)
    for shown_ in shown_models(run):
        state, size = last.models[shown_.model], used.count(shown_.model)
        yield {
            "Model": shown_.label,
            **_of_run(run),
            "Clients": Cell(words.count(size), by_group(run, used, shown_.model)),
            "Announced": words.given(state.told),
            "Estimated": _estimate(state),
            "True risk": _risk(state),
            "Accept less": f"{words.count(above(run, last, shown_.model))} of {words.count(size)}",
            "Loss": words.given(state.loss, words.number),
            "Accuracy": words.given(state.accuracy),
        }


def by_group(run: Run, choice: Sequence[int | None], model: int) -> str:
    """Clients of a model, group by group; empty with one group."""
    groups = groups_by_size(run)
    if len(groups) < 2:
        return ""
    pairs = list(zip(choice, run.group, strict=True))
    return "\n".join(
        f"{named(run.group_names[group], limit=24).text} {words.count(pairs.count((model, group)))}"
        for group in groups
    )


def _estimate(state: ModelState) -> Cell | None:
    if state.estimated is None:
        return None
    lines = []
    if state.risk is not None:
        lines.append(f"{words.points(state.estimated - state.risk)} points")
    if state.shadow_samples:
        down = state.shadow_samples < state.samples
        sizes = f"shadows of {words.count(state.shadow_samples)}"
        lines.append(f"scaled down: {sizes} for {words.count(state.samples)}" if down else sizes)
    return Cell(words.percent(state.estimated), below(*lines))


def _risk(state: ModelState) -> Cell | None:
    if state.risk is None:
        return None
    asked = f"{words.count(state.members)} v. {words.count(state.others)}" if state.members else ""
    return Cell(
        words.percent(state.risk), below(words.interval(state.low, state.high, "accuracy"), asked)
    )


def cluster_section(record: Record) -> dict[str, object] | None:
    """Return the section on clusters; None where no clients choose between models."""
    if not record.clusters:
        return None
    return {
        "said": cluster_sentence(record),
        "figures": cluster_table(record),
        "models": models_table(record),
    }
