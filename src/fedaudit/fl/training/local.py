"""Local training of a client in a round, with the hooks of its defense, and optimizers."""

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
from fedaudit.core.errors import BadInput, custom_code, format_setting
from fedaudit.core.modules import load_module
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Batch, Model, Params, Samples
from fedaudit.fl.hooks import Defense, Objective, TrainingContext
from fedaudit.fl.training.manual_backprop import (
    ManualSteps,
    OutputGradient,
    cross_entropy_slope,
    manual_steps,
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
        momentum: Factor of the momentum buffer, in [0, 1); 0 for none. The buffer starts as the
            first gradient, as in torch.
        weight_decay: L2 penalty: the parameters times this factor are added to their gradient; 0
            for none.
    """

    lr: AboveZero
    momentum: Decay = 0.0
    weight_decay: AtLeastZero = 0.0
    _momentum_buffers: list[Tensor] = field(default_factory=list, init=False, repr=False)

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        directions = _add_weight_decay(params, grads, self.weight_decay)
        if self.momentum > 0:
            directions = self._with_momentum(directions)
        torch._foreach_add_(list(params), directions, alpha=-self.lr)

    def _with_momentum(self, grads: list[Tensor]) -> list[Tensor]:
        if not self._momentum_buffers:
            self._momentum_buffers = [grad.clone() for grad in grads]
        else:
            torch._foreach_mul_(self._momentum_buffers, self.momentum)
            torch._foreach_add_(self._momentum_buffers, grads)
        return self._momentum_buffers


@arguments.dataclass()
class Adam:
    """Adam with an L2 penalty (not the decoupled weight decay of AdamW).

    Attributes:
        lr: Learning rate, above 0.
        weight_decay: L2 penalty: the parameters times this factor are added to their gradient; 0
            for none.
        betas: Decay rates of the mean gradient and of the mean squared gradient, each in [0, 1).
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
        grads = _add_weight_decay(params, grads, self.weight_decay)
        if self._steps == 0:
            self._means = [torch.zeros_like(param) for param in params]
            self._squares = [torch.zeros_like(param) for param in params]
        self._steps += 1
        first, second = self.betas
        torch._foreach_lerp_(self._means, grads, 1 - first)
        torch._foreach_mul_(self._squares, second)
        torch._foreach_addcmul_(self._squares, grads, grads, 1 - second)
        # The bias corrections are applied to the denominators and to the learning rate.
        denominators = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(denominators, sqrt(1 - second**self._steps))
        torch._foreach_add_(denominators, self.eps)
        rate = self.lr / (1 - first**self._steps)
        torch._foreach_addcdiv_(list(params), self._means, denominators, -rate)


@dataclass
class ProximalOptimizer:
    """Optimizer with a proximal term.

    Attributes:
        optimizer: The optimizer that takes the steps.
        mu: Weight of the proximal term, at least 0: mu times the difference from the centre is
            added to the gradient.
        centre: Parameters towards which the term pulls; empty for the parameters before the first
            step.

    Source: Li et al. 2020 (FedProx), Eq. (2): the gradient of mu / 2 times the squared distance.
    """

    optimizer: Optimizer
    mu: float
    centre: list[Tensor] = field(default_factory=list, repr=False)

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        if not self.centre:
            self.centre = [param.clone() for param in params]
        changes = torch._foreach_sub(list(params), self.centre)
        self.optimizer.step(params, torch._foreach_add(list(grads), changes, alpha=self.mu))


@dataclass
class CorrectedOptimizer:
    """Optimizer that adds the same tensors to the gradient of every step.

    Attributes:
        optimizer: The optimizer that takes the steps.
        correction: Tensors that are added, in the order of the parameters.
    """

    optimizer: Optimizer
    correction: list[Tensor] = field(repr=False)

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        self.optimizer.step(params, torch._foreach_add(list(grads), self.correction))


@dataclass(frozen=True)
class AddedTerms:
    """Terms that an algorithm adds to a client's objective.

    Attributes:
        mu: Weight of a proximal term, which pulls parameters towards ``centre``; 0 for none.
        centre: Parameters towards which the proximal term pulls; empty for the initial ones.
        correction: Tensors that are added to the gradient of each step, by parameter; empty for
            none.
    """

    mu: float = 0.0
    centre: Params = field(default_factory=dict)
    correction: Params = field(default_factory=dict)

    def added_to(
        self, optimizer: Optimizer, names: Sequence[str], device: torch.device
    ) -> Optimizer:
        """Return an optimizer of these parameters with the terms.

        Terms that are zero are left out, because the fastest steps are those of a plain optimizer.
        """
        if self.mu:
            centre = [self.centre[name].to(device) for name in names if self.centre]
            optimizer = ProximalOptimizer(optimizer, self.mu, centre)
        if any(bool(value.any()) for value in self.correction.values()):
            correction = [self.correction[name].to(device) for name in names]
            optimizer = CorrectedOptimizer(optimizer, correction)
        return optimizer


NO_TERMS = AddedTerms()


def _add_weight_decay(
    params: Sequence[Tensor], grads: Sequence[Tensor], weight_decay: float
) -> list[Tensor]:
    if weight_decay == 0:
        return list(grads)
    return list(torch._foreach_add(list(grads), list(params), alpha=weight_decay))


Schedule = Callable[[int, int], float]
"""Function of the round and the number of rounds that returns a factor of the learning rate."""


def constant(round: int, rounds: int) -> float:
    """Return 1 in all rounds."""
    return 1.0


def cosine(round: int, rounds: int) -> float:
    """Return half a cosine wave, from 1 in the first round to 0 after the last one.

    Source: Zhu et al. 2024 (FedMIA), published run script (cosine to 0).
    """
    return 0.5 * (1 + cos(pi * (round - 1) / rounds))


def exponential(round: int, rounds: int) -> float:
    """Return 1 in the first round, and 0.99 times the last factor in every later one.

    Source: Zhu et al. 2024 (FedMIA), appendix A (learning-rate decay 0.99).
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
        epochs: Local epochs: passes of a client over its samples in each round, at least 1.
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

    def create_optimizer(self, round: int, rounds: int) -> Optimizer:
        """Return a new optimizer for a round."""
        rate = self.rate(round, rounds)
        if self.optimizer == "adam":
            return Adam(lr=rate, weight_decay=self.weight_decay)
        return Sgd(lr=rate, momentum=self.momentum, weight_decay=self.weight_decay)

    def gradient_scale(self, round: int, rounds: int, *, samples: int) -> float | None:
        """Return the factor that turns a negated update into a sum of per-sample gradients.

        An update is approximately the sum of the steps on all batches. Each step is the learning
        rate times the batch's mean gradient, amplified by momentum.

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
    settings: LocalTraining,
    defense: Defense,
    context: TrainingContext,
    *,
    terms: AddedTerms = NO_TERMS,
) -> Model:
    """Train a client's model for one round, with the hooks of its defense.

    Args:
        model: Initial model.
        data: The client's (prepared) samples.
        settings: Epochs, batches and optimizer.
        defense: The defense, whose training hooks are called.
        context: Context of the hooks, with the device to train on.
        terms: Terms that the algorithm adds to the objective.

    Returns:
        The trained model, on the CPU.

    Raises:
        BadInput: Trained parameters are not finite.
    """
    with computing_on(context.device):
        plain_optimizer = settings.create_optimizer(context.round, context.rounds)
        optimizer = terms.added_to(plain_optimizer, list(model.params), context.device)
        trained = model_on(_run_epochs(model, data, settings, optimizer, defense, context), CPU)
    if not all(bool(value.isfinite().all()) for value in trained.params.values()):
        raise BadInput(
            f"client {context.client}'s training diverged in round {context.round}: its parameters "
            f"are no longer finite; lower the learning rate ({settings.lr}) or check the features"
        )
    defense.after(model, trained, context)
    return trained


def _run_epochs(
    model: Model,
    data: Samples,
    settings: LocalTraining,
    optimizer: Optimizer,
    defense: Defense,
    context: TrainingContext,
) -> Model:
    module = load_module(model, "training", context.device).train()
    selected = defense.select(samples_on(data, context.device), context)
    # The step is created after the hook `select`, because a defense may decide there whether its
    # loss acts in this round.
    step = _training_step(module, optimizer, defense, context)
    with seeded_dropout(context):
        for _ in range(settings.epochs):
            for batch in defense.batches(selected, settings.batch_size, context):
                context.note("used", batch.ids)
                explain = partial(_explain_batch_size, model, batch, settings, defense, context)
                with custom_code(explain):
                    step(defense.batch(batch, context))
    return Model.of(model.architecture, module)


def _explain_batch_size(
    model: Model,
    batch: Batch,
    settings: LocalTraining,
    defense: Defense,
    context: TrainingContext,
    error: Exception,
    description: str,
) -> BadInput | None:
    """Return an error if a failed step was caused by the batch's size, or None otherwise.

    The size is the cause if a batch that contains each of the samples twice can be trained on.
    Checks before training cover only the configured size, but a defense may choose other sizes.
    """
    doubled = Batch(*(torch.cat([tensor, tensor]) for tensor in (batch.x, batch.y, batch.ids)))
    try:
        try_step(model, doubled, settings, deepcopy(defense), context)
    except Exception:
        return None
    return BadInput(
        f"client {context.client} has a batch of {len(batch)} in round {context.round}, on which "
        f"the model {model.architecture.name!r} cannot take a training step ({description}); "
        f"change {format_setting('training.batch_size')}, or use a model without batch "
        "normalisation, which needs several samples"
    )


def try_step(
    model: Model, batch: Batch, settings: LocalTraining, defense: Defense, context: TrainingContext
) -> None:
    """Take one training step on a copy of a model, as :func:`train` does, and discard the result.

    Raises:
        Exception: Any exception of the network, the loss or the defense on this batch.
    """
    with computing_on(context.device), seeded_dropout(context):
        module = load_module(model, "training", context.device).train()
        optimizer = settings.create_optimizer(context.round, context.rounds)
        _training_step(module, optimizer, defense, context)(defense.batch(batch, context))


@contextmanager
def seeded_dropout(context: TrainingContext) -> Iterator[None]:
    """Seed torch's global generators, from which dropout draws, and restore them afterwards."""
    with fork_generators(context.device):
        _seed(int(torch.randint(2**62, (), generator=context.rng("dropout"))), context.device)
        yield


def objective_of(module: nn.Module, defense: Defense, context: TrainingContext) -> Objective:
    """Return a client's training objective, with the loss of its defense."""
    return Objective(
        module,
        lambda outputs, batch: defense.loss(outputs, batch, context),
        per_sample=None if defense.acts_in("loss") else context.received.architecture.loss,
        slope=partial(defense.slope, context=context) if defense.slope_matches_loss else None,
        task=context.received.architecture.task,
    )


def _seed(seed: int, device: torch.device) -> None:
    if device.type == "cpu":
        # torch.manual_seed would also queue a call for every type of accelerator, which takes
        # 0.2 ms: half a step of a small network.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _training_step(
    module: nn.Module, optimizer: Optimizer, defense: Defense, context: TrainingContext
) -> Callable[[Batch], None]:
    """Return a function that takes a training step, with manual backpropagation if possible."""
    objective = objective_of(module, defense, context)
    params = objective.params

    def autograd_step(batch: Batch) -> None:
        gradient = defense.gradient(objective, batch, context)
        optimizer.step([*params.values()], [gradient[name] for name in params])

    needs_autograd = defense.acts_in("gradient") or not objective.task.needs_no_conversion
    manual_backprop = None if needs_autograd else manual_steps(module)
    if manual_backprop is None:
        return autograd_step
    return partial(_manual_step, objective, optimizer, manual_backprop, autograd_step)


def _manual_step(
    objective: Objective,
    optimizer: Optimizer,
    manual_backprop: ManualSteps,
    autograd_step: Callable[[Batch], None],
    batch: Batch,
) -> None:
    # Manual steps do not compute the derivative with respect to the features.
    if len(batch) == 0 or batch.x.requires_grad:
        autograd_step(batch)
        return
    params = list(objective.params.values())
    output_gradient: OutputGradient | None = None
    if objective.per_sample is not cross_entropy or batch.y.is_floating_point():
        output_gradient = OutputGradient(objective, batch, params)
    slope = output_gradient or partial(cross_entropy_slope, y=batch.y)
    if isinstance(optimizer, Sgd) and optimizer.momentum == optimizer.weight_decay == 0:
        manual_backprop.descend(batch.x, slope, lr=optimizer.lr)
        if output_gradient:
            output_gradient.descend_direct(lr=optimizer.lr)
    else:
        gradients = manual_backprop.gradients(batch.x, slope)
        if output_gradient:
            gradients = output_gradient.with_direct(gradients)
        optimizer.step(params, gradients)
