"""Tables of clustered learning: figures by group, models at the end, round by round, by seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.report.grid import (
    Cell,
    Footnotes,
    Grid,
    Tone,
    columns_of,
    named,
    shortened,
    without_constants,
)
from fedaudit.report.text.clusters import (
    RISK,
    Clustered,
    Run,
    above,
    cluster_bullets,
    clustered_of,
    columns_of_groups,
    figure_text,
    further_limits,
    label_of,
    limits_text,
    shown_models,
)
from fedaudit.report.text.membership import Bullet
from fedaudit.report.text.sources import SOURCE_SIZES, points
from fedaudit.report.words import (
    MISSING,
    about_runs,
    capital,
    count,
    interval,
    number,
    percent,
    plural,
    sentence,
)
from fedaudit.results import metrics
from fedaudit.results.cluster_groups import choices, groups_by_size
from fedaudit.results.clusters import ModelState
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record

_EMPTY = Cell(MISSING, tone="muted")

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

SHORT = (
    metrics.ACCURACY,
    metrics.MODEL_RISK,
    metrics.MODEL_ESTIMATE,
    metrics.CLIENT_RISK,
    metrics.VIOLATIONS,
    metrics.CHANCE_VIOLATIONS,
    metrics.OWN_MODEL,
)
"""Figures of the terminal's table."""

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


def short_cluster_tables(record: Record) -> list[Grid]:
    """The same in a terminal's width."""
    studies = clustered_of(record)
    return [_figures(one, label_of(one, studies), SHORT) for one in studies]


def _figures(one: Clustered, label: str, kept: Sequence[str] = ()) -> Grid:
    groups, notes = columns_of_groups(one), Footnotes()
    gaps = [figure for figure, _ in one.means if figure not in FIGURES]
    rows = []
    for figure in [*(kept or FIGURES), *dict.fromkeys(gaps)]:
        means = [one.mean(figure, group) for group in groups]
        if any(means):
            name = FIGURES.get(figure, capital(figure))
            rows.append((named(name), *(_mean_cell(mean, notes) for mean in means)))
    names = [named(capital(group)).text for group in groups]
    used = [mean for figure in [*(kept or FIGURES), *gaps] for mean in _of(one, figure, groups)]
    method = f" Intervals: {_method(one)}.{about_runs(mean.further for mean in used)}"
    return Grid(
        "Who is served how, and at what risk" + (f" · {label}" if label else ""),
        columns_of("Figure", *names, numeric=names),
        tuple(rows),
        notes=notes.listed(),
        remark=_REMARK + ("" if kept else _MORE) + method,
    )


def _of(one: Clustered, figure: str, groups: Sequence[str]) -> list[Estimate]:
    return [mean for group in groups if (mean := one.mean(figure, group))]


def _method(one: Clustered) -> str:
    several = f" over these {plural(len(one.runs), 'run')}" if len(one.runs) > 1 else ""
    return (
        f"Clopper-Pearson 95%, of fairness gaps bootstrap{several}; numbers of clients are counted "
        "and have none"
    )


def _mean_cell(mean: Estimate | None, notes: Footnotes) -> Cell:
    if mean is None:
        return _EMPTY
    tone: Tone = "raised" if mean.metric == metrics.VIOLATIONS and mean.number else ""
    lines = (limits_text(mean), further_limits(mean))
    return Cell(
        figure_text(mean), "\n".join(line for line in lines if line), tone, notes.mark(mean.note)
    )


def risk_sizes_table() -> Grid:
    """Thresholds of a model's risk by word."""
    rows = [
        (Cell(one.word), Cell(f"from {percent(0.5 + one.share / 2)}" if one.share else "above 50%"))
        for one in SOURCE_SIZES
    ]
    return Grid(
        "Words for the risk of a model",
        columns_of("Word", "Balanced accuracy", numeric=("Balanced accuracy",)),
        tuple(rows),
        remark="The lower limit of the interval decides; it is not corrected for the number of "
        "models. The thresholds are conventions of this report, not of law.",
    )


def models_table(record: Record) -> Grid:
    """Every model at the end of every run: who trains it, its risk, and who accepts less."""
    rows = [row for run in record.clusters for row in _model_rows(run)]
    names = ("Clients", "Told", "Estimated", "True risk", "Accept less", "Loss", "Accuracy")
    columns = columns_of("Model", "Algorithm", "Defense", "Seed", *names, numeric=names)
    grid = Grid(
        "The models at the end",
        columns,
        tuple(rows),
        remark="Clients by group are below their number. Told: the risk that clients were told "
        "before they chose. Estimated: by the server after the round, with "
        "its distance from the true risk in points, and by how large shadow models; scaled down "
        "are those that have fewer samples than the model’s clients, since the server has too few. "
        "True risk: on real members, "
        "with Clopper-Pearson limits and the number of samples. Accept less: clients of the model "
        "whose threshold is below its true risk. Loss and accuracy: on test samples like its "
        "clients’.",
    )
    return without_constants(grid, names)


def _model_rows(run: Run) -> list[tuple[Cell, ...]]:
    last, used = run.rounds[-1], choices(run)
    rows: list[tuple[Cell, ...]] = []
    for shown in shown_models(run):
        state = last.models[shown.model]
        size = used.count(shown.model)
        rows.append(
            (
                Cell(shown.label),
                named(run.algorithm),
                named(run.defense),
                Cell(str(run.seed)),
                Cell(count(size), by_group(run, used, shown.model)),
                _share(state.told),
                _estimate(state),
                _risk(state),
                Cell(f"{count(above(run, last, shown.model))} of {count(size)}"),
                Cell(MISSING if state.loss is None else number(state.loss)),
                _share(state.accuracy),
            )
        )
    return rows


def by_group(run: Run, choice: Sequence[int | None], model: int) -> str:
    """Clients of a model, group by group; empty with one group."""
    groups = groups_by_size(run)
    if len(groups) < 2:
        return ""
    pairs = list(zip(choice, run.group, strict=True))
    return "\n".join(
        f"{named(run.group_names[group], limit=24).text} {count(pairs.count((model, group)))}"
        for group in groups
    )


def _share(value: float | None) -> Cell:
    return _EMPTY if value is None else Cell(percent(value))


def _estimate(state: ModelState) -> Cell:
    if state.estimated is None:
        return _EMPTY
    lines = []
    if state.risk is not None:
        lines.append(f"{points(state.estimated - state.risk)} points")
    if state.shadow_samples:
        down = state.shadow_samples < state.samples
        sizes = f"shadows of {count(state.shadow_samples)}"
        lines.append(f"scaled down: {sizes} for {count(state.samples)}" if down else sizes)
    return Cell(percent(state.estimated), "\n".join(lines))


def _risk(state: ModelState) -> Cell:
    if state.risk is None:
        return _EMPTY
    asked = f"{count(state.members)} v. {count(state.others)}" if state.members else ""
    lines = [interval(state.low, state.high, "accuracy"), asked]
    return Cell(percent(state.risk), "\n".join(line for line in lines if line))


def cluster_rounds_table(record: Record) -> Grid:
    """Every model after every measured round."""
    rows = []
    for run in record.clusters:
        shown = shown_models(run)
        for state in run.rounds:
            used = choices(run, state)
            for one in shown:
                model = state.models[one.model]
                rows.append(
                    (
                        Cell(str(state.round)),
                        named(run.algorithm),
                        named(run.defense),
                        Cell(str(run.seed)),
                        Cell(one.label),
                        Cell(
                            count(used.count(one.model)),
                            by_group(run, used, one.model).replace("\n", ", "),
                        ),
                        _share(model.told),
                        _share(model.estimated),
                        _risk(model),
                        Cell(count(above(run, state, one.model))),
                        Cell(MISSING if model.loss is None else number(model.loss)),
                    )
                )
    names = ("Clients", "Told", "Estimated", "True risk", "Accept less", "Loss")
    columns = columns_of("Round", "Algorithm", "Defense", "Seed", "Model", *names, numeric=names)
    return without_constants(Grid("Round by round", columns, tuple(rows)), ("Model", *names))


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
    rows = []
    for one in studies:
        for run in one.runs:
            cells = [_of_seed(one.runs_of(figure), run.seed) for figure in figures]
            rows.append((named(run.algorithm), named(run.defense), Cell(str(run.seed)), *cells))
    names = tuple(FIGURES[figure] for figure in figures)
    columns = columns_of("Algorithm", "Defense", "Seed", *names, numeric=names)
    return without_constants(Grid("Seed by seed", columns, tuple(rows)), ("Seed", *names))


def _of_seed(runs: Sequence[Estimate], seed: int) -> Cell:
    one = next((one for one in runs if one.seed == seed), None)
    if one is None:
        return _EMPTY
    return Cell(count(round(one.number)) if one.metric in metrics.COUNTS else percent(one.number))


@dataclass(frozen=True)
class ClusterSection:
    """Sentences and tables of the section.

    Attributes:
        seeds: None where each study has one run.
        notes: Why figures are missing.
    """

    found: tuple[Bullet, ...]
    risk: str
    figures: tuple[Grid, ...]
    models: Grid
    rounds: Grid
    seeds: Grid | None
    notes: tuple[str, ...]
    sizes: Grid


def cluster_section(record: Record) -> ClusterSection | None:
    """The section of a record; None where no clients choose between models."""
    if not record.clusters:
        return None
    notes = dict.fromkeys(run.fairness_note for run in record.clusters if run.fairness_note)
    return ClusterSection(
        found=cluster_bullets(record),
        risk=RISK,
        figures=tuple(cluster_table(record)),
        models=models_table(record),
        rounds=cluster_rounds_table(record),
        seeds=cluster_seeds_table(record),
        notes=tuple(f"No fairness gaps: {sentence(shortened(note, 300))}" for note in notes),
        sizes=risk_sizes_table(),
    )
