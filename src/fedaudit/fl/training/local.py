"""Local training of a client in a round, which calls the training hooks, and optimizers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from math import ceil, cos, pi, sqrt
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedaudit.core import arguments
from fedaudit.core.arguments import AboveZero, AtLeastZero, Decay, Positive
from fedaudit.core.devices import CPU, computing_on, fork_generators, model_on, samples_on
from fedaudit.core.errors import BadInput, custom_code, setting
from fedaudit.core.modules import loaded
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Batch, Model, Samples
from fedaudit.fl.hooks import Defense, Objective, TrainingContext
from fedaudit.fl.training.manual_backprop import (
    OutputGradient,
    WrittenOut,
    cross_entropy_slope,
    written_out,
)


@runtime_checkable
class Optimizer(Protocol):
    """Optimizer of a local training; a new one is created for each round."""

    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Change the parameters in place.

        Args:
            params: The same tensors, in the same order, in every call.
            grads: Their gradients, which are neither changed nor stored.
        """
        ...


@arguments.dataclass()
class Sgd:
    """Stochastic gradient descent.

    Attributes:
        lr: Learning rate, above 0.
        momentum: Factor of the last direction, in [0, 1); 0 for none. The first step's direction is
            its gradient, as in torch.
        weight_decay: Factor of the parameters that is added to their gradient; 0 for none.
    """

    lr: AboveZero
    momentum: Decay = 0.0
    weight_decay: AtLeastZero = 0.0
    _directions: list[Tensor] = field(default_factory=list, init=False, repr=False)

    @property
    def plain(self) -> bool:
        """True if a step is the gradient times the learning rate."""
        return self.momentum == 0 and self.weight_decay == 0

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        directions = _decayed(params, grads, self.weight_decay)
        if self.momentum > 0:
            directions = self._with_momentum(directions)
        torch._foreach_add_(list(params), directions, alpha=-self.lr)

    def _with_momentum(self, grads: list[Tensor]) -> list[Tensor]:
        if not self._directions:
            self._directions = [grad.clone() for grad in grads]
        else:
            torch._foreach_mul_(self._directions, self.momentum)
            torch._foreach_add_(self._directions, grads)
        return self._directions


@arguments.dataclass()
class Adam:
    """Adam, with the weight decay added to the gradient (not AdamW's).

    Attributes:
        lr: Learning rate, above 0.
        weight_decay: Factor of the parameters that is added to their gradient; 0 for none.
        betas: Decay rates of the mean and of the mean square, each in [0, 1).
        eps: Constant added to the root of the mean square, to avoid a division by 0.

    Source: Kingma and Ba, "Adam", Algorithm 1.
    """

    lr: AboveZero = 1e-3
    weight_decay: AtLeastZero = 0.0
    betas: tuple[Decay, ...] = (0.9, 0.999)
    eps: AtLeastZero = 1e-8
    _steps: int = field(default=0, init=False, repr=False)
    _means: list[Tensor] = field(default_factory=list, init=False, repr=False)
    _squares: list[Tensor] = field(default_factory=list, init=False, repr=False)

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        grads = _decayed(params, grads, self.weight_decay)
        if self._steps == 0:
            self._means = [torch.zeros_like(param) for param in params]
            self._squares = [torch.zeros_like(param) for param in params]
        self._steps += 1
        first, second = self.betas
        torch._foreach_lerp_(self._means, grads, 1 - first)
        torch._foreach_mul_(self._squares, second)
        torch._foreach_addcmul_(self._squares, grads, grads, 1 - second)
        spreads = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(spreads, sqrt(1 - second**self._steps))
        torch._foreach_add_(spreads, self.eps)
        rate = self.lr / (1 - first**self._steps)
        torch._foreach_addcdiv_(list(params), self._means, spreads, -rate)


@dataclass
class Anchored:
    """Optimizer with a proximal term towards the initial parameters.

    Attributes:
        optimizer: The optimizer that takes the steps.
        pull: Factor of the distance from the initial parameters that is added to the gradient (mu),
            at least 0.

    Source: Li et al. 2020 (FedProx), Eq. (2): the gradient of mu / 2 times the squared distance.
    """

    optimizer: Optimizer
    pull: float
    _anchor: list[Tensor] = field(default_factory=list, init=False, repr=False)

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Change the parameters in place; their values at the first step are the anchor."""
        if not self._anchor:
            self._anchor = [param.clone() for param in params]
        distances = torch._foreach_sub(list(params), self._anchor)
        self.optimizer.step(params, torch._foreach_add(list(grads), distances, alpha=self.pull))


def _decayed(
    params: Sequence[Tensor], grads: Sequence[Tensor], weight_decay: float
) -> list[Tensor]:
    if weight_decay == 0:
        return list(grads)
    return list(torch._foreach_add(list(grads), list(params), alpha=weight_decay))


Schedule = Callable[[int, int], float]


def constant(round: int, rounds: int) -> float:
    """Keep the learning rate of the first round."""
    return 1.0


def cosine(round: int, rounds: int) -> float:
    """Decrease the learning rate along half a cosine to 0 after the last round.

    Source: FedMIA, published run script (cosine to 0).
    """
    return 0.5 * (1 + cos(pi * (round - 1) / rounds))


def exponential(round: int, rounds: int) -> float:
    """Multiply the learning rate by 0.99 after every round.

    Source: FedMIA, appendix A (learning-rate decay 0.99).
    """
    return 0.99 ** (round - 1)


ScheduleName = Literal["constant", "cosine", "exponential"]
OptimizerName = Literal["sgd", "adam"]
SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "cosine": cosine,
    "exponential": exponential,
}


@arguments.dataclass(frozen=True)
class LocalTraining:
    """Settings of a client's training within a round; the optimizer is reset in each round.

    Attributes:
        epochs: Local epochs: passes of a client over its samples in each of its rounds, at
            least 1.
        batch_size: Samples per training step, at least 1; a client with fewer samples takes one
            step per epoch.
        lr: Learning rate of the first round, above 0; at most 1,000 in a study.
        momentum: Momentum of SGD, in [0, 1); 0 for none.
        weight_decay: L2 penalty coefficient, as in ``torch.optim.SGD``, at least 0, and at most
            1,000 in a study; 0 for none.
        schedule: Learning rate over the rounds: "constant", "cosine" or "exponential".
        optimizer: Optimizer of local training, "sgd" or "adam".
    """

    epochs: Positive = 1
    batch_size: Positive = 32
    lr: AboveZero = 0.1
    momentum: Decay = 0.0
    weight_decay: AtLeastZero = 0.0
    schedule: ScheduleName = "constant"
    optimizer: OptimizerName = "sgd"

    def rate(self, round: int, rounds: int) -> float:
        """Return the learning rate in a round."""
        return self.lr * SCHEDULES[self.schedule](round, rounds)

    def steps(self, round: int, rounds: int) -> Optimizer:
        """Create the optimizer of a round."""
        rate = self.rate(round, rounds)
        if self.optimizer == "adam":
            return Adam(lr=rate, weight_decay=self.weight_decay)
        return Sgd(lr=rate, momentum=self.momentum, weight_decay=self.weight_decay)

    def gradient_scale(self, round: int, rounds: int, *, samples: int) -> float | None:
        """Return the factor from (received minus local) to the sum of the samples' gradients.

        An update is approximately one step per batch. Each step is the learning rate times a mean
        gradient, amplified by momentum.

        Args:
            round: Number of the round, for the learning rate.
            rounds: Number of rounds of the run.
            samples: Number of samples that the client trains on; 0 if unknown.

        Returns:
            The factor; None if the optimizer is not SGD or the number of samples is unknown.
        """
        steps = self.epochs * ceil(samples / self.batch_size)
        total_rate = self.rate(round, rounds) * steps / (1 - self.momentum)
        return samples / total_rate if self.optimizer == "sgd" and total_rate > 0 else None


def train(
    model: Model,
    data: Samples,
    how: LocalTraining,
    defense: Defense,
    context: TrainingContext,
    *,
    pull: float = 0.0,
) -> Model:
    """Train a client's model for one round, with the hooks of its defense.

    Args:
        model: Initial model.
        data: The client's (prepared) samples.
        how: Epochs, batches and optimizer.
        defense: The defense, whose training hooks are called.
        context: Context of the hooks, with the device to train on.
        pull: Factor of a proximal term towards the initial model; see
            :class:`fedaudit.fl.training.local.Anchored`.

    Returns:
        The trained model, on the CPU.

    Raises:
        BadInput: Trained parameters are not finite.
    """
    with computing_on(context.device):
        optimizer: Optimizer = how.steps(context.round, context.rounds)
        if pull:
            optimizer = Anchored(optimizer, pull)
        trained = model_on(_trained(model, data, how, optimizer, defense, context), CPU)
    if not all(bool(value.isfinite().all()) for value in trained.params.values()):
        raise BadInput(
            f"client {context.client}'s training diverged in round {context.round}: its parameters "
            f"are no longer finite; lower the learning rate ({how.lr}) or check the features"
        )
    defense.after(model, trained, context)
    return trained


def _trained(
    model: Model,
    data: Samples,
    how: LocalTraining,
    optimizer: Optimizer,
    defense: Defense,
    context: TrainingContext,
) -> Model:
    module = loaded(model, "training", context.device).train()
    chosen = defense.select(samples_on(data, context.device), context)
    # Created after the selection, which may decide whether a defense's loss acts in this round.
    step = _stepper(module, optimizer, defense, context)
    with dropout_of(context):
        for _ in range(how.epochs):
            for batch in defense.batches(chosen, how.batch_size, context):
                context.note("used", batch.ids)
                with custom_code(partial(_refused_size, model, batch, how, defense, context)):
                    step(defense.batch(batch, context))
    return Model.of(model.architecture, module)


def _refused_size(
    model: Model,
    batch: Batch,
    how: LocalTraining,
    defense: Defense,
    context: TrainingContext,
    error: Exception,
    described: str,
) -> BadInput | None:
    """Return an error message for a batch that fails because of its size, or None.

    The size is the reason if a batch with the same samples twice can be trained on. Checks before
    training cover the sizes that are known then, but a defense may choose other sizes.
    """
    twice = Batch(*(torch.cat([part, part]) for part in (batch.x, batch.y, batch.ids)))
    try:
        try_step(model, twice, how, deepcopy(defense), context)
    except Exception:
        return None
    return BadInput(
        f"client {context.client} has a batch of {len(batch)} in round {context.round}, and the "
        f"model {model.architecture.name!r} cannot take a training step on it "
        f"({described}); batches of {2 * len(batch)} can be trained on: set "
        f"another {setting('training.batch_size')}, or use another model (batch normalisation "
        "needs several samples)"
    )


def try_step(
    model: Model, batch: Batch, how: LocalTraining, defense: Defense, context: TrainingContext
) -> None:
    """Take one training step on a copy of a model, as :func:`train` does, and discard the result.

    Raises:
        Exception: Any exception of the network, the loss or the defense on this batch.
    """
    with computing_on(context.device), dropout_of(context):
        module = loaded(model, "training", context.device).train()
        step = _stepper(module, how.steps(context.round, context.rounds), defense, context)
        step(defense.batch(batch, context))


@contextmanager
def dropout_of(context: TrainingContext) -> Iterator[None]:
    """Seed the global generators, from which dropout draws, for this client, and restore them."""
    with fork_generators(context.device):
        _seed(int(torch.randint(2**62, (), generator=context.rng("dropout"))), context.device)
        yield


def objective_of(module: nn.Module, defense: Defense, context: TrainingContext) -> Objective:
    """Return a client's training objective, with the loss of its defense."""
    return Objective(
        module,
        lambda outputs, batch: defense.loss(outputs, batch, context),
        per_sample=None if defense.acts_in("loss") else context.received.architecture.loss,
        slope=partial(defense.slope, context=context) if defense.knows_its_slope else None,
        task=context.received.architecture.task,
    )


def _seed(seed: int, device: torch.device) -> None:
    if device.type == "cpu":
        # torch.manual_seed also queues a call with a stack trace for every type of accelerator,
        # which takes 0.2 ms: half a step of a small network.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _stepper(
    module: nn.Module, optimizer: Optimizer, defense: Defense, context: TrainingContext
) -> Callable[[Batch], None]:
    """Return a function that takes a training step on a batch, by the hooks or by hand."""
    objective = objective_of(module, defense, context)
    names = list(objective.params)
    params = list(objective.params.values())

    def step(batch: Batch) -> None:
        gradient = defense.gradient(objective, batch, context)
        optimizer.step(params, [gradient[name] for name in names])

    by_autograd = defense.acts_in("gradient") or not objective.task.reads_plainly
    written = None if by_autograd else written_out(module)
    return step if written is None else partial(_by_hand, objective, optimizer, written, step)


def _by_hand(
    objective: Objective,
    optimizer: Optimizer,
    written: WrittenOut,
    otherwise: Callable[[Batch], None],
    batch: Batch,
) -> None:
    # Features that require a gradient belong to a loss with a derivative by the features.
    if len(batch) == 0 or batch.x.requires_grad:
        otherwise(batch)
        return
    params = list(objective.params.values())
    output_gradient: OutputGradient | None = None
    if objective.per_sample is not cross_entropy or batch.y.is_floating_point():
        output_gradient = OutputGradient(objective, batch, params)
    slope = output_gradient or partial(cross_entropy_slope, y=batch.y)
    if isinstance(optimizer, Sgd) and optimizer.plain:
        written.descend(batch.x, slope, lr=optimizer.lr)
        if output_gradient:
            output_gradient.descend_direct(lr=optimizer.lr)
    else:
        gradients = written.gradients(batch.x, slope)
        optimizer.step(
            params, output_gradient.with_direct(gradients) if output_gradient else gradients
        )
