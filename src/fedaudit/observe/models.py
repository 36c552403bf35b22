"""Comparison of models that clients received."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from fedaudit.core.values import Model


class DistinctModels(NamedTuple):
    """Models without duplicates.

    Attributes:
        distinct: The distinct models, in the order of first appearance.
        numbers: For each original model, the index of the equal distinct model.
    """

    distinct: list[Model]
    numbers: list[int]


def group_models(models: Iterable[Model]) -> DistinctModels:
    """Remove duplicates from models; two models are equal if they are bitwise identical."""
    unique_models: list[Model] = []
    numbers = []
    for model in models:
        equal = (i for i, other in enumerate(unique_models) if _are_equal(other, model))
        number = next(equal, len(unique_models))
        if number == len(unique_models):
            unique_models.append(model)
        numbers.append(number)
    return DistinctModels(unique_models, numbers)


def _are_equal(first: Model, second: Model) -> bool:
    if first is second or first.params is second.params:
        return True
    tensors, second_tensors = first.tensors(), second.tensors()
    return (
        first.architecture == second.architecture
        and tensors.keys() == second_tensors.keys()
        and all(torch.equal(tensors[name], second_tensors[name]) for name in tensors)
    )
