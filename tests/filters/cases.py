"""Correct and faulty privacy filters."""

import math
import random
import secrets
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.core.seeds import seeded

CLIP, SIGMA = 1.0, 0.8
Update = dict[str, Tensor]


def length(update: Update) -> float:
    return math.sqrt(sum(float((value.double() ** 2).sum()) for value in update.values()))


def clipped(update: Update, clip: float = CLIP) -> Update:
    factor = min(1.0, clip / (length(update) + 1e-9))
    return {name: value * factor for name, value in update.items()}


def noisy(update: Update, std: float = SIGMA * CLIP) -> Update:
    return {name: value + std * torch.randn(value.shape) for name, value in update.items()}


def with_noise(update: Update, draw: Callable[[torch.Size], object]) -> Update:
    """Return the clipped update with a draw of noise for each array."""
    return {
        name: value + torch.as_tensor(draw(value.shape)) for name, value in clipped(update).items()
    }


# Correct filters.


def plain(update: Update) -> Update:
    return noisy(clipped(update))


def in_place(update: Update) -> None:
    factor = min(1.0, CLIP / (length(update) + 1e-9))
    for value in update.values():
        value.mul_(factor).add_(torch.randn(value.shape), alpha=SIGMA * CLIP)


def by_numpy(update: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    norm = math.sqrt(sum(float((value**2).sum()) for value in update.values()))
    return {
        name: value * min(1.0, CLIP / (norm + 1e-9)) + np.random.normal(0, SIGMA, value.shape)  # noqa: NPY002
        for name, value in update.items()
    }


def by_entropy(update: Update) -> Update:
    """Noise from a generator that the operating system seeds in every call."""
    rng = np.random.default_rng()
    return with_noise(update, lambda shape: rng.normal(0, SIGMA, shape))


def by_secrets(update: Update) -> Update:
    rng = torch.Generator().manual_seed(secrets.randbits(62))
    return with_noise(update, lambda shape: SIGMA * torch.randn(shape, generator=rng))


def by_python(update: Update) -> Update:
    def draw(shape: torch.Size) -> Tensor:
        return torch.tensor([random.gauss(0, SIGMA) for _ in range(shape.numel())]).view(shape)

    return with_noise(update, draw)


_rng = np.random.default_rng(5)


def by_module(update: Update) -> Update:
    """Noise from a generator of the module, which continues between calls."""
    return with_noise(update, lambda shape: _rng.normal(0, SIGMA, shape))


class ObjectGenerator:
    """Noise from a generator of the object."""

    def __init__(self) -> None:
        self.rng = seeded(3, "noise")

    def __call__(self, update: Update) -> Update:
        return with_noise(update, lambda shape: SIGMA * torch.randn(shape, generator=self.rng))


def closure() -> Callable[[Update], Update]:
    rng = seeded(4, "noise")

    def filter(update: Update) -> Update:
        return with_noise(update, lambda shape: SIGMA * torch.randn(shape, generator=rng))

    return filter


def laplace(update: Update) -> Update:
    """Clipping of the L1 norm to 1, and Laplace noise with standard deviation 2."""
    total = sum(float(value.double().abs().sum()) for value in update.values())
    factor = min(1.0, 1.0 / (total + 1e-9))
    noise = torch.distributions.Laplace(0.0, 2 / math.sqrt(2))
    return {name: value * factor + noise.sample(value.shape) for name, value in update.items()}


# Faulty filters.


def one_layer_unclipped(update: Update) -> Update:
    """Only weights are clipped; biases are not."""
    weights = clipped({name: value for name, value in update.items() if value.dim() > 1})
    return noisy(update | weights)


def noise_by_batch(update: Update) -> Update:
    """All entries of an array have the same noise."""
    return with_noise(update, lambda shape: SIGMA * torch.randn(1))


def noise_before_clipping(update: Update) -> Update:
    return clipped(noisy(update))


class StateBetweenRounds:
    """The part of an update that is clipped is sent in the next round."""

    def __init__(self) -> None:
        self.remainder: Update = {}

    def __call__(self, update: Update) -> Update:
        total = {name: value + self.remainder.get(name, 0.0) for name, value in update.items()}
        short = clipped(total)
        self.remainder = {name: total[name] - short[name] for name in total}
        return noisy(short)


def wrong_scale(update: Update) -> Update:
    """The noise has the variance as its standard deviation."""
    return noisy(clipped(update), std=SIGMA**2 * CLIP)


_median: list[float] = []


def clip_of_the_module(update: Update) -> Update:
    """The clipping norm is the median of earlier norms, which has no noise."""
    _median.append(length(update))
    return noisy(clipped(update, min(CLIP, float(np.median(_median)))))


def each_layer(update: Update) -> Update:
    """Every array is clipped separately, so the norm of the update is larger."""
    return noisy({name: clipped({name: value})[name] for name, value in update.items()})


def late(update: Update) -> Update:
    """Only updates above twice the clipping norm are clipped."""
    return noisy(update if length(update) <= 2 * CLIP else clipped(update))


def first_layer_only(update: Update) -> Update:
    short = clipped(update)
    return short | noisy({name: short[name] for name in list(short)[:1]})


def seeded_each_time(update: Update) -> Update:
    rng = torch.Generator().manual_seed(7)
    return with_noise(update, lambda shape: SIGMA * torch.randn(shape, generator=rng))


def same_in_each_layer(update: Update) -> Update:
    seed = int(torch.randint(2**31, ()))

    def draw(shape: torch.Size) -> Tensor:
        return SIGMA * torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    return with_noise(update, draw)


def row_by_row(update: Update) -> Update:
    """All rows of an array have the same noise."""
    return with_noise(update, lambda shape: SIGMA * torch.randn(shape[-1:]))


def uniform(update: Update) -> Update:
    """The noise is uniform, with the declared variance."""
    width = SIGMA * math.sqrt(12)
    return with_noise(update, lambda shape: width * (torch.rand(shape) - 0.5))


def scaled_to_the_update(update: Update) -> Update:
    short = clipped(update)
    return noisy(short, std=SIGMA * max(CLIP, length(update)))


class Reused:
    """Noise is drawn once and reused in every second round."""

    def __init__(self) -> None:
        self.kept: list[Update] = []
        self.round = 0

    def __call__(self, update: Update) -> Update:
        if len(self.kept) < 2:
            zeros = {name: torch.zeros(value.shape) for name, value in update.items()}
            self.kept.append(noisy(zeros))
        self.round += 1
        noise = self.kept[self.round % len(self.kept)]
        return {name: value + noise[name] for name, value in clipped(update).items()}


def with_the_length(update: Update) -> tuple[Update, dict[str, float]]:
    return plain(update), {"norm": length(update)}


def counted(update: Update) -> Update:
    """Integers, such as counters of batches, have no noise."""
    integers = {name: value for name, value in update.items() if not value.is_floating_point()}
    floats = {name: value for name, value in update.items() if name not in integers}
    return plain(floats) | integers


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 3))


# Filters that cannot be checked, and other special cases.


def fails(update: Update) -> Update:
    raise RuntimeError("no such layer")


def ends_the_program(update: Update) -> Update:
    raise SystemExit(0)


def example_that_ends() -> object:
    raise SystemExit(0)


class EndsWhenCopied:
    def __deepcopy__(self, memo: object) -> object:
        raise SystemExit(0)

    def __call__(self, update: Update) -> Update:
        return plain(update)


ends_when_copied = EndsWhenCopied()


def passed_on(*updates: Update) -> Update:
    """A filter whose decorator hides its arguments."""
    return plain(*updates)


def of_python() -> None:
    """A factory that ends the program."""
    raise SystemExit(0)


def rounded(update: Update) -> Update:
    return {name: value.round(decimals=0) for name, value in plain(update).items()}


def thinned(update: Update) -> Update:
    return {name: value * (value.abs() > 1.5) for name, value in plain(update).items()}


def without_a_seed(update: Update) -> Update:
    """Noise from a generator that cannot be seeded from outside."""
    rng = torch.Generator()
    rng.seed()
    return with_noise(update, lambda shape: SIGMA * torch.randn(shape, generator=rng))


def unclipped_without_a_seed(update: Update) -> Update:
    rng = torch.Generator()
    rng.seed()
    return {
        name: value + SIGMA * torch.randn(value.shape, generator=rng)
        for name, value in update.items()
    }
