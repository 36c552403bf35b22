"""A project's filter that clips updates and adds noise: one version with an error, one without."""

import torch

CLIP, SIGMA = 1.0, 0.8


def norm(update):
    return float(torch.cat([value.flatten() for value in update.values()]).norm())


def noisy(update):
    return {name: v + SIGMA * CLIP * torch.randn_like(v) for name, v in update.items()}


def filter(update):
    """Clip the weights, but not the biases, which are part of the update too."""
    weights = {name: value for name, value in update.items() if name.endswith("weight")}
    factor = min(1.0, CLIP / (norm(weights) + 1e-6))
    return noisy(update | {name: factor * value for name, value in weights.items()})


def corrected(update):
    """Replace infinite and missing values by 0, and clip all arrays together."""
    finite = {name: torch.nan_to_num(v, 0.0, 0.0, 0.0) for name, v in update.items()}
    factor = min(1.0, CLIP / (norm(finite) + 1e-6))
    return noisy({name: factor * value for name, value in finite.items()})
