"""Denoising task of diffusion models."""

from collections.abc import Callable
from dataclasses import field
from functools import cache, lru_cache
from typing import Annotated, TypeAlias, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedaudit.core import arguments
from fedaudit.core.arguments import Range, check_arguments
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for
from fedaudit.core.tasks import Task, Utility, describe_tensor, output_tensor_of

NOISE_STEPS = 1000
"""Number of noise steps of a diffusion model."""
_DrawCount: TypeAlias = Annotated[int, Range(ge=1, le=NOISE_STEPS)]


@arguments.dataclass(frozen=True)
class Denoising(Task):
    """Task of diffusion models: prediction of the noise that was added to a sample.

    The outputs for a sample are squared errors, one for each draw. A draw is a noise step
    (timestep) with random noise. In training, every sample gets one draw. In measurements, all
    samples, models and rounds get the same draws, so that differences between losses are not caused
    by different noise.

    Attributes:
        draws: Number of draws per sample outside training.
        seed: Seed of the draws.
        fixed: Whether all samples and models get the same draws. Otherwise, every sample and model
            gets different draws.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> def predict_no_noise(noisy, steps):
        ...     return torch.zeros_like(noisy)
        >>> fa.tasks.denoising(draws=4).outputs(predict_no_noise, torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 4])

    Source: Ho et al. 2020 (DDPM), Eq. (14) and section 4.
    """

    draws: _DrawCount = field(default=8, compare=False)
    seed: int = field(default=0, compare=False)
    fixed: bool = field(default=True, compare=False)

    def call_module(
        self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]
    ) -> Tensor:
        """Return the squared error of each draw: one row per sample, and one column per draw.

        Raises:
            BadInput: The model's outputs and the noise differ in shape.
        """
        inputs = {"sample": x} if self.inputs is None else self.inputs.unpack(x)
        clean_images = inputs.pop(next(iter(inputs)))
        clean_images = clean_images if clean_images.is_floating_point() else clean_images.float()
        steps, noise = self._draw(module, clean_images)
        broadcast_axes = [1] * (clean_images.ndim - 1)
        fraction = signal_fraction().to(clean_images)[steps].view(*steps.shape, *broadcast_axes)
        noisy = fraction.sqrt() * clean_images[:, None] + (1 - fraction).sqrt() * noise
        predicted = output_tensor_of(module(noisy, steps, **inputs))
        if predicted.shape != noisy.shape:
            raise BadInput(
                "a model for the task 'denoising' takes noisy samples of shape (samples, draws, "
                f"...) and must return the noise in the same shape; expected {tuple(noisy.shape)}, "
                f"got {tuple(predicted.shape)}"
            )
        return (predicted - noise).square().flatten(2).mean(2)

    def _draw(self, module: object, clean_images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noise steps and the noise of each sample's draws."""
        if getattr(module, "training", False):
            steps = torch.randint(NOISE_STEPS, (len(clean_images), 1), device=clean_images.device)
            return steps, torch.randn_like(clean_images)[:, None]
        # Evenly spaced steps vary less than random ones, so that losses can be compared.
        draw_steps = [int((draw + 0.5) * NOISE_STEPS / self.draws) for draw in range(self.draws)]
        steps = torch.tensor(draw_steps, device=clean_images.device).expand(len(clean_images), -1)
        shape = (self.draws, *clean_images.shape[1:])
        if self.fixed:
            return steps, _noise(self.seed, shape).to(clean_images).expand(
                len(clean_images), *shape
            )
        model_checksum = sum(map(_sum_of_bits, cast(nn.Module, module).parameters()))
        noises = [
            _noise(seed_for(self.seed, model_checksum, _sum_of_bits(sample)), shape)
            for sample in clean_images
        ]
        return steps, torch.stack(noises).to(clean_images)


@cache
def signal_fraction() -> Float[Tensor, " steps"]:
    """Return the fraction of a noisy sample's variance that the clean sample has at each step.

    Source: Ho et al. 2020, section 4: the variance that a step adds grows linearly from 1e-4 to
        0.02.
    """
    return (1 - torch.linspace(1e-4, 0.02, NOISE_STEPS, dtype=torch.float64)).cumprod(0)


@lru_cache(maxsize=1)
def _noise(seed: int, shape: tuple[int, ...]) -> Float[Tensor, "draws ..."]:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _sum_of_bits(values: Tensor) -> int:
    """Return a checksum of the values, from which a seed is derived."""
    return int(values.detach().float().contiguous().cpu().view(torch.int32).sum())


@check_arguments
def denoising(*, draws: _DrawCount = 8, seed: int = 0, fixed: bool = True) -> Denoising:
    """Prediction of a sample's noise given its label, with the mean squared error.

    A model takes noisy samples (samples, draws, ...), the noise step of each draw (samples, draws)
    and, in the argument ``concept``, the class labels on which it is conditioned. It returns the
    noise. If samples have several named inputs, noise is added to the first input. The model then
    takes the other inputs instead of ``concept``.

    Args:
        draws: Number of draws per sample over which a loss is averaged, from 1 to 1,000. A draw is
            a noise step with random noise. In training, each sample gets a single draw.
        seed: Seed of the draws.
        fixed: Whether draws are the same for all samples, models and rounds.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.denoising(draws=4).draws
        4
    """
    return Denoising(
        "denoising",
        _mean_of_draws,
        Utility("denoising error", _mean_of_draws),
        features=_with_concept,
        targets=_concepts,
        forward_help="a model for the task 'denoising' has forward(noisy, steps, concept)",
        settings=(("draws", draws), ("seed", seed), ("fixed", fixed)),
        draws=draws,
        seed=seed,
        fixed=fixed,
    )


def _mean_of_draws(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    return outputs.mean(1)


def _with_concept(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"sample": features.float(), "concept": labels}


def _concepts(features: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim != 1 or not bool((targets == targets.round()).all()) or int(targets.min()) < 0:
        raise BadInput(
            "targets of the task 'denoising' must be concepts (whole numbers from 0, one per "
            f"sample), got {describe_tensor(targets)}"
        )
    return targets.long()
