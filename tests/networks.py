"""Small networks for comparing gradients with one backward pass per sample."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.denoising import signal_fraction
from fedaudit.core.pretrained import load_pretrained

CLASSES = 5


class Case(NamedTuple):
    """A network, and the shape of one of its samples."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: bool = False


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6, padding_idx=0)
        self.inner = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.out(functional.gelu(self.norm(self.inner(self.table(tokens)))).mean(1))
        return out


class LowRank(nn.Module):
    """A frozen layer with a trained low-rank pair, as in LoRA."""

    def __init__(self, inner: int, outer: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inner, outer).requires_grad_(False)
        self.down, self.up = nn.Linear(inner, rank, bias=False), nn.Linear(rank, outer, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Denoiser(nn.Module):
    """A denoiser that predicts the noise as if each sample was the embedding of its concept."""

    def __init__(self, classes: int, shape: tuple[int, ...], weights: str = "") -> None:
        super().__init__()
        self.concepts = nn.Embedding(classes, shape[0])
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        nn.init.zeros_(self.concepts.weight)
        if weights:
            self.scale.data.copy_(load_pretrained(weights)["scale"])

    def forward(self, noisy: Tensor, steps: Tensor, concept: Tensor) -> Tensor:
        fraction = signal_fraction().to(noisy)[steps].sqrt()[..., None]
        prediction: Tensor = noisy - self.scale * fraction * self.concepts(concept)[:, None]
        return prediction


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.GroupNorm(3, 6)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(x)))
        x = self.relu(x + self.second(x))
        out: Tensor = self.out(x.mean((2, 3)))
        return out


class Calibrated(nn.Module):
    """A network with batch norms whose running statistics differ from the initial ones."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(4 * 36, 6),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Linear(6, CLASSES),
        )
        for part in self.parts:
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                part.running_mean = torch.linspace(-1, 1, part.num_features)
                part.running_var = torch.linspace(0.5, 2, part.num_features)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts(x)
        return out


FAST = {
    "linear": Case(lambda: nn.Linear(6, CLASSES), (6,)),
    "no-bias": Case(lambda: nn.Linear(6, CLASSES, bias=False), (6,)),
    "mlp-in-place": Case(
        lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, CLASSES)), (6,)
    ),
    "conv": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 5, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Conv2d(5, 7, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(7 * 16, CLASSES),
        ),
        (2, 16, 16),
    ),
    "deep-conv": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 40, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(40, 32, 3, padding=1),
            nn.Flatten(),
            nn.Linear(128, CLASSES),
        ),
        (2, 8, 8),
    ),
    "residual": Case(Residual, (2, 8, 8)),
    "frozen-batch-norm": Case(Calibrated, (2, 8, 8)),
    "tokens": Case(Tokens, (6,), tokens=True),
    "long-tokens": Case(Tokens, (24,), tokens=True),
    "sequence-of-two-axes": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 6),
            nn.LayerNorm((3, 6)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * 18, CLASSES),
        ),
        (2, 3, 4),
    ),
}
GENERIC = {
    "grouped": Case(
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(32, CLASSES)),
        (4, 4, 4),
    ),
    "circular": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
            nn.Flatten(),
            nn.Linear(48, CLASSES),
        ),
        (2, 4, 4),
    ),
    "conv-1d": Case(
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.PReLU(), nn.Flatten(), nn.Linear(9, CLASSES)),
        (2, 5),
    ),
    "transposed": Case(
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Flatten(), nn.Linear(75, CLASSES)),
        (2, 4, 4),
    ),
}


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(self.inner(x).tanh()))
        return out


class Functional(Twice):
    def forward(self, x: Tensor) -> Tensor:
        inner = functional.linear(x, self.inner.weight, self.inner.bias)
        out: Tensor = self.out(inner.tanh())
        return out


class CalledAndFunctional(Twice):
    """A network whose watched call is correct; only the check of two samples detects the other."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(functional.linear(x, self.inner.weight).tanh()))
        return out


class Tied(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 6)
        self.other.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.other(self.inner(x).tanh()))
        return out


class TimeFirst(Twice):
    def forward(self, x: Tensor) -> Tensor:
        rows = self.inner(x.transpose(0, 1)).transpose(0, 1)
        out: Tensor = self.out(rows.tanh().mean(1))
        return out


# Recurrent, attentive and parametrized networks are in tests/foreign.
WHOLE = {
    "twice": Case(Twice, (6,)),
    "functional": Case(Functional, (6,)),
    "called-and-functional": Case(CalledAndFunctional, (6,)),
    "tied": Case(Tied, (6,)),
    "time-first": Case(TimeFirst, (3, 6)),
}

CASES = FAST | GENERIC | WHOLE
