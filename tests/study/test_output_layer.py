"""Scores of classes from the update of the last layer."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedaudit.core.errors import NotVisible, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model
from fedaudit.extensions.label_inference import class_scores, output_layer
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.models import MLP
from fedaudit.observe.round import ObservedModels
from fedaudit.signals.linear_layers import LinearLayer
from tests.samples import random_samples

NET = Architecture("net", MLP(hidden="20").for_samples((12,), 4))
DATA = random_samples(seeded(0, "x"), 40, 12, classes=4)
LAYER = output_layer(NET.initial(0), DATA.features)


def test_the_score_of_one_sample_is_its_label_minus_the_probabilities() -> None:
    sample, lr = DATA.take(slice(0, 1)), 0.1
    (round,) = simulate(FedAvg(NET, LocalTraining(lr=lr)), {0: sample}, rounds=1, seed=1)
    observed = round.observed[0]
    assert observed.base is not None
    module = observed.base.load_into(NET.build())
    with torch.no_grad():
        probabilities = module(sample.features).softmax(1)[0]
    label = int(sample.targets[0])
    expected = functional.one_hot(sample.targets, 4)[0] - probabilities
    assert observed.update is not None
    torch.testing.assert_close(observed.update[LAYER.bias], lr * expected, rtol=1e-4, atol=1e-6)
    scores = class_scores(observed, LAYER)
    torch.testing.assert_close(scores.float(), expected / expected.norm(), rtol=1e-4, atol=1e-6)
    assert [c for c in range(4) if scores[c] > 0] == [label]
    assert float(scores.norm()) == pytest.approx(1)


def test_absent_classes_never_grow_in_one_step_on_a_batch() -> None:
    for trial in range(10):
        batch = DATA.take(torch.randperm(40, generator=seeded(1, trial))[:3])
        (round,) = simulate(FedAvg(NET, LocalTraining()), {0: batch}, rounds=1, seed=trial)
        scores, base = class_scores(round.observed[0], LAYER), round.observed[0].base
        assert base is not None
        # An independent way: the mean of the gradients of single samples.
        module = base.load_into(NET.build())
        bias = dict(module.named_parameters())[LAYER.bias]
        gradients = [
            torch.autograd.grad(functional.cross_entropy(module(x[None]), y[None]), bias)[0]
            for x, y in zip(batch.features, batch.targets, strict=True)
        ]
        mean = torch.stack(gradients).double().mean(0)
        torch.testing.assert_close(scores, -mean / mean.norm(), rtol=1e-3, atol=1e-5)
        absent = set(range(4)) - set(batch.targets.tolist())
        assert all(scores[c] < 0 for c in absent)


def test_an_unchanged_model_scores_all_classes_equally() -> None:
    base = NET.initial(0)
    unchanged = {name: torch.zeros_like(value) for name, value in base.params.items()}
    assert class_scores(ObservedModels(base, base, unchanged), LAYER).tolist() == [0.0] * 4


def test_hidden_updates_are_refused() -> None:
    with pytest.raises(NotVisible, match="hides the clients' updates"):
        class_scores(ObservedModels(), LAYER)


def initial(*layers: nn.Module) -> Model:
    return Architecture("net", lambda: nn.Sequential(nn.Flatten(), *layers)).initial(0)


def test_the_layer_of_the_logits_is_found() -> None:
    assert LinearLayer("3", 4, 20) == LAYER
    wide = initial(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 4))
    assert output_layer(wide, DATA.features).path == "3"


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Linear(12, 4, bias=False),),
        (nn.Linear(12, 4), nn.LogSoftmax(1)),
        (nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 4, 12), nn.Flatten()),
    ],
)
def test_models_without_a_last_linear_layer_with_a_bias_are_refused(
    layers: tuple[nn.Module, ...],
) -> None:
    with pytest.raises(Unsupported, match="does not end with a trained linear layer with a bias"):
        output_layer(initial(*layers), DATA.features)
