"""The network, the data of each site, and how a site trains."""

from pathlib import Path  # fedaudit

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedaudit  # fedaudit

SITES, EPOCHS = 5, 5

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
    """Return the data of each site by the number in its name, the same in every process."""
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(42))
    return {site: (x[part], y[part]) for site, part in enumerate(order.chunk(SITES), start=1)}


def audit_split(number: int):  # fedaudit
    return fedaudit.fair_split({number: partitions()[number]}, audited=150)  # fedaudit


def record(folder):  # fedaudit
    parts = Path(f"{folder}-parts").glob("site-*")  # fedaudit
    return fedaudit.record(folder, Net, fedaudit.join_audits(parts))  # fedaudit


def load_data(site: str) -> DataLoader:
    number = int(site.rpartition("-")[2])
    x, y = partitions()[number]
    kept = audit_split(number).train[number]  # fedaudit
    x, y = x[kept], y[kept]  # fedaudit
    return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


def train(net: nn.Module, data: DataLoader) -> float:
    """Train the network, and return the mean loss."""
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
