"""Immutable values that the packages of fedaudit exchange: samples, models, and their parameters.

Shape annotations use the axis names ``rounds``, ``clients``, ``samples`` and ``classes``.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from math import floor
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy import ndarray
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedaudit.core.arguments import names_checked
from fedaudit.core.errors import BadInput
from fedaudit.core.naming import Setting as Setting
from fedaudit.core.seeds import seed_globally
from fedaudit.core.tasks import CLASSIFICATION, InputLayout, PerSampleLoss, Task, pack_inputs

_MAX_TEXT = 60
"""Number of characters of a text that a summary shows."""

Kind = TypeVar("Kind", bound=type)


def short_repr(kind: Kind) -> Kind:
    """Replace a dataclass's generated ``repr`` by one that never prints samples, targets or ids.

    Apply this decorator above ``@dataclass``. Content hashes of objects are computed from the
    generated ``repr``, which stays available as ``__wrapped__``.
    """

    @functools.wraps(kind.__repr__)
    def summarise(self: object) -> str:
        names = (field.name for field in dataclasses.fields(self))  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names}
        # Most fields of data sets are optional.
        parts = (f"{name}={summary(value)}" for name, value in values.items() if _is_set(value))
        return f"{type(self).__qualname__}({', '.join(parts)})"

    type.__setattr__(kind, "__repr__", summarise)
    return kind


def _is_set(value: object) -> bool:
    return value is not None and not (isinstance(value, Mapping | list | tuple) and not value)


def summary(value: object) -> str:
    """Return a short text for a value: the shape of an array, the size of a collection."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"<{type(value).__name__} {tuple(value.shape)}>"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…")
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, type):
        return value.__qualname__
    # A repr that @dataclass generates has one __wrapped__; that of short_repr has two, nested.
    if hasattr(type(value).__repr__, "__wrapped__") and dataclasses.is_dataclass(value):
        inner = type(value).__repr__.__wrapped__  # type: ignore[attr-defined]
        if hasattr(inner, "__wrapped__"):
            length = getattr(value, "__len__", None)
            return f"<{type(value).__name__} of {length()}>" if length else repr(value)
    return f"<{getattr(value, '__qualname__', type(value).__name__)}>"


ClientId: TypeAlias = int
Params: TypeAlias = dict[str, Tensor]

NO_CLIENT: ClientId = -1
"""Stands for a client number if no client trains on a sample."""


class Capability(Flag):
    """Information and abilities that an attack needs; a view offers some of them.

    Attributes:
        PREDICTIONS: Outputs, on any sample, of a model that was trained on the target's data.
        GLOBAL_MODEL: The parameters of the model that the server sends.
        UPDATE: The change of that model by the training of a client, or of all clients of a round.
        UPLOADS: The upload of each client.
        ROUNDS: Several rounds of the training.
        AUXILIARY_DATA: The adversary's data from the same population.
        CHOOSES_MODEL: The adversary decides which model the server sends to a client.
        REFERENCE_MODELS: Models that the adversary trains in the same way as the federation.
        CHOOSES_UPLOAD: The adversary decides what one of the clients uploads.
        NEXT_MODEL: The model that the server aggregates from a round's uploads.
        CONTROL_VARIATES: The changes of each client's control variate in all uploads (SCAFFOLD).
    """

    NOTHING = 0
    PREDICTIONS = auto()
    GLOBAL_MODEL = auto()
    UPDATE = auto()
    UPLOADS = auto()
    ROUNDS = auto()
    AUXILIARY_DATA = auto()
    CHOOSES_MODEL = auto()
    REFERENCE_MODELS = auto()
    CHOOSES_UPLOAD = auto()
    NEXT_MODEL = auto()
    CONTROL_VARIATES = auto()


@short_repr
@dataclass(frozen=True, init=False)
class Samples:
    """Samples with targets, and with ids that stay the same in every step.

    Attributes:
        features: One row per sample: floating-point numbers that are scaled for the model, or whole
            numbers such as tokens.
        targets: Targets of the task's loss, one row per sample: class indices, numbers, rows of
            labels, or sequences.
        ids: A number that identifies each sample within its data set.
        inputs: Layout of a model's inputs within the features; None for a single input.
        labels: Class of each sample, by which samples are divided among clients and drawn. For a
            task without classes, a group that the user chooses; by default, all are in group 0.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Samples([[0.0, 1.0], [1.0, 0.0]], [1, 0]).labels
        tensor([1, 0])
    """

    features: Shaped[Tensor, "samples ..."]
    targets: Shaped[Tensor, "samples ..."]
    ids: Int[Tensor, " samples"]
    labels: Int[Tensor, " samples"]
    inputs: InputLayout | None

    @names_checked
    def __init__(
        self,
        features: object,
        targets: object,
        ids: object = None,
        labels: object = None,
        inputs: InputLayout | None = None,
    ) -> None:
        """Construct samples from tensors, arrays or lists; ids default to 0, 1, 2, ...

        Features may be a dictionary of a model's inputs by name (``input_ids``,
        ``attention_mask``). Labels default to the targets if these are whole numbers, else to 0.

        Raises:
            BadInput: Features, targets, ids and labels differ in length, or a value is not a
                number.
        """
        if isinstance(features, Mapping):
            inputs, x = pack_inputs(
                {str(name): as_tensor(value) for name, value in features.items()}
            )
        else:
            x = as_tensor(features)
        y = as_tensor(targets)
        ids = torch.arange(len(y)) if ids is None else as_tensor(ids)
        if labels is None:
            has_classes = y.ndim == 1 and not y.is_floating_point()
            labels = y if has_classes else torch.zeros(len(y), dtype=torch.int64, device=y.device)
        parts = {"features": x, "targets": y, "ids": ids, "labels": as_tensor(labels)}
        for name, value in {**parts, "inputs": inputs}.items():
            object.__setattr__(self, name, value)
        sizes = [len(part) for part in parts.values()]
        if len(set(sizes)) != 1:
            raise BadInput(
                "features, targets, ids and labels must have one entry per sample, got "
                f"{sizes[0]}, {sizes[1]}, {sizes[2]} and {sizes[3]}"
            )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def has_whole_numbers(self) -> bool:
        """True if features, or one of several inputs, are whole numbers such as tokens."""
        inputs = self.inputs.fields if self.inputs else ()
        return not self.features.is_floating_point() or any(field.whole for field in inputs)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Tensors that identify the samples: ids, labels, features, and targets if not labels."""
        labels, targets = self.labels, self.targets
        are_equal = targets is labels or (
            targets.dtype == labels.dtype and torch.equal(targets, labels)
        )
        return (self.ids, labels, self.features, *(() if are_equal else (targets,)))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Samples":
        """Return the samples with a function applied to every tensor, such as a move to a GPU.

        Labels that are the same tensor as the targets stay the same tensor.
        """
        targets = change(self.targets)
        labels = targets if self.labels is self.targets else change(self.labels)
        return Samples(change(self.features), targets, change(self.ids), labels, self.inputs)

    def replace(self, **parts: Tensor) -> "Samples":
        """Return the samples with other ``features``, ``targets``, ``ids`` or ``labels``.

        Labels that are the same tensor as the targets change with them.
        """
        tensors = {"features": self.features, "targets": self.targets, "ids": self.ids}
        if self.labels is not self.targets or "targets" not in parts:
            tensors["labels"] = self.labels
        return Samples(**(tensors | parts), inputs=self.inputs)

    def take(self, index: Tensor | slice) -> "Samples":
        """Return the samples at some positions (integers, a mask or a slice), in their order."""
        return self.each(lambda part: part[index])

    @staticmethod
    def concatenate(*parts: "Samples") -> "Samples":
        """Concatenate samples."""
        targets = torch.cat([part.targets for part in parts])
        labels_are_targets = all(part.labels is part.targets for part in parts)
        return Samples(
            torch.cat([part.features for part in parts]),
            targets,
            torch.cat([part.ids for part in parts]),
            targets if labels_are_targets else torch.cat([part.labels for part in parts]),
            parts[0].inputs,
        )


def as_tensor(values: object) -> Tensor:
    """Convert an array, table or list to a tensor of whole or floating-point numbers.

    Raises:
        BadInput: A value is not a number.
    """
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise BadInput(
            f"samples are arrays of numbers with one row per sample, all of the same length: "
            f"{error}; pad the shorter rows"
        ) from error
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise BadInput(
            "samples are arrays of numbers with one row per sample, got "
            f"{type(values).__name__} of {array.dtype}; encode texts as numbers, such as labels as "
            "class indices from 0"
        )
    array = array.astype(np.int64) if array.dtype.kind == "b" else array
    return torch.from_numpy(np.array(array))


@dataclass(frozen=True)
class Batch:
    """The samples of one training step.

    Attributes:
        x: Features, one row per sample.
        y: Targets of the samples; rows of class probabilities for soft labels.
        ids: Ids of the samples, for hooks that treat some samples differently.
    """

    x: Shaped[Tensor, "samples ..."]
    y: Shaped[Tensor, "samples ..."]
    ids: Int[Tensor, " samples"]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Architecture:
    """A model without its parameters.

    Two architectures are equal if their names and settings are equal. For training in several
    processes, ``build`` must be importable: a function, class or ``functools.partial`` of one.

    Attributes:
        name: Catalogue name, or ``package.module:callable`` for a custom model.
        build: Function that returns a new, untrained module.
        settings: Keyword settings of ``build``, for records and comparison.
        task: Task that the model is trained for.
    """

    name: str
    build: Callable[[], nn.Module] = field(compare=False, repr=False)
    settings: tuple[tuple[str, Setting], ...] = ()
    task: Task = field(default=CLASSIFICATION, compare=False, repr=False)

    @property
    def loss(self) -> PerSampleLoss:
        """Loss of each sample, of (outputs, targets); clients minimise its mean."""
        return self.task.losses

    def build_module(self, seed: int = 0) -> nn.Module:
        """Return a new module, without changing the global random state.

        Frozen parameters belong to the architecture: every model has those of seed 0.

        Args:
            seed: Seed of the initial parameters.
        """
        with torch.random.fork_rng(devices=[]):
            seed_globally(seed)
            return self.build()

    def initial(self, seed: int) -> "Model":
        """Return a newly initialised model."""
        return Model.of(self, self.build_module(seed))


@dataclass(frozen=True)
class Model:
    """An architecture with parameters.

    Attributes:
        architecture: Architecture that builds the module.
        params: Trainable parameters by name, in the module's order. Frozen parameters belong to
            the architecture and are never uploaded, averaged or stored.
        buffers: Floating-point buffers (running statistics of normalisation layers).
    """

    architecture: Architecture
    params: Params
    buffers: Params = field(default_factory=dict)

    @staticmethod
    def of(architecture: Architecture, module: nn.Module) -> "Model":
        """Return a model with copies of a module's trainable parameters and buffers.

        Raises:
            BadInput: The module has lazy layers whose sizes are not known yet.
        """
        if any(isinstance(value, UninitializedParameter) for value in module.parameters()):
            raise BadInput(
                f"the {type(module).__name__} has lazy layers whose sizes are not known yet; run "
                "it on a batch after you construct it"
            )
        return Model(
            architecture,
            {
                name: value.detach().clone(memory_format=torch.contiguous_format)
                for name, value in module.named_parameters()
                if value.requires_grad
            },
            {
                name: value.detach().clone(memory_format=torch.contiguous_format)
                for name, value in module.named_buffers()
                if value.is_floating_point()
            },
        )

    def load_into(self, module: nn.Module) -> nn.Module:
        """Copy the parameters into a module of this architecture, in place, and return the module.

        Raises:
            BadInput: The module lacks a parameter, or has one of another shape.
        """
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in (self.params | self.buffers).items():
                tensor = tensors.get(name)
                if tensor is None or tensor.shape != value.shape:
                    shape = None if tensor is None else tuple(tensor.shape)
                    raise BadInput(
                        f"parameter {name!r} has shape {tuple(value.shape)}, but shape {shape} in "
                        f"the {self.architecture.name!r} module; use the architecture that the "
                        "parameters were trained with"
                    )
                tensor.copy_(value)
        return module

    def tensors(self) -> Params:
        """Return parameters and buffers in one dictionary, for checkpoints and uploads."""
        named_params = {f"params/{name}": value for name, value in self.params.items()}
        return named_params | {f"buffers/{name}": value for name, value in self.buffers.items()}

    @staticmethod
    def from_tensors(architecture: Architecture, tensors: Params) -> "Model":
        """Return a model with the parameters and buffers that :meth:`tensors` returned."""
        parts: dict[str, Params] = {"params": {}, "buffers": {}}
        for key, value in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = value
        return Model(architecture, parts["params"], parts["buffers"])

    def module(self) -> nn.Module:
        """Return a new module with the model's parameters, in evaluation mode."""
        return self.load_into(self.architecture.build_module()).eval()


def positions_of(values: Int[ndarray, " samples"]) -> dict[int, Int[ndarray, " _"]]:
    """Return each value that occurs, in ascending order, with its ascending positions.

    The values are sorted once, since one search per value would take quadratic time.
    """
    order = np.argsort(values, kind="stable")
    # With counts, since np.unique without them imports numpy.ma.
    distinct_values, counts = np.unique(values, return_counts=True)
    return dict(zip(distinct_values.tolist(), np.split(order, counts.cumsum())[:-1], strict=True))


def chunks(total: int, size: int) -> Iterator[slice]:
    """Yield slices of a fixed size that cover ``range(total)``.

    The chunk size can change the last bits of a batched result. Callers therefore never derive
    ``size`` from the number of workers.
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def flat(params: Mapping[str, Tensor]) -> Float[Tensor, " parameters"]:
    """Return all entries as one vector, in the mapping's order."""
    return torch.cat([value.flatten() for value in params.values()])


def tail_size(params: Mapping[str, Tensor], fraction: float) -> int:
    """Return a fraction in [0, 1] of the total number of entries, rounded down."""
    return floor(fraction * sum(value.numel() for value in params.values()))


def plus_tail(params: Mapping[str, Tensor], added: Float[Tensor, " entries"]) -> Params:
    """Return the tensors with a vector added to their last entries. Data types do not change."""
    changed, remaining = dict(params), len(added)
    for name in reversed(changed):
        part = min(remaining, changed[name].numel())
        if part:
            entries = changed[name].flatten().clone()
            entries[-part:] += added[remaining - part : remaining].to(entries.dtype)
            changed[name] = entries.reshape(changed[name].shape)
        remaining -= part
    return changed


def tail_of(params: Mapping[str, Tensor], size: int) -> Float[Tensor, " entries"]:
    """Return the last entries of all tensors, in the mapping's order."""
    parts: list[Tensor] = []
    remaining = size
    for value in reversed(list(params.values())):
        part = min(remaining, value.numel())
        parts.append(value.flatten()[value.numel() - part :])
        remaining -= part
    return torch.cat(parts[::-1])


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """Return ``a - b``, tensor by tensor."""
    return {name: a[name] - b[name] for name in a}


def add_scaled(a: Mapping[str, Tensor], b: Mapping[str, Tensor], scale: float = 1.0) -> Params:
    """Return ``a + scale * b``, tensor by tensor."""
    return {name: a[name] + scale * b[name] for name in a}


def scaled(params: Mapping[str, Tensor], factor: float) -> Params:
    """Return the tensors times a factor."""
    return {name: factor * value for name, value in params.items()}


def with_prefix(params: Params, prefix: str) -> Params:
    """Return the tensors whose names begin with a prefix, by the remaining name."""
    return {k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)}


def weighted_sum(parts: Iterable[Mapping[str, Tensor]], weights: Sequence[float]) -> Params:
    """Return ``sum_i weights[i] * parts[i]``.

    The terms are added in this order, since another order can change the last bits.

    Args:
        parts: One or more dictionaries of tensors. Only one item of an iterator is in memory at a
            time.
        weights: Weight of each dictionary.
    """
    total: Params | None = None
    for part, weight in zip(parts, weights, strict=True):
        if total is None:
            total = scaled(part, weight)
            continue
        for name, value in total.items():
            value.add_(part[name], alpha=weight)
    if total is None:
        raise IndexError("a weighted sum of nothing has no entries")
    return total


def restrict_to_common_names(parts: Sequence[Mapping[str, Tensor]]) -> list[Params]:
    """Return each dictionary of tensors restricted to the names that all dictionaries have."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return [{name: part[name] for name in names} for part in parts]


def norm(params: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of all entries."""
    return float(flat(params).norm()) if params else 0.0
