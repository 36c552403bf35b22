"""Detection of planted models by a client, on honest and tampered federations."""

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
from fedaudit.games.mechanism import Given, resolve_mechanism
from fedaudit.games.playing import At, rules_of, share_estimate
from fedaudit.games.records import Dealt
from fedaudit.metrics.delong import auc_over_runs, rates_at_calibrated_threshold
from fedaudit.metrics.games import expected_success
from fedaudit.metrics.roc import auc
from fedaudit.models import MLP
from fedaudit.plan.games import GameStudy
from fedaudit.results import games as figures
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import Detection, Outline, WeightSpread

HONEST = ""
"""Name for models without a planted neuron, in place of a server's."""

FPR = 0.05
"""Largest share of honest models above a threshold, on the runs that choose it."""


class Inspected(NamedTuple):
    """Models as a client sees them, one per row.

    Attributes:
        server: How a neuron was planted; ``HONEST`` for none.
        run: Federation of the model.
        own: Whether the target is one of the client's records; false for honest models.
        values: Value of each sign, in the order of ``SIGNS``.
    """

    server: Sequence[str]
    run: Int[np.ndarray, " models"]
    own: Bool[np.ndarray, " models"]
    values: Float[np.ndarray, "models signs"]


def detector_roc(inspected: Inspected, *, seed: int) -> list[Estimate]:
    """Compute the figures of each sign against each kind of server.

    The first half of the runs chooses thresholds. One honest and one planted model of each other
    run are judged, so counts are independent.
    """
    kinds = np.asarray(inspected.server)
    honest, runs = kinds == HONEST, np.unique(inspected.run)
    early, late = np.split(runs, [len(runs) // 2])
    choosing = honest & np.isin(inspected.run, early)
    estimates: list[Estimate] = []
    for server in dict.fromkeys(name for name in inspected.server if name != HONEST):
        planted = kinds == server
        both = planted | honest
        judged = [_draw_per_run(inspected, side, late, seed=seed) for side in (planted, honest)]
        for name, values in zip(SIGNS, inspected.values.T, strict=True):
            estimate: At = partial(Estimate, topic=figures.DETECTOR, attack=server, group=name)
            draws = seeded_numpy(seed, "resamples", server, name)
            pooled = auc_over_runs(values[both], planted[both], inspected.run[both], rng=draws)
            limits = {"low": pooled.low, "high": pooled.high, "method": pooled.method}
            estimates.append(estimate(metric=figures.SIGN_AUC, value=pooled.value, **limits))
            for metric, side in (
                (figures.OWN_AUC, inspected.own),
                (figures.OTHERS_AUC, ~inspected.own),
            ):
                chosen = (planted & side) | honest
                estimates.append(
                    estimate(metric=metric, value=auc(values[chosen], planted[chosen]))
                )
            rates = rates_at_calibrated_threshold(
                values[choosing], *(values[item] for item in judged), fpr=FPR
            )
            estimates += [
                share_estimate(estimate, metric, item)
                for metric, item in zip(
                    (figures.DETECTED, figures.FALSE_ALARMS), rates, strict=True
                )
            ]
    return estimates


def _draw_per_run(
    inspected: Inspected,
    side: Bool[np.ndarray, " models"],
    runs: Int[np.ndarray, " runs"],
    *,
    seed: int,
) -> Int[np.ndarray, " runs"]:
    """Draw one model of a side from each run; honest ones are the same for every server."""
    rng = seeded_numpy(seed, "judged")
    return np.array([rng.choice(np.flatnonzero(side & (inspected.run == run))) for run in runs])


_RECORDS = 1000
"""Number of the server's records to which one row is fitted."""


class Aim(NamedTuple):
    """Knowledge of the server about its target.

    Attributes:
        target: Index among the clients' records.
        neuron: Neuron trained for it.
        of_target: Randomised copies of it.
        of_others: The server's records.
        batch: Records in a client's batch.
    """

    target: int
    neuron: Neurons
    of_target: Float[Tensor, "copies features"]
    of_others: Float[Tensor, "records features"]
    batch: int


SERVERS: dict[str, Callable[[Model, Aim], Planted]] = {
    "planted": lambda model, aim: plant(model, aim.neuron),
    "disguised": lambda model, aim: plant_disguised(model, aim.neuron),
    "one-row": lambda model, aim: plant_one_row(
        model, aim.of_target, aim.of_others, batch=aim.batch
    ),
}
"""Ways of planting a neuron: as AMI does; with the lengths of weights kept and nothing set to zero;
or as one row over the unchanged first layer."""

REPLACES_UNITS = ("planted", "disguised")
"""Servers that put units of their own into the first layer."""


def aim_at(contest: Contest, number: int) -> Aim:
    """Prepare a server for the contest's target of that number."""
    target, rng = contest.target(number), seeded(contest.seed, "one row", number)
    copies = contest.pools.clients[target].expand(contest.rules.copies, -1)
    chosen = torch.randperm(len(contest.pools.servers), generator=rng)[:_RECORDS]
    randomise = contest.randomisers.server
    return Aim(
        target,
        contest.neurons([number]),
        randomise(copies, rng),
        randomise(contest.pools.servers[chosen], rng),
        contest.rules.batch,
    )


_BINS = 60
_TESTED_ON = 2000
_INSPECTOR = 0


class _Federation(NamedTuple):
    """One run: the models that its first client is sent, and the records that clients train on."""

    models: Sequence[Model]
    own: Samples
    everybody: Samples
    accuracy: float


class _Row(NamedTuple):
    """One inspected model; the first four fields are a row of :class:`Inspected`."""

    server: str
    run: int
    own: bool
    values: list[float]
    success: float


def detect(study: GameStudy, dealt: Dealt, *, progress: Progress) -> Detection:
    """Compute the detector ROC of each sign, on planted models and honest federations.

    Each run deals the records again and trains a federation honestly. The models that its first
    client is sent are inspected as they are, and with a neuron planted by each kind of server: for
    one of the client's records, and for another client's. Thresholds are chosen on other runs.

    Source: AMI, section 7 (Detecting Malicious Weights is Challenging), Figs. 8 and 14.
    """
    begun, settings = monotonic(), study.detector
    mechanism = resolve_mechanism(study.mechanism, dealt.pools.clients.shape[1])
    seed = seed_for(study.seed, "detector")
    contest = Contest(dealt.pools, rules_of(study), seed, mechanism.randomisers)
    rows: list[_Row] = []
    accuracy, mine, spread = [], 0, None
    with one_thread():
        for run in range(settings.runs):
            progress("runs of the detector", run, settings.runs)
            federation = _federation(study, dealt, mechanism, run)
            aims = {is_own: _aim(contest, federation, run, is_own) for is_own in (True, False)}
            rows += _rows(federation, aims, run, _inspected_rounds(study))
            accuracy.append(federation.accuracy)
            mine = len(federation.own)
            spread = spread or _collect_weights(federation.models[-1], aims[True])
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
        own=mine,
        estimates=[
            estimate(metric=figures.HONEST_ACCURACY, value=float(np.mean(accuracy))),
            *success,
            *detector_roc(Inspected(server, *map(np.asarray, columns)), seed=seed),
        ],
        weights=spread,
        seconds=round(monotonic() - begun, 1),
    )


def _federation(study: GameStudy, dealt: Dealt, mechanism: Given, run: int) -> _Federation:
    settings, seed = study.detector, seed_for(study.seed, "federation", run)
    clients = dealt.pools.clients
    if len(clients) < 3 * settings.clients:
        raise BadInput(
            f"{len(clients)} records are too few for {settings.clients} clients of a federation; "
            f"lower detector.clients or raise {setting('records.clients')}"
        )
    features = mechanism.randomisers.client(clients, seeded(seed, "noise"))
    everybody = Samples(features, dealt.labels.clients, torch.arange(len(features)))
    order = torch.randperm(len(clients), generator=seeded(seed, "deal"))
    data = {c: everybody.take(part) for c, part in enumerate(order.tensor_split(settings.clients))}
    rounds = simulate(_algorithm(study, dealt), data, rounds=settings.rounds, seed=seed)
    models = [round.sent[_INSPECTOR].model for round in rounds]
    some = mechanism.randomisers.client(dealt.pools.servers[:_TESTED_ON], seeded(seed, "test"))
    right = outputs_of(models[-1], some).argmax(1) == dealt.labels.servers[:_TESTED_ON]
    return _Federation(models, data[_INSPECTOR], everybody, float(right.double().mean()))


def _algorithm(study: GameStudy, dealt: Dealt) -> Algorithm:
    settings, shape = study.detector, (dealt.pools.clients.shape[1],)
    hidden = f"{_units(study)},{settings.rows}"
    build = MLP(hidden=hidden).for_samples(shape, dealt.labels.classes)
    net = Architecture("mlp", build, (("hidden", hidden),))
    training = LocalTraining(lr=settings.lr)
    return FedSGD(net, training) if settings.algorithm == "fedsgd" else FedAvg(net, training)


def _aim(contest: Contest, federation: _Federation, run: int, is_own: bool) -> Aim:
    """Draw a target among the client's own records, or among the others'."""
    mine = set(federation.own.ids.tolist())
    number = next(n for n in count(run * 10**6) if (contest.target(n) in mine) == is_own)
    return aim_at(contest, number)


def _rows(
    federation: _Federation, aims: Mapping[bool, Aim], run: int, rounds: Sequence[int]
) -> Iterator[_Row]:
    for index in rounds:
        before, now = federation.models[index - 1], federation.models[index]
        inspected = [(HONEST, False, now, math.nan)]
        for server, plants in SERVERS.items():
            for is_own, aim in aims.items():
                model, (place,) = plants(now, aim)
                success = _success(model, place, aim, federation.everybody)
                inspected.append((server, is_own, model, success))
        for server, is_own, model, success in inspected:
            values = [sign(model, before, federation.own) for sign in SIGNS.values()]
            yield _Row(server, run, is_own, values, success)


def _success(model: Model, place: PlantedRow, aim: Aim, everybody: Samples) -> float:
    """Compute the server's success (Adv) from the records for which the neuron fires."""
    fires = activations_on(model, everybody)[1][:, place.row] > 0
    others = torch.arange(len(fires)) != aim.target
    of_target, of_others = float(fires[aim.target]), float(fires[others].double().mean())
    return expected_success(of_target, of_others, aim.batch)


def _inspected_rounds(study: GameStudy) -> list[int]:
    """Return positions of the inspected models, evenly spaced from the second on."""
    settings = study.detector
    looks = min(settings.looks, settings.rounds - 1)
    return sorted({int(index) for index in np.linspace(settings.rounds - 1, 1, looks).round()})


def _collect_weights(model: Model, aim: Aim) -> WeightSpread:
    """Collect weights of the replaced units, in the honest and in planted models."""
    n_units = aim.neuron.first.shape[1]
    models = {HONEST: model} | {name: SERVERS[name](model, aim).model for name in REPLACES_UNITS}
    weights = {
        name: hidden_layers(planted_model)[0].weight[:n_units].flatten().numpy()
        for name, planted_model in models.items()
    }
    # The range covers nearly all weights of the widest distribution.
    reach = max(float(np.quantile(np.abs(values), 0.97)) for values in weights.values())
    edges = np.linspace(-reach, reach, _BINS + 1)
    outlines = [
        Outline(server=name, counts=np.histogram(values.clip(-reach, reach), edges)[0].tolist())
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
