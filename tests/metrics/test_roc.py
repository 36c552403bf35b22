import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from fedaudit.core.errors import BadInput
from fedaudit.metrics import auc, roc_curve, thin_roc, tpr_at_fpr
from fedaudit.metrics.roc import allowed_false_positives

Audit = tuple[np.ndarray, np.ndarray]

LEVELS = [-np.inf, -1e308, -1.0, 0.0, 5e-324, 0.3, 1.0, 1e308, np.inf]


TIED = st.sampled_from(LEVELS)


@st.composite
def audits(draw: st.DrawFn, levels: st.SearchStrategy[float] = TIED) -> Audit:
    """Scores with many ties, both sides filled."""
    scores = draw(st.lists(levels, min_size=2, max_size=30))
    truth = draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    truth[0], truth[1] = True, False
    return np.array(scores), np.array(truth)


def brute_tpr(scores: np.ndarray, truth: np.ndarray, fpr: float) -> float:
    rates = [(0.0, 0.0)]
    for level in scores:
        flagged = scores >= level
        rates.append((flagged[~truth].sum() / (~truth).sum(), flagged[truth].mean()))
    return max(tpr for realised, tpr in rates if realised <= fpr)


@pytest.mark.slow
@given(audits())
@settings(deadline=None)
def test_roc_curve_equals_scikit_learn(audit: Audit) -> None:
    scores, truth = audit
    roc = roc_curve(scores, truth)
    # scikit-learn takes no infinite scores: give it their ranks, which have the same curve.
    ranks = np.unique(scores, return_inverse=True)[1].astype(float)
    fpr, tpr, _ = sklearn_roc_curve(truth, ranks, drop_intermediate=False)
    np.testing.assert_allclose(roc.fpr, fpr)
    np.testing.assert_allclose(roc.tpr, tpr)
    assert auc(scores, truth) == pytest.approx(roc_auc_score(truth, ranks))


@given(audits(st.floats(-5, 5)))
@settings(deadline=None)
def test_thresholds_match_scikit_learn(audit: Audit) -> None:
    scores, truth = audit
    thresholds = sklearn_roc_curve(truth, scores, drop_intermediate=False)[2]
    np.testing.assert_array_equal(roc_curve(scores, truth).thresholds, thresholds)


@given(audits(), st.sampled_from([0.0, 0.05, 0.1, 0.29, 0.5, 0.99, 1.0]))
@settings(deadline=None)
def test_tpr_at_fpr_is_the_best_point_at_or_below_the_rate(audit: Audit, fpr: float) -> None:
    scores, truth = audit
    point = tpr_at_fpr(scores, truth, fpr)
    assert point.tpr == pytest.approx(brute_tpr(scores, truth, fpr))
    assert point.realised_fpr <= fpr
    assert point.tpr == point.true_positives / truth.sum()
    assert point.realised_fpr == point.false_positives / (~truth).sum()


def test_a_perfect_attack_with_tied_members_has_tpr_one() -> None:
    scores, truth = [1.0, 1.0, 1.0, 0.0, 0.0], [True, True, True, False, False]
    assert auc(scores, truth) == 1
    assert tpr_at_fpr(scores, truth, 0.0).tpr == 1
    assert tpr_at_fpr(scores, truth, 0.0).threshold == 1.0


def test_constant_scores_have_tpr_zero_below_fpr_one() -> None:
    scores, truth = np.full(10, 0.7), np.arange(10) < 4
    assert auc(scores, truth) == 0.5
    nobody = tpr_at_fpr(scores, truth, 0.5)
    assert (nobody.tpr, nobody.realised_fpr, nobody.threshold) == (0, 0, None)
    assert tpr_at_fpr(scores, truth, 1.0).tpr == 1


def test_tied_samples_are_omitted_together_if_they_exceed_the_rate() -> None:
    # Four non-members, a quarter allows one; 0.5 would flag two of them.
    scores, truth = [0.9, 0.5, 0.9, 0.5, 0.5, 0.1], [True, True, False, False, False, False]
    point = tpr_at_fpr(scores, truth, 0.25)
    assert (point.true_positives, point.false_positives, point.threshold) == (1, 1, 0.9)


def test_the_rate_itself_is_allowed() -> None:
    # 1 of 1,000 non-members above every member: exactly 0.1%.
    scores = np.concatenate([[2.0], np.full(999, 0.0), np.full(10, 1.0)])
    truth = np.arange(1010) >= 1000
    assert tpr_at_fpr(scores, truth, 0.001).tpr == 1
    assert tpr_at_fpr(scores, truth, 0.000999).tpr == 0


@pytest.mark.parametrize("total", [7, 100, 700, 3000])
def test_allowed_false_positives_inverts_exact_rates(total: int) -> None:
    assert all(allowed_false_positives(k / total, total) == k for k in range(total + 1))


@pytest.mark.parametrize(
    ("scores", "truth", "message"),
    [
        ([1.0, np.nan, np.nan], [True, False, False], "2 of 3 scores are NaN"),
        ([1.0, 2.0], [True, False, False], "got 2 scores and membership of shape"),
        ([1.0, 2.0], [True, True], "got 2 members and 0 non-members"),
        ([1.0, 2.0], [False, False], "got 0 members and 2 non-members"),
        ([1.0, 2.0], [0, 7], "unknown origins 7"),
        (["high", "low"], [False, True], "must be numbers"),
        ([[1.0], [2.0]], [False, True], "one axis"),
    ],
)
def test_unusable_scores_are_refused_with_the_reason(
    scores: list[object], truth: list[int], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        auc(np.array(scores).tolist(), truth)


def test_a_rate_outside_zero_and_one_raises() -> None:
    with pytest.raises(BadInput, match=r"is in \[0, 1\], got 5"):
        tpr_at_fpr([1.0, 0.0], [True, False], 5.0)


def test_a_thinned_curve_keeps_every_step_at_low_rates_and_both_ends() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(6000) < 2000
    roc = roc_curve(rng.normal(size=6000) + truth, truth)
    small = thin_roc(roc, 100)
    assert len(small.fpr) <= 100
    assert (small.fpr[0], small.tpr[0], small.fpr[-1], small.tpr[-1]) == (0, 0, 1, 1)
    np.testing.assert_allclose(np.unique(small.fpr)[:40], np.arange(40) / 4000)
    for fpr in np.arange(40) / 4000:
        assert small.tpr[small.fpr == fpr].max() == roc.tpr[roc.fpr == fpr].max()
    assert (small.n_members, small.n_nonmembers) == (2000, 4000)


def test_a_short_curve_keeps_the_upper_points_of_its_steps() -> None:
    roc = roc_curve([4.0, 3.0, 2.0, 1.0], [True, True, False, True])
    small = thin_roc(roc, 10)
    assert small.fpr.tolist() == [0, 0, 1]
    assert small.tpr.tolist() == pytest.approx([0, 2 / 3, 1])


def test_thinning_to_a_handful_of_points_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 10 points, got 3"):
        thin_roc(roc_curve([1.0, 0.0], [True, False]), 3)
