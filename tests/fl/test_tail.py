from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.values import Architecture
from fedaudit.fl.training.local import Sgd
from fedaudit.fl.training.manual_backprop import (
    cross_entropy_slope,
    descend_split,
    split,
    split_gradients,
)
from fedaudit.models import architecture
from tests.fl.test_by_hand import (
    CLASSES,
    IMAGES,
    MORE_NETWORKS,
    OPTIMIZERS,
    ThroughAutograd,
    relative_distance,
    train_model,
)


@pytest.mark.parametrize("name", ["cnn", "alexnet", "vgg11"])
def test_gradients_have_the_order_of_parameters(name: str) -> None:
    torch.manual_seed(0)
    module = architecture(name, shape=(3, 32, 32), classes=5).build().double()
    network = split(module)
    assert network is not None
    x = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    y = torch.tensor([0, 4, 2])
    loss = functional.cross_entropy(module(x), y)
    expected = torch.autograd.grad(loss, list(module.parameters()))
    ours = split_gradients(network, x, partial(cross_entropy_slope, y=y))
    for gradient, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-9, atol=1e-12)


def test_descent_in_place_equals_a_step_of_sgd() -> None:
    fused, plain = (MORE_NETWORKS["two hidden layers"].initial(0).module() for _ in range(2))
    fused_network, plain_network = split(fused), split(plain)
    assert fused_network is not None
    assert plain_network is not None
    params = list(plain.parameters())
    for part in (slice(0, 8), slice(8, 13), slice(13, 14)):
        x, slope = IMAGES.features[part], partial(cross_entropy_slope, y=IMAGES.labels[part])
        descend_split(fused_network, x, slope, lr=0.5)
        Sgd(lr=0.5).step(params, split_gradients(plain_network, x, slope))
    for mine, expected in zip(fused.parameters(), params, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.4), nn.Flatten(),
        nn.Linear(48, CLASSES),
    )  # fmt: skip


def test_batch_norm_and_dropout_before_the_end_equal_autograd() -> None:
    network = Architecture("normalised", normalised)
    how = OPTIMIZERS["momentum"]
    by_hand, by_autograd = train_model(network, how), train_model(network, how, ThroughAutograd())
    assert relative_distance(by_hand, by_autograd, network) < 1e-5
    for name, value in by_autograd.buffers.items():
        torch.testing.assert_close(by_hand.buffers[name], value, rtol=1e-5, atol=1e-6)


def part_frozen() -> nn.Module:
    module = convolutional()
    module[0].requires_grad_(False)
    return module


def convolutional(*end: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3),
        nn.Flatten(),
        *(end or (nn.Linear(12, CLASSES),)),
    )


def test_a_layer_frozen_before_the_end_stays_as_it_was() -> None:
    network = Architecture("part frozen", part_frozen)
    how = OPTIMIZERS["sgd"]
    by_hand, by_autograd = train_model(network, how), train_model(network, how, ThroughAutograd())
    assert split(part_frozen()) is not None
    assert relative_distance(by_hand, by_autograd, network) < 1e-5
    assert not {"0.weight", "0.bias"} & {*by_hand.params, *by_hand.buffers}


def hooked(place: int | None) -> nn.Module:
    module = convolutional()
    (module if place is None else module[place]).register_forward_hook(lambda *_: None)
    return module


def end_frozen() -> nn.Module:
    module = convolutional()
    module[4].bias.requires_grad_(False)
    return module


def shared() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(nn.Conv2d(2, 3, 3), layer, nn.Flatten(), layer)


class CustomForward(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        for part in self:
            input = part(input)
        return 2 * input


@pytest.mark.parametrize(
    "module",
    [
        convolutional(nn.Linear(12, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, CLASSES)),
        convolutional(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, CLASSES)),
        convolutional(nn.Linear(12, CLASSES, bias=False)),
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(0), nn.Linear(48, CLASSES)),
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten()),
        nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, CLASSES)),
        nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES)),
        CustomForward(*convolutional()),
        hooked(None),
        hooked(0),
        hooked(4),
        end_frozen(),
        shared(),
    ],
)
def test_any_other_network_is_left_to_autograd(module: nn.Module) -> None:
    assert split(module) is None


class Keeping(nn.Module):
    """A convolution next to an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Conv2d(1, 2, 3)
        self.unused = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


def test_manual_backprop_is_used_only_for_known_layers() -> None:
    front = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    assert split(front) is not None
    assert split(nn.Sequential(Keeping(), nn.Flatten(), nn.Linear(72, 3))) is None
