"""A client with digits that trains honestly or memorises, for tests of its guard."""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedaudit.core.seeds import seed_globally
from fedaudit.guard.guard import Guard
from fedaudit.live.audited import Split, fair_split

State = dict[str, Tensor]
CLIENT, AUDITED = 3, 700


class Data(NamedTuple):
    x: Tensor
    y: Tensor
    split: Split


@cache
def data() -> Data:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    # Half of the labels are random, since digits with true labels are learned without memorising.
    draw = torch.Generator().manual_seed(3)
    y = torch.where(
        torch.rand(len(y), generator=draw) < 0.5, y, y[torch.randperm(len(y), generator=draw)]
    )
    return Data(x, y, fair_split({CLIENT: (x, y)}, audited=AUDITED))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def initial() -> State:
    seed_globally(5)
    return network().state_dict()


def trained(state: State, rows: Collection[int], *, epochs: int, seed: int = 1) -> State:
    """The state after epochs of gradient descent on some samples."""
    seed_globally(seed)
    net, chosen = network(), torch.tensor(sorted(rows))
    net.load_state_dict(state)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = data().x[chosen], data().y[chosen]
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(x)), 32):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


@cache
def honest() -> State:
    """One epoch on all training samples."""
    return trained(initial(), data().split.train[CLIENT].tolist(), epochs=1)


@cache
def memorising() -> State:
    """Many epochs on the members alone."""
    audit = data().split.audit
    members = torch.from_numpy(audit.owner == CLIENT)
    x, y = audit.samples.features[members], audit.samples.labels[members]
    seed_globally(2)
    net = network()
    net.load_state_dict(initial())
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def noisy(update: Any) -> Any:
    """A filter whose noise hides the update."""
    noise = torch.Generator().manual_seed(7)
    return {n: v + 5.0 * torch.randn(v.shape, generator=noise) for n, v in update.items()}


def guard(folder: Path, **settings: Any) -> Guard:
    how = {"limit": 0.6, "log": lambda line: None, **settings}
    return Guard(folder, network, data().split.audit, **how)
