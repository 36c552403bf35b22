"""Clustered learning: clients' models, their risk, accuracy and fairness.

They are noted round by round while a federation trains, and put together at the end of its run.
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
from fedaudit.fl.algorithms.base import ChoosesModels, draw_cohort
from fedaudit.fl.algorithms.ifca_mir import Cluster, IfcaMir
from fedaudit.metrics import share
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.fairness import ModelRisk, fairness_gaps, violations, violations_by_chance
from fedaudit.metrics.intervals import Limited, averaged
from fedaudit.observe.measurements import Stored
from fedaudit.observe.round import Round
from fedaudit.plan.algorithm import accepted, server_risk
from fedaudit.plan.dealing import GroupedData, left_to_train
from fedaudit.plan.parts import Setup
from fedaudit.results.clusters import (
    EVERYBODY,
    ClusterResult,
    ClusterRound,
    ModelState,
    choices,
    clients_in,
    groups_by_size,
    known_mean,
    models_of_groups,
    moves,
    shares_its_model,
    used_by,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.fields import Limits, Part, Share, Whole
from fedaudit.results.metrics import (
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
)
from fedaudit.risk.server import ServerRisk, ShadowSuccess

STATE, END = "clusters", "clusters/end"
"""Names of the notes."""

MOST_RISK_SAMPLES = 5_000
"""Real members of a model, and as many unseen samples, that its risk is measured on, at most."""

COUNTED = "Clopper-Pearson 95%"


class GroupAccuracy(Limits[Share]):
    """Test samples like those of one group of clients, classified by these clients' models.

    Attributes:
        group: Its name.
        clients: How many there are.
        right: Samples that the model of the client whose shift they have classifies correctly.
        tested: Such samples.
        accuracy: Their share, with Clopper-Pearson limits.
    """

    group: str
    clients: Whole
    right: Whole
    tested: Whole
    accuracy: Share


class FairnessGap(Limits[Share]):
    """An absolute difference between the groups; 0 is equal treatment.

    Attributes:
        metric: "demographic parity", "equal opportunity" or "equalised odds"; with many classes
            the mean over classes, one against the rest.
        value: The gap at the last measured round, with bootstrap limits.
    """

    metric: str
    value: Share


class AtTheEnd(Part):
    """Counts of the last measured round only."""

    accuracy: list[GroupAccuracy]
    fairness: list[FairnessGap]
    fairness_note: str


class _Seen(NamedTuple):
    """A round, and the outputs of its models for the test part, each sample by its place's model.

    Attributes:
        run: The run.
        round: As the adversary sees it.
        used: Name of every client's model.
        trained: What each client trains on.
        outputs: Of the test samples.
        place: For each test sample, the client whose data it is like.
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
    """Return a round's models and their clients as text; nothing if clients do not choose.

    Nothing is noted of a shadow federation, which no record shows.

    Args:
        run: The run.
        round: As the adversary sees it.
        device: Where models are run.
    """
    if run.is_shadow or not is_clustered(run):
        return {}
    test = run.dataset.test
    seen = _Seen(
        run,
        round,
        model_of_each(round, sorted(run.deal.clients)),
        left_to_train(run.deal.clients, run.holdout),
        outputs_served(round, test, run.groups.place, device),
        torch.from_numpy(run.groups.place)[test.ids],
    )
    notes = {STATE: _state(seen, device).model_dump_json()}
    if round.index == run.measured_rounds[-1]:
        notes[END] = _end(seen).model_dump_json()
    return notes


def _state(seen: _Seen, device: torch.device) -> ClusterRound:
    """Return the models after the round, each with its clients, its risk and its service."""
    run, after, chosen = seen.run, seen.round.after, seen.round.chosen
    # Who was never asked uses a model as well, but no model has seen its samples.
    clients = {name: [c for c in sorted(chosen) if chosen[c] == name] for name in after}
    clusters = [
        Cluster(
            model,
            sum(len(seen.trained[client]) for client in clients[name]),
            max(len(clients[name]), 1),
            max(seen.round.trained[name], 1),
            run.study.training.participation,
        )
        for name, model in after.items()
    ]
    # The server's own measure of risk where it has one, and otherwise the one it could have.
    risk = run.algorithm.risk if isinstance(run.algorithm, IfcaMir) else None
    if not isinstance(risk, ServerRisk):
        risk = server_risk(run.study, GroupedData(run.dataset, run.deal, run.groups), run.seed)
    seed = seed_for(run.seed, "risk of real members", seen.round.index)
    judged = replace(risk, device=device).estimate(clusters, seed=seed)
    sent = next(iter(seen.round.sent.values()), None)
    told: list[float | None] = [None] * len(after)
    if sent is not None and "risk" in sent.extra:
        told = sent.extra["risk"].tolist()
    models = [
        ModelState.model_validate(
            {"clients": len(clients[name]), "told": tell}
            | ({} if judge is None else {"samples": one.samples, "shadow_samples": judge.size})
            | ({} if judge is None else _real_risk(seen, judge, name, clients[name]))
            | _service(seen, clients[name])
        )
        for name, one, judge, tell in zip(after, clusters, judged, told, strict=True)
    ]
    names = list(after)
    return ClusterRound(
        round=seen.round.index,
        choice=[names.index(used) for used in seen.used.values()],
        models=models,
    )


def _real_risk(
    seen: _Seen, judge: ShadowSuccess, name: str, clients: Sequence[ClientId]
) -> dict[str, float | int]:
    """Return the success on real members of the attack that was fitted on a model's shadows."""
    run, round = seen.run, seen.round
    rng = seeded(run.seed, "asked about", round.index, name)
    like = torch.isin(seen.place, torch.tensor(clients))
    members, others = risk_samples(run, [seen.trained[c] for c in clients], like, rng=rng)
    if not len(others):
        return {"estimated": judge.value}
    # The model that the cluster's clients trained from, if it is visible.
    bases = [round.exposed[client].base for client in clients if client in round.exposed]
    start = next((base for base in bases if base is not None), None)
    try:
        found, let_go = (
            int(judge.decide(round.after[name], part, start=start).sum())
            for part in (members, others)
        )
    except NotVisible:
        # No client trained the model in this round: an attack on updates has nothing to look at.
        return {"estimated": judge.value}
    real = counted_balanced_accuracy(found, len(members), len(others) - let_go, len(others))
    return {
        "estimated": judge.value,
        "risk": real.value,
        "low": real.low,
        "high": real.high,
        "members": len(members),
        "others": len(others),
    }


def _service(seen: _Seen, clients: Sequence[ClientId]) -> dict[str, float]:
    """Return loss and accuracy of a model on test samples like its clients'."""
    mine = torch.isin(seen.place, torch.tensor(clients, dtype=torch.int64))
    if not bool(mine.any()):
        return {}
    outputs, labels = seen.outputs[mine], seen.run.dataset.test.labels[mine]
    loss = seen.run.algorithm.architecture.loss(outputs, labels).double().mean()
    right = (outputs.argmax(1) == labels).double().mean()
    return {"loss": float(loss), "accuracy": float(right)}


def _end(seen: _Seen) -> AtTheEnd:
    """Return accuracy and fairness of the groups of clients."""
    run, labels = seen.run, seen.run.dataset.test.labels
    predicted = seen.outputs.argmax(1)
    of_client, names = run.groups.group, run.groups.names
    group = torch.tensor([of_client[client] for client in seen.place.tolist()])
    right = predicted == labels
    parts = {name: group == number for number, name in enumerate(names)}
    sizes = {name: sum(of == n for of in of_client.values()) for n, name in enumerate(names)}
    parts |= {EVERYBODY: torch.ones_like(right)}
    accuracy = []
    for name, part in parts.items():
        if bool(part.any()):
            counted = share(int(right[part].sum()), int(part.sum()))
            accuracy.append(
                GroupAccuracy(
                    group=name,
                    clients=sizes.get(name, len(of_client)),
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
        return AtTheEnd(accuracy=accuracy, fairness=[], fairness_note=str(refusal))
    fairness = [FairnessGap(metric=g.metric, value=g.value, low=g.low, high=g.high) for g in gaps]
    return AtTheEnd(accuracy=accuracy, fairness=fairness, fairness_note="")


class RiskSamples(NamedTuple):
    """Samples that a model was trained on, and others like them that it was not."""

    members: Samples
    others: Samples


def risk_samples(
    run: Setup, trained: Sequence[Samples], like: Bool[Tensor, " samples"], *, rng: torch.Generator
) -> RiskSamples:
    """Return members and non-members that are asked about.

    Where clients' classes are skewed, there are as many samples of each class on both sides:
    otherwise a class that the clients have much of, and that their model therefore expects, would
    pass for membership.

    Args:
        run: The run.
        trained: What each of the model's clients trains on.
        like: Test samples that are shifted as these clients' are.
        rng: Draws samples.
    """
    kept, tests = trained, run.dataset.test.take(like)
    if not (run.parts and isinstance(run.parts.partition, IID)):
        labels, free = torch.cat([samples.labels for samples in trained]), tests.labels
        inside, outside = torch.zeros_like(labels).bool(), torch.zeros_like(free).bool()
        for number in range(run.dataset.classes):
            members, others = ((of == number).nonzero().flatten() for of in (labels, free))
            most = min(len(members), len(others))
            inside[members[torch.randperm(len(members), generator=rng)[:most]]] = True
            outside[others[torch.randperm(len(others), generator=rng)[:most]]] = True
        parts = torch.split(inside, [len(samples) for samples in trained])
        kept = [samples.take(part) for samples, part in zip(trained, parts, strict=True)]
        tests = tests.take(outside)
    return RiskSamples(*(some_of(side, MOST_RISK_SAMPLES, rng) for side in (kept, [tests])))


class ClusterFound(NamedTuple):
    """The models and clients of one run, and its figures."""

    choices: ClusterResult
    figures: list[Estimate]


def cluster_result(run: Setup, stored: Sequence[Stored]) -> ClusterFound | None:
    """Return one run's models, their clients and their risk; None where clients do not choose.

    Args:
        run: The run.
        stored: Its measured rounds.

    Raises:
        Damaged: Notes are missing, or cannot be.
    """
    if not is_clustered(run):
        return None
    try:
        rounds = [ClusterRound.model_validate_json(one.notes[STATE]) for one in stored]
        end = AtTheEnd.model_validate_json(stored[-1].notes[END])
        return _result(run, rounds, end)
    except (KeyError, IndexError, ValidationError) as error:
        raise Damaged(
            f"what is known of the models of seed {run.seed} is missing or cannot be; restore "
            "the run's folder from a copy, or delete it and run the study again"
        ) from error


def thresholds(run: Setup) -> list[float]:
    """Return the highest risk that each client accepts, as it has it in the federation itself."""
    preference, seed = accepted(run.study), run.federation_seed
    return [preference.threshold(seed, client) for client in sorted(run.deal.clients)]


def _joined(run: Setup) -> list[int | None]:
    """Return the first round that each client took part in; None where there was none."""
    clients, share = sorted(run.deal.clients), run.study.training.participation
    first: dict[ClientId, int] = {}
    for index in range(run.measured_rounds[-1], 0, -1):
        first |= dict.fromkeys(draw_cohort(clients, share, run.holdout.seed, index), index)
    return [first.get(client) for client in clients]


def _result(run: Setup, rounds: Sequence[ClusterRound], end: AtTheEnd) -> ClusterFound:
    clients, groups, since = sorted(run.deal.clients), run.groups, _joined(run)
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
        joined=[] if set(since) == {1} else since,
        fairness_note=end.fairness_note,
    )
    served = [
        *(
            served_figure(
                choices,
                ACCURACY,
                (one.accuracy, one.low, one.high),
                group=one.group,
                samples=one.tested,
            )
            for one in end.accuracy
        ),
        *(served_figure(choices, g.metric, (g.value, g.low, g.high)) for g in end.fairness),
    ]
    return ClusterFound(choices, cluster_figures(choices, served))


def cluster_figures(run: ClusterResult, served: Sequence[Estimate]) -> list[Estimate]:
    """Return every figure of clustered learning in one run.

    - Accuracy of each group's clients with their own models, and of everybody's.
    - True and estimated risk of the model that stands for each group
      (``models_of_groups``), and the mean over a group's clients of their models' risks; how far
      estimates are from true risks, in the mean over clients.
    - Violations: measured ones, sure ones, those that the estimates expect, and the noise floor:
      those to be expected where every true risk is one half.
    - Fairness gaps between groups.
    - How stable clusters are: the adjusted Rand index between models chosen and groups (1: the
      groups themselves; 0: as by chance), clients with their group's model, and clients that
      changed model between measured rounds. Clients of different seeds have different data, so
      that choices of two runs are not compared.

    Args:
        run: Who trained which model.
        served: Accuracies of groups and fairness gaps (:func:`served_figure`).

    Source: IFCA-MIR, Tables 1 and 2 and Figures 2-7.
    """
    accuracies = {one.group: one for one in served if one.metric == ACCURACY}
    names = dict.fromkeys([*_groups(run).values(), *accuracies])
    return [
        *(accuracies[name] for name in names if name in accuracies),
        *_of_models(run),
        *_of_clients(run),
        *_violations(run),
        *(one for one in served if one.metric != ACCURACY),
        *_stability(run),
    ]


def served_figure(
    run: ClusterResult,
    metric: str,
    limits: tuple[float, float | None, float | None],
    *,
    group: str = EVERYBODY,
    samples: int = 0,
) -> Estimate:
    """Return accuracy of a group of clients in one run, or a fairness gap between groups.

    Args:
        run: Who trained which model.
        metric: The accuracy, or a fairness gap.
        limits: The figure with its lower and upper limit.
        group: Of clients.
        samples: Test samples like those of these clients.
    """
    method = COUNTED if metric == ACCURACY else "bootstrap 95%"
    value, low, high = limits
    return _figure(run, metric, group, value, low=low, high=high, method=method, samples=samples)


def _figure(run: ClusterResult, metric: str, group: str, value: float, **more: object) -> Estimate:
    return Estimate.model_validate(
        {
            "topic": "clusters",
            "algorithm": run.algorithm,
            "defense": run.defense,
            "group": group,
            "seed": run.seed,
            "metric": metric,
            "value": value,
            **more,
        }
    )


def _groups(run: ClusterResult) -> dict[int | None, str]:
    """Return names of the groups, largest first, and of all clients if there are several."""
    names: dict[int | None, str] = {group: run.group_names[group] for group in groups_by_size(run)}
    return names if len(names) == 1 else {None: EVERYBODY, **names}


def _of_models(run: ClusterResult) -> Iterator[Estimate]:
    """Yield figures of the model that stands for each group."""
    for group, model in models_of_groups(run).items():
        name = run.group_names[group]
        if model is None:
            continue
        state = run.rounds[-1].models[model]
        note = ""
        if shares_its_model(run, group):
            note = f"most clients of the {name} use another group's model; this is the other one"
        if state.risk is not None:
            limits = {"low": state.low, "high": state.high, "method": COUNTED}
            counts = {"n_members": state.members, "n_nonmembers": state.others}
            yield _figure(run, MODEL_RISK, name, state.risk, note=note, **limits, **counts)
        if state.estimated is not None:
            yield _figure(run, MODEL_ESTIMATE, name, state.estimated, note=note)
        used, clients = choices(run), clients_in(run, group)
        with_it = float(sum(used[at] == model for at in clients))
        yield _figure(run, OWN_MODEL, name, with_it, ceiling=len(clients), note=note)


def _of_clients(run: ClusterResult) -> Iterator[Estimate]:
    for group, name in _groups(run).items():
        used = [model for model in used_by(run, group) if model is not None]
        risks = [one.risk for one in used if one.risk is not None]
        if risks:
            limits: dict[str, object] = {}
            limited = [
                Limited(one.risk, one.low, one.high)
                for one in used
                if one.risk is not None and one.low is not None and one.high is not None
            ]
            if len(limited) == len(risks):
                # Clients share models: limits are averaged as the risks are.
                low, high = averaged(limited)
                limits = {"low": low, "high": high, "method": COUNTED}
            yield _figure(run, CLIENT_RISK, name, fmean(risks), **limits)
        errors = [
            None if one.risk is None or one.estimated is None else abs(one.estimated - one.risk)
            for one in used
        ]
        figures = {
            CLIENT_ESTIMATE: known_mean([model.estimated for model in used]),
            ESTIMATE_ERROR: known_mean(errors),
        }
        for figure, value in figures.items():
            if value is not None:
                yield _figure(run, figure, name, value)


def _violations(run: ClusterResult) -> Iterator[Estimate]:
    """Never of a client that took no part, whose samples are in no model."""
    total, limits = len(run.clients), np.array(run.thresholds)
    used = [model or ModelState(clients=0) for model in used_by(run, None)]
    risks, lows, estimated = (
        np.array([np.nan if (one := getattr(model, name)) is None else one for model in used])
        for name in ("risk", "low", "estimated")
    )
    real = violations(risks, limits, lows=lows)
    counts = {
        VIOLATIONS: real.above,
        SURE_VIOLATIONS: real.sure,
        EXPECTED_VIOLATIONS: violations(estimated, limits).above,
    }
    for figure, number in counts.items():
        yield _figure(run, figure, EVERYBODY, float(number), ceiling=total)
    floor = _by_chance(run)
    if floor is not None:
        yield _figure(run, CHANCE_VIOLATIONS, EVERYBODY, floor, ceiling=total)
    groups = _groups(run)
    for group, name in groups.items():
        if None in groups and group is not None:
            places = clients_in(run, group)
            above = violations(risks[places], limits[places]).above
            yield _figure(run, VIOLATIONS, name, float(above), ceiling=len(places))


def _by_chance(run: ClusterResult) -> float | None:
    """Return the noise floor of violations; None if no risk was measured on counted samples."""
    used = choices(run)
    models = [
        ModelRisk(
            state.members,
            state.others,
            [run.thresholds[at] for at, model in enumerate(used) if model == number],
        )
        for number, state in enumerate(run.rounds[-1].models)
        if state.risk is not None and state.members and state.others
    ]
    rng = seeded_numpy(run.seed, "violations by chance")
    return violations_by_chance(models, rng=rng) if models else None


def _stability(run: ClusterResult) -> Iterator[Estimate]:
    pairs = [(g, m) for g, m in zip(run.group, choices(run), strict=True) if m is not None]
    if len(set(run.group)) > 1 and pairs:
        # Here, since it takes longer to load than most records without clusters take to compare.
        from sklearn.metrics import adjusted_rand_score

        agreement = float(adjusted_rand_score(*zip(*pairs, strict=True)))
        yield _figure(run, AGREEMENT, EVERYBODY, agreement)
    changed = moves(run)
    if changed:
        total = len(run.clients)
        ever = len({at for step in changed for at in step})
        yield _figure(run, MOVED, EVERYBODY, float(ever), ceiling=total)
        yield _figure(run, MOVED_AT_THE_END, EVERYBODY, float(len(changed[-1])), ceiling=total)
