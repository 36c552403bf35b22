"""The network, the data of each site, how a site trains, and what canary sites send."""

import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedaudit import CanaryClients

SITES, EPOCHS = 5, 5
CANARIES, CLIP = 20, 0.5

Part = tuple[torch.Tensor, torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.hidden = nn.Linear(16 * 4 * 4, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.conv(x).relu(), 2)
        return self.last(self.hidden(x.flatten(1)).relu())


def partitions() -> dict[int, Part]:
    """What each site has, by the number in its name; the same in every process."""
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(42))
    return {site: (x[mine], y[mine]) for site, mine in enumerate(order.chunk(SITES), start=1)}


def load_data(site: str) -> DataLoader:
    number = int(site.rpartition("-")[2])
    x, y = partitions()[number]
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


def train(net: nn.Module, data: DataLoader) -> float:
    """Trains the network, and gives the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    total = 0.0
    net.train()
    for _ in range(EPOCHS):
        for x, y in data:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (EPOCHS * len(data))


def canaries() -> CanaryClients:
    """The same on all canary sites and where the result is read: who has the seed knows them."""
    seed = int(os.environ["CANARY_SEED"])
    return CanaryClients(Net(), count=CANARIES, length=CLIP, seed=seed)


def canary_number(site: str) -> int | None:
    """Sites beyond those that train are canaries, counted from 0."""
    number = int(site.rpartition("-")[2]) - SITES - 1
    return number if number >= 0 else None


def clipped(before: dict, after: dict) -> dict:
    """The model after training, no further from the one before than all agreed."""
    moves = {name: after[name] - torch.as_tensor(before[name]) for name in after}
    length = float(sum(move.square().sum() for move in moves.values()).sqrt())
    share = min(1.0, CLIP / length) if length else 1.0
    return {name: torch.as_tensor(before[name]) + share * moves[name] for name in after}
