"""The frozen values that every part of fedaudit passes to every other.

Axis names used in shape annotations, here and everywhere: ``rounds``, ``clients``,
``samples``, ``classes``.
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

from fedaudit.core.errors import BadInput
from fedaudit.core.inputs import Inputs, packed
from fedaudit.core.naming import Setting as Setting
from fedaudit.core.seeds import seed_globally
from fedaudit.core.tasks import CLASSIFICATION, PerSampleLoss, Task

_LONGEST = 60

Kind = TypeVar("Kind", bound=type)


def short_repr(kind: Kind) -> Kind:
    """Replace a dataclass's generated ``repr`` by one that never prints samples, targets or ids.

    Apply it above ``@dataclass``. The generated one stays available as ``__wrapped__``, by which
    identities of objects are found.
    """

    @functools.wraps(kind.__repr__)
    def summarise(self: object) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        parts = (f"{field.name}={summary(getattr(self, field.name))}" for field in fields)
        return f"{type(self).__qualname__}({', '.join(parts)})"

    type.__setattr__(kind, "__repr__", summarise)
    return kind


def summary(value: object) -> str:
    """Return a value in a few characters: the shape of an array, the size of a collection."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"<{type(value).__name__} {tuple(value.shape)}>"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else value[:_LONGEST] + "…")
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, type):
        return value.__qualname__
    if hasattr(type(value).__repr__, "__wrapped__") and dataclasses.is_dataclass(value):
        inner = type(value).__repr__.__wrapped__  # type: ignore[attr-defined]
        if hasattr(inner, "__wrapped__"):
            return repr(value)
    return f"<{getattr(value, '__qualname__', type(value).__name__)}>"


ClientId: TypeAlias = int
Params: TypeAlias = dict[str, Tensor]

NOBODY: ClientId = -1
"""The owner of a sample that no client trains on."""


class Sees(Flag):
    """Parts of a run that an attack must see; a view offers some of them.

    Attributes:
        PREDICTIONS: Outputs, on any sample, of a model that was trained on the target's data.
        GLOBAL_MODEL: The parameters of the model that was sent out.
        UPDATE: How training changed that model, for a client or for a whole cohort.
        UPLOADS: What each client sent, one by one.
        ROUNDS: More than one moment of the training.
        AUXILIARY_DATA: Data of the adversary's own from the same population.
        CHOOSES_MODEL: The adversary decides which model a client is sent.
        REFERENCE_MODELS: Models that the adversary has trained as the federation trains.
        CHOOSES_UPLOAD: The adversary decides what one of the clients sends.
        NEXT_MODEL: The one model that the server makes of a round's uploads.
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


@short_repr
@dataclass(frozen=True, init=False)
class Samples:
    """Samples with what a model is to make of them; ids follow them through every stage.

    Attributes:
        features: One row a sample: floating point, already scaled for the model, or whole numbers
            such as tokens.
        targets: What a task's loss compares outputs with, one row a sample: class indices,
            numbers, rows of labels, sequences.
        ids: A number that names each sample within its data set, never re-used.
        inputs: How the inputs of a model that takes several by name lie in the features.
        labels: Class of each sample, by which data are dealt and drawn and groups are formed; of
            a task without classes the group that the user names, 0 for all where there is none.

    Examples:
        >>> Samples([[0.0, 1.0], [1.0, 0.0]], [1, 0]).labels
        tensor([1, 0])
    """

    features: Shaped[Tensor, "samples ..."]
    targets: Shaped[Tensor, "samples ..."]
    ids: Int[Tensor, " samples"]
    labels: Int[Tensor, " samples"]
    inputs: Inputs | None

    def __init__(
        self,
        features: object,
        targets: object,
        ids: object = None,
        labels: object = None,
        inputs: Inputs | None = None,
    ) -> None:
        """Samples from tensors, or from arrays and lists; numbered from 0 without ids.

        Features may be a dictionary of what a model takes by name (``input_ids``,
        ``attention_mask``). Labels are the targets, where these are one whole number a sample,
        else 0.

        Raises:
            BadInput: Other than one target, id and label a sample, or what holds no numbers.
        """
        if isinstance(features, Mapping):
            inputs, x = packed({str(name): as_tensor(one) for name, one in features.items()})
        else:
            x = as_tensor(features)
        y = as_tensor(targets)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "features", x)
        object.__setattr__(self, "targets", y)
        object.__setattr__(self, "ids", torch.arange(len(y)) if ids is None else as_tensor(ids))
        if labels is None:
            whole = y.ndim == 1 and not y.is_floating_point()
            labels = y if whole else torch.zeros(len(y), dtype=torch.int64, device=y.device)
        object.__setattr__(self, "labels", as_tensor(labels))
        sizes = [len(part) for part in (x, y, self.ids, self.labels)]
        if len(set(sizes)) != 1:
            raise BadInput(
                "features, targets, ids and labels must have one entry a sample, got "
                f"{sizes[0]}, {sizes[1]}, {sizes[2]} and {sizes[3]}"
            )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def has_whole_numbers(self) -> bool:
        """True if features are whole numbers such as tokens, or one of several inputs is."""
        named = self.inputs.fields if self.inputs else ()
        return not self.features.is_floating_point() or any(one.whole for one in named)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Every tensor that is no other's copy: ids, labels, features, and targets beside labels.

        For identities: two sets of samples are the same where all of these are.
        """
        given, own = self.labels, self.targets
        same = own is given or (own.dtype == given.dtype and torch.equal(own, given))
        return (self.ids, given, self.features, *(() if same else (own,)))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Samples":
        """The samples with every tensor changed in the same way; labels that are targets stay so.

        Args:
            change: Such as a move to another device.
        """
        targets = change(self.targets)
        labels = targets if self.labels is self.targets else change(self.labels)
        return Samples(change(self.features), targets, change(self.ids), labels, self.inputs)

    def replace(self, **parts: Tensor) -> "Samples":
        """The samples with some of ``features``, ``targets``, ``ids`` and ``labels`` replaced.

        Labels that are the targets follow them.
        """
        own = {"features": self.features, "targets": self.targets, "ids": self.ids}
        if self.labels is not self.targets or "targets" not in parts:
            own["labels"] = self.labels
        return Samples(**(own | parts), inputs=self.inputs)

    def take(self, index: Tensor | slice) -> "Samples":
        """The samples at the given positions (integers, a mask or a slice), in that order."""
        return self.each(lambda part: part[index])

    @staticmethod
    def joined(*parts: "Samples") -> "Samples":
        """All samples of the parts, in the order given."""
        targets = torch.cat([part.targets for part in parts])
        same = all(part.labels is part.targets for part in parts)
        return Samples(
            torch.cat([part.features for part in parts]),
            targets,
            torch.cat([part.ids for part in parts]),
            targets if same else torch.cat([part.labels for part in parts]),
            parts[0].inputs,
        )


def as_tensor(values: object) -> Tensor:
    """An array, table or list as a tensor of whole or floating-point numbers.

    Raises:
        BadInput: It holds no numbers.
    """
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise BadInput(
            f"samples are arrays of numbers with a row a sample, all of one length: {error}; fill "
            "the shorter ones up"
        ) from error
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise BadInput(
            f"samples are arrays of numbers with a row a sample, got {type(values).__name__} of "
            f"{array.dtype}; turn texts into numbers, as labels into class indices from 0"
        )
    array = array.astype(np.int64) if array.dtype.kind == "b" else array
    return torch.from_numpy(np.array(array))


@dataclass(frozen=True)
class Batch:
    """The samples of one training step.

    Attributes:
        x: Features, one row a sample.
        y: Targets of the samples; one row of class probabilities where classes are soft.
        ids: The samples' ids; hooks that treat some samples apart read them.
    """

    x: Shaped[Tensor, "samples ..."]
    y: Shaped[Tensor, "samples ..."]
    ids: Int[Tensor, " samples"]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Architecture:
    """Recipe of a model, apart from its parameters.

    Two architectures are the same when name and settings are; ``build`` must be importable
    (a function, class or ``functools.partial`` of one) for training in several processes.

    Attributes:
        name: Catalogue name, or ``package.module:callable`` for a user's own.
        build: Makes a fresh, untrained module.
        settings: Keyword settings that ``build`` was given, for records and comparison.
        task: What the model is trained for.
    """

    name: str
    build: Callable[[], nn.Module] = field(compare=False, repr=False)
    settings: tuple[tuple[str, Setting], ...] = ()
    task: Task = field(default=CLASSIFICATION, compare=False, repr=False)

    @property
    def loss(self) -> PerSampleLoss:
        """Loss of each sample, of (outputs, targets); its mean is what clients minimise."""
        return self.task.losses

    def built(self, seed: int = 0) -> nn.Module:
        """A fresh module; the global random state is left as it was.

        Frozen parameters are part of the architecture and no model's own: those of seed 0.

        Args:
            seed: Of what is drawn.
        """
        with torch.random.fork_rng(devices=[]):
            seed_globally(seed)
            return self.build()

    def initial(self, seed: int) -> "Model":
        """A freshly initialised model."""
        return Model.of(self, self.built(seed))


@dataclass(frozen=True)
class Model:
    """An architecture with parameters: something that can be run.

    Attributes:
        architecture: How to build the module.
        params: Trainable parameters by name, in the module's order. Frozen ones are the
            architecture's: nobody uploads, averages or stores them.
        buffers: Floating-point buffers (running statistics of normalisation layers).
    """

    architecture: Architecture
    params: Params
    buffers: Params = field(default_factory=dict)

    @staticmethod
    def of(architecture: Architecture, module: nn.Module) -> "Model":
        """A copy of the module's present trainable parameters and its buffers.

        Raises:
            BadInput: Layers of the module do not know their sizes yet.
        """
        if any(isinstance(value, UninitializedParameter) for value in module.parameters()):
            raise BadInput(
                f"layers of the {type(module).__name__} do not know their sizes yet; run it on a "
                "batch where it is made"
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
        """Copies the parameters into a module of this architecture, in place, and returns it.

        Raises:
            BadInput: The module lacks a parameter, or has one of another shape.
        """
        there = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in (self.params | self.buffers).items():
                slot = there.get(name)
                if slot is None or slot.shape != value.shape:
                    shape = None if slot is None else tuple(slot.shape)
                    raise BadInput(
                        f"parameter {name!r} of shape {tuple(value.shape)} does not fit the "
                        f"{self.architecture.name!r} module, which has {shape} there; use the "
                        "architecture that the parameters were trained with"
                    )
                slot.copy_(value)
        return module

    def tensors(self) -> Params:
        """Parameters and buffers in one dictionary, for checkpoints and uploads."""
        named = {f"params/{name}": value for name, value in self.params.items()}
        return named | {f"buffers/{name}": value for name, value in self.buffers.items()}

    @staticmethod
    def from_tensors(architecture: Architecture, tensors: Params) -> "Model":
        """The inverse of :meth:`tensors`."""
        parts: dict[str, Params] = {"params": {}, "buffers": {}}
        for key, value in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = value
        return Model(architecture, parts["params"], parts["buffers"])

    def module(self) -> nn.Module:
        """A new module with these parameters, in evaluation mode."""
        return self.load_into(self.architecture.built()).eval()


def positions_of(values: Int[ndarray, " samples"]) -> dict[int, Int[ndarray, " _"]]:
    """Return the ascending positions of each value that occurs, by ascending value.

    Samples are sorted once: to look through all of them for each of many values takes a time that
    grows with the square of a file's size.
    """
    order = np.argsort(values, kind="stable")
    # With counts, as for values alone NumPy loads numpy.ma first, whose masks it asks for.
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), np.split(order, counts.cumsum())[:-1], strict=True))


def chunks(total: int, size: int) -> Iterator[slice]:
    """Slices of a fixed size that cover ``range(total)``.

    Boundaries depend on the arguments alone: another chunk size can change the last bits of
    a batched result, so callers fix ``size`` once and never derive it from the worker count.
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def flat(params: Mapping[str, Tensor]) -> Float[Tensor, " parameters"]:
    """All entries as one vector, in the mapping's order."""
    return torch.cat([value.flatten() for value in params.values()])


def tail_size(params: Mapping[str, Tensor], share: float) -> int:
    """Number of the last entries, of all entries in the mapping's order.

    Args:
        params: Any tensors by name.
        share: Of all entries, in [0, 1]; rounded down to whole entries.
    """
    return floor(share * sum(value.numel() for value in params.values()))


def plus_tail(params: Mapping[str, Tensor], added: Float[Tensor, " entries"]) -> Params:
    """The values with a vector added to their last entries, in each entry's own precision."""
    changed, left = dict(params), len(added)
    for name in reversed(changed):
        part = min(left, changed[name].numel())
        if part:
            entries = changed[name].flatten().clone()
            entries[-part:] += added[left - part : left].to(entries.dtype)
            changed[name] = entries.reshape(changed[name].shape)
        left -= part
    return changed


def tail_of(params: Mapping[str, Tensor], size: int) -> Float[Tensor, " entries"]:
    """The last entries of all, in the mapping's order."""
    parts: list[Tensor] = []
    left = size
    for value in reversed(list(params.values())):
        part = min(left, value.numel())
        parts.append(value.flatten()[value.numel() - part :])
        left -= part
    return torch.cat(parts[::-1])


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Params:
    """``left - right``, entry by entry."""
    return {name: left[name] - right[name] for name in left}


def plus(left: Mapping[str, Tensor], right: Mapping[str, Tensor], scale: float = 1.0) -> Params:
    """``left + scale * right``, entry by entry."""
    return {name: left[name] + scale * right[name] for name in left}


def scaled(params: Mapping[str, Tensor], factor: float) -> Params:
    """Every entry times the factor."""
    return {name: factor * value for name, value in params.items()}


def weighted_sum(parts: Iterable[Mapping[str, Tensor]], weights: Sequence[float]) -> Params:
    """``sum_i weights[i] * parts[i]``, added up in the order given (so that bits are fixed).

    Args:
        parts: At least one; of those that are made one after another, none is kept.
        weights: One for each.
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


def common(parts: Sequence[Mapping[str, Tensor]]) -> list[Params]:
    """The entries that all parts have, of each part."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return [{name: part[name] for name in names} for part in parts]


def norm(params: Mapping[str, Tensor]) -> float:
    """Euclidean length of all entries together."""
    return float(flat(params).norm()) if params else 0.0
