"""EXP3: probabilities, rewards and convergence to the best arm."""

from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.seeds import seeded
from fedaudit.defenses.cofedmid.compensation import (
    draw_arm,
    normalise_reward,
    probabilities,
    update_weights,
)


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_probabilities_mix_weights_with_uniform_draws() -> None:
    # .9 * (1/4, 3/4) + .05
    assert probabilities(values(1, 3), 0.1).tolist() == pytest.approx([0.275, 0.725])


def test_a_rewarded_arms_weight_grows_by_the_formula() -> None:
    # p = .5, so that the factor is exp(.1 * (1 / .5) / 2) = exp(.1).
    after = update_weights(values(1, 1), 0, 1.0, 0.1)
    assert float(after[0] / after[1]) == pytest.approx(exp(0.1))
    assert float(after.sum()) == pytest.approx(1)
    lost = update_weights(values(1, 1), 0, -1.0, 0.1)
    assert float(lost[0] / lost[1]) == pytest.approx(exp(-0.1))


def test_a_reward_of_zero_changes_no_weight() -> None:
    assert update_weights(values(0.25, 0.75), 1, 0.0, 0.1).tolist() == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("best", [0, 3, 9])
def test_the_planted_best_arm_is_found(best: int) -> None:
    rng = seeded(best, "gambling")
    weights, pulls = torch.full((10,), 0.1, dtype=torch.float64), [0] * 10
    for _ in range(1500):
        arm = draw_arm(weights, 0.1, rng)
        pulls[arm] += 1
        noise = float(torch.rand((), generator=rng)) - 0.5
        weights = update_weights(weights, arm, (0.5 if arm == best else -0.5) + noise, 0.1)
    assert pulls.index(max(pulls)) == best
    assert float(probabilities(weights, 0.1)[best]) > 0.8


@settings(max_examples=30)
@given(rewards=st.lists(st.floats(-1, 1), min_size=1, max_size=200))
def test_weights_stay_above_zero_and_sum_to_one(rewards: list[float]) -> None:
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    for reward in rewards:
        weights = update_weights(weights, 0, reward, 0.1)
    assert float(weights.min()) > 0
    assert float(weights.sum()) == pytest.approx(1)


def test_rewards_are_scaled_by_percentiles() -> None:
    # The 20th and 80th percentiles of 0, 1, 2, 3 and 4 are 0.8 and 3.2.
    assert normalise_reward(values(0, 1, 3, 4, 2)) == pytest.approx(0.0)
    assert normalise_reward(values(0, 1, 2, 4, 3)) == pytest.approx(2 * 2.2 / 2.4 - 1)
    assert normalise_reward(values(0, 1, 2, 3, 4)) == 1.0
    assert normalise_reward(values(4, 1, 2, 3, 0)) == -1.0


def test_rewards_are_zero_for_short_or_constant_histories() -> None:
    assert normalise_reward(values(0, 1, 2, 9)) == 0.0
    assert normalise_reward(values(2, 2, 2, 2, 2)) == 0.0
