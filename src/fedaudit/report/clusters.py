"""Clustered learning in a report: studies, verdict, sentences and table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import Cell, Footnotes, Grid, name_cell, shorten
from fedaudit.report import evidence
from fedaudit.report.deciding.caveats import are_cluster_risks_doubted
from fedaudit.report.tables.cells import estimate_table, value_cell
from fedaudit.results.estimate import (
    CHANCE_VIOLATIONS,
    ESTIMATE_ERROR,
    MODEL_RISK,
    VIOLATIONS,
    Estimate,
)
from fedaudit.results.record import Record
from fedaudit.results.runs import ALL_CLIENTS, ClusterResult, groups_by_size, model_choices

FIGURES = fixed_texts("cluster_figures")  # names of metrics, in the order of a table


@dataclass(frozen=True)
class ClusteredRuns:
    """Results of an algorithm under a defense: its runs, and estimates of each and of all runs."""

    algorithm: str
    defense: str
    runs: tuple[ClusterResult, ...]
    figures: tuple[Estimate, ...]

    @cached_property
    def means(self) -> Mapping[tuple[str, str], Estimate]:
        """Means over all runs, by metric and group."""
        means = [estimate for estimate in self.figures if estimate.seed is None]
        return {(estimate.metric, estimate.group): estimate for estimate in means}

    def mean(self, metric: str, group: str = ALL_CLIENTS) -> Estimate | None:
        """Return the mean of a metric over all runs; None if no run has the metric."""
        return self.means.get((metric, group))


def clusterings(record: Record) -> tuple[ClusteredRuns, ...]:
    """Return the results of each algorithm with several models, under each defense."""
    by_setting = evidence.group_by(record.clusters, lambda run: (run.algorithm, run.defense))
    studies = []
    for (algorithm, defense), runs in by_setting.items():
        estimates = record.where(topic="clusters", algorithm=algorithm, defense=defense)
        studies.append(ClusteredRuns(algorithm, defense, tuple(runs), tuple(estimates)))
    return tuple(studies)


def group_names(study: ClusteredRuns) -> list[str]:
    """Return the names of groups in the record, largest group first."""
    run = study.runs[0]
    return [run.group_names[group] for group in groups_by_size(run)]


def label_of(study: ClusteredRuns, studies: Sequence[ClusteredRuns]) -> str:
    """Return a label that distinguishes a study from others; empty if it is the only study."""
    parts = (study.algorithm, wording.defense_name(study.defense))
    return " · ".join(shorten(part, 40) for part in parts) if len(studies) > 1 else ""


def risk_size(mean: Estimate | None) -> evidence.Size | None:
    """Return the size of the leak by the lower limit of a model's risk; None at guessing."""
    return None if mean is None else evidence.size_of_share(2 * evidence.lower_limit(mean) - 1)


def largest_group_risk(study: ClusteredRuns) -> Estimate | None:
    """Return the risk of the riskiest group's model, by its lower limit; None without any."""
    risks = [mean for name in group_names(study) if (mean := study.mean(MODEL_RISK, name))]
    return max(risks, key=lambda mean: (evidence.lower_limit(mean), mean.number), default=None)


def cluster_sentence(record: Record) -> str:
    """Return the introduction of the section on clusters, with caveats."""
    texts = [fixed_text("clusters.lead")]
    for study in clusterings(record):
        run = study.runs[0]
        if study.mean(ESTIMATE_ERROR) is None:
            texts.append(fixed_text("clusters.no_estimate"))
        if smaller := [
            f"{model.shadow_samples:,} instead of {model.samples:,}"
            for model in run.rounds[-1].models
            if 0 < model.shadow_samples < model.samples
        ]:
            texts.append(fixed_text("clusters.small_shadows", samples=wording.join_and(smaller)))
        if n_absent := max(model_choices(run).count(None) for run in study.runs):
            number = f"{'Up to ' * (len(study.runs) > 1)}{n_absent:,}"
            clients = wording.format_count(len(run.clients), "client")
            texts.append(fixed_text("clusters.absent", most=number, clients=clients))
    return " ".join(evidence.unique_items(texts))


def cluster_headline(studies: Sequence[ClusteredRuns]) -> str:
    """Return a headline with the number of violations."""
    parts = []
    for study in studies:
        violations, floor = study.mean(VIOLATIONS), study.mean(CHANCE_VIOLATIONS)
        if violations is not None:
            chance = "" if floor is None else f"{wording.format_amount(floor.number)} by chance"
            notes = wording.join_parts(label_of(study, studies), chance, by="; ")
            clients = wording.format_count(len(study.runs[0].clients), "client")
            number = wording.format_amount(violations.number)
            parts.append(f"{number} of {clients}{f' ({notes})' * bool(notes)}")
    if not parts:
        return "No model’s membership risk was measured"
    average = "On average " * any(len(study.runs) > 1 for study in studies)
    return f"{average}{wording.join_and(parts)} use a model riskier than they accept"


def cluster_status(studies: Sequence[ClusteredRuns]) -> evidence.Status:
    """Return the verdict on the models' risk."""
    risks = [mean for study in studies if (mean := largest_group_risk(study))]
    lows = [2 * evidence.lower_limit(risk) - 1 for risk in risks]
    return evidence.status_between(lows, (2 * evidence.upper_limit(risk) - 1 for risk in risks))


def cluster_meaning(studies: Sequence[ClusteredRuns]) -> str:
    """Return what follows from the models' risk, and what does not."""
    size = evidence.max_size(risk_size(largest_group_risk(study)) for study in studies)
    return (
        fixed_text("clusters.leak", leak=evidence.LEAKS[size])
        if size
        else fixed_text("clusters.no_leak")
    )


def cluster_table(record: Record) -> Grid:
    """Return a table of all estimates by group, and by study if there are several."""
    studies, notes, order = clusterings(record), Footnotes(), list(FIGURES)
    failed = are_cluster_risks_doubted(record)
    labels = [(study, label_of(study, studies)) for study in studies]
    estimates = [(label, mean) for study, label in labels for mean in study.means.values()]
    columns = [
        (label, group_heading(name))
        for study, label in labels
        for name in (ALL_CLIENTS, *group_names(study))
    ]
    runs = max((len(study.runs) for study in studies), default=1)

    def cell(mean: Estimate) -> Cell | None:
        with_doubt = failed and any(word in mean.metric for word in _ON_ATTACKS)
        raised = evidence.Marker(tone="raised" if mean.metric == VIOLATIONS and mean.value else "")
        look = evidence.DOUBTED if with_doubt else raised
        return value_cell(mean, look, mark=notes.mark(mean.note), unbounded="")

    return estimate_table(
        "Clustered learning",
        sorted(estimates, key=lambda row: [*order, row[1].metric].index(row[1].metric)),
        rows=lambda row: name_cell(FIGURES.get(row[1].metric, wording.capitalise(row[1].metric))),
        columns=lambda row: (row[0], group_heading(row[1].group)),
        cell=lambda row: cell(row[1]),
        order=columns,
        first="Figure",
        notes=notes,
        remark=fixed_text("clusters.remark", over_runs=f" over these {runs} runs" * (runs > 1))
        + wording.interval_remark(mean.further for _, mean in estimates),
    )


_ON_ATTACKS = ("risk", "violations", "estimate")  # words in names of metrics that use attacks


def group_heading(group: str) -> str:
    """Return a group's name as a heading."""
    return wording.capitalise(shorten(group, 24))
