"""Outcomes from limits and ceilings, and required sample sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.gate.outcome import Outcome, compare_bound, compare_limits, severity, worst_outcome
from fedaudit.gate.sample_size import required_sample_size, smallest_deciding_size
from fedaudit.gate.verdict import MISSING_FIGURE, FigureCheck, ceiling_check
from fedaudit.metrics import clopper_pearson

shares = st.floats(0, 1)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.5, 0.6, Outcome.PASS),  # the upper limit is the ceiling
        (0.5, 0.6000001, Outcome.INCONCLUSIVE),
        (0.6, 0.7, Outcome.INCONCLUSIVE),  # the lower limit is the ceiling, not above it
        (0.6000001, 0.7, Outcome.FAIL),
        (0.6, 0.6, Outcome.PASS),
        (None, 0.6, Outcome.PASS),
        (0.7, None, Outcome.FAIL),
        (0.1, None, Outcome.INCONCLUSIVE),  # without an upper limit nothing passes
        (None, None, Outcome.INCONCLUSIVE),
    ],
)
def test_limits_against_a_ceiling_of_six_tenths(
    low: float | None, high: float | None, expected: Outcome
) -> None:
    assert compare_limits(low, high, 0.6) is expected


@given(st.lists(shares, min_size=2, max_size=2).map(sorted), shares, shares)
def test_a_higher_ceiling_never_makes_anything_worse(
    limits: list[float], ceiling: float, other: float
) -> None:
    tight, loose = sorted([ceiling, other])
    low, high = limits
    assert severity(compare_limits(low, high, loose)) <= severity(compare_limits(low, high, tight))


@given(st.floats(0, 20), st.floats(0, 20))
def test_a_lower_bound_never_passes(bound: float, ceiling: float) -> None:
    assert compare_bound(bound, ceiling) is not Outcome.PASS
    assert (compare_bound(bound, ceiling) is Outcome.FAIL) == (bound > ceiling)


def test_the_worst_outcome_decides() -> None:
    assert worst_outcome([Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE]) is Outcome.FAIL
    assert worst_outcome([Outcome.PASS, Outcome.INCONCLUSIVE]) is Outcome.INCONCLUSIVE
    assert worst_outcome([]) is Outcome.INCONCLUSIVE


def share_of(rate: float) -> object:
    return lambda size: clopper_pearson(rate * size, size)


@pytest.mark.parametrize(("rate", "outcome"), [(0.04, Outcome.PASS), (0.06, Outcome.FAIL)])
def test_smallest_deciding_size_is_minimal(rate: float, outcome: Outcome) -> None:
    size = smallest_deciding_size(share_of(rate), 100, 0.05, largest=10**7)  # type: ignore[arg-type]
    assert size is not None
    assert size.outcome is outcome
    assert compare_limits(*clopper_pearson(rate * size.size, size.size), 0.05) is outcome
    before = size.size - 1
    assert compare_limits(*clopper_pearson(rate * before, before), 0.05) is Outcome.INCONCLUSIVE


def test_a_linear_search_finds_the_same_sample_size() -> None:
    slow = next(
        n
        for n in range(100, 5000)
        if compare_limits(*clopper_pearson(0.02 * n, n), 0.05) is Outcome.PASS
    )
    size = smallest_deciding_size(share_of(0.02), 100, 0.05, largest=10**7)  # type: ignore[arg-type]
    assert size is not None
    assert size.size == slow


def test_no_sample_size_decides_a_figure_at_its_ceiling() -> None:
    required = required_sample_size(share_of(0.05), 100, 0.05, what="members")  # type: ignore[arg-type]
    assert (required.count, required.then) == (0, None)
    assert "even 100 times as many members would not decide it" in required.text


@pytest.mark.parametrize("start", [1, 30, 1000, 10**6])
def test_no_more_than_a_hundred_times_the_audit_is_suggested(start: int) -> None:
    """A figure just below its ceiling once asked for 5,491,144 more samples."""
    near = required_sample_size(share_of(0.0499), start, 0.05, what="members")  # type: ignore[arg-type]
    assert near.count <= 99 * start
    assert near.count or "times as many" in near.text


def test_required_seeds_are_limited() -> None:
    required = required_sample_size(share_of(0.05), 5, 0.05, what="seeds", largest=1000)  # type: ignore[arg-type]
    assert "even 1,000 seeds would not decide it" in required.text


def test_missing_requirements_are_reported_as_unknown() -> None:
    required = required_sample_size(lambda size: None, 100, 0.05, what="members")
    assert required.count == 0
    assert "cannot be computed from the result file" in required.text


def test_figures_that_the_audit_does_not_compute_need_another_audit_and_not_more_samples() -> None:
    missing = [
        FigureCheck(
            what=f"seed {seed}", value=None, outcome=Outcome.INCONCLUSIVE, reason=MISSING_FIGURE
        )
        for seed in (1, 2)
    ]
    check = ceiling_check("membership", "TPR at 5% FPR", "tpr@0.05", 0.3, missing)
    assert check.needs == "run the audit again with this figure in its settings ([figures])"
