"""Arithmetic on parameters: dictionaries of tensors by name."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.values import Params


def flat(params: Mapping[str, Tensor]) -> Float[Tensor, " parameters"]:
    """All entries as one vector, in the mapping's order."""
    return torch.cat([value.flatten() for value in params.values()])


def tail_size(params: Mapping[str, Tensor], share: float) -> int:
    """Number of the last entries, of all entries in the mapping's order.

    Args:
        params: Any tensors by name.
        share: Of all entries, in [0, 1]; rounded down to whole entries.
    """
    return floor(share * sum(value.numel() for value in params.values()))


def plus_tail(params: Mapping[str, Tensor], added: Float[Tensor, " entries"]) -> Params:
    """The values with a vector added to their last entries, in each entry's own precision."""
    changed, left = dict(params), len(added)
    for name in reversed(changed):
        part = min(left, changed[name].numel())
        if part:
            entries = changed[name].flatten().clone()
            entries[-part:] += added[left - part : left].to(entries.dtype)
            changed[name] = entries.reshape(changed[name].shape)
        left -= part
    return changed


def tail_of(params: Mapping[str, Tensor], size: int) -> Float[Tensor, " entries"]:
    """The last entries of all, in the mapping's order."""
    parts: list[Tensor] = []
    left = size
    for value in reversed(list(params.values())):
        part = min(left, value.numel())
        parts.append(value.flatten()[value.numel() - part :])
        left -= part
    return torch.cat(parts[::-1])


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Params:
    """``left - right``, entry by entry."""
    return {name: left[name] - right[name] for name in left}


def plus(left: Mapping[str, Tensor], right: Mapping[str, Tensor], scale: float = 1.0) -> Params:
    """``left + scale * right``, entry by entry."""
    return {name: left[name] + scale * right[name] for name in left}


def scaled(params: Mapping[str, Tensor], factor: float) -> Params:
    """Every entry times the factor."""
    return {name: factor * value for name, value in params.items()}


def weighted_sum(parts: Iterable[Mapping[str, Tensor]], weights: Sequence[float]) -> Params:
    """``sum_i weights[i] * parts[i]``, added up in the order given (so that bits are fixed).

    Args:
        parts: At least one; of those that are made one after another, none is kept.
        weights: One for each.
    """
    total: Params | None = None
    for part, weight in zip(parts, weights, strict=True):
        if total is None:
            total = scaled(part, weight)
            continue
        for name, value in total.items():
            value.add_(part[name], alpha=weight)
    if total is None:
        raise IndexError("a weighted sum of nothing has no entries")
    return total


def common(parts: Sequence[Mapping[str, Tensor]]) -> list[Params]:
    """The entries that all parts have, of each part."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return [{name: part[name] for name in names} for part in parts]


def norm(params: Mapping[str, Tensor]) -> float:
    """Euclidean length of all entries together."""
    return float(flat(params).norm()) if params else 0.0
