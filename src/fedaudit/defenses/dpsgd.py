"""Record-level differential privacy: every sample's gradient clipped, noise on their sum."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Batch, Params, Samples
from fedaudit.defenses.accounting import gaussian_epsilon
from fedaudit.fl.hooks import ConfiguredDefense, Guarantee, Objective, Plan, Turn, Workload
from fedaudit.fl.training.clipped import clipped_sum, refuse_mixing


@dataclass(frozen=True)
class DPSGD(ConfiguredDefense):
    """Trains so that no single sample can move the model by more than a clip, hidden in noise.

    Every step draws each sample independently of the others (a batch may be empty), shortens
    each one's gradient to at most the clip, adds normal noise to their sum and divides by the
    number of samples that a step draws on average. Momentum, weight decay and Adam come after.

    Infinite clip, no noise and one copy train as if undefended, in shuffled batches.

    Attributes:
        clip: Largest Euclidean length of one sample's gradient; infinity clips nothing.
        noise_multiplier: Standard deviation of the noise on the sum in units of ``clip``; 0
            adds none, and then nothing is proven. Published: 0.05, 0.1 and 0.2 (CoFedMID, which
            states no clip).
        multiplicity: How many augmented copies of an image have their gradients averaged
            before clipping; 1 trains on the image itself.
        padding: Copies are windows of an image continued by so many mirrored pixels; 0 for none.
        horizontal_flip: Probability with which a copy is a mirror image, in [0, 1].

    Examples:
        >>> DPSGD(clip=1.0, noise_multiplier=0.1, members=[0]).multiplicity
        1

    Source: Abadi et al. 2016, Algorithm 1; De et al. 2022, section 3.2 (multiplicity);
        CoFedMID, appendix E (multipliers 0.05, 0.1 and 0.2).
    Differs: CoFedMID calls it client-level but clips local gradients. Divided by the expected
        instead of the drawn batch size, whose noise-free value would give itself away.
    """

    clip: float
    noise_multiplier: float
    multiplicity: int = 1
    padding: int = 4
    horizontal_flip: float = 0.5
    _expected: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        noise = 0 <= self.noise_multiplier < float("inf")
        if not (self.clip > 0 and noise and self.multiplicity >= 1):
            raise BadInput(
                "clip must be above 0, noise_multiplier finite and at least 0 and multiplicity at "
                f"least 1, got {self.clip}, {self.noise_multiplier} and {self.multiplicity}"
            )
        if not (self.padding >= 0 and 0 <= self.horizontal_flip <= 1):
            raise BadInput(
                "padding is at least 0 and horizontal_flip lies in [0, 1], got "
                f"{self.padding} and {self.horizontal_flip}"
            )
        if self.clip == float("inf") and self.noise_multiplier > 0:
            raise BadInput("noise is measured in clips: with noise, clip must be finite")

    def acts_in(self, hook: str) -> bool:
        """True if the named hook does more than the neutral one."""
        return super().acts_in(hook) and not self._neutral

    @property
    def _neutral(self) -> bool:
        return self.clip == float("inf") and self.noise_multiplier == 0 and self.multiplicity == 1

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: networks that mix samples, copies of what is no image.

        Raises:
            Unsupported: A layer's statistics mix the samples of a batch.
            BadInput: Copies are asked for, and samples are no images larger than the padding.
        """
        if self._neutral:
            return
        with torch.random.fork_rng(devices=[]):
            refuse_mixing(plan.architecture.build().train())
        if self.multiplicity > 1:
            _refuse_other_than_images(plan.shape, self.padding)

    def batches(self, data: Samples, batch_size: int, turn: Turn) -> Iterator[Batch]:
        """Each epoch: as many draws as shuffled batches would be, of that size on average."""
        if self._neutral:
            yield from super().batches(data, batch_size, turn)
            return
        if len(data) == 0:  # none left by another defense, such as one that deals classes out
            return
        rate = sampling_rate(batch_size, len(data))
        object.__setattr__(self, "_expected", rate * len(data))
        rng = turn.rng("poisson batches")
        for _ in range(ceil(len(data) / batch_size)):
            drawn = torch.rand(len(data), generator=rng, dtype=torch.float64) < rate
            some = data.take(drawn.to(data.ids.device))
            yield Batch(some.features, some.targets, some.ids)

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: the copies of each sample, one after the other."""
        if self.multiplicity == 1:
            return batch
        _refuse_other_than_images(tuple(batch.x.shape[1:]), self.padding)
        x, y, ids = (
            each.repeat_interleave(self.multiplicity, 0) for each in (batch.x, batch.y, batch.ids)
        )
        rng = turn.rng("augmented copies")
        return Batch(
            windows(x, rng, padding=self.padding, horizontal_flip=self.horizontal_flip), y, ids
        )

    def gradient(self, objective: Objective, batch: Batch, turn: Turn) -> Params:
        """Each step: the noisy sum of clipped gradients, over the expected number of samples."""
        if self._neutral:
            return super().gradient(objective, batch, turn)
        if not self._expected:
            raise Unsupported(
                "dp-sgd divides by the number of samples that it draws on average, so that it "
                "must draw the batches itself; ask its batches() before its gradient()"
            )
        total = clipped_sum(objective, batch, clip=self.clip, copies=self.multiplicity)
        rng = turn.rng("per-sample noise")
        with torch.no_grad():
            return {name: self._noisy_mean(value, rng) for name, value in total.items()}

    def _noisy_mean(self, total: Tensor, rng: torch.Generator) -> Tensor:
        if not self.noise_multiplier:
            return total / self._expected
        drawn = torch.randn(total.shape, dtype=total.dtype, generator=rng).to(total.device)
        noise = drawn.mul_(self.noise_multiplier * self.clip / self._expected)
        return noise.add_(total, alpha=1 / self._expected)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee:
        """Proven guarantee for each of the client's samples, after all rounds."""
        rate = sampling_rate(work.batch_size, work.samples)
        steps = work.rounds * work.epochs * ceil(work.samples / work.batch_size)
        return Guarantee(
            sample_epsilon(self.noise_multiplier, rate, steps, delta=delta),
            f"one sample, in {steps} steps that each draw it with probability {rate:.3g}",
        )


def windows(
    images: Float[Tensor, "samples channels height width"],
    rng: torch.Generator,
    *,
    padding: int,
    horizontal_flip: float,
) -> Float[Tensor, "samples channels height width"]:
    """A window of each image at a random place, mirrored at random.

    Unlike :class:`fedaudit.defenses.augment.Augmentation`, what is seen of one sample depends on
    no other one: no common black level.

    Args:
        images: Larger than the padding.
        rng: Draws places and flips.
        padding: Mirrored pixels beyond each edge that a window may reach into.
        horizontal_flip: Probability of a mirror image, in [0, 1].
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4, mode="reflect") if padding else images
    down, across = torch.randint(2 * padding + 1, (2, count, 1), generator=rng)
    flipped = torch.rand(count, 1, generator=rng) < horizontal_flip
    rows, columns = down + torch.arange(height), across + torch.arange(width)
    columns = torch.where(flipped, columns.flip(1), columns)
    at = (torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None])
    index = (*at, rows[:, None, :, None], columns[:, None, None, :])
    return padded[tuple(part.to(images.device) for part in index)]


def _refuse_other_than_images(shape: tuple[int, ...], padding: int) -> None:
    if len(shape) != 3 or min(shape[1:]) <= padding:
        spelled = "x".join(map(str, shape))
        raise BadInput(
            "dp-sgd with multiplicity works on images of shape channels x height x width that "
            f"are larger than padding = {padding}, got samples of shape {spelled}; set "
            "multiplicity = 1 or a smaller padding"
        )


def sampling_rate(batch_size: int, samples: int) -> float:
    """The probability with which a step draws each sample."""
    return min(1.0, batch_size / samples)


def sample_epsilon(noise_multiplier: float, rate: float, steps: int, *, delta: float) -> float:
    """The epsilon that an observer of every step is held to, about one sample.

    Adjacency: the sample is among the client's data or not. Holds for steps that draw each
    sample independently; for shuffled batches nothing of the kind is proven.

    Args:
        noise_multiplier: Noise in clips, as in :class:`DPSGD`.
        rate: Probability with which a step draws the sample, in (0, 1].
        steps: Of all rounds and epochs together.
        delta: Failure probability, in (0, 1).

    Returns:
        Epsilon in nats by Renyi accounting; infinite without noise.

    Raises:
        BadInput: The accountant is not installed, or delta or rate is out of range.
    """
    return gaussian_epsilon(noise_multiplier, steps, delta=delta, rate=rate)
