"""Bounds on one update in a sum, for Gaussian sums with known epsilon."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics.canaries import SumBounds, secure_sum_bounds
from fedaudit.metrics.epsilon import ConfusionCounts, clopper_pearson_epsilon, gaussian_shift

DELTA = 1e-5


def bounds(others: ndarray, update: ndarray, draws: int | None = None) -> SumBounds:
    return secure_sum_bounds(others[:draws], update, np.zeros_like(update), delta=DELTA)


def test_an_unhidden_update_reaches_the_largest_possible_bound() -> None:
    others = seeded_numpy(0, "apart").normal(size=(200, 5))
    lower_bounds = bounds(others, np.array([0, 0, 300.0, 0, 0]))
    perfect = clopper_pearson_epsilon(ConfusionCounts(100, 100, 0, 100), delta=DELTA)
    assert lower_bounds.counted.value == lower_bounds.counted.ceiling == perfect.value
    assert lower_bounds.counted.value == pytest.approx(
        math.log((1 - DELTA - 0.036217) / 0.036217), 1e-4
    )
    assert lower_bounds.counted.method == "linear test, Clopper-Pearson 95%, delta 1e-05"
    assert lower_bounds.if_gaussian.value > 1000


def test_identical_updates_give_bounds_of_zero() -> None:
    others, update = seeded_numpy(1, "same").normal(size=(200, 5)), np.ones(5)
    lower_bounds = secure_sum_bounds(others, update, update, delta=DELTA)
    assert (lower_bounds.counted.value, lower_bounds.if_gaussian.value) == (0.0, 0.0)


def test_anisotropic_noise_does_not_hide_the_update() -> None:
    rng = seeded_numpy(2, "shape")
    # All noise is along one direction, and the update has an orthogonal component.
    others = rng.normal(size=(400, 1)) * np.ones(30) + 0.01 * rng.normal(size=(400, 30))
    update = np.zeros(30)
    update[0] = 1.0
    assert bounds(others, update).counted.value == bounds(others, update).counted.ceiling
    assert bounds(others, np.ones(30)).counted.value < 1.0


def test_bounds_do_not_depend_on_order_or_scale() -> None:
    rng = seeded_numpy(3, "units")
    others, update, other_update = rng.normal(size=(200, 8)), rng.normal(size=8), rng.normal(size=8)
    lower_bounds = secure_sum_bounds(others, 3 * update, other_update, delta=DELTA)
    turned = secure_sum_bounds(others, other_update, 3 * update, delta=DELTA)
    scaled = secure_sum_bounds(1e-3 * others, 3e-3 * update, 1e-3 * other_update, delta=DELTA)
    assert lower_bounds.if_gaussian.value == pytest.approx(turned.if_gaussian.value)
    assert lower_bounds.if_gaussian.value == pytest.approx(scaled.if_gaussian.value)
    assert lower_bounds.counted == scaled.counted


def gaussian(rng: np.random.Generator, draws: int) -> ndarray:
    return rng.normal(size=(draws, 12))


def laplace(rng: np.random.Generator, draws: int) -> ndarray:
    """Draw Laplace noise of known epsilon along the first direction, and none elsewhere."""
    return np.concatenate([rng.laplace(size=(draws, 1)), np.zeros((draws, 11))], axis=1)


@pytest.mark.simulation
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.slow
def test_bounds_on_gaussian_sums_have_their_error_rate(
    epsilon: float,
) -> None:
    update = np.zeros(12)
    update[3] = gaussian_shift(epsilon, DELTA)
    counted, normal = exceeding(gaussian, update, epsilon)
    assert counted <= 0.06
    assert normal <= 0.06


@pytest.mark.simulation
@pytest.mark.slow
def test_only_the_counted_bound_holds_for_laplace_sums() -> None:
    update = np.zeros(12)
    update[0] = 1.0
    # Laplace noise of scale 1 and a shift of 1: epsilon 1, at any delta a little less.
    counted, normal = exceeding(laplace, update, 1.0)
    assert counted <= 0.06
    assert normal > 0.9


def exceeding(
    noise: Callable[[np.random.Generator, int], ndarray], update: ndarray, epsilon: float
) -> tuple[float, float]:
    """Return the shares of 500 audits whose bounds exceed the true epsilon."""
    rng = seeded_numpy(4, "cells", str(epsilon))
    all_bounds = [bounds(noise(rng, 120), update) for _ in range(500)]
    return (
        float(np.mean([audit.counted.value > epsilon for audit in all_bounds])),
        float(np.mean([audit.if_gaussian.value > epsilon for audit in all_bounds])),
    )


@pytest.mark.simulation
def test_the_gaussian_bound_improves_with_more_draws() -> None:
    update = np.zeros(12)
    update[3] = gaussian_shift(3.0, DELTA)
    rng = seeded_numpy(5, "nearer")
    few, many = (
        np.mean([bounds(gaussian(rng, draws), update).if_gaussian.value for _ in range(20)])
        for draws in (80, 800)
    )
    assert few < many < 3.0
    assert many > 2.6


@pytest.mark.parametrize(
    ("others", "update", "message"),
    [
        (np.zeros((200, 3)), np.ones(3), "equal in every draw"),
        (np.zeros((79, 3)), np.ones(3), "at least 80 independent draws.*got 79"),
        (np.zeros((100, 3)), np.ones(4), "the same parameters"),
        (np.full((100, 3), np.nan), np.ones(3), "not finite"),
    ],
)
def test_uninformative_sums_raise(others: ndarray, update: ndarray, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        bounds(others, update)
