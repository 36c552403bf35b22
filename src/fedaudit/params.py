"""Arithmetic on parameters: dictionaries of tensors by name."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core import Params


def flat(params: Mapping[str, Tensor]) -> Float[Tensor, " parameters"]:
    """All entries as one vector, in the mapping's order."""
    return torch.cat([value.flatten() for value in params.values()])


def unflat(vector: Float[Tensor, " parameters"], like: Mapping[str, Tensor]) -> Params:
    """The inverse of :func:`flat`: cuts a vector into the names and shapes of ``like``."""
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {
        name: part.reshape(value.shape)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Params:
    """``left - right``, entry by entry."""
    return {name: left[name] - right[name] for name in left}


def plus(left: Mapping[str, Tensor], right: Mapping[str, Tensor], scale: float = 1.0) -> Params:
    """``left + scale * right``, entry by entry."""
    return {name: left[name] + scale * right[name] for name in left}


def scaled(params: Mapping[str, Tensor], factor: float) -> Params:
    """Every entry times the factor."""
    return {name: factor * value for name, value in params.items()}


def weighted_sum(parts: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Params:
    """``sum_i weights[i] * parts[i]``, added up in the order given (so that bits are fixed)."""
    total = scaled(parts[0], weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        for name, value in total.items():
            value.add_(part[name], alpha=weight)
    return total


def norm(params: Mapping[str, Tensor]) -> float:
    """Euclidean length of all entries together."""
    return float(flat(params).norm()) if params else 0.0
