"""Membership risk of models, measured by a server that trains shadow models and attacks them.

Shadow models are trained like the federation's models, on samples with known membership.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import Positive
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput
from fedaudit.core.limits import EstimateWithLimits
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import Model, Samples
from fedaudit.fl.algorithms.base import Cluster, draw_cohort
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.ifca_mir import CHANCE_LEVEL
from fedaudit.fl.hooks import UNDEFENDED, ClientContext
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.fl.training.parallel import run_in_parallel, uses_global_rng
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.observe.round import Sent
from fedaudit.risk.catalog import FittedAttack, RiskAttack, TrainMia

MIN_SERVER_SAMPLES = 10
"""Fewest samples of the server for training shadow models."""


@arguments.dataclass(frozen=True)
class ShadowTraining:
    """Settings of the training of shadow models.

    If ``way`` is "repeated", each shadow model is the result of a separate federation with new
    initial parameters. The federation has the number of clients, rounds and epochs of the attacked
    model. The shadow model is therefore trained on its samples as often as the attacked model is
    trained on the clients' samples, and averaging has the same effect. If ``way`` is "continued",
    a shadow model starts from the attacked model and is trained centrally for a few epochs on its
    samples. This is cheaper, but it underestimates the risk of models that memorise samples over
    many rounds.

    A shadow model can have at most half of the server's samples. If the largest cluster has more,
    "proportional" reduces the training sets of all shadow models by the same factor, so that the
    shadow models of smaller clusters still have fewer samples. "capped" reduces only training sets
    above the limit.

    Attributes:
        training: Local training of the federation's clients.
        count: Number of shadow models of each model.
        way: How shadow models are trained: "repeated" or "continued".
        epochs: Number of epochs of a "continued" shadow model, at the first round's learning rate.
            A "repeated" shadow model has the clients' number of epochs.
        sizes: How training sets are reduced if necessary: "proportional" or "capped".
        rounds: Number of rounds of the run, for the learning-rate schedule of a "repeated" shadow
            model; at least the number of rounds for which it is trained.
    """

    training: LocalTraining
    count: Positive = 3
    way: Literal["repeated", "continued"] = "repeated"
    epochs: Positive = 5
    sizes: Literal["proportional", "capped"] = "proportional"
    rounds: int = 1


class Shadow(NamedTuple):
    """Shadow model of an attacked model.

    Attributes:
        start: The model before its last round of training.
        model: The trained model.
        members: Positions of the samples that it was trained on.
        nonmembers: Positions of equally many samples that it was not trained on.
    """

    start: Model
    model: Model
    members: Int[Tensor, " size"]
    nonmembers: Int[Tensor, " size"]


class _ShadowTask(NamedTuple):
    """Training of the shadow model ``number`` of the cluster at position ``cluster_index``."""

    cluster_index: int
    number: int
    cluster: Cluster
    initial: Model
    members: Int[Tensor, " size"]
    nonmembers: Int[Tensor, " size"]


def train_shadow_models(
    clusters: Sequence[Cluster],
    samples: Samples,
    how: ShadowTraining,
    *,
    seed: int,
    device: torch.device = CPU,
) -> list[list[Shadow]]:
    """Train the shadow models of all models in parallel, one per processor core.

    A shadow model has as many training samples as the model's clients, since models of small data
    sets leak more. It has at most half of the server's samples, since equally many must be left
    out. A model that no client trains has no shadow model. See :class:`ShadowTraining` and
    :func:`shadow_sizes`.

    Args:
        clusters: The models, each with the number of samples that its clients have.
        samples: The server's own samples, which no client has.
        how: Settings of the training.
        seed: Seed. Random draws depend only on it, the cluster's position and the number of the
            shadow model. Sizes also depend on the other clusters if they are "proportional".
        device: Device to train on.

    Raises:
        BadInput: There are too few samples, or training diverges.

    Source: Shokri et al. 2017, section 5; Jung et al. 2025 (IFCA-MIR), Algorithm 2.
    Differs: Algorithm 2 does not specify the initial parameters, the number of samples or the
        length of the training. As published, it does not distinguish small clusters from large
        ones. Shadow models are trained without the clients' defenses.
    """
    raise_if_too_few(samples)
    sizes = shadow_sizes([cluster.samples for cluster in clusters], len(samples), how.sizes)
    # Initial models are built here, one after another: modules use the global random generator.
    tasks = [
        _ShadowTask(
            index,
            number,
            cluster,
            _initial_model(cluster, how, seed, index, number),
            *_split(size, len(samples), seed, index, number),
        )
        for index, (cluster, size) in enumerate(zip(clusters, sizes, strict=True))
        for number in range(how.count if size else 0)
    ]
    train_shadow = partial(_shadow, samples, how=how, seed=seed, device=device)
    sequential = any(uses_global_rng(cluster.model) for cluster in clusters)
    trained = iter(run_in_parallel(train_shadow, tasks, device=device, sequential=sequential))
    return [[next(trained) for _ in range(how.count if size else 0)] for size in sizes]


def shadow_sizes(samples: Sequence[int], available: int, sizes: str = "proportional") -> list[int]:
    """Return the number of training samples of each model's shadow models.

    Args:
        samples: Number of samples of the clients of each model; 0 for a model that no client
            trains, which has no shadow model.
        available: Number of the server's samples; a shadow model is trained on at most half.
        sizes: "proportional" reduces all sizes by the same factor, if the largest one is above the
            limit; "capped" reduces only those above the limit.
    """
    half = available // 2
    largest = max(samples, default=0)
    factor = min(1.0, half / largest) if largest and sizes == "proportional" else 1.0
    # At least two, because an attack is fitted on some samples and evaluated on the others.
    return [max(2, min(round(factor * size), half)) if size else 0 for size in samples]


def raise_if_too_few(samples: Samples) -> None:
    """Raise if the server has too few samples to train and evaluate shadow models on."""
    if len(samples) < MIN_SERVER_SAMPLES:
        raise BadInput(
            f"shadow models need at least {MIN_SERVER_SAMPLES} samples that no client has, got "
            f"{len(samples)}; assign more samples to the server"
        )


def _initial_model(
    cluster: Cluster, how: ShadowTraining, seed: int, index: int, number: int
) -> Model:
    if how.way == "continued":
        return cluster.model
    initial_seed = seed_for(seed, "cluster", index, "shadow", number, "initial model")
    return cluster.model.architecture.initial(initial_seed)


def _split(
    size: int, available: int, seed: int, index: int, number: int
) -> tuple[Int[Tensor, " size"], Int[Tensor, " size"]]:
    rng = seeded(seed, "cluster", index, "shadow", number, "split")
    order = torch.randperm(available, generator=rng)
    return order[:size], order[size : 2 * size]


def _shadow(
    samples: Samples, task: _ShadowTask, *, how: ShadowTraining, seed: int, device: torch.device
) -> Shadow:
    train_shadow = _train_continued if how.way == "continued" else _train_repeated
    try:
        start, model = train_shadow(samples.take(task.members), task, how, seed, device)
    except BadInput as error:
        raise BadInput(
            f"shadow model {task.number} of model {task.cluster_index} diverged: its parameters "
            f"are no longer finite; lower the learning rate ({how.training.lr})"
        ) from error
    return Shadow(start, model, task.members, task.nonmembers)


def _train_continued(
    data: Samples, task: _ShadowTask, how: ShadowTraining, seed: int, device: torch.device
) -> tuple[Model, Model]:
    client_context = ClientContext(
        round=1,
        rounds=1,
        client=task.number,
        cohort=(task.number,),
        weights={task.number: 1.0},
        seed=seed_for(seed, "cluster", task.cluster_index, "shadow"),
        device=device,
    )
    training = replace(how.training, epochs=how.epochs)
    context = client_context.with_model(task.initial)
    return task.initial, train(task.initial, data, training, UNDEFENDED, context)


def _train_repeated(
    data: Samples, task: _ShadowTask, how: ShadowTraining, seed: int, device: torch.device
) -> tuple[Model, Model]:
    """Train a federation like the cluster's, with fewer clients if there are fewer samples."""
    cluster = task.cluster
    shadow_seed = seed_for(seed, "cluster", task.cluster_index, "shadow", task.number)
    count = min(len(data), max(1, round(cluster.clients * len(data) / cluster.samples)))
    # The samples are already in random order.
    client_data = [data.take(index) for index in torch.arange(len(data)).tensor_split(count)]
    federation = FedAvg(task.initial.architecture, how.training)
    start = model = task.initial
    for round_ in range(1, cluster.rounds + 1):
        cohort = draw_cohort(list(range(count)), cluster.share, shadow_seed, round_)
        total = sum(len(client_data[client]) for client in cohort)
        weights = {client: len(client_data[client]) / total for client in cohort}
        uploads = {}
        for client in cohort:
            client_context = ClientContext(
                round=round_,
                rounds=max(how.rounds, cluster.rounds),
                client=client,
                cohort=cohort,
                weights=weights,
                seed=shadow_seed,
                device=device,
            )
            sent = Sent((model,))
            uploads[client] = federation.run_client(
                sent, client_data[client], {}, UNDEFENDED, client_context
            ).upload
        start = model
        aggregated = federation.aggregate(model.tensors(), uploads, weights)
        model = Model.from_tensors(model.architecture, aggregated)
    return start, model


@dataclass(frozen=True)
class ShadowSuccess(EstimateWithLimits[float]):
    """Balanced accuracy of an attack on shadow models that it was not fitted on.

    The 95% limits are for other samples and the same shadow models.

    Attributes:
        attack: The attack, fitted on all shadow models, which can be applied to other models.
        size: Number of training samples of each shadow model.
    """

    attack: FittedAttack
    size: int


class _ShadowFeatures(NamedTuple):
    """Features of all samples of a shadow model, or of half of them."""

    members: Float[Tensor, "members _"]
    nonmembers: Float[Tensor, "others _"]


class _Counts(NamedTuple):
    """Numbers of correct decisions on members and non-members."""

    true_positives: int
    members: int
    true_negatives: int
    nonmembers: int


@dataclass(frozen=True)
class ServerRisk:
    """Risk of each model, measured by the server with shadow models.

    The server trains shadow models on its own samples. It evaluates an attack by leave-one-out
    cross-validation over the shadow models. If there is only one shadow model, each half of its
    samples is evaluated with the attack that is fitted on the other half.

    Attributes:
        samples: The server's own samples, which no client has; at least ten.
        shadows: Settings of the training of shadow models.
        measure: The attack whose balanced accuracy is the risk.
        device: Device to train and run shadow models on.

    Source: Jung et al. 2025 (IFCA-MIR), Algorithm 2 and Eq. (8).
    Differs: The paper does not state on which samples the attack's accuracy is measured. Here, it
        is always measured on samples or shadow models that the attack was not fitted on.
    """

    samples: Samples
    shadows: ShadowTraining
    measure: RiskAttack = field(default_factory=TrainMia)
    device: torch.device = CPU

    def __post_init__(self) -> None:
        raise_if_too_few(self.samples)

    def __call__(self, clusters: Sequence[Cluster], *, seed: int) -> list[float]:
        """Return the risk of each model; chance level for a model that no client trains."""
        estimates = self.estimate(clusters, seed=seed)
        return [CHANCE_LEVEL if estimate is None else estimate.value for estimate in estimates]

    def estimate(self, clusters: Sequence[Cluster], *, seed: int) -> list[ShadowSuccess | None]:
        """Estimate the risk of each model, with its limits and the fitted attack.

        The estimate of a model that no client trains is None.
        """
        shadows_by_cluster = train_shadow_models(
            clusters, self.samples, self.shadows, seed=seed, device=self.device
        )
        pending = list(chain.from_iterable(shadows_by_cluster))
        features = iter(run_in_parallel(self._shadow_features, pending, device=self.device))
        return [
            self._estimate(cluster.model, [next(features) for _ in shadows])
            for cluster, shadows in zip(clusters, shadows_by_cluster, strict=True)
        ]

    def _shadow_features(self, shadow: Shadow) -> _ShadowFeatures:
        features = self.measure.features(
            shadow.model,
            self.samples.take(torch.cat([shadow.members, shadow.nonmembers])),
            start=shadow.start,
            device=self.device,
        )
        members, nonmembers = features.chunk(2)
        return _ShadowFeatures(members, nonmembers)

    def _estimate(self, base: Model, features: list[_ShadowFeatures]) -> ShadowSuccess | None:
        if not features:
            return None
        folds = _split_in_half(features[0]) if len(features) == 1 else features
        counts = [
            self._count_correct(fold, folds[:index] + folds[index + 1 :])
            for index, fold in enumerate(folds)
        ]
        risk = counted_balanced_accuracy(*(sum(column) for column in zip(*counts, strict=True)))
        rule = self.measure.fit(*_join(features))
        attack = FittedAttack(self.measure, rule, base, self.device)
        return ShadowSuccess(risk.value, risk.low, risk.high, attack, len(features[0].members))

    def _count_correct(self, fold: _ShadowFeatures, other_folds: list[_ShadowFeatures]) -> _Counts:
        """Count the correct decisions on a fold by the rule that is fitted on the other folds."""
        rule = self.measure.fit(*_join(other_folds))
        return _Counts(
            true_positives=int(rule(fold.members).sum()),
            members=len(fold.members),
            true_negatives=int((~rule(fold.nonmembers)).sum()),
            nonmembers=len(fold.nonmembers),
        )


def _join(folds: Sequence[_ShadowFeatures]) -> _ShadowFeatures:
    members, nonmembers = zip(*folds, strict=True)
    return _ShadowFeatures(torch.cat(members), torch.cat(nonmembers))


def _split_in_half(features: _ShadowFeatures) -> list[_ShadowFeatures]:
    members, nonmembers = features
    middle = len(members) // 2
    return [
        _ShadowFeatures(members[:middle], nonmembers[:middle]),
        _ShadowFeatures(members[middle:], nonmembers[middle:]),
    ]
