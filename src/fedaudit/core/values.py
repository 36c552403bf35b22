"""The frozen values that every part of fedaudit passes to every other.

Axis names used in shape annotations, here and everywhere: ``rounds``, ``clients``,
``samples``, ``classes``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter

from fedaudit.core.errors import BadInput

ClientId: TypeAlias = int
Params: TypeAlias = dict[str, Tensor]
Setting: TypeAlias = int | float | str | bool
PerSampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

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
    """

    NOTHING = 0
    PREDICTIONS = auto()
    GLOBAL_MODEL = auto()
    UPDATE = auto()
    UPLOADS = auto()
    ROUNDS = auto()
    AUXILIARY_DATA = auto()
    CHOOSES_MODEL = auto()


@dataclass(frozen=True, init=False)
class Samples:
    """Labelled samples whose ids follow them through every stage.

    Attributes:
        features: One row a sample; floating point, already scaled for the model.
        labels: Class index of each sample.
        ids: A number that names each sample within its data set, never re-used.
    """

    features: Shaped[Tensor, "samples ..."]
    labels: Int[Tensor, " samples"]
    ids: Int[Tensor, " samples"]

    def __init__(self, features: object, labels: object, ids: object = None) -> None:
        """Samples from tensors, or from arrays and lists; numbered from 0 without ids.

        Raises:
            BadInput: Other than one label and id a sample, or what holds no numbers.
        """
        for name, value in (("features", features), ("labels", labels), ("ids", ids)):
            if value is None and name == "ids":
                value = torch.arange(len(self.labels))
            object.__setattr__(self, name, value if isinstance(value, Tensor) else _tensor(value))
        sizes = {len(self.features), len(self.labels), len(self.ids)}
        if len(sizes) != 1:
            raise BadInput(
                f"features, labels and ids must have one entry a sample, got "
                f"{len(self.features)}, {len(self.labels)} and {len(self.ids)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor | slice) -> "Samples":
        """The samples at the given positions (integers, a mask or a slice), in that order."""
        return Samples(self.features[index], self.labels[index], self.ids[index])

    @staticmethod
    def joined(*parts: "Samples") -> "Samples":
        """All samples of the parts, in the order given."""
        return Samples(
            torch.cat([part.features for part in parts]),
            torch.cat([part.labels for part in parts]),
            torch.cat([part.ids for part in parts]),
        )


def _tensor(values: object) -> Tensor:
    """An array, table or list as a tensor of whole or floating-point numbers."""
    array = np.asarray(values)
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
        y: Class indices, or one row of class probabilities a sample where labels are soft.
        ids: The samples' ids; hooks that treat some samples apart read them.
    """

    x: Shaped[Tensor, "samples ..."]
    y: Shaped[Tensor, "samples ..."]
    ids: Int[Tensor, " samples"]

    def __len__(self) -> int:
        return len(self.ids)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    """Cross-entropy of each sample in nats; targets are classes or class probabilities."""
    return functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Architecture:
    """Recipe of a model, apart from its parameters.

    Two architectures are the same when name and settings are; ``build`` must be importable
    (a function, class or ``functools.partial`` of one) for training in several processes.

    Attributes:
        name: Catalogue name, or ``package.module:callable`` for a user's own.
        build: Makes a fresh, untrained module.
        settings: Keyword settings that ``build`` was given, for records and comparison.
        loss: Per-sample loss of (outputs, targets); its mean is what clients minimise.
    """

    name: str
    build: Callable[[], nn.Module] = field(compare=False, repr=False)
    settings: tuple[tuple[str, Setting], ...] = ()
    loss: PerSampleLoss = field(default=cross_entropy, compare=False, repr=False)

    def initial(self, seed: int) -> "Model":
        """A freshly initialised model; the global random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build()
        return Model.of(self, module)


@dataclass(frozen=True)
class Model:
    """An architecture with parameters: something that can be run.

    Attributes:
        architecture: How to build the module.
        params: Trainable parameters by name, in the module's order.
        buffers: Floating-point buffers (running statistics of normalisation layers).
    """

    architecture: Architecture
    params: Params
    buffers: Params = field(default_factory=dict)

    @staticmethod
    def of(architecture: Architecture, module: nn.Module) -> "Model":
        """A copy of the module's present parameters and buffers; frozen parameters are buffers.

        Raises:
            BadInput: Layers of the module do not know their sizes yet.
        """
        if any(isinstance(value, UninitializedParameter) for value in module.parameters()):
            raise BadInput(
                f"layers of the {type(module).__name__} do not know their sizes yet; run it on a "
                "batch where it is made"
            )
        frozen = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
        return Model(
            architecture,
            {
                name: value.detach().clone(memory_format=torch.contiguous_format)
                for name, value in module.named_parameters()
                if value.requires_grad
            },
            {
                name: value.detach().clone(memory_format=torch.contiguous_format)
                for name, value in (*module.named_buffers(), *frozen)
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
        with torch.random.fork_rng(devices=[]):
            module = self.architecture.build()
        return self.load_into(module).eval()


def chunks(total: int, size: int) -> Iterator[slice]:
    """Slices of a fixed size that cover ``range(total)``.

    Boundaries depend on the arguments alone: another chunk size can change the last bits of
    a batched result, so callers fix ``size`` once and never derive it from the worker count.
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
