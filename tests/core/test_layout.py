import pytest
import torch
from torch import nn

from fedaudit.core.modules import in_fastest_layout, layout
from fedaudit.models import architecture


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp", torch.contiguous_format),
        ("cnn", torch.channels_last),
        ("resnet18", torch.channels_last),
        ("vgg11", torch.channels_last),
        ("wide-resnet", torch.channels_last),
        ("alexnet", torch.contiguous_format),
    ],
)
def test_only_networks_with_strides_up_to_two_are_channels_last(
    name: str, expected: torch.memory_format
) -> None:
    assert layout(architecture(name, shape=(3, 32, 32), classes=10).build()) is expected


def test_the_layout_changes_no_more_than_rounding() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten())
    x = torch.randn(2, 1, 8, 8)
    before = module(x)
    moved = in_fastest_layout(module)
    assert moved is module
    second = dict(module.named_parameters())["2.weight"]
    assert second.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(moved(x), before)


class Viewing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x)
        return out.view(len(x), -1)


def test_networks_with_custom_code_keep_their_layout() -> None:
    module = in_fastest_layout(nn.Sequential(Viewing(), nn.Linear(4 * 36, 2)))
    assert all(value.is_contiguous() for value in module.parameters())
    assert module(torch.zeros(2, 1, 8, 8)).shape == (2, 2)


def test_networks_with_hooks_keep_their_layout() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    assert layout(module) is torch.channels_last
    module[0].register_forward_hook(lambda part, entered, out: out.view(len(out), -1))
    assert layout(module) is torch.contiguous_format
