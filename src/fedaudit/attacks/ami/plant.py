"""Planted neurons: a server adds neurons to a client's model that fire only for its target.

If the target was in the client's batch, the neuron's gradient is not zero. With noise, sums of
uploads or several rounds, the server computes a score instead (:class:`TargetGradient`).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Model, Params, Samples, norm, weighted_sum
from fedaudit.observe.round import Gradient, Upload

_ZERO_REPLACEMENT = 1e-6
"""Factor of the honest weights that replace zeros in a planted row, because zeros are detectable.
"""


class DistinctRows(NamedTuple):
    """Rows without duplicates.

    On many processors, the rounding of a row of a matrix product depends on its position, so equal
    rows may get different values. If values are computed for distinct rows, equal rows get equal
    values.

    Attributes:
        rows: The distinct rows; the original rows if there are no duplicates.
        positions: Position of each original row among the distinct rows.
    """

    rows: Float[Tensor, "distinct features"]
    positions: Int[Tensor, " original"]

    @staticmethod
    def of(rows: Float[Tensor, "original features"]) -> "DistinctRows":
        """Remove duplicates."""
        unique, positions = torch.unique(rows, dim=0, return_inverse=True)
        if len(unique) == len(rows):
            return DistinctRows(rows, torch.arange(len(rows)))
        return DistinctRows(unique, positions)


class Neurons(NamedTuple):
    """Neurons, each of which fires for its target sample: v(x) = h . ReLU(W x + c) + b.

    A neuron fires for a sample x if its value v(x) is positive.

    Attributes:
        first_weights: W, the weights of the first layer.
        first_bias: c, the biases of the first layer.
        second_weights: h, the weights of the neuron in the second layer.
        second_bias: b, the bias of the neuron.

    Source: Nguyen et al. 2023 (AMI), Eqs. (5) and (7).
    Differs: The paper omits biases; its published code has both.
    """

    first_weights: Float[Tensor, "neurons hidden features"]
    first_bias: Float[Tensor, "neurons hidden"]
    second_weights: Float[Tensor, "neurons hidden"]
    second_bias: Float[Tensor, " neurons"]

    def values(
        self, samples: Float[Tensor, "neurons samples features"]
    ) -> Float[Tensor, "neurons samples"]:
        inner = torch.baddbmm(self.first_bias[:, None], samples, self.first_weights.transpose(1, 2))
        outer = torch.bmm(inner.relu_(), self.second_weights[:, :, None]).squeeze(2)
        return outer + self.second_bias[:, None]

    def consistent_values(
        self, samples: Float[Tensor, "1 samples features"]
    ) -> Float[Tensor, "1 samples"]:
        """Return the values of a single neuron, which are equal for equal samples."""
        unique_rows = DistinctRows.of(samples[0])
        return self.values(unique_rows.rows[None])[:, unique_rows.positions]

    def fires(
        self, samples: Float[Tensor, "neurons samples features"]
    ) -> Bool[Tensor, "neurons samples"]:
        return self.values(samples) > 0

    def shifted(self, shift: Float[Tensor, " neurons"]) -> "Neurons":
        return self._replace(second_bias=self.second_bias + shift)

    def only(self, index: int) -> "Neurons":
        """Return a single neuron."""
        return Neurons(*(tensor[index : index + 1] for tensor in self))

    @staticmethod
    def concatenate(parts: Iterable["Neurons"]) -> "Neurons":
        return Neurons(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


class PlantedRow(NamedTuple):
    """Row of the second layer that belongs to a planted neuron.

    Attributes:
        weight_name: Name of the layer's weight among the model's parameters.
        bias_name: Name of the layer's bias.
        row: Row of both.
    """

    weight_name: str
    bias_name: str
    row: int


class PlantedModel(NamedTuple):
    """Model with planted neurons.

    Attributes:
        model: The model to send.
        rows: Rows of the neurons, in order.
    """

    model: Model
    rows: tuple[PlantedRow, ...]


def plant(model: Model, neurons: Neurons) -> PlantedModel:
    """Plant neurons in the first two layers of a model.

    Each neuron uses ``hidden`` units of the first layer (see :class:`Neurons`). Neuron k replaces
    units k * hidden to (k + 1) * hidden - 1 of the first layer, and row k of the second layer.

    Args:
        model: An honest model: three dense layers, each of the first two followed by a ReLU.
        neurons: Neurons for samples in the form in which the model receives them.

    Raises:
        Unsupported: The model has other layers.
        BadInput: The model has too few units or another number of input features.

    Source: Nguyen et al. 2023 (AMI), Fig. 2 ("theta <- theta u (h, W)").
    Differs: Weights from the replaced units to other neurons of the second layer are set to zero.
        The paper keeps these weights. With them, outputs are so large that the losses and
        gradients of single samples vanish.
    """
    first, second = first_two_layers(model.module())
    count, hidden = neurons.first_weights.shape[:2]
    values = {name: value.clone() for name, value in model.params.items()}
    units, features = values[f"{first}.weight"].shape
    _raise_if_misfit(neurons, units, features, len(values[f"{second}.weight"]))
    values[f"{first}.weight"][: count * hidden] = neurons.first_weights.flatten(0, 1)
    values[f"{first}.bias"][: count * hidden] = neurons.first_bias.flatten()
    weight, bias = values[f"{second}.weight"], values[f"{second}.bias"]
    weight[:, : count * hidden] = 0
    weight[:count] = 0
    for row in range(count):
        weight[row, row * hidden : (row + 1) * hidden] = neurons.second_weights[row]
    bias[:count] = neurons.second_bias
    rows = tuple(PlantedRow(f"{second}.weight", f"{second}.bias", row) for row in range(count))
    return PlantedModel(Model(model.architecture, values, model.buffers), rows)


def silence(model: Model, rows: Iterable[PlantedRow]) -> Model:
    """Return the model with some neurons of the second layer that never fire.

    Such a neuron has no gradient, so that its row of an upload is zero.

    Source: Pasquini, Francati and Ateniese 2022 (gradient suppression).
    """
    values = {name: value.clone() for name, value in model.params.items()}
    for planted in rows:
        values[planted.weight_name][planted.row] = 0
        values[planted.bias_name][planted.row] = -1
    return Model(model.architecture, values, model.buffers)


def silence_other_neurons(planted: PlantedModel) -> PlantedModel:
    """Silence all neurons of the second layer that are not planted, so that they have no gradient.

    Otherwise, their gradients would take most of a clipped gradient's length.
    """
    first = planted.rows[0]
    planted_rows = {planted_row.row for planted_row in planted.rows}
    all_rows = range(len(planted.model.params[first.bias_name]))
    other_neurons = (first._replace(row=row) for row in all_rows if row not in planted_rows)
    return planted._replace(model=silence(planted.model, other_neurons))


def gradient_row(gradient: Params, row: PlantedRow) -> Tensor:
    """Return the gradient of a planted neuron's weights, followed by that of its bias."""
    return torch.cat([gradient[row.weight_name][row.row], gradient[row.bias_name][row.row, None]])


def fired_in_batch(upload: Upload, row: PlantedRow) -> bool:
    """Return True if the neuron fired for a sample of the batch, as its gradient is not zero.

    If a defense adds noise to gradients, the result is always True.

    Raises:
        Unsupported: The upload is not a gradient. In an update, weight decay and momentum change
            rows of neurons that never fired.

    Source: Nguyen et al. 2023 (AMI), Fig. 2 ("Ret [g_t != 0]").
    """
    if not isinstance(upload, Gradient):
        raise Unsupported(
            "the verdict needs a gradient, as FedSGD's clients send it; in an "
            f"{type(upload).__name__} weight decay or momentum may have changed the row of a "
            "neuron that did not fire; use FedSGD"
        )
    return bool((gradient_row(upload.values, row) != 0).any())


def first_two_layers(module: nn.Module) -> tuple[str, str]:
    """Return the names of the first two layers, in which a neuron is planted.

    Raises:
        Unsupported: The model has other layers than those of :func:`plant`.
    """
    leaves = [(name, part) for name, part in module.named_modules() if not list(part.children())]
    layers = [(name, part) for name, part in leaves if not isinstance(part, nn.Flatten)]
    kinds = [type(part) for _, part in layers]
    # With more layers, a further ReLU could block the gradient of the planted neuron.
    if kinds != [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear] or any(
        part.bias is None for _, part in layers[:4:2]
    ):
        raise Unsupported(
            "a neuron is planted in a model of three dense layers, the first two with biases and "
            f"each followed by a ReLU; this one is {', '.join(k.__name__ for k in kinds[:8])}; "
            'use "mlp" with two hidden layers, such as hidden = "1000,10"'
        )
    return layers[0][0], layers[2][0]


def _raise_if_misfit(neurons: Neurons, units: int, features: int, rows: int) -> None:
    count, hidden, inputs = neurons.first_weights.shape
    if inputs != features:
        raise BadInput(f"the model reads {features} features, and the neurons {inputs}")
    if count * hidden > units or count > rows:
        raise BadInput(
            f"{count} neurons over {hidden} units each need {count * hidden} units in the "
            f"model's first layer and {count} in its second; it has {units} and {rows}"
        )


def repeat_neurons(neurons: Neurons, times: int) -> Neurons:
    """Repeat every neuron; each copy has its own units in the first layer.

    Source: Nguyen et al. 2023 (AMI), appendix E ("K chosen neurons").
    """
    return Neurons(*(tensor.repeat_interleave(times, 0) for tensor in neurons))


def scale_first_layer(neurons: Neurons, factor: float) -> Neurons:
    """Multiply the first layer by a factor, and divide the second, so that values do not change.

    The gradient of a neuron's row in the second layer is multiplied by the factor, that of the
    first layer divided by it. Most of a clipped gradient's length is then in the row that the
    server reads.
    """
    return neurons._replace(
        first_weights=neurons.first_weights * factor,
        first_bias=neurons.first_bias * factor,
        second_weights=neurons.second_weights / factor,
    )


def plant_disguised(model: Model, neurons: Neurons) -> PlantedModel:
    """Plant neurons whose rows have the norms of the replaced rows, without zeros.

    Two changes do not affect for which samples a neuron fires. One multiplies a unit of the first
    layer by a factor and divides its weight in the second layer by the same factor. The other
    multiplies all weights of the neuron by a factor. The neuron's weights from other units of the
    model are a millionth of their honest values instead of zero.

    Arguments and errors are those of :func:`plant`.

    Source: Nguyen et al. 2023 (AMI), section 7, finds that malicious weights look like others;
        here, the server makes their norms equal.
    """
    planted = plant(model, neurons)
    second, second_bias = planted.rows[0].weight_name, planted.rows[0].bias_name
    first, first_bias = list(model.params)[:2]
    values = {name: value.clone() for name, value in planted.model.params.items()}
    n_units = neurons.first_weights.shape[0] * neurons.first_weights.shape[1]
    factor = _norm_ratios(model.params[first][:n_units], values[first][:n_units])
    values[first][:n_units] *= factor[:, None]
    values[first_bias][:n_units] *= factor
    rows = len(planted.rows)
    weight = values[second][:rows]
    weight[:, :n_units] /= factor
    honest = model.params[second][:rows]
    ratio = (weight.norm() / honest.norm()).nan_to_num()
    weight[weight == 0] = _ZERO_REPLACEMENT * honest[weight == 0] * ratio
    scale = _norm_ratios(model.params[second][:rows], values[second][:rows])
    values[second][:rows] *= scale[:, None]
    values[second_bias][:rows] *= scale
    values[second][rows:] = model.params[second][rows:]
    return PlantedModel(Model(model.architecture, values, model.buffers), planted.rows)


def _norm_ratios(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the norms of rows, divided by those of other rows; 1 if one of the norms is 0."""
    norms, other_norms = rows.norm(dim=1), others.norm(dim=1)
    are_positive = (norms > 0) & (other_norms > 0)
    return torch.where(are_positive, norms / other_norms, torch.ones_like(norms))


_RIDGE = 1e-3
"""Constant that is added to each unit's variance, relative to the mean variance."""


def plant_one_row(
    model: Model,
    of_target: Float[Tensor, "copies features"],
    of_others: Float[Tensor, "samples features"],
    *,
    batch: int,
) -> PlantedModel:
    """Plant a neuron that fires for a target by changing only the first row of the second layer.

    The row is Fisher's linear discriminant between activations of the target and of other samples,
    with the norm of the row that it replaces. It is fitted to half of the other samples; the other
    half determines the bias.

    Args:
        model: An honest model, as in :func:`plant`.
        of_target: Copies of the target, which a client's randomiser may have changed.
        of_others: Other samples.
        batch: Number of samples in a client's batch.

    Raises:
        Unsupported: The model has other layers.
        BadInput: There are no copies, or fewer than four other samples.

    Source: Nguyen et al. 2023 (AMI), Eq. (5).
    Differs: The paper also trains r units of the first layer. Here, these units are not changed, so
        only one row could be detected.
    """
    if len(of_target) < 1 or len(of_others) < 4:
        raise BadInput(
            "a row is fitted to copies of the target and to four other samples or more, got "
            f"{len(of_target)} and {len(of_others)}"
        )
    first, second = first_two_layers(model.module())
    values = {name: value.clone() for name, value in model.params.items()}
    weight, bias = values[f"{first}.weight"].double(), values[f"{first}.bias"].double()
    unique_rows = DistinctRows.of(torch.cat([of_target, of_others]).flatten(1).double())
    activations = (unique_rows.rows @ weight.T + bias).relu()
    copies = len(of_target)
    # Samples before this index are used to fit the row.
    fitted = copies + math.ceil(len(of_others) / 2)
    target = activations[unique_rows.positions[:copies]]
    other_activations = activations[unique_rows.positions[copies:fitted]]
    centred = other_activations - other_activations.mean(0)
    covariance = centred.T @ centred / len(other_activations)
    ridge = _RIDGE * covariance.diagonal().mean().clamp_min(1e-12)
    covariance.diagonal().add_(ridge)
    row = torch.linalg.solve(covariance, target.mean(0) - other_activations.mean(0))
    # Units that fire for no sample keep a small weight, as exact zeros would be detectable.
    honest = values[f"{second}.weight"][0].double()
    row = torch.where(row == 0, _ZERO_REPLACEMENT * honest * row.norm() / honest.norm(), row)
    row *= honest.norm() / row.norm().clamp_min(1e-30)
    neuron_values = (activations @ row)[None, unique_rows.positions]
    shift = best_shift(neuron_values[:, :copies], neuron_values[:, fitted:], batch=batch)
    values[f"{second}.weight"][0] = row
    values[f"{second}.bias"][0] = shift[0]
    planted_row = PlantedRow(f"{second}.weight", f"{second}.bias", 0)
    return PlantedModel(Model(model.architecture, values, model.buffers), (planted_row,))


def best_shift(
    of_target: Float[Tensor, "neurons copies"],
    of_others: Float[Tensor, "neurons samples"],
    *,
    batch: int,
) -> Float[Tensor, " neurons"]:
    """Compute the shift of each neuron's values with which the server wins most games.

    The neuron should fire for the target, and for no sample of a batch without the target.
    Therefore, the shift maximises (TPR + (1 - FPR)^batch) / 2, with rates for single samples. Games
    that are won because the neuron fires for another sample do not count. If several shifts are
    equally good, the zero is in the middle of the widest gap between values.

    Args:
        of_target: Values of each neuron for copies of its target.
        of_others: Values of each neuron for other samples.
        batch: Number of samples in a client's batch.

    Raises:
        BadInput: There are no values of the target or of others, or the batch is empty.

    Source: Nguyen et al. 2023 (AMI), Eqs. (3) and (7).
    Differs: The published code uses the threshold of training, and the checkpoint that is best on
        the samples of the games.
    """
    copies, samples = of_target.shape[1], of_others.shape[1]
    if not (copies and samples and batch > 0):
        raise BadInput(
            "a neuron's shift needs values of its target and of other samples, and batches of at "
            f"least one sample; got {copies} and {samples} values, and batches of {batch}"
        )
    values, order = torch.cat([of_target, of_others], dim=1).double().sort(dim=1)
    target_above = _count_above(order < copies)
    others_above = _count_above(order >= copies)
    success = (target_above / copies + (1 - others_above / samples) ** batch) / 2
    gaps = values.diff(dim=1)
    is_best = success >= success.amax(1, keepdim=True) - 1e-12
    gap = gaps.where(is_best, torch.tensor(-1.0).double()).argmax(1, keepdim=True)
    threshold = (values.gather(1, gap) + values.gather(1, gap + 1)) / 2
    return -threshold.squeeze(1).to(of_target)


def _count_above(mask: Tensor) -> Tensor:
    """Count the entries of a mask after each gap between two neighbouring entries."""
    return mask.sum(1, keepdim=True) - mask.cumsum(1)[:, :-1]


class ValueRange(NamedTuple):
    """Range of each neuron's values.

    Attributes:
        least: Smallest value.
        most: Largest value.
    """

    least: Float[Tensor, " neurons"]
    most: Float[Tensor, " neurons"]

    @property
    def width(self) -> Float[Tensor, " neurons"]:
        return self.most - self.least


def range_over_box(
    neurons: Neurons, low: Float[Tensor, "*features"], high: Float[Tensor, "*features"]
) -> ValueRange:
    """Bound the values of neurons for samples in a box, by interval arithmetic.

    The bounds are valid for every sample in the box, but may not be tight.

    Args:
        neurons: The neurons.
        low: Smallest value of each feature, or of all features.
        high: Largest value of each feature, or of all features.

    Raises:
        BadInput: The box is empty or unbounded.

    Source: Gowal et al. 2018 (interval bound propagation).
    """
    features = neurons.first_weights.shape[2]
    low, high = (limit.double().expand(features) for limit in (low, high))
    if not bool(((low <= high) & low.isfinite() & high.isfinite()).all()):
        raise BadInput("the limits of samples must be finite, with the lower below the upper limit")
    center, half_width = (low + high) / 2, (high - low) / 2
    first, second = neurons.first_weights.double(), neurons.second_weights.double()
    unit_center = first @ center + neurons.first_bias.double()
    unit_radius = first.abs() @ half_width
    smallest, largest = (unit_center - unit_radius).relu(), (unit_center + unit_radius).relu()
    positive, negative = second.relu(), (-second).relu()
    bias = neurons.second_bias.double()
    return ValueRange(
        (positive * smallest - negative * largest).sum(1) + bias,
        (positive * largest - negative * smallest).sum(1) + bias,
    )


class TargetGradient(NamedTuple):
    """The target's gradient in the planted rows, by which the server scores uploads.

    Attributes:
        rows: Rows of the planted neurons.
        direction: Direction of the gradient in these rows, with norm 1 over all rows together; zero
            if no neuron fires for the target.
        length: Norm of the target's gradient over all parameters.
        share: Norm in the planted rows, divided by ``length``.
    """

    rows: tuple[PlantedRow, ...]
    direction: Float[Tensor, "neurons entries"]
    length: float
    share: float

    def score(self, upload: Params) -> float:
        """Return the inner product of an upload and the direction (a matched filter).

        This is the most powerful test for a known signal in normal noise.

        Source: Nguyen et al. 2023 (AMI), appendix E, averages gradients over rounds and neurons.
        Differs: The paper does not specify how an average, which is never zero, gives a verdict.
        """
        return float((self.direction * _gradient_rows(upload, self.rows).double()).sum())


def target_gradient(planted: PlantedModel, target: Samples) -> TargetGradient:
    """Compute the gradient of a labelled target, and its direction in the planted rows."""
    gradient = _gradient(planted.model, target)
    in_rows = _gradient_rows(gradient, planted.rows).double()
    length, length_in_rows = norm(gradient), float(in_rows.norm())
    if not length_in_rows:
        return TargetGradient(planted.rows, in_rows, length, 0.0)
    share = min(1.0, length_in_rows / length)
    return TargetGradient(planted.rows, in_rows / length_in_rows, length, share)


def _gradient_rows(
    gradient: Params, rows: tuple[PlantedRow, ...]
) -> Float[Tensor, "neurons entries"]:
    return torch.stack([gradient_row(gradient, row) for row in rows])


def _gradient(model: Model, sample: Samples) -> Params:
    module = model.module()
    params = {name: p for name, p in module.named_parameters() if p.requires_grad}
    task = model.architecture.task
    loss = task.losses(task.outputs(module, sample.features), sample.targets).mean()
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


def average_uploads(uploads: Sequence[Gradient]) -> Params:
    """Average gradients of clients, weighted by their numbers of samples, as in secure aggregation.

    Unlike in the view "sum" of :mod:`fedaudit.observe.views`, clients may have received different
    models.

    Raises:
        BadInput: There are no uploads, or an upload has no number of samples.
    """
    total = sum(upload.samples for upload in uploads)
    if not uploads or not all(upload.samples for upload in uploads):
        raise BadInput(
            "gradients are averaged by their numbers of samples; pass at least one gradient, each "
            f"with a number of samples, got {[upload.samples for upload in uploads]}"
        )
    weights = [upload.samples / total for upload in uploads]
    return weighted_sum([upload.values for upload in uploads], weights)


def silence_planted_neurons(planted: PlantedModel) -> Model:
    """Return the planted model with silent planted neurons, so that their rows have no gradient.

    If all other clients receive this model, the planted rows of a sum are those of one client's
    upload.

    Source: Pasquini, Francati and Ateniese 2022 (model inconsistency).
    """
    return silence(planted.model, planted.rows)
