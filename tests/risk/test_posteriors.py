import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Samples
from fedaudit.models import architecture
from fedaudit.risk.catalog import LinearRule, TrainMia

TWO = architecture("mlp", shape=(4,), classes=2, hidden="3").initial(1)


def samples(count: int, scale: float = 1.0) -> Samples:
    rng = seeded(1, "samples")
    features = scale * torch.randn(count, 4, generator=rng)
    return Samples(features, torch.arange(count) % 2, torch.arange(count))


def test_evidence_is_sorted_top_posteriors_and_true_class_loss() -> None:
    data = samples(6)
    evidence = TrainMia(top=1).features(TWO, data, start=TWO)
    with torch.no_grad():
        posteriors = TWO.module()(data.features).double().softmax(1)
    assert evidence.shape == (6, 2)
    torch.testing.assert_close(evidence[:, 0], posteriors.amax(1))
    true = posteriors[torch.arange(6), data.labels]
    torch.testing.assert_close(evidence[:, 1], -true.log(), rtol=1e-5, atol=1e-6)


def test_two_classes_give_two_posteriors() -> None:
    evidence = TrainMia(top=3).features(TWO, samples(6), start=TWO)
    assert evidence.shape == (6, 3)
    torch.testing.assert_close(evidence[:, 0] + evidence[:, 1], torch.ones(6, dtype=torch.float64))


def test_separable_members_are_classified() -> None:
    rng = seeded(1, "features")
    members = torch.randn(200, 4, generator=rng, dtype=torch.float64)
    nonmembers = members + torch.tensor([0.0, 0.0, 0.0, 30.0])
    rule = TrainMia().fit(members, nonmembers)
    assert bool(rule(members).all())
    assert not bool(rule(nonmembers).any())


def test_the_attack_does_not_depend_on_the_units_of_features() -> None:
    rng = seeded(1, "features")
    members, nonmembers = torch.randn(2, 100, 4, generator=rng, dtype=torch.float64)
    units = torch.tensor([1e-6, 1.0, 1e4, 3.0], dtype=torch.float64)
    plain = TrainMia().fit(members, nonmembers)
    scaled = TrainMia().fit(members * units, nonmembers * units)
    assert torch.equal(plain(members), scaled(members * units))


def test_constant_evidence_classifies_no_members() -> None:
    same = torch.full((20, 4), 0.25, dtype=torch.float64)
    assert not bool(TrainMia().fit(same, same)(same).any())


def test_a_plane_puts_members_on_its_positive_side() -> None:
    plane = LinearRule(torch.tensor([1.0, 1.0]), torch.tensor([2.0, -1.0]), 0.5)
    classified = plane(torch.tensor([[1.0, 1.0], [1.0, 1.5], [1.0, 2.0], [0.0, 0.0]]))
    assert classified.tolist() == [True, False, False, False]


def test_outputs_that_are_not_finite_are_refused() -> None:
    with pytest.raises(BadInput, match="not finite"):
        TrainMia().features(TWO, samples(6, scale=float("inf")), start=TWO)


def test_an_attack_that_sees_no_posterior_is_refused() -> None:
    with pytest.raises(BadInput, match="top of TrainMia"):
        TrainMia(top=0)
