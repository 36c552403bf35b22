"""Training of planted neurons by gradient descent with momentum or Adam, on all rows or in batches.

For n neurons, M rows of d features, r hidden units and E epochs, the number of operations is
n (2 M d r + M M d + E M M r) with :class:`CoefficientLayer`, and n E 4 M d r with
:class:`WeightLayer`. The first is used if M < 2 d, steps have momentum and a step uses all rows.

Each neuron that is trained needs memory for its weights and three matrices of size M x r. In
batches of b rows, it needs memory for its weights, b x (d + 3 r) numbers, and at most
``_MAX_BYTES_IN_MEMORY`` bytes of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami import NeuronTraining
from fedaudit.attacks.ami.plant import DistinctRows, Neurons
from fedaudit.core.errors import BadInput

Step = Callable[[Tensor, Tensor], Tensor]
"""Function of a parameter and the derivative of the loss that returns the new parameter."""


@dataclass
class MomentumStep:
    """Gradient descent with momentum: v = momentum * v + derivative; parameter -= lr * v.

    Attributes:
        lr: Learning rate.
        momentum: Factor of the last step's velocity v.
    """

    lr: float
    momentum: float
    _velocity: Tensor | None = field(default=None, init=False)

    def __call__(self, value: Tensor, derivative: Tensor) -> Tensor:
        if self._velocity is None:
            self._velocity = torch.zeros_like(value)
        self._velocity.mul_(self.momentum).add_(derivative)
        return value.sub(self._velocity, alpha=self.lr)


@dataclass
class AdamStep:
    """Adam with its usual constants.

    Attributes:
        lr: Learning rate.

    Source: Kingma and Ba 2015, Algorithm 1; the published code of Nguyen et al. 2023 (AMI) uses it.
    """

    lr: float
    _first: Tensor | None = field(default=None, init=False)
    _second: Tensor | None = field(default=None, init=False)
    _steps: int = field(default=0, init=False)

    def __call__(self, value: Tensor, derivative: Tensor) -> Tensor:
        if self._first is None or self._second is None:
            self._first, self._second = torch.zeros_like(value), torch.zeros_like(value)
        self._steps += 1
        self._first.mul_(0.9).add_(derivative, alpha=0.1)
        self._second.mul_(0.999).addcmul_(derivative, derivative, value=0.001)
        denominator = self._second.sqrt().div_((1 - 0.999**self._steps) ** 0.5).add_(1e-8)
        return value.addcdiv(self._first, denominator, value=-self.lr / (1 - 0.9**self._steps))


class CoefficientLayer:
    """First layer as W = W0 + A' X and c = A' 1, with coefficients A of the rows X.

    Gradient descent changes W only by linear combinations of rows. Therefore, an epoch only needs
    the rows' inner products, by which the layer's outputs for all rows are updated together with A.
    The results equal those of :class:`WeightLayer` up to rounding.
    """

    def __init__(
        self, first: Tensor, rows: Tensor, validation: Tensor, lr: float, momentum: float
    ) -> None:
        self._first, self._rows = first, rows
        self._lr, self._momentum = lr, momentum
        self._gram = torch.bmm(rows, rows.transpose(1, 2)) + 1
        self._inner = torch.bmm(rows, first.transpose(1, 2))
        self._validation_gram = torch.bmm(validation, rows.transpose(1, 2)) + 1
        self._validation_start = torch.bmm(validation, first.transpose(1, 2))
        self._coefficients = torch.zeros_like(self._inner)
        self._velocity = torch.zeros_like(self._inner)

    def inner(self) -> Float[Tensor, "neurons rows hidden"]:
        return self._inner

    def validation(self) -> Float[Tensor, "neurons validation hidden"]:
        return torch.baddbmm(self._validation_start, self._validation_gram, self._coefficients)

    def step(self, derivative: Tensor) -> None:
        self._velocity.mul_(self._momentum).add_(derivative)
        self._coefficients.sub_(self._velocity, alpha=self._lr)
        self._inner.baddbmm_(self._gram, self._velocity, alpha=-self._lr)

    def weights_and_bias(self) -> tuple[Tensor, Tensor]:
        weights = torch.baddbmm(self._first, self._coefficients.transpose(1, 2), self._rows)
        return weights, self._coefficients.sum(1)


class WeightLayer:
    """First layer as weights W and biases c, if there are many rows, or batches of rows."""

    def __init__(
        self, first: Tensor, rows: Tensor, validation: Tensor, step: Step, bias_step: Step
    ) -> None:
        self._rows, self._validation_rows = rows, validation
        self._first, self._bias = first, torch.zeros(first.shape[:2])
        self._weight_step, self._bias_step = step, bias_step

    def inner(self) -> Float[Tensor, "neurons rows hidden"]:
        return self._outputs_for(self._rows)

    def validation(self) -> Float[Tensor, "neurons validation hidden"]:
        return self._outputs_for(self._validation_rows)

    def _outputs_for(self, rows: Tensor) -> Tensor:
        return torch.baddbmm(self._bias[:, None], rows, self._first.transpose(1, 2))

    def replace_rows(self, rows: Tensor) -> None:
        self._rows = rows

    def step(self, derivative: Tensor) -> None:
        self._first = self._weight_step(
            self._first, torch.bmm(derivative.transpose(1, 2), self._rows)
        )
        self._bias = self._bias_step(self._bias, derivative.sum(1))

    def weights_and_bias(self) -> tuple[Tensor, Tensor]:
        return self._first, self._bias


FirstLayer = CoefficientLayer | WeightLayer


class Standardisation(NamedTuple):
    """Standardisation of rows: x becomes (x - mean) * scale.

    Attributes:
        mean: Mean of each feature.
        scale: Factor of each feature.
    """

    mean: Float[Tensor, " features"]
    scale: Float[Tensor, " features"]

    @staticmethod
    def of(rows: Float[Tensor, "rows features"]) -> "Standardisation":
        """Return a standardisation after which rows have a mean squared norm of about 1.

        Features are divided by their standard deviations, but at least by a tenth of the root mean
        square of all deviations, as new rows may vary more.

        Raises:
            BadInput: All rows are identical.
        """
        deviation, mean = torch.std_mean(rows, dim=0, correction=0)
        mean_deviation = deviation.square().mean().sqrt()
        if not mean_deviation > 0:
            raise BadInput(
                f"a neuron cannot be trained on {len(rows)} identical samples; pass samples that "
                "differ"
            )
        deviation = deviation.clamp(min=0.1 * mean_deviation)
        return Standardisation(mean, 1 / (deviation * rows.shape[1] ** 0.5))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) * self.scale

    def fold_into(self, neurons: Neurons) -> Neurons:
        """Return neurons that give the same values for rows that are not standardised."""
        first = neurons.first_weights * self.scale
        return neurons._replace(
            first_weights=first, first_bias=neurons.first_bias - first @ self.mean
        )


class LabelledRows(NamedTuple):
    """Rows for each neuron, with labels.

    Attributes:
        rows: Copies of the neuron's target, and other samples.
        is_target: Whether each row is a copy of the target.
    """

    rows: Float[Tensor, "neurons rows features"]
    is_target: Bool[Tensor, "neurons rows"]

    def at(self, neuron: int) -> "LabelledRows":
        return LabelledRows(self.rows[neuron, None], self.is_target[neuron, None])


_MAX_BYTES_IN_MEMORY = 2**28
"""Largest size of the rows that stay in memory from one epoch to the next. Rows of further batches
are regenerated identically in every epoch. This takes time: perturbing bits of a row takes several
times as long as a training step."""


class Batches:
    """Training rows of one neuron in batches, which are created when they are used.

    Attributes:
        targets: Number of the target's rows in all batches.
        others: Number of other rows in all batches.
    """

    def __init__(
        self, count: int, make: Callable[[int], LabelledRows], *, targets: int, others: int
    ) -> None:
        """Define the batches.

        Args:
            count: Number of batches.
            make: Function that creates a batch from its number, identically at every call.
            targets: Number of the target's rows in all batches.
            others: Number of other rows in all batches.
        """
        self.targets, self.others = targets, others
        self._count, self._make = count, make
        self._in_memory, self._free_bytes = dict[int, LabelledRows](), _MAX_BYTES_IN_MEMORY

    def __len__(self) -> int:
        return self._count

    def batch(self, number: int) -> LabelledRows:
        if number in self._in_memory:
            return self._in_memory[number]
        batch = self._make(number)
        size = batch.rows.nbytes
        if size <= self._free_bytes:
            self._in_memory[number], self._free_bytes = batch, self._free_bytes - size
        return batch

    def in_order(self) -> Iterator[LabelledRows]:
        return map(self.batch, range(len(self)))


class TrainedNeurons(NamedTuple):
    """Trained neurons.

    Attributes:
        neurons: The neurons.
        epochs: Number of training epochs of each neuron.
        separated: Whether early stopping ended the training of each neuron.
    """

    neurons: Neurons
    epochs: Int[Tensor, " neurons"]
    separated: Bool[Tensor, " neurons"]


def train_neurons(
    data: LabelledRows | Batches,
    settings: NeuronTraining,
    *,
    standardise: Standardisation,
    rng: torch.Generator,
    validation: LabelledRows | None = None,
) -> TrainedNeurons:
    """Train neurons that fire only for rows of their target.

    Args:
        data: Training rows of each neuron, with at least one row of its target and one other row.
            ``Batches`` have rows of a single neuron.
        settings: Settings; the batch size is not used for ``Batches``.
        standardise: Standardisation of rows.
        rng: Draws initial weights, neuron by neuron, and the order of batches.
        validation: Validation rows of each neuron for early stopping, if ``settings.check`` is not
            0.

    Raises:
        BadInput: Training or validation rows do not contain both rows of the target and others.
    """
    if isinstance(data, Batches):
        has_both_kinds = min(len(data), data.targets, data.others) > 0
    else:
        has_both_kinds = bool((data.is_target.any(1) & ~data.is_target.all(1)).all())
    if not has_both_kinds:
        raise BadInput("training a neuron needs rows of its target and of other samples; pass both")
    if not settings.check:
        first = data.batch(0) if isinstance(data, Batches) else data
        none = LabelledRows(first.rows[:, :0], first.is_target[:, :0])
        return _train_together(data, settings, none, standardise=standardise, rng=rng)
    if validation is None or not (validation.is_target.any(1) & ~validation.is_target.all(1)).all():
        raise BadInput(
            "early stopping of a planted neuron needs validation rows of its target and of other "
            "samples; pass both"
        )
    if isinstance(data, Batches):
        return _train_together(data, settings, validation, standardise=standardise, rng=rng)
    # Neurons are trained one by one, as they stop at different epochs.
    trained = [
        _train_together(data.at(i), settings, validation.at(i), standardise=standardise, rng=rng)
        for i in range(len(data.rows))
    ]
    neurons, epochs, separated = zip(*trained, strict=True)
    return TrainedNeurons(Neurons.concatenate(neurons), torch.cat(epochs), torch.cat(separated))


def _train_together(
    training: LabelledRows | Batches,
    settings: NeuronTraining,
    validation: LabelledRows,
    *,
    standardise: Standardisation,
    rng: torch.Generator,
) -> TrainedNeurons:
    """Train for all epochs, or until validation rows, if there are any, are separated."""
    rows = (training.batch(0) if isinstance(training, Batches) else training).rows
    count = len(rows)
    start = _initial_weights(count, rows.shape[2], settings, rng)
    unique_rows = DistinctRows.of(validation.rows[0])
    standardised = standardise(unique_rows.rows).expand(count, -1, -1)
    first: FirstLayer
    steps: Callable[[], Iterator[_Data]]
    if isinstance(training, Batches):
        layer = WeightLayer(start.first, rows, standardised, *_create_steps(settings, settings.lr))
        first, steps = layer, partial(_batch_by_batch, training, layer, settings, standardise, rng)
    else:
        weights = _row_weights(training.is_target, settings.target_share)
        data = _Data(standardise(rows), training.is_target.to(rows), weights)
        if settings.optimizer == "momentum" and data.rows.shape[1] < 2 * data.rows.shape[2]:
            first = CoefficientLayer(
                start.first, data.rows, standardised, settings.lr, settings.momentum
            )
        else:
            layer_steps = _create_steps(settings, settings.lr)
            first = WeightLayer(start.first, data.rows, standardised, *layer_steps)
        steps = partial(iter, [data])
    second, bias = start.second, torch.zeros(start.second.shape[:2])
    second_step, bias_step = _create_steps(settings, settings.lr / settings.hidden)
    epochs, is_separated = settings.epochs, False
    for epoch in range(1, settings.epochs + 1):
        for data in steps():
            inner = first.inner()
            activations = inner.relu()
            derivative = _loss_derivative(
                _outputs(activations, second, bias), data, settings.output
            )
            first.step(torch.bmm(derivative, second).mul_(inner > 0))
            second = second_step(second, torch.bmm(derivative.transpose(1, 2), activations))
            bias = bias_step(bias, derivative.sum(1))
        if settings.check and epoch % settings.check == 0:
            values = _outputs(first.validation().relu_(), second, bias)[0, unique_rows.positions, 0]
            if values[validation.is_target[0]].min() > values[~validation.is_target[0]].max():
                epochs, is_separated = epoch, True
                break
    weights, first_bias = first.weights_and_bias()
    return TrainedNeurons(
        standardise.fold_into(Neurons(weights, first_bias, second[:, 0], bias[:, 0])),
        torch.full((count,), epochs),
        torch.full((count,), is_separated),
    )


def _batch_by_batch(
    batches: Batches,
    first: WeightLayer,
    settings: NeuronTraining,
    standardise: Standardisation,
    rng: torch.Generator,
) -> Iterator["_Data"]:
    """Yield the data of an epoch's steps: every batch once, in a new order.

    The weight of a row is that in a step on all rows, multiplied by the number of batches. The mean
    of the steps' gradients is then the gradient on all rows, for any distribution of target rows
    over batches.
    """
    target_weight = settings.target_share / batches.targets * len(batches)
    other_weight = (1 - settings.target_share) / batches.others * len(batches)
    for number in torch.randperm(len(batches), generator=rng).tolist():
        rows, is_target = batches.batch(number)
        weights = torch.where(is_target, target_weight, other_weight)
        data = _Data(standardise(rows), is_target.to(rows), weights)
        first.replace_rows(data.rows)
        yield data


def _create_steps(settings: NeuronTraining, lr: float) -> tuple[Step, Step]:
    """Return the optimizers of a layer's weights and biases."""
    if settings.optimizer == "adam":
        return AdamStep(settings.lr), AdamStep(settings.lr)
    return MomentumStep(lr, settings.momentum), MomentumStep(lr, settings.momentum)


class _Data(NamedTuple):
    """Standardised rows, their labels (1 for the target) and their weights in the loss."""

    rows: Float[Tensor, "neurons rows features"]
    labels: Float[Tensor, "neurons rows"]
    weights: Float[Tensor, "neurons rows"]


class _Start(NamedTuple):
    """Initial weights; the second layer has two outputs if they are "two-sigmoids"."""

    first: Float[Tensor, "neurons hidden features"]
    second: Float[Tensor, "neurons outputs hidden"]


def _initial_weights(
    count: int, features: int, settings: NeuronTraining, rng: torch.Generator
) -> _Start:
    """Draw weights like those of torch's Linear layer, for rows with a squared norm near 1."""
    outputs = 2 if settings.output == "two-sigmoids" else 1
    first = torch.empty(count, settings.hidden, features)
    second = torch.empty(count, outputs, settings.hidden)
    for neuron in range(count):
        first[neuron].uniform_(-1, 1, generator=rng)
        second[neuron].uniform_(-1, 1, generator=rng)
    return _Start(first, second / settings.hidden**0.5)


def _row_weights(is_target: Tensor, target_share: float) -> Tensor:
    """Return weights of rows in the loss, which sum to ``target_share`` over the target's rows."""
    targets = is_target.sum(1, keepdim=True)
    n_other_rows = is_target.shape[1] - targets
    return torch.where(is_target, target_share / targets, (1 - target_share) / n_other_rows)


def _outputs(
    activations: Tensor, second: Tensor, bias: Tensor
) -> Float[Tensor, "neurons rows outputs"]:
    return torch.bmm(activations, second.transpose(1, 2)) + bias[:, None]


def _loss_derivative(
    outputs: Tensor, data: _Data, kind: str
) -> Float[Tensor, "neurons rows outputs"]:
    """Return the derivative of the weighted loss by the outputs."""
    sigmoids = torch.sigmoid(outputs)
    if kind == "one-logit":
        derivative = sigmoids - data.labels[:, :, None]
    else:
        # Cross-entropy treats the two sigmoids as logits; the first output is that of the target.
        labels = torch.stack([data.labels, 1 - data.labels], dim=2)
        derivative = (torch.softmax(sigmoids, dim=2) - labels) * sigmoids * (1 - sigmoids)
    return derivative * data.weights[:, :, None]
