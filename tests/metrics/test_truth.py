"""Accepted formats of membership."""

import doctest
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import Origin
from fedaudit.metrics import (
    auc,
    auc_interval,
    balanced_accuracy,
    evaluate,
    evaluate_unlearning,
    fraction_of_nonmembers_below,
    most_exposed,
    permuted_membership,
    roc_curve,
    tpr_at_fpr,
)
from fedaudit.metrics.canaries import canary_bounds

pd = pytest.importorskip("pandas")

SCORES = [0.9, 0.8, 0.7, 0.3, 0.2, 0.1]
MEMBERS = [True, True, False, True, False, False]
AREA = 8 / 9
ORIGINS = [Origin.MEMBER if member else Origin.UNSEEN for member in MEMBERS]

SAME_TRUTH = {
    "booleans": MEMBERS,
    "numpy booleans": np.array(MEMBERS),
    "a list of numpy booleans": list(np.array(MEMBERS)),
    "torch booleans": torch.tensor(MEMBERS),
    "a pandas column": pd.Series(MEMBERS),
    "a nullable pandas column": pd.Series(MEMBERS, dtype="boolean"),
    "origins": ORIGINS,
    "objects": np.array(ORIGINS, dtype=object),
    "numbers with a 2": np.array(ORIGINS),
    "bytes with a 2": torch.tensor(ORIGINS, dtype=torch.uint8),
    "other clients": [Origin.MEMBER if member else Origin.OTHER_CLIENT for member in MEMBERS],
    "names": [origin.name.lower() for origin in ORIGINS],
    "a categorical column": pd.Series([origin.name for origin in ORIGINS], dtype="category"),
}

AMBIGUOUS = {
    "integers": [1, 1, 0, 1, 0, 0],
    "numpy integers": np.array([1, 1, 0, 1, 0, 0]),
    "torch bytes": torch.tensor([1, 1, 0, 1, 0, 0], dtype=torch.uint8),
    "a pandas column of integers": pd.Series([1, 1, 0, 1, 0, 0]),
    "floats": [1.0, 1.0, 0.0, 1.0, 0.0, 0.0],
    "torch floats": torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0]),
    "booleans with a number": [True, 1, 0, 1, 0, 2],
    "a missing value": pd.Series([True, True, None, True, False, False], dtype="boolean"),
}

ENTRIES: dict[str, Callable[[Any], object]] = {
    "evaluate": lambda truth: evaluate(SCORES, truth),
    "roc_curve": lambda truth: roc_curve(SCORES, truth),
    "auc": lambda truth: auc(SCORES, truth),
    "auc_interval": lambda truth: auc_interval(SCORES, truth),
    "tpr_at_fpr": lambda truth: tpr_at_fpr(SCORES, truth, 0.5),
    "balanced_accuracy": lambda truth: balanced_accuracy(SCORES, truth, threshold=0.5),
    "most_exposed": lambda truth: most_exposed(SCORES, truth),
    "above_nonmembers": lambda truth: fraction_of_nonmembers_below(SCORES, truth),
    "unlearned": lambda truth: evaluate_unlearning(SCORES, SCORES, is_deleted=truth),
    "permuted_membership": lambda truth: permuted_membership(
        SCORES, truth, permutations=20, rng=np.random.default_rng(0)
    ),
    "canary_bounds": lambda truth: canary_bounds(SCORES * 4, [*truth] * 4, delta=1e-5),
}


def area_against_nonmembers(truth: Any) -> float | None:
    figures = {
        (estimate.contrast, estimate.metric): estimate.value for estimate in evaluate(SCORES, truth)
    }
    return figures["mixed", "auc"]


@pytest.mark.parametrize("form", SAME_TRUTH)
def test_every_form_of_the_truth_gives_the_same_auc(form: str) -> None:
    assert auc(SCORES, SAME_TRUTH[form]) == pytest.approx(AREA)
    assert area_against_nonmembers(SAME_TRUTH[form]) == pytest.approx(AREA)


def test_booleans_are_membership_and_false_is_unseen() -> None:
    estimates = {
        (estimate.contrast, estimate.metric): estimate for estimate in evaluate(SCORES, MEMBERS)
    }
    assert estimates["unseen", "auc"].value == pytest.approx(AREA)
    assert estimates["other_client", "auc"].value is None


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("form", AMBIGUOUS)
def test_ambiguous_labels_of_membership_are_refused(entry: str, form: str) -> None:
    with pytest.raises(BadInput, match=r"0 is Origin.MEMBER .* pass booleans|mixes|2 can be read"):
        ENTRIES[entry](AMBIGUOUS[form])


def test_numbers_that_are_origins_can_be_declared() -> None:
    estimates = evaluate(SCORES, np.array([0, 0, 1, 0, 1, 1]), origin_codes=True)
    assert estimates[0].contrast == "other_client"
    assert estimates[0].value == pytest.approx(AREA)


def test_the_most_exposed_of_a_list_of_origins_are_members() -> None:
    assert {sample.position for sample in most_exposed(SCORES, ORIGINS)} == {0, 1, 3}


@pytest.mark.parametrize(
    "scores",
    [
        torch.tensor(SCORES, requires_grad=True),
        torch.tensor(SCORES, dtype=torch.bfloat16),
        torch.tensor(SCORES, dtype=torch.float16, requires_grad=True),
        [torch.tensor(score, requires_grad=True) for score in SCORES],
        pd.Series(SCORES, dtype="Float64"),
    ],
)
def test_scores_are_read_from_tensors_with_gradients_and_table_columns(scores: Any) -> None:
    assert auc(scores, MEMBERS) == pytest.approx(AREA)
    assert area_against_nonmembers(MEMBERS) == pytest.approx(AREA)
    assert evaluate(scores, MEMBERS)


def test_scores_without_values_are_refused() -> None:
    with pytest.raises(BadInput, match="must be numbers"):
        auc(torch.empty(6, device="meta"), MEMBERS)


@pytest.mark.parametrize("entry", [auc, evaluate])
def test_table_columns_in_different_orders_are_refused(entry: Callable[..., object]) -> None:
    table = pd.DataFrame({"score": SCORES, "member": MEMBERS})
    with pytest.raises(BadInput, match="different indices"):
        entry(table["score"].sort_values(), table["member"])


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="unknown origins in, out; allowed: member, other_client"):
        evaluate(SCORES, ["in", "in", "out", "in", "out", "out"])


def test_an_unknown_contrast_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="'bogus'"):
        evaluate(SCORES, [True, True, False, True, False, False], contrasts=["bogus"])


def test_the_example_in_the_documentation_runs() -> None:
    failed, tried = doctest.testmod(sys.modules[evaluate.__module__])
    assert failed == 0
    assert tried > 2
