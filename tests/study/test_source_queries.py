"""Samples and clients of source inference."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedaudit.attacks import resolve_attack
from fedaudit.core.seeds import seeded
from fedaudit.core.values import ClientId
from fedaudit.evaluation.source import (
    measurements_of_queries,
    posteriors,
    source_queries,
    split_by_round,
)
from fedaudit.metrics.source import infer_source, source_success
from fedaudit.observe.measurements import Measurements
from fedaudit.study.build import build_setup
from tests.study.studies import small_study

RUN = build_setup(
    small_study(audit={"draw": "sia", "fair": 1, "options": {"per_client": 6}}), 1, None
)
SIA = resolve_attack("sia")


def losses(clients: tuple[ClientId, ...], rounds: int = 1) -> Measurements:
    """Client k has a loss of 10 on every audited sample but its own, where it has 0.1."""
    owner = RUN.assignment.audit.owner
    values = torch.full((rounds, len(clients), len(owner)), -10.0)
    for row, client in enumerate(clients):
        values[:, row, np.flatnonzero(owner == client)] = -0.1
    return Measurements(
        values,
        tuple(range(1, rounds + 1)),
        clients,
        torch.zeros((rounds, len(clients)), dtype=torch.int64),
    )


def test_source_inference_uses_equally_many_samples_of_each_client() -> None:
    samples = source_queries(RUN)
    assert samples is not None
    assert np.bincount(samples.owner).tolist() == [6] * 4
    owner = np.array(samples.clients)[samples.owner]
    assert owner.tolist() == RUN.assignment.audit.owner[samples.positions].tolist()


@pytest.mark.parametrize("name", ["sia", "sia-mean", "sia-product", "sia-likelihood"])
def test_identical_clients_give_chance_level_source_accuracy(name: str) -> None:
    samples = source_queries(RUN)
    assert samples is not None
    values = torch.rand((2, 1, len(RUN.assignment.audit)), generator=seeded(1, "alike"))
    identical = replace(losses((0, 1, 2, 3), rounds=2), values=-values.expand(-1, 4, -1).clone())
    attack = resolve_attack(name)
    probabilities = posteriors(
        RUN, attack, measurements_of_queries(attack, {"loss": identical}, samples), samples
    )
    success = source_success(infer_source(probabilities), samples.owner)
    assert success.value == 1 / 4
    assert success.low < 1 / 4 < success.high


def test_probabilities_are_of_the_measured_clients() -> None:
    samples = source_queries(RUN)
    assert samples is not None
    cubes = measurements_of_queries(SIA, {"loss": losses((0, 2, 3))}, samples)
    probabilities = posteriors(RUN, SIA, cubes, samples)
    assert probabilities.shape == (4, 24)
    assert (probabilities[1] == 0).all()
    np.testing.assert_allclose(probabilities.sum(0), 1)
    measured = samples.owner != 1
    assert probabilities.argmax(0)[measured].tolist() == samples.owner[measured].tolist()


def test_the_success_rate_of_a_round_uses_only_that_round() -> None:
    samples = source_queries(RUN)
    assert samples is not None
    two_rounds = losses((0, 1, 2, 3), rounds=2)
    two_rounds = replace(
        two_rounds, values=torch.stack([two_rounds.values[0], two_rounds.values[0].roll(1, 0)])
    )
    first, second = split_by_round(SIA, measurements_of_queries(SIA, {"loss": two_rounds}, samples))
    assert (first["loss"].rounds, second["loss"].rounds) == ((1,), (2,))
    answers = [
        posteriors(RUN, SIA, measurements, samples).argmax(0) for measurements in (first, second)
    ]
    assert answers[0].tolist() == samples.owner.tolist()
    assert answers[1].tolist() == ((samples.owner + 1) % 4).tolist()


def test_an_attack_that_needs_several_rounds_has_no_rate_by_round() -> None:
    assert split_by_round(resolve_attack("sia-mean"), {"loss": losses((0, 1, 2, 3))}) == []
