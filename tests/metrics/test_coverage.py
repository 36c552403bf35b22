"""Parts of the coverage benchmark; `python -m benchmarks.coverage` runs it."""

import numpy as np
import pytest

from benchmarks.coverage import (
    CONFIDENCE,
    COUNTS,
    SHAPES,
    WAYS,
    Shape,
    limits_used,
    means_over_seeds,
    normal,
    rate_limits_of,
    rate_means,
    simulated,
    tied,
)
from fedaudit.metrics import limits_at_threshold, tpr_at_fpr, tpr_limits

SOME = (SHAPES[0], SHAPES[2], *SHAPES[6:])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_true_values_match_large_samples(shape: Shape) -> None:
    many = 200_000
    members, nonmembers = shape.draw(np.random.default_rng(0), (1, many), (1, many))
    scores, truth = np.append(members, nonmembers), np.arange(2 * many) < many
    for fpr in (0.01, 0.1):
        limits = tpr_limits(scores, truth, fpr, confidence=0.999)
        assert limits.low <= shape.rate(fpr) <= limits.high
        if "threshold" not in shape.name and "tied" not in shape.name:
            assert tpr_at_fpr(scores, truth, fpr).tpr == pytest.approx(shape.rate(fpr), abs=0.02)


@pytest.mark.parametrize("fpr", [0.01, 0.1])
def test_vectorised_limits_match_single_runs(fpr: float) -> None:
    members, nonmembers = tied(1.0, 0.5).draw(np.random.default_rng(0), (12, 60), (12, 400))
    at_once = [limits(members, nonmembers, fpr) for limits in (rate_limits_of, limits_used)]
    truth = np.arange(460) < 60
    for run in range(12):
        scores = np.append(members[run], nonmembers[run])
        limits = tpr_limits(scores, truth, fpr, confidence=CONFIDENCE)
        one_by_one = [
            (limits.low, limits.high),
            limits_at_threshold(scores, truth, fpr, confidence=CONFIDENCE),
        ]
        assert one_by_one == [(vectorised.low[run], vectorised.high[run]) for vectorised in at_once]


@pytest.mark.simulation
@pytest.mark.parametrize("sizes", [(50, 50), (300, 600), (60, 1500)], ids=str)
def test_tpr_limits_and_gates_have_their_error_rate(
    sizes: tuple[int, int],
) -> None:
    runs, fprs = 400, [fpr for fpr in (0.01, 0.1) if sizes[1] * fpr >= 1]
    # Four standard errors of a simulated share of 2.5 %.
    allowed = 0.025 + 4 * (0.025 * 0.975 / runs) ** 0.5
    for shape in SOME:
        for of_rate, _ in simulated(shape, sizes, fprs, runs, seed=1).values():
            assert of_rate.coverage >= 0.94
            assert max(of_rate) <= allowed


@pytest.mark.simulation
def test_limits_at_the_used_threshold_have_half_the_coverage() -> None:
    of_rate, at_threshold = simulated(normal(1.0), (500, 500), [0.01], 400, seed=1)[0.01]
    assert of_rate.coverage > 0.95
    assert 0.45 < at_threshold.coverage < 0.65
    assert at_threshold.below > 0.08
    assert at_threshold.above > 0.2


@pytest.mark.simulation
@pytest.mark.slow
def test_intervals_for_these_runs_have_their_coverage_and_narrow() -> None:
    auc, rate = means_over_seeds((60, 400), 1.0, 120, 3).values()
    for figure in (auc, rate):
        assert all(interval.missed.coverage >= CONFIDENCE - 0.04 for interval in figure.values())
        widths = [figure[count].width for count in COUNTS]
        assert widths == sorted(widths, reverse=True)
    assert auc[10].width == pytest.approx(auc[1].width / 10**0.5, rel=0.05)


@pytest.mark.simulation
@pytest.mark.slow
def test_combined_p_values_cover_mean_rates_of_tied_scores() -> None:
    shapes = (tied(1.0, 0.5),) * max(COUNTS)
    intervals = rate_means(shapes, (100, 100), 0.1, 60, seed=1)
    combined, summed = (intervals[way, max(COUNTS)].missed for way in WAYS)
    assert combined.coverage >= 0.95
    assert summed.coverage < 0.7
    # Flagging ties together biases the value upwards, so only the lower limit misses.
    assert summed.below == 0
