"""Shadow models: trained like a federation's model, on samples of which one knows who was in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import Model, Samples
from fedaudit.defenses.base import UNDEFENDED, Visit
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.ifca_mir import Cluster
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.fl.training.parallel import draws_as_it_trains, side_by_side
from fedaudit.fl.visits import cohort_of
from fedaudit.observe.round import Sent

FEWEST = 10
"""Samples that a server needs to train any shadow."""

WAYS = ("repeated", "continued")
"""How a shadow is trained: as its model was, from the start; or on from its model."""

SIZES = ("proportional", "capped")
"""What becomes of the shadows' sizes where the server has too few samples."""


@dataclass(frozen=True)
class ShadowTraining:
    """Training of shadow models.

    "repeated": each shadow is a federation of its own, from other first parameters, with as many
    clients as its model has, for as many rounds of as many epochs: its samples are seen as often
    as the clients' were, and hidden by averaging as theirs are. "continued": a shadow begins at
    the model itself and goes on for a few epochs on all its samples at once. That is cheap, and
    far too low where models learn samples by heart over many rounds.

    Where the largest cluster has more than half of the server's samples, "proportional" scales all
    shadows down by one factor, so that a small cluster still has the smaller shadows; "capped"
    gives each that half at most, and clusters beyond it the same.

    Attributes:
        training: As the federation's clients train.
        count: Shadows of each model, at least 1.
        way: "repeated" or "continued".
        epochs: Passes of a continued shadow over its samples, at least 1, at the first round's
            learning rate; a repeated one has the clients' own.
        sizes: "proportional" or "capped".
        rounds: Of the whole run, by which a repeated shadow's learning rate falls; at least as
            many as it is trained for.
    """

    training: LocalTraining
    count: int = 3
    way: str = "repeated"
    epochs: int = 5
    sizes: str = "proportional"
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or self.epochs < 1:
            raise BadInput(
                "a model needs at least 1 shadow, trained for at least 1 epoch, got "
                f"{self.count} shadows and {self.epochs} epochs"
            )
        if self.way not in WAYS:
            raise unknown_name("training of shadow models", self.way, WAYS)
        if self.sizes not in SIZES:
            raise unknown_name("way with sizes of shadow models", self.sizes, SIZES)


class Shadows(NamedTuple):
    """The shadows of one model.

    Attributes:
        base: The model itself.
        starts: For each shadow, the model that its last training began at.
        models: The shadows; none of a model that nobody trains.
        inside: For each shadow, positions of the samples that it was trained on.
        outside: Positions of as many that it was not.
    """

    base: Model
    starts: tuple[Model, ...]
    models: tuple[Model, ...]
    inside: tuple[Int[Tensor, " _"], ...]
    outside: tuple[Int[Tensor, " _"], ...]


class _Split(NamedTuple):
    inside: Int[Tensor, " _"]
    outside: Int[Tensor, " _"]


class _Job(NamedTuple):
    place: int
    number: int
    cluster: Cluster
    start: Model
    inside: Int[Tensor, " _"]


class _Trained(NamedTuple):
    start: Model
    model: Model


def shadow_models(
    clusters: Sequence[Cluster],
    samples: Samples,
    how: ShadowTraining,
    *,
    seed: int,
    device: torch.device = CPU,
) -> list[Shadows]:
    """Trains the shadows of all models together, side by side, one a processor core.

    A shadow is trained on as many samples as the model's clients have, since it is small sets that
    give their samples away; on fewer where the server has too few, as many of which must be left
    that it never saw. See :class:`ShadowTraining` and :func:`shadow_sizes`.

    Args:
        clusters: The models, each with the number of samples that its clients have.
        samples: The server's own, of nobody in the federation.
        how: How many shadows, and how they are trained.
        seed: Draws depend on it, on the cluster's place and on the shadow's number, and on
            nothing else; sizes depend on the other clusters where they are scaled down.
        device: Where to train.

    Raises:
        BadInput: There are too few samples, or training diverges.

    Source: Shokri et al. 2017, section 5; IFCA-MIR, Algorithm 2.
    Differs: Algorithm 2 says neither where shadows begin, nor on how much they are trained, nor for
        how long; as it stands nothing tells a small cluster from a large one. Clients' defenses
        are not repeated: shadows are trained without any.
    """
    refuse_few(samples)
    sizes = shadow_sizes([one.samples for one in clusters], len(samples), how.sizes)
    splits = [
        [_split(size, len(samples), seed, place, number) for number in range(how.count)]
        if size
        else []
        for place, size in enumerate(sizes)
    ]
    # Beginnings are drawn here, one after another: modules are built with the global generator.
    jobs = [
        _Job(place, number, cluster, _beginning(cluster, how, seed, place, number), split.inside)
        for place, (cluster, own) in enumerate(zip(clusters, splits, strict=True))
        for number, split in enumerate(own)
    ]
    learn = partial(_shadow, samples, how=how, seed=seed, device=device)
    alone = any(draws_as_it_trains(cluster.model) for cluster in clusters)
    trained = iter(side_by_side(learn, jobs, device=device, alone=alone))
    found = []
    for cluster, own in zip(clusters, splits, strict=True):
        shadows = [next(trained) for _ in own]
        found.append(
            Shadows(
                cluster.model,
                tuple(one.start for one in shadows),
                tuple(one.model for one in shadows),
                tuple(split.inside for split in own),
                tuple(split.outside for split in own),
            )
        )
    return found


def shadow_sizes(samples: Sequence[int], available: int, sizes: str = "proportional") -> list[int]:
    """Training samples of each model's shadows: as many as its clients have, or fewer.

    Args:
        samples: Of the clients of each model; 0 for one that nobody trains, which has no shadow.
        available: Of the server's own, of which a shadow may take half.
        sizes: See :class:`ShadowTraining`.
    """
    half = available // 2
    most = max(samples, default=0)
    factor = min(1.0, half / most) if most and sizes == "proportional" else 1.0
    # Two at least: an attack is fitted on some of them and tried on the others.
    return [max(2, min(round(factor * own), half)) if own else 0 for own in samples]


def refuse_few(samples: Samples) -> None:
    """Refuses samples that are too few to train and try shadows on.

    Raises:
        BadInput: They are.
    """
    if len(samples) < FEWEST:
        raise BadInput(
            f"shadow models need at least {FEWEST} samples that no client has, got "
            f"{len(samples)}; leave the server more"
        )


def _beginning(cluster: Cluster, how: ShadowTraining, seed: int, place: int, number: int) -> Model:
    if how.way == "continued":
        return cluster.model
    own = seed_for(seed, "cluster", place, "shadow", number, "initial model")
    return cluster.model.architecture.initial(own)


def _split(size: int, available: int, seed: int, place: int, number: int) -> _Split:
    rng = seeded(seed, "cluster", place, "shadow", number, "split")
    order = torch.randperm(available, generator=rng)
    return _Split(order[:size], order[size : 2 * size])


def _shadow(
    samples: Samples, job: _Job, *, how: ShadowTraining, seed: int, device: torch.device
) -> _Trained:
    way = _continued if how.way == "continued" else _repeated
    try:
        return way(samples.take(job.inside), job, how, seed, device)
    except BadInput as error:
        raise BadInput(
            f"shadow {job.number} of model {job.place} diverged: its parameters are no longer "
            f"finite; lower the learning rate ({how.training.lr})"
        ) from error


def _continued(
    data: Samples, job: _Job, how: ShadowTraining, seed: int, device: torch.device
) -> _Trained:
    visit = Visit(
        round=1,
        rounds=1,
        client=job.number,
        cohort=(job.number,),
        weights={job.number: 1.0},
        seed=seed_for(seed, "cluster", job.place, "shadow"),
        device=device,
    )
    training = replace(how.training, epochs=how.epochs)
    return _Trained(job.start, train(job.start, data, training, UNDEFENDED, visit.at(job.start)))


def _repeated(
    data: Samples, job: _Job, how: ShadowTraining, seed: int, device: torch.device
) -> _Trained:
    """A federation of as many clients as the model's, fewer of the same size where scaled down."""
    cluster, own = job.cluster, seed_for(seed, "cluster", job.place, "shadow", job.number)
    count = min(len(data), max(1, round(cluster.clients * len(data) / cluster.samples)))
    # In random order already.
    parts = [data.take(at) for at in torch.arange(len(data)).tensor_split(count)]
    federation = FedAvg(job.start.architecture, how.training)
    start = model = job.start
    for round_ in range(1, cluster.rounds + 1):
        cohort = cohort_of(list(range(count)), cluster.share, own, round_)
        total = sum(len(parts[client]) for client in cohort)
        weights = {client: len(parts[client]) / total for client in cohort}
        uploads = {}
        for client in cohort:
            visit = Visit(
                round=round_,
                rounds=max(how.rounds, cluster.rounds),
                client=client,
                cohort=cohort,
                weights=weights,
                seed=own,
                device=device,
            )
            sent = Sent((model,))
            uploads[client] = federation.local(sent, parts[client], {}, UNDEFENDED, visit).upload
        start = model
        folded = federation.fold(model.tensors(), uploads, weights)
        model = Model.from_tensors(model.architecture, folded)
    return _Trained(start, model)
