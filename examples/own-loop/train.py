"""Federated averaging in a custom loop, with an audit: the lines marked # fedaudit are added.

python examples/own-loop/train.py && fedaudit attack runs/own-loop
"""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedaudit  # fedaudit

CLIENTS, ROUNDS, EPOCHS = 5, 20, 5


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


def average(models: list[nn.Module]) -> nn.Module:
    mean = copy.deepcopy(models[0])
    states = [model.state_dict() for model in models]
    mean.load_state_dict({k: sum(s[k] for s in states) / len(states) for k in states[0]})
    return mean


def main() -> None:
    torch.manual_seed(1)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    owner = torch.randperm(len(y)) % CLIENTS
    data = {client: (x[owner == client], y[owner == client]) for client in range(CLIENTS)}
    split = fedaudit.fair_split(data, audited=150)  # fedaudit
    data = {c: (data[c][0][kept], data[c][1][kept]) for c, kept in split.train.items()}  # fedaudit

    model = network()
    with fedaudit.record("runs/own-loop", network, split.audit, every=2) as recorder:  # fedaudit
        for round in range(1, ROUNDS + 1):
            local = {c: train(copy.deepcopy(model), *part) for c, part in data.items()}
            recorder.round(round, sent=model, uploads=local)  # fedaudit
            model = average(list(local.values()))
            print(f"round {round} of {ROUNDS}")


if __name__ == "__main__":
    main()
