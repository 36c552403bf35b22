"""Detection of planted models by a client, on models of honest and of tampering servers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami.game import Contest
from fedaudit.attacks.ami.plant import (
    Neurons,
    Planted,
    PlantedRow,
    plant,
    plant_disguised,
    plant_one_row,
)
from fedaudit.core.errors import BadInput, setting
from fedaudit.core.modules import outputs_of
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seed_for, seeded, seeded_numpy
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.defenses.planted import SIGNS, activations_on, hidden_layers
from fedaudit.engines.local import one_thread
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.fedsgd import FedSGD
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.games.mechanism import GameMechanism, resolve_mechanism
from fedaudit.games.playing import MakeEstimate, rate_estimate, rules_of
from fedaudit.games.records import GameRecords
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


class Inspected(NamedTuple):
    """Models that a client inspects, one per row.

    A *sign* is a statistic of a model by which a client may notice a planted neuron.

    Attributes:
        server: Name of the server that planted the neuron; ``HONEST`` if no neuron is planted.
        run: Number of the model's federation.
        own: Whether the target is one of the client's records; false for honest models.
        values: Value of each sign, in the order of ``SIGNS``.
    """

    server: Sequence[str]
    run: Int[np.ndarray, " models"]
    own: Bool[np.ndarray, " models"]
    values: Float[np.ndarray, "models signs"]


def detector_roc(inspected: Inspected, *, seed: int) -> list[Estimate]:
    """Compute the estimates of each sign against each kind of server.

    Thresholds are chosen on the first half of the runs. The detection rates are counted on one
    honest and one planted model of each other run, so that the counted models are independent.
    """
    servers = np.asarray(inspected.server)
    is_honest, runs = servers == HONEST, np.unique(inspected.run)
    calibration_runs, test_runs = np.split(runs, [len(runs) // 2])
    is_calibration = is_honest & np.isin(inspected.run, calibration_runs)
    estimates: list[Estimate] = []
    for server in dict.fromkeys(name for name in inspected.server if name != HONEST):
        is_planted = servers == server
        both = is_planted | is_honest
        test_models = [
            _draw_per_run(inspected, mask, test_runs, seed=seed) for mask in (is_planted, is_honest)
        ]
        for name, values in zip(SIGNS, inspected.values.T, strict=True):
            estimate: MakeEstimate = partial(
                Estimate, topic=figures.DETECTOR, attack=server, group=name
            )
            rng = seeded_numpy(seed, "resamples", server, name)
            pooled = auc_over_runs(values[both], is_planted[both], inspected.run[both], rng=rng)
            limits = {"low": pooled.low, "high": pooled.high, "method": pooled.method}
            estimates.append(estimate(metric=figures.SIGN_AUC, value=pooled.value, **limits))
            for metric, mask in (
                (figures.OWN_AUC, inspected.own),
                (figures.OTHERS_AUC, ~inspected.own),
            ):
                chosen = (is_planted & mask) | is_honest
                estimates.append(
                    estimate(metric=metric, value=auc(values[chosen], is_planted[chosen]))
                )
            rates = rates_at_calibrated_threshold(
                values[is_calibration], *(values[index] for index in test_models), fpr=FPR
            )
            estimates += [
                rate_estimate(estimate, metric, rate)
                for metric, rate in zip(
                    (figures.DETECTED, figures.FALSE_ALARMS), rates, strict=True
                )
            ]
    return estimates


def _draw_per_run(
    inspected: Inspected,
    mask: Bool[np.ndarray, " models"],
    runs: Int[np.ndarray, " runs"],
    *,
    seed: int,
) -> Int[np.ndarray, " runs"]:
    """Draw one masked model from each run. The honest models are the same for every server."""
    rng = seeded_numpy(seed, "judged")
    return np.array([rng.choice(np.flatnonzero(mask & (inspected.run == run))) for run in runs])


_N_RECORDS = 1000
"""Number of the server's records to which the row of the server "one-row" is fitted."""


class TargetKnowledge(NamedTuple):
    """What a server knows about its target.

    Attributes:
        target: Index of the target among the clients' records.
        neuron: Neuron that is trained for the target.
        of_target: Randomised copies of the target.
        of_others: Randomised copies of the server's records.
        batch: Number of records in a client's batch.
    """

    target: int
    neuron: Neurons
    of_target: Float[Tensor, "copies features"]
    of_others: Float[Tensor, "records features"]
    batch: int


SERVERS: dict[str, Callable[[Model, TargetKnowledge], Planted]] = {
    "planted": lambda model, knowledge: plant(model, knowledge.neuron),
    "disguised": lambda model, knowledge: plant_disguised(model, knowledge.neuron),
    "one-row": lambda model, knowledge: plant_one_row(
        model, knowledge.of_target, knowledge.of_others, batch=knowledge.batch
    ),
}
"""Ways in which servers plant a neuron: as in AMI; with the norms of the honest weights and without
zeros; or as one row of the second layer, over the unchanged first layer."""

REPLACES_UNITS = ("planted", "disguised")
"""Servers that replace units of the first layer."""


def knowledge_of(contest: Contest, number: int) -> TargetKnowledge:
    """Prepare a server for the contest's target with this number."""
    target, rng = contest.target(number), seeded(contest.seed, "one row", number)
    copies = contest.pools.clients[target].expand(contest.rules.copies, -1)
    chosen = torch.randperm(len(contest.pools.servers), generator=rng)[:_N_RECORDS]
    randomise = contest.randomisers.server
    return TargetKnowledge(
        target,
        contest.neurons([number]),
        randomise(copies, rng),
        randomise(contest.pools.servers[chosen], rng),
        contest.rules.batch,
    )


_N_BINS = 60
_N_TEST_RECORDS = 2000
_INSPECTOR = 0
"""Number of the client that inspects the models."""


class _Federation(NamedTuple):
    """Run of an honest federation.

    Attributes:
        models: Model that the inspecting client receives in each round.
        own: Records of the inspecting client.
        all_records: Records of all clients.
        accuracy: Test accuracy of the last of these models.
    """

    models: Sequence[Model]
    own: Samples
    all_records: Samples
    accuracy: float


class _Row(NamedTuple):
    """Inspected model. The first four fields are a row of :class:`Inspected`."""

    server: str
    run: int
    own: bool
    values: list[float]
    success: float


def detect(study: GameStudy, records: GameRecords, *, progress: Progress) -> Detection:
    """Compute the detector ROC of each sign, on planted and honest models.

    Each run divides the records again and trains an honest federation. The first client inspects
    the models that it receives: unchanged, and with a neuron that each kind of server plants for a
    record of this client or of another client. Thresholds are chosen on other runs.

    Source: AMI, section 7 (Detecting Malicious Weights is Challenging), Figs. 8 and 14.
    """
    start, settings = monotonic(), study.detector
    mechanism = resolve_mechanism(study.mechanism, records.pools.clients.shape[1])
    seed = seed_for(study.seed, "detector")
    contest = Contest(records.pools, rules_of(study), seed, mechanism.randomisers)
    rows: list[_Row] = []
    accuracies, n_own, spread = [], 0, None
    with one_thread():
        for run in range(settings.runs):
            progress("runs of the detector", run, settings.runs)
            federation = _federation(study, records, mechanism, run)
            knowledge = {
                is_own: _draw_target(contest, federation, run, is_own) for is_own in (True, False)
            }
            rows += _rows(federation, knowledge, run, _inspected_rounds(study))
            accuracies.append(federation.accuracy)
            n_own = len(federation.own)
            spread = spread or _collect_weights(federation.models[-1], knowledge[True])
    progress("runs of the detector", settings.runs, settings.runs)
    server, *columns, _ = zip(*rows, strict=True)
    estimate = partial(Estimate, topic=figures.DETECTOR)
    success = [
        estimate(
            metric=figures.SERVER_SUCCESS,
            attack=name,
            value=float(np.mean([row.success for row in rows if row.server == name])),
        )
        for name in SERVERS
    ]
    return Detection(
        federation=_description(study),
        runs=settings.runs,
        judged=settings.runs - settings.runs // 2,
        honest=server.count(HONEST),
        planted=server.count(next(iter(SERVERS))),
        own=n_own,
        estimates=[
            estimate(metric=figures.HONEST_ACCURACY, value=float(np.mean(accuracies))),
            *success,
            *detector_roc(Inspected(server, *map(np.asarray, columns)), seed=seed),
        ],
        weights=spread,
        seconds=round(monotonic() - start, 1),
    )


def _federation(
    study: GameStudy, records: GameRecords, mechanism: GameMechanism, run: int
) -> _Federation:
    settings, seed = study.detector, seed_for(study.seed, "federation", run)
    clients = records.pools.clients
    if len(clients) < 3 * settings.clients:
        raise BadInput(
            f"{len(clients)} records are too few for {settings.clients} clients of a federation; "
            f"lower detector.clients or raise {setting('records.clients')}"
        )
    features = mechanism.randomisers.client(clients, seeded(seed, "noise"))
    all_records = Samples(features, records.labels.clients, torch.arange(len(features)))
    order = torch.randperm(len(clients), generator=seeded(seed, "deal"))
    parts = enumerate(order.tensor_split(settings.clients))
    data = {client: all_records.take(part) for client, part in parts}
    rounds = simulate(_algorithm(study, records), data, rounds=settings.rounds, seed=seed)
    models = [round.sent[_INSPECTOR].model for round in rounds]
    test_records = mechanism.randomisers.client(
        records.pools.servers[:_N_TEST_RECORDS], seeded(seed, "test")
    )
    predicted = outputs_of(models[-1], test_records).argmax(1)
    is_correct = predicted == records.labels.servers[:_N_TEST_RECORDS]
    return _Federation(models, data[_INSPECTOR], all_records, float(is_correct.double().mean()))


def _algorithm(study: GameStudy, records: GameRecords) -> Algorithm:
    settings, shape = study.detector, (records.pools.clients.shape[1],)
    hidden = f"{_units(study)},{settings.rows}"
    build = MLP(hidden=hidden).for_samples(shape, records.labels.classes)
    net = Architecture("mlp", build, (("hidden", hidden),))
    training = LocalTraining(lr=settings.lr)
    return FedSGD(net, training) if settings.algorithm == "fedsgd" else FedAvg(net, training)


def _draw_target(
    contest: Contest, federation: _Federation, run: int, is_own: bool
) -> TargetKnowledge:
    """Draw a target among the records of the inspecting client, or of the other clients."""
    own_ids = set(federation.own.ids.tolist())
    # Each run searches a range of its own, so that runs have different targets.
    number = next(n for n in count(run * 10**6) if (contest.target(n) in own_ids) == is_own)
    return knowledge_of(contest, number)


def _rows(
    federation: _Federation,
    knowledge: Mapping[bool, TargetKnowledge],
    run: int,
    rounds: Sequence[int],
) -> Iterator[_Row]:
    for index in rounds:
        previous, current = federation.models[index - 1], federation.models[index]
        inspected = [(HONEST, False, current, math.nan)]
        for server, plant_neuron in SERVERS.items():
            for is_own, target in knowledge.items():
                model, (place,) = plant_neuron(current, target)
                success = _success(model, place, target, federation.all_records)
                inspected.append((server, is_own, model, success))
        for server, is_own, model, success in inspected:
            values = [sign(model, previous, federation.own) for sign in SIGNS.values()]
            yield _Row(server, run, is_own, values, success)


def _success(
    model: Model, place: PlantedRow, target: TargetKnowledge, all_records: Samples
) -> float:
    """Compute the server's success (Adv) from the records for which the neuron fires."""
    fires = activations_on(model, all_records)[1][:, place.row] > 0
    others = torch.arange(len(fires)) != target.target
    of_target, of_others = float(fires[target.target]), float(fires[others].double().mean())
    return expected_success(of_target, of_others, target.batch)


def _inspected_rounds(study: GameStudy) -> list[int]:
    """Return positions of the inspected models, evenly spaced from the second model on."""
    settings = study.detector
    n_looks = min(settings.looks, settings.rounds - 1)
    return sorted({int(index) for index in np.linspace(settings.rounds - 1, 1, n_looks).round()})


def _collect_weights(model: Model, target: TargetKnowledge) -> WeightSpread:
    """Compute histograms of the weights of the replaced units, in honest and planted models."""
    n_units = target.neuron.first.shape[1]
    models = {HONEST: model}
    models |= {name: SERVERS[name](model, target).model for name in REPLACES_UNITS}
    weights = {
        name: hidden_layers(planted_model)[0].weight[:n_units].flatten().numpy()
        for name, planted_model in models.items()
    }
    # The range covers 97 % of the weights of the widest distribution.
    limit = max(float(np.quantile(np.abs(values), 0.97)) for values in weights.values())
    edges = np.linspace(-limit, limit, _N_BINS + 1)
    outlines = [
        Outline(server=name, counts=np.histogram(values.clip(-limit, limit), edges)[0].tolist())
        for name, values in weights.items()
    ]
    return WeightSpread(edges=edges.tolist(), outlines=outlines)


def _units(study: GameStudy) -> int:
    return study.detector.units or 2 * study.neuron.hidden


def _description(study: GameStudy) -> str:
    settings = study.detector
    return (
        f"{settings.algorithm} with {settings.clients:,} clients over {settings.rounds:,} rounds, "
        f"dense layers of {_units(study):,} and {settings.rows:,} units"
    )
