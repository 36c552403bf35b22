"""Federated algorithms compared with plain loops over numbers, for a linear model."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Batch, ClientId, Model, Samples, flat
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.fednova import STEPS, FedNova, step_weight_norm
from fedaudit.fl.hooks import Defense, TrainingContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Round, Update

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
    after = algorithm.models(algorithm.fold(state, uploads, {0: 0.5, 1: 0.5}))["global"]
    # The effective number of steps is 1, so the first client's update of 2 steps is halved twice.
    before = vector(algorithm.models(state)["global"])
    assert_close(after, [value + 0.25 for value in before])
