"""Task of a model: the loss of each sample, the model's utility, and the meaning of its outputs.

Attacks need a loss for every sample, and some need class probabilities. Only a task defines whether
a model's outputs are logits of classes, numbers, or logits of tokens. The other tasks of the
catalogue are in :mod:`fedaudit.core.task_catalogue`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from fedaudit.core import arguments
from fedaudit.core.arguments import check_arguments
from fedaudit.core.errors import BadInput, type_of

_MAX_EXACT = 2**24
"""Largest number up to which all whole numbers are exact in 32-bit floating point."""


@dataclass(frozen=True)
class Field:
    """An input of a model.

    Attributes:
        name: Parameter of ``forward`` that takes the input.
        shape: Shape of the input for one sample.
        whole: True if the values are whole numbers, such as token ids.
    """

    name: str
    shape: tuple[int, ...]
    whole: bool


@dataclass(frozen=True)
class InputLayout:
    """The layout of a model's inputs within one tensor of features.

    Attributes:
        fields: The inputs, in the order of their columns.
    """

    fields: tuple[Field, ...]

    @property
    def first_shape(self) -> tuple[int, ...]:
        """Input shape for models of the catalogue: the shape of the first input of one sample."""
        return self.fields[0].shape

    def unpack(self, features: Shaped[Tensor, "samples _"]) -> dict[str, Tensor]:
        """Split features into the keyword arguments of ``forward``."""
        sizes = [math.prod(entry.shape) for entry in self.fields]
        inputs = {}
        for entry, part in zip(self.fields, torch.split(features, sizes, dim=1), strict=True):
            value = part.reshape(len(features), *entry.shape)
            inputs[entry.name] = value.long() if entry.whole else value
        return inputs


def pack_inputs(inputs: Mapping[str, Tensor]) -> tuple[InputLayout, Shaped[Tensor, "samples _"]]:
    """Concatenate the inputs of a model to one row per sample, and return their layout as well.

    Args:
        inputs: Tensors by name, with one row per sample.

    Raises:
        BadInput: There are no inputs, the inputs differ in their numbers of rows, or whole numbers
            are too large for 32-bit floating point.
    """
    scalars = [name for name, value in inputs.items() if value.ndim == 0]
    if scalars:
        raise BadInput(f"the input {scalars[0]!r} is a single number; give one row per sample")
    if not inputs or len({len(value) for value in inputs.values()}) != 1:
        sizes = ", ".join(f"{name}: {len(value)}" for name, value in inputs.items()) or "none"
        raise BadInput(
            f"inputs by name are tensors with one row per sample, got {sizes}; give them the same "
            "number of rows"
        )
    inputs = {
        n: value.long() if value.dtype == torch.bool else value for n, value in inputs.items()
    }
    is_whole = {name: not value.is_floating_point() for name, value in inputs.items()}
    dtype = torch.int64 if all(is_whole.values()) else torch.float32
    for name, value in inputs.items():
        if is_whole[name] and value.numel() and int(value.abs().max()) > _MAX_EXACT:
            raise BadInput(
                f"the input {name!r} has whole numbers up to {int(value.abs().max())}, but only "
                f"those up to {_MAX_EXACT} are exact in 32-bit floating point; renumber them from 0"
            )
    fields = tuple(Field(n, tuple(value.shape[1:]), is_whole[n]) for n, value in inputs.items())
    return InputLayout(fields), torch.cat(
        [v.reshape(len(v), -1).to(dtype) for v in inputs.values()], 1
    )


PerSampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Function of (outputs, targets) that returns one number per sample."""


class OutputKind(Flag):
    """Values that can be read from a model's outputs, in addition to a loss.

    Attributes:
        POSTERIOR: A probability for each class.
        TOKENS: A probability for each token of a sequence.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.OutputKind.POSTERIOR in fa.tasks.classification().output_kinds
        True
    """

    NOTHING = 0
    POSTERIOR = auto()
    TOKENS = auto()


class NextTokens(NamedTuple):
    """A model's predictions of tokens, and the actual tokens.

    Attributes:
        logits: Logits that predict each token.
        tokens: The actual tokens.
        counted: Whether each token counts in a loss; padding does not.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> logits, tokens = torch.zeros(1, 3, 5), torch.tensor([[4, 2, 0]])
        >>> fa.tasks.next_token().tokens(logits, tokens).counted
        tensor([[ True, False]])
    """

    logits: Float[Tensor, "samples positions tokens"]
    tokens: Int[Tensor, "samples positions"]
    counted: Bool[Tensor, "samples positions"]


class Utility(NamedTuple):
    """Measure of a model's quality on each sample.

    Attributes:
        name: Name, such as "accuracy".
        per_sample: Function of (outputs, targets) that returns the value of each sample.
        is_accuracy: Whether a value is 1 for a correct prediction and 0 for a wrong one, so that
            the mean is the fraction of correct predictions. Otherwise, smaller values are better.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> accuracy = fa.tasks.classification().utility
        >>> accuracy.per_sample(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))
        tensor([1.])
    """

    name: str
    per_sample: Callable[[Tensor, Tensor], Tensor]
    is_accuracy: bool = False


def output_tensor_of(output: object) -> Tensor:
    """Extract the output tensor from a module's return value: the value, or its ``logits``.

    Raises:
        BadInput: The object is not a tensor and has no logits.
    """
    if isinstance(output, Tensor):
        return output
    logits = (
        output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    )
    if not isinstance(logits, Tensor):
        raise BadInput(
            "the model must return a tensor, or an object or dictionary with 'logits', got "
            f"{type_of(output)}; wrap the model so that its forward returns one of these"
        )
    return logits


def _unchanged_features(features: Tensor, labels: Tensor) -> Tensor:
    return features


def _unchanged_targets(features: Tensor, targets: Tensor) -> Tensor:
    return targets


def _target_width(features: Tensor, targets: Tensor) -> int:
    """Return the number of values per target, or 0 for class indices."""
    if targets.ndim == 1:
        return 1 if targets.is_floating_point() else 0
    return targets.flatten(1).shape[1]


@arguments.dataclass(frozen=True)
class Task:
    """Task of a model: the loss and utility of a sample, and the meaning of the outputs.

    A task contains no tensors, so that an architecture with its task can be sent to other
    processes. Two tasks are equal if their names and settings are equal.

    Attributes:
        name: Catalogue name, or ``package.module:loss`` for a custom loss.
        losses: Differentiable function of (outputs, targets) that returns the loss of each sample.
            Clients minimise its mean.
        utility: Measure of a model's quality.
        output_kinds: Values other than the loss that can be read from outputs.
        extract_outputs: Function that extracts the output tensor from the module's return value.
        features: Function of (raw features, labels) that returns a model's input, or several
            inputs by name.
        targets: Function of (features, raw targets) that returns the targets of the loss.
        output_width: Function of (features, targets) that returns the number of outputs of the
            model; 0 means one output per class.
        classes: True if targets are class indices.
        tokens: Function of (outputs, targets) that returns predictions of tokens; None without
            :attr:`OutputKind.TOKENS`.
        settings: Keyword settings of the task.
        inputs: How several named inputs are packed into one feature tensor; None for a single
            input.
        forward_help: Expected signature of ``forward``, for messages; empty if it takes one tensor
            with one row per sample.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> task = fa.tasks.classification()
        >>> task.losses(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.6931])
    """

    name: str
    losses: PerSampleLoss = field(repr=False, compare=False)
    utility: Utility = field(repr=False, compare=False)
    output_kinds: OutputKind = field(default=OutputKind.NOTHING, compare=False)
    extract_outputs: Callable[[object], Tensor] = field(
        default=output_tensor_of, repr=False, compare=False
    )
    features: Callable[[Tensor, Tensor], Tensor | Mapping[str, Tensor]] = field(
        default=_unchanged_features, repr=False, compare=False
    )
    targets: Callable[[Tensor, Tensor], Tensor] = field(
        default=_unchanged_targets, repr=False, compare=False
    )
    output_width: Callable[[Tensor, Tensor], int] = field(
        default=_target_width, repr=False, compare=False
    )
    classes: bool = field(default=False, compare=False)
    tokens: Callable[[Tensor, Tensor], NextTokens] | None = field(
        default=None, repr=False, compare=False
    )
    settings: tuple[tuple[str, int | float | str | bool], ...] = ()
    inputs: InputLayout | None = None
    forward_help: str = field(default="", repr=False, compare=False)

    def outputs(self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]) -> Tensor:
        """Call a module on samples, and return the outputs that the losses expect."""
        return self.extract_outputs(self.call_module(module, x))

    def call_module(
        self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]
    ) -> object:
        """Call a module on samples, and return its unconverted return value."""
        return module(x) if self.inputs is None else module(**self.inputs.unpack(x))

    @property
    def needs_no_conversion(self) -> bool:
        """True if a module takes the features and returns the outputs, without any conversion."""
        return self.extract_outputs is output_tensor_of and self.inputs is None


def cross_entropy(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    """Return the cross-entropy of each sample in nats.

    Args:
        outputs: Logits, one row per sample.
        targets: Class indices, or rows of class probabilities.
    """
    return functional.cross_entropy(outputs, targets, reduction="none")


def is_correct(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    """Return 1 for each sample with the highest logit in its target class, else 0."""
    return (outputs.argmax(1) == targets).float()


def _class_indices(features: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim != 1 or targets.is_floating_point() or int(targets.min()) < 0:
        raise BadInput(
            "targets of the task 'classification' must be class indices from 0, one per sample, "
            f"got {describe_tensor(targets)}; name another task, such as "
            "'regression' or 'multi-label'"
        )
    return targets.long()


CLASSIFICATION = Task(
    "classification",
    cross_entropy,
    Utility("accuracy", is_correct, is_accuracy=True),
    OutputKind.POSTERIOR,
    targets=_class_indices,
    classes=True,
)


@check_arguments
def classification() -> Task:
    """Classification into one class per sample, with cross-entropy.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.classification().name
        'classification'
    """
    return CLASSIFICATION


def classification_with_loss(losses: PerSampleLoss) -> Task:
    """Return the task of classification with a loss other than cross-entropy.

    Args:
        losses: Function of (logits, class indices) that returns one number per sample.
    """
    return CLASSIFICATION if losses is cross_entropy else replace(CLASSIFICATION, losses=losses)


def missing_outputs_message(part: str, output_kinds: OutputKind, task: Task) -> str:
    """Return a message that a part needs probabilities that a task does not have.

    Args:
        part: The part, such as "the attack 'fta-c'".
        output_kinds: Values that the part reads from outputs.
        task: Task that lacks some of these values.
    """
    names = {OutputKind.POSTERIOR: "classes", OutputKind.TOKENS: "tokens"}
    missing = " and ".join(names[kind] for kind in output_kinds & ~task.output_kinds)
    return f"{part} needs probabilities of {missing}, which the task {task.name!r} does not have"


def describe_tensor(values: Tensor) -> str:
    """Describe a tensor's type, shape and range for an error message."""
    finite = values[values.isfinite()]
    text = f"{values.dtype} of shape {tuple(values.shape)}"
    if finite.numel():
        text += f", from {float(finite.min()):g} to {float(finite.max()):g}"
    n_not_finite = values.numel() - finite.numel()
    return text + (f", {n_not_finite} of them infinite or not a number" if n_not_finite else "")
