"""A filter of a project that clips and adds noise, with a fault, and the same without it."""

import torch

CLIP, SIGMA = 1.0, 0.8


def length(update):
    return float(torch.cat([value.flatten() for value in update.values()]).norm())


def noisy(update):
    return {name: v + SIGMA * CLIP * torch.randn_like(v) for name, v in update.items()}


def filter(update):
    """Clips the weights, and forgets that biases are a part of the update."""
    weights = {name: value for name, value in update.items() if name.endswith("weight")}
    factor = min(1.0, CLIP / (length(weights) + 1e-6))
    return noisy(update | {name: factor * value for name, value in weights.items()})


def mended(update):
    """Clips all arrays together, after refusing what is no number."""
    finite = {name: torch.nan_to_num(v, 0.0, 0.0, 0.0) for name, v in update.items()}
    factor = min(1.0, CLIP / (length(finite) + 1e-6))
    return noisy({name: factor * value for name, value in finite.items()})
