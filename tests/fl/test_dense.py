from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.fl.training.local import Sgd
from fedaudit.fl.training.manual_backprop import (
    cross_entropy_slope,
    dense_gradients,
    dense_layers,
    descend_dense,
)
from fedaudit.models import architecture


def stack(*widths: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch(samples: int, features: int, classes: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, features, generator=rng)
    return x, torch.randint(classes, (samples,), generator=rng)


def autograd(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(functional.cross_entropy(module(x), y), list(module.parameters()))


@given(samples=st.integers(1, 9), widths=st.lists(st.integers(2, 8), min_size=2, max_size=5))
def test_gradients_equal_those_of_autograd(samples: int, widths: list[int]) -> None:
    module = stack(*widths)
    x, y = batch(samples, widths[0], widths[-1])
    ours = dense_gradients(list(module.parameters()), x, partial(cross_entropy_slope, y=y))
    for gradient, expected in zip(ours, autograd(module, x, y), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_float32_gradients_agree_with_autograd_to_1e_6() -> None:
    module = stack(600, 200, 100)
    x, y = batch(32, 600, 100)
    ours = dense_gradients(list(module.parameters()), x, partial(cross_entropy_slope, y=y))
    for gradient, expected in zip(ours, autograd(module, x, y), strict=True):
        assert (gradient - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("widths", [(6, 4), (6, 5, 4), (6, 7, 5, 4)])
def test_descent_in_place_equals_a_step_of_sgd(widths: tuple[int, ...]) -> None:
    fused, separate = stack(*widths), stack(*widths)
    params = list(separate.parameters())
    for step in range(1, 4):
        x, y = batch(5 + step, 6, 4)
        slope = partial(cross_entropy_slope, y=y)
        Sgd(lr=0.5).step(params, dense_gradients(params, x, slope))
        descend_dense(list(fused.parameters()), x, slope, lr=0.5)
    for parameter, expected in zip(fused.parameters(), params, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-6)


def test_samples_of_any_shape_are_flattened_and_doubles_stay_doubles() -> None:
    module = stack(12, 5, 3, dtype=torch.float64)
    x, y = batch(4, 12, 3)
    shaped = x.double().reshape(4, 1, 3, 4)
    ours = dense_gradients(list(module.parameters()), shaped, partial(cross_entropy_slope, y=y))
    for gradient, expected in zip(ours, autograd(module, shaped, y), strict=True):
        assert gradient.dtype == torch.float64
        torch.testing.assert_close(gradient, expected)


def test_very_large_outputs_give_finite_gradients() -> None:
    params = [torch.tensor([[1e4], [-1e4]]), torch.zeros(2)]
    slope = partial(cross_entropy_slope, y=torch.tensor([1]))
    grads = dense_gradients(params, torch.tensor([[1.0]]), slope)
    assert grads[1].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("label", [3, -1])
def test_labels_outside_the_classes_are_refused(label: int) -> None:
    params = list(stack(4, 3).parameters())
    slope = partial(cross_entropy_slope, y=torch.tensor([0, label]))
    with pytest.raises(RuntimeError, match="out of bounds"):
        dense_gradients(params, torch.zeros(2, 4), slope)


def test_dense_networks_of_the_catalogue_are_recognised() -> None:
    module = architecture("mlp", shape=(2, 3), classes=4, hidden="7,5").build()
    layers = dense_layers(module)
    assert layers is not None
    mine = [param for layer in layers for param in (layer.weight, layer.bias)]
    assert [id(param) for param in mine] == [id(param) for param in module.parameters()]


def shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    return module


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 2, bias=False)),
        nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten(0), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(Doubled(3, 2)),
        nn.Sequential(),
        nn.ReLU(),
        shared(),
        hooked(),
        frozen(),
    ],
)
def test_any_other_module_is_left_to_autograd(module: nn.Module) -> None:
    assert dense_layers(module) is None


def test_a_single_linear_layer_and_a_nested_stack_are_recognised() -> None:
    assert dense_layers(nn.Linear(3, 2)) is not None
    nested = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    assert len(dense_layers(nested) or []) == 2
