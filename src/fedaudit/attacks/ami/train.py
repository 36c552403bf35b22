"""Training of planted neurons: descent with momentum or Adam, on all rows or in batches of them.

Complexity, for n neurons over M rows of d features, r hidden units and E epochs: by coefficients
n (2 M d r + M M d + E M M r) operations, by weights n E 4 M d r; the first is taken where M < 2 d,
steps have momentum and a step uses all rows.
Memory: three matrices of M x r for each of the neurons that are trained together, and the weights;
in batches of b rows, b x (d + 3 r) and the weights, and at most ``_KEPT`` bytes of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami import NeuronTraining
from fedaudit.attacks.ami.plant import Distinct, Neurons
from fedaudit.core.errors import BadInput

Step = Callable[[Tensor, Tensor], Tensor]
"""From a parameter and the slope of the loss there to the parameter afterwards."""


@dataclass
class Momentum:
    """Descent with momentum: p becomes m p + slope, and the parameter falls by lr p.

    Attributes:
        lr: Step size.
        momentum: Share of the last step's direction that is kept.
    """

    lr: float
    momentum: float
    _pace: Tensor | None = field(default=None, init=False)

    def __call__(self, value: Tensor, slope: Tensor) -> Tensor:
        if self._pace is None:
            self._pace = torch.zeros_like(value)
        self._pace.mul_(self.momentum).add_(slope)
        return value.sub(self._pace, alpha=self.lr)


@dataclass
class AdamStep:
    """Adam with its usual constants.

    Attributes:
        lr: Step size.

    Source: Kingma and Ba 2015, Algorithm 1; AMI's published code trains by it.
    """

    lr: float
    _first: Tensor | None = field(default=None, init=False)
    _second: Tensor | None = field(default=None, init=False)
    _steps: int = field(default=0, init=False)

    def __call__(self, value: Tensor, slope: Tensor) -> Tensor:
        if self._first is None or self._second is None:
            self._first, self._second = torch.zeros_like(value), torch.zeros_like(value)
        self._steps += 1
        self._first.mul_(0.9).add_(slope, alpha=0.1)
        self._second.mul_(0.999).addcmul_(slope, slope, value=0.001)
        spread = self._second.sqrt().div_((1 - 0.999**self._steps) ** 0.5).add_(1e-8)
        return value.addcdiv(self._first, spread, value=-self.lr / (1 - 0.9**self._steps))


class ByCoefficients:
    """First layer as W = W0 + A' X and c = A' 1: descent stays in the span of the rows.

    An epoch needs the rows' inner products only. Values of all rows are updated with A, and agree
    with those by W up to rounding.
    """

    def __init__(
        self, first: Tensor, rows: Tensor, watched: Tensor, lr: float, momentum: float
    ) -> None:
        self._first, self._rows = first, rows
        self._lr, self._momentum = lr, momentum
        self._products = torch.bmm(rows, rows.transpose(1, 2)) + 1
        self._inner = torch.bmm(rows, first.transpose(1, 2))
        self._watched_products = torch.bmm(watched, rows.transpose(1, 2)) + 1
        self._watched_start = torch.bmm(watched, first.transpose(1, 2))
        self._moved = torch.zeros_like(self._inner)
        self._pace = torch.zeros_like(self._inner)

    def inner(self) -> Float[Tensor, "neurons rows hidden"]:
        return self._inner

    def watched(self) -> Float[Tensor, "neurons watched hidden"]:
        return torch.baddbmm(self._watched_start, self._watched_products, self._moved)

    def move(self, slope: Tensor) -> None:
        self._pace.mul_(self._momentum).add_(slope)
        self._moved.sub_(self._pace, alpha=self._lr)
        self._inner.baddbmm_(self._products, self._pace, alpha=-self._lr)

    def now(self) -> tuple[Tensor, Tensor]:
        weights = torch.baddbmm(self._first, self._moved.transpose(1, 2), self._rows)
        return weights, self._moved.sum(1)


class ByWeights:
    """First layer as W and c, for more rows than features, or rows in batches."""

    def __init__(
        self, first: Tensor, rows: Tensor, watched: Tensor, step: Step, bias_step: Step
    ) -> None:
        self._rows, self._watched = rows, watched
        self._first, self._bias = first, torch.zeros(first.shape[:2])
        self._step, self._bias_step = step, bias_step

    def inner(self) -> Float[Tensor, "neurons rows hidden"]:
        return self._of(self._rows)

    def watched(self) -> Float[Tensor, "neurons watched hidden"]:
        return self._of(self._watched)

    def _of(self, rows: Tensor) -> Tensor:
        return torch.baddbmm(self._bias[:, None], rows, self._first.transpose(1, 2))

    def replace_rows(self, rows: Tensor) -> None:
        self._rows = rows

    def move(self, slope: Tensor) -> None:
        self._first = self._step(self._first, torch.bmm(slope.transpose(1, 2), self._rows))
        self._bias = self._bias_step(self._bias, slope.sum(1))

    def now(self) -> tuple[Tensor, Tensor]:
        return self._first, self._bias


FirstLayer = ByCoefficients | ByWeights


class Standard(NamedTuple):
    """Standardisation of rows: x becomes (x - mean) * scale.

    Attributes:
        mean: Of each feature.
        scale: Of each feature.
    """

    mean: Float[Tensor, " features"]
    scale: Float[Tensor, " features"]

    @staticmethod
    def of(rows: Float[Tensor, "rows features"]) -> "Standard":
        """Standardise by the rows' means and deviations, to a mean squared length of about 1.

        Deviations are at least a tenth of the usual one, since new rows may vary more.

        Raises:
            BadInput: All rows are the same.
        """
        deviation, mean = torch.std_mean(rows, dim=0, correction=0)
        usual = deviation.square().mean().sqrt()
        if not usual > 0:
            raise BadInput(
                f"a neuron cannot learn from {len(rows)} identical records; give records that "
                "differ"
            )
        return Standard(mean, 1 / (deviation.clamp(min=0.1 * usual) * rows.shape[1] ** 0.5))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) * self.scale

    def folded(self, neurons: Neurons) -> Neurons:
        first = neurons.first * self.scale
        return neurons._replace(first=first, first_bias=neurons.first_bias - first @ self.mean)


class Labelled(NamedTuple):
    """Rows of each neuron.

    Attributes:
        rows: Copies of the neuron's target, and other records.
        is_target: True for the target's rows.
    """

    rows: Float[Tensor, "neurons rows features"]
    is_target: Bool[Tensor, "neurons rows"]

    def at(self, neuron: int) -> "Labelled":
        return Labelled(self.rows[neuron, None], self.is_target[neuron, None])


_KEPT = 2**28
"""Maximum size in bytes of the rows that are kept from one epoch to the next. Rows of further
batches are regenerated identically. Perturbing bits takes several times as long as a training step
on the rows, so that keeping rows saves time."""


class Batches:
    """Training rows of one neuron in batches, each made when it is used.

    Attributes:
        targets: Number of the target's rows, in all batches together.
        others: Number of other rows.
    """

    def __init__(
        self, count: int, make: Callable[[int], Labelled], *, targets: int, others: int
    ) -> None:
        """Prepare ``count`` batches; ``make`` returns the same batch at every call."""
        self.targets, self.others = targets, others
        self._count, self._make = count, make
        self._kept, self._room = dict[int, Labelled](), _KEPT

    def __len__(self) -> int:
        return self._count

    def batch(self, number: int) -> Labelled:
        if number in self._kept:
            return self._kept[number]
        batch = self._make(number)
        size = batch.rows.nbytes
        if size <= self._room:
            self._kept[number], self._room = batch, self._room - size
        return batch

    def in_order(self) -> Iterator[Labelled]:
        return map(self.batch, range(len(self)))


class Trained(NamedTuple):
    """Trained neurons and their training times.

    Attributes:
        neurons: The trained neurons.
        epochs: Epochs of each.
        separated: Whether training ended because all watched rows were separated.
    """

    neurons: Neurons
    epochs: Int[Tensor, " neurons"]
    separated: Bool[Tensor, " neurons"]


def train_neurons(
    data: Labelled | Batches,
    how: NeuronTraining,
    *,
    standard: Standard,
    rng: torch.Generator,
    watched: Labelled | None = None,
) -> Trained:
    """Train neurons that fire for their target's rows and for no others.

    Args:
        data: Training rows of each neuron, with at least one of its target and one of others.
            Batches are of a single neuron.
        how: Settings; the size of ``Batches`` is their own.
        standard: Standardisation of rows.
        rng: Draws initial weights, neuron by neuron, and the order of batches.
        watched: Rows that each is checked by, if ``how.check`` is not 0.

    Raises:
        BadInput: Training or watched rows lack those of the target, or others.
    """
    if isinstance(data, Batches):
        has_both = min(len(data), data.targets, data.others) > 0
    else:
        has_both = bool((data.is_target.any(1) & ~data.is_target.all(1)).all())
    if not has_both:
        raise BadInput("a planted neuron learns from rows of its target and of others: give both")
    if not how.check:
        first = data.batch(0) if isinstance(data, Batches) else data
        none = Labelled(first.rows[:, :0], first.is_target[:, :0])
        return _train_together(data, how, none, standard=standard, rng=rng)
    if watched is None or not (watched.is_target.any(1) & ~watched.is_target.all(1)).all():
        raise BadInput(
            "early stopping of a planted neuron needs validation rows of its target and of "
            "others; give both"
        )
    if isinstance(data, Batches):
        return _train_together(data, how, watched, standard=standard, rng=rng)
    # Neurons stop at different epochs, and are therefore trained one by one.
    alone = [
        _train_together(data.at(i), how, watched.at(i), standard=standard, rng=rng)
        for i in range(len(data.rows))
    ]
    neurons = Neurons.joined(trained.neurons for trained in alone)
    return Trained(neurons, *(torch.cat(part) for part in list(zip(*alone, strict=True))[1:]))


def _train_together(
    training: Labelled | Batches,
    how: NeuronTraining,
    watched: Labelled,
    *,
    standard: Standard,
    rng: torch.Generator,
) -> Trained:
    """Train for all epochs, or until the watched rows are separated, if there are any."""
    rows = (training.batch(0) if isinstance(training, Batches) else training).rows
    count = len(rows)
    start = _start(count, rows.shape[2], how, rng)
    looked_at = Distinct.of(watched.rows[0])  # equal rows are to have equal values
    seen = standard(looked_at.rows).expand(count, -1, -1)
    first: FirstLayer
    steps: Callable[[], Iterator[_Data]]
    if isinstance(training, Batches):
        moving = ByWeights(start.first, rows, seen, _step(how, how.lr), _step(how, how.lr))
        first, steps = moving, partial(_batch_by_batch, training, moving, how, standard, rng)
    else:
        weights = _weights(training.is_target, how.target_share)
        data = _Data(standard(rows), training.is_target.to(rows), weights)
        if how.optimizer == "momentum" and data.rows.shape[1] < 2 * data.rows.shape[2]:
            first = ByCoefficients(start.first, data.rows, seen, how.lr, how.momentum)
        else:
            steps_of_layer = _step(how, how.lr), _step(how, how.lr)
            first = ByWeights(start.first, data.rows, seen, *steps_of_layer)
        steps = partial(iter, [data])
    second, bias = start.second, torch.zeros(start.second.shape[:2])
    second_step, bias_step = _step(how, how.lr / how.hidden), _step(how, how.lr / how.hidden)
    epochs, separated = how.epochs, False
    for epoch in range(1, how.epochs + 1):
        for data in steps():
            inner = first.inner()
            active = inner.relu()
            slope = _slope(_outputs(active, second, bias), data, how.output)
            first.move(torch.bmm(slope, second).mul_(inner > 0))
            second = second_step(second, torch.bmm(slope.transpose(1, 2), active))
            bias = bias_step(bias, slope.sum(1))
        if how.check and epoch % how.check == 0:
            values = _outputs(first.watched().relu_(), second, bias)[0, looked_at.place, 0]
            if values[watched.is_target[0]].min() > values[~watched.is_target[0]].max():
                epochs, separated = epoch, True
                break
    weights, first_bias = first.now()
    return Trained(
        standard.folded(Neurons(weights, first_bias, second[:, 0], bias[:, 0])),
        torch.full((count,), epochs),
        torch.full((count,), separated),
    )


def _batch_by_batch(
    batches: Batches,
    first: ByWeights,
    how: NeuronTraining,
    standard: Standard,
    rng: torch.Generator,
) -> Iterator["_Data"]:
    """Yield the steps of an epoch: every batch once, in a new order.

    A row weighs as in a step on all rows, times the number of batches, so that the mean of the
    steps' gradients is the gradient on all rows wherever the target's rows lie.
    """
    of_target = how.target_share / batches.targets * len(batches)
    of_others = (1 - how.target_share) / batches.others * len(batches)
    for number in torch.randperm(len(batches), generator=rng).tolist():
        rows, is_target = batches.batch(number)
        data = _Data(
            standard(rows), is_target.to(rows), torch.where(is_target, of_target, of_others)
        )
        first.replace_rows(data.rows)
        yield data


def _step(how: NeuronTraining, lr: float) -> Step:
    return AdamStep(how.lr) if how.optimizer == "adam" else Momentum(lr, how.momentum)


class _Data(NamedTuple):
    """Training data: standardised rows, 1 for a target's, and their weights in the loss."""

    rows: Float[Tensor, "neurons rows features"]
    labels: Float[Tensor, "neurons rows"]
    weights: Float[Tensor, "neurons rows"]


class _Start(NamedTuple):
    """Initial weights; the second layer has one output, or the two of the published code."""

    first: Float[Tensor, "neurons hidden features"]
    second: Float[Tensor, "neurons outputs hidden"]


def _start(count: int, features: int, how: NeuronTraining, rng: torch.Generator) -> _Start:
    """Draw weights like torch's Linear layer, for rows of a squared length near 1."""
    outputs = 2 if how.output == "two-sigmoids" else 1
    first = torch.empty(count, how.hidden, features)
    second = torch.empty(count, outputs, how.hidden)
    for neuron in range(count):
        first[neuron].uniform_(-1, 1, generator=rng)
        second[neuron].uniform_(-1, 1, generator=rng)
    return _Start(first, second / how.hidden**0.5)


def _weights(is_target: Tensor, share: float) -> Tensor:
    """Weight rows in the loss: the target's sum to ``share``, the others' to the rest."""
    targets = is_target.sum(1, keepdim=True)
    others = is_target.shape[1] - targets
    return torch.where(is_target, share / targets, (1 - share) / others)


def _outputs(active: Tensor, second: Tensor, bias: Tensor) -> Float[Tensor, "neurons rows outputs"]:
    return torch.bmm(active, second.transpose(1, 2)) + bias[:, None]


def _slope(outputs: Tensor, data: _Data, kind: str) -> Float[Tensor, "neurons rows outputs"]:
    """Derivative of the weighted loss by the outputs."""
    shares = torch.sigmoid(outputs)
    if kind == "one-logit":
        gap = shares - data.labels[:, :, None]
    else:
        # Cross-entropy on two sigmoids as if they were logits; output 0 is the target's.
        truth = torch.stack([data.labels, 1 - data.labels], dim=2)
        gap = (torch.softmax(shares, dim=2) - truth) * shares * (1 - shares)
    return gap * data.weights[:, :, None]
