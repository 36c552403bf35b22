"""Local training of one client for one round, the only caller of the training hooks; optimizers."""

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
from fedaudit.fl.hooks import Defense, Objective, Turn
from fedaudit.fl.training.manual_backprop import (
    OutputGradient,
    WrittenOut,
    cross_entropy_slope,
    written_out,
)


@runtime_checkable
class Optimizer(Protocol):
    """Moves parameters along gradients; a fresh one for each local training."""

    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Changes the parameters in place.

        Args:
            params: The same tensors, in the same order, in every call.
            grads: Their gradients; left as they are, and free to be overwritten afterwards.
        """
        ...


@dataclass
class Sgd:
    """Stochastic gradient descent.

    Attributes:
        lr: Learning rate, above 0.
        momentum: Share of the last direction that is kept, in [0, 1); 0 for none. The first
            step's direction is its gradient, as in torch.
        weight_decay: This multiple of the parameters is added to their gradient; 0 for none.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    _directions: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)
        if not 0 <= self.momentum < 1:
            raise BadInput(f"momentum lies in [0, 1), 0 for none, got {self.momentum}")

    @property
    def plain(self) -> bool:
        """True if a step is the gradient times the learning rate and nothing else."""
        return self.momentum == 0 and self.weight_decay == 0

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Changes the parameters in place."""
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


@dataclass
class Adam:
    """Adam, with the weight decay added to the gradient (not AdamW's).

    Attributes:
        lr: Learning rate, above 0.
        weight_decay: This multiple of the parameters is added to their gradient; 0 for none.
        betas: Share of the last mean and of the last mean square that is kept, each in [0, 1).
        eps: Added to the root of the mean square, so that nothing is divided by 0.

    Source: Kingma and Ba, "Adam", Algorithm 1.
    """

    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    _steps: int = field(default=0, init=False, repr=False)
    _means: list[Tensor] = field(default_factory=list, init=False, repr=False)
    _squares: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)
        if not all(0 <= beta < 1 for beta in self.betas) or self.eps < 0:
            raise BadInput(
                f"betas lie in [0, 1) and eps is at least 0, got {self.betas} and {self.eps}"
            )

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Changes the parameters in place."""
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
    """Another optimizer, with a pull towards where training began.

    Attributes:
        optimizer: Takes the steps.
        pull: mu, at least 0: this multiple of the way from the anchor is added to the gradient.

    Source: Li et al. 2020 (FedProx), Eq. (2): the gradient of mu / 2 times the squared distance.
    """

    optimizer: Optimizer
    pull: float
    _anchor: list[Tensor] = field(default_factory=list, init=False, repr=False)

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Changes the parameters in place; where they are at the first step is the anchor."""
        if not self._anchor:
            self._anchor = [param.clone() for param in params]
        away = torch._foreach_sub(list(params), self._anchor)
        self.optimizer.step(params, torch._foreach_add(list(grads), away, alpha=self.pull))


def _check(lr: float, weight_decay: float) -> None:
    if not (lr > 0 and weight_decay >= 0):
        raise BadInput(
            f"lr is above 0 and weight_decay at least 0 (0 for none), got {lr} and {weight_decay}"
        )


def _decayed(
    params: Sequence[Tensor], grads: Sequence[Tensor], weight_decay: float
) -> list[Tensor]:
    if weight_decay == 0:
        return list(grads)
    return list(torch._foreach_add(list(grads), list(params), alpha=weight_decay))


Schedule = Callable[[int, int], float]


def constant(round: int, rounds: int) -> float:
    """The same rate in every round."""
    return 1.0


def cosine(round: int, rounds: int) -> float:
    """From 1 in the first round along half a cosine towards 0 after the last.

    Source: FedMIA, published run script (cosine to 0).
    """
    return 0.5 * (1 + cos(pi * (round - 1) / rounds))


def exponential(round: int, rounds: int) -> float:
    """0.99 per round.

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
    """Settings of a client's training within a round; the optimizer starts afresh each round.

    Attributes:
        epochs: Local epochs: passes of a client over its samples in each of its rounds, at
            least 1.
        batch_size: Samples per training step, at least 1. If a client has fewer, each of its epochs
            is one step.
        lr: Learning rate of the first round, above 0; at most 1,000 in a study.
        momentum: Momentum of SGD, in [0, 1); 0 for none.
        weight_decay: Factor of the parameters that is added to their gradient (L2 penalty), at
            least 0, and at most 1,000 in a study; 0 for none.
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
        """The learning rate in a round."""
        return self.lr * SCHEDULES[self.schedule](round, rounds)

    def steps(self, round: int, rounds: int) -> Optimizer:
        """A fresh optimizer for one round."""
        rate = self.rate(round, rounds)
        if self.optimizer == "adam":
            return Adam(lr=rate, weight_decay=self.weight_decay)
        return Sgd(lr=rate, momentum=self.momentum, weight_decay=self.weight_decay)

    def gradient_scale(self, round: int, rounds: int, *, samples: int) -> float | None:
        """Factor that turns (received minus local) into the sum of the samples' gradients.

        An update is approximately one step per batch. Each step is the learning rate times a mean
        gradient, lengthened by momentum.

        Args:
            round: For the learning rate.
            rounds: Of the whole run.
            samples: How many the client trains on; 0 if that is unknown.

        Returns:
            None where the optimizer is not SGD or the number of samples is unknown.
        """
        steps = self.epochs * ceil(samples / self.batch_size)
        travelled = self.rate(round, rounds) * steps / (1 - self.momentum)
        return samples / travelled if self.optimizer == "sgd" and travelled > 0 else None


def train(
    model: Model,
    data: Samples,
    how: LocalTraining,
    defense: Defense,
    turn: Turn,
    *,
    pull: float = 0.0,
) -> Model:
    """The client's model after one round of local training, with the defense's hooks in force.

    Args:
        model: Where training starts.
        data: The client's (prepared) samples.
        how: Epochs, batches and optimizer.
        defense: Its training hooks are called here and nowhere else.
        turn: What the hooks may know, and on which device to train; the model comes back from it.
        pull: Towards the model where training starts; see
            :class:`fedaudit.fl.training.local.Anchored`.

    Raises:
        BadInput: Training gave parameters that are not finite.
    """
    with computing_on(turn.device):
        optimizer: Optimizer = how.steps(turn.round, turn.rounds)
        if pull:
            optimizer = Anchored(optimizer, pull)
        trained = model_on(_trained(model, data, how, optimizer, defense, turn), CPU)
    if not all(bool(value.isfinite().all()) for value in trained.params.values()):
        raise BadInput(
            f"client {turn.client}'s training diverged in round {turn.round}: its parameters "
            f"are no longer finite; lower the learning rate ({how.lr}) or check the features"
        )
    defense.after(model, trained, turn)
    return trained


def _trained(
    model: Model,
    data: Samples,
    how: LocalTraining,
    optimizer: Optimizer,
    defense: Defense,
    turn: Turn,
) -> Model:
    module = loaded(model, "training", turn.device).train()
    chosen = defense.select(samples_on(data, turn.device), turn)
    # After the selection, which may settle whether a defense's loss differs in this round.
    step = _stepper(module, optimizer, defense, turn)
    with dropout_of(turn):
        for _ in range(how.epochs):
            for batch in defense.batches(chosen, how.batch_size, turn):
                turn.note("used", batch.ids)
                with custom_code(partial(_refused_size, model, batch, how, defense, turn)):
                    step(defense.batch(batch, turn))
    return Model.of(model.architecture, module)


def _refused_size(
    model: Model,
    batch: Batch,
    how: LocalTraining,
    defense: Defense,
    turn: Turn,
    error: Exception,
    described: str,
) -> BadInput | None:
    """Return the refusal of a batch that fails by its size alone; None for any other failure.

    The size is the reason if the same samples twice over can be trained on. Checks before training
    try the sizes that they can plan, and a defense may choose others when it sees the model.
    """
    twice = Batch(*(torch.cat([part, part]) for part in (batch.x, batch.y, batch.ids)))
    try:
        try_step(model, twice, how, deepcopy(defense), turn)
    except Exception:
        return None
    return BadInput(
        f"client {turn.client} has a batch of {len(batch)} in round {turn.round}, and the model "
        f"{model.architecture.name!r} cannot take a training step on it "
        f"({described}); batches of {2 * len(batch)} can be trained on: set "
        f"another {setting('training.batch_size')}, or take another model (batch normalisation "
        "needs several samples)"
    )


def try_step(model: Model, batch: Batch, how: LocalTraining, defense: Defense, turn: Turn) -> None:
    """Take one training step on a copy of a model, as :func:`train` does, and drop the result.

    Args:
        model: Where the step starts; it stays as it is.
        batch: Of samples, before the defense changes it.
        how: Gives the optimizer.
        defense: Its hooks of a step are called; give a copy.
        turn: What the hooks may know, and on which device.

    Raises:
        Exception: Whatever the network, the loss or the defense raises on this batch.
    """
    with computing_on(turn.device), dropout_of(turn):
        module = loaded(model, "training", turn.device).train()
        step = _stepper(module, how.steps(turn.round, turn.rounds), defense, turn)
        step(defense.batch(batch, turn))


@contextmanager
def dropout_of(turn: Turn) -> Iterator[None]:
    """Inside, the global generators, from which dropout draws, are this turn's own."""
    with fork_generators(turn.device):
        _seed(int(torch.randint(2**62, (), generator=turn.rng("dropout"))), turn.device)
        yield


def objective_of(module: nn.Module, defense: Defense, turn: Turn) -> Objective:
    """The objective of a client in a turn, the defense's loss in force."""
    return Objective(
        module,
        lambda outputs, batch: defense.loss(outputs, batch, turn),
        per_sample=None if defense.acts_in("loss") else turn.received.architecture.loss,
        slope=partial(defense.slope, turn=turn) if defense.knows_its_slope else None,
        task=turn.received.architecture.task,
    )


def _seed(seed: int, device: torch.device) -> None:
    if device.type == "cpu":
        # torch.manual_seed also leaves word for every kind of accelerator there might be, with a
        # stack trace each: 0.2 ms, half a step of a small network.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _stepper(
    module: nn.Module, optimizer: Optimizer, defense: Defense, turn: Turn
) -> Callable[[Batch], None]:
    """One training step as a function of a batch, through the hooks or written out by hand."""
    objective = objective_of(module, defense, turn)
    names = list(objective.params)
    params = list(objective.params.values())

    def step(batch: Batch) -> None:
        gradient = defense.gradient(objective, batch, turn)
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
    # Features with a graph belong to a loss that asks for its derivative by them.
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
