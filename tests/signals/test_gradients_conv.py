from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedaudit.signals import kernels
from fedaudit.signals.kernels import Layer, LayerKernel, conv
from fedaudit.signals.kernels.plan import linear_kernel

ROUTES: dict[str, Callable[[Layer, conv.Geometry], LayerKernel]] = {
    "grouped": conv._GroupedKernel,
    "forward": conv.forward_kernel,
    "blocked": lambda layer, shape: conv._BlockedKernel(layer, shape, norms=True),
    "blocked-by-pairs": lambda layer, shape: conv._BlockedKernel(layer, shape, norms=False),
}


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv2d, tuple[int, int, int, int], int]:
    def two(low: int, high: int) -> tuple[int, int]:
        sides = st.integers(low, high)
        return draw(sides), draw(sides)

    kernel, padding, dilation = two(1, 4), two(0, 3), two(1, 2)
    reach = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    rows, columns = (max(1, least) + draw(st.integers(0, 5)) for least in reach)
    channels, outputs = two(1, 4)
    module = nn.Conv2d(channels, outputs, kernel, two(1, 3), padding, dilation)
    return module, (draw(st.integers(1, 4)), channels, rows, columns), draw(st.integers(0, 3))


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=60, deadline=None)
@given(drawn=convolutions())
def test_every_method_computes_the_gradients_of_autograd(
    route: str, drawn: tuple[nn.Conv2d, tuple[int, int, int, int], int]
) -> None:
    module, shape, clients = drawn
    generator = torch.Generator().manual_seed(0)
    module = module.double()
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    layer, grads = layer_and_gradients(module, inputs, clients, generator)
    geometry = conv.geometry_of(module, layer.inputs, layer.outputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv, "_ROW_ENTRIES", 5)  # Windows are gathered in both ways.
        assert_as_autograd(ROUTES[route](layer, geometry), layer, inputs, grads)


def layer_and_gradients(
    module: nn.Conv2d, inputs: Tensor, clients: int, generator: torch.Generator
) -> tuple[Layer, Tensor]:
    """Return a layer with updates of some clients, and gradients at its outputs."""
    with torch.no_grad():
        grads = torch.randn(module(inputs).shape, generator=generator, dtype=torch.float64)
    weight = module.weight.detach()
    updates = [
        torch.randn(weight.shape, generator=generator, dtype=torch.float64) for _ in range(clients)
    ]
    shapes = tuple(inputs.shape[1:]), tuple(grads.shape[1:])
    return Layer(module, {"weight": updates}, *shapes), grads


def assert_as_autograd(kernel: LayerKernel, layer: Layer, inputs: Tensor, grads: Tensor) -> None:
    module = layer.module
    assert isinstance(module, nn.Conv2d)
    with torch.no_grad():
        share = kernel(module, inputs, grads)
    for sample, (x, b) in enumerate(zip(inputs, grads, strict=True)):
        (gradient,) = torch.autograd.grad(module(x[None]), module.weight, b[None])
        torch.testing.assert_close(share.squared_norms[sample], gradient.square().sum())
        for client, update in enumerate(layer.updates["weight"]):
            torch.testing.assert_close(share.dots[sample, client], (gradient * update).sum())


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.tuples(st.integers(3, 5), st.integers(3, 5)),
    before=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.tuples(*[st.integers(1, 5)] * 3),
    clients=st.integers(0, 3),
)
def test_maps_of_two_by_two_pixels_need_nine_products_and_are_exact(
    kernel: tuple[int, int],
    before: tuple[int, int],
    sizes: tuple[int, int, int],
    clients: int,
) -> None:
    samples, channels, outputs = sizes
    smallest, largest = ([(size - 1) // 2 for size in kernel], [size - 2 for size in kernel])
    padding = (
        min(max(before[0], smallest[0]), largest[0]),
        min(max(before[1], smallest[1]), largest[1]),
    )
    generator = torch.Generator().manual_seed(0)
    module = nn.Conv2d(channels, outputs, kernel, padding=padding).double()
    inputs = torch.randn(samples, channels, 2, 2, generator=generator, dtype=torch.float64)
    layer, grads = layer_and_gradients(module, inputs, clients, generator)
    geometry = conv.geometry_of(module, layer.inputs, layer.outputs)
    # The maps keep their size only if the padding is half of the kernel.
    assert geometry.is_two_by_two() == (kernel == (2 * padding[0] + 1, 2 * padding[1] + 1))
    if geometry.is_two_by_two():
        assert_as_autograd(conv.two_by_two_kernel(layer, geometry), layer, inputs, grads)


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 20),
    places=st.integers(1, 6),
    inner=st.integers(1, 40),
    outputs=st.integers(1, 6),
    clients=st.integers(0, 5),
)
def test_gradients_computed_in_blocks_equal_those_computed_at_once(
    samples: int, places: int, inner: int, outputs: int, clients: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(samples, places, inner, generator=generator)
    b = torch.randn(samples, places, outputs, generator=generator)
    u = torch.randn(clients, outputs, inner, generator=generator)
    gradients = torch.einsum("nto,ntd->nod", b, a)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "BLOCK_BYTES", 1)  # The smallest possible blocks.
        (blocks,) = kernels.update_blocks(u, (clients, outputs, inner), u)
        share = kernels.blockwise_products(a, b.transpose(1, 2), blocks, norms=True)
    expected = torch.einsum("nod,kod->nk", gradients, u)
    torch.testing.assert_close(share.dots, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(share.squared_norms, gradients.square().sum((1, 2)))
    forward = kernels.forward_dots(a.flatten(0, 1), u, b.flatten(0, 1))
    pushed = forward.view(samples, places, clients).sum(1)
    torch.testing.assert_close(pushed, expected, rtol=1e-4, atol=1e-4)
    pairs = kernels.gram_norms(a @ a.transpose(1, 2), b)
    torch.testing.assert_close(pairs, share.squared_norms, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    places=st.lists(st.integers(1, 5), max_size=3),
    clients=st.integers(0, 12),
    bias=st.booleans(),
)
def test_a_linear_layer_on_sequences_of_any_shape_is_exact(
    places: list[int], clients: int, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    module = nn.Linear(3, 4, bias=bias)
    a = torch.randn(2, *places, 3, generator=generator)
    b = torch.randn(2, *places, 4, generator=generator)
    updates = {
        name: [torch.randn(value.shape, generator=generator) for _ in range(clients)]
        for name, value in module.named_parameters()
    }
    kernel = linear_kernel(Layer(module, updates, tuple(a.shape[1:]), tuple(b.shape[1:])))
    assert kernel is not None
    with torch.no_grad():
        share = kernel(module, a, b)
    for sample in range(2):
        grads = torch.autograd.grad(module(a[sample]), list(module.parameters()), b[sample])
        norm = torch.stack([part.square().sum() for part in grads]).sum()
        torch.testing.assert_close(share.squared_norms[sample], norm, rtol=1e-4, atol=1e-5)
        for client in range(clients):
            dot = torch.stack(
                [(g * u[client]).sum() for g, u in zip(grads, updates.values(), strict=True)]
            ).sum()
            torch.testing.assert_close(share.dots[sample, client], dot, rtol=1e-4, atol=1e-4)
