"""The hooks through which a defense acts, and what a hook may know."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Signature, signature
from itertools import combinations, takewhile
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedaudit.core import arguments
from fedaudit.core.arguments import ClientIds
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import outputs_of
from fedaudit.core.naming import DefensePart, members_of
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.tasks import CLASSIFICATION, PerSampleLoss, Reading, Task
from fedaudit.core.values import Architecture, Batch, ClientId, Model, Params, Samples, chunks
from fedaudit.observe.round import Gradient, Logits, Update, Upload


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One client's place in one round.

    Attributes:
        round: Counted from 1; 0 while clients prepare, before the first round.
        rounds: How many the run will have.
        client: Whose turn it is.
        cohort: All clients asked in this round.
        weights: Their shares in the average.
        seed: Root seed of the run.
        device: Where the client trains. Generators draw on the CPU wherever that is.
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
        """Keeps a fact of this visit for whoever studies the run; no adversary sees it.

        What training and defenses note: ``used`` (ids of the samples of every step),
        ``recycled`` (ids of those among them that a defense brought back), ``extra_bytes``
        (what the client received or sent in addition to model and upload), ``acted`` (1 for a step
        or an upload that a defense changed, 0 for one that it left as it was; not noted by defenses
        that change every one), ``risk_decided`` (likewise for a choice of a model by its risk).

        Args:
            fact: Its name; what is noted under the same name later is appended.
            values: A vector; ids, or amounts that are meant to be added up.
        """
        self._noted.setdefault(fact, []).append(values)

    @property
    def facts(self) -> Params:
        """All that was noted, a vector each, on the CPU."""
        return {fact: torch.cat(parts).to(CPU) for fact, parts in self._noted.items()}

    def rng(self, purpose: str) -> torch.Generator:
        """Return the generator of one purpose in this visit; repeated calls continue its stream."""
        if purpose not in self._generators:
            self._generators[purpose] = seeded(
                self.seed, "client", self.client, "round", self.round, purpose
            )
        return self._generators[purpose]

    def aside(self, purpose: str) -> "Visit":
        """Return the visit with separate draws and notes, for training on data of no client."""
        seed = seed_for(self.seed, purpose)
        return replace(self, seed=seed, _generators={}, _noted={})

    def at(self, model: Model) -> "Turn":
        """This visit, once it is settled which model the client starts from."""
        return Turn(
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
class Turn(Visit):
    """A visit with the model that the client starts from: all that a hook may know.

    Attributes:
        received: The model that this round's training starts from.
    """

    received: Model

    def evaluate(self, samples: Samples) -> Float[Tensor, " samples"]:
        """Per-sample losses at the received model, in evaluation mode."""
        outputs = outputs_of(self.received, samples.features, self.device)
        return self.received.architecture.loss(outputs, samples.targets)


@dataclass(frozen=True)
class Objective:
    """The objective of a training step, as a function of a batch.

    Attributes:
        module: Holds the parameters being trained.
        loss: Scalar loss of (outputs, batch), with the defense's own terms in it.
        per_sample: Loss of (outputs, targets) whose mean ``loss`` is; None where it is not
            known to be the mean of any, as for a defense with a custom loss.
        slope: Derivative of ``loss`` by the outputs, times the number of samples, of (outputs,
            batch); None, or a function that gives None, where autograd has to find it.
        task: Task that reads outputs from the module's return value.
    """

    module: nn.Module
    loss: Callable[[Tensor, Batch], Tensor]
    per_sample: PerSampleLoss | None = None
    slope: Callable[[Tensor, Batch], Tensor | None] | None = None
    task: Task = CLASSIFICATION

    def __call__(self, batch: Batch) -> Tensor:
        """The scalar to minimise, with its graph."""
        return self.loss(self.task.outputs(self.module, batch.x), batch)

    @cached_property
    def params(self) -> Params:
        """The trainable parameters, live."""
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a run before training, which a defense has to fit.

    Attributes:
        architecture: What clients train.
        shape: Of one sample.
        classes: How many the data set has.
        rounds: Of the run.
        whole: Whether samples hold whole numbers, such as tokens, which no noise can be added to.
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
        rounds: In which the client takes part.
        epochs: A round.
        batch_size: Samples a step.
        samples: How many the client has.
        features: Numbers in one sample; 0 where unknown.
    """

    rounds: int
    epochs: int
    batch_size: int
    samples: int
    features: int = 0


class Guarantee(NamedTuple):
    """Proven guarantee for everything that a client sends in a whole run.

    Attributes:
        epsilon: In nats; infinite where nothing is proven after all.
        unit: What is protected, such as the presence of one sample or client, and under what
            assumption.
        method: How epsilon was worked out; empty for Renyi accounting.
    """

    epsilon: float
    unit: str
    method: str = ""


_INIT = "__init__"


class _SettingsOfInit:
    """A class's signature by its ``__init__`` alone, whatever its ``__new__`` takes as well."""

    def __get__(self, instance: object, owner: type) -> Signature:
        begins: Callable[..., None] = getattr(owner, _INIT)
        if begins is object.__init__:
            return Signature()
        try:
            init_signature = signature(begins, eval_str=True)
        except NameError:  # some annotations speak of names that only a type checker has
            init_signature = signature(begins)
        return init_signature.replace(parameters=list(init_signature.parameters.values())[1:])


class Defense:
    """A client's defense. Every hook is neutral; override those that act.

    One instance belongs to one client; a run works on a copy of it. A defense that learns over
    rounds keeps tensors and gives them out through :meth:`state`, so that a run can stop and go
    on; it is given its state back before each of its rounds.

    From :meth:`select` to :meth:`gradient`, tensors are on ``turn.device``: what a hook draws or
    keeps must be moved there. Before and after (prepare, upload, after, restore) all is on the
    CPU.

    Attributes:
        accepts: Kinds of upload that :meth:`upload` can work on.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update, Gradient, Logits)

    if not TYPE_CHECKING:
        __signature__ = _SettingsOfInit()

        def __new__(cls, *args, members=None, **settings):
            """An instance; with ``members``, what makes one for each of these clients and seeds."""
            if members is None or "members" in signature(cls.__init__).parameters:
                return super().__new__(cls)
            if args:
                raise BadInput(
                    f"{cls.__name__} with members takes its settings by name, got {args!r}"
                )
            return DefensePart(cls, settings, members_of(members))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"

    def acts_in(self, hook: str) -> bool:
        """True if the named hook does more than the neutral one.

        Dense networks train fastest if "loss" and "gradient" do not act. A defense that overrides
        these hooks but is configured to change nothing returns False here, and trains to the same
        bits as without it.
        """
        return getattr(type(self), hook) is not getattr(Defense, hook)

    @property
    def knows_its_slope(self) -> bool:
        """True if :meth:`slope` belongs to this class's loss, and not to one that it replaced."""
        kinds = type(self).__mro__
        latest = next(kind for kind in kinds if "loss" in vars(kind) or "slope" in vars(kind))
        return "slope" in vars(latest)

    @property
    def mixes_labels(self) -> bool:
        """True if :meth:`batch` makes class probabilities of the labels."""
        return False

    @property
    def needs_classes(self) -> bool:
        """True if :meth:`loss` has to know each sample's class, so that none may be mixed."""
        return False

    @property
    def reads(self) -> Reading:
        """Readings of a model's outputs that the defense takes in addition to a loss."""
        classes = self.needs_classes or self.mixes_labels
        return Reading.POSTERIOR if classes else Reading.NOTHING

    @property
    def cancels(self) -> bool:
        """True if what :meth:`upload` adds is gone in the average with other clients' uploads.

        Then it must be sent as it is, to a server that averages all of them together.
        """
        return False

    @property
    def always_acts(self) -> bool:
        """False if the defense acts under a condition only, and notes ``acted`` at every step."""
        return True

    @property
    def prepares_apart(self) -> bool:
        """True if :meth:`prepare` changes every sample, each independently of all others."""
        return not self.acts_in("prepare")

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: refuses what the defense could not go through with.

        Args:
            plan: Algorithm, training and clients that the defense is used with.
        """

    def prepare(self, data: Samples, visit: Visit) -> Samples:
        """Once, before the first round: what stays changed for good (local DP on features)."""
        return data

    def select(self, data: Samples, turn: Turn) -> Samples:
        """Each round: which samples are trained on."""
        return data

    def batches(self, data: Samples, batch_size: int, turn: Turn) -> Iterator[Batch]:
        """Each epoch: how steps draw their samples; shuffled, without replacement."""
        order = torch.randperm(len(data), generator=turn.rng("batches"))
        # One gather an epoch and views of it: a gather a step costs a small model a third.
        shuffled = data.take(order)
        for part in chunks(len(data), batch_size):
            yield Batch(shuffled.features[part], shuffled.targets[part], shuffled.ids[part])

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: what the model is shown (mixing, augmentation, soft labels)."""
        return batch

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: the scalar to minimise; the mean of the architecture's loss."""
        return turn.received.architecture.loss(outputs, batch.y).mean()

    def slope(
        self, outputs: Float[Tensor, "samples _"], batch: Batch, turn: Turn
    ) -> Float[Tensor, "samples _"] | None:
        """Each step: the derivative of :meth:`loss` by the outputs, times the number of samples.

        None leaves it to autograd, which is always right. Written out it saves the time of a
        step of a small network. A class that overrides the loss alone is never asked for the
        slope that it inherits.
        """
        return None

    def gradient(self, objective: Objective, batch: Batch, turn: Turn) -> Params:
        """Each step: the direction to descend; the gradient of the objective."""
        params = objective.params
        if len(batch) == 0:  # Poisson sampling draws nobody now and then
            return {name: torch.zeros_like(param) for name, param in params.items()}
        values = torch.autograd.grad(
            objective(batch), list(params.values()), allow_unused=True, materialize_grads=True
        )
        return dict(zip(params, values, strict=True))

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round, last: what leaves the client."""
        return upload

    def after(self, start: Model, end: Model, turn: Turn) -> None:
        """Each round, when training is done: feedback to the defense itself."""

    def dealt(self, visit: Visit, *, classes: int) -> Bool[Tensor, " classes"]:
        """Which classes the client trains on in a round: all, unless a defense deals them out.

        Known to whoever knows what the defense draws from, such as an adversary that has got
        hold of a coalition's seed.

        Args:
            visit: Of the client in that round; weights play no part.
            classes: Number of the model's classes.
        """
        return torch.ones(classes, dtype=torch.bool)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee | None:
        """The differential privacy that this defense gives to its client; None for none."""
        return None

    def state(self) -> Params:
        """State that must survive from round to round, as tensors by name."""
        return {}

    def restore(self, state: Params) -> None:
        """Takes up a state that :meth:`state` gave."""


@arguments.dataclass(frozen=True)
class ConfiguredDefense(Defense):
    """Defense with settings as dataclass fields, and the clients that use it.

    Attributes:
        members: Numbers of the clients that use the defense, from 0, each once, such as
            ``[0, 1]``; each has a separate instance. None for all clients that have no other.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Jitter(ConfiguredDefense):
        ...     sigma: float = 0.3
        ...
        ...     def batch(self, batch, turn):
        ...         noise = torch.randn(batch.x.shape, generator=turn.rng("jitter"))
        ...         return Batch(batch.x + self.sigma * noise, batch.y, batch.ids)
        >>> Jitter(members=[0]).members
        [0]
    """

    members: ClientIds | None = field(default=None, kw_only=True, repr=False, compare=False)


UNDEFENDED = Defense()


EXCLUSIVE = ("batches", "loss", "gradient")
"""Hooks that give the whole answer, so that two of them cannot be had at once."""


@dataclass(frozen=True)
class Chain(Defense):
    """Applies several defenses in order, each to what the one before it has left.

    Attributes:
        parts: At least one defense. Data, batches and uploads pass through all parts in order. At
            most one part decides how batches are drawn, one the loss and one the gradient.
    """

    parts: tuple[Defense, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise BadInput("a chain has at least one defense; leave it out for none")
        for first, second in combinations(self.parts, 2):
            for hook in EXCLUSIVE:
                if first.acts_in(hook) and second.acts_in(hook):
                    raise Unsupported(
                        f"{type(first).__name__} and {type(second).__name__} both replace the "
                        f"{_MEANING[hook]}; put at most one of them into a chain"
                    )
            if first.cancels and second.acts_in("upload"):
                raise Unsupported(
                    f"the noise of {type(first).__name__} cancels between clients only where "
                    f"nothing changes the upload any more, and {type(second).__name__} does so "
                    f"after it; put {type(second).__name__} before it"
                )
        self._refuse_mixed_labels()
        kinds = tuple(
            kind for kind in Defense.accepts if all(kind in part.accepts for part in self.parts)
        )
        # What a chain accepts depends on its parts, and "accepts" is a class's elsewhere.
        object.__setattr__(self, "accepts", kinds)

    def _refuse_mixed_labels(self) -> None:
        # Here and not in the loss: CoFedMID asks for classes only after rounds of training.
        mixing = [part for part in self.parts if part.mixes_labels]
        asking = [part for part in self.parts if part.needs_classes]
        if mixing and asking:
            mixer, asker = type(mixing[0]).__name__, type(asking[0]).__name__
            raise Unsupported(
                f"{mixer} mixes labels, and {asker} needs to know each sample's class; put at "
                "most one of them into a chain"
            )

    @property
    def mixes_labels(self) -> bool:
        """True if any part does."""
        return any(part.mixes_labels for part in self.parts)

    @property
    def needs_classes(self) -> bool:
        """True if any part does."""
        return any(part.needs_classes for part in self.parts)

    @property
    def cancels(self) -> bool:
        """True if any part does."""
        return any(part.cancels for part in self.parts)

    @property
    def always_acts(self) -> bool:
        """True if any part does."""
        return any(part.always_acts for part in self.parts)

    @property
    def prepares_apart(self) -> bool:
        """True if every part does."""
        return all(part.prepares_apart for part in self.parts)

    def acts_in(self, hook: str) -> bool:
        """True if any part does."""
        return any(part.acts_in(hook) for part in self.parts)

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: for every part."""
        for part in self.parts:
            part.refuse_misfit(plan)

    def prepare(self, data: Samples, visit: Visit) -> Samples:
        """Once: by every part in order."""
        for part in self.parts:
            data = part.prepare(data, visit)
        return data

    def select(self, data: Samples, turn: Turn) -> Samples:
        """Each round: by every part in order."""
        for part in self.parts:
            data = part.select(data, turn)
        return data

    def batches(self, data: Samples, batch_size: int, turn: Turn) -> Iterator[Batch]:
        """Each epoch: by the one part that draws in its own way."""
        return self._only("batches").batches(data, batch_size, turn)

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: by every part in order."""
        for part in self.parts:
            batch = part.batch(batch, turn)
        return batch

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: by the one part that has its own."""
        return self._only("loss").loss(outputs, batch, turn)

    def slope(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor | None:
        """Each step: by the one part that defines a loss."""
        only = self._only("loss")
        return only.slope(outputs, batch, turn) if only.knows_its_slope else None

    def gradient(self, objective: Objective, batch: Batch, turn: Turn) -> Params:
        """Each step: by the one part that has its own."""
        return self._only("gradient").gradient(objective, batch, turn)

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: by every part in order."""
        for part in self.parts:
            upload = part.upload(upload, turn)
        return upload

    def after(self, start: Model, end: Model, turn: Turn) -> None:
        """Each round: to every part."""
        for part in self.parts:
            part.after(start, end, turn)

    def dealt(self, visit: Visit, *, classes: int) -> Bool[Tensor, " classes"]:
        """Each round: those that every part leaves the client."""
        return torch.stack([part.dealt(visit, classes=classes) for part in self.parts]).all(0)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee | None:
        """The strongest that a part gives and that holds in company; None for none.

        What happens to an upload after a part has protected it takes nothing away. A guarantee on
        single samples' gradients counts only where no other part touches data, batches or loss:
        a mixed batch, for one, shows a sample twice. One that is given to features in
        :meth:`prepare` counts only where no part before it has seen them and may keep some.
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
        """Every part's, under its place in the chain."""
        return {
            f"{place}/{name}": value
            for place, part in enumerate(self.parts)
            for name, value in part.state().items()
        }

    def restore(self, state: Params) -> None:
        """Gives every part its own back."""
        for place, part in enumerate(self.parts):
            mine = f"{place}/"
            part.restore(
                {k.removeprefix(mine): value for k, value in state.items() if k.startswith(mine)}
            )

    def _only(self, hook: str) -> Defense:
        return next((part for part in self.parts if part.acts_in(hook)), UNDEFENDED)


_MEANING = {
    "batches": "way batches are drawn",
    "loss": "loss",
    "gradient": "gradient",
}
