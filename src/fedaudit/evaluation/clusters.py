"""Clustered federated learning: clients' models, and their risk, accuracy and fairness.

They are stored in the notes of each round during training, and combined at the end of the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import ValidationError
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import Damaged, FedauditError, NotVisible
from fedaudit.core.seeds import seed_for, seeded, seeded_numpy
from fedaudit.core.values import ClientId, Samples
from fedaudit.datasets.partitions.schemes import IID
from fedaudit.evaluation.accuracy import model_of_each, outputs_served, some_of
from fedaudit.fl.algorithms.base import ChoosesModels, Cluster, draw_cohort
from fedaudit.fl.algorithms.ifca_mir import IfcaMir, Preference
from fedaudit.metrics import share
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.fairness import ModelRisk, fairness_gaps, violations, violations_by_chance
from fedaudit.metrics.intervals import Limited, averaged
from fedaudit.observe.measurements import Stored
from fedaudit.observe.round import Round
from fedaudit.plan.algorithm import server_risk
from fedaudit.plan.dealing import GroupedData, left_to_train
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import (
    ACCURACY,
    AGREEMENT,
    CHANCE_VIOLATIONS,
    CLIENT_ESTIMATE,
    CLIENT_RISK,
    ESTIMATE_ERROR,
    EXPECTED_VIOLATIONS,
    MODEL_ESTIMATE,
    MODEL_RISK,
    MOVED,
    MOVED_AT_THE_END,
    OWN_MODEL,
    SURE_VIOLATIONS,
    VIOLATIONS,
    Estimate,
)
from fedaudit.results.fields import Count, Limits, Part, Share
from fedaudit.results.runs import (
    ALL_CLIENTS,
    ClusterResult,
    ClusterRound,
    ModelState,
    choices,
    clients_in,
    groups_by_size,
    known_mean,
    models_of_groups,
    models_used_by,
    moves,
    shares_its_model,
)
from fedaudit.risk.server import ServerRisk, ShadowSuccess

STATE, END = "clusters", "clusters/end"
"""Names of the notes."""

MOST_RISK_SAMPLES = 5_000
"""Largest number of members, and of non-members, on which a model's risk is measured."""

COUNTED = "Clopper-Pearson 95%"


class GroupAccuracy(Limits[Share]):
    """Accuracy of one group's models on test samples from the group's distribution.

    Attributes:
        group: Name of the group.
        clients: Number of clients.
        right: Number of correct predictions, each by the model of a client with such features.
        tested: Number of test samples.
        accuracy: Share of correct predictions, with Clopper-Pearson limits.
    """

    group: str
    clients: Count
    right: Count
    tested: Count
    accuracy: Share


class FairnessGap(Limits[Share]):
    """Absolute difference between groups; 0 is equal treatment.

    Attributes:
        metric: "demographic parity", "equal opportunity" or "equalised odds"; with many classes,
            the mean over classes of one versus the others.
        value: Gap in the last measured round, with bootstrap limits.
    """

    metric: str
    value: Share


class FinalRound(Part):
    """Accuracy and fairness in the last measured round."""

    accuracy: list[GroupAccuracy]
    fairness: list[FairnessGap]
    fairness_note: str


class _TestedRound(NamedTuple):
    """A round, and the outputs of its models for test samples.

    Attributes:
        run: The run.
        round: The round in the adversary's view.
        used: Name of every client's model.
        trained: Training samples of each client.
        outputs: Outputs for each test sample, of the model that the client in ``place`` uses.
        place: For each test sample, a client whose features it resembles.
    """

    run: Setup
    round: Round
    used: dict[ClientId, str]
    trained: dict[ClientId, Samples]
    outputs: Float[Tensor, "samples outputs"]
    place: Int[Tensor, " samples"]


def is_clustered(run: Setup) -> bool:
    """Return True if clients choose among several models."""
    return isinstance(run.algorithm, ChoosesModels)


def cluster_notes(run: Setup, round: Round, device: torch.device = CPU) -> dict[str, str]:
    """Return notes on a round's models and their clients.

    The result is empty if clients do not choose among models, and for a shadow federation.
    """
    if run.is_shadow or not is_clustered(run):
        return {}
    test = run.dataset.test
    tested = _TestedRound(
        run,
        round,
        model_of_each(round, sorted(run.deal.clients)),
        left_to_train(run.deal.clients, run.holdout),
        outputs_served(round, test, run.groups.place, device),
        torch.from_numpy(run.groups.place)[test.ids],
    )
    notes = {STATE: _state(tested, device).model_dump_json()}
    if round.index == run.measured_rounds[-1]:
        notes[END] = _final_round(tested).model_dump_json()
    return notes


def _state(tested: _TestedRound, device: torch.device) -> ClusterRound:
    """Return the models after the round, each with its clients, risk, loss and accuracy."""
    run, after, chosen = tested.run, tested.round.after, tested.round.chosen
    # Clients that have not yet participated use a model, but no model was trained on their samples.
    clients = {name: [c for c in sorted(chosen) if chosen[c] == name] for name in after}
    clusters = [
        Cluster(
            model,
            sum(len(tested.trained[client]) for client in clients[name]),
            max(len(clients[name]), 1),
            max(tested.round.trained[name], 1),
            run.study.training.participation,
        )
        for name, model in after.items()
    ]
    # If the server of this algorithm measures no risk, the measurement that it could make is used.
    risk = run.algorithm.risk if isinstance(run.algorithm, IfcaMir) else None
    if not isinstance(risk, ServerRisk):
        risk = server_risk(run.study, GroupedData(run.dataset, run.deal, run.groups), run.seed)
    seed = seed_for(run.seed, "risk of real members", tested.round.index)
    estimates = replace(risk, device=device).estimate(clusters, seed=seed)
    sent = next(iter(tested.round.sent.values()), None)
    sent_risks: list[float | None] = [None] * len(after)
    if sent is not None and "risk" in sent.extra:
        sent_risks = sent.extra["risk"].tolist()
    models = []
    for name, cluster, estimate, sent_risk in zip(
        after, clusters, estimates, sent_risks, strict=True
    ):
        state: dict[str, object] = {"clients": len(clients[name]), "told": sent_risk}
        if estimate is not None:
            state |= {"samples": cluster.samples, "shadow_samples": estimate.size}
            state |= _risk_on_members(tested, estimate, name, clients[name])
        models.append(ModelState.model_validate(state | _service(tested, clients[name])))
    names = list(after)
    return ClusterRound(
        round=tested.round.index,
        choice=[names.index(name) for name in tested.used.values()],
        models=models,
    )


def _risk_on_members(
    tested: _TestedRound, estimate: ShadowSuccess, name: str, clients: Sequence[ClientId]
) -> dict[str, float | int]:
    """Return the success on real members of the attack that was fitted on shadow models."""
    run, round = tested.run, tested.round
    rng = seeded(run.seed, "asked about", round.index, name)
    like = torch.isin(tested.place, torch.tensor(clients))
    members, others = risk_samples(run, [tested.trained[c] for c in clients], like, rng=rng)
    if not len(others):
        return {"estimated": estimate.value}
    # The model that the cluster's clients trained from, if it is visible.
    bases = [round.exposed[client].base for client in clients if client in round.exposed]
    start = next((base for base in bases if base is not None), None)
    try:
        hits, false_alarms = (
            int(estimate.attack(round.after[name], part, start=start).sum())
            for part in (members, others)
        )
    except NotVisible:
        # No client trained the model in this round, so an attack on updates is impossible.
        return {"estimated": estimate.value}
    correct = len(others) - false_alarms
    risk = counted_balanced_accuracy(hits, len(members), correct, len(others))
    return {
        "estimated": estimate.value,
        "risk": risk.value,
        "low": risk.low,
        "high": risk.high,
        "members": len(members),
        "others": len(others),
    }


def _service(tested: _TestedRound, clients: Sequence[ClientId]) -> dict[str, float]:
    """Return loss and accuracy of a model on test samples from its clients' distribution."""
    mask = torch.isin(tested.place, torch.tensor(clients, dtype=torch.int64))
    if not bool(mask.any()):
        return {}
    outputs, labels = tested.outputs[mask], tested.run.dataset.test.labels[mask]
    loss = tested.run.algorithm.architecture.loss(outputs, labels).double().mean()
    accuracy = (outputs.argmax(1) == labels).double().mean()
    return {"loss": float(loss), "accuracy": float(accuracy)}


def _final_round(tested: _TestedRound) -> FinalRound:
    run, labels = tested.run, tested.run.dataset.test.labels
    predicted = tested.outputs.argmax(1)
    group_of, names = run.groups.group, run.groups.names
    group = torch.tensor([group_of[client] for client in tested.place.tolist()])
    is_correct = predicted == labels
    masks = {name: group == number for number, name in enumerate(names)}
    sizes = {name: sum(g == n for g in group_of.values()) for n, name in enumerate(names)}
    masks |= {ALL_CLIENTS: torch.ones_like(is_correct)}
    accuracy = []
    for name, mask in masks.items():
        if bool(mask.any()):
            counted = share(int(is_correct[mask].sum()), int(mask.sum()))
            accuracy.append(
                GroupAccuracy(
                    group=name,
                    clients=sizes.get(name, len(group_of)),
                    right=counted.hits,
                    tested=counted.total,
                    accuracy=counted.value,
                    low=counted.low,
                    high=counted.high,
                )
            )
    attribute = run.dataset.group
    groups = group if attribute is None else attribute[run.dataset.test.ids]
    rng = seeded_numpy(run.seed, "fairness")
    try:
        gaps = fairness_gaps(labels.numpy(), predicted.numpy(), groups.numpy(), rng=rng)
    except FedauditError as refusal:
        return FinalRound(accuracy=accuracy, fairness=[], fairness_note=str(refusal))
    fairness = [FairnessGap(metric=g.metric, value=g.value, low=g.low, high=g.high) for g in gaps]
    return FinalRound(accuracy=accuracy, fairness=fairness, fairness_note="")


class RiskSamples(NamedTuple):
    """Training samples of a model, and similar samples that it was not trained on."""

    members: Samples
    others: Samples


def risk_samples(
    run: Setup, trained: Sequence[Samples], like: Bool[Tensor, " samples"], *, rng: torch.Generator
) -> RiskSamples:
    """Return members and non-members for the measurement of a model's risk.

    If label distributions differ between clients, both sides get equal numbers of samples of each
    class. Otherwise, the classes that are frequent at the model's clients would be mistaken for
    membership.
    """
    tests = run.dataset.test.take(like)
    if not (run.parts and isinstance(run.parts.partition, IID)):
        labels, test_labels = torch.cat([samples.labels for samples in trained]), tests.labels
        is_member, is_other = torch.zeros_like(labels).bool(), torch.zeros_like(test_labels).bool()
        for number in range(run.dataset.classes):
            members, others = (
                (part == number).nonzero().flatten() for part in (labels, test_labels)
            )
            count = min(len(members), len(others))
            is_member[members[torch.randperm(len(members), generator=rng)[:count]]] = True
            is_other[others[torch.randperm(len(others), generator=rng)[:count]]] = True
        masks = torch.split(is_member, [len(samples) for samples in trained])
        trained = [samples.take(mask) for samples, mask in zip(trained, masks, strict=True)]
        tests = tests.take(is_other)
    return RiskSamples(*(some_of(side, MOST_RISK_SAMPLES, rng) for side in (trained, [tests])))


class ClusterFound(NamedTuple):
    """Models and clients of one run, and its figures."""

    choices: ClusterResult
    figures: list[Estimate]


def cluster_result(run: Setup, stored: Sequence[Stored]) -> ClusterFound | None:
    """Return one run's models, clients and risk; None if clients do not choose among models.

    Raises:
        Damaged: Notes are missing or impossible.
    """
    if not is_clustered(run):
        return None
    try:
        rounds = [ClusterRound.model_validate_json(part.notes[STATE]) for part in stored]
        end = FinalRound.model_validate_json(stored[-1].notes[END])
        return _result(run, rounds, end)
    except (KeyError, IndexError, ValidationError) as error:
        raise Damaged(
            f"notes on the models of seed {run.seed} are missing or impossible; restore the "
            "run's folder from a copy, or delete it and run the study again"
        ) from error


def thresholds(run: Setup) -> list[float]:
    """Return the highest risk that each client accepts in the federation."""
    risk, seed = run.study.risk, run.federation_seed
    preference = Preference(accepted=(risk.low, risk.high))
    return [preference.threshold(seed, client) for client in sorted(run.deal.clients)]


def _first_rounds(run: Setup) -> list[int | None]:
    """Return the first round in which each client participated; None if there was none."""
    clients, share = sorted(run.deal.clients), run.study.training.participation
    first: dict[ClientId, int] = {}
    for index in range(run.measured_rounds[-1], 0, -1):
        first |= dict.fromkeys(draw_cohort(clients, share, run.holdout.seed, index), index)
    return [first.get(client) for client in clients]


def _result(run: Setup, rounds: Sequence[ClusterRound], end: FinalRound) -> ClusterFound:
    clients, groups, first = sorted(run.deal.clients), run.groups, _first_rounds(run)
    choices = ClusterResult(
        algorithm=run.study.algorithm.name,
        defense=run.study.defense.label,
        seed=run.seed,
        measure=run.study.risk.measure,
        clients=clients,
        group_names=list(groups.names),
        group=[groups.group[client] for client in clients],
        thresholds=thresholds(run),
        rounds=list(rounds),
        joined=[] if set(first) == {1} else first,
        fairness_note=end.fairness_note,
    )
    served = [
        *(
            served_figure(
                choices,
                ACCURACY,
                (group.accuracy, group.low, group.high),
                group=group.group,
                samples=group.tested,
            )
            for group in end.accuracy
        ),
        *(served_figure(choices, g.metric, (g.value, g.low, g.high)) for g in end.fairness),
    ]
    return ClusterFound(choices, cluster_figures(choices, served))


def cluster_figures(run: ClusterResult, served: Sequence[Estimate]) -> list[Estimate]:
    """Return all figures of clustered learning in one run.

    - Accuracy of the models of each group's clients, and of all clients.
    - True and estimated risk of the model of each group (``models_of_groups``), the mean over a
      group's clients of their models' risks, and the mean error of the estimates over clients.
    - Violations of accepted risks: measured, significant and estimated ones, and the number that is
      expected if every true risk is one half.
    - Fairness gaps between groups.
    - Stability of clusters: adjusted Rand index between chosen models and groups (1 for equal
      partitions, 0 for chance), clients that use the model of their group, and clients that changed
      models between measured rounds. Choices are not compared between runs, as clients of
      different seeds have different data.

    Source: IFCA-MIR, Tables 1 and 2 and Figures 2-7.
    """
    accuracies = {figure.group: figure for figure in served if figure.metric == ACCURACY}
    names = dict.fromkeys([*_groups(run).values(), *accuracies])
    return [
        *(accuracies[name] for name in names if name in accuracies),
        *_of_models(run),
        *_of_clients(run),
        *_violations(run),
        *(figure for figure in served if figure.metric != ACCURACY),
        *_stability(run),
    ]


def served_figure(
    run: ClusterResult,
    metric: str,
    limits: tuple[float, float | None, float | None],
    *,
    group: str = ALL_CLIENTS,
    samples: int = 0,
) -> Estimate:
    """Return the figure of a group's accuracy in one run, or of a fairness gap between groups."""
    method = COUNTED if metric == ACCURACY else "bootstrap 95%"
    value, low, high = limits
    return _figure(run, metric, group, value, low=low, high=high, method=method, samples=samples)


def _figure(
    run: ClusterResult, metric: str, group: str, value: float, **fields: object
) -> Estimate:
    return Estimate.model_validate(
        {
            "topic": "clusters",
            "algorithm": run.algorithm,
            "defense": run.defense,
            "group": group,
            "seed": run.seed,
            "metric": metric,
            "value": value,
            **fields,
        }
    )


def _groups(run: ClusterResult) -> dict[int | None, str]:
    """Return names of the groups, largest first; if there are several, of all clients before."""
    names: dict[int | None, str] = {group: run.group_names[group] for group in groups_by_size(run)}
    return names if len(names) == 1 else {None: ALL_CLIENTS, **names}


def _of_models(run: ClusterResult) -> Iterator[Estimate]:
    """Yield figures of the model of each group."""
    for group, model in models_of_groups(run).items():
        name = run.group_names[group]
        if model is None:
            continue
        state = run.rounds[-1].models[model]
        note = ""
        if shares_its_model(run, group):
            note = f"most clients of the {name} use another group's model; this is the {name}'s"
        if state.risk is not None:
            limits = {"low": state.low, "high": state.high, "method": COUNTED}
            counts = {"n_members": state.members, "n_nonmembers": state.others}
            yield _figure(run, MODEL_RISK, name, state.risk, note=note, **limits, **counts)
        if state.estimated is not None:
            yield _figure(run, MODEL_ESTIMATE, name, state.estimated, note=note)
        chosen, clients = choices(run), clients_in(run, group)
        users = float(sum(chosen[client] == model for client in clients))
        yield _figure(run, OWN_MODEL, name, users, ceiling=len(clients), note=note)


def _of_clients(run: ClusterResult) -> Iterator[Estimate]:
    for group, name in _groups(run).items():
        models = [model for model in models_used_by(run, group) if model is not None]
        risks = [model.risk for model in models if model.risk is not None]
        if risks:
            limits: dict[str, object] = {}
            limited = [
                Limited(model.risk, model.low, model.high)
                for model in models
                if model.risk is not None and model.low is not None and model.high is not None
            ]
            if len(limited) == len(risks):
                # Clients share models, so limits are averaged like risks.
                low, high = averaged(limited)
                limits = {"low": low, "high": high, "method": COUNTED}
            yield _figure(run, CLIENT_RISK, name, fmean(risks), **limits)
        errors = [
            None if m.risk is None or m.estimated is None else abs(m.estimated - m.risk)
            for m in models
        ]
        figures = {
            CLIENT_ESTIMATE: known_mean([model.estimated for model in models]),
            ESTIMATE_ERROR: known_mean(errors),
        }
        for figure, value in figures.items():
            if value is not None:
                yield _figure(run, figure, name, value)


def _violations(run: ClusterResult) -> Iterator[Estimate]:
    total, limits = len(run.clients), np.array(run.thresholds)
    # A client that never participated has no violation, as no model was trained on its samples.
    models = [model or ModelState(clients=0) for model in models_used_by(run, None)]
    risks, lows, estimated = (
        np.array([np.nan if (v := getattr(model, name)) is None else v for model in models])
        for name in ("risk", "low", "estimated")
    )
    measured = violations(risks, limits, lows=lows)
    counts = {
        VIOLATIONS: measured.above,
        SURE_VIOLATIONS: measured.sure,
        EXPECTED_VIOLATIONS: violations(estimated, limits).above,
    }
    for figure, number in counts.items():
        yield _figure(run, figure, ALL_CLIENTS, float(number), ceiling=total)
    floor = _by_chance(run)
    if floor is not None:
        yield _figure(run, CHANCE_VIOLATIONS, ALL_CLIENTS, floor, ceiling=total)
    groups = _groups(run)
    for group, name in groups.items():
        if None in groups and group is not None:
            clients = clients_in(run, group)
            above = violations(risks[clients], limits[clients]).above
            yield _figure(run, VIOLATIONS, name, float(above), ceiling=len(clients))


def _by_chance(run: ClusterResult) -> float | None:
    """Return the number of violations that chance explains; None if no risk was measured."""
    chosen = choices(run)
    models = [
        ModelRisk(
            state.members,
            state.others,
            [t for t, model in zip(run.thresholds, chosen, strict=True) if model == number],
        )
        for number, state in enumerate(run.rounds[-1].models)
        if state.risk is not None and state.members and state.others
    ]
    rng = seeded_numpy(run.seed, "violations by chance")
    return violations_by_chance(models, rng=rng) if models else None


def _stability(run: ClusterResult) -> Iterator[Estimate]:
    pairs = [(g, m) for g, m in zip(run.group, choices(run), strict=True) if m is not None]
    if len(set(run.group)) > 1 and pairs:
        # Imported here, as loading it takes longer than comparing most records without clusters.
        from sklearn.metrics import adjusted_rand_score

        agreement = float(adjusted_rand_score(*zip(*pairs, strict=True)))
        yield _figure(run, AGREEMENT, ALL_CLIENTS, agreement)
    changed = moves(run)
    if changed:
        total = len(run.clients)
        moved = len({client for step in changed for client in step})
        yield _figure(run, MOVED, ALL_CLIENTS, float(moved), ceiling=total)
        yield _figure(run, MOVED_AT_THE_END, ALL_CLIENTS, float(len(changed[-1])), ceiling=total)
