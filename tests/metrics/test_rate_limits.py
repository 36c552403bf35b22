from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy
from scipy.stats import binom

from fedaudit.core.errors import BadInput
from fedaudit.metrics import (
    clopper_pearson,
    nonmembers_for_tpr_lower_limit,
    tpr_at_fpr,
    tpr_limits,
    tpr_limits_function,
    tpr_lower_limit,
    tpr_upper_limit,
)
from fedaudit.metrics.rate_limits import lower_bound, upper_bound

SIZES = st.integers(1, 400)
RATES = st.sampled_from([0.001, 0.01, 0.05, 0.1, 0.5, 0.9])
CONFIDENCES = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.975, 0.99, 0.999])
SCORES = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([-np.inf, np.inf, 0.5]))


def scored(members: list[float], nonmembers: list[float]) -> tuple[np.ndarray, np.ndarray]:
    truth = np.arange(len(members) + len(nonmembers)) < len(members)
    return np.array([*members, *nonmembers]), truth


# Known answers.


def test_forty_nonmembers_give_no_lower_limit_at_one_per_cent() -> None:
    scores, truth = scored([5.0] * 20, [0.0] * 40)
    limits = tpr_limits(scores, truth, 0.01)
    # Some threshold of 1 % may flag fewer than the best non-member: .99**40 = .67 is likely.
    assert limits.low == 0.0
    assert limits.high == 1.0
    # .99**n <= .025 / (1 + 1/16) from n = 373.1 on.
    assert limits.needs == 374 - 40
    assert limits.method == "order statistics and Clopper-Pearson 95%"


def test_a_median_rate_is_bounded_by_order_statistics() -> None:
    # Bin(20, .5): P(<= 3) = .00129, P(<= 4) = .00591, P(<= 5) = .0207, P(<= 6) = .0577.
    lower = lower_bound(0.5, 30, 20, confidence=0.975)
    upper = upper_bound(0.5, 30, 20, confidence=0.975)
    assert lower.rank in (4, 5, 6)
    assert upper.rank in (15, 16, 17)
    tail = {4: 0.00129, 5: 0.00591, 6: 0.02069}[lower.rank]
    assert lower.error == pytest.approx(0.025 - tail, abs=1e-4)
    # Non-members 1 to 20, members 20 above all of them and 10 below.
    scores, truth = scored([99.0] * 20 + [0.0] * 10, list(range(1, 21)))
    limits = tpr_limits(scores, truth, 0.5)
    assert limits.low == clopper_pearson(20, 30, confidence=1 - 2 * lower.error).low
    assert limits.high == clopper_pearson(20, 30, confidence=1 - 2 * upper.error).high


@pytest.mark.parametrize(
    ("fpr", "least"), [(0.001, 3_748), (0.01, 374), (0.1, 36), (1.0, 1), (0.5, 6)]
)
def test_a_lower_limit_needs_the_tabulated_number_of_nonmembers(fpr: float, least: int) -> None:
    assert nonmembers_for_tpr_lower_limit(fpr, confidence=0.975) == least


@given(fpr=RATES, members=SIZES, confidence=CONFIDENCES)
@settings(max_examples=30)
def test_least_number_of_nonmembers_for_a_lower_limit(
    fpr: float, members: int, confidence: float
) -> None:
    least = nonmembers_for_tpr_lower_limit(fpr, confidence=confidence)
    assert lower_bound(fpr, members, least, confidence=confidence).rank >= 1
    if least > 1:
        assert lower_bound(fpr, members, least - 1, confidence=confidence).rank == 0


def test_every_sample_is_flagged_at_a_rate_of_one() -> None:
    limits = tpr_limits(*scored([0.0], [1.0]), 1.0)
    assert (limits.low, limits.high) == (1.0, 1.0)


@pytest.mark.parametrize("fpr", [0.0, -0.1, 1.1, float("nan")])
def test_a_rate_outside_zero_and_one_raises(fpr: float) -> None:
    with pytest.raises(BadInput, match="is in \\(0, 1\\]"):
        tpr_limits([1.0, 0.0], [True, False], fpr)


# Properties for arbitrary scores.


@given(
    members=st.lists(SCORES, min_size=1, max_size=30),
    nonmembers=st.lists(SCORES, min_size=1, max_size=60),
    fpr=RATES,
    confidence=CONFIDENCES,
)
@settings(max_examples=40)
def test_the_tpr_is_within_its_limits(
    members: list[float], nonmembers: list[float], fpr: float, confidence: float
) -> None:
    scores, truth = scored(members, nonmembers)
    limits = tpr_limits(scores, truth, fpr, confidence=confidence)
    assert 0 <= limits.low <= tpr_at_fpr(scores, truth, fpr).tpr <= limits.high <= 1
    one_sided = 1 - (1 - confidence) / 2
    assert limits.low == tpr_lower_limit(scores, truth, fpr, confidence=one_sided)
    assert limits.high == tpr_upper_limit(scores, truth, fpr, confidence=one_sided)


@given(
    members=st.lists(st.integers(-9, 9), min_size=1, max_size=30),
    nonmembers=st.lists(st.integers(-9, 9), min_size=1, max_size=60),
    fpr=RATES,
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_limits_depend_only_on_the_order_of_scores(
    members: list[int], nonmembers: list[int], fpr: float, seed: int
) -> None:
    scores, truth = scored([float(m) for m in members], [float(n) for n in nonmembers])
    shuffled = np.random.default_rng(seed).permutation(len(scores))
    plain = tpr_limits(scores, truth, fpr)
    assert tpr_limits(np.arctan(scores) * 3 - 7, truth, fpr) == plain
    assert tpr_limits(scores[shuffled], truth[shuffled], fpr) == plain


@given(
    members=st.lists(SCORES, min_size=1, max_size=30),
    nonmembers=st.lists(SCORES, min_size=1, max_size=200),
    fpr=RATES,
    first=st.floats(0.02, 0.9999),
    second=st.floats(0.02, 0.9999),
)
@settings(max_examples=40)
def test_limits_at_a_higher_confidence_are_never_narrower(
    members: list[float], nonmembers: list[float], fpr: float, first: float, second: float
) -> None:
    scores, truth = scored(members, nonmembers)
    narrow, wide = (
        tpr_limits(scores, truth, fpr, confidence=level) for level in sorted((first, second))
    )
    assert wide.low <= narrow.low + 1e-12
    assert narrow.high <= wide.high + 1e-12


def test_limits_are_nested_by_confidence() -> None:
    rng = np.random.default_rng(0)
    scores, truth = scored(list(rng.normal(1, 1, 40)), list(rng.normal(0, 1, 90)))
    levels = np.linspace(0.3, 0.9995, 200)
    limits = [tpr_limits(scores, truth, 0.1, confidence=float(level)) for level in levels]
    assert all(b.low <= a.low and a.high <= b.high for a, b in pairwise(limits))


@given(fpr=RATES, members=SIZES, nonmembers=SIZES, confidence=CONFIDENCES)
@settings(max_examples=40)
def test_threshold_and_members_share_one_error(
    fpr: float, members: int, nonmembers: int, confidence: float
) -> None:
    lower = lower_bound(fpr, members, nonmembers, confidence=confidence)
    upper = upper_bound(fpr, members, nonmembers, confidence=confidence)
    above = binom(nonmembers, fpr)
    assert lower.error > 0
    assert upper.error > 0
    assert above.cdf(lower.rank - 1) + lower.error <= 1 - confidence + 1e-12
    assert above.sf(upper.rank - 1) + upper.error <= 1 - confidence + 1e-12


# Comparisons with slow computations.


def slow_limits(
    members: list[float], nonmembers: list[float], lower_at: int, upper_at: int, errors: list[float]
) -> tuple[float, float]:
    """Count the samples in a loop and solve the binomial equations of each limit."""
    best_first = sorted(nonmembers, reverse=True)
    n = len(members)
    low, high = 0.0, 1.0
    if lower_at:
        hits = sum(score > best_first[lower_at - 1] for score in members)
        if hits:
            low = float(brentq(lambda p: binom.sf(hits - 1, n, p) - errors[0], 0, 1, xtol=1e-14))
    if upper_at <= len(nonmembers):
        hits = sum(score >= best_first[upper_at - 1] for score in members)
        if hits < n:
            high = float(brentq(lambda p: binom.cdf(hits, n, p) - errors[1], 0, 1, xtol=1e-14))
    return low, high


@given(
    members=st.lists(SCORES, min_size=1, max_size=20),
    nonmembers=st.lists(SCORES, min_size=1, max_size=80),
    fpr=RATES,
)
@settings(max_examples=30)
def test_limits_match_a_slow_count(
    members: list[float], nonmembers: list[float], fpr: float
) -> None:
    sizes = (len(members), len(nonmembers))
    bounds = [bound(fpr, *sizes, confidence=0.975) for bound in (lower_bound, upper_bound)]
    slow = slow_limits(
        members, nonmembers, bounds[0].rank, bounds[1].rank, [bound.error for bound in bounds]
    )
    limits = tpr_limits(*scored(members, nonmembers), fpr)
    assert (limits.low, limits.high) == pytest.approx(slow, abs=1e-9)


def chances(counts: Sequence[tuple[int, ...]], shares: np.ndarray) -> np.ndarray:
    """Return the multinomial probability of each tuple of counts."""
    table = np.array(counts)
    orders = gammaln(table.sum(axis=1) + 1) - gammaln(table + 1).sum(axis=1)
    return np.asarray(np.exp(orders + xlogy(table, shares).sum(axis=1)))


@pytest.mark.simulation
@pytest.mark.parametrize(("fpr", "confidence"), [(0.3, 0.8), (0.5, 0.9)])
def test_tpr_limits_have_their_coverage_for_tied_scores(fpr: float, confidence: float) -> None:
    """Enumerate all samples of 4 members and 10 non-members with scores 0, 1 and 2."""
    kinds = [(a, b, 4 - a - b) for a in range(5) for b in range(5 - a)]
    others = [(a, b, 10 - a - b) for a in range(11) for b in range(11 - a)]
    low, high = np.empty((2, len(kinds), len(others)))
    for (i, mine), (j, theirs) in product(enumerate(kinds), enumerate(others)):
        scores, truth = scored(list(np.repeat(range(3), mine)), list(np.repeat(range(3), theirs)))
        limits = tpr_limits(scores, truth, fpr, confidence=confidence)
        low[i, j], high[i, j] = limits.low, limits.high
    rng = np.random.default_rng(0)
    drawn = rng.dirichlet([0.5, 0.5, 0.5], (200, 2))
    # Hardest: a score shared by exactly as many non-members as the rate allows, or barely more.
    edges = [[[0.3, 0.3, 0.4], [1 - share, 0.0, share]] for share in (fpr, fpr + 1e-6, fpr - 1e-6)]
    for member_shares, nonmember_shares in [*drawn, *np.array(edges)]:
        flagged = next(k for k in range(4) if nonmember_shares[k:].sum() <= fpr + 1e-12)
        true = member_shares[flagged:].sum()
        chance = np.outer(chances(kinds, member_shares), chances(others, nonmember_shares))
        assert chance[low > true + 1e-9].sum() <= (1 - confidence) / 2 + 1e-9
        assert chance[high < true - 1e-9].sum() <= (1 - confidence) / 2 + 1e-9


def test_tpr_limits_cover_more_often_than_limits_at_the_used_threshold() -> None:
    """At 1 %, the threshold depends on only 5 of 500 non-members."""
    rng, runs, true = np.random.default_rng(0), 200, 0.0917  # Phi(1 + Phi^-1(.01))
    truth = np.arange(1000) < 500
    n_covered = dict.fromkeys(("used", "rate"), 0)
    for _ in range(runs):
        scores = rng.normal(size=1000) + truth
        limits = tpr_limits(scores, truth, 0.01)
        used = clopper_pearson(tpr_at_fpr(scores, truth, 0.01).true_positives, 500)
        n_covered["rate"] += limits.low <= true <= limits.high
        n_covered["used"] += used.low <= true <= used.high
    assert n_covered["used"] / runs < 0.75
    assert n_covered["rate"] / runs >= 0.95


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 80),
    st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    st.floats(1e-6, 0.45),
    st.integers(0, 2**31),
)
def test_limits_at_any_error_are_those_at_its_confidence(
    members: int, nonmembers: int, fpr: float, error: float, seed: int
) -> None:
    scores = np.random.default_rng(seed).integers(0, 9, members + nonmembers)
    is_member = np.arange(members + nonmembers) < members
    ladder = tpr_limits_function(scores, is_member, fpr)(np.array([error, error / 2]))
    low = tpr_lower_limit(scores, is_member, fpr, confidence=1 - error)
    high = tpr_upper_limit(scores, is_member, fpr, confidence=1 - error)
    assert (ladder.low[0], ladder.high[0]) == pytest.approx((low, high), abs=1e-9)
    assert ladder.low[1] <= ladder.low[0]
    assert ladder.high[1] >= ladder.high[0]
