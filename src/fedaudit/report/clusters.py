"""Clustered learning in a report: studies and their models, sentences, table and charts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from fedaudit.report import evidence, words
from fedaudit.report.figures import drawing
from fedaudit.report.grid import Cell, Footnotes, Grid, named, shortened
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.results import metrics
from fedaudit.results.clusters import (
    EVERYBODY,
    ClusterResult,
    ModelState,
    choices,
    clients_in_group,
    groups_by_size,
    models_of_groups,
)
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


def in_words(mean: Estimate) -> str:
    """Return "12.4 (95% interval 9.1–15.7)"."""
    limits = words.interval_of(mean)
    return words.value_of(mean) + (f" (95% interval {limits})" if limits else "")


def cluster_sentence(record: Record) -> str:
    """Return the sentence of the section on clusters: what qualifies its figures."""
    texts = []
    for study in clustered_of(record):
        if study.mean(metrics.ESTIMATE_ERROR) is None:
            texts.append("The server estimated no risk, so that no client could have been warned.")
        smaller = [
            f"{words.count(model.shadow_samples)} for {words.count(model.samples)}"
            for model in study.runs[0].rounds[-1].models
            if 0 < model.shadow_samples < model.samples
        ]
        if smaller:
            texts.append(
                "The server has too few samples: its shadow models are trained on "
                f"{words.listed(smaller)} samples, and small ones overstate the risk."
            )
        most = max(choices(run).count(None) for run in study.runs)
        if most:
            texts.append(
                f"{'Up to ' * (len(study.runs) > 1)}{words.count(most)} of "
                f"{words.count(len(study.runs[0].clients))} took part in no round and count among "
                "no model’s clients."
            )
        risks = [study.mean(metrics.MODEL_RISK, name) for name in group_names(study)]
        texts += [words.capital(words.sentence(risk.note)) for risk in risks if risk and risk.note]
        texts += [
            f"No fairness gaps: {words.sentence(shortened(run.fairness_note, 300))}"
            for run in study.runs
            if run.fairness_note
        ]
    return " ".join(evidence.distinct(texts))


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
    sizes = [size for study in studies if (size := risk_size(riskiest(study)))]
    size = evidence.largest(sizes)
    if size is None:
        return "No group’s model is shown to reveal its members. Another attack may do better."
    return (
        f"By its lower limit a model’s risk is {evidence.a_leak(size)}. A client that accepts "
        "less gets less protection than it asked for. Another attack may do better."
    )


def cluster_section(record: Record) -> dict[str, object] | None:
    """Return the section on clusters; None if no clients choose between models."""
    if not record.clusters:
        return None
    return {"said": cluster_sentence(record), "figures": cluster_table(record)}


_REMARK = (
    "Risk: balanced accuracy of membership inference on the model’s real members; 50% is guessing. "
    "Violations: clients whose model’s risk is above what they accept; sure: by its lower limit; "
    "by chance: if every true risk were 50%. Agreement: adjusted Rand index. Intervals: "
    "Clopper-Pearson 95%, of fairness gaps bootstrap{over_runs}; numbers of clients have none."
)

_VIOLATED = evidence.Look(tone="raised")


def cluster_table(record: Record) -> Grid:
    """Return every figure by group, and by study if there are several."""
    studies, notes = clustered_of(record), Footnotes()
    figures = [
        (label_of(study, studies), mean) for study in studies for mean in study.means.values()
    ]
    order = evidence.distinct((*FIGURES, *(mean.metric for _, mean in figures)))
    groups = [(study, name) for study in studies for name in (EVERYBODY, *group_names(study))]
    runs = max((len(study.runs) for study in studies), default=1)

    def cell(mean: Estimate) -> Cell | None:
        violated = mean.metric == metrics.VIOLATIONS and mean.value
        look = _VIOLATED if violated else evidence.Look()
        return measured(mean, look, mark=notes.mark(mean.note), unbounded="")

    return estimate_table(
        "Figures by group",
        sorted(figures, key=lambda figure: order.index(figure[1].metric)),
        rows=lambda figure: named(FIGURES.get(figure[1].metric, words.capital(figure[1].metric))),
        columns=lambda figure: (figure[0], group_heading(figure[1].group)),
        cell=lambda figure: cell(figure[1]),
        order=[(label_of(study, studies), group_heading(name)) for study, name in groups],
        first="Figure",
        notes=notes,
        remark=_REMARK.format(over_runs=f" over these {runs} runs" if runs > 1 else "")
        + words.about_runs(mean.further for _, mean in figures),
    )


def group_heading(group: str) -> str:
    """Return a group's name as a heading."""
    return words.capital(shortened(group, 24))


class ShownModel(NamedTuple):
    """A model as a reader sees it.

    Attributes:
        model: Its number in the run.
        label: "Majority’s model".
        look: Colour, dash and mark, the same in every run for the model of one group.
    """

    model: int
    label: str
    look: drawing.Style


def shown_models(run: ClusterResult) -> list[ShownModel]:
    """Return the models of a run: first those that stand for groups, largest group first."""
    labels: dict[int, str] = {}
    for group, model in models_of_groups(run).items():
        if model is not None:
            label = f"{group_heading(run.group_names[group])}’s model"
            # Long names may be cut to one, and each model has a line with its own label.
            represents = len(set(run.group)) > 1 and _most_frequent_group(run, model) == group
            taken = label in labels.values()
            labels[model] = label if represents and not taken else f"Model {model + 1}"
    for model in range(len(run.rounds[-1].models)):
        labels.setdefault(model, f"Model {model + 1}")
    return [
        ShownModel(model, label, drawing.style(place))
        for place, (model, label) in enumerate(labels.items())
    ]


def _most_frequent_group(run: ClusterResult, model: int) -> int | None:
    used = zip(run.group, choices(run), strict=True)
    votes = Counter(group for group, choice in used if choice == model)
    return votes.most_common(1)[0][0] if votes else None


# Other colours than those of the two groups' models.
_RISKS = {
    "True risk": drawing.Style(drawing.OKABE_ITO[3]),
    "Estimated by the server": drawing.Style(drawing.OKABE_ITO[2], "dash", "square"),
    "Announced to clients": drawing.Style(drawing.OKABE_ITO[4], "dot", "diamond"),
}
_GUESS = drawing.Style(drawing.GREY, "dot")


def cluster_figures(record: Record) -> list[drawing.Figures]:
    """Return the charts of clustered learning: clients by model, and the models' risk, by round."""
    if not record.clusters:
        return []
    models = [model for run in record.clusters for model in shown_models(run)]
    late = any(run.joined for run in record.clusters)
    charts = [
        _figure(
            "choices",
            "Clients of a group after each measured round, by the model that they last trained."
            + " Clients that have not taken part yet are not counted." * late,
            record,
            lambda run: [_choices_panel(run, group) for group in groups_by_size(run)],
            drawing.legend({model.label: model.look for model in models}),
        )
    ]
    states = [state for run in record.clusters for after in run.rounds for state in after.models]
    known = {name for state in states for name, risk in _risks(state).items() if risk is not None}
    if "True risk" in known:
        looks = {name: look for name, look in _RISKS.items() if name in known}
        charts.append(
            _figure(
                "risk",
                "Membership risk of each model by round (balanced accuracy; 50% is guessing). The "
                "true risk, with its 95% interval, is on the model’s real members; the estimate is "
                "made without them.",
                record,
                lambda run: [_risk_panel(run, shown, looks) for shown in shown_models(run)],
                (*drawing.legend(looks), *drawing.legend({"Guessing": _GUESS}, marked=False)),
            )
        )
    return charts


def _figure(
    name: str,
    caption: str,
    record: Record,
    panels: Callable[[ClusterResult], Sequence[drawing.Panel]],
    keys: tuple[drawing.LegendEntry, ...],
) -> drawing.Figures:
    by_run = drawing.choices_of(
        record.clusters,
        lambda run: (
            shortened(run.algorithm),
            shortened(words.defense_name(run.defense)),
            f"seed {run.seed}",
        ),
        lambda inside: panels(inside[0]),
    )
    return drawing.Figures(f"clusters-{name}", caption, by_run, keys)


def _line(
    run: ClusterResult, name: str, values: Iterable[float | None], look: drawing.Style, hover: str
) -> drawing.Series:
    rounds = [after.round for after in run.rounds]
    return drawing.Series(name, rounds, list(values), look, f"{hover} in round %{{x}}", marks=12)


def _choices_panel(run: ClusterResult, group: int) -> drawing.Panel:
    places, shown = clients_in_group(run, group), shown_models(run)
    used = [Counter(choices(run, after)[client] for client in places) for after in run.rounds]
    name, most = words.capital(shortened(run.group_names[group], 40)), len(places)
    last = ", ".join(f"{model.label} {words.count(used[-1][model.model])}" for model in shown)
    return drawing.Panel(
        f"{name}: {words.plural(most, 'client')}",
        f"Clients of {name} by model, round by round; at the end: {last}.",
        drawing.round_scale([after.round for after in run.rounds]),
        drawing.Scale(
            "Clients", ends=(-0.02 * most, 1.02 * most), step=1 if most <= 5 else None, count=6
        ),
        [
            _line(run, model.label, (c[model.model] for c in used), model.look, "%{y}")
            for model in shown
        ],
    )


def _risks(state: ModelState) -> dict[str, float | None]:
    return dict(zip(_RISKS, (state.risk, state.estimated, state.told), strict=True))


def _risk_panel(
    run: ClusterResult, shown: ShownModel, looks: Mapping[str, drawing.Style]
) -> drawing.Panel:
    rounds = [after.round for after in run.rounds]
    states = [after.models[shown.model] for after in run.rounds]
    every = [state for after in run.rounds for state in after.models]
    reached = [v for s in every for v in (*_risks(s).values(), s.low, s.high) if v is not None]
    last = [words.percent(state.risk) for state in states if state.risk is not None][-1:]
    lines = [
        _line(run, name, (_risks(state)[name] for state in states), look, "%{y:.1%}")
        for name, look in looks.items()
    ]
    low, high = [state.low for state in states], [state.high for state in states]
    return drawing.Panel(
        shown.label,
        f"Risk of {shown.label} by round{''.join(f'; at the end {risk}' for risk in last)}.",
        drawing.round_scale(rounds),
        drawing.Scale(
            "Membership risk", "%", (min([*reached, 0.5]) - 0.02, max([*reached, 0.58]) + 0.02), 7
        ),
        [
            drawing.Band("True risk", rounds, low, high, _RISKS["True risk"].color, 0.18),
            *lines[::-1],
            drawing.level(rounds, 0.5, _GUESS, "Guessing", "%{y:.0%}"),
        ],
    )
