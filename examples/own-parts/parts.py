"""Custom parts of a study: a data set, a model, an attack, two defenses and an algorithm.

fedaudit run examples/own-parts/study.toml
"""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from fedaudit.algorithms import FederatedTask
from fedaudit.attacks.base import Attack
from fedaudit.core.values import Capability, ClientId, Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import Batch, Defense, TrainingContext
from fedaudit.observe.measurements import Measurements
from fedaudit.signals.outputs import Loss


def tumours(*, seed: int, test_share: float = 0.2) -> Dataset:
    """Return 569 tumours, each with 30 measurements and one of two diagnoses."""
    bunch = load_breast_cancer()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(seed))
    x = torch.tensor(bunch.data, dtype=torch.float32)[order]
    y = torch.tensor(bunch.target)[order]
    first = round(len(y) * (1 - test_share))
    x = (x - x[:first].mean(0)) / x[:first].std(0)
    ids = torch.arange(len(y))
    return Dataset(
        name="tumours",
        train=Samples(x[:first], y[:first], ids[:first]),
        test=Samples(x[first:], y[first:], ids[first:]),
        classes=2,
        normalisation="training mean 0 and standard deviation 1 per measurement",
    )


class Net(nn.Module):
    """Network with a skip connection for samples of a shape and a number of classes."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(shape[0], width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        return self.last(hidden + self.middle(hidden).relu())


@dataclass(frozen=True)
class LowestSignal:
    """Rule that uses the lowest signal of the target over all rounds."""

    client_aggregation = "target only"
    round_aggregation = "minimum"
    needs = Capability.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Tensor:
        (loss,) = measurements
        return loss.of(target).double().nan_to_num(float("inf")).min(0).values


lowest_loss = Attack((Loss(),), LowestSignal(), "custom", "A member's loss is low in every round.")


@dataclass(frozen=True)
class EntropyBonus(Defense):
    """Defense that rewards uncertain outputs.

    Attributes:
        weight: Weight of the entropy of the outputs in the loss.
    """

    weight: float = 0.1

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        probabilities = outputs.softmax(1)
        entropy = -(probabilities * outputs.log_softmax(1)).sum(1)
        return super().loss(outputs, batch, context) - self.weight * entropy.mean()


@dataclass(frozen=True)
class Jitter(Defense):
    """Defense that adds noise to the features in each step.

    Attributes:
        sigma: Standard deviation of the noise.
    """

    sigma: float

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        noise = torch.randn(batch.x.shape, generator=context.rng("jitter"))
        return Batch(batch.x + self.sigma * noise.to(batch.x), batch.y, batch.ids)


@dataclass(frozen=True)
class PartialStep(FedAvg):
    """Federated averaging with a server step smaller than the mean of the updates."""

    step: float = 1.0

    def aggregate(self, state, uploads, weights):
        after = super().aggregate(state, uploads, weights)
        return {n: torch.lerp(state[n].to(after[n]), after[n], self.step) for n in after}


def partial_step(task: FederatedTask, *, step: float = 0.8) -> PartialStep:
    """Return the algorithm for the architecture and training of a study."""
    return PartialStep(task.architecture, task.training, step=step)
