"""Decrease of the loss after poisoned rounds."""

import math

import pytest
import torch

import fedaudit as fa
from fedaudit.attacks import resolve_attack
from fedaudit.attacks.rules import Recovery
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Capability
from tests.attacks.test_slope import over_rounds

PLAIN = Recovery(first=3, every=2, floor=1e-12)


def test_a_loss_halved_after_every_poison_scores_log_two() -> None:
    # Rounds 2 to 6 are measured, and rounds 3 and 5 are poisoned.
    m = over_rounds(-torch.tensor([[9.0], [4.0], [2.0], [6.0], [3.0]]), (2, 3, 4, 5, 6))
    assert PLAIN(m, target=0).item() == pytest.approx(math.log(2))


def test_drops_after_several_poisons_are_averaged_on_a_log_scale() -> None:
    m = over_rounds(-torch.tensor([[4.0], [2.0], [8.0], [1.0]]), (3, 4, 5, 6))
    assert PLAIN(m, target=0).item() == pytest.approx((math.log(2) + math.log(8)) / 2)


def test_the_recovery_takes_one_round_less_than_the_interval() -> None:
    m = over_rounds(-torch.tensor([[8.0], [5.0], [2.0], [7.0]]), (3, 4, 5, 6))
    assert Recovery(3, 3, 1e-12)(m, target=0).item() == pytest.approx(math.log(4))


def test_without_a_schedule_every_step_between_measured_rounds_counts() -> None:
    m = over_rounds(-torch.tensor([[8.0], [4.0], [1.0]]), (1, 2, 5))
    assert Recovery(floor=1e-12)(m, target=0).item() == pytest.approx(math.log(8) / 2)


def test_a_loss_of_zero_gives_finite_scores() -> None:
    m = over_rounds(-torch.tensor([[1.0, 0.0], [0.0, 0.0]]), (3, 4))
    scores = Recovery(3, 2, 0.01)(m, target=0)
    assert scores.tolist() == pytest.approx([math.log(1.01 / 0.01), 0.0])


@pytest.mark.parametrize(
    ("rule", "rounds"),
    [
        (Recovery(3, 2), (1, 2)),
        (Recovery(3, 2), (3, 5, 7)),
        (Recovery(), (1,)),
    ],
    ids=["before the first poison", "not after it", "one round"],
)
def test_recovery_without_a_poisoned_round_is_refused(
    rule: Recovery, rounds: tuple[int, ...]
) -> None:
    with pytest.raises(BadInput, match="leave out the attack's settings"):
        rule(over_rounds(-torch.ones(len(rounds), 1), rounds), target=0)


@pytest.mark.parametrize(
    "settings", [{"first": -1}, {"every": 0}, {"every": -2}, {"floor": 0.0}, {"floor": -0.3}]
)
def test_impossible_settings_of_recovery_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(settings))} of LossRecovery takes"):
        fa.attacks.LossRecovery(**settings)  # type: ignore[arg-type]


def test_recovery_needs_an_adversary_that_chooses_uploads() -> None:
    assert Capability.CHOOSES_UPLOAD in resolve_attack("recovery").needs
