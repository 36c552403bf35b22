"""Federated averaging compared with independent calculations."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model, Samples, add_scaled, flat, weighted_sum
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from tests.samples import random_samples

SEED, ROUNDS, COUNT = 11, 3, 22


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(4, 3)
    )


def counting_norm() -> nn.Module:
    """Return a network whose running statistics are means over all batches."""
    norm = nn.BatchNorm1d(12, momentum=None)
    return nn.Sequential(nn.Flatten(), norm, nn.Linear(12, 3))


def smooth() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))


NETS = {"dense": dense, "convolutional": convolutional, "counting": counting_norm}


def samples(client: int, count: int = COUNT) -> Samples:
    return random_samples(
        seeded(0, "samples", client), count, 3, 2, 2, classes=3, first=100 * client
    )


def federated(
    net: str, how: LocalTraining, clients: dict[int, Samples], rounds: int
) -> list[Model]:
    algorithm = FedAvg(Architecture(net, partial(NETS[net])), how)
    run = simulate(algorithm, clients, rounds=rounds, seed=SEED)
    return [round.after["global"] for round in run]


def initial(net: str) -> Model:
    """Return the model that clients receive in the first round."""
    algorithm = FedAvg(Architecture(net, partial(NETS[net])), LocalTraining())
    (first,) = simulate(algorithm, {0: samples(0)}, rounds=1, seed=SEED)
    return first.sent[0].model


def train_with_torch(net: str, data: Samples, how: LocalTraining) -> nn.Module:
    """Train with torch on the same shuffled batches, with a new optimizer in each round."""
    module = initial(net).module().train()
    for round in range(1, ROUNDS + 1):
        if how.optimizer == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(
                module.parameters(), lr=how.lr, weight_decay=how.weight_decay
            )
        else:
            optimizer = torch.optim.SGD(
                module.parameters(),
                lr=how.lr,
                momentum=how.momentum,
                weight_decay=how.weight_decay,
            )
        shuffles = seeded(SEED, "client", 0, "round", round, "batches")
        for _ in range(how.epochs):
            order = torch.randperm(len(data), generator=shuffles)
            for start in range(0, len(data), how.batch_size):
                batch = order[start : start + how.batch_size]
                optimizer.zero_grad()
                loss = functional.cross_entropy(module(data.features[batch]), data.labels[batch])
                torch.autograd.backward(loss)
                optimizer.step()
    return module


@pytest.mark.parametrize("net", ["dense", "convolutional"])
@pytest.mark.parametrize(
    "how",
    [
        LocalTraining(batch_size=8, lr=0.1),
        LocalTraining(batch_size=8, lr=0.1, momentum=0.9, weight_decay=5e-3, epochs=2),
        LocalTraining(batch_size=100, lr=0.1, epochs=3),
        LocalTraining(batch_size=8, lr=0.01, weight_decay=5e-3, optimizer="adam"),
    ],
    ids=["plain", "momentum, weight decay, two epochs", "full batch", "adam"],
)
def test_one_client_with_all_data_trains_as_if_there_were_no_federation(
    net: str, how: LocalTraining
) -> None:
    data = samples(0)
    ours = federated(net, how, {0: data}, ROUNDS)[-1]
    theirs = Model.of(ours.architecture, train_with_torch(net, data, how))
    # Adam divides by the size of the gradient, so rounding errors of small gradients grow.
    near = 1e-5 if how.optimizer == "adam" else 1e-6
    for name, value in (ours.params | ours.buffers).items():
        expected = (theirs.params | theirs.buffers)[name]
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=near)


def test_updates_and_running_statistics_are_averaged_by_data_size() -> None:
    clients = {0: samples(0, 10), 1: samples(1, 30)}
    algorithm = FedAvg(Architecture("convolutional", partial(convolutional)), LocalTraining())
    (round,) = simulate(algorithm, clients, rounds=1, seed=SEED)
    after, before = round.after["global"], round.sent[0].model
    first, second = round.uploads[0], round.uploads[1]
    assert round.weights == {0: 0.25, 1: 0.75}
    mean = weighted_sum([first.values, second.values], [0.25, 0.75])
    for name, value in add_scaled(before.params, mean).items():
        torch.testing.assert_close(after.params[name], value)
    locals_ = [round.observed[client].local for client in clients]
    buffers = [model.buffers for model in locals_ if model is not None]
    assert set(buffers[0]) == {"1.running_mean", "1.running_var"}
    for name, value in weighted_sum(buffers, [0.25, 0.75]).items():
        torch.testing.assert_close(after.buffers[name], value)
        assert not torch.equal(after.buffers[name], before.buffers[name])


def test_running_statistics_do_not_depend_on_earlier_clients() -> None:
    how = LocalTraining(batch_size=8)
    alone = federated("counting", how, {5: samples(5)}, 1)[0]
    others = {client: samples(client) for client in range(5)}
    run = simulate(
        FedAvg(Architecture("counting", partial(counting_norm)), how),
        others | {5: samples(5)},
        rounds=1,
        seed=SEED,
    )
    (last,) = run
    local = last.observed[5].local
    assert local is not None
    for name, value in alone.buffers.items():
        assert torch.equal(local.buffers[name], value)


def test_clients_with_equal_data_average_to_one_clients_training() -> None:
    how = LocalTraining(batch_size=COUNT, lr=0.1)
    single = federated("dense", how, {0: samples(0)}, ROUNDS)[-1]
    three = federated("dense", how, dict.fromkeys(range(3), samples(0)), ROUNDS)[-1]
    for name, value in single.params.items():
        torch.testing.assert_close(three.params[name], value, rtol=1e-5, atol=1e-6)


def test_a_redefined_network_is_rebuilt() -> None:
    how, data = LocalTraining(lr=0.1), {0: samples(0)}
    relu = Architecture("mine", partial(dense))
    tanh = Architecture("mine", partial(smooth))
    (first,) = simulate(FedAvg(relu, how), data, rounds=1, seed=SEED)
    (second,) = simulate(FedAvg(tanh, how), data, rounds=1, seed=SEED)
    assert torch.equal(flat(first.sent[0].model.params), flat(second.sent[0].model.params))
    assert not torch.equal(flat(first.uploads[0].values), flat(second.uploads[0].values))
