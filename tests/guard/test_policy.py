"""Policies of a guard: limits, confidence, attacks and sizes of audits."""

import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedaudit.attacks import ATTACKS as CATALOGUE
from fedaudit.core.errors import BadInput
from fedaudit.guard.policy import ATTACKS, GuardPolicy
from fedaudit.metrics import auc_interval
from fedaudit.plan.values import settings_from
from fedaudit.report.evidence import size_reached
from fedaudit.results.guessing import STRONG_LEAK


def policy(**settings: Any) -> GuardPolicy:
    return settings_from({"limit": 0.6, **settings}, GuardPolicy, source="guard.toml")


@pytest.mark.parametrize(
    ("decide_by", "high", "value", "low", "exceeds"),
    [
        ("upper", 0.60, 0.55, 0.5, False),
        ("upper", 0.61, 0.55, 0.5, True),
        ("estimate", 0.99, 0.60, 0.5, False),
        ("estimate", 0.99, 0.61, 0.5, True),
        ("lower", 0.99, 0.90, 0.6, False),
        ("lower", 0.99, 0.90, 0.61, True),
        ("upper", 0.50, 0.45, 0.41, False),
        ("upper", 0.50, 0.45, 0.39, True),
        ("estimate", 0.99, 0.41, 0.01, False),
        ("estimate", 0.99, 0.39, 0.01, True),
        ("lower", 0.41, 0.2, 0.1, False),
        ("lower", 0.39, 0.2, 0.1, True),
        ("upper", None, 0.5, None, True),
        ("lower", None, 0.5, None, True),
        ("estimate", None, float("nan"), None, True),
    ],
)
def test_the_deciding_value_is_compared_with_the_limit(
    decide_by: str, high: float | None, value: float, low: float | None, exceeds: bool
) -> None:
    assert policy(decide_by=decide_by).exceeds(value, low, high) is exceeds


@given(
    st.sampled_from(["upper", "estimate", "lower"]),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
def test_reversed_scores_lead_to_the_same_decision(decide_by: str, figures: list[float]) -> None:
    low, value, high = sorted(figures)
    strict = policy(decide_by=decide_by)
    reversed_low, reversed_value, reversed_high = 1 - high, 1 - value, 1 - low
    nearest = min(abs(abs(figure - 0.5) - 0.1) for figure in figures)
    if nearest > 1e-9:  # rounding of 1 - x decides nothing
        assert strict.exceeds(value, low, high) is strict.exceeds(
            reversed_value, reversed_low, reversed_high
        )


def test_the_error_probability_is_divided_by_the_attacks_only_for_a_lower_limit() -> None:
    assert policy(attacks=["loss-series", "avg-cosine"]).level == 0.95
    shared = policy(attacks=["loss-series", "avg-cosine"], decide_by="lower").level
    assert shared == pytest.approx(0.975)


def test_the_error_is_shared_between_the_uploads_of_a_run() -> None:
    assert policy(most_uploads=10).level == pytest.approx(0.995)
    both = policy(most_uploads=10, attacks=["loss-series", "avg-cosine"], decide_by="lower")
    assert both.level == pytest.approx(0.9975)
    assert policy(most_uploads=1).level == 0.95


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"limit": 0.5}, "limit in .*: it should be greater than 0.5"),
        ({"limit": 1.0}, "limit in .*: it should be less than 1"),
        ({"limit": True}, "limit"),
        ({"decide_by": "mean"}, "decide_by"),
        ({"attacks": []}, "attacks"),
        ({"attacks": ["loss-series", "loss-series"]}, "named twice"),
        ({"smallest_audit": 9}, "smallest_audit in .*: it should be greater than or equal to 10"),
        ({"most_uploads": 0}, "most_uploads in .*: it should be greater than or equal to 1"),
        ({"most_uploads": 5, "decide_by": "estimate"}, 'set decide_by to "upper" or "lower"'),
        ({"limits": 0.6}, "did you mean 'limit'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        policy(**settings)


def test_attacks_that_need_more_than_the_clients_uploads_are_refused() -> None:
    possible = set[str]()
    for name in {*CATALOGUE} - {"blackbox-loss"}:
        with suppress(BadInput):
            possible |= policy(attacks=["blackbox-loss", name]).catalogue().keys()
    assert {*ATTACKS} < possible
    assert not {"fedmia-1", "fedmia-2", "fedmia-projres", "rmia", "lira", "seqmia"} & possible
    assert not {"fta-l-global", "sia", "stacked", "loss-series-aware"} & possible
    with pytest.raises(BadInput, match="there is no attack named"):
        policy(attacks=["loss-serie"]).catalogue()
    with pytest.raises(BadInput, match="fta-c, fta-l compare uploads of several rounds"):
        policy(attacks=["fta-c", "fta-l"]).catalogue()


def test_too_few_members_or_held_out_samples_are_refused() -> None:
    policy(smallest_audit=60, decide_by="estimate").raise_if_audit_too_small(60, 60)
    with pytest.raises(BadInput, match="60 members and 59 held-out samples"):
        policy(smallest_audit=60, decide_by="estimate").raise_if_audit_too_small(60, 59)


def test_an_audit_that_would_withhold_every_upload_is_refused_and_a_size_is_advised() -> None:
    with pytest.raises(BadInput, match="audit about 256 samples"):
        policy().raise_if_audit_too_small(60, 60)
    policy().raise_if_audit_too_small(64, 64)
    with pytest.raises(BadInput, match="every upload would be withheld"):
        policy().raise_if_audit_too_small(63, 63)


@pytest.mark.parametrize("limit", [0.52, 0.57, 0.65])
@pytest.mark.parametrize("most_uploads", [None, 50])
def test_a_quarter_of_the_advised_audit_is_the_smallest_that_can_pass(
    limit: float, most_uploads: int | None
) -> None:
    strict = policy(limit=limit, most_uploads=most_uploads, smallest_audit=10)
    with pytest.raises(BadInput) as refusal:
        strict.raise_if_audit_too_small(10, 10)
    advised = re.search(r"audit about (\d+) samples", str(refusal.value))
    assert advised is not None
    smallest = int(advised[1]) // 4
    strict.raise_if_audit_too_small(smallest, smallest)
    with pytest.raises(BadInput):
        strict.raise_if_audit_too_small(smallest - 1, smallest - 1)


def test_no_size_is_advised_if_no_audit_can_pass() -> None:
    with pytest.raises(BadInput, match="every upload would be withheld; raise the limit"):
        policy(limit=0.5001).raise_if_audit_too_small(100, 100)


def test_an_audit_that_would_withhold_no_upload_is_refused() -> None:
    strict = policy(limit=0.95, decide_by="lower", smallest_audit=10)
    with pytest.raises(BadInput, match="nothing would be withheld"):
        strict.raise_if_audit_too_small(20, 20)
    strict.raise_if_audit_too_small(200, 200)


@given(st.integers(10, 300), st.integers(10, 300), st.floats(0.51, 0.99))
def test_a_policy_refuses_exactly_the_audits_whose_ideal_scores_it_would_withhold(
    members: int, held_out: int, limit: float
) -> None:
    strict = policy(limit=limit, smallest_audit=10)
    # Members and held-out samples of one shared distribution, by an independent formula.
    places = [(n + 0.5) / size for size in (members, held_out) for n in range(size)]
    interval = auc_interval(places, np.arange(members + held_out) < members)
    if interval.high <= limit:
        strict.raise_if_audit_too_small(members, held_out)
    else:
        with pytest.raises(BadInput):
            strict.raise_if_audit_too_small(members, held_out)


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({"limit": 0.7}, ""),
        ({"limit": 0.71}, "0.71"),
        ({"limit": 0.99}, "0.99"),
        ({"limit": 0.7, "decide_by": "estimate"}, ""),
        ({"limit": 0.75, "decide_by": "estimate"}, "0.75"),
        ({"limit": 0.6, "decide_by": "lower"}, "0.745"),
        ({"limit": 0.55, "decide_by": "lower", "attacks": ["loss-series"]}, ""),
    ],
)
def test_a_policy_warns_if_it_may_send_a_strong_leak(
    settings: dict[str, Any], largest: str
) -> None:
    warning = policy(**settings).warning(50, 50)
    assert warning.startswith(
        f"the policy may send uploads with an AUC of up to {largest}" * bool(largest)
    )
    assert bool(warning) is bool(largest)
    assert size_reached(STRONG_LEAK, "auc") == "strong"


@pytest.mark.parametrize("decide_by", ["upper", "estimate", "lower"])
def test_the_smallest_withheld_auc_separates_sent_from_withheld(decide_by: str) -> None:
    tested, n = policy(decide_by=decide_by), 200
    smallest = tested.smallest_withheld_auc(n, n)
    quantiles = norm.ppf((np.arange(n) + 0.5) / n)
    for auc, exceeds in ((smallest - 0.01, False), (smallest + 0.01, True)):
        scores = np.concatenate([quantiles + 2**0.5 * norm.ppf(auc), quantiles])
        interval = auc_interval(scores, np.arange(2 * n) < n, confidence=tested.level)
        assert tested.exceeds(interval.value, interval.low, interval.high) is exceeds


def test_an_upper_limit_rarely_sends_a_leak_at_the_limit() -> None:
    rng, n, sent = np.random.default_rng(0), 150, 0
    shift = 0.36  # of two normal distributions with an AUC of 0.6
    for _ in range(400):
        scores = np.concatenate([rng.normal(shift, 1, n), rng.normal(0, 1, n)])
        interval = auc_interval(scores, np.arange(2 * n) < n, confidence=policy().level)
        sent += not policy().exceeds(interval.value, interval.low, interval.high)
    # A nominal 2.5 %, with a binomial error of 0.8 points.
    assert sent / 400 < 0.05
