"""Formulas for games over several rounds, compared with simulated games."""

import math

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.metrics.games import (
    gaussian_noise_multiplier,
    rounds_as_published,
    rounds_under_a_clip,
)


def averaged_scores(
    row: Float[Tensor, " entries"],
    noise: float,
    *,
    rounds: int,
    neurons: int,
    games: int,
    rng: torch.Generator,
) -> Float[Tensor, " games"]:
    """Draw scores of the published setting round by round, with separate noise per copy.

    Source: AMI, appendix E.
    """
    mean = torch.zeros(games, len(row), dtype=torch.float64)
    for _ in range(rounds * neurons):
        drawn = torch.randn(games, len(row), generator=rng, dtype=torch.float64)
        mean += row + noise * drawn
    return mean[:, 0] / (rounds * neurons)


def test_copies_count_as_rounds_only_without_a_clip() -> None:
    alone = rounds_as_published(1.0, 1e-5, neurons=1, success=0.95)
    assert alone == math.ceil((2 * 1.6448536 * gaussian_noise_multiplier(1.0, 1e-5)) ** 2)
    assert rounds_as_published(1.0, 1e-5, neurons=8, success=0.95) == math.ceil(
        (2 * 1.6448536 * gaussian_noise_multiplier(1.0, 1e-5)) ** 2 / 8
    )
    assert rounds_under_a_clip(1.0, 1e-5, success=0.95) == alone
    assert rounds_under_a_clip(1.0, 1e-5, share=0.5, success=0.95) == pytest.approx(
        4 * alone, abs=4
    )


@pytest.mark.parametrize(("neurons", "epsilon"), [(1, 1.5), (4, 0.8)])
def test_the_required_number_of_rounds_gives_the_requested_success(
    neurons: int, epsilon: float
) -> None:
    rounds = rounds_as_published(epsilon, 1e-2, neurons=neurons, success=0.95)
    noise, rng = gaussian_noise_multiplier(epsilon, 1e-2), seeded(1, "averaging")
    row = torch.zeros(3)
    row[0] = 1.0
    into, out = (
        averaged_scores(target_row, noise, rounds=rounds, neurons=neurons, games=4000, rng=rng)
        for target_row in (row, torch.zeros(3))
    )
    right = ((into > 0.5).double().mean() + (out <= 0.5).double().mean()) / 2
    assert float(right) == pytest.approx(0.95, abs=0.01)


def test_invalid_numbers_of_rounds_or_copies_are_refused() -> None:
    with pytest.raises(BadInput, match="number of neurons must be at least 1"):
        rounds_as_published(1.0, 0.1, neurons=0, success=0.9)
    with pytest.raises(BadInput, match=r"\(0, 1\]"):
        rounds_under_a_clip(1.0, 0.1, share=0.0, success=0.9)
