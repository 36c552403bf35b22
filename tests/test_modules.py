"""Modules that are kept, and outputs in pieces."""

from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core import Architecture
from fedaudit.models.cnn import cnn
from fedaudit.models.mlp import mlp
from fedaudit.models.resnet import resnet18
from fedaudit.modules import CHUNK, outputs_of


class Sizes(nn.Module):
    """Notes how many samples come at once, and widens each to so many numbers."""

    seen: ClassVar[list[int]] = []

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(1, width, bias=False), nn.Linear(width, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return torch.as_tensor(self.narrow(self.wide(x)))


@pytest.mark.parametrize(
    ("width", "pieces"),
    [
        (1 << 10, [128, 128, 4]),
        # 12 MB hold 96 samples of 32,768 numbers, and 64 is the power of two below.
        (1 << 15, [64, 64, 64, 64, 4]),
        (1 << 17, [16] * 16 + [4]),
    ],
)
def test_the_wider_a_network_the_fewer_samples_go_through_at_once(
    width: int, pieces: list[int]
) -> None:
    net = Architecture(f"wide {width}", partial(Sizes, width)).initial(0)
    Sizes.seen.clear()
    features = torch.arange(260.0)[:, None]
    first = outputs_of(net, features)
    assert Sizes.seen == [2, *pieces]
    Sizes.seen.clear()
    assert torch.equal(outputs_of(net, features), first)
    assert Sizes.seen == pieces


def test_a_layer_too_wide_for_any_cache_takes_sample_after_sample() -> None:
    net = Architecture("very wide", partial(Sizes, 1 << 23)).initial(0)
    Sizes.seen.clear()
    outputs_of(net, torch.ones(3, 1))
    assert Sizes.seen == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("build", "shape", "most"),
    [
        (partial(mlp, shape=(784,), classes=10), (784,), CHUNK),
        (partial(cnn, shape=(1, 28, 28), classes=10), (1, 28, 28), CHUNK),
        (partial(resnet18, shape=(3, 32, 32), classes=10), (3, 32, 32), 32),
    ],
)
def test_pieces_of_the_catalogues_networks_are_the_fastest_measured(
    build: partial[nn.Module], shape: tuple[int, ...], most: int
) -> None:
    seen: list[int] = []
    counting = partial(_counting, build, seen)
    outputs_of(
        Architecture(f"{build.func.__name__}", counting).initial(0), torch.zeros(most, *shape)
    )
    assert seen == [2, most]


def _counting(build: partial[nn.Module], seen: list[int]) -> nn.Module:
    net = build()
    net.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    return net
