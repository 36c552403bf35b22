"""Networks of other people go through every door, and their gradients are those of autograd."""

import copy
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fedaudit
from fedaudit.core import Architecture, Params, Samples
from fedaudit.fl.fedavg import FedAvg
from fedaudit.fl.training import LocalTraining
from fedaudit.live.audited import Split
from fedaudit.modules import outputs_of
from fedaudit.observe.measured_files import read_measured
from fedaudit.signals.gradients import gradient_norms
from tests.foreign.networks import CLASSES, Tutorial

FEW = ("blackbox-loss", "avg-cosine", "grad-norm", "fedmia-1")
NETWORKS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {"tutorial": (Tutorial, (3, 20, 20))}
every_network = pytest.mark.parametrize("name", NETWORKS)
CLIENTS = 3


class Data(NamedTuple):
    split: Split
    train: dict[int, tuple[Tensor, Tensor]]


@cache
def data(name: str) -> Data:
    rng = torch.Generator().manual_seed(0)
    shape = NETWORKS[name][1]
    given = {
        client: (
            torch.randn(30, *shape, generator=rng),
            torch.randint(CLASSES, (30,), generator=rng),
        )
        for client in range(CLIENTS)
    }
    split = fedaudit.fair_split(given, audited=16)
    train = {c: (x[split.train[c]], y[split.train[c]]) for c, (x, y) in given.items()}
    return Data(split, train)


def made(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return NETWORKS[name][0]()


def trained(net: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """A client's training, as people write it."""
    local = copy.deepcopy(net).train()
    optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
    for rows in torch.split(torch.arange(len(x)), 8):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(local(x[rows]), y[rows])
        torch.autograd.backward(loss)
        optimizer.step()
    return local


class Told(NamedTuple):
    number: int
    sent: nn.Module
    uploads: dict[int, nn.Module]


def rounds(name: str, count: int = 2) -> Iterator[Told]:
    net = made(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        for number in range(1, count + 1):
            uploads = {c: trained(net, *own) for c, own in data(name).train.items()}
            yield Told(number, net, uploads)
            states = [local.state_dict() for local in uploads.values()]
            net = copy.deepcopy(net)
            net.load_state_dict(
                {k: torch.stack([s[k].double() for s in states]).mean(0) for k in states[0]}
            )


def products_by_hand(net: nn.Module, update: Params, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Cosine of one sample's gradient with an update, and its squared length, in 64 bits."""
    exact = copy.deepcopy(net).double().eval()
    loss = nn.functional.cross_entropy(exact(x[None].double()), y[None])
    named = {n: p for n, p in exact.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    found = {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(named.items(), grads, strict=True)
    }
    dot = sum(float((g * update[n].double()).sum()) for n, g in found.items())
    length = sum(float(g.square().sum()) for g in found.values()) ** 0.5
    away = sum(float(update[n].double().square().sum()) for n in found) ** 0.5
    return dot / (length * away), length**2


@every_network
def test_a_recording_of_a_loop_of_ones_own_measures_what_autograd_does(
    name: str, tmp_path: Path
) -> None:
    split = data(name).split
    told = list(rounds(name))
    with fedaudit.record(
        tmp_path / "r", NETWORKS[name][0], split.audit, attacks=FEW, strict=True
    ) as recorder:
        for one in told:
            recorder.round(one.number, sent=one.sent, uploads=one.uploads)
    for one, stored in zip(told, read_measured(tmp_path / "r"), strict=True):
        base = dict(one.sent.named_parameters())
        signals = stored.measured.signals
        for client, local in one.uploads.items():
            update = {n: (p - base[n]).detach() for n, p in local.named_parameters()}
            exact = copy.deepcopy(local).double().eval()
            for place in range(0, len(split.audit), 7):
                x, y = split.audit.samples.features[place], split.audit.samples.labels[place]
                cosine, squared = products_by_hand(one.sent, update, x, y)
                loss = nn.functional.cross_entropy(exact(x[None].double()), y[None])
                found = [
                    float(signals[s][client, place])
                    for s in ("gradient-cosine", "gradient-norm", "loss")
                ]
                assert found[0] == pytest.approx(-cosine, abs=2e-5)
                assert found[1] == pytest.approx(-squared, rel=2e-4, abs=1e-12)
                assert found[2] == pytest.approx(-loss.item(), rel=1e-4, abs=1e-6)
    record = fedaudit.attack_recording(
        tmp_path / "r",
        (),
        tmp_path / "out",
        figures={"blind_classifier": False, "permutations": 20},
    )
    assert {one.name for one in record.attacks} == {*FEW}


@every_network
def test_a_simulation_trains_it_as_torch_does(name: str) -> None:
    clients = {
        client: Samples(x, y, torch.arange(len(x)) + 100 * client)
        for client, (x, y) in data(name).train.items()
    }
    architecture = Architecture(name, NETWORKS[name][0])
    algorithm = FedAvg(architecture, LocalTraining(lr=0.05, epochs=1, batch_size=100))
    (one,) = fedaudit.simulate(algorithm, clients, rounds=1, seed=1)
    assert all(value.isfinite().all() for value in one.after["global"].params.values())


def test_a_view_behind_convolutions_runs_in_the_order_it_was_written_for() -> None:
    model = Architecture("tutorial", Tutorial).initial(0)
    outputs = outputs_of(model, torch.ones(3, 3, 20, 20))
    torch.testing.assert_close(outputs, model.module()(torch.ones(3, 3, 20, 20)))


def test_a_view_behind_convolutions_is_still_taken_apart_layer_by_layer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Architecture("tutorial network", Tutorial).initial(0)
    with caplog.at_level(logging.WARNING, "fedaudit"):
        gradient_norms(model, torch.randn(4, 3, 20, 20), torch.zeros(4, dtype=torch.int64))
    assert not caplog.records
