"""Risk as a server finds it out: it trains shadows of each model, and attacks them.

Shadow models are trained like a federation's model, on samples of which one knows who was in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.limits import Limited
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import Model, Samples
from fedaudit.fl.algorithms.base import Cluster, cohort_of
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.ifca_mir import GUESS
from fedaudit.fl.hooks import UNDEFENDED, Visit
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.fl.training.parallel import draws_as_it_trains, side_by_side
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.observe.round import Sent
from fedaudit.risk.catalog import Decision, Measure, TrainMia

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


@dataclass(frozen=True)
class ShadowSuccess(Limited[float]):
    """Success of an attack on members of a model's shadows.

    It is the balanced accuracy on shadows that the attack was not fitted on. The limits (95%) are
    for other samples and these shadows.

    Attributes:
        decide: The attack, fitted on all shadows, for models and samples of one's own.
        size: Samples that each shadow was trained on.
    """

    decide: Decision
    size: int


class _Seen(NamedTuple):
    """Evidence of a shadow, or of half of its samples."""

    inside: Float[Tensor, "members _"]
    outside: Float[Tensor, "others _"]


class _Look(NamedTuple):
    start: Model
    model: Model
    inside: Int[Tensor, " size"]
    outside: Int[Tensor, " size"]


class _Counts(NamedTuple):
    """Numbers of members caught and of others cleared, each out of so many."""

    caught: int
    members: int
    cleared: int
    nonmembers: int


@dataclass(frozen=True)
class ServerRisk:
    """The server plays the attacker on its own models.

    It trains shadows of each model on samples of its own, fits an attack on all but one of them,
    and tries it on that one, each in turn. Of a single shadow, one half of the samples is tried
    with what the other half taught.

    Attributes:
        samples: The server's own: of nobody in the federation, at least ten.
        shadows: How many shadows, and how they are trained.
        measure: The attack.
        device: Where shadows are trained and run.

    Source: IFCA-MIR, Algorithm 2 and Eq. (8).
    Differs: The paper does not say what the attack's accuracy is measured on. Here it is always
        on a shadow that the attack never saw.
    """

    samples: Samples
    shadows: ShadowTraining
    measure: Measure = field(default_factory=TrainMia)
    device: torch.device = CPU

    def __post_init__(self) -> None:
        refuse_few(self.samples)

    def __call__(self, clusters: Sequence[Cluster], *, seed: int) -> list[float]:
        """See :class:`~fedaudit.fl.algorithms.ifca_mir.Risk`; a guess's for what nobody trains."""
        judged = self.judged(clusters, seed=seed)
        return [GUESS if one is None else one.value for one in judged]

    def judged(self, clusters: Sequence[Cluster], *, seed: int) -> list[ShadowSuccess | None]:
        """The risk of each model, with its limits and the attack that found it.

        Args:
            clusters: The models; None comes back for one that nobody trains.
            seed: See :func:`fedaudit.risk.server.shadow_models`.
        """
        trained = shadow_models(clusters, self.samples, self.shadows, seed=seed, device=self.device)
        seen = iter(self._seen(trained))
        return [self._judged(one, [next(seen) for _ in one.models]) for one in trained]

    def _seen(self, trained: Sequence[Shadows]) -> list[_Seen]:
        """Evidence of all shadows of all models, in their order."""
        looks = [
            _Look(*own)
            for one in trained
            for own in zip(one.starts, one.models, one.inside, one.outside, strict=True)
        ]
        return side_by_side(self._looked, looks, device=self.device)

    def _looked(self, look: _Look) -> _Seen:
        evidence = self.measure.evidence(
            look.model,
            self.samples.take(torch.cat([look.inside, look.outside])),
            start=look.start,
            device=self.device,
        )
        inside, outside = evidence.chunk(2)
        return _Seen(inside, outside)

    def _judged(self, shadows: Shadows, seen: list[_Seen]) -> ShadowSuccess | None:
        if not seen:
            return None
        parts = _halves(seen[0]) if len(seen) == 1 else seen
        counts = [
            self._tried(one, parts[:place] + parts[place + 1 :]) for place, one in enumerate(parts)
        ]
        found = counted_balanced_accuracy(*(sum(column) for column in zip(*counts, strict=True)))
        verdict = self.measure.fitted(*_joined(seen))
        decide = Decision(self.measure, verdict, shadows.base, self.device)
        return ShadowSuccess(found.value, found.low, found.high, decide, len(shadows.inside[0]))

    def _tried(self, one: _Seen, others: list[_Seen]) -> _Counts:
        verdict = self.measure.fitted(*_joined(others))
        caught, cleared = verdict(one.inside), ~verdict(one.outside)
        return _Counts(int(caught.sum()), len(caught), int(cleared.sum()), len(cleared))


def _joined(seen: Sequence[_Seen]) -> _Seen:
    inside, outside = zip(*seen, strict=True)
    return _Seen(torch.cat(inside), torch.cat(outside))


def _halves(seen: _Seen) -> list[_Seen]:
    middle = len(seen.inside) // 2
    first, second = slice(middle), slice(middle, None)
    return [_Seen(seen.inside[part], seen.outside[part]) for part in (first, second)]
