"""Adaptive AMI servers that disguise planted neurons."""

import pytest
import torch
from torch import Tensor

from fedaudit.attacks.ami.plant import Neurons, PlantedModel, plant, plant_disguised, plant_one_row
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model
from fedaudit.models import MLP
from tests.rounding import RoundedByPlace

NET = Architecture("net", MLP(hidden="40,5").for_samples((6,), 3))
HONEST = NET.initial(1)


def neurons(count: int = 1, hidden: int = 12) -> Neurons:
    rng = seeded(4, "neurons")
    return Neurons(
        10 * torch.randn(count, hidden, 6, generator=rng),
        torch.randn(count, hidden, generator=rng),
        torch.randn(count, hidden, generator=rng),
        torch.randn(count, generator=rng),
    )


def row_values(planted: PlantedModel, samples: Tensor, row: int = 0) -> Tensor:
    """Return the values of a planted neuron on samples, computed from the model's parameters."""
    w1, b1, w2, b2 = [parameter.double() for parameter in planted.model.params.values()][:4]
    values: Tensor = torch.relu(samples.double() @ w1.T + b1) @ w2[row] + b2[row]
    return values


def lengths(model: Model, layer: int) -> Tensor:
    norms: Tensor = list(model.params.values())[2 * layer].norm(dim=1)
    return norms


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_a_disguised_neuron_keeps_lengths_and_fired_samples(count: int) -> None:
    target_neurons, samples = neurons(count), torch.randn(500, 6, generator=seeded(5, "records"))
    plain, disguised = plant(HONEST, target_neurons), plant_disguised(HONEST, target_neurons)
    assert disguised.rows == plain.rows
    for row in range(count):
        expected = row_values(plain, samples, row)
        clear = expected.abs() > 1e-3 * expected.abs().max()
        fires = row_values(disguised, samples, row) > 0
        assert torch.equal(fires[clear], (expected > 0)[clear])
    for layer in (0, 1):
        torch.testing.assert_close(lengths(disguised.model, layer), lengths(HONEST, layer))
    assert all(bool((value != 0).all()) for value in list(disguised.model.params.values())[:4])
    # Other rows of the second layer are unchanged.
    second = list(disguised.model.params)[2]
    assert torch.equal(disguised.model.params[second][count:], HONEST.params[second][count:])


def test_zero_weights_give_a_finite_disguised_model() -> None:
    empty = neurons()
    empty = empty._replace(first_weights=torch.zeros_like(empty.first_weights))
    disguised = plant_disguised(HONEST, empty)
    assert all(bool(value.isfinite().all()) for value in disguised.model.params.values())


def test_one_row_fires_for_its_target_alone_and_changes_nothing_else() -> None:
    samples = torch.randn(400, 6, generator=seeded(6, "records"))
    target, fresh = 3 * samples[:1], torch.randn(300, 6, generator=seeded(7, "records"))
    planted = plant_one_row(HONEST, target, samples[1:], batch=10)
    assert row_values(planted, target).item() > 0
    assert float((row_values(planted, fresh) > 0).double().mean()) < 0.02
    (row,) = planted.rows
    for name, value in planted.model.params.items():
        others = torch.arange(len(value)) != (0 if name in (row.weight_name, row.bias_name) else -1)
        assert torch.equal(value[others], HONEST.params[name][others])
    torch.testing.assert_close(lengths(planted.model, 1), lengths(HONEST, 1))


@pytest.mark.slow
def test_a_duplicate_sample_gives_the_same_bias_on_every_processor() -> None:
    samples = torch.randn(41, 6, generator=seeded(6, "records"))
    target, others = samples[:1], torch.cat([samples[1:], samples[:1]])
    usual = plant_one_row(HONEST, target, others, batch=1)
    with RoundedByPlace():
        rounded = plant_one_row(HONEST, target, others, batch=1)
    bias = usual.rows[0].bias_name
    torch.testing.assert_close(rounded.model.params[bias], usual.model.params[bias])
    # The threshold between equal samples would be at the sample itself.
    assert row_values(rounded, target).abs().item() > 1e-3


def test_a_row_needs_a_target_and_others() -> None:
    samples = torch.randn(9, 6)
    for target, others in ((samples[:0], samples), (samples[:1], samples[:3])):
        with pytest.raises(BadInput, match="four other samples"):
            plant_one_row(HONEST, target, others, batch=3)
