"""Federated algorithms compared with plain loops over numbers, for a linear model."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import (
    Architecture,
    Batch,
    ClientId,
    Model,
    Samples,
    flat,
    scaled,
    with_prefix,
)
from fedaudit.defenses.clip import ClientDP
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.ditto import Ditto
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.feddyn import FedDyn
from fedaudit.fl.algorithms.fednova import STEPS, FedNova, step_weight_norm
from fedaudit.fl.algorithms.scaffold import CONTROL, Scaffold
from fedaudit.fl.hooks import Defense, TrainingContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.kept_files import read_rounds, write_round
from fedaudit.observe.round import Round, Update, Upload
from fedaudit.observe.views import seen_from

FEATURES, CLASSES, ROUNDS, BATCH = 2, 3, 2, 2
LR = 0.3
Vector = list[float]
"""Parameters or a gradient of the model: the rows of the weight, then the bias."""


def net() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES).double()


ARCHITECTURE = Architecture("linear", partial(net))


def samples(client: ClientId, count: int) -> Samples:
    rng = seeded(5, "loops", client)
    return Samples(
        torch.randn(count, FEATURES, generator=rng),
        torch.randint(CLASSES, (count,), generator=rng),
        torch.arange(count) + 100 * client,
    )


DATA = {0: samples(0, 2), 1: samples(1, 4), 2: samples(2, 7)}
"""Clients that take 1, 2 and 4 steps per epoch."""
EQUAL = {client: samples(client, 4) for client in range(3)}


class InOrder(Defense):
    """Defense that draws batches in the order of the samples."""

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        for first in range(0, len(data), batch_size):
            rows = slice(first, first + batch_size)
            yield Batch(data.features[rows], data.targets[rows], data.ids[rows])


def run(algorithm: Algorithm, data: dict[ClientId, Samples], rounds: int = ROUNDS) -> list[Round]:
    defenses: dict[ClientId, Defense] = {client: InOrder() for client in data}
    return list(simulate(algorithm, data, rounds=rounds, seed=3, defenses=defenses))


def vector(model: Model) -> Vector:
    return [*map(float, flat(model.params))]


def start(rounds: Sequence[Round]) -> Vector:
    return vector(rounds[0].sent[0].model)


def gradient(theta: Vector, rows: Sequence[tuple[Vector, int]]) -> Vector:
    """Return the gradient of the mean cross-entropy of a linear model."""
    total = [0.0] * len(theta)
    for x, label in rows:
        logits = [
            sum(theta[c * FEATURES + f] * x[f] for f in range(FEATURES))
            + theta[CLASSES * FEATURES + c]
            for c in range(CLASSES)
        ]
        partition = sum(math.exp(logit) for logit in logits)
        for c in range(CLASSES):
            slope = (math.exp(logits[c]) / partition - (c == label)) / len(rows)
            for f in range(FEATURES):
                total[c * FEATURES + f] += slope * x[f]
            total[CLASSES * FEATURES + c] += slope
    return total


def rows_of(data: Samples) -> list[tuple[Vector, int]]:
    pairs = zip(data.features.double().tolist(), data.targets.tolist(), strict=True)
    return [(x, label) for x, label in pairs]


def batches_of(data: Samples, epochs: int = 1) -> list[list[tuple[Vector, int]]]:
    rows = rows_of(data)
    return [rows[i : i + BATCH] for _ in range(epochs) for i in range(0, len(rows), BATCH)]


def share(data: dict[ClientId, Samples], client: ClientId) -> float:
    return len(data[client]) / sum(map(len, data.values()))


def assert_close(model: Model, expected: Vector) -> None:
    torch.testing.assert_close(vector(model), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_equals_plain_loops(momentum: float) -> None:
    training = LocalTraining(lr=LR, batch_size=BATCH, momentum=momentum)
    rounds = run(FedNova(ARCHITECTURE, training), DATA)
    theta = start(rounds)
    for round in rounds:
        directions, norms = {}, {}
        for client, data in DATA.items():
            local, velocity = list(theta), [0.0] * len(theta)
            norm = weight = 0.0
            for batch in batches_of(data):
                slope = gradient(local, batch)
                velocity = [momentum * v + g for v, g in zip(velocity, slope, strict=True)]
                local = [p - LR * v for p, v in zip(local, velocity, strict=True)]
                weight = momentum * weight + 1
                norm += weight
            directions[client] = [(a - b) / norm for a, b in zip(theta, local, strict=True)]
            norms[client] = norm
        effective = sum(share(DATA, client) * norms[client] for client in DATA)
        theta = [
            theta[i] - effective * sum(share(DATA, c) * directions[c][i] for c in DATA)
            for i in range(len(theta))
        ]
        assert_close(round.after["global"], theta)


def test_fednova_clients_send_their_number_of_steps() -> None:
    (round,) = run(FedNova(ARCHITECTURE, LocalTraining(epochs=2, batch_size=BATCH)), DATA, rounds=1)
    uploads = [upload for upload in round.uploads.values() if isinstance(upload, Update)]
    assert [int(upload.extra[STEPS]) for upload in uploads] == [2, 4, 8]


def test_fednova_with_equal_steps_equals_fedavg() -> None:
    training = LocalTraining(lr=LR, batch_size=BATCH, epochs=3, momentum=0.5)
    nova, average = (run(kind(ARCHITECTURE, training), EQUAL) for kind in (FedNova, FedAvg))
    for ours, theirs in zip(nova, average, strict=True):
        assert_close(ours.after["global"], vector(theirs.after["global"]))


def test_fednova_norm_is_the_sum_of_the_weights_of_step_gradients() -> None:
    assert step_weight_norm(3, 0.0) == 3.0
    # The weights of three gradients are 1 + .5 + .25, 1 + .5 and 1.
    assert step_weight_norm(3, 0.5) == pytest.approx(1.75 + 1.5 + 1)
    assert step_weight_norm(0, 0.5) == 0.0


def test_fednova_refuses_other_optimizers() -> None:
    with pytest.raises(BadInput, match="adam; use sgd"):
        FedNova(ARCHITECTURE, LocalTraining(optimizer="adam"))


def test_fednova_ignores_the_update_of_a_client_without_steps() -> None:
    algorithm = FedNova(ARCHITECTURE, LocalTraining())
    state = algorithm.start(1)
    change = {
        name: torch.ones_like(v)
        for name, v in Model.from_tensors(ARCHITECTURE, state).params.items()
    }
    uploads = {
        0: Update(change, extra={STEPS: torch.tensor(2)}),
        1: Update(change, extra={STEPS: torch.tensor(0)}),
    }
    after = algorithm.models(algorithm.aggregate(state, uploads, {0: 0.5, 1: 0.5}))["global"]
    # The effective number of steps is 1, so the first client's update of 2 steps is halved twice.
    before = vector(algorithm.models(state)["global"])
    assert_close(after, [value + 0.25 for value in before])


def test_scaffold_equals_plain_loops() -> None:
    """Follow Algorithm 1 with both options, for clients with different numbers of steps."""
    for option in ("I", "II"):
        training = LocalTraining(lr=LR, batch_size=BATCH, epochs=2)
        rounds = run(Scaffold(ARCHITECTURE, training, option), DATA)
        theta = start(rounds)
        server = [0.0] * len(theta)
        own = {client: [0.0] * len(theta) for client in DATA}
        for round in rounds:
            step, change = [0.0] * len(theta), [0.0] * len(theta)
            for client, data in DATA.items():
                local = list(theta)
                batches = batches_of(data, epochs=2)
                for batch in batches:
                    slope = gradient(local, batch)
                    for i in range(len(theta)):
                        local[i] -= LR * (slope[i] - own[client][i] + server[i])
                if option == "I":
                    new = gradient(theta, rows_of(data))
                else:
                    new = [
                        own[client][i] - server[i] + (theta[i] - local[i]) / (len(batches) * LR)
                        for i in range(len(theta))
                    ]
                for i in range(len(theta)):
                    step[i] += share(DATA, client) * (local[i] - theta[i])
                    change[i] += share(DATA, client) * (new[i] - own[client][i])
                own[client] = new
            theta = [a + b for a, b in zip(theta, step, strict=True)]
            server = [a + b for a, b in zip(server, change, strict=True)]
            assert_close(round.after["global"], theta)
            for client in DATA:
                seen = flat(round.observed[client].control_variate or {}).tolist()
                torch.testing.assert_close(seen, own[client], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_one_client_equals_plain_training_bit_for_bit(
    option: Literal["I", "II"],
) -> None:
    training = LocalTraining(lr=LR, batch_size=BATCH, epochs=2, weight_decay=0.1)
    algorithms: list[Algorithm] = [
        Scaffold(ARCHITECTURE, training, option),
        FedAvg(ARCHITECTURE, training),
    ]
    ours, plain = (
        list(simulate(algorithm, {0: DATA[2]}, rounds=4, seed=3)) for algorithm in algorithms
    )
    for first, second in zip(ours, plain, strict=True):
        assert vector(first.after["global"]) == vector(second.after["global"])


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_scaffold_server_keeps_the_mean_of_all_control_variates(participation: float) -> None:
    algorithm = Scaffold(ARCHITECTURE, LocalTraining(lr=LR, batch_size=BATCH))
    own = {client: [0.0] * len(start(run(algorithm, DATA, rounds=1))) for client in DATA}
    rounds = list(simulate(algorithm, DATA, rounds=6, seed=3, participation=participation))
    for round, following in itertools.pairwise(rounds):
        for client, observed in round.observed.items():
            own[client] = flat(observed.control_variate or {}).tolist()
        mean = [
            sum(share(DATA, client) * own[client][i] for client in DATA) for i in range(len(own[0]))
        ]
        sent = next(iter(following.sent.values()))
        received = flat(with_prefix(sent.extra, CONTROL)).tolist()
        torch.testing.assert_close(received, mean, rtol=1e-9, atol=1e-12)


def test_scaffold_with_weight_decay_has_the_decayed_gradient_as_control_variate() -> None:
    training = LocalTraining(lr=LR, batch_size=100, weight_decay=0.2)
    for option in ("I", "II"):
        (round,) = run(Scaffold(ARCHITECTURE, training, option), DATA, rounds=1)
        theta = start([round])
        slope = gradient(theta, rows_of(DATA[1]))
        expected = [g + 0.2 * p for g, p in zip(slope, theta, strict=True)]
        seen = flat(round.observed[1].control_variate or {}).tolist()
        torch.testing.assert_close(seen, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("training", [{"optimizer": "adam"}, {"momentum": 0.9}])
def test_scaffold_refuses_steps_that_are_not_gradients(training: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="sgd with momentum 0"):
        Scaffold(ARCHITECTURE, LocalTraining(**training))


def test_noise_on_the_update_leaves_the_control_variate_unchanged() -> None:
    algorithm = Scaffold(ARCHITECTURE, LocalTraining(lr=LR, batch_size=BATCH))
    noise = ClientDP(clip=1.0, noise_multiplier=2.0)
    (plain,) = simulate(algorithm, DATA, rounds=1, seed=3)
    (noisy,) = simulate(algorithm, DATA, rounds=1, seed=3, defenses={1: noise})
    ours, theirs = plain.observed[1], noisy.observed[1]
    assert not torch.equal(flat(ours.update or {}), flat(theirs.update or {}))
    assert torch.equal(flat(ours.control_variate or {}), flat(theirs.control_variate or {}))
    # The undefended update follows from it: the correction of the first round is zero.
    recovered = scaled(theirs.control_variate or {}, -LR * 2)
    torch.testing.assert_close(flat(recovered), flat(ours.update or {}))


class OwnChange(Defense):
    """Custom defense that halves the change of the control variate."""

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        assert isinstance(upload, Update)
        return replace(upload, extra=scaled(upload.extra, 0.5))


def test_a_client_keeps_the_control_variate_that_a_custom_defense_has_sent() -> None:
    algorithm = Scaffold(ARCHITECTURE, LocalTraining(lr=LR, batch_size=BATCH))
    rounds = list(simulate(algorithm, DATA, rounds=2, seed=3, defenses={0: OwnChange()}))
    total = [0.0] * len(start(rounds))
    for round in rounds:
        upload = round.uploads[0]
        assert isinstance(upload, Update)
        changes = flat(with_prefix(upload.extra, CONTROL)).tolist()
        total = [a + b for a, b in zip(total, changes, strict=True)]
        seen = flat(round.observed[0].control_variate or {}).tolist()
        torch.testing.assert_close(seen, total, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("view", ["sum", "globals", "final"])
def test_only_views_with_uploads_show_control_variates(view: str) -> None:
    algorithm = Scaffold(ARCHITECTURE, LocalTraining(lr=LR, batch_size=BATCH))
    rounds = list(simulate(algorithm, DATA, rounds=2, seed=3))
    for round in seen_from(rounds, view):
        assert not round.uploads
        assert all(observed.control_variate is None for observed in round.observed.values())
    for round in seen_from(rounds, "uploads"):
        assert all(observed.control_variate for observed in round.observed.values())


def test_a_kept_round_has_the_control_variates(tmp_path: Path) -> None:
    algorithm = Scaffold(ARCHITECTURE, LocalTraining(lr=LR, batch_size=BATCH))
    (round,) = simulate(algorithm, DATA, rounds=1, seed=3)
    write_round(tmp_path, round, "full")
    (read,) = read_rounds(tmp_path, ARCHITECTURE)
    for client in DATA:
        kept, original = (
            flat(models.observed[client].control_variate or {}).double() for models in (read, round)
        )
        torch.testing.assert_close(kept, original, rtol=1e-3, atol=1e-3)
        assert kept.norm() > 0


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_feddyn_equals_plain_loops(participation: float) -> None:
    """Follow Algorithm 1, with clients that are absent from some rounds."""
    alpha = 0.2
    algorithm = FedDyn(ARCHITECTURE, LocalTraining(lr=LR, batch_size=BATCH, epochs=2), alpha)
    defenses: dict[ClientId, Defense] = {client: InOrder() for client in DATA}
    rounds = list(
        simulate(algorithm, DATA, rounds=5, seed=3, defenses=defenses, participation=participation)
    )
    theta = start(rounds)
    kept = {client: [0.0] * len(theta) for client in DATA}
    h = [0.0] * len(theta)
    for round in rounds:
        cohort = round.selected
        total = sum(len(DATA[client]) for client in cohort)
        mean = [0.0] * len(theta)
        for client in cohort:
            local = list(theta)
            for batch in batches_of(DATA[client], epochs=2):
                slope = gradient(local, batch)
                for i in range(len(theta)):
                    regulariser = alpha * (local[i] - theta[i]) - kept[client][i]
                    slope[i] += regulariser
                local = [p - LR * g for p, g in zip(local, slope, strict=True)]
            for i in range(len(theta)):
                kept[client][i] -= alpha * (local[i] - theta[i])
                h[i] -= alpha * share(DATA, client) * (local[i] - theta[i])
                mean[i] += len(DATA[client]) / total * local[i]
        theta = [m - value / alpha for m, value in zip(mean, h, strict=True)]
        assert_close(round.after["global"], theta)


def test_feddyn_with_alpha_zero_equals_fedavg_bit_for_bit() -> None:
    training = LocalTraining(lr=LR, batch_size=BATCH, momentum=0.5)
    ours, average = (
        run(FedDyn(ARCHITECTURE, training, 0.0), DATA),
        run(FedAvg(ARCHITECTURE, training), DATA),
    )
    for first, second in zip(ours, average, strict=True):
        assert vector(first.after["global"]) == vector(second.after["global"])


def test_ditto_equals_plain_loops() -> None:
    """Follow Algorithm 1 with full batches, whose order does not matter."""
    lam, epochs = 0.7, 3
    training = LocalTraining(lr=LR, batch_size=100, epochs=epochs)
    rounds = run(Ditto(ARCHITECTURE, training, lam), DATA)
    theta = start(rounds)
    personal = {client: list(theta) for client in DATA}
    for round in rounds:
        mean = [0.0] * len(theta)
        for client, data in DATA.items():
            local = list(theta)
            for _ in range(epochs):
                slope = gradient(local, rows_of(data))
                local = [p - LR * g for p, g in zip(local, slope, strict=True)]
                pulled = gradient(personal[client], rows_of(data))
                personal[client] = [
                    v - LR * (g + lam * (v - w))
                    for v, g, w in zip(personal[client], pulled, theta, strict=True)
                ]
            mean = [m + share(DATA, client) * p for m, p in zip(mean, local, strict=True)]
            assert_close(round.private_models[client], personal[client])
        theta = mean
        assert_close(round.after["global"], theta)


def test_ditto_shares_exactly_what_fedavg_shares() -> None:
    training = LocalTraining(lr=LR, batch_size=BATCH, momentum=0.5)
    ours, average = (
        run(Ditto(ARCHITECTURE, training), DATA),
        run(FedAvg(ARCHITECTURE, training), DATA),
    )
    for first, second in zip(ours, average, strict=True):
        assert vector(first.after["global"]) == vector(second.after["global"])
        for client in DATA:
            sent, plain = first.uploads[client], second.uploads[client]
            assert torch.equal(flat(sent.values), flat(plain.values))


def test_ditto_without_penalty_trains_personal_models_only_locally() -> None:
    training = LocalTraining(lr=LR, batch_size=BATCH)
    together = run(Ditto(ARCHITECTURE, training, 0.0), DATA)
    alone = run(Ditto(ARCHITECTURE, training, 0.0), {1: DATA[1]})
    for first, second in zip(together, alone, strict=True):
        assert vector(first.private_models[1]) == vector(second.private_models[1])
    pulled = run(Ditto(ARCHITECTURE, training, 1.0), DATA)
    # The received model is the personal model in the first round only.
    assert vector(pulled[-1].private_models[1]) != vector(alone[-1].private_models[1])


def test_ditto_personal_models_are_not_defended_and_not_shown() -> None:
    algorithm = Ditto(ARCHITECTURE, LocalTraining(lr=LR, batch_size=BATCH), 0.0)
    noise = ClientDP(clip=1.0, noise_multiplier=2.0)
    plain = list(simulate(algorithm, DATA, rounds=2, seed=3))
    noisy = list(simulate(algorithm, DATA, rounds=2, seed=3, defenses={1: noise}))
    assert vector(plain[-1].after["global"]) != vector(noisy[-1].after["global"])
    for first, second in zip(plain, noisy, strict=True):
        assert vector(first.private_models[1]) == vector(second.private_models[1])
        shown = first.observed[1].local
        assert shown is not None
        assert vector(shown) != vector(first.private_models[1])
