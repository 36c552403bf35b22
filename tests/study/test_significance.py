import numpy as np
import pytest

from fedaudit.evaluation.truth import EvaluationResults
from fedaudit.gate.sample_size import more_seeds
from fedaudit.metrics import (
    auc_interval,
    clopper_pearson,
    clopper_pearson_function,
    mean_limits_by_p_values,
)
from fedaudit.results.aggregate import Value, further_runs_interval, mean_difference
from fedaudit.results.estimate import Estimate
from fedaudit.results.estimate import Test as GuessingTest
from fedaudit.study.running.record import corrected_estimates
from tests.estimates import estimate


def figure(seed: int, value: float | None, note: str = "", **changes: object) -> Estimate:
    settings: dict[str, object] = {
        "attack": "fedmia-2",
        "contrast": "unseen",
        "target": 0,
        "seed": seed,
        "metric": "tpr@0.001",
        "value": value,
        "n_members": 100,
        "n_nonmembers": 3000,
        "note": note,
        **changes,
    }
    return estimate(settings)


def auc(seed: int, shift: float = 1.0, size: int = 200) -> Estimate:
    """An AUC of normal scores, with DeLong's limits."""
    drawn = np.random.default_rng(seed)
    scores = np.concatenate([drawn.normal(shift, 1, size), drawn.normal(0, 1, size)])
    interval = auc_interval(scores, np.arange(2 * size) < size)
    return figure(
        seed,
        interval.value,
        metric="auc",
        low=interval.low,
        high=interval.high,
        method=interval.method,
    )


def mean_of(*figures: Estimate) -> Estimate:
    results = EvaluationResults(list(figures))
    for i, figure_of_run in enumerate(figures):
        if figure_of_run.value is not None and figure_of_run.metric != "auc":
            results.limits[i] = clopper_pearson_function(round(100 * figure_of_run.value), 100)
    (mean,) = (row for row in corrected_estimates(results, 0.05) if row.seed is None)
    return mean


def test_a_mean_states_its_number_of_seeds() -> None:
    mean = mean_of(figure(1, 0.1), figure(2, 0.3), figure(3, None, "too few members"))
    assert mean.value == pytest.approx(0.2)
    assert mean.note == "mean over 2 of 3 seeds: too few members"


def test_a_seed_without_a_figure_does_not_weaken_the_other_seed() -> None:
    """Two seeds would otherwise say less than one: neither figure nor test was left."""
    significant_run = figure(1, 0.1).model_copy(update={"tests": [GuessingTest(p_value=1e-4)]})
    mean = mean_of(significant_run, figure(2, None, "too few members"))
    assert (mean.value, mean.significant) == (0.1, True)
    assert (mean.low, mean.high) == pytest.approx(clopper_pearson(10, 100))
    assert mean.note == "mean over 1 of 2 seeds: too few members"


def test_a_figure_refused_by_every_seed_has_the_reason() -> None:
    mean = mean_of(figure(1, None, "too few"), figure(2, None, "too few"))
    assert (mean.value, mean.further) == (None, None)
    assert mean.note == "0 of 2 seeds gave this figure: too few"


def test_two_seeds_narrow_only_the_interval_for_these_runs() -> None:
    runs = [auc(1), auc(2)]
    mean = mean_of(*runs)
    assert mean.low is not None
    assert mean.high is not None
    assert mean.further is not None
    assert mean.high - mean.low < min((run.high or 0) - (run.low or 0) for run in runs)
    assert mean.method == "DeLong 95%, over these 2 runs"
    assert (mean.further.low, mean.further.high) == (None, None)
    assert mean.further.method == "an interval over further runs needs 5 seeds, got 2"


def test_five_seeds_give_an_interval_for_further_runs() -> None:
    runs = [auc(seed, shift=0.4 * seed) for seed in range(5)]
    mean = mean_of(*runs)
    assert mean.further is not None
    values = np.array([run.value for run in runs])
    reach = 2.776445 * values.std(ddof=1) / 5**0.5
    assert mean.further.low == pytest.approx(values.mean() - reach, abs=1e-6)
    assert mean.further.method == "Student t over 5 seeds 95%"
    assert mean.method == "DeLong 95%, over these 5 runs"


def test_limits_for_further_runs_are_never_narrower_than_for_these_runs() -> None:
    runs = [auc(seed, size=30) for seed in range(5)]
    similar_runs = [run.model_copy(update={"value": 0.75 + i / 1e4}) for i, run in enumerate(runs)]
    mean = mean_of(*similar_runs)
    assert mean.further is not None
    assert (mean.further.low, mean.further.high) == (mean.low, mean.high)
    assert mean.further.method == "Student t over 5 seeds 95%, no narrower than these runs"


def test_limits_of_rates_over_seeds_equal_those_of_these_runs() -> None:
    mean = mean_of(*(figure(seed, 0.1 + seed / 100) for seed in range(5)))
    assert mean.further is not None
    assert (mean.further.low, mean.further.high) == (mean.low, mean.high)


def test_a_mean_rate_without_a_lower_limit_has_none_over_seeds() -> None:
    interval = further_runs_interval(
        [0.1, 0.11, 0.12, 0.13, 0.14], within=(0.0, 1.0), limits_of_runs=(None, 0.3)
    )
    assert (interval.low, interval.high) == (0.0, 0.3)
    # No limits at all, as of the count of clients in old records: nothing to widen by.
    alone = further_runs_interval([0.1, 0.11, 0.12, 0.13, 0.14])
    assert alone.method == "Student t over 5 seeds 95%"


def test_a_difference_over_seeds_is_never_narrower() -> None:
    gaps = [Value(gap, gap - 0.1, gap + 0.1, "") for gap in (0.01, 0.011, 0.012, 0.013, 0.014)]
    difference = mean_difference(gaps)
    assert difference is not None
    assert difference.further is not None
    assert (difference.further.low, difference.further.high) == (difference.low, difference.high)


def test_rates_of_runs_have_joint_limits_at_any_confidence() -> None:
    mean = mean_of(figure(1, 0.1), figure(2, 0.3))
    expected = mean_limits_by_p_values(
        [clopper_pearson_function(10, 100), clopper_pearson_function(30, 100)]
    )
    assert (mean.low, mean.high) == pytest.approx(expected)


def test_the_joint_interval_of_perfect_runs_is_narrower_but_positive() -> None:
    single_run, mean = auc(1, 20.0, 50), mean_of(auc(1, 20.0, 50), auc(2, 20.0, 50))
    assert mean.value == 1.0
    assert mean.method == "exact on pairs 95%, over these 2 runs"
    assert (single_run.low or 0) < (mean.low or 0) < 1.0


def test_limits_of_rates_do_not_narrow_with_the_number_of_seeds() -> None:
    values = [0.1, 0.11, 0.12, 0.13, 0.14]
    alone = further_runs_interval(values, within=(0.0, 1.0))
    assert more_seeds(0.12, alone, 5, 0.125) is not None
    widened = further_runs_interval(values, within=(0.0, 1.0), limits_of_runs=(0.05, 0.3))
    assert more_seeds(0.12, widened, 5, 0.125) is None
