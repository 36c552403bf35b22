"""Wrong types and shapes raise while tests run."""

from collections.abc import Callable

import jaxtyping
import numpy as np
import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation

from fedaudit.core.errors import BadArgument
from fedaudit.core.values import chunks, flat
from fedaudit.defenses.mixup import MixUp
from fedaudit.metrics.catalogue import average_precision


@pytest.fixture(autouse=True)
def types_are_checked(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("jaxtyping_packages"):
        pytest.skip("types are checked by make test-numerics")


def test_wrong_types_are_detected_without_named_axes() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        list(chunks("ten", 3))  # type: ignore[arg-type]
    with pytest.raises(BeartypeCallHintViolation):
        flat([torch.zeros(2)])  # type: ignore[arg-type]


def test_functions_within_a_function_are_checked_separately() -> None:
    def make_added(number: int) -> Callable[[int], int]:
        @jaxtyping.jaxtyped(typechecker=beartype)
        def added(other: int) -> int:
            return number + other

        return added

    first, second, broken = make_added(1), make_added(2), make_added("3")  # type: ignore[arg-type]
    assert (first(1), second(1), first(2)) == (2, 3, 3)
    for added in (first, second):
        with pytest.raises(BeartypeCallHintViolation):
            added("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        broken(1)


def test_a_wrong_type_of_a_setting_is_noticed() -> None:
    with pytest.raises(BadArgument, match="alpha of MixUp"):
        MixUp(alpha="much")  # type: ignore[arg-type]


def test_wrong_shapes_are_detected_with_named_axes() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        average_precision(np.zeros(3), np.zeros(4, dtype=bool))
