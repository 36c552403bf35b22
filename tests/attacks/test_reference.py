"""RMIA and LiRA against what their papers say, word for word."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedaudit.attacks.base import Reference
from fedaudit.attacks.membership.reference import (
    LikelihoodRatio,
    ReferenceCalibrated,
    RelativeLikelihood,
)
from fedaudit.core.errors import BadInput
from fedaudit.observe.measurements import Measurements

few = settings(max_examples=40)
SAMPLES = 12


def cube(values: np.ndarray, rounds: tuple[int, ...] = ()) -> Measurements:
    """One client's signal, from (rounds, samples)."""
    tensor = torch.as_tensor(values, dtype=torch.float64)[:, None]
    bases = torch.zeros(len(tensor), 1, dtype=torch.int64)
    return Measurements(tensor, rounds or tuple(range(1, len(tensor) + 1)), (0,), bases)


def scores(
    rule: ReferenceCalibrated,
    own: np.ndarray,
    others: np.ndarray,
    trained_on: np.ndarray | None = None,
) -> np.ndarray:
    """Of one target, from (rounds, samples), and references, (references, rounds, samples)."""
    masks = np.zeros((len(others), own.shape[1]), dtype=bool) if trained_on is None else trained_on
    given = [
        Reference((cube(other),), 0, torch.from_numpy(mask))
        for other, mask in zip(others, masks, strict=True)
    ]
    found: np.ndarray = rule.with_references(given)(cube(own), target=0).numpy()
    return found


def losses(seed: int, references: int, rounds: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Minus losses of a target and of references: hard samples are hard to all."""
    rng = np.random.default_rng(seed)
    hard = rng.exponential(size=SAMPLES)
    own = -hard * rng.uniform(0.2, 1.2, (rounds, SAMPLES))
    return own, -hard * rng.uniform(0.2, 1.2, (references, rounds, SAMPLES))


def halves(seed: int, references: int) -> np.ndarray:
    rng = np.random.default_rng(seed + 1)
    order = rng.random((references, SAMPLES)).argsort(0)
    mask: np.ndarray = order < references // 2
    return mask


def rmia(
    own: np.ndarray,
    others: np.ndarray,
    trained_on: np.ndarray,
    population: tuple[np.ndarray, np.ndarray],
    gamma: float,
    a: float = 0.3,
) -> list[float]:
    """The share of population samples z with LR(x, z) at least gamma, one pair at a time."""

    def ratio(p: float, outs: list[float], ins: list[float]) -> float:
        if not ins:
            return float(p / (((1 + a) * np.mean(outs) + (1 - a)) / 2))
        return float(p / ((np.mean(ins) + np.mean(outs)) / 2))

    z_own, z_others = np.exp(population[0][0]), np.exp(population[1][:, 0])
    of_population = [ratio(p, list(z_others[:, z]), []) for z, p in enumerate(z_own)]
    found = []
    for x in range(SAMPLES):
        values = np.exp(others[:, 0, x])
        mine = ratio(
            float(np.exp(own[0, x])),
            list(values[~trained_on[:, x]]),
            list(values[trained_on[:, x]]),
        )
        found.append(float(np.mean([mine / other >= gamma for other in of_population])))
    return found


@few
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 5]), st.floats(1.0, 2.0))
def test_rmia_offline_ranks_as_the_share_of_the_population_does(
    seed: int, references: int, gamma: float
) -> None:
    own, others = losses(seed, references)
    never = np.zeros((references, SAMPLES), dtype=bool)
    published = rmia(own, others, never, losses(seed + 1, references), gamma)
    ours = scores(RelativeLikelihood(), own, others)
    for one in range(SAMPLES):
        for other in range(SAMPLES):
            if published[one] > published[other]:
                assert ours[one] > ours[other]


@few
@given(st.integers(0, 10_000), st.sampled_from([4, 8]))
def test_rmia_online_ranks_as_the_share_of_the_population_does(seed: int, references: int) -> None:
    own, others = losses(seed, references)
    trained_on = halves(seed, references)
    published = rmia(own, others, trained_on, losses(seed + 1, references), 1.0)
    ours = scores(RelativeLikelihood(), own, others, trained_on)
    for one in range(SAMPLES):
        for other in range(SAMPLES):
            if published[one] > published[other]:
                assert ours[one] > ours[other]


def test_rmia_by_hand() -> None:
    own, others = np.log([[0.8, 0.4]]), np.log([[[0.5, 0.4]], [[0.3, 0.4]]])
    found = scores(RelativeLikelihood(offline=1.0), own, others)
    np.testing.assert_allclose(found, np.log([0.8 / 0.4, 0.4 / 0.4]), atol=1e-12)
    found = scores(RelativeLikelihood(offline=0.0), own, others)
    np.testing.assert_allclose(found, np.log([0.8 / 0.7, 0.4 / 0.7]))
    # The first model was trained on the first sample, the second on the second.
    found = scores(RelativeLikelihood(), own, others, np.eye(2, dtype=bool))
    np.testing.assert_allclose(found, np.log([0.8 / 0.4, 0.4 / 0.4]), atol=1e-12)


def test_a_loss_beyond_what_exponentials_hold_gives_a_finite_score() -> None:
    found = scores(RelativeLikelihood(offline=1.0), np.array([[-5000.0]]), np.array([[[-6000.0]]]))
    np.testing.assert_allclose(found, [1000.0])
    assert np.isfinite(scores(RelativeLikelihood(), np.array([[-5000.0]]), np.array([[[-6e3]]])))


@few
@given(st.integers(0, 10_000), st.sampled_from([2, 3, 8]))
def test_lira_offline_ranks_as_the_published_probability(seed: int, references: int) -> None:
    own, others = losses(seed, references)
    mean, spread = others[:, 0].mean(0), others[:, 0].std(0, ddof=1)
    published = norm.cdf(own[0], mean, spread)
    ours = scores(LikelihoodRatio(variance="each"), own, others)
    np.testing.assert_allclose(norm.cdf(ours), published, atol=1e-12)
    pooled = np.sqrt(others[:, 0].var(0, ddof=1).mean())
    fixed = scores(LikelihoodRatio(), own, others)
    np.testing.assert_allclose(norm.cdf(fixed / pooled), norm.cdf(own[0], mean, pooled), atol=1e-12)


@few
@given(st.integers(0, 10_000), st.sampled_from(["each", "fixed"]))
def test_lira_online_is_the_published_ratio_of_densities(seed: int, variance: str) -> None:
    own, others = losses(seed, 8)
    trained_on = halves(seed, 8)
    inside = [others[trained_on[:, x], 0, x] for x in range(SAMPLES)]
    outside = [others[~trained_on[:, x], 0, x] for x in range(SAMPLES)]

    def spreads(parts: list[np.ndarray]) -> np.ndarray:
        each = np.array([part.var(ddof=1) for part in parts])
        found: np.ndarray = np.sqrt(each if variance == "each" else np.full(SAMPLES, each.mean()))
        return found

    with_it = norm.logpdf(own[0], [part.mean() for part in inside], spreads(inside))
    without = norm.logpdf(own[0], [part.mean() for part in outside], spreads(outside))
    ours = scores(LikelihoodRatio(variance=variance), own, others, trained_on)
    np.testing.assert_allclose(ours, with_it - without, rtol=1e-9, atol=1e-9)


def test_one_reference_is_enough_offline() -> None:
    own, others = losses(3, 1)
    np.testing.assert_allclose(scores(LikelihoodRatio(), own, others), own[0] - others[0, 0])
    with pytest.raises(BadInput, match="needs 2 reference models of a kind for every sample"):
        scores(LikelihoodRatio(variance="each"), own, others)


def test_rounds_are_compared_with_the_same_rounds_and_the_mean_is_taken() -> None:
    own, others = losses(4, 3, rounds=5)
    mean = scores(LikelihoodRatio(rounds="mean"), own, others)
    each = [scores(LikelihoodRatio(), own[[r]], others[:, [r]]) for r in range(5)]
    np.testing.assert_allclose(mean, np.mean(each, axis=0))
    np.testing.assert_array_equal(scores(LikelihoodRatio(), own, others), each[-1])


def test_a_round_that_a_reference_lacks_is_held_against_its_last() -> None:
    rule = LikelihoodRatio(rounds="mean")
    own, others = np.array([[1.0], [2.0]]), np.array([[10.0], [20.0]])
    reference = Reference((cube(others, (1, 9)),), 0, torch.zeros(1, dtype=torch.bool))
    found = rule.with_references([reference])(cube(own, (1, 2)), target=0)
    assert float(found) == ((1 - 10) + (2 - 20)) / 2


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RelativeLikelihood(rounds="first"), "'last' or 'mean', got 'first'"),
        (lambda: RelativeLikelihood(offline=1.5), "from 0 to 1, got 1.5"),
        (lambda: LikelihoodRatio(variance="none"), "'fixed' or 'each', got 'none'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: object, match: str) -> None:
    assert callable(make)
    with pytest.raises(BadInput, match=match):
        make()
