"""Clustered learning: studies, their runs and their models’ names, and sentences about them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from fedaudit.report import evidence, words
from fedaudit.report.figures.drawing import Style, style
from fedaudit.report.grid import shortened
from fedaudit.results import metrics
from fedaudit.results.clusters import (
    EVERYBODY,
    ClusterResult,
    ClusterRound,
    choices,
    groups_by_size,
    models_of_groups,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record

Run: TypeAlias = ClusterResult
"""Results of one run."""


@dataclass(frozen=True)
class Clustered:
    """One algorithm under one defense, over its runs.

    Attributes:
        runs: One a seed.
        figures: Of the runs, and over them.
    """

    algorithm: str
    defense: str
    runs: tuple[Run, ...]
    figures: tuple[Estimate, ...]

    @cached_property
    def means(self) -> Mapping[tuple[str, str], Estimate]:
        """Figures over the runs, by name and group."""
        return {(one.metric, one.group): one for one in self.figures if one.seed is None}

    def mean(self, figure: str, group: str = EVERYBODY) -> Estimate | None:
        """A figure over the runs; None where no run has it."""
        return self.means.get((figure, group))

    def runs_of(self, figure: str) -> list[Estimate]:
        """A figure of each run that has it, over all clients."""
        found = [one for one in self.figures if (one.metric, one.group) == (figure, EVERYBODY)]
        return [one for one in found if one.seed is not None]


class ShownModel(NamedTuple):
    """A model as a reader sees it.

    Attributes:
        model: Its number in the run.
        label: "Majority’s model".
        look: Colour, dash and mark, the same in every run for the model of one group.
    """

    model: int
    label: str
    look: Style


def clustered_of(record: Record) -> tuple[Clustered, ...]:
    """Every algorithm and defense of a record that has clients choose between models."""
    keys = list(dict.fromkeys((run.algorithm, run.defense) for run in record.clusters))
    return tuple(
        Clustered(
            *key,
            tuple(run for run in record.clusters if (run.algorithm, run.defense) == key),
            tuple(record.where(topic="clusters", algorithm=key[0], defense=key[1])),
        )
        for key in keys
    )


def group_names(one: Clustered) -> list[str]:
    """The groups, largest first, as the record has them."""
    run = one.runs[0]
    return [run.group_names[group] for group in groups_by_size(run)]


def columns_of_groups(one: Clustered) -> list[str]:
    """The same with all clients together in front, where there are several groups."""
    names = group_names(one)
    return names if len(names) == 1 else [EVERYBODY, *names]


def shown_models(run: Run) -> list[ShownModel]:
    """The models of a run: first those that stand for groups, largest group first."""
    labels: dict[int, str] = {}
    for group, model in models_of_groups(run).items():
        if model is None:
            continue
        name = words.capital(shortened(run.group_names[group], 24))
        own = len(set(run.group)) > 1 and _mostly_of(run, model) == group
        label = f"{name}’s model"
        # Long names may be cut to one, and each model has a line of its own by its label.
        own = own and label not in labels.values()
        labels[model] = label if own else f"Model {model + 1}"
    rest = [model for model in range(len(run.rounds[-1].models)) if model not in labels]
    for model in rest:
        labels[model] = f"Model {model + 1}"
    return [ShownModel(model, label, style(at)) for at, (model, label) in enumerate(labels.items())]


def _mostly_of(run: Run, model: int) -> int | None:
    """The group that most clients of a model are of at the end; None where it has none."""
    used = choices(run)
    votes = Counter(g for g, choice in zip(run.group, used, strict=True) if choice == model)
    return votes.most_common(1)[0][0] if votes else None


def label_of(one: Clustered, many: tuple[Clustered, ...]) -> str:
    """Label that sets a study apart from others; empty where there is one."""
    if len(many) < 2:
        return ""
    return " · ".join(
        (shortened(one.algorithm, 40), shortened(words.defense_name(one.defense), 40))
    )


def above(run: Run, state: ClusterRound, model: int | None = None) -> int:
    """Clients whose model's risk is above what they accept after a round; of one model's."""
    risks = [one.risk for one in state.models]
    pairs = zip(choices(run, state), run.thresholds, strict=True)
    return sum(
        choice is not None
        and model in (choice, None)
        and (risk := risks[choice]) is not None
        and risk > accepted
        for choice, accepted in pairs
    )


def risk_size(mean: Estimate | None) -> evidence.Size | None:
    """Size of the leak that a model's risk is at least; None where it is not above guessing.

    By the advantage over guessing that the lower limit shows, with the words of other leaks.
    """
    if mean is None:
        return None
    return evidence.size_reached_by(2 * evidence.least_of(mean) - 1)


def riskiest(one: Clustered) -> Estimate | None:
    """The risk of the riskiest of the groups' models, by its lower limit; None without any."""
    found = [mean for name in group_names(one) if (mean := one.mean(metrics.MODEL_RISK, name))]
    return max(found, key=lambda mean: (evidence.least_of(mean), mean.number), default=None)


def gravest_size(studies: Iterable[Clustered]) -> evidence.Size | None:
    """The largest leak over all groups' models."""
    return evidence.largest([size for one in studies if (size := risk_size(riskiest(one)))])


def in_words(mean: Estimate) -> str:
    """Return "12.4 (95% interval 9.1–15.7)"."""
    limits = words.interval_of(mean)
    return words.value_of(mean) + (f" (95% interval {limits})" if limits else "")


def cluster_sentence(record: Record) -> str:
    """Return the sentence of the section on clusters: what qualifies its figures."""
    said = []
    for one in clustered_of(record):
        if one.mean(metrics.ESTIMATE_ERROR) is None:
            said.append("The server estimated no risk, so that no client could have been warned.")
        down = [
            f"{words.count(model.shadow_samples)} for {words.count(model.samples)}"
            for model in one.runs[0].rounds[-1].models
            if 0 < model.shadow_samples < model.samples
        ]
        if down:
            said.append(
                "The server has too few samples: its shadow models are trained on "
                f"{words.listed(down)} samples, and small ones overstate the risk."
            )
        most = max(choices(run).count(None) for run in one.runs)
        if most:
            said.append(
                f"{'Up to ' * (len(one.runs) > 1)}{words.count(most)} of "
                f"{words.count(len(one.runs[0].clients))} took part in no round and count among "
                "no model’s clients."
            )
        noted = [one.mean(metrics.MODEL_RISK, name) for name in group_names(one)]
        said += [words.capital(words.sentence(risk.note)) for risk in noted if risk and risk.note]
        said += [
            f"No fairness gaps: {words.sentence(shortened(run.fairness_note, 300))}"
            for run in one.runs
            if run.fairness_note
        ]
    return " ".join(evidence.distinct(said))


def cluster_headline(studies: Sequence[Clustered]) -> str:
    """The violations, as the verdict's heading has them."""
    parts = []
    for one in studies:
        mean = one.mean(metrics.VIOLATIONS)
        if mean is not None:
            total = f"{words.count(len(one.runs[0].clients))} clients"
            floor = one.mean(metrics.CHANCE_VIOLATIONS)
            chance = "" if floor is None else f"{words.amount(floor.number)} by chance"
            notes = [note for note in (label_of(one, tuple(studies)), chance) if note]
            said = f" ({'; '.join(notes)})" if notes else ""
            parts.append(f"{words.amount(mean.number)} of {total}{said}")
    if not parts:
        return "No model’s membership risk was measured"
    mean_ = "On average " if any(len(one.runs) > 1 for one in studies) else ""
    return f"{mean_}{words.listed(parts)} use a model riskier than they accept"


def cluster_status(studies: Sequence[Clustered]) -> evidence.Status:
    """The verdict on the models' risk alone."""
    risks = [mean for one in studies if (mean := riskiest(one))]
    return evidence.status_between(
        (2 * evidence.least_of(risk) - 1 for risk in risks),
        (2 * evidence.highest_of(risk) - 1 for risk in risks),
    )


def cluster_meaning(studies: Sequence[Clustered]) -> str:
    """Consequences of the models' risk, and their limits."""
    size = gravest_size(studies)
    if size is None:
        return "No group’s model is shown to reveal its members. Another attack may do better."
    return (
        f"By its lower limit a model’s risk is {evidence.a_leak(size)}. A client that accepts "
        "less gets less protection than it asked for. Another attack may do better."
    )
