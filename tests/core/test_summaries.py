"""Representations of values that hold samples print sizes, never samples."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

import fedaudit as fa
from fedaudit.core.objects import canonical_repr
from fedaudit.core.values import Samples
from fedaudit.datasets.draws.audit_set import Assignment, AuditSet
from fedaudit.fl.hooks import Defense
from fedaudit.live.audited import Split
from fedaudit.observe.round import Upload

SECRET = 0.123456


def samples(value: float = SECRET) -> Samples:
    return Samples(
        torch.full((3, 2), value), torch.tensor([0, 1, 7777]), torch.tensor([91827, 1, 2])
    )


def test_no_representation_prints_samples_targets_or_ids() -> None:
    audited = samples()
    audit = AuditSet(audited, np.array([41414, 0, 1]), np.array([0, 0, 0]))
    values = [
        audited,
        audit,
        Assignment({0: audited}, audit),
        Split({0: np.array([91827])}, audit),
        fa.Federation((audited.features, audited.targets), clients=2),
        fa.Federation(audited, clients=2),
    ]
    for value in values:
        for text in (repr(value), str(value), f"{value!r}"):
            assert len(text) < 1000
            for secret in ("0.1235", "0.123456", "7777", "91827", "41414"):
                assert secret not in text


def test_identities_of_samples_depend_on_every_value() -> None:
    assert canonical_repr(samples()) != canonical_repr(samples(0.5))
    assert canonical_repr(samples()) == canonical_repr(samples())


def test_print_options_of_a_notebook_do_not_change_canonical_representations() -> None:
    values = [torch.rand(4, dtype=torch.float64), np.array([1 / 3, -1e-9, np.nan]), np.arange(9)]
    usual = [canonical_repr(value) for value in values]
    try:
        torch.set_printoptions(precision=2, threshold=2, linewidth=20, sci_mode=True)  # type: ignore[no-untyped-call]
        with np.printoptions(precision=2, threshold=2, sign="+", nanstr="-", suppress=True):
            assert [canonical_repr(value) for value in values] == usual
            assert repr(values[0]) != usual[0]
            assert repr(values[1]) != usual[1]
    finally:
        torch.set_printoptions(profile="default")  # type: ignore[no-untyped-call]


class Calling(Defense):
    def __init__(self, change: Callable[[Upload], Upload] | Tensor) -> None:
        self.change = change


def test_defenses_with_other_functions_or_tensors_have_other_identities() -> None:
    first, second = (Calling(change) for change in (lambda up: up, lambda up: replace(up)))
    assert canonical_repr(first) != canonical_repr(second)
    assert canonical_repr(first) == canonical_repr(deepcopy(first))
    zeros = torch.zeros(5000)
    changed = zeros.clone()
    changed[2500] = 1
    assert repr(Calling(zeros)) != repr(Calling(changed))
