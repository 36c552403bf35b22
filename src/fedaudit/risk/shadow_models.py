"""Shadow models: trained like a federation's model, on samples of which one knows who was in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from fedaudit.core import Model, Samples
from fedaudit.defenses.base import UNDEFENDED, Visit
from fedaudit.devices import CPU
from fedaudit.errors import BadInput
from fedaudit.fl.ifca_mir import Cluster
from fedaudit.fl.side_by_side import draws_as_it_trains, side_by_side
from fedaudit.fl.training import LocalTraining, train
from fedaudit.seeds import seed_for, seeded

FEWEST = 10
"""Samples that a server needs to train any shadow."""


@dataclass(frozen=True)
class ShadowTraining:
    """How shadow models are trained.

    Attributes:
        training: As the federation's clients train, with the learning rate of the first round.
        count: Shadows of each model, at least 1.
        epochs: Passes of a shadow over its samples, at least 1; the clients' own count is not
            used.
    """

    training: LocalTraining
    count: int = 3
    epochs: int = 5

    def __post_init__(self) -> None:
        if self.count < 1 or self.epochs < 1:
            raise BadInput(
                "a model needs at least 1 shadow, trained for at least 1 epoch, got "
                f"{self.count} shadows and {self.epochs} epochs"
            )


class Shadows(NamedTuple):
    """The shadows of one model.

    Attributes:
        base: The model itself, where its shadows began.
        models: The shadows; none of a model that nobody trains.
        inside: For each shadow, positions of the samples that it was trained on.
        outside: Positions of as many that it was not.
    """

    base: Model
    models: tuple[Model, ...]
    inside: tuple[Int[Tensor, " _"], ...]
    outside: tuple[Int[Tensor, " _"], ...]


class _Split(NamedTuple):
    inside: Int[Tensor, " _"]
    outside: Int[Tensor, " _"]


class _Job(NamedTuple):
    cluster: int
    number: int
    start: Model
    inside: Int[Tensor, " _"]


def shadow_models(
    clusters: Sequence[Cluster],
    samples: Samples,
    how: ShadowTraining,
    *,
    seed: int,
    device: torch.device = CPU,
) -> list[Shadows]:
    """Trains the shadows of all models together, side by side, one a processor core.

    A shadow begins at the model it stands for and goes on with as many samples as the model's
    clients have, since it is small sets that give their samples away. Of a cluster that has more
    than half of the server's samples it takes that half: as many must be left that it never saw.

    Args:
        clusters: The models, each with the number of samples that its clients have.
        samples: The server's own, of nobody in the federation.
        how: How many shadows, and how they are trained.
        seed: Draws depend on it, on the cluster's place and on the shadow's number, and on
            nothing else.
        device: Where to train.

    Raises:
        BadInput: There are too few samples, or training diverges.

    Source: Shokri et al. 2017, section 5; IFCA-MIR, Algorithm 2.
    Differs: Algorithm 2 says neither where shadows begin nor on how much they are trained; as it
        stands nothing tells a small cluster from a large one.
    """
    refuse_few(samples)
    splits = [
        [_split(cluster, len(samples), seed, place, number) for number in range(how.count)]
        if cluster.samples
        else []
        for place, cluster in enumerate(clusters)
    ]
    jobs = [
        _Job(place, number, clusters[place].model, split.inside)
        for place, own in enumerate(splits)
        for number, split in enumerate(own)
    ]
    learn = partial(_shadow, samples, how=how, seed=seed, device=device)
    alone = any(draws_as_it_trains(cluster.model) for cluster in clusters)
    trained = iter(side_by_side(learn, jobs, device=device, alone=alone))
    return [
        Shadows(
            cluster.model,
            tuple(next(trained) for _ in own),
            tuple(split.inside for split in own),
            tuple(split.outside for split in own),
        )
        for cluster, own in zip(clusters, splits, strict=True)
    ]


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


def _split(cluster: Cluster, available: int, seed: int, place: int, number: int) -> _Split:
    # Two at least: an attack is fitted on some of them and tried on the others.
    size = max(2, min(cluster.samples, available // 2))
    rng = seeded(seed, "cluster", place, "shadow", number, "split")
    order = torch.randperm(available, generator=rng)
    return _Split(order[:size], order[size : 2 * size])


def _shadow(
    samples: Samples, job: _Job, *, how: ShadowTraining, seed: int, device: torch.device
) -> Model:
    visit = Visit(
        round=1,
        rounds=1,
        client=job.number,
        cohort=(job.number,),
        weights={job.number: 1.0},
        seed=seed_for(seed, "cluster", job.cluster, "shadow"),
        device=device,
    )
    training = replace(how.training, epochs=how.epochs)
    data = samples.take(job.inside)
    try:
        return train(job.start, data, training, UNDEFENDED, visit.at(job.start))
    except BadInput as error:
        raise BadInput(
            f"shadow {job.number} of model {job.cluster} diverged: its parameters are no longer "
            f"finite; lower the learning rate ({training.lr}) or the shadows' epochs ({how.epochs})"
        ) from error
