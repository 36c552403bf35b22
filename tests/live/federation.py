"""A small federation of digits in a custom loop, for tests of recordings."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedaudit.core.values import Architecture, ClientId, Samples
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.live.audited import Split, fair_split
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.models import MLP
from fedaudit.observe.measurements import read_measured
from fedaudit.observe.round import Round

ROUNDS = 4
POLICY = """
name = "tests"
[membership]
auc = 1.0
contrasts = ["unseen"]
[controls]
required = []
[evidence]
least_learned = 0.0
"""
"""A policy that asks for coverage and for controls that hold, and for no small figures."""
NET = Architecture("net", MLP(hidden="16").for_samples((64,), 10))


class Data(NamedTuple):
    clients: Mapping[ClientId, Samples]
    split: Split


@cache
def data() -> Data:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    parts = {c: (x[c:600:3], y[c:600:3]) for c in range(3)}
    split = fair_split(parts, audited=60)
    trained_rows = {c: torch.from_numpy(split.train[c]) for c in parts}
    clients = {
        c: Samples(px[trained_rows[c]], py[trained_rows[c]], trained_rows[c] + 1000 * c)
        for c, (px, py) in parts.items()
    }
    return Data(clients, split)


@cache
def trained() -> tuple[Round, ...]:
    training = LocalTraining(lr=0.1, epochs=3, batch_size=16)
    return tuple(simulate(FedAvg(NET, training), data().clients, rounds=ROUNDS, seed=1))


def network() -> nn.Module:
    return NET.build()


def module(params: Mapping[str, Tensor]) -> nn.Module:
    net = network()
    net.load_state_dict(dict(params))
    return net


class Live(NamedTuple):
    """A round of a custom loop."""

    number: int
    sent: dict[str, Tensor]
    uploads: dict[ClientId, dict[str, Tensor]]
    after: dict[str, Tensor]


def rounds() -> Iterator[Live]:
    for trained_round in trained():
        first = trained_round.observed[0].base
        assert first is not None
        uploads = {
            c: e.local.params for c, e in trained_round.observed.items() if e.local is not None
        }
        yield Live(trained_round.index, first.params, uploads, trained_round.after["global"].params)


FEW = ("blackbox-loss", "avg-cosine", "fedmia-1")


def recorder(folder: Path, **settings: object) -> Recorder:
    """A recorder that keeps all of every round, and stops at what cannot be recorded."""
    how = {"attacks": FEW, "strict": True, "keep": "full", **settings}
    return record(folder, network, data().split.audit, **how)  # type: ignore[arg-type]


def measured(folder: Path) -> dict[tuple[int, str], Tensor]:
    """Measurements of a recording, by round and signal."""
    return {
        (stored.measured.index, name): values
        for stored in read_measured(folder)
        for name, values in stored.measured.signals.items()
    }


def trained_linear(
    sent: Mapping[str, Tensor], x: Tensor, y: Tensor, *, lr: float, steps: int
) -> dict[str, Tensor]:
    """The state of a linear classifier after steps of gradient descent on all of some samples."""
    classes, width = sent["weight"].shape
    model = nn.Linear(width, classes)
    model.load_state_dict(dict(sent))
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return dict(model.state_dict())
