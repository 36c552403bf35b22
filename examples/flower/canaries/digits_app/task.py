"""The network, the data of each client, and functions for training and testing."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


def partitions(number: int) -> dict[int, tuple[Part, Part]]:
    """Return the training and the test data of each partition, the same in every process."""
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(42))
    parts = {}
    for partition, chunk in enumerate(order.chunk(number)):
        train, test = chunk[: len(chunk) * 4 // 5], chunk[len(chunk) * 4 // 5 :]
        parts[partition] = ((x[train], y[train]), (x[test], y[test]))
    return parts


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    (x, y), test = partitions(num_partitions)[partition_id]
    trainloader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    return trainloader, DataLoader(TensorDataset(*test), batch_size=batch_size)


def train(net: nn.Module, trainloader: DataLoader, epochs: int, lr: float) -> float:
    """Train the network, and return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    net.train()
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))


def test(net: nn.Module, testloader: DataLoader) -> tuple[float, float]:
    """Return the mean loss and the accuracy on the test part."""
    net.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for x, y in testloader:
            outputs = net(x)
            loss += nn.functional.cross_entropy(outputs, y, reduction="sum").item()
            correct += int((outputs.argmax(1) == y).sum())
    return loss / len(testloader.dataset), correct / len(testloader.dataset)
