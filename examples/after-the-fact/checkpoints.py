"""Federated averaging that saves its models, and an audit of the saved models after training.

python examples/after-the-fact/checkpoints.py && fedaudit attack runs/saved/recording
"""

import copy
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedaudit

CLIENTS, ROUNDS, EPOCHS = 4, 8, 5

Part = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def partitions() -> dict[int, Part]:
    """Return the samples of each client, in an order that later programs can repeat."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    return {client: (x[part], y[part]) for client, part in enumerate(order.chunk(CLIENTS))}


def training_part(part: Part) -> Part:
    """Return the first half of a client's samples, on which it trains."""
    half = len(part[1]) // 2
    return part[0][:half], part[1][:half]


def train_and_save(folder: Path) -> None:
    """Train without an audit, and save all models of every round."""
    torch.manual_seed(1)
    model = network()
    (folder / "round-0").mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "round-0" / "global.pt")
    for round in range(1, ROUNDS + 1):
        round_folder = folder / f"round-{round}"
        round_folder.mkdir(exist_ok=True)
        states = []
        for client, part in partitions().items():
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=0.1, momentum=0.9)
            x, y = training_part(part)
            for _ in range(EPOCHS):
                for batch in torch.randperm(len(y)).split(32):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(local(x[batch]), y[batch]).backward()
                    optimizer.step()
            states.append(local.state_dict())
            torch.save(states[-1], round_folder / f"client-{client}.pt")
        model.load_state_dict({k: sum(s[k] for s in states) / CLIENTS for k in states[0]})
        torch.save(model.state_dict(), round_folder / "global.pt")


def audit(folder: Path, out: Path) -> None:
    """Audit the saved models with samples whose membership is known."""
    data = partitions()
    members = {client: training_part(part) for client, part in data.items()}
    halves = [(x[len(y) // 2 :], y[len(y) // 2 :]) for x, y in data.values()]
    held_out = torch.cat([x for x, _ in halves]), torch.cat([y for _, y in halves])
    samples = fedaudit.audit_samples(members, held_out, copies="drop")
    fedaudit.from_checkpoints(folder, network, samples, out=out)


def main() -> None:
    train_and_save(Path("runs/saved/models"))
    audit(Path("runs/saved/models"), Path("runs/saved/recording"))


if __name__ == "__main__":
    main()
