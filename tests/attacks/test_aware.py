"""Adaptive attacks that know in which rounds a sample may have been trained on."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fedaudit.attacks import resolve_attack
from fedaudit.attacks.rules import AssignedRoundsOnly, Mean, OneSidedLikelihood
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.observe.measurements import Measurements

ROUNDS = (10, 20, 30)


def example_measurements(samples: int = 6, clients: int = 5) -> Measurements:
    values = torch.randn(3, clients, samples, generator=seeded(0, "values")).double()
    bases = torch.zeros((3, clients), dtype=torch.int64)
    return Measurements(values, ROUNDS, tuple(range(clients)), bases)


def side_information(*rows: list[bool]) -> Mapping[int, Tensor]:
    return {index: torch.tensor(row) for index, row in zip(ROUNDS, rows, strict=True)}


def test_scores_are_means_over_rounds_with_the_sample_assigned() -> None:
    m = example_measurements(samples=4)
    v = m.of(0)
    used = side_information(
        [True, True, False, False], [True, False, True, False], [True, True, False, False]
    )
    scores = AssignedRoundsOnly(Mean()).with_side_information(used)(m, target=0)
    # Sample 3 is assigned in no round; its score is then the mean over all rounds.
    expected = [v[:, 0].mean(), (v[0, 1] + v[2, 1]) / 2, v[1, 2], v[:, 3].mean()]
    assert torch.allclose(scores, torch.stack(expected))


@pytest.mark.parametrize("rule", [Mean(), OneSidedLikelihood()])
def test_scores_with_all_classes_assigned_equal_those_of_the_rule(
    rule: Mean | OneSidedLikelihood,
) -> None:
    everything = dict.fromkeys(ROUNDS, torch.tensor(True))
    m = example_measurements()
    assert torch.equal(
        AssignedRoundsOnly(rule).with_side_information(everything)(m, target=2), rule(m, target=2)
    )


def test_the_likelihood_compares_clients_of_the_same_rounds() -> None:
    m = example_measurements()
    used = side_information([True] * 6, [False] * 6, [True] * 6)
    scores = AssignedRoundsOnly(OneSidedLikelihood()).with_side_information(used)(m, target=1)
    two = Measurements(m.values[[0, 2]], (10, 30), m.clients, m.bases[[0, 2]])
    assert torch.equal(scores, OneSidedLikelihood()(two, target=1))


def test_missing_side_information_for_a_measured_round_is_refused() -> None:
    attack = resolve_attack("loss-series-aware").with_side_information({10: torch.tensor(True)})
    with pytest.raises(BadInput, match=r"side information for the rounds \[20, 30\]"):
        attack.scores({"loss": example_measurements()}, 0)


def test_a_member_is_detected_in_the_rounds_it_is_trained_in() -> None:
    samples = 400
    m = example_measurements(samples)
    member = torch.arange(samples) % 2 == 0
    used = {index: torch.arange(samples) % 3 == row for row, index in enumerate(ROUNDS)}
    for row, index in enumerate(ROUNDS):
        m.values[row, 0, member & used[index]] += 2.0
    aware = AssignedRoundsOnly(Mean()).with_side_information(used)(m, target=0)
    plain = Mean()(m, target=0)

    def gap(scores: Tensor) -> float:
        difference = scores[member].mean() - scores[~member].mean()
        return float(difference / scores[~member].std())

    assert gap(aware) > 1.5 * gap(plain)
