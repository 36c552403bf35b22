"""Exact copies of training samples among the non-members of a study."""

import pytest
import torch

import fedaudit as fa
from fedaudit.results.record import ControlResult


def copies_of(samples: fa.Samples) -> list[ControlResult]:
    run = fa.audit(
        fa.Federation(
            data=samples,
            clients=2,
            model=fa.models.MLP(hidden="4"),
            algorithm=fa.algorithms.FedAvg(rounds=1, epochs=1, lr=0.1, batch_size=32),
        ),
        attacks=["blackbox-loss"],
        audit=fa.Audit(samples=60, background=100),
    )
    return [control for control in run.record.controls if control.control == "exact copies"]


@pytest.fixture(scope="module")
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(300, 4, generator=generator), torch.arange(300) % 2


def test_studies_with_duplicate_samples_warn(
    rows: tuple[torch.Tensor, torch.Tensor],
) -> None:
    x, y = rows
    warnings = copies_of(fa.Samples(torch.cat([x, x]), torch.cat([y, y])))
    assert warnings
    assert all(
        warning.passed is False and "are exact copies" in warning.note for warning in warnings
    )


def test_a_study_without_copies_has_no_such_control(
    rows: tuple[torch.Tensor, torch.Tensor],
) -> None:
    assert copies_of(fa.Samples(*rows)) == []
