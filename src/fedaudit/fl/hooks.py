"""Hooks of defenses, and the context that a hook receives."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Signature, signature
from itertools import combinations, takewhile
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedaudit.core import arguments
from fedaudit.core.arguments import ClientIds
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import outputs_of
from fedaudit.core.naming import DefensePart, members_of
from fedaudit.core.objects import canonical_repr
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.tasks import CLASSIFICATION, PerSampleLoss, Reading, Task
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
        weights: Their weights in the average.
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
        """Note a fact for measuring the run, which no adversary sees.

        Training and defenses note: ``used`` (ids of the samples of every step), ``recycled`` (ids
        of those samples that a defense returned), ``extra_bytes`` (bytes that the client received
        or sent in addition to model and upload), ``acted`` (1 for a step or an upload that a
        defense changed, otherwise 0; not noted by defenses that change every one) and
        ``risk_decided`` (1 if a risk changed the client's choice of a model, otherwise 0).

        Args:
            fact: Name of the fact; values that are noted later under the same name are appended.
            values: A vector of ids, or of amounts that are summed.
        """
        self._noted.setdefault(fact, []).append(values)

    @property
    def facts(self) -> Params:
        """All noted facts, one vector each, on the CPU."""
        return {fact: torch.cat(parts).to(CPU) for fact, parts in self._noted.items()}

    def rng(self, purpose: str) -> torch.Generator:
        """Return the generator for a purpose; repeated calls continue its stream."""
        if purpose not in self._generators:
            self._generators[purpose] = seeded(
                self.seed, "client", self.client, "round", self.round, purpose
            )
        return self._generators[purpose]

    def aside(self, purpose: str) -> "ClientContext":
        """Return a context with separate draws and notes, for training on public data."""
        seed = seed_for(self.seed, purpose)
        return replace(self, seed=seed, _generators={}, _noted={})

    def at(self, model: Model) -> "TrainingContext":
        """Return this context with the model that the client starts from."""
        return TrainingContext(
            round=self.round,
            rounds=self.rounds,
            client=self.client,
            cohort=self.cohort,
            weights=self.weights,
            seed=self.seed,
            device=self.device,
            _generators=self._generators,
            _noted=self._noted,
            received=model,
        )


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
        per_sample: Per-sample loss of (outputs, targets) whose mean is ``loss``; None if there is
            no such loss, as for a defense with a custom loss.
        slope: Derivative of ``loss`` by the outputs, times the number of samples, as a function of
            (outputs, batch). If it is or returns None, autograd computes the derivative.
        task: Task that reads outputs from the module's return value.
    """

    module: nn.Module
    loss: Callable[[Tensor, Batch], Tensor]
    per_sample: PerSampleLoss | None = None
    slope: Callable[[Tensor, Batch], Tensor | None] | None = None
    task: Task = CLASSIFICATION

    def __call__(self, batch: Batch) -> Tensor:
        """Compute the scalar to minimise, with its graph."""
        return self.loss(self.task.outputs(self.module, batch.x), batch)

    @cached_property
    def params(self) -> Params:
        """The trainable parameters of the module (not copies)."""
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a run that a defense has to fit, known before training.

    Attributes:
        architecture: Architecture that clients train.
        shape: Shape of one sample.
        classes: Number of classes of the data set.
        rounds: Number of rounds of the run.
        whole: Whether features are integers, such as tokens, to which no noise can be added.
    """

    architecture: Architecture
    shape: tuple[int, ...]
    classes: int
    rounds: int
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Accesses of a client's training to its data, for a privacy accountant.

    Attributes:
        rounds: Number of rounds in which the client takes part.
        epochs: Epochs per round.
        batch_size: Samples per step.
        samples: Number of the client's samples.
        features: Number of features of one sample; 0 if unknown.
    """

    rounds: int
    epochs: int
    batch_size: int
    samples: int
    features: int = 0


class Guarantee(NamedTuple):
    """Proven differential privacy of everything that a client sends in a run.

    Attributes:
        epsilon: The epsilon; infinite if nothing is proven.
        unit: What is protected, such as the presence of one sample or client, and under what
            assumption.
        method: How epsilon was computed; empty for Renyi accounting.
    """

    epsilon: float
    unit: str
    method: str = ""


_INIT = "__init__"


class _SettingsOfInit:
    """Signature of a class from its ``__init__``, without the arguments of ``__new__``."""

    def __get__(self, instance: object, owner: type) -> Signature:
        init: Callable[..., None] = getattr(owner, _INIT)
        if init is object.__init__:
            return Signature()
        try:
            init_signature = signature(init, eval_str=True)
        except NameError:  # an annotation is imported under TYPE_CHECKING only
            init_signature = signature(init)
        return init_signature.replace(parameters=list(init_signature.parameters.values())[1:])


class Defense:
    """Defense of one client. All hooks do nothing by default; override those that act.

    One instance belongs to one client, and a run works on a copy of it. A defense that learns over
    rounds returns its tensors from :meth:`state`, so that a run can be stopped and resumed.
    :meth:`restore` is called before each of the client's rounds.

    From :meth:`select` to :meth:`gradient`, tensors are on ``context.device``. Tensors that a hook
    draws or stores must be moved there. In the other hooks (prepare, upload, after, restore), all
    tensors are on the CPU.

    Attributes:
        accepts: Types of upload that :meth:`upload` accepts.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update, Gradient, Logits)

    if not TYPE_CHECKING:
        __signature__ = _SettingsOfInit()

        def __new__(cls, *args, members=None, **settings):
            """Create an instance, or with ``members`` a factory for these clients and all seeds."""
            if members is None or "members" in signature(cls.__init__).parameters:
                return super().__new__(cls)
            if args:
                raise BadInput(
                    f"{cls.__name__} with members takes its settings by name, got {args!r}"
                )
            return DefensePart(cls, settings, members_of(members))

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
    def knows_its_slope(self) -> bool:
        """True if :meth:`slope` is the derivative of this class's loss, not of a base class's."""
        kinds = type(self).__mro__
        latest = next(kind for kind in kinds if "loss" in vars(kind) or "slope" in vars(kind))
        return "slope" in vars(latest)

    @property
    def mixes_labels(self) -> bool:
        """True if :meth:`batch` replaces labels by class probabilities."""
        return False

    @property
    def needs_classes(self) -> bool:
        """True if :meth:`loss` needs class labels, so that labels may not be mixed."""
        return False

    @property
    def reads(self) -> Reading:
        """Readings of a model's outputs that the defense needs in addition to a loss."""
        classes = self.needs_classes or self.mixes_labels
        return Reading.POSTERIOR if classes else Reading.NOTHING

    @property
    def cancels(self) -> bool:
        """True if the additions of :meth:`upload` cancel in the average with other clients'.

        Such an upload must not be changed by other defenses, and the server must average all
        clients together.
        """
        return False

    @property
    def always_acts(self) -> bool:
        """False if the defense acts under a condition only, and notes ``acted`` at every step."""
        return True

    @property
    def prepares_apart(self) -> bool:
        """True if :meth:`prepare` changes every sample independently of all others, or nothing."""
        return not self.acts_in("prepare")

    def refuse_misfit(self, plan: Plan) -> None:
        """Raise before training if the defense does not fit the run.

        Args:
            plan: Algorithm, training and clients that the defense is used with.
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
        # One gather per epoch: a gather per step would take a third of a small model's step.
        shuffled = data.take(order)
        for part in chunks(len(data), batch_size):
            yield Batch(shuffled.features[part], shuffled.targets[part], shuffled.ids[part])

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
        derivative makes steps of small networks faster. The slope that a class inherits is not
        called if the class overrides the loss only.
        """
        return None

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        """Return the direction that a step descends, by default the gradient of the objective."""
        params = objective.params
        if len(batch) == 0:  # Poisson sampling can draw an empty batch
            return {name: torch.zeros_like(param) for name, param in params.items()}
        values = torch.autograd.grad(
            objective(batch), list(params.values()), allow_unused=True, materialize_grads=True
        )
        return dict(zip(params, values, strict=True))

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        """Return the upload that leaves the client."""
        return upload

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        """Receive the models before and after local training; called once per round."""

    def dealt(self, client_context: ClientContext, *, classes: int) -> Bool[Tensor, " classes"]:
        """Return which classes the client trains on in a round, by default all.

        An adversary with the random seed of the defense, such as that of a coalition, can compute
        this.

        Args:
            client_context: Context of the client and the round; weights are not used.
            classes: Number of the model's classes.
        """
        return torch.ones(classes, dtype=torch.bool)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee | None:
        """Return the proven differential privacy of the client, or None."""
        return None

    def state(self) -> Params:
        """Return the state between rounds, as tensors by name."""
        return {}

    def restore(self, state: Params) -> None:
        """Restore a state that :meth:`state` returned."""


@arguments.dataclass(frozen=True)
class ConfiguredDefense(Defense):
    """Defense with settings as dataclass fields, and the clients that use it.

    Attributes:
        members: Numbers of the clients that use the defense, from 0, each once, such as
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
        >>> Jitter(members=[0]).members
        [0]
    """

    members: ClientIds | None = field(default=None, kw_only=True, repr=False, compare=False)


UNDEFENDED = Defense()

TRAINING_HOOKS = ("prepare", "select", "batches", "batch", "loss", "gradient")
"""Hooks that change the samples or the steps of local training."""

HOOKS = (*TRAINING_HOOKS, "upload", "after")
"""Hooks of which a defense overrides at least one."""


def custom_parts(defense: Defense) -> list[Defense]:
    """Return the defense, or the parts of a chain, if its code is not fedaudit's."""
    if isinstance(defense, Chain):
        return [custom for part in defense.parts for custom in custom_parts(part)]
    return [] if type(defense).__module__.startswith("fedaudit.") else [defense]


def returned(defense: Defense, hook: str, value: T, kind: type[object]) -> T:
    """Return the value that a hook of a defense returned.

    Raises:
        BadInput: It has another type.
    """
    if not isinstance(value, kind):
        raise BadInput(
            f"the hook {hook} of {type(defense).__name__} returned {type(value).__name__} instead "
            f"of {kind.__name__}"
        )
    return value


def defended_upload(defense: Defense, upload: Upload, context: TrainingContext) -> Upload:
    """Return the upload that a client's defense lets out, after a check of its parts.

    Raises:
        BadInput: The hook returns something else than an upload of the same kind, with the same
            names and shapes, which the server could not average.
    """
    sent = returned(defense, "upload", defense.upload(upload, context), type(upload))
    before, after = _shapes(upload), _shapes(sent)
    if before != after:
        name = next(name for name in before | after if before.get(name) != after.get(name))
        raise BadInput(
            f"the hook upload of {type(defense).__name__} returned {after.get(name, 'nothing')} "
            f"for {name!r} instead of {before.get(name, 'nothing')}; keep the names and shapes of "
            "the upload"
        )
    return sent


def _shapes(upload: Upload) -> dict[str, tuple[int, ...] | str]:
    """Return the shape of each tensor of an upload; the type for values that are not tensors."""
    tensors = [upload.values, {} if isinstance(upload, Logits) else upload.buffers]
    return {
        name: tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        for part in tensors
        for name, value in part.items()
    }


_EXCLUSIVE = {"batches": "way batches are drawn", "loss": "loss", "gradient": "gradient"}
"""Hooks that replace the default entirely, so that only one part of a chain may act in each."""


@dataclass(frozen=True)
class Chain(Defense):
    """Sequence of defenses that are applied one after another.

    Attributes:
        parts: At least one defense. Data, batches and uploads pass through all parts in order. At
            most one part overrides the drawing of batches, one the loss and one the gradient.
    """

    parts: tuple[Defense, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise BadInput("a chain needs at least one defense, got none; leave the chain out")
        for first, second in combinations(self.parts, 2):
            for hook, replaced in _EXCLUSIVE.items():
                if first.acts_in(hook) and second.acts_in(hook):
                    raise Unsupported(
                        f"{type(first).__name__} and {type(second).__name__} both replace the "
                        f"{replaced}; put at most one of them into a chain"
                    )
            if first.cancels and second.acts_in("upload"):
                raise Unsupported(
                    f"the noise of {type(first).__name__} cancels between clients only if nothing "
                    f"changes the upload afterwards, but {type(second).__name__} follows in the "
                    f"chain and changes it; put {type(second).__name__} before it"
                )
        self._refuse_mixed_labels()
        kinds = tuple(
            kind for kind in Defense.accepts if all(kind in part.accepts for part in self.parts)
        )
        # An instance attribute instead of a class attribute, since it depends on the parts.
        object.__setattr__(self, "accepts", kinds)

    def _refuse_mixed_labels(self) -> None:
        # Checked before training, since CoFedMID needs classes only in later rounds.
        mixing = [part for part in self.parts if part.mixes_labels]
        needing = [part for part in self.parts if part.needs_classes]
        if mixing and needing:
            raise Unsupported(
                f"{type(mixing[0]).__name__} mixes labels, but {type(needing[0]).__name__} needs "
                "the class of each sample; put at most one of them into a chain"
            )

    @property
    def mixes_labels(self) -> bool:
        """True if any part mixes labels."""
        return any(part.mixes_labels for part in self.parts)

    @property
    def needs_classes(self) -> bool:
        """True if any part needs classes."""
        return any(part.needs_classes for part in self.parts)

    @property
    def cancels(self) -> bool:
        """True if the additions of any part cancel in the average."""
        return any(part.cancels for part in self.parts)

    @property
    def always_acts(self) -> bool:
        """True if any part always acts."""
        return any(part.always_acts for part in self.parts)

    @property
    def prepares_apart(self) -> bool:
        """True if every part prepares samples independently."""
        return all(part.prepares_apart for part in self.parts)

    def acts_in(self, hook: str) -> bool:
        """Return True if any part acts in this hook."""
        return any(part.acts_in(hook) for part in self.parts)

    def refuse_misfit(self, plan: Plan) -> None:
        """Raise before training if a part does not fit the run."""
        for part in self.parts:
            part.refuse_misfit(plan)

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        """Pass the data through all parts."""
        for part in self.parts:
            data = part.prepare(data, client_context)
        return data

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        """Pass the data through all parts."""
        for part in self.parts:
            data = part.select(data, context)
        return data

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        """Draw batches by the part that overrides this."""
        return self._only("batches").batches(data, batch_size, context)

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        """Pass the batch through all parts."""
        for part in self.parts:
            batch = part.batch(batch, context)
        return batch

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        """Compute the loss of the part that overrides it."""
        return self._only("loss").loss(outputs, batch, context)

    def slope(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor | None:
        """Compute the slope of the part that overrides the loss."""
        only = self._only("loss")
        return only.slope(outputs, batch, context) if only.knows_its_slope else None

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        """Compute the gradient of the part that overrides it."""
        return self._only("gradient").gradient(objective, batch, context)

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        """Pass the upload through all parts."""
        for part in self.parts:
            upload = defended_upload(part, upload, context)
        return upload

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        """Pass the models to all parts."""
        for part in self.parts:
            part.after(start, end, context)

    def dealt(self, client_context: ClientContext, *, classes: int) -> Bool[Tensor, " classes"]:
        """Return the classes that all parts leave the client."""
        return torch.stack(
            [part.dealt(client_context, classes=classes) for part in self.parts]
        ).all(0)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee | None:
        """Return the strongest guarantee of a part that is valid in this chain, or None.

        Post-processing an upload does not weaken a guarantee. A guarantee for per-sample gradients
        is valid only if no other part changes data, batches or loss, since a mixed batch, for
        example, uses a sample twice. A guarantee for features in :meth:`prepare` is valid only if
        no earlier part has seen the features and may have stored some.
        """
        proven = [
            part.guarantee(work, delta=delta)
            for part in self.parts
            if not (part.acts_in("gradient") and self._others_touch_samples(part))
            and not (part.acts_in("prepare") and self._others_saw_samples(part))
        ]
        finite_guarantees = [guarantee for guarantee in proven if guarantee is not None]
        return min(finite_guarantees, key=lambda guarantee: guarantee.epsilon, default=None)

    def _others_touch_samples(self, part: Defense) -> bool:
        hooks = ("select", "batches", "batch", "loss")
        others = [other for other in self.parts if other is not part]
        return any(
            not other.prepares_apart or any(other.acts_in(hook) for hook in hooks)
            for other in others
        )

    def _others_saw_samples(self, part: Defense) -> bool:
        before = takewhile(lambda other: other is not part, self.parts)
        return not all(other.prepares_apart for other in before)

    def state(self) -> Params:
        """Return the states of all parts, with the part's position as prefix."""
        return {
            f"{place}/{name}": value
            for place, part in enumerate(self.parts)
            for name, value in part.state().items()
        }

    def restore(self, state: Params) -> None:
        """Restore the states of all parts."""
        for place, part in enumerate(self.parts):
            prefix = f"{place}/"
            part.restore(
                {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            )

    def _only(self, hook: str) -> Defense:
        return next((part for part in self.parts if part.acts_in(hook)), UNDEFENDED)
