"""Derivatives of losses compared with autograd."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.modules import load_module
from fedaudit.core.seeds import seeded
from fedaudit.core.task_catalogue import of_loss
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import (
    Architecture,
    Batch,
    Model,
    Params,
    Samples,
    Setting,
    difference,
    flat,
    norm,
)
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.hamp import Hamp
from fedaudit.defenses.mixup import MixUp
from fedaudit.defenses.relaxloss import RelaxLoss
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense, Objective, TrainingContext
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.models import architecture

CLASSES, SHAPE, COUNT = 4, (2, 6, 6), 60


def cnn(channels: str, hidden: str) -> Architecture:
    how: dict[str, Setting] = {"channels": channels, "hidden": hidden, "padding": 2}
    return architecture("cnn", shape=SHAPE, classes=CLASSES, **how)


NETWORKS = {
    "dense": architecture("mlp", shape=SHAPE, classes=CLASSES, hidden="12,7"),
    "convolutional": cnn("3,4", "9"),
}
MORE_NETWORKS = {
    **NETWORKS,
    "two hidden layers": cnn("3,4", "12,6"),
    "no hidden layer": cnn("3", ""),
    "wide enough for oneDNN": cnn("16", "128"),
}
OPTIMIZERS = {
    "sgd": LocalTraining(batch_size=8, lr=0.1, epochs=2),
    "momentum": LocalTraining(batch_size=8, lr=0.1, epochs=2, momentum=0.9),
    "adam": LocalTraining(batch_size=8, lr=0.001, epochs=2, optimizer="adam"),
}
DECAYING = LocalTraining(batch_size=8, lr=0.1, epochs=2, weight_decay=0.1)
RNG = seeded(0, "images")
IMAGES = Samples(
    torch.randn(COUNT, *SHAPE, generator=RNG),
    torch.arange(COUNT) % CLASSES,
    torch.arange(COUNT),
)


class SoftLabels(Defense):
    """A defense with soft labels."""

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        return Batch(batch.x, 0.9 * torch.eye(CLASSES)[batch.y].to(batch.x) + 0.025, batch.ids)


class MarginLoss(Defense):
    """A defense with a loss that is no cross-entropy."""

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        return functional.multi_margin_loss(outputs, batch.y) + outputs.square().mean()


class InPlaceLoss(Defense):
    """A defense whose loss changes the outputs in place."""

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        return functional.cross_entropy(outputs.div_(2.0), batch.y)


class Penalised(Defense):
    """A defense whose loss has a second forward pass and a penalty on weights."""

    def __init__(self) -> None:
        self.module: nn.Module | None = None

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        self.module = load_module(context.received, "training")  # The module that is trained.
        return data

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        assert self.module is not None
        shifted_outputs: Tensor = self.module(batch.x + 0.1)
        penalty = next(self.module.parameters()).square().sum()
        return (
            super().loss(outputs, batch, context)
            + (shifted_outputs - outputs).square().mean()
            + penalty
        )


class GradientPenalty(Defense):
    """A defense with a penalty on the gradient of outputs with respect to features."""

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        return Batch(batch.x.clone().requires_grad_(), batch.y, batch.ids)

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        (by_features,) = torch.autograd.grad(outputs.sum(), batch.x, create_graph=True)
        return super().loss(outputs, batch, context) + by_features.square().sum()


class ConstantLoss(Defense):
    """A defense with a constant loss."""

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        return (outputs * 0).sum()


class ThroughAutograd(Defense):
    """A defense that changes nothing, but whose hook makes training use autograd."""

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        return super().gradient(objective, batch, context)


BACK = Compensation(clients=(0,), m_max=3, m_min=3, start=1, recycle=0.3, mu=0.1)
DEFENSES: Mapping[str, Defense] = {
    "soft labels": SoftLabels(),
    "mixup": MixUp(alpha=1.0),
    "hamp": Hamp(entropy_threshold=0.5, entropy_weight=0.1),
    "hamp undivided": Hamp(entropy_threshold=0.9, entropy_weight=0.1, divide_by_classes=False),
    "relaxloss up": RelaxLoss(target_loss=9.0),
    "relaxloss down": RelaxLoss(target_loss=0.1),
    "relaxloss tables": RelaxLoss(target_loss=9.0, form="tables", upper=0.7),
    "compensation": BACK,
    "in a chain": Chain((MixUp(alpha=0.0), BACK)),
    "margin": MarginLoss(),
    "in place": InPlaceLoss(),
    "penalised": Penalised(),
    "smooth": GradientPenalty(),
}


def train_model(
    network: Architecture,
    how: LocalTraining,
    *parts: Defense,
    data: Samples = IMAGES,
    round: int = 2,
) -> Model:
    start = network.initial(0)
    client_context = ClientContext(
        round=round, rounds=9, client=0, cohort=(0,), weights={0: 1.0}, seed=0
    )
    return train(start, data, how, Chain(parts or (UNDEFENDED,)), client_context.with_model(start))


def relative_distance(first: Model, second: Model, network: Architecture) -> float:
    """Return the distance of two models, relative to the change by training."""
    change = norm(difference(second.params, network.initial(0).params))
    return norm(difference(first.params, second.params)) / change


def in_double(single: Architecture) -> Architecture:
    return Architecture(f"{single.name} in double", lambda: single.build().double())


every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
every_optimizer = pytest.mark.parametrize("how", OPTIMIZERS.values(), ids=OPTIMIZERS)
every_defense = pytest.mark.parametrize("defense", DEFENSES.values(), ids=DEFENSES)


@every_network
@every_defense
def test_one_step_with_any_loss_equals_autograd_to_1e_6(
    defense: Defense, network: Architecture
) -> None:
    # The step is so large that the update is not lost in rounding.
    how = LocalTraining(batch_size=COUNT, lr=1000.0)
    for round in (2, 3):
        by_hand = train_model(network, how, defense, round=round)
        by_autograd = train_model(network, how, defense, ThroughAutograd(), round=round)
        assert relative_distance(by_hand, by_autograd, network) < 1e-6


def agree_in_double(defense: Defense, how: LocalTraining, network: Architecture) -> None:
    double = in_double(network)
    some = IMAGES.take(slice(0, 40))
    data = Samples(some.features.double(), some.labels, some.ids)
    by_hand = train_model(double, how, defense, data=data)
    assert all(value.dtype == torch.float64 for value in by_hand.params.values())
    by_autograd = train_model(double, how, defense, ThroughAutograd(), data=data)
    assert relative_distance(by_hand, by_autograd, double) < 1e-12


@pytest.mark.slow
@every_network
@every_optimizer
@every_defense
def test_training_with_any_loss_equals_autograd(
    defense: Defense, how: LocalTraining, network: Architecture
) -> None:
    agree_in_double(defense, how, network)


@pytest.mark.slow
@pytest.mark.parametrize("network", MORE_NETWORKS.values(), ids=MORE_NETWORKS)
@pytest.mark.parametrize("how", [*OPTIMIZERS.values(), DECAYING], ids=[*OPTIMIZERS, "decay"])
def test_training_with_cross_entropy_equals_autograd(
    network: Architecture, how: LocalTraining
) -> None:
    by_hand, by_autograd = (train_model(network, how, d) for d in (UNDEFENDED, ThroughAutograd()))
    assert relative_distance(by_hand, by_autograd, network) < 1e-5
    assert not torch.equal(flat(by_hand.params), flat(by_autograd.params)), "nothing by hand"
    agree_in_double(UNDEFENDED, how, network)


@every_network
def test_a_constant_loss_does_not_change_the_model(network: Architecture) -> None:
    model = train_model(network, OPTIMIZERS["sgd"], ConstantLoss())
    assert torch.equal(flat(model.params), flat(network.initial(0).params))


class Counting(Defense):
    """The usual loss, with a record of its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        self.asked.append((len(batch), outputs.grad_fn is not None and outputs.requires_grad))
        return super().loss(outputs, batch, context)


@every_network
def test_the_loss_is_called_once_a_step_with_differentiable_outputs(network: Architecture) -> None:
    counting = Counting()
    train_model(network, LocalTraining(batch_size=25), counting)
    assert counting.asked == [(25, True), (25, True), (10, True)]


@every_network
def test_the_usual_loss_in_a_hook_trains_as_without_one(network: Architecture) -> None:
    ours, bare = (train_model(network, OPTIMIZERS["sgd"], d) for d in (Counting(), Defense()))
    assert relative_distance(ours, bare, network) < 1e-5


class NegatedHamp(Hamp):
    """A defense that overrides the loss but not its derivative."""

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        return -super().loss(outputs, batch, context)


class NegatedHampWithSlope(NegatedHamp):
    """A defense that overrides the loss and its derivative."""

    def slope(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor | None:
        slope = super().slope(outputs, batch, context)
        return None if slope is None else -slope


def test_the_gradient_of_an_overridden_loss_is_left_to_autograd() -> None:
    network, how = NETWORKS["dense"], OPTIMIZERS["sgd"]
    flipped, sloped = (kind(0.5, 0.1) for kind in (NegatedHamp, NegatedHampWithSlope))
    assert [d.slope_matches_loss for d in (Defense(), Hamp(0.5, 0.1), flipped, sloped)] == [
        True,
        True,
        False,
        True,
    ]
    expected = train_model(network, how, flipped, ThroughAutograd())
    for defense in (flipped, sloped):
        assert relative_distance(train_model(network, how, defense), expected, network) < 1e-5


@pytest.mark.parametrize(
    "defense", [Hamp(0.5, 0.1), Hamp(0.5, 0.1, divide_by_classes=False), BACK], ids=str
)
def test_explicit_gradients_of_losses_equal_autograd(defense: Defense) -> None:
    start = NETWORKS["dense"].initial(0)
    context = ClientContext(
        round=2, rounds=9, client=0, cohort=(0,), weights={0: 1.0}, seed=0
    ).with_model(start)
    defense.select(IMAGES, context)
    batch = Batch(IMAGES.features, IMAGES.labels, IMAGES.ids)
    for size in (0.0, 1.0, 30.0):
        outputs = size * torch.randn(COUNT, CLASSES, generator=seeded(1, "outputs")).double()
        leaf = outputs.clone().requires_grad_()
        (expected,) = torch.autograd.grad(defense.loss(leaf, batch, context), leaf)
        explicit = defense.slope(outputs, batch, context)
        assert explicit is not None
        torch.testing.assert_close(explicit, COUNT * expected, rtol=1e-9, atol=1e-12)


def custom_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets).mul(2)


def test_the_loss_of_the_architecture_is_minimised() -> None:
    dense = NETWORKS["dense"]
    custom = Architecture("custom loss", dense.build, task=of_loss("custom", custom_loss))
    how = LocalTraining(batch_size=COUNT, lr=0.05)
    doubled = LocalTraining(batch_size=COUNT, lr=0.1)
    assert (
        relative_distance(
            train_model(custom, how, Defense()), train_model(dense, doubled, Defense()), dense
        )
        < 1e-5
    )
