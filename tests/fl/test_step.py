from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.fl.training.local import Adam, Optimizer, Sgd

SHAPES = ((3, 4), (4,), (2, 3, 5, 5), (1,))


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng, dtype=dtype) for shape in SHAPES]


def after_five_steps(optimizer: Optimizer, dtype: torch.dtype) -> list[Tensor]:
    params = tensors(0, dtype)
    for step in range(1, 6):
        optimizer.step(params, tensors(step, dtype))
    return params


def after_five_torch_steps(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], dtype: torch.dtype
) -> list[Tensor]:
    params = [value.requires_grad_() for value in tensors(0, dtype)]
    optimizer = make(params)
    for step in range(1, 6):
        for param, grad in zip(params, tensors(step, dtype), strict=True):
            param.grad = grad
        optimizer.step()
    return [param.detach() for param in params]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sgd_steps_match_torch_bit_for_bit(
    momentum: float, weight_decay: float, dtype: torch.dtype
) -> None:
    ours = after_five_steps(Sgd(lr=0.1, momentum=momentum, weight_decay=weight_decay), dtype)
    theirs = after_five_torch_steps(
        lambda params: torch.optim.SGD(
            params, lr=0.1, momentum=momentum, weight_decay=weight_decay
        ),
        dtype,
    )
    assert all(
        torch.equal(parameter, expected) for parameter, expected in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("weight_decay", [0.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_takes_torchs_steps(weight_decay: float, dtype: torch.dtype) -> None:
    ours = after_five_steps(Adam(lr=1e-2, weight_decay=weight_decay), dtype)
    theirs = after_five_torch_steps(
        lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=weight_decay), dtype
    )
    for parameter, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("make", [lambda: Sgd(0.1, 0.9, 0.1), lambda: Adam(weight_decay=0.1)])
def test_optimizer_steps_do_not_modify_or_keep_gradients(
    make: Callable[[], Optimizer],
) -> None:
    with_new_gradients, with_one_buffer = make(), make()
    first, second = [torch.ones(3)], [torch.ones(3)]
    buffer = torch.empty(3)
    for step in range(3):
        grad = torch.full((3,), float(step + 1))
        with_new_gradients.step(first, [grad])
        assert torch.equal(grad, torch.full((3,), float(step + 1)))
        with_one_buffer.step(second, [buffer.copy_(grad)])
    assert torch.equal(first[0], second[0])


def test_parameters_that_require_gradients_are_changed_in_place() -> None:
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    Sgd(lr=1.0).step(list(layer.parameters()), [torch.ones(2, 2), torch.ones(2)])
    torch.testing.assert_close(layer.weight.detach(), before - 1)
    assert layer.weight.requires_grad


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sgd(0.0), "lr of Sgd takes a finite number above 0"),
        (
            lambda: Sgd(0.1, weight_decay=-1.0),
            "weight_decay of Sgd takes a finite number of at least 0",
        ),
        (lambda: Sgd(0.1, momentum=1.0), r"momentum of Sgd takes a number in \[0, 1\), got 1.0"),
        (lambda: Adam(lr=-1.0), "lr of Adam takes a finite number above 0"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas of Adam takes"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], Optimizer], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()
