"""Arguments of defense hooks: context of client and round, objective, settings of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.core.devices import CPU
from fedaudit.core.modules import outputs_of
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.tasks import CLASSIFICATION, PerSampleLoss, Task
from fedaudit.core.values import Architecture, Batch, ClientId, Model, Params, Samples


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
