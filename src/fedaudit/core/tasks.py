"""Tasks: the loss of each sample, the utility of a model, and the meaning of its outputs.

Attacks need a loss for every sample, and some need class probabilities. Only a task defines whether
a model's outputs are logits of classes, numbers, or logits of tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import Flag, auto
from functools import cache, lru_cache, partial
from inspect import signature
from typing import Annotated, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core import arguments
from fedaudit.core.arguments import Count, Range, checked
from fedaudit.core.errors import BadInput, setting, type_of
from fedaudit.core.importing import look_up
from fedaudit.core.inputs import Inputs
from fedaudit.core.seeds import seed_for

PerSampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Function of (outputs, targets) that returns one number per sample."""

Targets: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Features: TypeAlias = Callable[[Tensor, Tensor], Tensor | Mapping[str, Tensor]]
NOISE_STEPS = 1000
"""Number of noise steps of a diffusion model."""
Draws: TypeAlias = Annotated[int, Range(ge=1, le=NOISE_STEPS)]
Width: TypeAlias = Callable[[Tensor, Tensor], int]


class Reading(Flag):
    """Values that can be read from a model's outputs, in addition to a loss.

    Attributes:
        POSTERIOR: A probability for each class.
        TOKENS: A probability for each token of a sequence.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.Reading.POSTERIOR in fa.tasks.classification().readings
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
        is_share: Whether a value is 1 for a correct prediction and 0 for a wrong one, so that the
            mean is the fraction of correct predictions. Otherwise, smaller values are better.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> accuracy = fa.tasks.classification().utility
        >>> accuracy.per_sample(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))
        tensor([1.])
    """

    name: str
    per_sample: Callable[[Tensor, Tensor], Tensor]
    is_share: bool = False


def logits_of(output: object) -> Tensor:
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


def as_given(features: Tensor, targets: Tensor) -> Tensor:
    """Return the targets unchanged."""
    return targets


def features_as_given(features: Tensor, labels: Tensor) -> Tensor:
    """Return the features unchanged."""
    return features


def width_of_targets(features: Tensor, targets: Tensor) -> int:
    """Return the number of values per target, or 0 for class indices."""
    if targets.ndim == 1:
        return 1 if targets.is_floating_point() else 0
    return targets.flatten(1).shape[1]


@arguments.dataclass(frozen=True)
class Task:
    """Task of a model: the loss and utility of a sample, and the meaning of the outputs.

    A task has no tensors and can be imported in other processes, since it is part of an
    architecture. Two tasks are equal if their names and settings are equal.

    Attributes:
        name: Catalogue name, or ``package.module:loss`` for a custom loss.
        losses: Differentiable function of (outputs, targets) that returns the loss of each sample.
            Clients minimise its mean.
        utility: Measure of a model's quality.
        readings: Values other than the loss that can be read from outputs.
        extract_outputs: Function that extracts the output tensor from the module's return value.
        features: Function of (raw features, labels) that returns a model's input, or several
            inputs by name.
        targets: Function of (features, raw targets) that returns the targets of the loss.
        width: Function of (features, targets) that returns the output width of the model; 0 means
            one output per class.
        classes: Whether targets are class indices.
        tokens: Function of (outputs, targets) that returns predictions of tokens; None without
            :attr:`Reading.TOKENS`.
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
    readings: Reading = field(default=Reading.NOTHING, compare=False)
    extract_outputs: Callable[[object], Tensor] = field(
        default=logits_of, repr=False, compare=False
    )
    features: Features = field(default=features_as_given, repr=False, compare=False)
    targets: Targets = field(default=as_given, repr=False, compare=False)
    width: Callable[[Tensor, Tensor], int] = field(
        default=width_of_targets, repr=False, compare=False
    )
    classes: bool = field(default=False, compare=False)
    tokens: Callable[[Tensor, Tensor], NextTokens] | None = field(
        default=None, repr=False, compare=False
    )
    settings: tuple[tuple[str, int | float | str | bool], ...] = ()
    inputs: Inputs | None = None
    forward_help: str = field(default="", repr=False, compare=False)

    def outputs(self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]) -> Tensor:
        """Call a module on samples, and return the outputs that the losses expect."""
        return self.extract_outputs(self.call_module(module, x))

    def call_module(
        self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]
    ) -> object:
        """Call a module on samples, and return its return value unchanged."""
        return module(x) if self.inputs is None else module(**self.inputs.unpacked(x))

    @property
    def reads_plainly(self) -> bool:
        """True if a module takes the features and returns the outputs, without any conversion."""
        return self.extract_outputs is logits_of and self.inputs is None


def cross_entropy(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    """Return each sample's cross-entropy in nats; targets are classes or class probabilities."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def _is_correct(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    return (outputs.argmax(1) == targets).float()


def _class_indices(features: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim != 1 or targets.is_floating_point() or int(targets.min()) < 0:
        raise BadInput(
            "targets of the task 'classification' must be class indices from 0, one per sample, "
            f"got {_describe(targets)}; name another task, such as "
            "'regression' or 'multi-label'"
        )
    return targets.long()


CLASSIFICATION = Task(
    "classification",
    cross_entropy,
    Utility("accuracy", _is_correct, is_share=True),
    Reading.POSTERIOR,
    targets=_class_indices,
    classes=True,
)


@checked
def classification() -> Task:
    """Classification into one class per sample, with cross-entropy.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.classification().name
        'classification'
    """
    return CLASSIFICATION


def classification_by(losses: PerSampleLoss) -> Task:
    """Return the task of classification with a loss other than cross-entropy.

    Args:
        losses: Function of (logits, class indices) that returns one number per sample.
    """
    return CLASSIFICATION if losses is cross_entropy else replace(CLASSIFICATION, losses=losses)


@checked
def binary() -> Task:
    """Binary classification with one logit z per sample, which is converted to the logits 0 and z.

    The softmax of the two logits is the sigmoid of z. Their cross-entropy is the binary
    cross-entropy of z.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.binary().utility.name
        'accuracy'
    """
    return Task(
        "binary",
        cross_entropy,
        Utility("accuracy", _is_correct, is_share=True),
        Reading.POSTERIOR,
        extract_outputs=two_logits,
        targets=_zero_or_one,
        width=_single_output,
        classes=True,
    )


def two_logits(output: object) -> Tensor:
    """Return the logits 0 and z for each sample's logit z, of shape (samples,) or (samples, 1).

    Raises:
        BadInput: There are several logits per sample.
    """
    logits = logits_of(output)
    if logits.numel() != len(logits):
        raise BadInput(
            f"a model for the task 'binary' must return one logit per sample, got shape "
            f"{tuple(logits.shape)}; use the task 'classification' for one logit per class"
        )
    return functional.pad(logits.reshape(-1, 1), (1, 0))


def _single_output(features: Tensor, targets: Tensor) -> int:
    return 1


def _zero_or_one(features: Tensor, targets: Tensor) -> Tensor:
    flat = targets.reshape(len(targets), -1)
    if flat.shape[1] != 1 or not bool(((flat == 0) | (flat == 1)).all()):
        raise BadInput(
            "targets of the task 'binary' must be 0 or 1, one per sample, got "
            f"{_describe(targets)}; use 'multi-label' for several labels per sample, or "
            "'classification' for several classes"
        )
    return flat[:, 0].long()


@checked
def multi_label() -> Task:
    """Several binary labels per sample, with one logit per label and mean binary cross-entropy.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.multi_label().utility.name
        'label error'
    """
    return Task(
        "multi-label",
        _label_losses,
        Utility("label error", _label_errors),
        targets=_zeros_and_ones,
    )


def _label_losses(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    _refuse_other_shape("multi-label", outputs, targets)
    each = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return each.flatten(1).mean(1)


def _label_errors(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    return ((outputs > 0) != (targets > 0.5)).float().flatten(1).mean(1)


def _zeros_and_ones(features: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim != 2 or not bool(((targets == 0) | (targets == 1)).all()):
        raise BadInput(
            "targets of the task 'multi-label' must be one row of zeros and ones per sample, with "
            f"one column per label, got {_describe(targets)}"
        )
    return targets.float()


@checked
def regression() -> Task:
    """Regression of one or several numbers per sample, with the mean squared error.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
        >>> fa.tasks.regression().losses(outputs, targets)
        tensor([0., 4.])
    """
    return Task(
        "regression",
        _squared_errors,
        Utility("squared error", _squared_errors),
        targets=_numbers,
    )


def _squared_errors(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    outputs = outputs.reshape(len(outputs), -1)
    _refuse_other_shape("regression", outputs, targets)
    return (outputs - targets).square().mean(1)


def _numbers(features: Tensor, targets: Tensor) -> Tensor:
    rows = targets.reshape(len(targets), -1).float()
    if not bool(rows.isfinite().all()):
        raise BadInput(
            f"{int((~rows.isfinite()).any(1).sum())} of {len(rows)} targets of the task "
            "'regression' are not finite numbers; leave these samples out"
        )
    return rows


@checked
def next_token(*, padding: int = 0, vocabulary: Count = 0) -> Task:
    """Prediction of each next token of a sequence, with the mean negative log-likelihood.

    Samples are sequences of whole numbers, which are also the targets. A model returns one row of
    logits per position.

    Args:
        padding: Token that pads sequences; losses ignore it.
        vocabulary: Number of different tokens. With 0, it is the largest token in the data plus 1.

    Examples:
        >>> import fedaudit as fa
        >>> dict(fa.tasks.next_token(padding=3).settings)
        {'padding': 3, 'vocabulary': 0}
    """
    return Task(
        "next-token",
        partial(_sequence_losses, padding=padding),
        Utility("negative log-likelihood", partial(_sequence_losses, padding=padding)),
        Reading.TOKENS,
        features=_whole_numbers,
        targets=partial(_tokens, padding=padding, vocabulary=vocabulary),
        width=partial(_vocabulary, vocabulary=vocabulary),
        tokens=partial(_next_tokens, padding=padding),
        settings=(("padding", padding), ("vocabulary", vocabulary)),
    )


def _next_tokens(outputs: Tensor, targets: Tensor, *, padding: int) -> NextTokens:
    return NextTokens(outputs[:, :-1], targets[:, 1:], targets[:, 1:] != padding)


def _sequence_losses(
    outputs: Tensor, targets: Tensor, *, padding: int
) -> Float[Tensor, " samples"]:
    if outputs.ndim != 3 or outputs.shape[:2] != targets.shape:
        raise BadInput(
            "a model for the task 'next-token' must return logits (samples, positions, "
            f"vocabulary) for tokens of shape {tuple(targets.shape)}, got shape "
            f"{tuple(outputs.shape)}"
        )
    logits, tokens, counted = _next_tokens(outputs, targets, padding=padding)
    each = functional.cross_entropy(
        logits.transpose(1, 2), tokens, ignore_index=padding, reduction="none"
    )
    return each.sum(1) / counted.sum(1)


def _whole_numbers(features: Tensor, labels: Tensor) -> Tensor:
    if features.ndim != 2 or not bool((features == features.round()).all()):
        raise BadInput(
            "samples of the task 'next-token' must be sequences of whole numbers, one row per "
            f"sample, got {_describe(features)}; set {setting('data.options.standardise')} to "
            "false if the data file contains tokens"
        )
    return features.int()


MASK = "attention_mask"
"""Name of the input that marks tokens which a loss ignores by 0."""


def without_masked(task: Task, inputs: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Replace tokens where ``attention_mask`` is 0 with the padding token."""
    mask, padding = inputs.get(MASK), dict(task.settings).get("padding")
    if mask is None or padding is None or mask.shape != tokens.shape:
        return tokens
    return tokens.where(mask != 0, torch.tensor(padding, dtype=tokens.dtype))


def _tokens(features: Tensor, targets: Tensor, *, padding: int, vocabulary: int) -> Tensor:
    # Targets that are not rows of tokens are labels of groups, such as the book of each text. The
    # tokens to predict are then the features.
    is_tokens = targets.ndim == 2 and bool((targets == targets.round()).all())
    tokens = targets if is_tokens else features
    if is_tokens and targets.shape == features.shape:
        is_next = targets[:, :-1] == features[:, 1:]
        is_counted = (targets[:, :-1] != padding) & (features[:, 1:] != padding)
        if (
            bool(is_counted.any())
            and bool(is_next[is_counted].all())
            and not torch.equal(targets, features)
        ):
            raise BadInput(
                "targets of the task 'next-token' must be the tokens themselves, but they are "
                "shifted by one position; pass the tokens unshifted, or leave the targets out"
            )
    n_too_short = int(((tokens[:, 1:] != padding).sum(1) == 0).sum())
    if tokens.shape[1] < 2 or n_too_short:
        raise BadInput(
            f"{n_too_short} of {len(tokens)} sequences have no token to predict after the first "
            f"(padding is {padding}); leave them out, or set task.options.padding"
        )
    counted = tokens[tokens != padding]
    if int(counted.min()) < 0 or (vocabulary and int(counted.max()) >= vocabulary):
        raise BadInput(
            f"tokens must lie from 0 to {vocabulary - 1 if vocabulary else '...'}, got "
            f"{int(counted.min())} to {int(counted.max())}; set task.options.vocabulary"
        )
    return tokens.long()


def _vocabulary(features: Tensor, targets: Tensor, *, vocabulary: int) -> int:
    return vocabulary or int(targets.max()) + 1


@arguments.dataclass(frozen=True)
class Denoising(Task):
    """Task of diffusion models: prediction of the noise that was added to a sample.

    The outputs for a sample are squared errors, one for each draw of a noise step and noise. In
    training, every sample gets one draw. In measurements, all samples, models and rounds get the
    same draws, so that differences between losses are not caused by different noise.

    Attributes:
        draws: Number of draws per sample outside training.
        seed: Seed of the draws.
        fixed: Whether all samples and models get the same draws. Otherwise, every sample and model
            gets different draws.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> def predict_no_noise(noisy, steps):
        ...     return torch.zeros_like(noisy)
        >>> fa.tasks.denoising(draws=4).outputs(predict_no_noise, torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 4])

    Source: Ho et al. 2020 (DDPM), Eq. (14) and section 4.
    """

    draws: Draws = field(default=8, compare=False)
    seed: int = field(default=0, compare=False)
    fixed: bool = field(default=True, compare=False)

    def call_module(
        self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]
    ) -> Tensor:
        """Return the squared error of each draw: one row per sample, and one column per draw.

        Raises:
            BadInput: The model's outputs have another shape than the noise.
        """
        inputs = {"sample": x} if self.inputs is None else self.inputs.unpacked(x)
        clean = inputs.pop(next(iter(inputs)))
        clean = clean if clean.is_floating_point() else clean.float()
        steps, noise = self._draw(module, clean)
        ones = [1] * (clean.ndim - 1)
        fraction = signal_fraction().to(clean)[steps].view(*steps.shape, *ones)
        noisy = fraction.sqrt() * clean[:, None] + (1 - fraction).sqrt() * noise
        predicted = logits_of(module(noisy, steps, **inputs))
        if predicted.shape != noisy.shape:
            raise BadInput(
                "a model for the task 'denoising' takes noisy samples of shape (samples, draws, "
                f"...) and must return the noise in the same shape; expected {tuple(noisy.shape)}, "
                f"got {tuple(predicted.shape)}"
            )
        return (predicted - noise).square().flatten(2).mean(2)

    def _draw(self, module: object, clean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noise steps and the noise of each sample's draws."""
        if getattr(module, "training", False):
            steps = torch.randint(NOISE_STEPS, (len(clean), 1), device=clean.device)
            return steps, torch.randn_like(clean)[:, None]
        # Outside training, the draws have evenly spaced steps.
        spaced = [int((draw + 0.5) * NOISE_STEPS / self.draws) for draw in range(self.draws)]
        steps = torch.tensor(spaced, device=clean.device).expand(len(clean), -1)
        shape = (self.draws, *clean.shape[1:])
        if self.fixed:
            return steps, _noise(self.seed, shape).to(clean).expand(len(clean), *shape)
        model_checksum = sum(map(_sum_of_bits, cast(nn.Module, module).parameters()))
        noises = [
            _noise(seed_for(self.seed, model_checksum, _sum_of_bits(sample)), shape)
            for sample in clean
        ]
        return steps, torch.stack(noises).to(clean)


@cache
def signal_fraction() -> Float[Tensor, " steps"]:
    """Return the fraction of a noisy sample's variance that the clean sample has at each step.

    Source: Ho et al. 2020, section 4: the variance that a step adds grows linearly from 1e-4 to
        0.02.
    """
    return (1 - torch.linspace(1e-4, 0.02, NOISE_STEPS, dtype=torch.float64)).cumprod(0)


@lru_cache(maxsize=1)
def _noise(seed: int, shape: tuple[int, ...]) -> Float[Tensor, "draws ..."]:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _sum_of_bits(values: Tensor) -> int:
    """Return a number that identifies the values."""
    return int(values.detach().float().contiguous().cpu().view(torch.int32).sum())


@checked
def denoising(*, draws: Draws = 8, seed: int = 0, fixed: bool = True) -> Denoising:
    """Prediction of a sample's noise given its label, with the mean squared error.

    A model takes noisy samples (samples, draws, ...), the noise step of each draw (samples, draws)
    and the labels ``concept``. It returns the noise. If samples have several named inputs, noise is
    added to the first input. The model then takes the other inputs instead of ``concept``.

    Args:
        draws: Number of draws of a noise step and noise per sample, from 1 to 1,000, over which a
            loss is averaged. In training, each sample gets a single draw.
        seed: Seed of the draws.
        fixed: Whether draws are the same for all samples, models and rounds.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.denoising(draws=4).draws
        4
    """
    return Denoising(
        "denoising",
        _mean_of_draws,
        Utility("denoising error", _mean_of_draws),
        features=_with_concept,
        targets=_concepts,
        forward_help="a model for the task 'denoising' has forward(noisy, steps, concept)",
        settings=(("draws", draws), ("seed", seed), ("fixed", fixed)),
        draws=draws,
        seed=seed,
        fixed=fixed,
    )


def _mean_of_draws(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    return outputs.mean(1)


def _with_concept(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"sample": features.float(), "concept": labels}


def _concepts(features: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim != 1 or not bool((targets == targets.round()).all()) or int(targets.min()) < 0:
        raise BadInput(
            "targets of the task 'denoising' must be concepts (whole numbers from 0, one per "
            f"sample), got {_describe(targets)}"
        )
    return targets.long()


def _refuse_other_shape(name: str, outputs: Tensor, targets: Tensor) -> None:
    if outputs.shape != targets.shape:
        raise BadInput(
            f"a model for the task {name!r} must return one number per target; expected shape "
            f"{tuple(targets.shape)}, got {tuple(outputs.shape)}"
        )


def _describe(values: Tensor) -> str:
    finite = values[values.isfinite()]
    text = f"{values.dtype} of shape {tuple(values.shape)}"
    if finite.numel():
        text += f", from {float(finite.min()):g} to {float(finite.max()):g}"
    n_not_finite = values.numel() - finite.numel()
    return text + (f", {n_not_finite} of them infinite or not a number" if n_not_finite else "")


TASKS: dict[str, Callable[..., Task]] = {
    "classification": classification,
    "binary": binary,
    "multi-label": multi_label,
    "regression": regression,
    "next-token": next_token,
    "denoising": denoising,
}


@checked
def of_loss(name: str, losses: PerSampleLoss) -> Task:
    """Return a task that uses one function as both loss and utility.

    Args:
        name: Name of the loss.
        losses: Function of (outputs, targets) that returns one number per sample.

    Examples:
        >>> import fedaudit as fa
        >>> from torch import nn
        >>> import torch
        >>> from torch.nn.functional import mse_loss
        >>> def squared(outputs, targets):
        ...     return mse_loss(outputs, targets, reduction="none").mean(1)
        >>> fa.tasks.of_loss("squared", squared).utility.is_share
        False
    """
    return Task(name, losses, Utility("loss", losses))


_TASK_OF_LOSS = {
    "binary_cross_entropy_with_logits": "multi-label",
    "BCEWithLogitsLoss": "multi-label",
    "cross_entropy": "classification",
    "CrossEntropyLoss": "classification",
    "mse_loss": "regression",
    "MSELoss": "regression",
}
"""Maps the name of a torch loss to the task that computes the same loss for each sample."""


def refuse_mean_loss(loss: Callable[..., object], settings: Mapping[str, object]) -> None:
    """Raise if a loss is a class, or a torch loss whose reduction is not "none"."""
    is_class = isinstance(loss, type)
    try:
        default = "none" if is_class else signature(loss).parameters["reduction"].default
    except (KeyError, ValueError):
        default = "none"
    if is_class or settings.get("reduction", default) != "none":
        name = getattr(loss, "__name__", "loss")
        task = _TASK_OF_LOSS.get(name)
        raise BadInput(
            f"the loss {name} {'is a class' if is_class else 'returns one number for all samples'}"
            ", but the loss of a task must be a function of outputs and targets that returns one "
            "number per sample (reduction='none'); pass "
            f"{f'the task {task!r} instead' if task else 'such a function'}"
        )


def missing_readings(what: str, readings: Reading, task: Task) -> str:
    """Return a message that a part needs probabilities that a task does not have."""
    names = {Reading.POSTERIOR: "classes", Reading.TOKENS: "tokens"}
    kinds = " and ".join(names[reading] for reading in readings & ~task.readings)
    return f"{what} needs probabilities of {kinds}, which the task {task.name!r} does not have"


def task_named(name: str, settings: Mapping[str, int | float | str | bool]) -> Task:
    """Look up a task in the catalogue, an installed package or custom code.

    Args:
        name: Catalogue name, or ``module:object`` for a task, or for a loss of (outputs, targets)
            that returns one number per sample.
        settings: Settings of the task, or keyword arguments of the loss.

    Raises:
        BadInput: There is no such task, or the task does not have these settings.
    """
    part: Task | Callable[..., Task] | PerSampleLoss = look_up(
        "task",
        name,
        TASKS,
        expected="a fedaudit.tasks.Task, or a loss of outputs and targets per sample",
        is_valid=lambda part: isinstance(part, Task) or callable(part),
    )
    if isinstance(part, Task):
        return part
    if part in TASKS.values():
        return cast(Callable[..., Task], part)(**settings)
    loss = cast(PerSampleLoss, part)
    refuse_mean_loss(loss, settings)
    try:
        signature(loss).bind(None, None, **settings)
    except TypeError as error:
        raise BadInput(
            f"the loss {name!r} cannot be called with outputs, targets and the settings "
            f"{', '.join(settings) or 'none'}: {error}"
        ) from error
    except ValueError:  # a function without a signature
        pass
    return of_loss(name, partial(loss, **settings) if settings else loss)
