"""Tables of clustered learning: figures by group, models at the end, round by round, by seed."""

from collections.abc import Iterator, Sequence

from fedaudit.report import words
from fedaudit.report.evidence import Look, distinct
from fedaudit.report.grid import Cell, Filled, Footnotes, Grid, below, named, shortened, tabled
from fedaudit.report.tables.cells import measured
from fedaudit.report.tables.run import words_table
from fedaudit.report.text.clusters import (
    RISK,
    Clustered,
    Run,
    above,
    cluster_bullets,
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
    "Risk: balanced accuracy of membership inference on the model’s real members; 50% is "
    "guessing. Violations: clients whose model’s risk is above what they accept; by chance: "
    "how many there would be by noise alone, were every true risk 50%."
)
_MORE = (
    " Sure violations: by the risk’s lower limit. Error of the estimate: distance of the server’s "
    "estimate from the true risk, mean over clients. Agreement: adjusted Rand index, 1 for the "
    "groups themselves, 0 as by chance. Fairness gaps are absolute, so that equal treatment too "
    "gives one above 0."
)


def cluster_table(record: Record) -> list[Grid]:
    """Every figure by group: one table for each algorithm and defense."""
    studies = clustered_of(record)
    return [_figures(one, label_of(one, studies)) for one in studies]


def _figures(one: Clustered, label: str) -> Grid:
    groups, notes = columns_of_groups(one), Footnotes()
    gaps = [figure for figure, _ in one.means if figure not in FIGURES]
    rows: list[Filled] = []
    further = []
    for figure in distinct([*FIGURES, *gaps]):
        means = [one.mean(figure, group) for group in groups]
        if any(means):
            cells = {
                words.capital(group): _mean_cell(mean, notes)
                for group, mean in zip(groups, means, strict=True)
            }
            rows.append({"Figure": named(FIGURES.get(figure, words.capital(figure))), **cells})
            further += [mean.further for mean in means if mean]
    return tabled(
        "Who is served how, and at what risk" + (f" · {label}" if label else ""),
        rows,
        notes=notes,
        remark=f"{_REMARK}{_MORE} Intervals: {_method(one)}.{words.about_runs(further)}",
    )


def _mean_cell(mean: Estimate | None, notes: Footnotes) -> Cell | None:
    if mean is None:
        return None
    raised = mean.metric == metrics.VIOLATIONS and mean.number
    look = Look(tone="raised" if raised else "")
    return measured(mean, look, mark=notes.mark(mean.note), unbounded="")


def _method(one: Clustered) -> str:
    several = f" over these {words.plural(len(one.runs), 'run')}" if len(one.runs) > 1 else ""
    return (
        f"Clopper-Pearson 95%, of fairness gaps bootstrap{several}; numbers of clients are counted "
        "and have none"
    )


def risk_sizes_table(
    caption: str = "Words for the risk of a model",
    heading: str = "Balanced accuracy",
    decides: str = "The lower limit of the interval decides; it is not corrected for the number of "
    "models.",
) -> Grid:
    """Thresholds of a share of right answers of two by word."""
    return words_table(
        caption,
        {
            heading: lambda one, how: (
                f"{how} {words.percent(0.5 + one.share / 2) if one.share else '50%'}"
            )
        },
        decides,
    )


def models_table(record: Record) -> Grid:
    """Every model at the end of every run: who trains it, its risk, and who accepts less."""
    return tabled(
        "The models at the end",
        [row for run in record.clusters for row in _model_rows(run)],
        varying=_RUN,
        remark="Clients by group are below their number. Told: the risk that clients were told "
        "before they chose. Estimated: by the server after the round, with its distance from the "
        "true risk in points, and by how large shadow models; scaled down are those that have "
        "fewer samples than the model’s clients, since the server has too few. True risk: on real "
        "members, with Clopper-Pearson limits and the number of samples. Accept less: clients of "
        "the model whose threshold is below its true risk. Loss and accuracy: on test samples like "
        "its clients’.",
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
            "Told": words.given(state.told),
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


def cluster_rounds_table(record: Record) -> Grid:
    """Every model after every measured round."""
    rows: list[Filled] = []
    for run in record.clusters:
        for state in run.rounds:
            used = choices(run, state)
            for one in shown_models(run):
                model, size = state.models[one.model], used.count(one.model)
                groups = by_group(run, used, one.model).replace("\n", ", ")
                rows.append(
                    {
                        "Round": str(state.round),
                        **_of_run(run),
                        "Model": one.label,
                        "Clients": Cell(words.count(size), groups),
                        "Told": words.given(model.told),
                        "Estimated": words.given(model.estimated),
                        "True risk": _risk(model),
                        "Accept less": words.count(above(run, state, one.model)),
                        "Loss": words.given(model.loss, words.number),
                    }
                )
    return tabled("Round by round", rows, words=("Model",), varying=_RUN)


def cluster_seeds_table(record: Record) -> Grid | None:
    """Every run by itself; None where each study has one."""
    studies = clustered_of(record)
    if all(len(one.runs) == 1 for one in studies):
        return None
    figures = (
        metrics.ACCURACY,
        metrics.CLIENT_RISK,
        metrics.VIOLATIONS,
        metrics.SURE_VIOLATIONS,
        metrics.EXPECTED_VIOLATIONS,
        metrics.MOVED,
    )
    rows = [
        {**_of_run(run), **{FIGURES[f]: _of_seed(one, f, run.seed) for f in figures}}
        for one in studies
        for run in one.runs
    ]
    return tabled("Seed by seed", rows, words=("Seed",), varying=("Defense",))


def _of_seed(one: Clustered, figure: str, seed: int) -> str | None:
    return next(
        (words.shown(run.number, figure) for run in one.runs_of(figure) if run.seed == seed), None
    )


def cluster_section(record: Record) -> dict[str, object] | None:
    """Sentences and tables of the section; None where no clients choose between models.

    Notes say why figures are missing.
    """
    if not record.clusters:
        return None
    notes = distinct(run.fairness_note for run in record.clusters if run.fairness_note)
    return {
        "found": cluster_bullets(record),
        "risk": RISK,
        "figures": cluster_table(record),
        "models": models_table(record),
        "rounds": cluster_rounds_table(record),
        "seeds": cluster_seeds_table(record),
        "notes": [f"No fairness gaps: {words.sentence(shortened(note, 300))}" for note in notes],
        "sizes": risk_sizes_table(),
    }
