"""Error rate and power of the tests of noise."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.seeds import seeded_numpy
from fedaudit.filters.claim import Arrays
from fedaudit.filters.noise import (
    ERROR,
    NoiseTest,
    call_tests,
    entry_tests,
    estimate_std,
    scale_tests,
    shape_tests,
)
from fedaudit.filters.replay import leading_entries

SHAPES: dict[str, tuple[int, ...]] = {"weight": (12, 8), "bias": (12,)}
CALLS = 64
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape)


def laplace(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.laplace(scale=1 / math.sqrt(2), size=shape)


def draws(draw: Draw, rng: np.random.Generator) -> Arrays:
    return {name: draw(rng, (CALLS, *shape)) for name, shape in SHAPES.items()}


def all_tests(arrays: Arrays, noise: str) -> list[NoiseTest]:
    return [
        *scale_tests(arrays, 1.0, noise),
        *entry_tests(arrays),
        *shape_tests(arrays, noise),
        *call_tests(arrays),
    ]


def failing(arrays: Arrays, noise: str) -> set[str]:
    tests = all_tests(arrays, noise)
    return {test.check for test in tests if test.p_value < ERROR / len(tests)}


@pytest.mark.simulation
@pytest.mark.parametrize(("draw", "noise"), [(normal, "gaussian"), (laplace, "laplace")])
@pytest.mark.slow
def test_the_noise_check_has_its_error_rate(draw: Draw, noise: str) -> None:
    rng, runs = seeded_numpy(0, "sound", noise), 300
    failed = sum(bool(failing(draws(draw, rng), noise)) for _ in range(runs))
    # A binomial variable with mean 3 is 12 or more with probability 1e-4.
    assert failed < 12


def scaled(factor: float) -> Draw:
    return lambda rng, shape: factor * normal(rng, shape)


def one_entry(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    drawn = normal(rng, shape)
    drawn[:, 0] *= 0.2
    return drawn


def shared(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    common = normal(rng, (shape[0], *[1] * (len(shape) - 1)))
    return math.sqrt(0.5) * normal(rng, shape) + math.sqrt(0.5) * common


def opposite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Every second call has the negative noise of the call before it."""
    half = normal(rng, (shape[0] // 2, *shape[1:]))
    return np.stack([half, -half], axis=1).reshape(shape)


def slow(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    drawn = normal(rng, shape)
    for call in range(1, len(drawn)):
        drawn[call] = 0.5 * drawn[call - 1] + math.sqrt(0.75) * drawn[call]
    return drawn


@pytest.mark.parametrize(
    ("draw", "noise", "check"),
    [
        (scaled(0.9), "gaussian", "scale"),
        (one_entry, "gaussian", "scale"),
        (laplace, "gaussian", "shape"),
        (normal, "laplace", "shape"),
        (shared, "gaussian", "entries"),
        (opposite, "gaussian", "calls"),
        (slow, "gaussian", "calls"),
    ],
)
def test_noise_with_a_fault_fails_every_time(draw: Draw, noise: str, check: str) -> None:
    rng = seeded_numpy(0, "broken")
    for _ in range(10):
        assert check in failing(draws(draw, rng), noise)


def test_confidence_limits_of_a_standard_deviation_have_their_coverage() -> None:
    rng, runs = seeded_numpy(0, "limits"), 300
    estimates = [estimate_std(draws(normal, rng), "gaussian", 0.1) for _ in range(runs)]
    outside = sum(not estimate.low <= 1.0 <= estimate.high for estimate in estimates)
    # The count is binomial with mean 30 and standard deviation 5.2.
    assert 8 < outside < 52
    assert all(estimate.low < estimate.value < estimate.high for estimate in estimates)


def test_distribution_of_a_difference_of_laplace_draws() -> None:
    rng = seeded_numpy(0, "laplace")
    (test,) = shape_tests({"a": laplace(rng, (200_000, 2))[:, :1]}, "laplace")
    assert test.p_value > 1e-4


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_only_a_corner_of_large_arrays_is_kept(sides: list[int]) -> None:
    shape = tuple(sides) if math.prod(sides) < 10**6 else (sides[0],)
    value = np.zeros(shape)
    part = leading_entries(value)
    assert part.size <= 4096
    assert part.ndim == value.ndim
    if value.size <= 4096:
        assert part.shape == value.shape
