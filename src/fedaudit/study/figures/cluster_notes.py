"""Clustered learning, round by round: clients' models, their risk, accuracy and fairness."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import FedauditError, NotVisible
from fedaudit.core.seeds import seed_for, seeded, seeded_numpy
from fedaudit.core.values import ClientId, Model, Samples
from fedaudit.datasets.partitions.schemes import IID
from fedaudit.fl.algorithms.base import ChoosesModels
from fedaudit.fl.algorithms.ifca_mir import Cluster, IfcaMir
from fedaudit.metrics import share
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.fairness import fairness_gaps
from fedaudit.observe.round import Round
from fedaudit.results.clusters import EVERYBODY, ClusterRound, ModelState
from fedaudit.results.fields import Limits, Part, Share, Whole
from fedaudit.risk.server import ServerRisk, ShadowSuccess
from fedaudit.study.figures.accuracy import model_of_each, outputs_served
from fedaudit.study.setup.algorithm import server_risk
from fedaudit.study.setup.dealing import GroupedData, partition_of
from fedaudit.study.setup.holdout import left_to_train
from fedaudit.study.setup.parts import Setup

STATE, END = "clusters", "clusters/end"
"""Names of the notes."""


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


MOST_RISK_SAMPLES = 5_000
"""Real members of a model, and as many unseen samples, that its risk is measured on, at most."""


class AtTheEnd(Part):
    """Counts of the last measured round only."""

    accuracy: list[GroupAccuracy]
    fairness: list[FairnessGap]
    fairness_note: str


class _Seen(NamedTuple):
    """A round, and what its models say of the test part, each sample by its place's model.

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
    """True if clients choose among several models."""
    return isinstance(run.algorithm, ChoosesModels)


def cluster_notes(run: Setup, round: Round, device: torch.device = CPU) -> dict[str, str]:
    """A round's models and their clients, as text; nothing where clients do not choose.

    Nor is anything noted of a shadow federation, which nobody is told about.

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
    """The models after the round, each with its clients, its risk and what it does for them."""
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
    seed = seed_for(run.seed, "risk of real members", seen.round.index)
    judged = replace(_risk(run), device=device).judged(clusters, seed=seed)
    told = _told(seen.round, len(after))
    models = [
        ModelState.model_validate(
            {"clients": len(clients[name]), "told": tell}
            | _shadows(cluster, judge)
            | _real_risk(seen, judge, name, clients[name])
            | _service(seen, clients[name])
        )
        for name, cluster, judge, tell in zip(after, clusters, judged, told, strict=True)
    ]
    names = list(after)
    return ClusterRound(
        round=seen.round.index,
        choice=[names.index(used) for used in seen.used.values()],
        models=models,
    )


def _risk(run: Setup) -> ServerRisk:
    """The server's own measure where it has one, and otherwise the one it could have."""
    algorithm = run.algorithm
    if isinstance(algorithm, IfcaMir) and isinstance(algorithm.risk, ServerRisk):
        return algorithm.risk
    world = GroupedData(run.dataset, run.deal, run.groups)
    return server_risk(run.study, world, run.seed)


def _told(round: Round, models: int) -> Sequence[float | None]:
    """The risks that clients were sent, if any were."""
    sent = next(iter(round.sent.values()), None)
    if sent is None or "risk" not in sent.extra:
        return [None] * models
    told: list[float | None] = sent.extra["risk"].tolist()
    return told


def _shadows(cluster: Cluster, judge: ShadowSuccess | None) -> dict[str, int]:
    """On how many samples a model was trained, and on how many its shadows."""
    return {} if judge is None else {"samples": cluster.samples, "shadow_samples": judge.size}


def _real_risk(
    seen: _Seen, judge: ShadowSuccess | None, name: str, clients: Sequence[ClientId]
) -> dict[str, float | int]:
    """Success on its real members of the attack that was fitted on a model's shadows."""
    run, round = seen.run, seen.round
    if judge is None:
        return {}
    rng = seeded(run.seed, "asked about", round.index, name)
    like = torch.isin(seen.place, torch.tensor(clients))
    members, others = risk_samples(run, [seen.trained[c] for c in clients], like, rng=rng)
    if not len(others):
        return {"estimated": judge.value}
    start = _start(round, clients)
    try:
        found, let_go = (
            int(judge.decide(round.after[name], part, start=start).sum())
            for part in (members, others)
        )
    except NotVisible:
        # Nobody trained the model in this round: an attack on updates has nothing to look at.
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


def _start(round: Round, clients: Sequence[ClientId]) -> Model | None:
    """The model that a cluster's clients trained from, where it is to be seen."""
    bases = [round.exposed[client].base for client in clients if client in round.exposed]
    return next((base for base in bases if base is not None), None)


def _service(seen: _Seen, clients: Sequence[ClientId]) -> dict[str, float]:
    """Loss and accuracy of a model on test samples like its clients'."""
    mine = torch.isin(seen.place, torch.tensor(clients, dtype=torch.int64))
    if not bool(mine.any()):
        return {}
    outputs, labels = seen.outputs[mine], seen.run.dataset.test.labels[mine]
    loss = seen.run.algorithm.architecture.loss(outputs, labels).double().mean()
    right = (outputs.argmax(1) == labels).double().mean()
    return {"loss": float(loss), "accuracy": float(right)}


def _end(seen: _Seen) -> AtTheEnd:
    """Utility and fairness of the groups of clients."""
    run, labels = seen.run, seen.run.dataset.test.labels
    predicted = seen.outputs.argmax(1)
    of_client, names = run.groups.group, run.groups.names
    group = torch.tensor([of_client[client] for client in seen.place.tolist()])
    right = predicted == labels
    parts = {name: group == number for number, name in enumerate(names)}
    parts |= {EVERYBODY: torch.ones_like(right)}
    sizes = {name: sum(of == n for of in of_client.values()) for n, name in enumerate(names)}
    accuracy = [
        _accuracy(name, sizes.get(name, len(of_client)), right[part])
        for name, part in parts.items()
        if bool(part.any())
    ]
    attribute = run.dataset.group
    groups = group if attribute is None else attribute[run.dataset.test.ids]
    try:
        gaps = fairness_gaps(
            labels.numpy(),
            predicted.numpy(),
            groups.numpy(),
            rng=seeded_numpy(run.seed, "fairness"),
        )
    except FedauditError as refusal:
        return AtTheEnd(accuracy=accuracy, fairness=[], fairness_note=str(refusal))
    fairness = [FairnessGap(metric=g.metric, value=g.value, low=g.low, high=g.high) for g in gaps]
    return AtTheEnd(accuracy=accuracy, fairness=fairness, fairness_note="")


def _accuracy(name: str, clients: int, right: Tensor) -> GroupAccuracy:
    counted = share(int(right.sum()), len(right))
    return GroupAccuracy(
        group=name,
        clients=clients,
        right=counted.hits,
        tested=counted.total,
        accuracy=counted.value,
        low=counted.low,
        high=counted.high,
    )


class RiskSamples(NamedTuple):
    """Samples that a model was trained on, and others like them that it was not."""

    members: Samples
    others: Samples


def risk_samples(
    run: Setup,
    trained: Sequence[Samples],
    like: Bool[Tensor, " samples"],
    *,
    rng: torch.Generator,
) -> RiskSamples:
    """Members and non-members that are asked about.

    Where clients' classes are skewed, there are as many samples of each class on both sides:
    otherwise a class that the clients have much of, and that their model therefore expects, would
    pass for membership.

    Args:
        run: The run.
        trained: What each of the model's clients trains on.
        like: Test samples that are shifted as these clients' are.
        rng: Draws those that are asked about.
    """
    tests = run.dataset.test.take(like)
    if isinstance(partition_of(run.study), IID):
        return RiskSamples(_some(trained, rng), _some([tests], rng))
    labels, free = torch.cat([samples.labels for samples in trained]), tests.labels
    inside, outside = torch.zeros_like(labels).bool(), torch.zeros_like(free).bool()
    for number in range(run.dataset.classes):
        members, others = ((of == number).nonzero().flatten() for of in (labels, free))
        most = min(len(members), len(others))
        inside[members[torch.randperm(len(members), generator=rng)[:most]]] = True
        outside[others[torch.randperm(len(others), generator=rng)[:most]]] = True
    parts = torch.split(inside, [len(samples) for samples in trained])
    kept = [samples.take(part) for samples, part in zip(trained, parts, strict=True)]
    return RiskSamples(_some(kept, rng), _some([tests.take(outside)], rng))


def _some(parts: Sequence[Samples], rng: torch.Generator) -> Samples:
    """A random part of all samples; they are not joined first, since that may fill the memory."""
    sizes = [len(part) for part in parts]
    chosen = torch.zeros(sum(sizes), dtype=torch.bool)
    chosen[torch.randperm(len(chosen), generator=rng)[:MOST_RISK_SAMPLES]] = True
    of_parts = zip(parts, torch.split(chosen, sizes), strict=True)
    return Samples.joined(*(part.take(mine) for part, mine in of_parts))
