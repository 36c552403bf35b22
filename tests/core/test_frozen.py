"""Digests of frozen parameters, which distinguish pretrained networks."""

from functools import partial

import torch
from torch import nn

from fedaudit.core.modules import frozen_digest
from fedaudit.core.values import Architecture


def pretrained(weight: float = 1.0, mean: float = 0.0, head: float = 0.0) -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    with torch.no_grad():
        for layer, value in ((net[0], weight), (net[2], head)):
            assert isinstance(layer, nn.Linear)
            layer.weight.fill_(value)
            layer.bias.zero_()
        net.get_buffer("1.running_mean").fill_(mean)
    net[0].requires_grad_(False)
    return net


def digest(**values: float) -> str:
    return frozen_digest([Architecture("one name", partial(pretrained, **values))])


def test_frozen_parameters_and_their_buffers_change_the_digest() -> None:
    assert len({digest(), digest(weight=2.0), digest(mean=1.0), digest(weight=-1.0)}) == 4
    assert digest() == digest(head=5.0), "what clients train is told by the seed"


def test_a_model_without_frozen_parameters_has_an_empty_digest() -> None:
    assert frozen_digest([Architecture("net", partial(nn.Linear, 2, 2))]) == ""


def test_frozen_values_of_half_precision_and_without_axes_are_digested() -> None:
    def build(value: float) -> nn.Module:
        net = nn.Linear(2, 2)
        net.scale = nn.Parameter(torch.tensor(value, dtype=torch.bfloat16), requires_grad=False)
        return net

    first, second = (
        frozen_digest([Architecture("net", partial(build, value))]) for value in (1.0, 2.0)
    )
    assert first != second
