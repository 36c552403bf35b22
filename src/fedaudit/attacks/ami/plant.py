"""Planted neurons, which fire for one record, in a model that a client trains.

Scores are for a server that cannot read a sign: under noise, over sums of uploads and over rounds.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Model, Params, Samples, norm, weighted_sum
from fedaudit.observe.round import Gradient, Upload

_TRACE = 1e-6
"""Weights from other units in a planted row, relative to their honest values."""


class Distinct(NamedTuple):
    """Rows without repeats.

    Attributes:
        rows: Each row once, in the original order if none repeats.
        place: Index of each original row among them.
    """

    rows: Float[Tensor, "distinct features"]
    place: Int[Tensor, " given"]

    @staticmethod
    def of(rows: Float[Tensor, "given features"]) -> "Distinct":
        """Remove repeated rows.

        Many processors round a row of a matrix product by its position, so that equal rows may get
        unequal values. Values of distinct rows are equal by construction.
        """
        distinct, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(distinct) == len(rows):
            return Distinct(rows, torch.arange(len(rows)))
        return Distinct(distinct, place)


class Neurons(NamedTuple):
    """Neurons that fire for one record each: v(x) = h . ReLU(W x + c) + b.

    Attributes:
        first: W, the weights of the first layer.
        first_bias: c.
        second: h, the neuron's own weights in the second layer.
        second_bias: b.

    Source: AMI, Eqs. (5) and (7).
    Differs: the paper suppresses biases; its published code has both.
    """

    first: Float[Tensor, "neurons hidden features"]
    first_bias: Float[Tensor, "neurons hidden"]
    second: Float[Tensor, "neurons hidden"]
    second_bias: Float[Tensor, " neurons"]

    def values(
        self, records: Float[Tensor, "neurons records features"]
    ) -> Float[Tensor, "neurons records"]:
        inner = torch.baddbmm(self.first_bias[:, None], records, self.first.transpose(1, 2))
        outer = torch.bmm(inner.relu_(), self.second[:, :, None]).squeeze(2)
        return outer + self.second_bias[:, None]

    def values_alike(
        self, records: Float[Tensor, "1 records features"]
    ) -> Float[Tensor, "1 records"]:
        """Return one neuron's values, equal for equal records on any processor."""
        distinct = Distinct.of(records[0])
        return self.values(distinct.rows[None])[:, distinct.place]

    def fires(
        self, records: Float[Tensor, "neurons records features"]
    ) -> Bool[Tensor, "neurons records"]:
        return self.values(records) > 0

    def shifted(self, shift: Float[Tensor, " neurons"]) -> "Neurons":
        return self._replace(second_bias=self.second_bias + shift)

    def at(self, index: int) -> "Neurons":
        return Neurons(*(part[index : index + 1] for part in self))

    @staticmethod
    def joined(parts: Iterable["Neurons"]) -> "Neurons":
        return Neurons(*(torch.cat(part) for part in zip(*parts, strict=True)))


class Place(NamedTuple):
    """Place of a planted neuron: a row of the second layer's weight and bias.

    Attributes:
        weight: Name of the weight.
        bias: Name of the bias.
        row: Row of both.
    """

    weight: str
    bias: str
    row: int


class Planted(NamedTuple):
    """Model with planted neurons.

    Attributes:
        model: The model to send.
        places: Places of the neurons, in order.
    """

    model: Model
    places: tuple[Place, ...]


def plant(model: Model, neurons: Neurons) -> Planted:
    """Plant neurons in a model's first two layers, each over its own units of the first.

    Neuron k takes units k r to (k + 1) r - 1 of the first layer, and row k of the second.

    Args:
        model: An honest model: three dense layers, each of the first two followed by a ReLU.
        neurons: Neurons for records as the model receives them.

    Raises:
        Unsupported: The model has other layers.
        BadInput: It has too few units, or records have another number of features.

    Source: AMI, Fig. 2 ("theta <- theta u (h, W)").
    Differs: Weights from the taken units to other neurons of the second layer are set to zero. The
        paper leaves them, which makes outputs so large that losses and gradients of single records
        vanish.
    """
    first, second = first_two(model.module())
    count, units_each = neurons.first.shape[:2]
    values = {name: value.clone() for name, value in model.params.items()}
    units, features = values[f"{first}.weight"].shape
    _refuse_misfit(neurons, units, features, len(values[f"{second}.weight"]))
    values[f"{first}.weight"][: count * units_each] = neurons.first.flatten(0, 1)
    values[f"{first}.bias"][: count * units_each] = neurons.first_bias.flatten()
    weight, bias = values[f"{second}.weight"], values[f"{second}.bias"]
    weight[:, : count * units_each] = 0
    weight[:count] = 0
    for row in range(count):
        weight[row, row * units_each : (row + 1) * units_each] = neurons.second[row]
    bias[:count] = neurons.second_bias
    places = tuple(Place(f"{second}.weight", f"{second}.bias", row) for row in range(count))
    return Planted(Model(model.architecture, values, model.buffers), places)


def silenced(model: Model, places: Iterable[Place]) -> Model:
    """Silence some neurons of the second layer for every record.

    A silent neuron has no gradient, so that its row of an upload is zero.

    Source: Pasquini, Francati and Ateniese 2022 (gradient suppression).
    """
    values = {name: value.clone() for name, value in model.params.items()}
    for place in places:
        values[place.weight][place.row] = 0
        values[place.bias][place.row] = -1
    return Model(model.architecture, values, model.buffers)


def alone(planted: Planted) -> Planted:
    """Silence all other neurons of the layer, so that these have no gradient.

    A record's gradient is then that of the planted rows and the other layers.
    """
    first = planted.places[0]
    planted_rows = {place.row for place in planted.places}
    rows = range(len(planted.model.params[first.bias]))
    others = (first._replace(row=row) for row in rows if row not in planted_rows)
    return planted._replace(model=silenced(planted.model, others))


def gradient_row(gradient: Params, place: Place) -> Tensor:
    """Return a planted neuron's part of a gradient: its weights, then its bias."""
    return torch.cat([gradient[place.weight][place.row], gradient[place.bias][place.row, None]])


def said_in(upload: Upload, place: Place) -> bool:
    """Return whether the neuron fired for a record of the gradient's batch.

    With a defense that adds noise to gradients, the verdict is always "in".

    Raises:
        Unsupported: The upload is not a plain gradient: weight decay and momentum move rows of
            neurons that never fired.

    Source: AMI, Fig. 2 ("Ret [g_t != 0]").
    """
    if not isinstance(upload, Gradient):
        raise Unsupported(
            f"the verdict needs a plain gradient, as FedSGD's clients send it; in an "
            f"{type(upload).__name__} weight decay or momentum may have changed the row of a "
            "neuron that did not fire; use FedSGD"
        )
    return bool((gradient_row(upload.values, place) != 0).any())


def first_two(module: nn.Module) -> tuple[str, str]:
    """Return the names of the first two layers that a neuron is planted in.

    Raises:
        Unsupported: The model is of other layers.
    """
    leaves = [(name, part) for name, part in module.named_modules() if not list(part.children())]
    layers = [(name, part) for name, part in leaves if not isinstance(part, nn.Flatten)]
    kinds = [type(part) for _, part in layers]
    # No further ReLU after the planted neuron: it would block the gradient.
    if kinds != [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear] or any(
        part.bias is None for _, part in layers[:4:2]
    ):
        raise Unsupported(
            "a neuron is planted in a model of three dense layers, the first two with biases and "
            f"each followed by a ReLU; this one is {', '.join(k.__name__ for k in kinds[:8])}; "
            'use "mlp" with two hidden layers, such as hidden = "1000,10"'
        )
    return layers[0][0], layers[2][0]


def _refuse_misfit(neurons: Neurons, units: int, features: int, rows: int) -> None:
    count, units_each, read = neurons.first.shape
    if read != features:
        raise BadInput(f"the model reads {features} features, and the neurons {read}")
    if count * units_each > units or count > rows:
        raise BadInput(
            f"{count} neurons over {units_each} units each need {count * units_each} units in the "
            f"model's first layer and {count} in its second; it has {units} and {rows}"
        )


def repeated(neurons: Neurons, times: int) -> Neurons:
    """Repeat every neuron, each copy with its own units.

    Source: AMI, appendix E ("K chosen neurons").
    """
    return Neurons(*(part.repeat_interleave(times, 0) for part in neurons))


def louder(neurons: Neurons, factor: float) -> Neurons:
    """Scale the first layer without changing the neurons' values.

    The gradient of a neuron's second-layer row grows by the factor, and that of the first layer
    shrinks by it. A clipped gradient is then mostly in the row that the server reads.
    """
    return neurons._replace(
        first=neurons.first * factor,
        first_bias=neurons.first_bias * factor,
        second=neurons.second / factor,
    )


def plant_disguised(model: Model, neurons: Neurons) -> Planted:
    """Plant neurons with the lengths of the replaced units, and set nothing to zero.

    Scaling a unit of the first layer, with its weight in the second divided by the same factor,
    does not change for which records the neuron fires; nor does scaling the whole neuron. Weights
    of the neuron from the model's other units are a millionth of their honest values.

    Arguments and errors are those of :func:`plant`.

    Source: AMI, section 7, finds that malicious weights look like others; here the server makes
        their lengths equal.
    """
    planted = plant(model, neurons)
    place = planted.places[0]
    second, second_bias = place.weight, place.bias
    first, first_bias = list(model.params)[:2]
    values = {name: value.clone() for name, value in planted.model.params.items()}
    n_units = neurons.first.shape[0] * neurons.first.shape[1]
    factor = _ratio(model.params[first][:n_units], values[first][:n_units])
    values[first][:n_units] *= factor[:, None]
    values[first_bias][:n_units] *= factor
    rows = len(planted.places)
    weight = values[second][:rows]
    weight[:, :n_units] /= factor
    honest = model.params[second][:rows]
    weight[weight == 0] = (
        _TRACE * honest[weight == 0] * (weight.norm() / honest.norm()).nan_to_num()
    )
    scale = _ratio(model.params[second][:rows], values[second][:rows])
    values[second][:rows] *= scale[:, None]
    values[second_bias][:rows] *= scale
    values[second][rows:] = model.params[second][rows:]
    return Planted(Model(model.architecture, values, model.buffers), planted.places)


def _ratio(target: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Return factors that give rows the target's lengths; 1 for rows without length."""
    lengths = target.norm(dim=1), present.norm(dim=1)
    have_length = (lengths[0] > 0) & (lengths[1] > 0)
    return torch.where(have_length, lengths[0] / lengths[1], torch.ones_like(lengths[0]))


_RIDGE = 1e-3
"""Ridge that is added to each unit's variance, relative to the mean variance."""


def plant_one_row(
    model: Model,
    of_target: Float[Tensor, "copies features"],
    of_others: Float[Tensor, "records features"],
    *,
    batch: int,
) -> Planted:
    """Make the first row of the second layer fire for a target, and change nothing else.

    The row is Fisher's discriminant between activations of the target and of others, scaled to the
    length of the row that it replaces. Half of the others are used to place its zero.

    Raises:
        Unsupported: The model has other layers.
        BadInput: There are no copies, or fewer than four other records.

    Source: AMI, Eq. (5).
    Differs: The paper also trains r units of the first layer; here they stay honest, so that the
        neuron shows in one row only.
    """
    if len(of_target) < 1 or len(of_others) < 4:
        raise BadInput(
            "a row is fitted to copies of the target and to four other records or more, got "
            f"{len(of_target)} and {len(of_others)}"
        )
    first, second = first_two(model.module())
    values = {name: value.clone() for name, value in model.params.items()}
    weight, bias = (values[f"{first}.{part}"].double() for part in ("weight", "bias"))
    distinct = Distinct.of(torch.cat([of_target, of_others]).flatten(1).double())
    active = (distinct.rows @ weight.T + bias).relu()
    copies, fitted = len(of_target), len(of_target) + -(-len(of_others) // 2)
    target, fit = (active[part] for part in distinct.place.tensor_split([copies, fitted])[:2])
    centred = fit - fit.mean(0)
    spread = centred.T @ centred / len(fit)
    ridge = _RIDGE * spread.diagonal().mean().clamp_min(1e-12)
    spread.diagonal().add_(ridge)
    row = torch.linalg.solve(spread, target.mean(0) - fit.mean(0))
    # Units that fire for no record keep a small weight, since exact zeros would be detectable.
    honest = values[f"{second}.weight"][0].double()
    row = torch.where(row == 0, _TRACE * honest * row.norm() / honest.norm(), row)
    row *= honest.norm() / row.norm().clamp_min(1e-30)
    fires = (active @ row)[None, distinct.place]
    zero = best_shift(fires[:, :copies], fires[:, fitted:], batch=batch)
    values[f"{second}.weight"][0] = row
    values[f"{second}.bias"][0] = zero[0]
    place = Place(f"{second}.weight", f"{second}.bias", 0)
    return Planted(Model(model.architecture, values, model.buffers), (place,))


def best_shift(
    of_target: Float[Tensor, "neurons copies"],
    of_others: Float[Tensor, "neurons records"],
    *,
    batch: int,
) -> Float[Tensor, " neurons"]:
    """Compute the shift of each neuron's values that wins most games.

    The neuron should fire for the target and stay silent for a whole batch without it: the shift
    maximises (TPR + (1 - FPR)^batch) / 2 over single records. Games won because another record
    fires do not count. Among equally good shifts, the middle of the widest gap is taken.

    Raises:
        BadInput: A side or the batch is empty.

    Source: AMI, Eqs. (3) and (7).
    Differs: The published code keeps the zero of training, and takes the checkpoint that is best on
        the records of the games.
    """
    copies, records = of_target.shape[1], of_others.shape[1]
    if not (copies and records and batch > 0):
        raise BadInput(
            f"a neuron's zero is placed by values of its target and of others, for batches of at "
            f"least one record; got {copies} and {records}, and {batch}"
        )
    values, order = torch.cat([of_target, of_others], dim=1).double().sort(dim=1)
    target_above = _above(order < copies)
    other_above = _above(order >= copies)
    won = (target_above / copies + (1 - other_above / records) ** batch) / 2
    gaps = values.diff(dim=1)
    best = won >= won.amax(1, keepdim=True) - 1e-12
    place = gaps.where(best, torch.tensor(-1.0).double()).argmax(1, keepdim=True)
    zero = (values.gather(1, place) + values.gather(1, place + 1)) / 2
    return -zero.squeeze(1).to(of_target)


def _above(which: Tensor) -> Tensor:
    """Count entries above each gap between two values."""
    return which.sum(1, keepdim=True) - which.cumsum(1)[:, :-1]


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
    """Bound the values of neurons for records in a box, by interval arithmetic.

    ``low`` and ``high`` are the ends of the box, for each feature or for all. The limits hold for
    every record in the box, but need not be reached.

    Raises:
        BadInput: The box is empty or unbounded.

    Source: Gowal et al. 2018 (interval bound propagation).
    """
    features = neurons.first.shape[2]
    low, high = (side.double().expand(features) for side in (low, high))
    if not bool(((low <= high) & low.isfinite() & high.isfinite()).all()):
        raise BadInput("records lie in a box with finite ends, the lower below the upper")
    middle, half = (low + high) / 2, (high - low) / 2
    first, second = neurons.first.double(), neurons.second.double()
    centre = first @ middle + neurons.first_bias.double()
    reach = first.abs() @ half
    smallest, largest = (centre - reach).relu(), (centre + reach).relu()
    up, down = second.relu(), (-second).relu()
    bias = neurons.second_bias.double()
    return ValueRange(
        (up * smallest - down * largest).sum(1) + bias,
        (up * largest - down * smallest).sum(1) + bias,
    )


class NeuronReading(NamedTuple):
    """Reference of the server: the target's gradient in the planted rows.

    Attributes:
        places: Places of the planted neurons.
        direction: Direction of that gradient, of length 1 over all rows together; zero if no neuron
            fires for the target.
        length: Length of the target's gradient over all parameters.
        share: Length in the planted rows, relative to ``length``.
    """

    places: tuple[Place, ...]
    direction: Float[Tensor, "neurons entries"]
    length: float
    share: float

    def score(self, upload: Params) -> float:
        """Project an upload on the target's gradient: a matched filter.

        It is the most powerful test for a known signal in normal noise.

        Source: AMI, appendix E, averages gradients over rounds and neurons.
        Differs: The paper does not say how an average, which is never zero, gives a verdict.
        """
        return float((self.direction * _rows(upload, self.places).double()).sum())


def reading(planted: Planted, target: Samples) -> NeuronReading:
    """Compute the reference from the target with its label."""
    gradient = _own_gradient(planted.model, target)
    rows = _rows(gradient, planted.places).double()
    length, inside = norm(gradient), float(rows.norm())
    if not inside:
        return NeuronReading(planted.places, rows, length, 0.0)
    return NeuronReading(planted.places, rows / inside, length, min(1.0, inside / length))


def _rows(gradient: Params, places: tuple[Place, ...]) -> Float[Tensor, "neurons entries"]:
    return torch.stack([gradient_row(gradient, place) for place in places])


def _own_gradient(model: Model, record: Samples) -> Params:
    module = model.module()
    params = {name: p for name, p in module.named_parameters() if p.requires_grad}
    task = model.architecture.task
    loss = task.losses(task.outputs(module, record.features), record.targets).mean()
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


def summed(uploads: Sequence[Gradient]) -> Params:
    """Average some clients' gradients by numbers of samples, as secure aggregation does.

    Unlike the "sum" of :mod:`fedaudit.observe.views`, clients may have been sent different models.

    Raises:
        BadInput: There are no uploads, or one lacks its number of samples.
    """
    total = sum(upload.samples for upload in uploads)
    if not uploads or not all(upload.samples for upload in uploads):
        raise BadInput(
            "clients' gradients are averaged by their numbers of samples: give at least one, each "
            f"with its number; got {[upload.samples for upload in uploads]}"
        )
    shares = [upload.samples / total for upload in uploads]
    return weighted_sum([upload.values for upload in uploads], shares)


def dead(planted: Planted) -> Model:
    """Return the planted model with its neurons silent, so that their rows have no gradient.

    If all other clients are sent it, the planted rows of a sum are those of one client's upload.

    Source: Pasquini, Francati and Ateniese 2022 (model inconsistency).
    """
    return silenced(planted.model, planted.places)
