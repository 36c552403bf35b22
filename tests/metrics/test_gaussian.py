"""Success under Gaussian noise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.metrics.games import (
    clipped_distance,
    gaussian_noise_multiplier,
    gaussian_success,
    rounds_needed,
)


@pytest.mark.parametrize(
    ("mu", "success"), [(0.0, 0.5), (1.0, 0.691462), (2.0, 0.841345), (math.inf, 1.0)]
)
def test_gaussian_success_is_the_normal_cdf_at_half_the_distance(mu: float, success: float) -> None:
    assert gaussian_success(mu) == pytest.approx(success, abs=1e-6)


def test_no_threshold_on_normal_draws_exceeds_gaussian_success() -> None:
    rng = torch.Generator().manual_seed(1)
    out, into = torch.randn(2, 200_000, generator=rng).double().unbind()
    into = into + 1.3
    reached = [
        float(((into > t).double().mean() + (out <= t).double().mean()) / 2)
        for t in torch.linspace(-2, 3, 51)
    ]
    assert max(reached) == pytest.approx(gaussian_success(1.3), abs=0.003)


def test_replacing_a_sample_doubles_the_sensitivity_of_a_clipped_sum() -> None:
    assert clipped_distance(2.0, replaced=False) == 0.5
    assert clipped_distance(2.0) == 1.0
    assert clipped_distance(2.0, rounds=9) == 3.0
    assert clipped_distance(2.0, rounds=9, clients=9) == 1.0
    assert clipped_distance(0.0) == math.inf


@given(st.floats(0.51, 0.999), st.floats(0.01, 20))
def test_rounds_needed_is_the_smallest_sufficient_number(success: float, mu: float) -> None:
    rounds = rounds_needed(success, mu)
    assert gaussian_success(mu * math.sqrt(rounds)) >= success - 1e-9
    assert rounds == 1 or gaussian_success(mu * math.sqrt(rounds - 1)) < success


def test_the_classic_gaussian_noise_matches_hand_calculation() -> None:
    # sqrt(2 ln 125) / 7.5
    assert gaussian_noise_multiplier(7.5, 0.01) == pytest.approx(0.41433, abs=1e-5)
    assert gaussian_noise_multiplier(1.0, 1.25 / math.e**2) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: gaussian_success(-1.0),
        lambda: clipped_distance(-1.0),
        lambda: clipped_distance(1.0, rounds=0),
        lambda: rounds_needed(0.5, 1.0),
        lambda: rounds_needed(0.9, 0.0),
        lambda: gaussian_noise_multiplier(0.0, 0.1),
        lambda: gaussian_noise_multiplier(1.0, 1.0),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(BadInput):
        wrong()
