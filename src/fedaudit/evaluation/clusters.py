"""Evaluation of clustered federated learning: model choices, membership risk, accuracy, fairness.

Values of each round are stored with its measurements during training. Estimates are computed from
the values of all rounds at the end of a run.
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
from fedaudit.evaluation.accuracy import chosen_models, outputs_of_chosen_models, random_samples
from fedaudit.fl.algorithms.base import ChoosesModels, Cluster
from fedaudit.fl.algorithms.ifca_mir import IfcaMir, Preference
from fedaudit.metrics import proportion
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.fairness import ModelRisk, fairness_gaps, violations, violations_by_chance
from fedaudit.metrics.intervals import EstimateWithLimits, mean_limits_if_dependent
from fedaudit.observe.measurements import StoredRound
from fedaudit.observe.round import Round
from fedaudit.plan.algorithm import server_risk
from fedaudit.plan.assignment import GroupedData, training_samples
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import (
    ACCURACY,
    CHANCE_VIOLATIONS,
    CLIENT_ESTIMATE,
    CLIENT_RISK,
    CLIENTS_OF_MODEL,
    ESTIMATE_ERROR,
    EXPECTED_VIOLATIONS,
    GROUP_AGREEMENT,
    MODEL_ESTIMATE,
    MODEL_RISK,
    MOVED_AT_THE_END,
    MOVED_CLIENTS,
    SIGNIFICANT_VIOLATIONS,
    VIOLATIONS,
    Estimate,
)
from fedaudit.results.fields import Count, Fraction, RecordLimits, RecordPart
from fedaudit.results.runs import (
    ALL_CLIENTS,
    ClusterResult,
    ClusterRound,
    ModelState,
    clients_in,
    groups_by_size,
    mean_or_none,
    model_changes,
    model_choices,
    models_of_groups,
    models_used_by,
    shares_its_model,
)
from fedaudit.risk.server import ServerRisk, ShadowSuccess

CLUSTER_ROUND_KEY, FINAL_ROUND_KEY = "clusters", "clusters/end"
"""Keys of a measured round's notes, whose values are JSON.

``CLUSTER_ROUND_KEY`` is the key of a :class:`ClusterRound`, and ``FINAL_ROUND_KEY`` that of a
:class:`FinalRound`.
"""

_MAX_RISK_SAMPLES = 5_000
"""Largest number of members, and of non-members, on which a model's risk is measured."""

CLOPPER_PEARSON = "Clopper-Pearson 95%"


class GroupAccuracy(RecordLimits[Fraction]):
    """Accuracy of a group's models on test samples from the group's distribution.

    Attributes:
        group: Name of the group.
        clients: Number of clients.
        right: Number of correct predictions. Each sample is classified by the model of a client
            whose training samples have similar features.
        tested: Number of test samples.
        accuracy: Fraction of correct predictions, with Clopper-Pearson limits.
    """

    group: str
    clients: Count
    right: Count
    tested: Count
    accuracy: Fraction


class FairnessGap(RecordLimits[Fraction]):
    """Absolute difference between groups; 0 means equal treatment.

    Attributes:
        metric: "demographic parity", "equal opportunity" or "equalised odds". With more than two
            classes, the value is the mean over one-vs-rest comparisons of the classes.
        value: Difference in the last measured round, with bootstrap limits.
    """

    metric: str
    value: Fraction


class FinalRound(RecordPart):
    """Accuracy and fairness in the last measured round."""

    accuracy: list[GroupAccuracy]
    fairness: list[FairnessGap]
    fairness_note: str


class _TestedRound(NamedTuple):
    """A round, and the outputs of its models for test samples.

    Attributes:
        run: The run.
        round: The round in the adversary's view.
        model_names: Name of each client's model. Clients that have not participated yet have the
            first model.
        training_data: Training samples of each client.
        similar_client: For each test sample, a client whose training samples have similar features.
        outputs: Output for each test sample, computed by the model of ``similar_client``.
    """

    run: Setup
    round: Round
    model_names: dict[ClientId, str]
    training_data: dict[ClientId, Samples]
    similar_client: Int[Tensor, " samples"]
    outputs: Float[Tensor, "samples outputs"]


def is_clustered(run: Setup) -> bool:
    """Return True if clients choose among several models."""
    return isinstance(run.algorithm, ChoosesModels)


def cluster_notes(run: Setup, round: Round, device: torch.device = CPU) -> dict[str, str]:
    """Evaluate a round's models, and return the results as JSON, to be stored with the round.

    The keys are ``CLUSTER_ROUND_KEY``, and ``FINAL_ROUND_KEY`` after the last round. The result is
    empty for a shadow federation, and if clients do not choose among models.
    """
    if run.is_auxiliary or not is_clustered(run):
        return {}
    test = run.dataset.test
    tested = _TestedRound(
        run,
        round,
        chosen_models(round, sorted(run.assignment.clients)),
        training_samples(run.assignment.clients, run.holdout),
        torch.from_numpy(run.groups.similar_client)[test.ids],
        outputs_of_chosen_models(round, test, run.groups.similar_client, device),
    )
    notes = {CLUSTER_ROUND_KEY: _cluster_round(tested, device).model_dump_json()}
    if round.index == run.measured_rounds[-1]:
        notes[FINAL_ROUND_KEY] = _final_round(tested).model_dump_json()
    return notes


def _cluster_round(tested: _TestedRound, device: torch.device) -> ClusterRound:
    """Return the models after the round, each with its clients, risk, loss and accuracy."""
    run, after = tested.run, tested.round.after
    # Only clients that have participated: no model was trained on the samples of the others.
    chosen = tested.round.chosen
    clients = {name: [c for c in sorted(chosen) if chosen[c] == name] for name in after}
    clusters = [
        Cluster(
            model,
            sum(len(tested.training_data[client]) for client in clients[name]),
            max(len(clients[name]), 1),
            max(tested.round.trained[name], 1),
            run.study.training.participation,
        )
        for name, model in after.items()
    ]
    # If the algorithm's server does not estimate risks, estimate them here with the same method.
    estimator = run.algorithm.risk if isinstance(run.algorithm, IfcaMir) else None
    if not isinstance(estimator, ServerRisk):
        data = GroupedData(run.dataset, run.assignment, run.groups)
        estimator = server_risk(run.study, data, run.seed)
    seed = seed_for(run.seed, "risk of real members", tested.round.index)
    estimates = replace(estimator, device=device).estimate(clusters, seed=seed)
    message = next(iter(tested.round.sent.values()), None)
    sent_risks: list[float | None] = [None] * len(after)
    if message is not None and "risk" in message.extra:
        sent_risks = message.extra["risk"].tolist()
    models = []
    for name, cluster, estimate, sent_risk in zip(
        after, clusters, estimates, sent_risks, strict=True
    ):
        state: dict[str, object] = {"clients": len(clients[name]), "told": sent_risk}
        if estimate is not None:
            state |= {"samples": cluster.samples, "shadow_samples": estimate.size}
            state |= _risk_on_members(tested, estimate, name, clients[name])
        models.append(ModelState.model_validate(state | _utility(tested, clients[name])))
    names = list(after)
    return ClusterRound(
        round=tested.round.index,
        choice=[names.index(name) for name in tested.model_names.values()],
        models=models,
    )


def _risk_on_members(
    tested: _TestedRound, estimate: ShadowSuccess, name: str, clients: Sequence[ClientId]
) -> dict[str, float | int]:
    """Return the success on real members of an attack that was fitted on shadow models."""
    run, round = tested.run, tested.round
    rng = seeded(run.seed, "asked about", round.index, name)
    is_similar = torch.isin(tested.similar_client, torch.tensor(clients))
    training_data = [tested.training_data[client] for client in clients]
    members, nonmembers = risk_samples(run, training_data, is_similar, rng=rng)
    if not len(nonmembers):
        return {"estimated": estimate.value}
    # The model that the cluster's clients received, if it is visible.
    bases = [round.observed[client].base for client in clients if client in round.observed]
    start = next((base for base in bases if base is not None), None)
    model = round.after[name]
    try:
        hits = int(estimate.attack(model, members, start=start).sum())
        false_alarms = int(estimate.attack(model, nonmembers, start=start).sum())
    except NotVisible:
        # No client trained the model in this round, so an attack on updates is impossible.
        return {"estimated": estimate.value}
    rejections = len(nonmembers) - false_alarms
    risk = counted_balanced_accuracy(hits, len(members), rejections, len(nonmembers))
    return {
        "estimated": estimate.value,
        "risk": risk.value,
        "low": risk.low,
        "high": risk.high,
        "members": len(members),
        "others": len(nonmembers),
    }


def _utility(tested: _TestedRound, clients: Sequence[ClientId]) -> dict[str, float]:
    """Return loss and accuracy of a model on test samples from its clients' distribution."""
    mask = torch.isin(tested.similar_client, torch.tensor(clients, dtype=torch.int64))
    if not bool(mask.any()):
        return {}
    outputs, labels = tested.outputs[mask], tested.run.dataset.test.labels[mask]
    loss = tested.run.algorithm.architecture.loss(outputs, labels).double().mean()
    accuracy = (outputs.argmax(1) == labels).double().mean()
    return {"loss": float(loss), "accuracy": float(accuracy)}


def _final_round(tested: _TestedRound) -> FinalRound:
    run, labels = tested.run, tested.run.dataset.test.labels
    predicted = tested.outputs.argmax(1)
    is_correct = predicted == labels
    client_group = run.groups.group
    sample_groups = torch.tensor(
        [client_group[client] for client in tested.similar_client.tolist()]
    )
    masks = {name: sample_groups == number for number, name in enumerate(run.groups.names)}
    n_clients = {
        name: list(client_group.values()).count(number)
        for number, name in enumerate(run.groups.names)
    }
    masks[ALL_CLIENTS] = torch.ones_like(is_correct)
    accuracy = []
    for name, mask in masks.items():
        if bool(mask.any()):
            correct = proportion(int(is_correct[mask].sum()), int(mask.sum()))
            accuracy.append(
                GroupAccuracy(
                    group=name,
                    clients=n_clients.get(name, len(client_group)),
                    right=correct.hits,
                    tested=correct.total,
                    accuracy=correct.value,
                    low=correct.low,
                    high=correct.high,
                )
            )
    # Fairness is compared between values of a protected attribute, or else between client groups.
    attribute = run.dataset.group
    groups = sample_groups if attribute is None else attribute[run.dataset.test.ids]
    rng = seeded_numpy(run.seed, "fairness")
    try:
        gaps = fairness_gaps(labels.numpy(), predicted.numpy(), groups.numpy(), rng=rng)
    except FedauditError as refusal:
        return FinalRound(accuracy=accuracy, fairness=[], fairness_note=str(refusal))
    fairness = [
        FairnessGap(metric=gap.metric, value=gap.value, low=gap.low, high=gap.high) for gap in gaps
    ]
    return FinalRound(accuracy=accuracy, fairness=fairness, fairness_note="")


class RiskSamples(NamedTuple):
    """Training samples of a model, and test samples with similar features."""

    members: Samples
    nonmembers: Samples


def risk_samples(
    run: Setup,
    training_data: Sequence[Samples],
    is_similar: Bool[Tensor, " samples"],
    *,
    rng: torch.Generator,
) -> RiskSamples:
    """Return members and non-members for the measurement of a model's risk.

    If label distributions differ between clients, members and non-members have equal numbers of
    samples of each class. Otherwise, an attack could succeed by recognising classes that are
    frequent at the model's clients.

    Args:
        run: The run.
        training_data: Training samples of each of the model's clients.
        is_similar: Whether each test sample has features like those of the model's clients.
        rng: Random numbers.
    """
    test = run.dataset.test.take(is_similar)
    if not (run.parts and isinstance(run.parts.partition, IID)):
        labels = torch.cat([samples.labels for samples in training_data])
        is_member = torch.zeros(len(labels), dtype=torch.bool)
        is_nonmember = torch.zeros(len(test), dtype=torch.bool)
        for label in range(run.dataset.classes):
            positions = (labels == label).nonzero().flatten()
            test_positions = (test.labels == label).nonzero().flatten()
            count = min(len(positions), len(test_positions))
            for mask, rows in ((is_member, positions), (is_nonmember, test_positions)):
                mask[rows[torch.randperm(len(rows), generator=rng)[:count]]] = True
        masks = torch.split(is_member, [len(samples) for samples in training_data])
        training_data = [
            samples.take(mask) for samples, mask in zip(training_data, masks, strict=True)
        ]
        test = test.take(is_nonmember)
    members = random_samples(training_data, _MAX_RISK_SAMPLES, rng)
    return RiskSamples(members, random_samples([test], _MAX_RISK_SAMPLES, rng))


class ClusterEvaluation(NamedTuple):
    """Models and clients of one run, and its estimates."""

    clusters: ClusterResult
    estimates: list[Estimate]


def cluster_result(run: Setup, stored: Sequence[StoredRound]) -> ClusterEvaluation | None:
    """Return the models, clients and estimates of a run; None if clients do not choose models.

    Raises:
        Damaged: Notes are missing or invalid.
    """
    if not is_clustered(run):
        return None
    try:
        rounds = [
            ClusterRound.model_validate_json(round.notes[CLUSTER_ROUND_KEY]) for round in stored
        ]
        last = FinalRound.model_validate_json(stored[-1].notes[FINAL_ROUND_KEY])
        return _evaluate(run, rounds, last)
    except (KeyError, IndexError, ValidationError) as error:
        raise Damaged(
            f"the measured rounds of seed {run.seed} lack valid notes on clusters; delete the "
            "run's folder and run the study again"
        ) from error


def thresholds(run: Setup) -> list[float]:
    """Return the highest membership risk that each client accepts."""
    settings, seed = run.study.risk, run.federation_seed
    preference = Preference(accepted=(settings.low, settings.high))
    return [preference.threshold(seed, client) for client in sorted(run.assignment.clients)]


def _first_rounds(run: Setup) -> list[int | None]:
    """Return the first round in which each client participated; None if it never did."""
    first_rounds: dict[ClientId, int] = {}
    for index in range(1, run.measured_rounds[-1] + 1):
        for client in run.cohort(index):
            first_rounds.setdefault(client, index)
    return [first_rounds.get(client) for client in sorted(run.assignment.clients)]


def _evaluate(run: Setup, rounds: Sequence[ClusterRound], last: FinalRound) -> ClusterEvaluation:
    clients, groups, first = sorted(run.assignment.clients), run.groups, _first_rounds(run)
    clusters = ClusterResult(
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
        fairness_note=last.fairness_note,
    )
    utility = []
    for group in last.accuracy:
        value_with_limits = (group.accuracy, group.low, group.high)
        utility.append(
            utility_estimate(
                clusters, ACCURACY, value_with_limits, group=group.group, samples=group.tested
            )
        )
    for gap in last.fairness:
        utility.append(utility_estimate(clusters, gap.metric, (gap.value, gap.low, gap.high)))
    return ClusterEvaluation(clusters, cluster_estimates(clusters, utility))


def cluster_estimates(run: ClusterResult, utility: Sequence[Estimate]) -> list[Estimate]:
    """Return all estimates of clustered learning in one run.

    - Accuracy of the models of each group's clients, and of all clients.
    - Membership risk of the model of each group (``models_of_groups``): measured, and estimated by
      the server. Also means over the clients of each group of their models' risks, and of the error
      of the server's estimates.
    - Number of clients with a model whose risk is higher than they accept (violations), in four
      variants: by measured risks, only significantly higher risks, by the server's estimates, and
      expected by chance if every risk is 0.5.
    - Fairness gaps between groups.
    - Adjusted Rand index between models and groups: 1 for equal partitions, 0 for chance.
    - Number of clients that use the model of their group, and of clients that changed models
      between measured rounds. These are not compared between runs, because clients of different
      seeds have different data.

    Source: Jung et al. 2025 (IFCA-MIR), Tables 1 and 2 and Figures 2-7.

    Args:
        run: Models, clients and risks of the run.
        utility: Accuracies and fairness gaps, from :func:`utility_estimate`.
    """
    accuracies = {estimate.group: estimate for estimate in utility if estimate.metric == ACCURACY}
    names = dict.fromkeys([*_group_names(run).values(), *accuracies])
    return [
        *(accuracies[name] for name in names if name in accuracies),
        *_model_estimates(run),
        *_client_estimates(run),
        *_violation_estimates(run),
        *(estimate for estimate in utility if estimate.metric != ACCURACY),
        *_stability_estimates(run),
    ]


def utility_estimate(
    run: ClusterResult,
    metric: str,
    value_with_limits: tuple[float, float | None, float | None],
    *,
    group: str = ALL_CLIENTS,
    samples: int = 0,
) -> Estimate:
    """Return a group's accuracy in one run, or a fairness gap between groups.

    Args:
        run: The run.
        metric: Accuracy, or the name of a fairness gap.
        value_with_limits: Value, lower and upper limit.
        group: Name of the group.
        samples: Number of test samples.
    """
    method = CLOPPER_PEARSON if metric == ACCURACY else "bootstrap 95%"
    value, low, high = value_with_limits
    return _estimate(run, metric, group, value, low=low, high=high, method=method, samples=samples)


def _estimate(
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


def _group_names(run: ClusterResult) -> dict[int | None, str]:
    """Return the names of groups by number, largest first.

    If there are several groups, the first entry is for all clients, with the key None.
    """
    names: dict[int | None, str] = {group: run.group_names[group] for group in groups_by_size(run)}
    return names if len(names) == 1 else {None: ALL_CLIENTS, **names}


def _model_estimates(run: ClusterResult) -> Iterator[Estimate]:
    """Yield risk and number of users of the model of each group."""
    for group, model in models_of_groups(run).items():
        name = run.group_names[group]
        if model is None:
            continue
        state = run.rounds[-1].models[model]
        note = ""
        if shares_its_model(run, group):
            note = (
                f"most clients of group {name!r} use another group's model; this is about the "
                "model assigned to their own group"
            )
        if state.risk is not None:
            limits = {"low": state.low, "high": state.high, "method": CLOPPER_PEARSON}
            counts = {"n_members": state.members, "n_nonmembers": state.others}
            yield _estimate(run, MODEL_RISK, name, state.risk, note=note, **limits, **counts)
        if state.estimated is not None:
            yield _estimate(run, MODEL_ESTIMATE, name, state.estimated, note=note)
        chosen_model, clients = model_choices(run), clients_in(run, group)
        users = float(sum(chosen_model[client] == model for client in clients))
        yield _estimate(run, CLIENTS_OF_MODEL, name, users, ceiling=len(clients), note=note)


def _client_estimates(run: ClusterResult) -> Iterator[Estimate]:
    """Yield mean risks over the clients of each group; a client has the risk of its model."""
    for group, name in _group_names(run).items():
        models = [model for model in models_used_by(run, group) if model is not None]
        risks = [model.risk for model in models if model.risk is not None]
        if risks:
            limits: dict[str, object] = {}
            risk_estimates = [
                EstimateWithLimits(model.risk, model.low, model.high)
                for model in models
                if model.risk is not None and model.low is not None and model.high is not None
            ]
            if len(risk_estimates) == len(risks):
                # Clients share models, so their risks are dependent.
                low, high = mean_limits_if_dependent(risk_estimates)
                limits = {"low": low, "high": high, "method": CLOPPER_PEARSON}
            yield _estimate(run, CLIENT_RISK, name, fmean(risks), **limits)
        errors = [
            abs(model.estimated - model.risk)
            if model.risk is not None and model.estimated is not None
            else None
            for model in models
        ]
        means = {
            CLIENT_ESTIMATE: mean_or_none([model.estimated for model in models]),
            ESTIMATE_ERROR: mean_or_none(errors),
        }
        for metric, value in means.items():
            if value is not None:
                yield _estimate(run, metric, name, value)


def _violation_estimates(run: ClusterResult) -> Iterator[Estimate]:
    total, accepted = len(run.clients), np.array(run.thresholds)
    # A client that never participated has no violation, since no model was trained on its samples.
    models = [model or ModelState(clients=0) for model in models_used_by(run, None)]
    # NumPy converts None to NaN.
    risks = np.array([model.risk for model in models], dtype=float)
    lower_limits = np.array([model.low for model in models], dtype=float)
    estimated_risks = np.array([model.estimated for model in models], dtype=float)
    measured = violations(risks, accepted, lows=lower_limits)
    counts = {
        VIOLATIONS: measured.above,
        SIGNIFICANT_VIOLATIONS: measured.significant,
        EXPECTED_VIOLATIONS: violations(estimated_risks, accepted).above,
    }
    for metric, count in counts.items():
        yield _estimate(run, metric, ALL_CLIENTS, float(count), ceiling=total)
    by_chance = _violations_by_chance(run)
    if by_chance is not None:
        yield _estimate(run, CHANCE_VIOLATIONS, ALL_CLIENTS, by_chance, ceiling=total)
    groups = _group_names(run)
    for group, name in groups.items():
        if None in groups and group is not None:
            clients = clients_in(run, group)
            count = violations(risks[clients], accepted[clients]).above
            yield _estimate(run, VIOLATIONS, name, float(count), ceiling=len(clients))


def _violations_by_chance(run: ClusterResult) -> float | None:
    """Return the number of violations that chance explains; None if no risk was measured."""
    chosen_model = model_choices(run)
    models = []
    for number, state in enumerate(run.rounds[-1].models):
        if state.risk is not None and state.members and state.others:
            thresholds_of_users = [
                threshold
                for threshold, model in zip(run.thresholds, chosen_model, strict=True)
                if model == number
            ]
            models.append(ModelRisk(state.members, state.others, thresholds_of_users))
    rng = seeded_numpy(run.seed, "violations by chance")
    return violations_by_chance(models, rng=rng) if models else None


def _stability_estimates(run: ClusterResult) -> Iterator[Estimate]:
    groups_and_models = [
        (group, model)
        for group, model in zip(run.group, model_choices(run), strict=True)
        if model is not None
    ]
    if len(set(run.group)) > 1 and groups_and_models:
        # Imported here, since loading it is slow and comparisons of records rarely need it.
        from sklearn.metrics import adjusted_rand_score

        agreement = float(adjusted_rand_score(*zip(*groups_and_models, strict=True)))
        yield _estimate(run, GROUP_AGREEMENT, ALL_CLIENTS, agreement)
    changed_by_round = model_changes(run)
    if changed_by_round:
        total = len(run.clients)
        n_ever_moved = float(len({client for changed in changed_by_round for client in changed}))
        n_moved_last = float(len(changed_by_round[-1]))
        yield _estimate(run, MOVED_CLIENTS, ALL_CLIENTS, n_ever_moved, ceiling=total)
        yield _estimate(run, MOVED_AT_THE_END, ALL_CLIENTS, n_moved_last, ceiling=total)
