"""Base class of defenses, with hooks that change training and uploads; arguments of the hooks."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Signature, signature
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedaudit.core import arguments
from fedaudit.core.arguments import ClientIds
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput
from fedaudit.core.modules import outputs_of
from fedaudit.core.naming import DefensePart, client_numbers
from fedaudit.core.objects import canonical_repr
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.tasks import CLASSIFICATION, OutputKind, PerSampleLoss, Task
from fedaudit.core.values import Architecture, Batch, ClientId, Model, Params, Samples, chunks
from fedaudit.observe.round import Gradient, Logits, Update, Upload

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """Context of one client in one round.

    Attributes:
        round: Number of the round, from 1; 0 while clients prepare their data.
        rounds: Number of rounds of the run.
        client: The client.
        cohort: All clients that take part in this round.
        weights: Weight of each of these clients in the average.
        seed: Root seed of the run.
        device: Device to train on. Generators always draw on the CPU.
    """

    round: int
    rounds: int
    client: ClientId
    cohort: tuple[ClientId, ...]
    weights: Mapping[ClientId, float]
    seed: int
    device: torch.device = CPU
    _generators: dict[str, torch.Generator] = field(default_factory=dict, repr=False)
    _noted: dict[str, list[Tensor]] = field(default_factory=dict, repr=False)

    def note(self, fact: str, values: Tensor) -> None:
        """Note values that describe the client's round for the audit; no adversary sees them.

        Training and defenses note the following:

        - ``used``: ids of the samples in every step.
        - ``recycled``: ids of samples in a step that the defense had left out of earlier rounds.
        - ``extra_bytes``: bytes that the client received or sent in addition to model and upload.
        - ``acted``: 1 for a step or an upload that a defense changed, otherwise 0. Defenses that
          change every step or upload do not note it.
        - ``risk_decided``: 1 if a risk changed the client's choice of a model, otherwise 0.

        Args:
            fact: Name of the values. Later values with the same name are appended.
            values: A vector of ids, or of amounts that are summed.
        """
        self._noted.setdefault(fact, []).append(values)

    def times_noted(self, fact: str) -> int:
        """Return the number of times that values were noted; for "used", the number of steps."""
        return len(self._noted.get(fact, ()))

    @property
    def facts(self) -> Params:
        """All noted values by name, as one vector each, on the CPU."""
        return {name: torch.cat(values).to(CPU) for name, values in self._noted.items()}

    def rng(self, purpose: str) -> torch.Generator:
        """Return the client's random generator for a purpose; each call returns the same object."""
        if purpose not in self._generators:
            self._generators[purpose] = seeded(
                self.seed, "client", self.client, "round", self.round, purpose
            )
        return self._generators[purpose]

    def on_public_data(self) -> "ClientContext":
        """Return a context with its own random generators and notes, to train on public data."""
        return self.separate("public")

    def separate(self, purpose: str) -> "ClientContext":
        """Return a context with its own random generators and notes, for another training."""
        return replace(self, seed=seed_for(self.seed, purpose), _generators={}, _noted={})

    def with_model(self, model: Model) -> "TrainingContext":
        """Return the training context of this client, which starts from the given model."""
        return TrainingContext(**{**vars(self), "received": model})


@dataclass(frozen=True, kw_only=True)
class TrainingContext(ClientContext):
    """Context of a hook during training: the client, the round and the received model.

    Attributes:
        received: The model that this round's training starts from.
    """

    received: Model

    def evaluate(self, samples: Samples) -> Float[Tensor, " samples"]:
        """Compute the loss of each sample at the received model, in evaluation mode."""
        outputs = outputs_of(self.received, samples.features, self.device)
        return self.received.architecture.loss(outputs, samples.targets)


@dataclass(frozen=True)
class Objective:
    """Objective of a training step, as a function of a batch.

    Attributes:
        module: Module with the trained parameters.
        loss: Scalar loss as a function of (outputs, batch), with the terms of the defense.
        per_sample: Per-sample loss of (outputs, targets) whose mean is ``loss``; None if a defense
            replaces the loss, which then may not be such a mean.
        slope: Derivative of ``loss`` by the outputs, times the number of samples, as a function of
            (outputs, batch). If it is or returns None, autograd computes the derivative.
        task: Task, which extracts the outputs from the module's return value.
    """

    module: nn.Module
    loss: Callable[[Tensor, Batch], Tensor]
    per_sample: PerSampleLoss | None = None
    slope: Callable[[Tensor, Batch], Tensor | None] | None = None
    task: Task = CLASSIFICATION

    def __call__(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch, with its autograd graph."""
        return self.loss(self.task.outputs(self.module, batch.x), batch)

    @cached_property
    def params(self) -> Params:
        """The trainable parameters of the module (not copies)."""
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a run, for a defense that checks before training whether it can be used.

    Attributes:
        architecture: Architecture that clients train.
        shape: Shape of one sample.
        classes: Number of classes of the data set.
        rounds: Number of rounds of the run.
        has_integer_features: Whether features are integers, such as tokens. They cannot have noise.
    """

    architecture: Architecture
    shape: tuple[int, ...]
    classes: int
    rounds: int
    has_integer_features: bool = False


@dataclass(frozen=True, kw_only=True)
class DataUse:
    """Number and size of the steps in which a client's training uses its data, for an accountant.

    Attributes:
        rounds: Number of rounds in which the client takes part.
        epochs: Epochs per round.
        batch_size: Samples per step.
        samples: Number of the client's samples.
        features: Number of features of one sample; 0 if unknown.
        uncovered: Hooks of defenses that do not change everything that the client sends. A defense
            that protects the client in one of these hooks guarantees nothing.
    """

    rounds: int
    epochs: int
    batch_size: int
    samples: int
    features: int = 0
    uncovered: tuple[str, ...] = ()


class Guarantee(NamedTuple):
    """Proven differential privacy of all messages that a client sends in a run.

    Attributes:
        epsilon: The epsilon; infinite if nothing is proven.
        unit: Unit of privacy, such as one sample or one client, and the assumptions.
        method: Method by which epsilon was computed; empty for Renyi accounting.
    """

    epsilon: float
    unit: str
    method: str = ""


_INIT = "__init__"


class _InitSignature:
    """Signature of a class from its ``__init__``, without the arguments of ``__new__``."""

    def __get__(self, instance: object, owner: type) -> Signature:
        init: Callable[..., None] = getattr(owner, _INIT)
        if init is object.__init__:
            return Signature()
        try:
            init_signature = signature(init, eval_str=True)
        except NameError:  # An annotation is only imported under TYPE_CHECKING.
            init_signature = signature(init)
        return init_signature.replace(parameters=list(init_signature.parameters.values())[1:])


class Defense:
    """Defense of one client. By default, hooks change nothing; override those that a defense needs.

    One instance belongs to one client, and a run works on a copy of it. A defense that learns over
    rounds returns its tensors from :meth:`state`, so that a run can be stopped and resumed.
    :meth:`restore` is called before each of the client's rounds.

    In the hooks select, batches, batch, loss, slope and gradient, tensors are on
    ``context.device``. Tensors that a hook draws or stores must be moved there. In the other hooks
    (prepare, upload, after, restore), all tensors are on the CPU.

    Attributes:
        accepts: Types of upload that :meth:`upload` accepts.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update, Gradient, Logits)

    if not TYPE_CHECKING:
        __signature__ = _InitSignature()

        def __new__(cls, *args, clients=None, **settings):
            """Create an instance; with ``clients``, a factory that creates one for each client."""
            if clients is None or "clients" in signature(cls.__init__).parameters:
                return super().__new__(cls)
            if args:
                raise BadInput(
                    f"{cls.__name__} with clients takes its settings by name, got {args!r}"
                )
            return DefensePart(cls, settings, client_numbers(clients))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({canonical_repr(vars(self))})"

    def acts_in(self, hook: str) -> bool:
        """Return True if this hook changes anything.

        Dense networks train fastest if "loss" and "gradient" do not act. Return False if a defense
        overrides these hooks but is configured to change nothing. Training is then bitwise the same
        as without the defense.
        """
        return getattr(type(self), hook) is not getattr(Defense, hook)

    @property
    def slope_matches_loss(self) -> bool:
        """True if :meth:`slope` is the derivative of this class's loss, not of a base class's."""
        for parent in type(self).__mro__:
            if "slope" in vars(parent):
                return True
            if "loss" in vars(parent):
                return False
        return False

    @property
    def mixes_labels(self) -> bool:
        """True if :meth:`batch` replaces labels by class probabilities."""
        return False

    @property
    def needs_class_labels(self) -> bool:
        """True if :meth:`loss` needs class labels, so that labels may not be mixed."""
        return False

    @property
    def needed_outputs(self) -> OutputKind:
        """Quantities besides the loss that the defense needs, such as class probabilities."""
        needs_posterior = self.needs_class_labels or self.mixes_labels
        return OutputKind.POSTERIOR if needs_posterior else OutputKind.NOTHING

    @property
    def cancels(self) -> bool:
        """True if :meth:`upload` adds noise that cancels in the average over clients.

        Such an upload must not be changed by other defenses, and the server must average all
        clients together.
        """
        return False

    @property
    def acts_unconditionally(self) -> bool:
        """True if the defense acts in every step.

        A defense that acts only under a condition returns False, and notes ``acted`` at every step.
        """
        return True

    @property
    def prepares_samples_independently(self) -> bool:
        """True if :meth:`prepare` changes each sample independently of all others, or no sample."""
        return not self.acts_in("prepare")

    def raise_if_misfit(self, plan: Plan) -> None:
        """Raise before training if the defense cannot be used in the run.

        Args:
            plan: Settings of the run.

        Raises:
            BadInput: A setting of the defense is impossible for the samples or the run.
            Unsupported: The defense cannot be used with the network or its task.
        """

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        """Return permanently changed data; called once, before the first round."""
        return data

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        """Return the samples to train on; called once per round."""
        return data

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        """Yield the batches of an epoch, by default shuffled without replacement."""
        order = torch.randperm(len(data), generator=context.rng("batches"))
        # Samples are gathered once per epoch. A gather per step would take a third of the time of a
        # small model's step.
        shuffled = data.take(order)
        for rows in chunks(len(data), batch_size):
            yield Batch(shuffled.features[rows], shuffled.targets[rows], shuffled.ids[rows])

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        """Return the batch that a step trains on (mixing, augmentation, soft labels)."""
        return batch

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        """Return the scalar that a step minimises, by default the mean loss."""
        return context.received.architecture.loss(outputs, batch.y).mean()

    def slope(
        self, outputs: Float[Tensor, "samples _"], batch: Batch, context: TrainingContext
    ) -> Float[Tensor, "samples _"] | None:
        """Return the derivative of :meth:`loss` by the outputs, times the number of samples.

        If it is None, autograd computes the derivative, which is always correct. An explicit
        derivative makes steps of small networks faster. If a class overrides only the loss, the
        inherited derivative is not called.
        """
        return None

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        """Return the gradient that the optimizer uses, by default that of the objective."""
        params = objective.params
        if len(batch) == 0:  # Poisson sampling can draw an empty batch.
            return {name: torch.zeros_like(param) for name, param in params.items()}
        values = torch.autograd.grad(
            objective(batch), list(params.values()), allow_unused=True, materialize_grads=True
        )
        return dict(zip(params, values, strict=True))

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        """Return the upload that the client sends."""
        return upload

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        """Receive the models before and after local training; called once per round."""

    def assigned_classes(
        self, client_context: ClientContext, *, classes: int
    ) -> Bool[Tensor, " classes"]:
        """Return whether the client trains on each class in a round, by default True for all.

        An adversary that knows the random seed of the defense, such as a member of a coalition, can
        compute this.

        Args:
            client_context: Context of the client and the round; weights are not used.
            classes: Number of the model's classes.
        """
        return torch.ones(classes, dtype=torch.bool)

    def guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee | None:
        """Return the proven differential privacy of the client, or None."""
        return None

    def full_guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee | None:
        """Return :meth:`guarantee` if the defense changes everything that the client sends.

        Otherwise, epsilon is infinite. Defenses override :meth:`guarantee` instead.
        """
        guarantee = self.guarantee(data_use, delta=delta)
        missed = [hook for hook in data_use.uncovered if self.acts_in(hook)]
        if guarantee is None or not missed:
            return guarantee
        return Guarantee(
            math.inf,
            guarantee.unit,
            f"{type(self).__name__} does not change the tensors that the algorithm sends in "
            "addition to the update",
        )

    def state(self) -> Params:
        """Return the state between rounds, as tensors by name."""
        return {}

    def restore(self, state: Params) -> None:
        """Restore a state that :meth:`state` returned."""


@arguments.dataclass(frozen=True)
class ConfiguredDefense(Defense):
    """Defense with settings as dataclass fields, and the clients that use it.

    Attributes:
        clients: Numbers of the clients that use the defense, from 0, each once, such as
            ``[0, 1]``; each has a separate instance. None for all clients without another defense.

    Examples:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from fedaudit.core.values import Batch
        >>> from fedaudit.defenses import ConfiguredDefense
        >>> @dataclass(frozen=True)
        ... class Jitter(ConfiguredDefense):
        ...     sigma: float = 0.3
        ...
        ...     def batch(self, batch, context):
        ...         noise = torch.randn(batch.x.shape, generator=context.rng("jitter"))
        ...         return Batch(batch.x + self.sigma * noise, batch.y, batch.ids)
        >>> Jitter(clients=[0]).clients
        [0]
    """

    clients: ClientIds | None = field(default=None, kw_only=True, repr=False, compare=False)


UNDEFENDED = Defense()

TRAINING_HOOKS = ("prepare", "select", "batches", "batch", "loss", "gradient")
"""Hooks that change the samples or the steps of local training."""

HOOKS = (*TRAINING_HOOKS, "upload", "after")
"""Hooks of which a defense overrides at least one."""


def checked_return(defense: Defense, hook: str, value: T, kind: type[object]) -> T:
    """Return the return value of a hook after a check of its type.

    Raises:
        BadInput: The value has another type.
    """
    if not isinstance(value, kind):
        raise BadInput(
            f"the hook {hook} of {type(defense).__name__} returned {type(value).__name__} instead "
            f"of {kind.__name__}"
        )
    return value


def apply_upload_hook(defense: Defense, upload: Upload, context: TrainingContext) -> Upload:
    """Return the upload after the hook of a client's defense.

    Raises:
        BadInput: The hook returns another type of upload, or other names or shapes of tensors,
            which the server could not average.
    """
    defended = checked_return(defense, "upload", defense.upload(upload, context), type(upload))
    before, after = _shapes(upload), _shapes(defended)
    if before != after:
        name = next(name for name in before | after if before.get(name) != after.get(name))
        raise BadInput(
            f"the hook upload of {type(defense).__name__} returned {after.get(name, 'nothing')} "
            f"for {name!r} instead of {before.get(name, 'nothing')}; keep the names and shapes of "
            "the upload"
        )
    return defended


def _shapes(upload: Upload) -> dict[str, tuple[int, ...] | str]:
    """Return the shape of each tensor of an upload; the type for values that are not tensors."""
    by_name = {**upload.values, **({} if isinstance(upload, Logits) else upload.buffers)}
    if isinstance(upload, Update):
        by_name |= {f"extra/{name}": value for name, value in upload.extra.items()}
    return {
        name: tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        for name, value in by_name.items()
    }
