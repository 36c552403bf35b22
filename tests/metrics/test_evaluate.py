import subprocess
import sys
from dataclasses import astuple, fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit import metrics
from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import Origin
from fedaudit.metrics import (
    MetricValue,
    auc_interval,
    auc_p_value,
    clopper_pearson,
    evaluate,
    tpr_at_fpr,
    tpr_limits,
)
from fedaudit.results.estimate import Estimate


def audit(
    members: int = 200, others: int = 1500, unseen: int = 150, leak: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    origin = np.repeat(list(Origin), [members, others, unseen])
    scores = np.random.default_rng(0).normal(size=len(origin))
    return scores + leak * (origin == Origin.MEMBER), origin


def by_name(estimates: list[MetricValue]) -> dict[tuple[str, str], MetricValue]:
    return {(estimate.contrast, estimate.metric): estimate for estimate in estimates}


def test_evaluate_returns_estimates_per_contrast_in_fixed_order() -> None:
    estimates = evaluate(*audit())
    metrics = ["auc", "tpr@0.01", "tpr@0.001", "balanced_accuracy"]
    assert [(estimate.contrast, estimate.metric) for estimate in estimates] == [
        (contrast, metric) for contrast in ("other_client", "unseen", "mixed") for metric in metrics
    ]
    assert [estimate.n_nonmembers for estimate in estimates[::4]] == [1500, 150, 1650]


def test_evaluate_matches_the_single_metrics() -> None:
    scores, origin = audit()
    estimates = by_name(evaluate(scores, origin))
    chosen = origin != Origin.UNSEEN
    truth = origin[chosen] == Origin.MEMBER
    area = estimates["other_client", "auc"]
    interval = auc_interval(scores[chosen], truth)
    assert (area.value, area.low, area.high, area.method) == astuple(interval)
    assert area.p_value == auc_p_value(scores[chosen], truth) < 1e-6
    rate = estimates["other_client", "tpr@0.001"]
    point = tpr_at_fpr(scores[chosen], truth, 0.001)
    assert (rate.value, rate.realised_fpr) == (point.tpr, point.realised_fpr)
    used = (rate.low_at_threshold, rate.high_at_threshold)
    assert used == clopper_pearson(point.true_positives, 200)
    limits = tpr_limits(scores[chosen], truth, 0.001)
    assert (rate.low, rate.high, rate.method) == (None, limits.high, limits.method)
    assert rate.note.endswith("; a lower limit needs 2248 more non-members")
    percent = estimates["other_client", "tpr@0.01"]
    limits = tpr_limits(scores[chosen], truth, 0.01)
    assert (percent.low, percent.high) == (limits.low, limits.high)
    assert f"{point.false_positives} false positives" in rate.note


def test_a_tpr_on_too_few_samples_is_refused() -> None:
    rate = by_name(evaluate(*audit()))["unseen", "tpr@0.001"]
    assert (rate.value, rate.low, rate.high) == (None, None, None)
    assert rate.note == "inconclusive: needs 850 more non-members"
    assert rate.n_nonmembers == 150


def test_an_empty_contrast_does_not_affect_others() -> None:
    estimates = by_name(evaluate(*audit(unseen=0), origin_codes=True))
    empty = estimates["unseen", "auc"]
    assert (empty.value, empty.note) == (None, "no unseen samples to compare members with")
    assert [metric for contrast, metric in estimates if contrast == "unseen"] == ["auc"]
    assert estimates["mixed", "auc"].value == estimates["other_client", "auc"].value
    assert estimates["mixed", "auc"].note == "the same as other_client: no unseen samples"


def test_a_single_nonmember_gives_an_auc_but_no_accuracy() -> None:
    estimates = by_name(evaluate(*audit(unseen=1)))
    assert estimates["unseen", "auc"].value is not None
    accuracy = estimates["unseen", "balanced_accuracy"]
    assert accuracy.value is None
    assert accuracy.note.startswith("inconclusive")


def test_evaluated_fields_match_estimate_fields() -> None:
    not_reported = {"p_value", "low_at_threshold", "high_at_threshold"}
    numeric = {field.name for field in fields(MetricValue)} - not_reported
    assert numeric <= set(Estimate.model_fields)
    for figure in evaluate(*audit(unseen=0), origin_codes=True):
        Estimate(**{name: getattr(figure, name) for name in numeric})


def test_the_seed_changes_only_the_calibration_split() -> None:
    first, repeated, other = (evaluate(*audit(), seed=seed) for seed in (1, 1, 2))
    assert first == repeated
    for value, other_value in zip(first, other, strict=True):
        assert value == other_value or value.metric == "balanced_accuracy"


@given(st.permutations(range(30)))
@settings(deadline=None, max_examples=20)
def test_rank_metrics_do_not_depend_on_sample_order(order: list[int]) -> None:
    scores, origin = audit(10, 12, 8)
    place = np.array(order)
    for estimate, permuted in zip(
        evaluate(scores, origin, fprs=(0.5,)),
        evaluate(scores[place], origin[place], fprs=(0.5,)),
        strict=True,
    ):
        if estimate.metric != "balanced_accuracy":
            assert estimate.value == pytest.approx(permuted.value)
            assert estimate.low == pytest.approx(permuted.low)


def test_evaluate_accepts_lists() -> None:
    estimates = by_name(evaluate([0.9, 0.8, 0.1, 0.2], [0, 0, 2, 2], fprs=(0.5,)))
    assert estimates["unseen", "auc"].value == 1
    assert (
        estimates["unseen", "auc"].low
        == auc_interval([0.9, 0.8, 0.1, 0.2], [True, True, False, False]).low
    )


def test_without_leak_intervals_contain_chance() -> None:
    area = by_name(evaluate(*audit(leak=0.0)))["mixed", "auc"]
    limits = np.array([area.low, area.high], dtype=float)
    assert limits[0] < 0.5 < limits[1]
    assert area.p_value is not None
    assert area.p_value > 0.01


@pytest.mark.parametrize(
    ("scores", "origin", "message"),
    [
        ([1.0, 2.0], [0, 1, 2], "got 2 scores and membership of shape"),
        ([1.0, np.nan], [False, True], "1 of 2 scores are NaN"),
        ([1.0, 2.0], [0, 7], "unknown origins 7; allowed: 0 .MEMBER."),
        ([1.0, 2.0], [1, 2], "got 0 members among 2"),
        ([1.0, 2.0], [True, True], "got 2 members among 2"),
        ([], [], "got 0 members among 0"),
    ],
)
def test_unusable_input_is_refused_with_the_reason(
    scores: list[float], origin: list[int], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        evaluate(scores, origin)


FIVE = [0.9, 0.8, 0.1, 0.2, 0.4]
TRUE = [True, True, False, False, True]
LAST = [False] * 4 + [True]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.ma.array(FIVE, mask=LAST), "some entries are masked"),
        (np.array(FIVE) + 1j, "these are complex128"),
        ([*FIVE[:4], 1j], "these are complex128"),
        (torch.tensor(FIVE) + 1j, "these are complex64"),
        ([torch.tensor(value + 1j) for value in FIVE], "these are complex64"),
        (np.arange(5).astype("M8[D]"), "these are datetime64"),
        (np.arange(5).astype("m8[s]"), "these are timedelta64"),
        (np.array([(1.0,)] * 5, dtype=[("a", float)]), "these are .*'a'"),
    ],
    ids=str,
)
def test_scores_that_are_not_real_numbers_raise(scores: Any, message: str) -> None:
    with pytest.raises(BadInput, match=f"scores must be numbers.*{message}"):
        evaluate(scores, TRUE)


def test_masked_membership_raises_unless_nothing_is_masked() -> None:
    with pytest.raises(BadInput, match="some entries are masked"):
        evaluate(FIVE, np.ma.array(TRUE, mask=LAST))
    plain = evaluate(FIVE, TRUE, fprs=(0.5,))
    assert evaluate(np.ma.array(FIVE), np.ma.array(TRUE), fprs=(0.5,)) == plain


@pytest.mark.parametrize(
    ("strata", "message"),
    [
        (np.ma.array([0] * 5, mask=LAST), "some entries are masked"),
        ([0.0] * 4 + [np.nan], "some samples have no stratum"),
        (np.array(["a"] * 4 + [None], dtype=object), "some samples have no stratum"),
        ([0, 0, 0], r"strata of shape \(3,\) for 5 scores"),
    ],
    ids=["masked", "NaN", "None", "short"],
)
def test_incomplete_strata_raise(strata: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        evaluate(FIVE, TRUE, strata=strata)


def test_strata_may_be_tensors() -> None:
    strata = torch.zeros(5, requires_grad=True)
    assert evaluate(FIVE, TRUE, strata=strata) == evaluate(FIVE, TRUE, strata=[0] * 5)


def test_a_negative_seed_or_an_impossible_rate_is_refused() -> None:
    with pytest.raises(BadInput, match="seed is 0 or larger"):
        evaluate([1.0, 0.0], [False, True], seed=-1)
    with pytest.raises(BadInput, match=r"must be in \(0, 1\]"):
        evaluate([1.0, 0.0], [False, True], fprs=(0.0,))


def test_metrics_import_no_torch_pydantic_or_scikit_learn() -> None:
    code = (
        "import sys, fedaudit.metrics;"
        "print(sorted({'torch', 'pydantic', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_metric_exists() -> None:
    assert all(hasattr(metrics, name) for name in dir(metrics))
    assert {"Metric", "auc", "evaluate", "tpr_limits"} <= set(dir(metrics))
