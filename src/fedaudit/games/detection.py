"""Detection of planted models by a client that inspects models of honest and malicious servers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami.game import Contest
from fedaudit.attacks.ami.plant import (
    Neurons,
    PlantedModel,
    PlantedRow,
    plant,
    plant_disguised,
    plant_one_row,
)
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.modules import outputs_of
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seed_for, seeded, seeded_numpy
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.defenses.planted import INDICATORS, activations_on, hidden_layers
from fedaudit.engines.local import one_thread
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.fedsgd import FedSGD
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.games.mechanism import GameMechanism, resolve_mechanism
from fedaudit.games.playing import MakeEstimate, rate_estimate, rules_of
from fedaudit.games.samples import GameSamples
from fedaudit.metrics.delong import auc_over_runs, rates_at_calibrated_threshold
from fedaudit.metrics.games import expected_success
from fedaudit.metrics.roc import auc
from fedaudit.models import MLP
from fedaudit.plan.games import GameStudy
from fedaudit.results import games as figures
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import Detection, Outline, WeightSpread

HONEST = ""
"""Name of the server whose models have no planted neuron."""

FPR = 0.05
"""Maximum false-positive rate of a threshold, on the runs from which it is chosen."""


class InspectedModels(NamedTuple):
    """Models that a client inspects, one per row.

    An *indicator* is a statistic of a model by which a client may notice a planted neuron.

    Attributes:
        server: Name of the server that planted the neuron; ``HONEST`` if no neuron is planted.
        run: Number of the model's federation.
        is_own: Whether the target is one of the client's samples; false for honest models.
        values: Value of each indicator, in the order of ``INDICATORS``.
    """

    server: Sequence[str]
    run: Int[np.ndarray, " models"]
    is_own: Bool[np.ndarray, " models"]
    values: Float[np.ndarray, "models indicators"]


def detector_roc(models: InspectedModels, *, seed: int) -> list[Estimate]:
    """Compute the estimates of each indicator against each kind of server.

    Thresholds are chosen on the first half of the runs. Detection rates are computed on the second
    half, from one honest and one planted model of each run, so that the models are independent.
    """
    servers = np.asarray(models.server)
    is_honest, runs = servers == HONEST, np.unique(models.run)
    calibration_runs, test_runs = np.split(runs, [len(runs) // 2])
    is_calibration = is_honest & np.isin(models.run, calibration_runs)
    honest_tests = _draw_per_run(models, is_honest, test_runs, seed=seed)
    estimates: list[Estimate] = []
    for server in dict.fromkeys(name for name in models.server if name != HONEST):
        is_planted = servers == server
        planted_tests = _draw_per_run(models, is_planted, test_runs, seed=seed)
        for name, values in zip(INDICATORS, models.values.T, strict=True):
            estimate: MakeEstimate = partial(
                Estimate, topic=figures.DETECTOR, attack=server, group=name
            )
            rng = seeded_numpy(seed, "resamples", server, name)
            mask = is_planted | is_honest
            pooled = auc_over_runs(values[mask], is_planted[mask], models.run[mask], rng=rng)
            limits = {"low": pooled.low, "high": pooled.high, "method": pooled.method}
            estimates.append(estimate(metric=figures.INDICATOR_AUC, value=pooled.value, **limits))
            masks = {figures.OWN_AUC: models.is_own, figures.OTHERS_AUC: ~models.is_own}
            for metric, has_such_target in masks.items():
                mask = (is_planted & has_such_target) | is_honest
                estimates.append(estimate(metric=metric, value=auc(values[mask], is_planted[mask])))
            detected, false_alarms = rates_at_calibrated_threshold(
                values[is_calibration], values[planted_tests], values[honest_tests], fpr=FPR
            )
            estimates.append(rate_estimate(estimate, figures.DETECTION_RATE, detected))
            estimates.append(rate_estimate(estimate, figures.FALSE_ALARMS, false_alarms))
    return estimates


def _draw_per_run(
    models: InspectedModels,
    mask: Bool[np.ndarray, " models"],
    runs: Int[np.ndarray, " runs"],
    *,
    seed: int,
) -> Int[np.ndarray, " runs"]:
    """Draw the position of one masked model from each run."""
    rng = seeded_numpy(seed, "judged")
    return np.array([rng.choice(np.flatnonzero(mask & (models.run == run))) for run in runs])


_N_SAMPLES = 1000
"""Number of the server's samples to which the row of the server "one-row" is fitted."""


class TargetKnowledge(NamedTuple):
    """What a server knows about its target.

    Attributes:
        target: Index of the target among the clients' samples.
        neuron: Neuron that is trained for the target.
        of_target: Randomised copies of the target.
        of_others: Randomised copies of the server's samples.
        batch: Number of samples in a client's batch.
    """

    target: int
    neuron: Neurons
    of_target: Float[Tensor, "copies features"]
    of_others: Float[Tensor, "samples features"]
    batch: int


SERVERS: dict[str, Callable[[Model, TargetKnowledge], PlantedModel]] = {
    "planted": lambda model, knowledge: plant(model, knowledge.neuron),
    "disguised": lambda model, knowledge: plant_disguised(model, knowledge.neuron),
    "one-row": lambda model, knowledge: plant_one_row(
        model, knowledge.of_target, knowledge.of_others, batch=knowledge.batch
    ),
}
"""Functions that plant a neuron, by name of the server: as in AMI ("planted"); with the norms of
the honest weights and without zeros ("disguised"); or as one row of the second layer, with an
unchanged first layer ("one-row")."""

REPLACES_UNITS = ("planted", "disguised")
"""Servers that replace units of the first layer."""


def knowledge_of(contest: Contest, number: int) -> TargetKnowledge:
    """Return the knowledge of a server about the contest's target with this number."""
    target, rng = contest.target(number), seeded(contest.seed, "one row", number)
    copies = contest.pools.clients[target].expand(contest.rules.copies, -1)
    positions = torch.randperm(len(contest.pools.servers), generator=rng)[:_N_SAMPLES]
    randomise = contest.randomisers.server
    return TargetKnowledge(
        target,
        neuron=contest.neurons([number]),
        of_target=randomise(copies, rng),
        of_others=randomise(contest.pools.servers[positions], rng),
        batch=contest.rules.batch,
    )


_N_BINS = 60
_N_TEST_SAMPLES = 2000
_INSPECTOR = 0
"""Number of the client that inspects the models."""


class _Federation(NamedTuple):
    """Run of an honest federation.

    Attributes:
        models: Model that the inspecting client receives in each round.
        own_samples: Samples of the inspecting client.
        all_samples: Samples of all clients.
        accuracy: Test accuracy of the last model.
    """

    models: Sequence[Model]
    own_samples: Samples
    all_samples: Samples
    accuracy: float


class _InspectedModel(NamedTuple):
    """One row of :class:`InspectedModels`, with the success of the server's attack."""

    server: str
    run: int
    is_own: bool
    values: list[float]
    success: float


def detect(study: GameStudy, samples: GameSamples, *, progress: Progress) -> Detection:
    """Compute the detector ROC of each indicator, on planted and honest models.

    Each run divides the samples again and trains an honest federation. The first client inspects
    the models that it receives. It also inspects copies of these models in which each kind of
    server has planted a neuron, for a sample of this client or of another client. Thresholds are
    chosen on other runs.

    Source: Nguyen et al. 2023 (AMI), section 7 (Detecting Malicious Weights is Challenging), Figs.
        8 and 14.
    """
    start, settings = monotonic(), study.detector
    mechanism = resolve_mechanism(study.mechanism, samples.pools.clients.shape[1])
    seed = seed_for(study.seed, "detector")
    contest = Contest(samples.pools, rules_of(study), seed, mechanism.randomisers)
    inspected: list[_InspectedModel] = []
    accuracies, n_own, spread = [], 0, None
    with one_thread():
        for run in range(settings.runs):
            progress("runs of the detector", run, settings.runs)
            federation = _train_federation(study, samples, mechanism, run)
            knowledge = {
                is_own: _draw_target(contest, federation, run, is_own) for is_own in (True, False)
            }
            inspected += _inspect(federation, knowledge, run, _inspected_rounds(study))
            accuracies.append(federation.accuracy)
            n_own = len(federation.own_samples)
            spread = spread or _weight_histograms(federation.models[-1], knowledge[True])
    progress("runs of the detector", settings.runs, settings.runs)
    models = InspectedModels(
        server=[model.server for model in inspected],
        run=np.array([model.run for model in inspected]),
        is_own=np.array([model.is_own for model in inspected]),
        values=np.array([model.values for model in inspected]),
    )
    estimate = partial(Estimate, topic=figures.DETECTOR)
    estimates = [estimate(metric=figures.HONEST_ACCURACY, value=float(np.mean(accuracies)))]
    for server in SERVERS:
        success = float(np.mean([model.success for model in inspected if model.server == server]))
        estimates.append(estimate(metric=figures.SERVER_SUCCESS, attack=server, value=success))
    return Detection(
        federation=_description(study),
        runs=settings.runs,
        judged=settings.runs - settings.runs // 2,
        honest=models.server.count(HONEST),
        planted=models.server.count(next(iter(SERVERS))),
        own=n_own,
        estimates=[*estimates, *detector_roc(models, seed=seed)],
        weights=spread,
        seconds=round(monotonic() - start, 1),
    )


def _train_federation(
    study: GameStudy, samples: GameSamples, mechanism: GameMechanism, run: int
) -> _Federation:
    settings, seed = study.detector, seed_for(study.seed, "federation", run)
    clients = samples.pools.clients
    if len(clients) < 3 * settings.clients:
        raise BadInput(
            f"{len(clients)} samples are too few for {settings.clients} clients of a federation; "
            f"lower detector.clients or raise {format_setting('samples.clients')}"
        )
    features = mechanism.randomisers.client(clients, seeded(seed, "noise"))
    all_samples = Samples(features, samples.labels.clients, torch.arange(len(features)))
    order = torch.randperm(len(clients), generator=seeded(seed, "deal"))
    positions_by_client = order.tensor_split(settings.clients)
    data = {client: all_samples.take(rows) for client, rows in enumerate(positions_by_client)}
    rounds = simulate(_algorithm(study, samples), data, rounds=settings.rounds, seed=seed)
    models = [round.sent[_INSPECTOR].model for round in rounds]
    test_samples = mechanism.randomisers.client(
        samples.pools.servers[:_N_TEST_SAMPLES], seeded(seed, "test")
    )
    predicted = outputs_of(models[-1], test_samples).argmax(1)
    is_correct = predicted == samples.labels.servers[:_N_TEST_SAMPLES]
    return _Federation(models, data[_INSPECTOR], all_samples, float(is_correct.double().mean()))


def _algorithm(study: GameStudy, samples: GameSamples) -> Algorithm:
    settings, shape = study.detector, (samples.pools.clients.shape[1],)
    hidden = f"{_first_layer_units(study)},{settings.rows}"
    build = MLP(hidden=hidden).for_samples(shape, samples.labels.classes)
    net = Architecture("mlp", build, (("hidden", hidden),))
    training = LocalTraining(lr=settings.lr)
    return FedSGD(net, training) if settings.algorithm == "fedsgd" else FedAvg(net, training)


def _draw_target(
    contest: Contest, federation: _Federation, run: int, is_own: bool
) -> TargetKnowledge:
    """Draw a target among the samples of the inspecting client, or of the other clients."""
    own_ids = set(federation.own_samples.ids.tolist())
    # Each run tries other numbers, so that runs have different targets.
    number = run * 10**6
    while (contest.target(number) in own_ids) != is_own:
        number += 1
    return knowledge_of(contest, number)


def _inspect(
    federation: _Federation,
    knowledge: Mapping[bool, TargetKnowledge],
    run: int,
    rounds: Sequence[int],
) -> Iterator[_InspectedModel]:
    """Yield the honest model of each round, and models in which each server plants a neuron."""
    for index in rounds:
        previous, current = federation.models[index - 1], federation.models[index]
        candidates = [(HONEST, False, current, math.nan)]
        for server, plant_neuron in SERVERS.items():
            for is_own, target in knowledge.items():
                model, (planted_row,) = plant_neuron(current, target)
                success = _success(model, planted_row, target, federation.all_samples)
                candidates.append((server, is_own, model, success))
        for server, is_own, model, success in candidates:
            samples = federation.own_samples
            values = [compute(model, previous, samples) for compute in INDICATORS.values()]
            yield _InspectedModel(server, run, is_own, values, success)


def _success(
    model: Model, planted_row: PlantedRow, target: TargetKnowledge, all_samples: Samples
) -> float:
    """Compute the server's success (Adv) from the samples for which the neuron fires."""
    fires = activations_on(model, all_samples)[1][:, planted_row.row] > 0
    is_other = torch.arange(len(fires)) != target.target
    rate_of_others = float(fires[is_other].double().mean())
    return expected_success(float(fires[target.target]), rate_of_others, target.batch)


def _inspected_rounds(study: GameStudy) -> list[int]:
    """Return indices of the inspected models, evenly spaced from the second model on."""
    settings = study.detector
    count = min(settings.looks, settings.rounds - 1)
    return sorted({int(index) for index in np.linspace(settings.rounds - 1, 1, count).round()})


def _weight_histograms(honest_model: Model, target: TargetKnowledge) -> WeightSpread:
    """Compute histograms of the weights of the replaced units, in honest and planted models."""
    n_units = target.neuron.first_weights.shape[1]
    models = {HONEST: honest_model}
    for server in REPLACES_UNITS:
        models[server] = SERVERS[server](honest_model, target).model
    weights = {
        server: hidden_layers(model)[0].weight[:n_units].flatten().numpy()
        for server, model in models.items()
    }
    # The range covers 97 % of the weights of the widest distribution.
    limit = max(float(np.quantile(np.abs(values), 0.97)) for values in weights.values())
    edges = np.linspace(-limit, limit, _N_BINS + 1)
    outlines = [
        Outline(server=server, counts=np.histogram(values.clip(-limit, limit), edges)[0].tolist())
        for server, values in weights.items()
    ]
    return WeightSpread(edges=edges.tolist(), outlines=outlines)


def _first_layer_units(study: GameStudy) -> int:
    return study.detector.units or 2 * study.neuron.hidden


def _description(study: GameStudy) -> str:
    settings = study.detector
    return (
        f"{settings.algorithm} with {settings.clients:,} clients over {settings.rounds:,} rounds, "
        f"dense layers of {_first_layer_units(study):,} and {settings.rows:,} units"
    )
