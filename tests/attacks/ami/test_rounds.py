"""Scores that a server computes from uploads of several rounds or clients."""

import pytest
import torch

from fedaudit.attacks.ami.plant import (
    Neurons,
    PlantedRow,
    TargetGradient,
    average_uploads,
    plant,
    repeat_neurons,
    scale_first_layer,
    silence_other_neurons,
    silence_planted_neurons,
    target_gradient,
)
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model, Params, Samples
from fedaudit.models import MLP
from fedaudit.observe.round import Gradient

FEATURES, UNITS = 5, 4
NET = Architecture("net", MLP(hidden=f"{3 * UNITS},6").for_samples((FEATURES,), 3))
TARGET = Samples(torch.ones(1, FEATURES), torch.tensor([1]), torch.tensor([0]))


def neuron(bias: float = 1.0) -> Neurons:
    first = torch.rand(1, UNITS, FEATURES, generator=seeded(1, "first"))
    return Neurons(first, torch.ones(1, UNITS), torch.ones(1, UNITS), torch.full((1,), bias))


def gradient(model: Model, samples: Samples) -> Params:
    module = model.module()
    loss = model.architecture.loss(module(samples.features), samples.labels).mean()
    names = [name for name, _ in module.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(module.parameters())), strict=True))


def test_a_round_score_matches_hand_calculation() -> None:
    # The rows (3, 0 | 0) and (0, 0 | 4) have this direction.
    direction = torch.tensor([[0.6, 0.0, 0.0], [0.0, 0.0, 0.8]], dtype=torch.float64)
    places = (PlantedRow("w", "b", 0), PlantedRow("w", "b", 2))
    planted_gradient = TargetGradient(places, direction, 5.0, 1.0)
    upload = {
        "w": torch.tensor([[10.0, 7.0], [99.0, 99.0], [7.0, 7.0]]),
        "b": torch.tensor([7.0, 99.0, 5.0]),
    }
    assert planted_gradient.score(upload) == pytest.approx(0.6 * 10 + 0.8 * 5)


def test_the_gradient_of_the_target_scores_its_norm() -> None:
    planted = plant(NET.initial(1), neuron())
    planted_gradient = target_gradient(planted, TARGET)
    update = gradient(planted.model, TARGET)
    norm = torch.cat([value.flatten() for value in update.values()]).norm()
    assert planted_gradient.length == pytest.approx(float(norm), rel=1e-5)
    assert planted_gradient.score(update) == pytest.approx(
        planted_gradient.share * planted_gradient.length, rel=1e-5
    )
    assert float(planted_gradient.direction.norm()) == pytest.approx(1.0)


def test_a_neuron_that_never_fires_scores_zero() -> None:
    planted = plant(NET.initial(1), neuron(bias=-1e6))
    looked_for = target_gradient(planted, TARGET)
    assert (looked_for.share, looked_for.direction.any().item()) == (0.0, False)
    assert looked_for.score(gradient(planted.model, TARGET)) == 0.0


def test_copied_and_scaled_neurons_have_the_values_of_the_original() -> None:
    samples = torch.randn(1, 20, FEATURES, generator=seeded(1, "records"))
    value = neuron(-9.0).values(samples)
    copies = repeat_neurons(neuron(-9.0), 3).values(samples.expand(3, -1, -1))
    assert torch.equal(copies, value.expand(3, -1))
    torch.testing.assert_close(scale_first_layer(neuron(-9.0), 64.0).values(samples), value)


def test_a_louder_neuron_takes_most_of_a_samples_gradient() -> None:
    quiet = target_gradient(plant(NET.initial(1), neuron()), TARGET)
    shares = [
        target_gradient(
            silence_other_neurons(
                plant(NET.initial(1), repeat_neurons(scale_first_layer(neuron(), 1e4), k))
            ),
            TARGET,
        ).share
        for k in (1, 3)
    ]
    assert quiet.share < 0.9
    assert min(shares) > 0.999


def test_other_neurons_can_be_silenced() -> None:
    planted = silence_other_neurons(plant(NET.initial(1), neuron()))
    update = gradient(planted.model, TARGET)
    assert update["3.weight"][0].any()
    assert not update["3.weight"][1:].any()
    assert not update["3.bias"][1:].any()


def test_a_sum_with_dead_neurons_is_one_clients_row() -> None:
    planted = plant(NET.initial(1), neuron())
    features = torch.randn(4, 6, FEATURES, generator=seeded(1, "clients"))
    labels = torch.randint(3, (4, 6), generator=seeded(1, "labels"))
    data = [Samples(x, y, torch.arange(6)) for x, y in zip(features, labels, strict=True)]
    models = [planted.model, *[silence_planted_neurons(planted)] * 3]
    sent = [Gradient(gradient(m, d), {}, 6) for m, d in zip(models, data, strict=True)]
    total = average_uploads(sent)
    assert torch.equal(total["3.weight"][0], 0.25 * sent[0].values["3.weight"][0])
    assert torch.equal(total["3.bias"][0], 0.25 * sent[0].values["3.bias"][0])
    assert all(upload.values["3.weight"][1:].any() for upload in sent)


def test_sums_are_weighed_by_numbers_of_samples() -> None:
    parts = [Gradient({"w": torch.tensor([value])}, {}, n) for value, n in ((4.0, 1), (8.0, 3))]
    assert average_uploads(parts)["w"].item() == 7.0
    for wrong in ([], [Gradient({"w": torch.zeros(1)}, {}, 0)]):
        with pytest.raises(BadInput, match="numbers of samples"):
            average_uploads(wrong)
