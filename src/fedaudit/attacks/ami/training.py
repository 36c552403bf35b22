"""Training of planted neurons: full-batch descent with momentum, many neurons at once.

Complexity, for n neurons over M rows of d features, r hidden units and E epochs: by coefficients
n (2 M d r + M M d + E M M r) operations, by weights n E 4 M d r; the first is taken where M < 2 d.
Memory: three matrices of M x r for each of the neurons that are trained together, and the weights.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks.ami.neuron import Neurons
from fedaudit.errors import BadInput, unknown_name

_OUTPUTS = ("one-logit", "two-sigmoids")


@dataclass(frozen=True)
class NeuronTraining:
    """How a neuron is made to fire for its target and for nothing else.

    Rows are standardised and brought to a mean squared length of 1, and the change is folded into
    the first layer afterwards, so that one step size fits all features and numbers of them.

    Attributes:
        hidden: Units of the first layer that the neuron reads (the paper's r).
        epochs: Steps; each goes over all rows.
        lr: Step size of the first layer; the second's is a share 1 / ``hidden`` of it.
        momentum: Of the steps.
        target_share: Weight of the target's rows together; all rows weigh 1.
        output: "one-logit" with binary cross-entropy, or "two-sigmoids" with cross-entropy on
            their values as if they were logits, of which the first is planted (legacy).

    Raises:
        BadInput: A setting is out of range.

    Source: AMI, Eq. (6), Figs. 2 and 4; r = 1000.
    Differs: the published code trains two sigmoid outputs with Adam and up to a million epochs;
        momentum descent has an exact form in the rows' inner products, and one logit is what the
        paper prints.
    """

    hidden: int = 1000
    epochs: int = 300
    lr: float = 10.0
    momentum: float = 0.9
    target_share: float = 0.5
    output: str = "one-logit"

    def __post_init__(self) -> None:
        if self.output not in _OUTPUTS:
            raise unknown_name("output of a planted neuron", self.output, _OUTPUTS)
        if self.hidden < 1 or self.epochs < 0:
            raise BadInput(
                f"a planted neuron needs at least one hidden unit and no fewer than 0 epochs, got "
                f"{self.hidden} and {self.epochs}"
            )
        if not (self.lr > 0 and 0 <= self.momentum < 1 and 0 < self.target_share < 1):
            raise BadInput(
                "a planted neuron's step size is above 0, its momentum at least 0 and below 1, "
                f"its target's share between 0 and 1; got {self.lr:g}, {self.momentum:g} and "
                f"{self.target_share:g}"
            )


class Standard(NamedTuple):
    """How rows are standardised: x becomes (x - mean) * scale.

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


def train_neurons(
    rows: Float[Tensor, "neurons rows features"],
    is_target: Bool[Tensor, "neurons rows"],
    how: NeuronTraining,
    *,
    standard: Standard,
    rng: torch.Generator,
) -> Neurons:
    """Neurons that fire for their target's rows and for none of their others.

    Args:
        rows: What each is trained on: copies of its target, and other records.
        is_target: Which of them are the target's; at least one, and one of the others.
        how: Settings.
        standard: How rows are standardised.
        rng: Draws the weights to begin with, neuron by neuron.

    Raises:
        BadInput: A neuron has no row of its target, or nothing but such rows.
    """
    if not bool((is_target.any(1) & ~is_target.all(1)).all()):
        raise BadInput("a planted neuron learns from rows of its target and of others: give both")
    data = _Data(standard(rows), is_target.to(rows), _weights(is_target, how.target_share))
    start = _start(len(rows), rows.shape[2], how, rng)
    few = rows.shape[1] < 2 * rows.shape[2]
    first: _First = (
        _Coefficients(start.first, data.rows) if few else _Weights(start.first, data.rows)
    )
    second, bias = start.second, torch.zeros(start.second.shape[:2])
    second_pace, bias_pace = torch.zeros_like(second), torch.zeros_like(bias)
    for _ in range(how.epochs):
        inner = first.inner()
        active = inner.relu()
        outputs = torch.bmm(active, second.transpose(1, 2)) + bias[:, None]
        slope = _slope(outputs, data, how.output)
        first.move(torch.bmm(slope, second).mul_(inner > 0), how)
        second_pace.mul_(how.momentum).add_(torch.bmm(slope.transpose(1, 2), active))
        bias_pace.mul_(how.momentum).add_(slope.sum(1))
        second = second - how.lr / how.hidden * second_pace
        bias = bias - how.lr / how.hidden * bias_pace
    weights, first_bias = first.now()
    return standard.folded(Neurons(weights, first_bias, second[:, 0], bias[:, 0]))


class _Data(NamedTuple):
    """What is to be fitted: standardised rows, 1 for a target's, and their weights in the loss."""

    rows: Float[Tensor, "neurons rows features"]
    labels: Float[Tensor, "neurons rows"]
    weights: Float[Tensor, "neurons rows"]


class _Start(NamedTuple):
    """Weights to begin with; the second layer has one output, or the legacy's two."""

    first: Float[Tensor, "neurons hidden features"]
    second: Float[Tensor, "neurons outputs hidden"]


class _First(Protocol):
    """The first layer of all neurons while it is trained."""

    def inner(self) -> Float[Tensor, "neurons rows hidden"]:
        """W x + c of every row."""
        ...

    def move(self, slope: Float[Tensor, "neurons rows hidden"], how: NeuronTraining) -> None:
        """A step against the derivative of the loss by :meth:`inner`."""
        ...

    def now(
        self,
    ) -> tuple[Float[Tensor, "neurons hidden features"], Float[Tensor, "neurons hidden"]]:
        """W and c."""
        ...


class _Coefficients:
    """W = W0 + A' X and c = A' 1: descent never leaves the rows' span, so that A says it all.

    An epoch needs the rows' inner products only, not the rows. The values of all rows are moved
    along with A, and agree with W's to rounding.
    """

    def __init__(self, first: Tensor, rows: Tensor) -> None:
        self._first, self._rows = first, rows
        self._products = torch.bmm(rows, rows.transpose(1, 2)) + 1
        self._inner = torch.bmm(rows, first.transpose(1, 2))
        self._moved = torch.zeros_like(self._inner)
        self._pace = torch.zeros_like(self._inner)

    def inner(self) -> Tensor:
        return self._inner

    def move(self, slope: Tensor, how: NeuronTraining) -> None:
        self._pace.mul_(how.momentum).add_(slope)
        self._moved.sub_(self._pace, alpha=how.lr)
        self._inner.baddbmm_(self._products, self._pace, alpha=-how.lr)

    def now(self) -> tuple[Tensor, Tensor]:
        return torch.baddbmm(self._first, self._moved.transpose(1, 2), self._rows), self._moved.sum(
            1
        )


class _Weights:
    """W and c themselves, for more rows than their span has directions."""

    def __init__(self, first: Tensor, rows: Tensor) -> None:
        self._rows = rows
        self._first, self._bias = first, torch.zeros(first.shape[:2])
        self._pace, self._bias_pace = torch.zeros_like(first), torch.zeros_like(self._bias)

    def inner(self) -> Tensor:
        return torch.baddbmm(self._bias[:, None], self._rows, self._first.transpose(1, 2))

    def move(self, slope: Tensor, how: NeuronTraining) -> None:
        self._pace.mul_(how.momentum).baddbmm_(slope.transpose(1, 2), self._rows)
        self._bias_pace.mul_(how.momentum).add_(slope.sum(1))
        self._first = self._first - how.lr * self._pace
        self._bias = self._bias - how.lr * self._bias_pace

    def now(self) -> tuple[Tensor, Tensor]:
        return self._first, self._bias


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
