"""Clustered learning in a report: studies and their models, sentences, table and charts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedaudit.report import evidence, words
from fedaudit.report.figures import drawing
from fedaudit.report.fixed import fixed
from fedaudit.report.grid import Cell, Footnotes, Grid, named, shortened
from fedaudit.report.section import Section
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.results import metrics
from fedaudit.results.clusters import (
    EVERYBODY,
    ClusterResult,
    ModelState,
    choices,
    groups_by_size,
    models_of_groups,
)
from fedaudit.results.estimate import Estimate, Interval
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

_ON_RISK = tuple(FIGURES)[1:10]
"""Figures that rest on attacks, which a failed control takes back."""


@dataclass(frozen=True)
class Clustered:
    """One algorithm under one defense, over its runs.

    Attributes:
        runs: Results of single runs, one for each seed.
        figures: Figures of single runs, and over all of them.
    """

    algorithm: str
    defense: str
    runs: tuple[ClusterResult, ...]
    figures: tuple[Estimate, ...]

    @cached_property
    def means(self) -> Mapping[tuple[str, str], Estimate]:
        """Figures over the runs, by name and group."""
        return {
            (figure.metric, figure.group): figure for figure in self.figures if figure.seed is None
        }

    def mean(self, figure: str, group: str = EVERYBODY) -> Estimate | None:
        """Return a figure over the runs; None if no run has it."""
        return self.means.get((figure, group))


def clustered_of(record: Record) -> tuple[Clustered, ...]:
    """Return every algorithm and defense of a record that has clients choose between models."""
    by_setting = evidence.grouped(record.clusters, lambda run: (run.algorithm, run.defense))
    return tuple(
        Clustered(
            *key,
            tuple(runs),
            tuple(record.where(topic="clusters", algorithm=key[0], defense=key[1])),
        )
        for key, runs in by_setting.items()
    )


def group_names(study: Clustered) -> list[str]:
    """Return the groups, largest first, as the record has them."""
    run = study.runs[0]
    return [run.group_names[group] for group in groups_by_size(run)]


def label_of(study: Clustered, many: Sequence[Clustered]) -> str:
    """Return a label that distinguishes a study from others; empty if it is the only study."""
    parts = (study.algorithm, words.defense_name(study.defense))
    return " · ".join(shortened(part, 40) for part in parts) if len(many) > 1 else ""


def risk_size(mean: Estimate | None) -> evidence.Size | None:
    """Return the size of the leak that a model's risk is at least; None if not above guessing.

    The size follows the advantage over guessing that the lower limit shows.
    """
    return None if mean is None else evidence.size_reached_by(2 * evidence.least_of(mean) - 1)


def riskiest(study: Clustered) -> Estimate | None:
    """Return the risk of the riskiest group's model, by its lower limit; None without any."""
    risks = [mean for name in group_names(study) if (mean := study.mean(metrics.MODEL_RISK, name))]
    return max(risks, key=lambda mean: (evidence.least_of(mean), mean.number), default=None)


def cluster_sentence(record: Record) -> str:
    """Return the sentence of the section on clusters: what qualifies its figures."""
    texts = []
    for study in clustered_of(record):
        if study.mean(metrics.ESTIMATE_ERROR) is None:
            texts.append(fixed("clusters.no_estimate"))
        smaller = [
            f"{words.count(model.shadow_samples)} for {words.count(model.samples)}"
            for model in study.runs[0].rounds[-1].models
            if 0 < model.shadow_samples < model.samples
        ]
        if smaller:
            texts.append(fixed("clusters.small_shadows", samples=words.listed(smaller)))
        most = max(choices(run).count(None) for run in study.runs)
        if most:
            texts.append(
                f"{'Up to ' * (len(study.runs) > 1)}{words.count(most)} of "
                f"{words.count(len(study.runs[0].clients))} took part in no round and count among "
                "no model’s clients."
            )
        texts += [
            f"No fairness gaps: {words.sentence(shortened(run.fairness_note, 300))}"
            for run in study.runs
            if run.fairness_note
        ]
    return " ".join([fixed("clusters.lead"), *evidence.distinct(texts)])


def cluster_headline(studies: Sequence[Clustered]) -> str:
    """Return the violations, as the verdict's headline has them."""
    parts = []
    for study in studies:
        violations, floor = study.mean(metrics.VIOLATIONS), study.mean(metrics.CHANCE_VIOLATIONS)
        if violations is not None:
            chance = "" if floor is None else f"{words.amount(floor.number)} by chance"
            notes = "; ".join(filter(None, (label_of(study, studies), chance)))
            clients = f"{words.count(len(study.runs[0].clients))} clients"
            remark = f" ({notes})" if notes else ""
            parts.append(f"{words.amount(violations.number)} of {clients}{remark}")
    if not parts:
        return "No model’s membership risk was measured"
    average = "On average " * any(len(study.runs) > 1 for study in studies)
    return f"{average}{words.listed(parts)} use a model riskier than they accept"


def cluster_status(studies: Sequence[Clustered]) -> evidence.Status:
    """Return the verdict on the models' risk alone."""
    risks = [mean for study in studies if (mean := riskiest(study))]
    return evidence.status_between(
        (2 * evidence.least_of(risk) - 1 for risk in risks),
        (2 * evidence.highest_of(risk) - 1 for risk in risks),
    )


def cluster_meaning(studies: Sequence[Clustered]) -> str:
    """Return what follows from the models' risk, and what does not."""
    size = evidence.largest([s for study in studies if (s := risk_size(riskiest(study)))])
    if size is None:
        return fixed("clusters.no_leak")
    return fixed("clusters.leak", leak=evidence.a_leak(size))


def cluster_section(record: Record) -> Section | None:
    """Return the section on clusters; None if no clients choose between models."""
    if not record.clusters:
        return None
    return Section(
        "clusters",
        "Clustered learning",
        [cluster_sentence(record)],
        tables=[cluster_table(record)],
        figure=cluster_figure(record),
    )


def cluster_table(record: Record) -> Grid:
    """Return every figure by group, and by study if there are several."""
    studies, notes = clustered_of(record), Footnotes()
    order = tuple(FIGURES)
    figures = sorted(
        ((label_of(study, studies), mean) for study in studies for mean in study.means.values()),
        key=lambda figure: order.index(figure[1].metric) if figure[1].metric in order else 99,
    )
    groups = [(study, name) for study in studies for name in (EVERYBODY, *group_names(study))]
    runs = max((len(study.runs) for study in studies), default=1)
    failed = evidence.takes_figures_back(record)

    def cell(mean: Estimate) -> Cell | None:
        look = evidence.Look()
        if failed and mean.metric in _ON_RISK:
            look = evidence.DOUBTED
        elif mean.metric == metrics.VIOLATIONS and mean.value:
            look = evidence.Look(tone="raised")
        return measured(mean, look, mark=notes.mark(mean.note), unbounded="")

    return estimate_table(
        "Clustered learning",
        figures,
        rows=lambda figure: named(FIGURES.get(figure[1].metric, words.capital(figure[1].metric))),
        columns=lambda figure: (figure[0], group_heading(figure[1].group)),
        cell=lambda figure: cell(figure[1]),
        order=[(label_of(study, studies), group_heading(name)) for study, name in groups],
        first="Figure",
        notes=notes,
        remark=fixed("clusters.remark", over_runs=f" over these {runs} runs" * (runs > 1))
        + words.about_runs(mean.further for _, mean in figures),
    )


def group_heading(group: str) -> str:
    """Return a group's name as a heading."""
    return words.capital(shortened(group, 24))


def shown_models(run: ClusterResult) -> dict[int, str]:
    """Return the names of a run's models: first those that stand for groups, largest first."""
    labels: dict[int, str] = {}
    for group, model in models_of_groups(run).items():
        if model is not None:
            label = f"{group_heading(run.group_names[group])}’s model"
            # Long names may be cut to one, and each model has a panel with its own label.
            represents = len(set(run.group)) > 1 and _most_frequent_group(run, model) == group
            taken = label in labels.values()
            labels[model] = label if represents and not taken else f"Model {model + 1}"
    for model in range(len(run.rounds[-1].models)):
        labels.setdefault(model, f"Model {model + 1}")
    return labels


def _most_frequent_group(run: ClusterResult, model: int) -> int | None:
    used = zip(run.group, choices(run), strict=True)
    votes = Counter(group for group, choice in used if choice == model)
    return votes.most_common(1)[0][0] if votes else None


_RISKS = {
    "True risk": drawing.style(0),
    "Estimated by the server": drawing.style(1),
    "Announced to clients": drawing.style(2),
}
_GUESS = drawing.Style(drawing.GREY, "dot", "")


def cluster_figure(record: Record) -> drawing.Figures | None:
    """Return the chart of the models' risk by round; None if no true risk is known."""
    states = [s for run in record.clusters for after in run.rounds for s in after.models]
    known = {name for state in states for name, risk in _risks(state).items() if risk is not None}
    if "True risk" not in known:
        return None
    looks = {name: look for name, look in _RISKS.items() if name in known}
    by_run = drawing.choices_of(
        record.clusters,
        lambda run: (
            shortened(run.algorithm),
            shortened(words.defense_name(run.defense)),
            f"seed {run.seed}",
        ),
        lambda inside: _risk_panels(inside[0], looks),
    )
    keys = drawing.legend(looks | {"Guessing": _GUESS})
    return drawing.Figures("clusters-risk", fixed("clusters.risk"), by_run, keys)


def _risks(state: ModelState) -> dict[str, float | None]:
    return dict(zip(_RISKS, (state.risk, state.estimated, state.told), strict=True))


def _risk_panels(run: ClusterResult, looks: Mapping[str, drawing.Style]) -> list[drawing.Panel]:
    rounds = [after.round for after in run.rounds]
    every = [state for after in run.rounds for state in after.models]
    reached = [v for s in every for v in (*_risks(s).values(), s.low, s.high) if v is not None]
    ends = (min([*reached, 0.5]) - 0.02, max([*reached, 0.58]) + 0.02)
    panels = []
    for model, label in shown_models(run).items():
        states = [after.models[model] for after in run.rounds]
        lines = [
            drawing.Series(name, rounds, [_risks(s)[name] for s in states], look, _HOVER)
            for name, look in looks.items()
        ]
        intervals = [Interval(low=state.low, high=state.high) for state in states]
        lines[0] = replace(lines[0], limits=intervals)
        panels.append(
            drawing.Panel(
                label,
                f"Risk of {label} by round.",
                drawing.round_scale(rounds),
                drawing.Scale("Membership risk", "%", ends, 7),
                [*lines[::-1], drawing.level(rounds, 0.5, _GUESS, "Guessing")],
            )
        )
    return panels


_HOVER = "{y:.1%} in round {x}"
