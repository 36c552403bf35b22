"""Clustered learning as a report shows it: studies, their runs, and their models' names."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fedaudit.report.evidence import Size, largest
from fedaudit.report.grid import shortened
from fedaudit.report.names import defense_name
from fedaudit.report.reading import (
    EVERYBODY,
    MODEL_RISK,
    ClusterMean,
    ClusterResult,
    ClusterRound,
    Record,
    choices,
    groups_by_size,
    models_of_groups,
)
from fedaudit.report.sources import size_reached_by
from fedaudit.report.styles import Style, style
from fedaudit.report.words import capital

Run: TypeAlias = ClusterResult
"""What is known of one run."""


@dataclass(frozen=True)
class Clustered:
    """One algorithm under one defense, over its runs.

    Attributes:
        runs: One a seed.
        means: Figures over the runs, by name and group.
    """

    algorithm: str
    defense: str
    runs: tuple[Run, ...]
    means: Mapping[tuple[str, str], ClusterMean]

    def mean(self, figure: str, group: str = EVERYBODY) -> ClusterMean | None:
        """A figure over the runs; None where no run has it."""
        return self.means.get((figure, group))


class Shown(NamedTuple):
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
            {
                (mean.figure, mean.group): mean
                for mean in record.cluster_means
                if (mean.algorithm, mean.defense) == key
            },
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


def shown_models(run: Run) -> list[Shown]:
    """The models of a run: first those that stand for groups, largest group first."""
    labels = {}
    for group, model in models_of_groups(run).items():
        if model is None:
            continue
        name = capital(shortened(run.group_names[group], 24))
        own = len(set(run.group)) > 1 and _mostly_of(run, model) == group
        labels[model] = f"{name}’s model" if own else f"Model {model + 1}"
    rest = [model for model in range(len(run.rounds[-1].models)) if model not in labels]
    for model in rest:
        labels[model] = f"Model {model + 1}"
    return [Shown(model, label, style(at)) for at, (model, label) in enumerate(labels.items())]


def _mostly_of(run: Run, model: int) -> int | None:
    """The group that most clients of a model are of at the end; None where it has none."""
    used = choices(run)
    votes = Counter(g for g, choice in zip(run.group, used, strict=True) if choice == model)
    return votes.most_common(1)[0][0] if votes else None


def label_of(one: Clustered, many: tuple[Clustered, ...]) -> str:
    """What tells a study from the others; empty where there is one."""
    if len(many) < 2:
        return ""
    return " · ".join((shortened(one.algorithm, 40), shortened(defense_name(one.defense), 40)))


def above(run: Run, state: ClusterRound, model: int | None = None) -> int:
    """Clients whose model's risk is above what they accept after a round; of one model's."""
    return len(_over(run, state, model, [one.risk for one in state.models]))


def surely_above(run: Run, state: ClusterRound, model: int | None = None) -> int:
    """Those for whom even the lower limit of that risk is."""
    return len(_over(run, state, model, [one.low for one in state.models]))


def expected_above(run: Run, state: ClusterRound, model: int | None = None) -> int:
    """As the server's estimates have it."""
    return len(_over(run, state, model, [one.estimated for one in state.models]))


def _over(run: Run, state: ClusterRound, model: int | None, risks: list[float | None]) -> list[int]:
    found = []
    for at, (choice, accepted) in enumerate(zip(choices(run, state), run.thresholds, strict=True)):
        risk = None if choice is None else risks[choice]
        if model in (choice, None) and risk is not None and risk > accepted:
            found.append(at)
    return found


def risk_size(mean: ClusterMean | None) -> Size | None:
    """How large a leak a model's risk is at least; None where it is not above guessing.

    By the advantage over guessing that the lower limit shows, with the words of other leaks.
    """
    if mean is None:
        return None
    least = mean.value if mean.low is None else mean.low
    return size_reached_by(2 * least - 1)


def riskiest(one: Clustered) -> ClusterMean | None:
    """The risk of the riskiest of the groups' models; None where none was measured."""
    found = [mean for name in group_names(one) if (mean := one.mean(MODEL_RISK, name))]
    return max(found, key=lambda mean: mean.value, default=None)


def gravest_size(studies: tuple[Clustered, ...]) -> Size | None:
    """The largest leak over all groups' models."""
    sizes = [
        size
        for one in studies
        for name in group_names(one)
        if (size := risk_size(one.mean(MODEL_RISK, name)))
    ]
    return largest(sizes)
