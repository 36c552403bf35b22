"""One forward pass and the input half of one backward pass, watched at chosen modules.

Modules without a kernel, and models that cannot be taken apart, go through ``torch.func``.
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
from fedaudit.signals.kernels import Layer, LayerKernel, LayerProducts, direct


class Uncapturable(Exception):
    """The model does something that watching its modules cannot follow."""


class Owner(NamedTuple):
    """A module with audited parameters of its own: their names in it and in the model."""

    module: nn.Module
    names: dict[str, str]


class Passage(NamedTuple):
    """Input of a module, and the gradient at its output.

    Attributes:
        inputs: What entered.
        grads: The gradient at what left; None where that had no effect on the loss.
        outputs: Shape of what left, for one sample.
    """

    inputs: Shaped[Tensor, "samples ..."]
    grads: Float[Tensor, "samples ..."] | None
    outputs: tuple[int, ...]


class CapturedCall(NamedTuple):
    """A module's call, as watched in a forward pass.

    Attributes:
        inputs: What entered.
        version: Of the inputs' memory, which tells whether they were overwritten since.
        edge: Where the gradient of what left it arrives in a backward pass.
        outputs: Shape of what left, for one sample.
        entry: Where the gradient of what entered goes on to; None where it ends.
    """

    inputs: Tensor
    version: int
    edge: GradientEdge
    outputs: tuple[int, ...]
    entry: GradientEdge | None


def unasked(module: nn.Module) -> None:
    """Asks for the gradient of no parameter, also of a scripted module."""
    for value in module.parameters():
        # Copies of scripted modules have parameters with a history.
        if value.is_leaf:
            value.requires_grad_(False)


# What a forward hook is handed is whatever the module was: anything at all.
_Call: TypeAlias = object


def owners(module: nn.Module, audited: Iterable[str]) -> dict[str, Owner]:
    """The one module that owns each audited parameter.

    Raises:
        Uncapturable: A parameter has two owners (tied weights), or its owner holds further
            modules, whose parameters it may use in ways that cannot be watched.
    """
    known = dict(module.named_parameters())
    names = {id(known[name]): name for name in audited}
    found: dict[str, Owner] = {}
    taken: set[int] = set()
    for path, part in module.named_modules():
        own = {local: names[id(p)] for local, p in part._parameters.items() if id(p) in names}
        for local in own:
            key = id(part._parameters[local])
            if key in taken:
                raise Uncapturable(f"parameter {names[key]!r} is tied to another")
            taken.add(key)
        if own and next(part.children(), None) is not None:
            raise Uncapturable(f"{type(part).__name__} has parameters beside those of its parts")
        if own:
            found[path] = Owner(part, own)
    return found


@contextmanager
def watching(parts: Mapping[str, Owner]) -> Iterator[dict[str, CapturedCall]]:
    """Inside, calls of the owners are noted in the dictionary that is given.

    Raises:
        Uncapturable: Within the block, by an owner called twice, or not with one tensor and
            for one tensor with a row a sample.
    """
    seen: dict[str, CapturedCall] = {}
    handles = [
        part.module.register_forward_hook(_hook(path, seen), with_kwargs=True)
        for path, part in parts.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def passages_of(
    seen: Mapping[str, CapturedCall],
    parts: Mapping[str, Owner],
    losses: Float[Tensor, " samples"],
    *,
    rows: int,
    retain_graph: bool = False,
) -> dict[str, Passage]:
    """The input half of a backward pass: what entered each owner, and the gradient that arrives.

    Args:
        seen: What was watched while the losses were made.
        parts: All that should have been watched.
        losses: One a sample.
        rows: How many rows each owner should have been given.
        retain_graph: Whether a backward pass is to follow, for the other half.

    Raises:
        Uncapturable: An owner was never called or not with so many rows, or its input was
            overwritten.
    """
    for path, part in parts.items():
        if path not in seen:
            raise Uncapturable(f"{type(part.module).__name__} {path!r} was never called")
    grads = torch.autograd.grad(
        losses.sum(),
        [each.edge for each in seen.values()],
        allow_unused=True,
        retain_graph=retain_graph,
    )
    passages = {}
    for (path, each), reached in zip(seen.items(), grads, strict=True):
        if len(each.inputs) != rows:
            raise Uncapturable(f"{path!r} was given {len(each.inputs)} rows, not one a sample")
        if each.inputs._version != each.version:
            raise Uncapturable(f"the input of {path!r} was overwritten after its use")
        passages[path] = Passage(each.inputs, reached, each.outputs)
    return passages


class Capture:
    """Watches the owners inside one module; used by one thread."""

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
        unasked(module)
        for value in module.parameters():
            if value.dim() == 4:
                value.data = value.data.contiguous(memory_format=layout)

    def run(
        self, features: Shaped[Tensor, "samples ..."], labels: Shaped[Tensor, "samples ..."]
    ) -> dict[str, Passage]:
        """Passes a chunk through the model.

        Raises:
            Uncapturable: A module was not called exactly once with one tensor a sample, or
                its input was overwritten.
        """
        leaf = features.detach()
        if leaf.is_floating_point():
            leaf = leaf.requires_grad_()
        # A leaf itself must not be overwritten, as an in-place first layer would.
        entered = leaf.clone()
        if leaf.dim() == 4:
            entered = entered.contiguous(memory_format=self._layout)
        with watching(self._parts) as seen, torch.enable_grad():
            losses = self.task.losses(self.task.outputs(self.module, entered), labels)
        if losses.shape != labels.shape[:1]:
            raise Uncapturable(f"the loss has shape {tuple(losses.shape)}, not one a sample")
        return passages_of(seen, self._parts, losses, rows=len(features))

    def part(self, path: str) -> nn.Module:
        """The watched module at a path."""
        return self._parts[path].module


def _hook(path: str, seen: dict[str, CapturedCall]) -> Callable[..., Tensor | None]:
    def watch(
        module: nn.Module, args: tuple[_Call, ...], kwargs: dict[str, _Call], out: _Call
    ) -> Tensor | None:
        kind = f"{type(module).__name__} {path!r}"
        if path in seen:
            raise Uncapturable(f"{kind} was called twice")
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            raise Uncapturable(f"{kind} was not called with one tensor")
        if not isinstance(out, Tensor) or out.shape[:1] != args[0].shape[:1]:
            raise Uncapturable(f"{kind} does not return one tensor with a row a sample")
        # Where nothing before it has a gradient (a table of embeddings), one starts here.
        replaced = None if out.requires_grad else out.detach().requires_grad_().clone()
        left = out if replaced is None else replaced
        # Taken now: an in-place ReLU that follows moves the tensor to another edge.
        edge = get_gradient_edge(left)
        entered = args[0]
        entry = get_gradient_edge(entered) if entered.requires_grad else None
        outputs = tuple(left.shape[1:])
        seen[path] = CapturedCall(entered.detach(), entered._version, edge, outputs, entry)
        return replaced

    return watch


_BLOCK_BYTES = 16 << 20


def generic_kernel(
    layer: Layer, copies: int = 1, cut: Mapping[str, int] | None = None
) -> LayerKernel:
    """A kernel that forms each sample's gradient of this one module with ``torch.func``.

    Args:
        layer: Module and updates.
        copies: Rows that belong to one sample, one after the other; their gradients are added.
        cut: Of parameters, by their names in the module, that count in part only: how many of
            their first entries do.
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
        a, b = (_in_order(each).view(-1, copies, *each.shape[1:]) for each in (inputs, grads))
        # Slices of a fixed size: the block never depends on how many samples are left.
        parts = [
            _share(module, updates, a[at : at + block], b[at : at + block], cut or {})
            for at in range(0, len(a), block)
        ]
        return LayerProducts(
            torch.cat([part.dots for part in parts]),
            torch.cat([part.squared_norms for part in parts]),
        )

    return kernel


def _share(
    module: nn.Module,
    updates: dict[str, Tensor],
    inputs: Shaped[Tensor, "samples copies ..."],
    grads: Float[Tensor, "samples copies ..."],
    cut: Mapping[str, int],
) -> LayerProducts:
    own = {name: _in_order(getattr(module, name).detach()) for name in updates}

    def gradient(sample: Tensor, grad: Tensor) -> dict[str, Tensor]:
        def run(params: dict[str, Tensor]) -> Tensor:
            out: Tensor = functional_call(module, params, (sample,))
            return out

        pull = vjp(run, own)[1]
        found: dict[str, Tensor] = pull(grad)[0]
        return found

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = vmap(gradient)(inputs, grads)
    gradients = {name: value.flatten(1) for name, value in found.items()}
    for name, count in cut.items():
        gradients[name][:, count:] = 0
    shares = [direct(gradients[name], update) for name, update in updates.items()]
    total = shares[0]
    for share in shares[1:]:
        total = total.plus(share)
    return total


def _in_order(values: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The same numbers in the usual order; of others, torch 2.13 makes no gradient within vmap."""
    # Not contiguous(), which leaves maps of one pixel as they are and with them their strides.
    return values.clone(memory_format=torch.contiguous_format)


Measure: TypeAlias = Callable[[Tensor, Tensor], LayerProducts]

VMAP_CHUNK = 8
"""Samples whose whole gradients are in memory together; more are slower on a processor."""


def stacked(base: Model, updates: Sequence[Params]) -> dict[str, Tensor]:
    """Every client's update of each parameter, one row a client."""
    return {
        name: torch.stack([update[name].detach().flatten().to(value.dtype) for update in updates])
        if updates
        else value.new_zeros(0, value.numel())
        for name, value in base.params.items()
    }


def vmap_measure(
    module: nn.Module, base: Model, packed: Mapping[str, Tensor], cut: Mapping[str, int]
) -> Measure:
    """Per-sample gradients by ``torch.func``; ``cut`` as in :func:`loop_measure`."""
    unasked(module)
    task = base.architecture.task
    params: Params = {name: value for name, value in module.named_parameters() if name in packed}

    def loss(own: Params, feature: Tensor, label: Tensor) -> Tensor:
        def run(*args: Tensor, **inputs: Tensor) -> object:
            found: object = functional_call(module, own, args, inputs)
            return found

        out = task.outputs(run, feature[None])
        return task.losses(out, label[None]).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def measure(features: Tensor, labels: Tensor) -> LayerProducts:
        found: dict[str, Tensor] = gradients(params, features, labels)
        flat = {name: value.flatten(1) for name, value in found.items()}
        for name, count in cut.items():
            flat[name][:, count:] = 0
        return _products(flat, packed)

    return measure


def loop_measure(
    module: nn.Module, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> Measure:
    """Per-sample gradients by one ordinary backward pass each: what all else is checked against.

    Args:
        module: With the base model's values.
        base: Which parameters count.
        updates: Every client's.
        cut: Of parameters that count in part only: how many of their first entries do.
    """
    unasked(module)
    params: Params = {n: value for n, value in module.named_parameters() if n in base.params}
    for value in params.values():
        value.requires_grad_()

    def one(feature: Tensor, label: Tensor) -> LayerProducts:
        found = _gradient(module, params, base.architecture.task, feature, label)
        found |= {name: first_entries(found[name], count) for name, count in cut.items()}
        dots = [sum_of(found, update) for update in updates]
        return LayerProducts(
            torch.tensor([dots], dtype=torch.float64).view(1, -1),
            torch.tensor([sum_of(found, found)], dtype=torch.float64),
        )

    def measure(features: Tensor, labels: Tensor) -> LayerProducts:
        each = [one(x, y) for x, y in zip(features, labels, strict=True)]
        return LayerProducts(
            torch.cat([part.dots for part in each]),
            torch.cat([part.squared_norms for part in each]),
        )

    return measure


def first_entries(values: Tensor, count: int) -> Tensor:
    """A copy with zeros in all but the first entries."""
    entries = values.flatten().clone()
    entries[count:] = 0
    return entries.reshape(values.shape)


def sum_of(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """Inner product of two sets of parameters, added up parameter by parameter."""
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
    found = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if part is None else part
        for (name, value), part in zip(params.items(), found, strict=True)
    }


def _products(
    gradients: Mapping[str, Float[Tensor, "samples _"]],
    packed: Mapping[str, Shaped[Tensor, "clients _"]],
) -> LayerProducts:
    dots = sum((gradients[name] @ update.t()).double() for name, update in packed.items())
    squared = sum(gradients[name].square().sum(1).double() for name in packed)
    if not isinstance(dots, Tensor) or not isinstance(squared, Tensor):
        raise TypeError("a model without parameters has no gradients")
    return LayerProducts(dots, squared)
