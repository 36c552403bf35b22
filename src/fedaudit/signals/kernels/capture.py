"""One forward pass and the input half of one backward pass, watched at chosen modules."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fedaudit.core.tasks import Task


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
    for (path, each), grad in zip(seen.items(), grads, strict=True):
        if len(each.inputs) != rows:
            raise Uncapturable(f"{path!r} was given {len(each.inputs)} rows, not one a sample")
        if each.inputs._version != each.version:
            raise Uncapturable(f"the input of {path!r} was overwritten after its use")
        passages[path] = Passage(each.inputs, grad, each.outputs)
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
