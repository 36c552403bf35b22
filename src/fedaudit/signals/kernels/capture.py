"""Capture of module inputs and output gradients in one forward and half a backward pass.

Half a backward pass computes the gradients of activations, but not of parameters. Modules without a
kernel, and models whose modules cannot be captured, use ``torch.func`` or one backward pass per
sample.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vjp, vmap

from fedaudit.core.tasks import Task
from fedaudit.core.values import Model, Params
from fedaudit.signals.kernels import Layer, LayerKernel, LayerProducts, products_of_gradients


class Uncapturable(Exception):
    """Error for a model whose modules cannot be captured."""


class Owner(NamedTuple):
    """Module that directly contains audited parameters.

    Attributes:
        module: The module.
        names: Name of each audited parameter in the model, by its name in the module.
    """

    module: nn.Module
    names: dict[str, str]


class Activation(NamedTuple):
    """Input of a module, and the gradient at its output.

    Attributes:
        inputs: The input.
        grads: The gradient at the output; None if the output has no effect on the loss.
        outputs: Shape of the output, for one sample.
    """

    inputs: Shaped[Tensor, "samples ..."]
    grads: Float[Tensor, "samples ..."] | None
    outputs: tuple[int, ...]


class CapturedCall(NamedTuple):
    """Call of a module in a forward pass.

    Attributes:
        inputs: The input.
        version: Version counter of the input, by which later changes in place are recognised.
        edge: Edge of the autograd graph with the gradient at the output.
        outputs: Shape of the output, for one sample.
        entry: Edge with the gradient at the input; None if this gradient is not computed.
    """

    inputs: Tensor
    version: int
    edge: GradientEdge
    outputs: tuple[int, ...]
    entry: GradientEdge | None


def disable_grad(module: nn.Module) -> None:
    """Disable the gradients of all parameters, also of a scripted module."""
    for value in module.parameters():
        # Copies of scripted modules have parameters that are not leaves.
        if value.is_leaf:
            value.requires_grad_(False)


# Argument or return value of a module, which may have any type.
_AnyValue: TypeAlias = object


def owners(module: nn.Module, audited_names: Iterable[str]) -> dict[str, Owner]:
    """Return the module that owns each audited parameter.

    Raises:
        Uncapturable: A parameter has two owners (tied weights). Or an owner has submodules, so it
            may use their parameters in ways that cannot be captured.
    """
    params = dict(module.named_parameters())
    names = {id(params[name]): name for name in audited_names}
    by_path: dict[str, Owner] = {}
    owned: set[int] = set()
    for path, part in module.named_modules():
        local_names = {
            local: names[id(value)]
            for local, value in part._parameters.items()
            if id(value) in names
        }
        for local in local_names:
            key = id(part._parameters[local])
            if key in owned:
                raise Uncapturable(f"parameter {names[key]!r} is tied to another")
            owned.add(key)
        if local_names and next(part.children(), None) is not None:
            raise Uncapturable(f"{type(part).__name__} has both parameters and submodules")
        if local_names:
            by_path[path] = Owner(part, local_names)
    return by_path


@contextmanager
def capture_calls(parts: Mapping[str, Owner]) -> Iterator[dict[str, CapturedCall]]:
    """Record the call of each owner in the yielded dictionary, while the context is open.

    Raises:
        Uncapturable: An owner is called twice, or does not map one tensor with a row for each
            sample to another one.
    """
    calls: dict[str, CapturedCall] = {}
    handles = [
        part.module.register_forward_hook(_hook(path, calls), with_kwargs=True)
        for path, part in parts.items()
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def activations_of(
    calls: Mapping[str, CapturedCall],
    parts: Mapping[str, Owner],
    losses: Float[Tensor, " samples"],
    *,
    rows: int,
    retain_graph: bool = False,
) -> dict[str, Activation]:
    """Return the input of each owner and the gradient at its output, from half a backward pass.

    Args:
        calls: Calls that were recorded while the losses were computed.
        parts: All owners that should have been called.
        losses: One loss for each sample.
        rows: Expected number of rows of each input.
        retain_graph: True if the other half of the backward pass follows.

    Raises:
        Uncapturable: An owner was never called or not with this number of rows, or its input was
            overwritten.
    """
    for path, part in parts.items():
        if path not in calls:
            raise Uncapturable(f"{type(part.module).__name__} {path!r} was never called")
    grads = torch.autograd.grad(
        losses.sum(),
        [call.edge for call in calls.values()],
        allow_unused=True,
        retain_graph=retain_graph,
    )
    activations = {}
    for (path, call), gradient in zip(calls.items(), grads, strict=True):
        if len(call.inputs) != rows:
            raise Uncapturable(f"{path!r} was called with {len(call.inputs)} rows, not {rows}")
        if call.inputs._version != call.version:
            raise Uncapturable(f"the input of {path!r} was overwritten after its use")
        activations[path] = Activation(call.inputs, gradient, call.outputs)
    return activations


class Capture:
    """Capture of the activations of all owners in one module, for use by one thread."""

    def __init__(
        self,
        module: nn.Module,
        parts: Mapping[str, Owner],
        task: Task,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.module, self.task = module, task
        self._layout = layout
        self._parts = parts
        disable_grad(module)
        for value in module.parameters():
            if value.dim() == 4:
                value.data = value.data.contiguous(memory_format=layout)

    def run(
        self, features: Shaped[Tensor, "samples ..."], labels: Shaped[Tensor, "samples ..."]
    ) -> dict[str, Activation]:
        """Run a chunk of samples through the model and return the activation of each owner.

        Raises:
            Uncapturable: A module was not called exactly once with a row for each sample, or its
                input was overwritten.
        """
        leaf = features.detach()
        if leaf.is_floating_point():
            leaf = leaf.requires_grad_()
        # The leaf is copied, as a first layer that works in place would overwrite it.
        copied = leaf.clone()
        if leaf.dim() == 4:
            copied = copied.contiguous(memory_format=self._layout)
        with capture_calls(self._parts) as calls, torch.enable_grad():
            losses = self.task.losses(self.task.outputs(self.module, copied), labels)
        if losses.shape != labels.shape[:1]:
            raise Uncapturable(
                f"the loss has shape {tuple(losses.shape)}, not one entry per sample"
            )
        return activations_of(calls, self._parts, losses, rows=len(features))

    def part(self, path: str) -> nn.Module:
        """Return the captured module at a path."""
        return self._parts[path].module


def _hook(path: str, calls: dict[str, CapturedCall]) -> Callable[..., Tensor | None]:
    def record(
        module: nn.Module, args: tuple[_AnyValue, ...], kwargs: dict[str, _AnyValue], out: _AnyValue
    ) -> Tensor | None:
        module_text = f"{type(module).__name__} {path!r}"
        if path in calls:
            raise Uncapturable(f"{module_text} was called twice")
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            raise Uncapturable(f"{module_text} was not called with one tensor")
        if not isinstance(out, Tensor) or out.shape[:1] != args[0].shape[:1]:
            raise Uncapturable(f"{module_text} does not return one tensor with one row per sample")
        # If the output does not require gradients, as after an embedding of tokens, a copy that
        # requires them replaces it.
        replacement = None if out.requires_grad else out.detach().requires_grad_().clone()
        output = out if replacement is None else replacement
        # The edge is stored now, because a following in-place ReLU moves the tensor to another
        # edge.
        edge = get_gradient_edge(output)
        value = args[0]
        entry = get_gradient_edge(value) if value.requires_grad else None
        outputs = tuple(output.shape[1:])
        calls[path] = CapturedCall(value.detach(), value._version, edge, outputs, entry)
        return replacement

    return record


_BLOCK_BYTES = 16 << 20
"""Size of the per-sample gradients that the generic kernel forms together."""


def generic_kernel(
    layer: Layer, copies: int = 1, cut: Mapping[str, int] | None = None
) -> LayerKernel:
    """Return a kernel that forms each sample's gradient of one module with ``torch.func``.

    Args:
        layer: Module and updates.
        copies: Number of consecutive rows that belong to one sample; their gradients are summed.
        cut: Number of leading entries that are used, by name in the module, for each parameter that
            is used in part.
    """
    stacks = {name: layer.stacked(name) for name in layer.updates}
    updates = {name: value.flatten(1) for name, value in stacks.items() if value is not None}
    weights = sum(value.shape[1] for value in updates.values())
    block = max(1, _BLOCK_BYTES // (4 * weights))

    def kernel(
        module: nn.Module,
        inputs: Shaped[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        a = _contiguous_clone(inputs).view(-1, copies, *inputs.shape[1:])
        b = _contiguous_clone(grads).view(-1, copies, *grads.shape[1:])
        # The size of blocks does not depend on the number of samples, so that results are bitwise
        # reproducible.
        products = []
        for start in range(0, len(a), block):
            rows = slice(start, start + block)
            products.append(_chunk_products(module, updates, a[rows], b[rows], cut or {}))
        return LayerProducts.concatenate(products)

    return kernel


def _chunk_products(
    module: nn.Module,
    updates: dict[str, Tensor],
    inputs: Shaped[Tensor, "samples copies ..."],
    grads: Float[Tensor, "samples copies ..."],
    cut: Mapping[str, int],
) -> LayerProducts:
    values = {name: _contiguous_clone(getattr(module, name).detach()) for name in updates}

    def gradient(sample: Tensor, grad: Tensor) -> dict[str, Tensor]:
        def run(params: dict[str, Tensor]) -> Tensor:
            out: Tensor = functional_call(module, params, (sample,))
            return out

        pull = vjp(run, values)[1]
        by_name: dict[str, Tensor] = pull(grad)[0]
        return by_name

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        batched = vmap(gradient)(inputs, grads)
    gradients = {name: value.flatten(1) for name, value in batched.items()}
    for name, count in cut.items():
        gradients[name][:, count:] = 0
    by_param = [products_of_gradients(gradients[name], update) for name, update in updates.items()]
    total = by_param[0]
    for products in by_param[1:]:
        total = total.add(products)
    return total


def _contiguous_clone(values: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Return a contiguous copy, because torch 2.13 cannot differentiate other layouts in vmap."""
    # contiguous() is not enough: it keeps the strides of maps with one pixel.
    return values.clone(memory_format=torch.contiguous_format)


Measure: TypeAlias = Callable[[Tensor, Tensor], LayerProducts]

VMAP_CHUNK = 8
"""Number of samples whose full gradients are in memory together. Larger chunks are slower."""


def stack_updates(base: Model, updates: Sequence[Params]) -> dict[str, Tensor]:
    """Return every client's update of each parameter, one row for each client."""
    return {
        name: torch.stack([update[name].detach().flatten().to(value.dtype) for update in updates])
        if updates
        else value.new_zeros(0, value.numel())
        for name, value in base.params.items()
    }


def vmap_measure(
    module: nn.Module, base: Model, updates: Mapping[str, Tensor], cut: Mapping[str, int]
) -> Measure:
    """Return a function that computes products from per-sample gradients by ``torch.func``.

    Args:
        module: Module with the base model's values.
        base: Model with the audited parameters.
        updates: Every client's update, from :func:`stack_updates`.
        cut: As in :func:`loop_measure`.
    """
    disable_grad(module)
    task = base.architecture.task
    params: Params = {name: value for name, value in module.named_parameters() if name in updates}

    def loss(values: Params, feature: Tensor, label: Tensor) -> Tensor:
        def run(*args: Tensor, **inputs: Tensor) -> object:
            output: object = functional_call(module, values, args, inputs)
            return output

        out = task.outputs(run, feature[None])
        return task.losses(out, label[None]).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def measure(features: Tensor, labels: Tensor) -> LayerProducts:
        by_name: dict[str, Tensor] = gradients(params, features, labels)
        flat = {name: value.flatten(1) for name, value in by_name.items()}
        for name, count in cut.items():
            flat[name][:, count:] = 0
        return _sum_products(flat, updates)

    return measure


def loop_measure(
    module: nn.Module, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> Measure:
    """Return a function that computes products by one backward pass per sample, as a reference.

    Args:
        module: Module with the base model's values.
        base: Model with the audited parameters.
        updates: Every client's update.
        cut: Number of leading entries that are used, for each parameter that is used in part.
    """
    disable_grad(module)
    params: Params = {n: value for n, value in module.named_parameters() if n in base.params}
    for value in params.values():
        value.requires_grad_()

    def measure_sample(feature: Tensor, label: Tensor) -> LayerProducts:
        gradient = _gradient(module, params, base.architecture.task, feature, label)
        for name, count in cut.items():
            gradient[name] = first_entries(gradient[name], count)
        dots = [inner_product(gradient, update) for update in updates]
        return LayerProducts(
            torch.tensor([dots], dtype=torch.float64).view(1, -1),
            torch.tensor([inner_product(gradient, gradient)], dtype=torch.float64),
        )

    def measure(features: Tensor, labels: Tensor) -> LayerProducts:
        return LayerProducts.concatenate(list(map(measure_sample, features, labels)))

    return measure


def first_entries(values: Tensor, count: int) -> Tensor:
    """Return a copy in which all entries after the first ``count`` are zero."""
    entries = values.flatten().clone()
    entries[count:] = 0
    return entries.reshape(values.shape)


def inner_product(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """Return the inner product of two sets of parameters."""
    return sum(
        float(torch.dot(value.flatten(), right[name].flatten().to(value.dtype)))
        for name, value in left.items()
    )


def _gradient(
    module: nn.Module, params: Params, task: Task, feature: Tensor, label: Tensor
) -> dict[str, Tensor]:
    with torch.enable_grad():
        total = task.losses(task.outputs(module, feature[None].clone()), label[None]).sum()
    if not total.requires_grad:
        return {name: torch.zeros_like(value) for name, value in params.items()}
    gradients = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if gradient is None else gradient
        for (name, value), gradient in zip(params.items(), gradients, strict=True)
    }


def _sum_products(
    gradients: Mapping[str, Float[Tensor, "samples _"]],
    updates: Mapping[str, Shaped[Tensor, "clients _"]],
) -> LayerProducts:
    dots = sum((gradients[name] @ update.t()).double() for name, update in updates.items())
    squared = sum(gradients[name].square().sum(1).double() for name in updates)
    if not isinstance(dots, Tensor) or not isinstance(squared, Tensor):
        raise TypeError("a model without parameters has no gradients")
    return LayerProducts(dots, squared)
