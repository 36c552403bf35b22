"""Metrics of samples grouped by run."""

import numpy as np
import pytest

from fedaudit.core.errors import BadInput
from fedaudit.metrics.delong import auc_over_runs, rates_at_calibrated_threshold
from fedaudit.metrics.roc import auc


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def runs(count: int = 12, each: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    run = np.repeat(np.arange(count), 2 * each)
    return run, np.tile([True, False], count * each), rng().normal(size=len(run))


def test_auc_over_runs_is_the_auc_of_all_pairs() -> None:
    run, truth, scores = runs()
    scores = scores.round(1) + truth
    interval = auc_over_runs(scores, truth, run, rng=rng())
    assert interval.value == auc(scores, truth)
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < interval.value < interval.high
    assert interval.method == "bootstrap over 12 runs 95%"


def test_equal_scores_on_both_sides_give_one_half() -> None:
    run, truth, scores = runs()
    pairs = np.repeat(scores[::2], 2)
    interval = auc_over_runs(pairs, truth, run, rng=rng())
    assert interval.value == 0.5
    same = auc_over_runs(np.zeros(len(run)), truth, run, rng=rng())
    assert (same.value, same.low, same.high) == (0.5, None, None)
    assert same.method == "no spread over 12 runs"


def test_infinite_scores_are_the_highest() -> None:
    run, truth, scores = runs()
    assert auc_over_runs(np.where(truth, np.inf, scores), truth, run, rng=rng()).value == 1.0


def test_repeated_samples_of_a_run_do_not_narrow_the_interval() -> None:
    run, truth, scores = runs()
    once = auc_over_runs(scores, truth, run, rng=rng())
    often = auc_over_runs(*(np.repeat(part, 9) for part in (scores, truth, run)), rng=rng())
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


@pytest.mark.simulation
@pytest.mark.slow
def test_intervals_over_runs_have_their_coverage() -> None:
    draws = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        run, truth, noise = runs(20, 3)
        # Each run is shifted as a whole, and each side of it: members by 1 more.
        shift = draws.normal(size=20)[run] + draws.normal(size=(2, 20))[truth.astype(int), run]
        scores = draws.normal(size=len(noise)) * 0.1 + shift + truth
        interval = auc_over_runs(scores, truth, run, rng=draws, resamples=400)
        # Two runs' difference of shifts has a variance of 4.02: P(N(1, 4.02) > 0).
        covered += (interval.low or 0.0) <= 0.691 <= (interval.high or 1.0)
    assert 0.86 <= covered / 200 <= 0.99


def test_too_few_or_one_sided_runs_raise() -> None:
    run, truth, scores = runs(9)
    with pytest.raises(BadInput, match="at least 10 runs"):
        auc_over_runs(scores, truth, run, rng=rng())
    run, truth, scores = runs()
    with pytest.raises(BadInput, match="members and non-members"):
        auc_over_runs(scores, truth & (run != 3), run, rng=rng())


def test_thresholds_are_calibrated_on_other_runs() -> None:
    calibration = np.arange(20.0)  # one of twenty may be above: the threshold is 18
    calibrated = rates_at_calibrated_threshold(
        calibration, [18.0, 18.5, 40.0], [0.0, 19.0], fpr=0.05
    )
    assert (calibrated.true_positive.hits, calibrated.true_positive.total) == (2, 3)
    assert (calibrated.false_positive.hits, calibrated.false_positive.total) == (1, 2)
    none = rates_at_calibrated_threshold(calibration, [19.0], [19.5], fpr=0.0)
    assert (none.true_positive.hits, none.false_positive.hits) == (0, 1)


def test_infinite_scores_are_above_every_threshold() -> None:
    calibrated = rates_at_calibrated_threshold([np.inf, np.inf], [np.inf], [0.0], fpr=0.0)
    assert (calibrated.true_positive.hits, calibrated.false_positive.hits) == (1, 0)


@pytest.mark.parametrize("wrong", [([], [1.0], [1.0], 0.1), ([1.0], [1.0], [1.0], 1.0)])
def test_empty_calibration_scores_raise(
    wrong: tuple[list[float], list[float], list[float], float],
) -> None:
    with pytest.raises(BadInput, match="needs calibration scores"):
        rates_at_calibrated_threshold(*wrong[:3], fpr=wrong[3])
