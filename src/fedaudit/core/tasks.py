"""Tasks: the loss of a sample, the utility of a model, and what else can be read of its outputs.

Attacks need a loss for every sample, and some need more, such as class probabilities. Whatever
runs a model asks its task for outputs and losses; nothing else knows of logits or classes.
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
from fedaudit.core.importing import named
from fedaudit.core.inputs import Inputs
from fedaudit.core.seeds import seed_for

PerSampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""One number a sample, of (outputs, targets)."""

Targets: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Features: TypeAlias = Callable[[Tensor, Tensor], Tensor | Mapping[str, Tensor]]
NOISE_STEPS = 1000
"""Steps of the noising of samples."""
Draws: TypeAlias = Annotated[int, Range(ge=1, le=NOISE_STEPS)]
Width: TypeAlias = Callable[[Tensor, Tensor], int]


class Reading(Flag):
    """Values that can be read of a model's outputs beside a loss.

    Attributes:
        POSTERIOR: A probability for each class.
        TOKENS: A probability for each token of a sequence.

    Examples:
        >>> Reading.POSTERIOR in classification().readings
        True
    """

    NOTHING = 0
    POSTERIOR = auto()
    TOKENS = auto()


class NextTokens(NamedTuple):
    """A model's predictions of tokens.

    Attributes:
        logits: Before each token.
        tokens: That came; of no meaning where they do not count.
        counted: Which of them count: padding does not.

    Examples:
        >>> import torch
        >>> logits, tokens = torch.zeros(1, 3, 5), torch.tensor([[4, 2, 0]])
        >>> next_token().tokens(logits, tokens).counted
        tensor([[ True, False]])
    """

    logits: Float[Tensor, "samples positions tokens"]
    tokens: Int[Tensor, "samples positions"]
    counted: Bool[Tensor, "samples positions"]


class Utility(NamedTuple):
    """The measure of how good a model is, sample by sample.

    Attributes:
        name: Such as "accuracy".
        of: Value of each sample, of (outputs, targets).
        is_share: Whether values are 1 for a right answer and 0 for a wrong one, so that their mean
            is a rate; where they are not, less is better.

    Examples:
        >>> import torch
        >>> accuracy = classification().utility
        >>> accuracy.of(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))
        tensor([1.])
    """

    name: str
    of: PerSampleLoss
    is_share: bool = False


def logits_of(found: object) -> Tensor:
    """The outputs in what a module returns: the tensor itself, or an object's ``logits``.

    Raises:
        BadInput: It is no tensor, and has no logits.
    """
    if isinstance(found, Tensor):
        return found
    named = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    if not isinstance(named, Tensor):
        raise BadInput(
            f"a model returns {type_of(found)}, and fedaudit reads a tensor, or an object or "
            "dictionary that has logits; give a subclass whose forward returns one"
        )
    return named


def as_given(features: Tensor, targets: Tensor) -> Tensor:
    """The targets as they are."""
    return targets


def features_as_given(features: Tensor, labels: Tensor) -> Tensor:
    """The features as they are."""
    return features


def width_of_targets(features: Tensor, targets: Tensor) -> int:
    """Number of outputs by the targets' own: 0 for class indices, of which nothing follows."""
    if targets.ndim == 1:
        return 1 if targets.is_floating_point() else 0
    return targets.flatten(1).shape[1]


@arguments.dataclass(frozen=True)
class Task:
    """The purpose of a model: loss and utility of a sample, and readings of its outputs.

    A task is importable and free of tensors: it is part of an architecture, which is a key of
    dictionaries and travels to other processes. Two are the same when name and settings are.

    Attributes:
        name: Catalogue name, or ``package.module:loss`` where the loss is the user's own.
        losses: Loss of each sample, of (outputs, targets); differentiable, and its mean is what
            clients minimise.
        utility: How good a model is.
        readings: What else can be read of its outputs.
        read: Outputs, of whatever a module returns.
        features: What a model takes, of (features, labels) as they are given; several tensors by
            name where it takes several.
        targets: What losses compare outputs with, of (features, targets as they are given).
        width: Number of outputs that a model needs, of (features, targets); 0 for as many as
            there are classes.
        classes: Whether targets are class indices.
        tokens: Predictions of tokens, of (outputs, targets); None without :attr:`Reading.TOKENS`.
        settings: Keyword settings that the task was made with.
        inputs: How the inputs of a model that takes several by name lie in the features.
        takes: What a model is called with, in words; empty for one tensor with a row a sample.

    Examples:
        >>> import torch
        >>> task = classification()
        >>> task.losses(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.6931])
    """

    name: str
    losses: PerSampleLoss = field(repr=False, compare=False)
    utility: Utility = field(repr=False, compare=False)
    readings: Reading = field(default=Reading.NOTHING, compare=False)
    read: Callable[[object], Tensor] = field(default=logits_of, repr=False, compare=False)
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
    takes: str = field(default="", repr=False, compare=False)

    def outputs(self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]) -> Tensor:
        """A module's outputs on samples, as losses take them."""
        return self.read(self.called(module, x))

    def called(self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]) -> object:
        """Whatever a module returns for samples."""
        return module(x) if self.inputs is None else module(**self.inputs.unpacked(x))

    @property
    def reads_plainly(self) -> bool:
        """True if a module takes the features and returns the outputs, as layers in a row do."""
        return self.read is logits_of and self.inputs is None


def cross_entropy(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    """Cross-entropy of each sample in nats; targets are classes or class probabilities."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def _right(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    return (outputs.argmax(1) == targets).float()


def _class_indices(features: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim != 1 or targets.is_floating_point() or int(targets.min()) < 0:
        raise BadInput(
            "targets of the task 'classification' are class indices from 0, one a sample, got "
            f"{_spoken(targets)}; name another task, such as "
            "'regression' or 'multi-label'"
        )
    return targets.long()


CLASSIFICATION = Task(
    "classification",
    cross_entropy,
    Utility("accuracy", _right, is_share=True),
    Reading.POSTERIOR,
    targets=_class_indices,
    classes=True,
)


@checked
def classification() -> Task:
    """One class a sample: a row of logits, cross-entropy, and class probabilities to be read.

    Examples:
        >>> classification().name
        'classification'
    """
    return CLASSIFICATION


def classification_by(losses: PerSampleLoss) -> Task:
    """Classification by another loss than cross-entropy.

    Args:
        losses: Of (logits, class indices), one number a sample.
    """
    return CLASSIFICATION if losses is cross_entropy else replace(CLASSIFICATION, losses=losses)


@checked
def binary() -> Task:
    """Two classes and one logit z a sample, which is read as the two logits 0 and z.

    Their softmax is the sigmoid of z, and their cross-entropy the loss of z.

    Examples:
        >>> binary().utility.name
        'accuracy'
    """
    return Task(
        "binary",
        cross_entropy,
        Utility("accuracy", _right, is_share=True),
        Reading.POSTERIOR,
        read=two_logits,
        targets=_zero_or_one,
        width=_one,
        classes=True,
    )


def two_logits(found: object) -> Tensor:
    """The logits 0 and z of one logit z a sample, of shape (samples,) or (samples, 1).

    Raises:
        BadInput: Another number of logits.
    """
    logits = logits_of(found)
    if logits.numel() != len(logits):
        raise BadInput(
            f"a model for the task 'binary' gives one logit a sample, got shape "
            f"{tuple(logits.shape)}; take the task 'classification' for a logit a class"
        )
    return functional.pad(logits.reshape(-1, 1), (1, 0))


def _one(features: Tensor, targets: Tensor) -> int:
    return 1


def _zero_or_one(features: Tensor, targets: Tensor) -> Tensor:
    flat = targets.reshape(len(targets), -1)
    if flat.shape[1] != 1 or not bool(((flat == 0) | (flat == 1)).all()):
        raise BadInput(
            "targets of the task 'binary' are 0 or 1, one a sample, got "
            f"{_spoken(targets)}; take 'multi-label' for several, 'classification' for classes"
        )
    return flat[:, 0].long()


@checked
def multi_label() -> Task:
    """Several labels a sample, each there or not: a logit a label, mean binary cross-entropy.

    Examples:
        >>> multi_label().utility.name
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
            "targets of the task 'multi-label' are one row of 0 and 1 a sample, a column a label, "
            f"got {_spoken(targets)}"
        )
    return targets.float()


@checked
def regression() -> Task:
    """One or several numbers a sample: mean squared error.

    Examples:
        >>> import torch
        >>> outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
        >>> regression().losses(outputs, targets)
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
            "'regression' are no finite numbers; leave these samples out"
        )
    return rows


@checked
def next_token(*, padding: int = 0, vocabulary: Count = 0) -> Task:
    """The next token of a sequence: mean negative log-likelihood of all tokens but the first.

    Samples are sequences of whole numbers, and their own targets; a model gives a row of logits a
    position.

    Args:
        padding: Token that fills sequences up; it counts in no loss.
        vocabulary: Number of different tokens, 0 for one more than the largest token of the
            data.

    Examples:
        >>> dict(next_token(padding=3).settings)
        {'padding': 3, 'vocabulary': 0}
    """
    return Task(
        "next-token",
        partial(_sequence_losses, padding=padding),
        Utility("negative log-likelihood", partial(_sequence_losses, padding=padding)),
        Reading.TOKENS,
        features=_whole_numbers,
        targets=partial(_tokens, padding=padding, vocabulary=vocabulary),
        width=partial(_vocabulary, given=vocabulary),
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
            "a model for the task 'next-token' gives a row of logits for every token of "
            f"{tuple(targets.shape)}, got shape {tuple(outputs.shape)}"
        )
    logits, tokens, counted = _next_tokens(outputs, targets, padding=padding)
    each = functional.cross_entropy(
        logits.transpose(1, 2), tokens, ignore_index=padding, reduction="none"
    )
    return each.sum(1) / counted.sum(1)


def _whole_numbers(features: Tensor, labels: Tensor) -> Tensor:
    if features.ndim != 2 or not bool((features == features.round()).all()):
        raise BadInput(
            "samples of the task 'next-token' are sequences of whole numbers, one row a sample, "
            f"got {_spoken(features)}; set {setting('data.options.standardise')} to false where a "
            "file holds them"
        )
    return features.int()


MASK = "attention_mask"
"""Name of the input that is 0 where a token does not count."""


def without_masked(task: Task, given: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Tokens with padding in the place of those that a mask among the inputs leaves out.

    Args:
        task: Which says what padding is.
        given: A model's inputs by name.
        tokens: A row a sample.
    """
    mask, padding = given.get(MASK), dict(task.settings).get("padding")
    if mask is None or padding is None or mask.shape != tokens.shape:
        return tokens
    return tokens.where(mask != 0, torch.tensor(padding, dtype=tokens.dtype))


def _tokens(features: Tensor, targets: Tensor, *, padding: int, vocabulary: int) -> Tensor:
    # Targets of their own; others are groups of samples, such as books.
    own = targets.ndim == 2 and bool((targets == targets.round()).all())
    tokens = targets if own else features
    if own and targets.shape == features.shape:
        moved = targets[:, :-1] == features[:, 1:]
        counts = (targets[:, :-1] != padding) & (features[:, 1:] != padding)
        if bool(counts.any()) and bool(moved[counts].all()) and not torch.equal(targets, features):
            raise BadInput(
                "targets of the task 'next-token' are the tokens themselves, and these stand one "
                "place further on, as where they were shifted already; give them unshifted, or "
                "leave them out"
            )
    short = int(((tokens[:, 1:] != padding).sum(1) == 0).sum())
    if tokens.shape[1] < 2 or short:
        raise BadInput(
            f"{short} of {len(tokens)} sequences have no token to be predicted after the first "
            f"(padding is {padding}); leave them out, or set task.options.padding"
        )
    counted = tokens[tokens != padding]
    if int(counted.min()) < 0 or (vocabulary and int(counted.max()) >= vocabulary):
        raise BadInput(
            f"tokens lie from 0 to {vocabulary - 1 if vocabulary else '...'}, got "
            f"{int(counted.min())} to {int(counted.max())}; set task.options.vocabulary"
        )
    return tokens.long()


def _vocabulary(features: Tensor, targets: Tensor, *, given: int) -> int:
    return given or int(targets.max()) + 1


@arguments.dataclass(frozen=True)
class Denoising(Task):
    """Prediction of the noise that was added to a sample, as diffusion models are trained.

    A sample's outputs are its squared errors, one a draw of (step, noise). In training every
    sample gets one draw of its own, as dropout does; elsewhere all samples, models and rounds get
    the same draws, so that what differs between losses is not their noise.

    Attributes:
        draws: Draws a sample outside training.
        seed: Of the draws.
        fixed: Whether draws are the same for all; else each sample gets others at each model.

    Examples:
        >>> import torch
        >>> def predict_no_noise(noisy, steps):
        ...     return torch.zeros_like(noisy)
        >>> denoising(draws=4).outputs(predict_no_noise, torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 4])

    Source: Ho et al. 2020 (DDPM), Eq. (14) and section 4.
    """

    draws: Draws = field(default=8, compare=False)
    seed: int = field(default=0, compare=False)
    fixed: bool = field(default=True, compare=False)

    def called(self, module: Callable[..., object], x: Shaped[Tensor, "samples ..."]) -> Tensor:
        """The squared error of each draw: a row a sample, and a column a draw.

        Raises:
            BadInput: The model gives no noise of the shape that was added.
        """
        given = {"sample": x} if self.inputs is None else self.inputs.unpacked(x)
        clean = given.pop(next(iter(given)))
        clean = clean if clean.is_floating_point() else clean.float()
        steps, noise = self._drawn(module, clean)
        ones = [1] * (clean.ndim - 1)
        left = left_of_clean().to(clean)[steps].view(*steps.shape, *ones)
        noisy = left.sqrt() * clean[:, None] + (1 - left).sqrt() * noise
        found = logits_of(module(noisy, steps, **given))
        if found.shape != noisy.shape:
            raise BadInput(
                "a model for the task 'denoising' takes noisy samples of shape (samples, draws, "
                f"...), and gives the noise in that shape, {tuple(noisy.shape)}; got "
                f"{tuple(found.shape)}"
            )
        return (found - noise).square().flatten(2).mean(2)

    def _drawn(self, module: object, clean: Tensor) -> tuple[Tensor, Tensor]:
        if getattr(module, "training", False):
            steps = torch.randint(NOISE_STEPS, (len(clean), 1), device=clean.device)
            return steps, torch.randn_like(clean)[:, None]
        spread = [int((draw + 0.5) * NOISE_STEPS / self.draws) for draw in range(self.draws)]
        steps = torch.tensor(spread, device=clean.device).expand(len(clean), -1)
        shape = (self.draws, *clean.shape[1:])
        if self.fixed:
            return steps, _noise(self.seed, shape).to(clean).expand(len(clean), *shape)
        model = sum(map(_sum_of_bits, cast(nn.Module, module).parameters()))
        each = [_noise(seed_for(self.seed, model, _sum_of_bits(one)), shape) for one in clean]
        return steps, torch.stack(each).to(clean)


@cache
def left_of_clean() -> Float[Tensor, " steps"]:
    """Share of a noisy sample's variance that is the clean sample's, at each step.

    Source: Ho et al. 2020, section 4: the variance added grows linearly from 1e-4 to 0.02.
    """
    return (1 - torch.linspace(1e-4, 0.02, NOISE_STEPS, dtype=torch.float64)).cumprod(0)


@lru_cache(maxsize=1)
def _noise(seed: int, shape: tuple[int, ...]) -> Float[Tensor, "draws ..."]:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _sum_of_bits(values: Tensor) -> int:
    """A number that differs where any value does."""
    return int(values.detach().float().contiguous().cpu().view(torch.int32).sum())


@checked
def denoising(*, draws: Draws = 8, seed: int = 0, fixed: bool = True) -> Denoising:
    """The noise in a noisy sample, given its label as a condition: mean squared error.

    A model takes noisy samples (samples, draws, ...), the step of each (samples, draws) and
    ``concept``, the labels; or, where inputs are given by name, all but the first, which is the one
    that noise is added to. It gives the noise.

    Args:
        draws: Draws of (step, noise) a sample, from 1 to 1,000, of which a loss is the mean; in
            training it is one.
        seed: Of the draws.
        fixed: Whether draws are the same for all samples, models and rounds.

    Examples:
        >>> denoising(draws=4).draws
        4
    """
    return Denoising(
        "denoising",
        _mean_of_draws,
        Utility("denoising error", _mean_of_draws),
        features=_with_concept,
        targets=_concepts,
        takes="a model for the task 'denoising' has forward(noisy, steps, concept)",
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
            "targets of the task 'denoising' are concepts, whole numbers from 0, one a sample, "
            f"got {_spoken(targets)}"
        )
    return targets.long()


def _refuse_other_shape(name: str, outputs: Tensor, targets: Tensor) -> None:
    if outputs.shape != targets.shape:
        raise BadInput(
            f"a model for the task {name!r} gives as many numbers as there are targets, shape "
            f"{tuple(targets.shape)}, got {tuple(outputs.shape)}"
        )


def _spoken(values: Tensor) -> str:
    """Type, shape and range of values, for a refusal."""
    known = values[values.isfinite()]
    said = f"{values.dtype} of shape {tuple(values.shape)}"
    if known.numel():
        said += f", from {float(known.min()):g} to {float(known.max()):g}"
    strange = values.numel() - known.numel()
    return said + (f", {strange} of them infinite or not a number" if strange else "")


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
    """The task of a loss of the user's own, which is its utility as well.

    Args:
        name: Of the loss.
        losses: Of (outputs, targets), one number a sample.

    Examples:
        >>> from torch import nn
        >>> import torch
        >>> from torch.nn.functional import mse_loss
        >>> def squared(outputs, targets):
        ...     return mse_loss(outputs, targets, reduction="none").mean(1)
        >>> of_loss("squared", squared).utility.is_share
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
"""Catalogued task whose loss is that of torch for each sample, by names of torch."""


def refuse_mean_loss(loss: Callable[..., object], settings: Mapping[str, object]) -> None:
    """Raise if a loss is a class, or one of torch that returns a single number for all samples.

    Args:
        loss: Class or function.
        settings: Its settings by keyword.
    """
    name = getattr(loss, "__name__", "loss")
    try:
        default = signature(loss).parameters["reduction"].default
    except (KeyError, ValueError):
        default = "none"
    if not isinstance(loss, type) and settings.get("reduction", default) == "none":
        return
    what = "is a class" if isinstance(loss, type) else "returns one number for all samples"
    task = _TASK_OF_LOSS.get(name)
    hint = f"give the task {task!r} instead" if task else "give such a function"
    raise BadInput(
        f"the loss {name} {what}; a loss of a task is a function of outputs and targets that "
        f"returns one number per sample (reduction='none'); {hint}"
    )


def lacking(what: str, wanted: Reading, task: Task) -> str:
    """A refusal, in words, of what needs readings that a task does not have."""
    named = {Reading.POSTERIOR: "classes", Reading.TOKENS: "tokens"}
    kinds = " and ".join(named[one] for one in wanted & ~task.readings)
    return f"{what} needs probabilities of {kinds}, which the task {task.name!r} does not have"


def task_named(name: str, settings: Mapping[str, int | float | str | bool]) -> Task:
    """The task of that name, of an installed package, or of the user's own.

    Args:
        name: Of the catalogue, or ``module:object``: a task, or a loss of (outputs, targets) that
            gives one number a sample.
        settings: Of the task, or of the loss by keyword.

    Raises:
        BadInput: There is none, and the nearest is named; or it has no such settings.
    """
    found: Task | Callable[..., Task] | PerSampleLoss = named(
        "task",
        name,
        TASKS,
        wanted="a fedaudit.tasks.Task, or a loss of outputs and targets with a number a sample",
        fits=lambda one: isinstance(one, Task) or callable(one),
    )
    if isinstance(found, Task):
        return found
    if found in TASKS.values():
        return cast(Callable[..., Task], found)(**settings)
    loss = cast(PerSampleLoss, found)
    refuse_mean_loss(loss, settings)
    try:
        signature(loss).bind(None, None, **settings)
    except TypeError as error:
        raise BadInput(
            f"the loss {name!r} cannot be called with outputs, targets and the settings "
            f"{', '.join(settings) or 'none'}: {error}"
        ) from error
    except ValueError:  # one that does not say what it takes
        pass
    return of_loss(name, partial(loss, **settings) if settings else loss)
