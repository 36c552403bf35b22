"""Membership inference followed by source inference, on signals with known answers."""

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks import resolve_attack
from fedaudit.core.values import NO_CLIENT
from fedaudit.evaluation.source import SourceQueries, source_queries, sources_of_inferred_members
from fedaudit.observe.measurements import Measurements
from fedaudit.plan.parts import Setup
from fedaudit.results.runs import ChainedInference
from fedaudit.study.build import build_setup
from tests.study.studies import small_study

CLIENTS, EACH, STRANGERS = 4, 5, 100


@cache
def run() -> tuple[Setup, SourceQueries]:
    """Five samples of each of four clients, and a hundred held-out samples."""
    resolved = build_setup(
        small_study(
            audit={"draw": "sia", "fair": 1, "options": {"per_client": EACH, "n_unseen": STRANGERS}}
        ),
        1,
        None,
    )
    samples = source_queries(resolved)
    assert samples is not None
    return resolved, samples


def strangers() -> Int[ndarray, " _"]:
    return np.flatnonzero(run()[0].assignment.audit.owner == NO_CLIENT)


def members_of(client: int) -> Int[ndarray, " _"]:
    return np.flatnonzero(run()[0].assignment.audit.owner == client)


def chained_inference(
    values: Float[Tensor, "rounds clients samples"], right: Mapping[int, bool]
) -> tuple[ChainedInference, ChainedInference]:
    """What is found where the owner of a client's samples is named, or is not."""
    resolved, samples = run()
    rounds = tuple(range(1, len(values) + 1))
    bases = torch.zeros(values.shape[:2], dtype=torch.int64)
    m = Measurements(values, rounds, tuple(range(CLIENTS)), bases)
    source_correct = np.array([right[int(owner)] for owner in samples.owner])
    strict, loose = sources_of_inferred_members(
        resolved, resolve_attack("sia"), {"loss": m}, source_correct, samples
    )
    return strict, loose


def low() -> Float[Tensor, "rounds clients samples"]:
    """Two rounds with losses of 10, except for held-out samples with losses from 1 to 100."""
    values = torch.full((2, CLIENTS, len(run()[0].assignment.audit)), -10.0)
    values[:, :, strangers()] = -torch.arange(1.0, STRANGERS + 1)
    return values


def test_a_sample_that_one_client_fits_well_is_called_a_member() -> None:
    values = low()
    # The second stranger has a loss of 2, the eleventh one of 11; clients 0 and 1 beat the one,
    # and of client 2's samples all but the first of them the other.
    values[:, 0, members_of(0)] = -0.5
    values[:, 3, members_of(1)] = -1.5
    values[:, :, members_of(2)] = -10.5
    values[:, :, members_of(2)[:1]] = -11.0
    values[:, :, members_of(3)] = -50.0
    strict, loose = chained_inference(values, right={0: True, 1: False, 2: True, 3: True})
    assert (strict.realised_fpr, loose.realised_fpr) == (0.01, 0.1)
    # As bad as the first stranger that may not be called is not called.
    assert (strict.called, strict.right) == (EACH * 2, EACH)
    assert (loose.called, loose.right) == (EACH * 3 - 1, EACH * 2 - 1)


def test_without_confident_samples_no_sample_is_called_a_member() -> None:
    values = torch.full((2, CLIENTS, len(run()[0].assignment.audit)), -10.0)
    for inference in chained_inference(values, right=dict.fromkeys(range(CLIENTS), True)):
        assert (inference.called, inference.right, inference.realised_fpr) == (0, 0, 0.0)


def test_rounds_in_which_a_client_was_not_measured_are_left_out() -> None:
    values = low()
    values[0, 1], values[:, 2] = torch.nan, torch.nan
    values[1, 1, members_of(1)] = -0.5
    strict, _ = chained_inference(values, right=dict.fromkeys(range(CLIENTS), True))
    assert strict.called == EACH


def test_without_held_out_samples_the_audit_is_skipped() -> None:
    resolved = build_setup(small_study(audit={"draw": "sia", "fair": 1}), 1, None)
    samples = source_queries(resolved)
    assert samples is not None
    right = np.ones(len(samples.positions), dtype=np.bool_)
    assert sources_of_inferred_members(resolved, resolve_attack("sia"), {}, right, samples) == []


@pytest.mark.parametrize("wrong", [{"called": 1, "right": 2}])
def test_more_correct_sources_than_predicted_members_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="right is 2, but called is only 1"):
        ChainedInference.model_validate({"fpr": 0.1, "realised_fpr": 0.1, **wrong})
