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

from fedaudit.attacks.ami.plant import Distinct, Neurons
from fedaudit.core.errors import BadInput, unknown_name

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
        """The parameter after one step."""
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
        """The parameter after one step."""
        if self._first is None or self._second is None:
            self._first, self._second = torch.zeros_like(value), torch.zeros_like(value)
        self._steps += 1
        self._first.mul_(0.9).add_(slope, alpha=0.1)
        self._second.mul_(0.999).addcmul_(slope, slope, value=0.001)
        spread = self._second.sqrt().div_((1 - 0.999**self._steps) ** 0.5).add_(1e-8)
        return value.addcdiv(self._first, spread, value=-self.lr / (1 - 0.9**self._steps))


class ByCoefficients:
    """W = W0 + A' X and c = A' 1: descent never leaves the rows' span, so that A says it all.

    An epoch needs the rows' inner products only, not the rows. The values of all rows are moved
    along with A, and agree with W's to rounding.
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
        """W x + c of every row."""
        return self._inner

    def watched(self) -> Float[Tensor, "neurons watched hidden"]:
        """The same of rows that it is not trained on."""
        return torch.baddbmm(self._watched_start, self._watched_products, self._moved)

    def move(self, slope: Tensor) -> None:
        """A step of descent with momentum."""
        self._pace.mul_(self._momentum).add_(slope)
        self._moved.sub_(self._pace, alpha=self._lr)
        self._inner.baddbmm_(self._products, self._pace, alpha=-self._lr)

    def now(self) -> tuple[Tensor, Tensor]:
        """W and c."""
        weights = torch.baddbmm(self._first, self._moved.transpose(1, 2), self._rows)
        return weights, self._moved.sum(1)


class ByWeights:
    """W and c themselves, for more rows than their span has directions, or rows in batches."""

    def __init__(
        self, first: Tensor, rows: Tensor, watched: Tensor, step: Step, bias_step: Step
    ) -> None:
        self._rows, self._watched = rows, watched
        self._first, self._bias = first, torch.zeros(first.shape[:2])
        self._step, self._bias_step = step, bias_step

    def inner(self) -> Float[Tensor, "neurons rows hidden"]:
        """W x + c of every row."""
        return self._of(self._rows)

    def watched(self) -> Float[Tensor, "neurons watched hidden"]:
        """The same of rows that it is not trained on."""
        return self._of(self._watched)

    def _of(self, rows: Tensor) -> Tensor:
        return torch.baddbmm(self._bias[:, None], rows, self._first.transpose(1, 2))

    def replace_rows(self, rows: Tensor) -> None:
        """Use other rows from now on: those of the next batch."""
        self._rows = rows

    def move(self, slope: Tensor) -> None:
        """A step of descent, of whatever kind."""
        self._first = self._step(self._first, torch.bmm(slope.transpose(1, 2), self._rows))
        self._bias = self._bias_step(self._bias, slope.sum(1))

    def now(self) -> tuple[Tensor, Tensor]:
        """W and c."""
        return self._first, self._bias


FirstLayer = ByCoefficients | ByWeights


_OUTPUTS = ("one-logit", "two-sigmoids")
_OPTIMIZERS = ("momentum", "adam")


@dataclass(frozen=True)
class NeuronTraining:
    """Training that makes a neuron fire for its target and for nothing else.

    Rows are standardised and brought to a mean squared length of 1, and the change is folded into
    the first layer afterwards, so that one step size fits all features and numbers of them.

    Attributes:
        hidden: Units of the first layer that the neuron reads (the paper's r).
        epochs: Passes over all rows; a step each, or a step for each batch.
        lr: Step size of the first layer; with momentum the second's is a share 1 / ``hidden`` of
            it.
        momentum: Of the steps; Adam has its own.
        optimizer: "momentum", or "adam" as in the published code, some ten times slower.
        target_share: Weight of the target's rows together; all rows weigh 1.
        output: "one-logit" with binary cross-entropy, or "two-sigmoids" with cross-entropy on
            their values as if they were logits, of which the first is planted (legacy).
        check: After every so many epochs training ends if the neuron is larger for all watched rows
            of its target than for any other; 0 to go through all epochs.
        batch_size: Rows of a step; 0, or no fewer than there are, for all of them. Batches are
            fixed, share out the target's rows evenly and come in a new order in each epoch.

    Raises:
        BadInput: A setting is out of range.

    Source: AMI, Eq. (6), Figs. 2 and 4; r = 1000.
    Differs: the published code trains two sigmoid outputs with Adam and up to a million epochs;
        momentum descent has an exact form in the rows' inner products, and one logit is what the
        paper prints. The published code uses all rows in each step. It ends when no record of the
        games' own pool is on the wrong side of zero; here others are looked at, and a zero that
        tells them apart will do, since it is placed afterwards.
    """

    hidden: int = 1000
    epochs: int = 300
    lr: float = 10.0
    momentum: float = 0.9
    target_share: float = 0.5
    output: str = "one-logit"
    optimizer: str = "momentum"
    check: int = 0
    batch_size: int = 0

    def __post_init__(self) -> None:
        if self.output not in _OUTPUTS:
            raise unknown_name("output of a planted neuron", self.output, _OUTPUTS)
        if self.optimizer not in _OPTIMIZERS:
            raise unknown_name("optimizer of a planted neuron", self.optimizer, _OPTIMIZERS)
        if self.hidden < 1 or min(self.epochs, self.check, self.batch_size) < 0:
            raise BadInput(
                f"a planted neuron needs at least one hidden unit, no fewer than 0 epochs, no "
                f"fewer than 0 between checks and batches of no fewer than 0 rows, got "
                f"{self.hidden}, {self.epochs}, {self.check} and {self.batch_size}"
            )
        if not (self.lr > 0 and 0 <= self.momentum < 1 and 0 < self.target_share < 1):
            raise BadInput(
                "a planted neuron's step size is above 0, its momentum at least 0 and below 1, "
                f"its target's share between 0 and 1; got {self.lr:g}, {self.momentum:g} and "
                f"{self.target_share:g}"
            )


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
        """By the rows' means and deviations, to a mean squared length of about 1.

        A feature that varies by less than a tenth of the usual counts as if it varied by that:
        rows that were not seen may well have more of it.

        Raises:
            BadInput: All rows are the same.
        """
        deviation, mean = torch.std_mean(rows, dim=0, correction=0)
        usual = deviation.square().mean().sqrt()
        if not usual > 0:
            raise BadInput(
                "a neuron cannot learn to tell records from each other that are all the same; "
                f"got {len(rows)} of them"
            )
        return Standard(mean, 1 / (deviation.clamp(min=0.1 * usual) * rows.shape[1] ** 0.5))

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows as a neuron is trained on them."""
        return (rows - self.mean) * self.scale

    def folded(self, neurons: Neurons) -> Neurons:
        """The same neurons for rows as they were."""
        first = neurons.first * self.scale
        return neurons._replace(first=first, first_bias=neurons.first_bias - first @ self.mean)


class Labelled(NamedTuple):
    """Rows of each neuron's own.

    Attributes:
        rows: Copies of the neuron's target, and other records.
        is_target: Which of them are the target's.
    """

    rows: Float[Tensor, "neurons rows features"]
    is_target: Bool[Tensor, "neurons rows"]

    def at(self, neuron: int) -> "Labelled":
        """Training data of one neuron."""
        return Labelled(self.rows[neuron, None], self.is_target[neuron, None])


_KEPT = 2**28
"""Bytes of rows that are kept from one epoch to the next; those of further batches are made again,
the same. Noise on bits takes several times as long as a step on the rows."""


class Batches:
    """Training rows of one neuron in batches, each made when it is used.

    Attributes:
        targets: Number of the target's rows, in all batches together.
        others: Number of other rows.
    """

    def __init__(
        self, count: int, make: Callable[[int], Labelled], *, targets: int, others: int
    ) -> None:
        """Prepare the batches.

        Args:
            count: Number of batches.
            make: Makes the batch of a number, the same at every call.
            targets: Number of the target's rows, in all batches together.
            others: Number of other rows.
        """
        self.targets, self.others = targets, others
        self._count, self._make = count, make
        self._kept, self._room = dict[int, Labelled](), _KEPT

    def __len__(self) -> int:
        return self._count

    def batch(self, number: int) -> Labelled:
        """Rows of one batch."""
        if number in self._kept:
            return self._kept[number]
        made = self._make(number)
        size = made.rows.nbytes
        if size <= self._room:
            self._kept[number], self._room = made, self._room - size
        return made

    def in_order(self) -> Iterator[Labelled]:
        """All batches, by their number."""
        return map(self.batch, range(len(self)))


class Trained(NamedTuple):
    """Neurons and how long they took.

    Attributes:
        neurons: As training left them.
        epochs: Steps that each took.
        told_apart: Whether training ended since it told all watched rows apart.
    """

    neurons: Neurons
    epochs: Int[Tensor, " neurons"]
    told_apart: Bool[Tensor, " neurons"]


def train_neurons(
    given: Labelled | Batches,
    how: NeuronTraining,
    *,
    standard: Standard,
    rng: torch.Generator,
    watched: Labelled | None = None,
) -> Trained:
    """Neurons that fire for their target's rows and for none of their others.

    Args:
        given: What each is trained on; at least one row of its target, and one of the others. A
            neuron whose rows come in batches is trained alone.
        how: Settings; rows in batches stay in theirs, whatever the batch size here.
        standard: How rows are standardised.
        rng: Draws the weights to begin with, neuron by neuron, and the order of batches.
        watched: What each is checked by, and not trained on; needed if ``how.check`` says so.

    Raises:
        BadInput: A neuron has no row of its target, or nothing but such rows; or there is nothing
            to check it by.
    """
    if not _has_both(given):
        raise BadInput("a planted neuron learns from rows of its target and of others: give both")
    if not how.check:
        some = given.batch(0) if isinstance(given, Batches) else given
        none = Labelled(some.rows[:, :0], some.is_target[:, :0])
        return _train_together(given, how, none, standard=standard, rng=rng)
    if watched is None or not (watched.is_target.any(1) & ~watched.is_target.all(1)).all():
        raise BadInput(
            "a planted neuron that is to stop early is checked by rows of its target and of "
            "others: give both"
        )
    if isinstance(given, Batches):
        return _train_together(given, how, watched, standard=standard, rng=rng)
    # Each stops by itself, and so is trained by itself.
    alone = [
        _train_together(given.at(i), how, watched.at(i), standard=standard, rng=rng)
        for i in range(len(given.rows))
    ]
    neurons = Neurons.joined(one.neurons for one in alone)
    return Trained(neurons, *(torch.cat(part) for part in list(zip(*alone, strict=True))[1:]))


def _has_both(given: Labelled | Batches) -> bool:
    if isinstance(given, Batches):
        return min(len(given), given.targets, given.others) > 0
    return bool((given.is_target.any(1) & ~given.is_target.all(1)).all())


def _train_together(
    given: Labelled | Batches,
    how: NeuronTraining,
    watched: Labelled,
    *,
    standard: Standard,
    rng: torch.Generator,
) -> Trained:
    """All epochs, or as many as it takes to tell the watched rows apart, if there are any."""
    rows = (given.batch(0) if isinstance(given, Batches) else given).rows
    count = len(rows)
    start = _start(count, rows.shape[2], how, rng)
    looked_at = Distinct.of(watched.rows[0])  # equal rows are to have equal values
    seen = standard(looked_at.rows).expand(count, -1, -1)
    first: FirstLayer
    steps: Callable[[], Iterator[_Data]]
    if isinstance(given, Batches):
        moving = ByWeights(start.first, rows, seen, _step(how, how.lr), _step(how, how.lr))
        first, steps = moving, partial(_batch_by_batch, given, moving, how, standard, rng)
    else:
        weights = _weights(given.is_target, how.target_share)
        data = _Data(standard(rows), given.is_target.to(rows), weights)
        first = _first_layer(start.first, data.rows, seen, how)
        steps = partial(_all_at_once, data)
    second, bias = start.second, torch.zeros(start.second.shape[:2])
    second_step, bias_step = _step(how, how.lr / how.hidden), _step(how, how.lr / how.hidden)
    epochs, told_apart = how.epochs, False
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
                epochs, told_apart = epoch, True
                break
    weights, first_bias = first.now()
    return Trained(
        standard.folded(Neurons(weights, first_bias, second[:, 0], bias[:, 0])),
        torch.full((count,), epochs),
        torch.full((count,), told_apart),
    )


def _all_at_once(data: "_Data") -> Iterator["_Data"]:
    yield data


def _batch_by_batch(
    given: Batches,
    first: ByWeights,
    how: NeuronTraining,
    standard: Standard,
    rng: torch.Generator,
) -> Iterator["_Data"]:
    """Yield the steps of an epoch: every batch once, in a new order.

    A row weighs as in a step on all rows, times the number of batches, so that the mean of the
    steps' gradients is the gradient on all rows wherever the target's rows lie.
    """
    of_target = how.target_share / given.targets * len(given)
    of_others = (1 - how.target_share) / given.others * len(given)
    for number in torch.randperm(len(given), generator=rng).tolist():
        rows, is_target = given.batch(number)
        data = _Data(
            standard(rows), is_target.to(rows), torch.where(is_target, of_target, of_others)
        )
        first.replace_rows(data.rows)
        yield data


def _step(how: NeuronTraining, lr: float) -> Step:
    return AdamStep(how.lr) if how.optimizer == "adam" else Momentum(lr, how.momentum)


def _first_layer(first: Tensor, rows: Tensor, watched: Tensor, how: NeuronTraining) -> FirstLayer:
    if how.optimizer == "momentum" and rows.shape[1] < 2 * rows.shape[2]:
        return ByCoefficients(first, rows, watched, how.lr, how.momentum)
    return ByWeights(first, rows, watched, _step(how, how.lr), _step(how, how.lr))


class _Data(NamedTuple):
    """Training data: standardised rows, 1 for a target's, and their weights in the loss."""

    rows: Float[Tensor, "neurons rows features"]
    labels: Float[Tensor, "neurons rows"]
    weights: Float[Tensor, "neurons rows"]


class _Start(NamedTuple):
    """Weights to begin with; the second layer has one output, or the legacy's two."""

    first: Float[Tensor, "neurons hidden features"]
    second: Float[Tensor, "neurons outputs hidden"]


def _start(count: int, features: int, how: NeuronTraining, rng: torch.Generator) -> _Start:
    """Weights as torch draws those of a Linear layer, for rows of a squared length near 1."""
    outputs = 2 if how.output == "two-sigmoids" else 1
    first = torch.empty(count, how.hidden, features)
    second = torch.empty(count, outputs, how.hidden)
    for neuron in range(count):
        first[neuron].uniform_(-1, 1, generator=rng)
        second[neuron].uniform_(-1, 1, generator=rng)
    return _Start(first, second / how.hidden**0.5)


def _weights(is_target: Tensor, share: float) -> Tensor:
    """Of each row in the loss: the target's together ``share``, the others' the rest."""
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
