"""Clustered learning: studies, their runs and their models’ names, and sentences about them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from fedaudit.report import evidence, words
from fedaudit.report.figures.drawing import Style, style
from fedaudit.report.grid import shortened
from fedaudit.report.text.membership import Bullet, Sentence
from fedaudit.results import metrics
from fedaudit.results.clusters import (
    EVERYBODY,
    ClusterResult,
    ClusterRound,
    choices,
    clients_of,
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
    return _over(run, state, [one.risk for one in state.models], model)


def surely_above(run: Run, state: ClusterRound) -> int:
    """Those for whom even the lower limit of that risk is."""
    return _over(run, state, [one.low for one in state.models])


def expected_above(run: Run, state: ClusterRound) -> int:
    """As the server's estimates have it."""
    return _over(run, state, [one.estimated for one in state.models])


def _over(
    run: Run, state: ClusterRound, risks: list[float | None], model: int | None = None
) -> int:
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
    """ "12.4 (95% interval 9.1–15.7)"."""
    limits = words.interval_of(mean)
    return words.value_of(mean) + (f" (95% interval {limits})" if limits else "")


RISK = (
    "A model’s membership risk is the balanced accuracy of an attack that tells samples it was "
    "trained on from others: 50% is guessing."
)


def cluster_bullets(record: Record) -> tuple[Bullet, ...]:
    """Findings about models and their clients: a bullet for each algorithm and defense."""
    studies = clustered_of(record)
    return tuple(
        Bullet(words.capital(label_of(one, studies)) or "Clustered learning", sentences(one))
        for one in studies
    )


def sentences(one: Clustered) -> tuple[Sentence, ...]:
    """Violations, risks, estimates, movement and accuracy, in this order."""
    parts = (
        ("Violations", violations_sentence(one)),
        ("Risk", risk_sentence(one)),
        ("Estimated against true risk", estimate_sentence(one)),
        ("Who went where", movement_sentence(one)),
        ("Accuracy", accuracy_sentence(one)),
    )
    return tuple(Sentence(name, said) for name, said in parts if said)


def violations_sentence(one: Clustered) -> str:
    """Number of clients use a model that is riskier than they accept."""
    mean, sure = one.mean(metrics.VIOLATIONS), one.mean(metrics.SURE_VIOLATIONS)
    if mean is None:
        return ""
    total = words.count(len(one.runs[0].clients))
    use = "client uses" if total == "1" else "clients use"
    said = (
        f"{in_words(mean)} of {total} {use} a model whose membership risk is above what they "
        f"accept{_over_seeds(one)}."
    )
    if sure is not None and mean.number:
        number = words.amount(sure.number) if sure.number else "none"
        said += f" Even the lower limit of that risk is for {number} of them."
    floor = one.mean(metrics.CHANCE_VIOLATIONS)
    if floor is not None:
        said += (
            f" Noise alone would put {words.amount(floor.number)} there, were the true risk of "
            "every model 50%."
        )
    if len(group_names(one)) > 1:
        parts = [
            f"{words.amount(found.number)} of {words.count(size)} of the {_name(name)}"
            for name, size in _sizes(one)
            if (found := one.mean(metrics.VIOLATIONS, name)) is not None
        ]
        said += f" By group: {words.listed(parts)}."
    return said


def risk_sentence(one: Clustered) -> str:
    """The true risk of each group's model."""
    found = [(n, mean) for n in group_names(one) if (mean := one.mean(metrics.MODEL_RISK, n))]
    if not found:
        return ""
    parts = [f"{_model_of(one, name)} {in_words(mean)}" for name, mean in found]
    notes = [f" {words.capital(words.sentence(mean.note))}" for _, mean in found if mean.note]
    return f"{words.capital(words.listed(parts))}; guessing gives 50%.{notes[0] if notes else ''}"


def estimate_sentence(one: Clustered) -> str:
    """Accuracy of the server's estimates, without hiding where they mislead."""
    error = one.mean(metrics.ESTIMATE_ERROR)
    if error is None:
        return "the server estimated no risk, so that nobody could have been warned."
    parts = []
    for name in group_names(one):
        guess, truth = one.mean(metrics.MODEL_ESTIMATE, name), one.mean(metrics.MODEL_RISK, name)
        if guess is not None and truth is not None:
            parts.append(
                f"{_model_of(one, name)}: {words.percent(guess.number)} estimated, "
                f"{words.percent(truth.number)} true ({_side(guess, truth)})"
            )
    expected, real = one.mean(metrics.EXPECTED_VIOLATIONS), one.mean(metrics.VIOLATIONS)
    counts = ""
    if expected is not None and real is not None:
        counts = (
            f" Going by the estimates, {words.amount(expected.number)} clients would be above what "
            f"they accept; by the true risks {words.amount(real.number)} are."
        )
    return _scaled(one) + (
        f"the server’s estimates are off by {100 * error.number:.1f} points in the mean over "
        f"clients. {words.capital('; '.join(parts))}.{counts}"
    )


def _scaled(one: Clustered) -> str:
    """Says so where shadow models are smaller than what they stand for."""
    down = [
        f"{words.count(model.shadow_samples)} for {words.count(model.samples)}"
        for model in one.runs[0].rounds[-1].models
        if 0 < model.shadow_samples < model.samples
    ]
    if not down:
        return ""
    first = f" in seed {one.runs[0].seed}" if len(one.runs) > 1 else ""
    return (
        f"scaled down, since the server has too few samples: shadow models are trained on "
        f"{words.listed(down)} samples{first}, and small ones overstate. By them "
    )


def _side(guess: Estimate, truth: Estimate) -> str:
    """True where an estimate lies within the interval of the truth."""
    if truth.low is None or truth.high is None:
        return "no interval"
    if truth.low <= guess.number <= truth.high:
        return "within its interval"
    return "too high" if guess.number > truth.high else "too low"


def movement_sentence(one: Clustered) -> str:
    """Models used at the end, and changes on the way."""
    parts = []
    if len(group_names(one)) > 1:
        parts = [
            f"{words.amount(mean.number)} of {words.count(size)} clients of the {_name(name)} use "
            f"{_model_of(one, name)}"
            for name, size in _sizes(one)
            if (mean := one.mean(metrics.OWN_MODEL, name)) is not None
        ]
    moved, last = one.mean(metrics.MOVED), one.mean(metrics.MOVED_AT_THE_END)
    if moved is None or last is None:
        return f"{words.listed(parts)} at the end.{_absent(one)}" if parts else ""
    changed = (
        f"{words.amount(moved.number)} of {words.count(len(one.runs[0].clients))} changed model "
        f"between measured rounds, {words.amount(last.number)} of them before the last one."
    )
    agreement = one.mean(metrics.AGREEMENT)
    near = ""
    if agreement is not None:
        near = (
            f" Models and groups agree by {agreement.number:.2f} (adjusted Rand index: 1 is the "
            "groups themselves, 0 chance)."
        ).replace("-", "−")
    said = f"{words.listed(parts)} at the end. {changed}" if parts else changed
    return said + near + _absent(one)


def _absent(one: Clustered) -> str:
    """Clients that took part in no round so far, who are in no model."""
    most = max(choices(run).count(None) for run in one.runs)
    if not most:
        return ""
    upto = "Up to " if len(one.runs) > 1 else ""
    return (
        f" {upto}{words.count(most)} of {words.count(len(one.runs[0].clients))} took part in no "
        "round: their samples are in no model, and they count among no model’s clients."
    )


def accuracy_sentence(one: Clustered) -> str:
    """Accuracy of each group's clients with the models that they chose."""
    found = [
        f"{_name(name)} {in_words(mean)}"
        for name in (EVERYBODY, *group_names(one))
        if (mean := one.mean(metrics.ACCURACY, name)) is not None
    ]
    return f"{words.listed(list(dict.fromkeys(found)))}." if found else ""


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
        return "Nobody’s membership risk was measured"
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
        return (
            "That the measure used here tells members apart is not shown for any of the groups’ "
            "models. Another attack may do better than this one."
        )
    return (
        f"By its lower limit a model’s risk is {evidence.a_leak(size)}. A client that accepts "
        "less than its model’s risk gets less protection than it asked for. The risk is that of "
        "one attack: another may do better."
    )


def cluster_question(studies: Sequence[Clustered]) -> str:
    """Question that was asked of the models."""
    models = max(len(one.runs[0].rounds[-1].models) for one in studies)
    measures = evidence.distinct(shortened(run.measure, 40) for one in studies for run in one.runs)
    return (
        f"of its {words.plural(models, 'model')}, between which clients choose: can samples that "
        f"one was trained on be told from others ({words.listed(measures)}; guessing is right for "
        "50%), and is that more than its clients accept?"
    )


def _over_seeds(one: Clustered) -> str:
    return f", on average over {words.plural(len(one.runs), 'seed')}" if len(one.runs) > 1 else ""


def _sizes(one: Clustered) -> list[tuple[str, int]]:
    run = one.runs[0]
    return [(run.group_names[g], len(clients_of(run, g))) for g in groups_by_size(run)]


def _name(group: str) -> str:
    return shortened(group, 40)


def _model_of(one: Clustered, group: str) -> str:
    if len(group_names(one)) == 1:
        return "the model of most clients"
    return f"the {_name(group)}’s model"
