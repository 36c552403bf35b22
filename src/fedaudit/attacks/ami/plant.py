"""Planted neurons: one that fires for one record, put into a model that a client trains.

Scores serve a server that cannot read a sign: under noise, over sums of uploads and over rounds.
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

_TRACE = 1e-6
"""Of what honest units weigh, in the row of a neuron that is not to read them."""


class Distinct(NamedTuple):
    """Rows without repeats.

    Attributes:
        rows: Each once, in the order given where none repeats.
        place: Which of them each given row is.
    """

    rows: Float[Tensor, "distinct features"]
    place: Int[Tensor, " given"]

    @staticmethod
    def of(rows: Float[Tensor, "given features"]) -> "Distinct":
        """Each of these rows once.

        Many processors round a row of a matrix product by its place in it, so that two equal rows
        may get unequal values. A value that is worked out once for both is the same everywhere.
        """
        kept, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(kept) == len(rows):
            return Distinct(rows, torch.arange(len(rows)))
        return Distinct(kept, place)


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
        """Value of each neuron before its ReLU, on records of its own."""
        inner = torch.baddbmm(self.first_bias[:, None], records, self.first.transpose(1, 2))
        outer = torch.bmm(inner.relu_(), self.second[:, :, None]).squeeze(2)
        return outer + self.second_bias[:, None]

    def values_alike(
        self, records: Float[Tensor, "1 records features"]
    ) -> Float[Tensor, "1 records"]:
        """The same of one neuron, equal for equal records on any processor: for comparisons."""
        kept = Distinct.of(records[0])
        return self.values(kept.rows[None])[:, kept.place]

    def fires(
        self, records: Float[Tensor, "neurons records features"]
    ) -> Bool[Tensor, "neurons records"]:
        """For which records the neuron has a gradient."""
        return self.values(records) > 0

    def shifted(self, by: Float[Tensor, " neurons"]) -> "Neurons":
        """The same neurons, each easier to fire by that much."""
        return self._replace(second_bias=self.second_bias + by)

    def at(self, index: int) -> "Neurons":
        """One of them."""
        return Neurons(*(part[index : index + 1] for part in self))

    @staticmethod
    def joined(parts: Iterable["Neurons"]) -> "Neurons":
        """All neurons of several parts."""
        return Neurons(*(torch.cat(part) for part in zip(*parts, strict=True)))


class Place(NamedTuple):
    """Place of a planted neuron: a row of the second layer's weight and bias.

    Attributes:
        weight: Name of the parameter.
        bias: Name of the parameter.
        row: Of both.
    """

    weight: str
    bias: str
    row: int


class Planted(NamedTuple):
    """A model with neurons planted in it.

    Attributes:
        model: To be sent.
        places: Of the neurons, in their order.
    """

    model: Model
    places: tuple[Place, ...]


def plant(model: Model, neurons: Neurons) -> Planted:
    """The model with neurons in its first two layers; each reads units of the first alone.

    Neuron k takes the first layer's units from k r on, r of them, and row k of the second layer.

    Args:
        model: What an honest server would send: three dense layers, with a ReLU behind each of
            the first two.
        neurons: For records as the model gets them.

    Raises:
        Unsupported: The model is of other layers.
        BadInput: It has too few units, or records have another number of features.

    Source: AMI, Fig. 2 ("theta <- theta u (h, W)").
    Differs: all that other neurons of the second layer read of the units that are taken is set to
        zero, in which the paper leaves the model as it is: it would drive the outputs so far that
        losses of single records, and their gradients with them, come to nothing.
    """
    first, second = first_two(model.module())
    count, taken = neurons.first.shape[:2]
    values = {name: value.clone() for name, value in model.params.items()}
    units, features = values[f"{first}.weight"].shape
    _refuse_misfit(neurons, units, features, len(values[f"{second}.weight"]))
    values[f"{first}.weight"][: count * taken] = neurons.first.flatten(0, 1)
    values[f"{first}.bias"][: count * taken] = neurons.first_bias.flatten()
    weight, bias = values[f"{second}.weight"], values[f"{second}.bias"]
    weight[:, : count * taken] = 0
    weight[:count] = 0
    for row in range(count):
        weight[row, row * taken : (row + 1) * taken] = neurons.second[row]
    bias[:count] = neurons.second_bias
    places = tuple(Place(f"{second}.weight", f"{second}.bias", row) for row in range(count))
    return Planted(Model(model.architecture, values, model.buffers), places)


def silenced(model: Model, places: Iterable[Place]) -> Model:
    """The model with some neurons of its second layer silent for every record.

    A silent neuron has no gradient: what a client sends back of its row is zero.

    Args:
        model: Such as a planted one.
        places: Of these neurons.

    Source: Pasquini, Francati and Ateniese 2022 (gradient suppression).
    """
    values = {name: value.clone() for name, value in model.params.items()}
    for place in places:
        values[place.weight][place.row] = 0
        values[place.bias][place.row] = -1
    return Model(model.architecture, values, model.buffers)


def alone(planted: Planted) -> Planted:
    """The same neurons with all others of their layer silent, so that these have no gradient.

    A record's gradient is then that of the planted rows and of the layers around them.
    """
    first = planted.places[0]
    taken = {place.row for place in planted.places}
    rows = range(len(planted.model.params[first.bias]))
    others = (first._replace(row=row) for row in rows if row not in taken)
    return planted._replace(model=silenced(planted.model, others))


def gradient_row(gradient: Params, place: Place) -> Tensor:
    """The part of a gradient that belongs to a planted neuron: its weights, then its bias."""
    return torch.cat([gradient[place.weight][place.row], gradient[place.bias][place.row, None]])


def said_in(upload: Upload, place: Place) -> bool:
    """The verdict: whether the neuron fired for a record that the gradient was computed on.

    A defense that adds noise to gradients moves every row, and cannot be seen here: the verdict is
    then always "in".

    Args:
        upload: What the client sent: the gradient of the mean loss at the planted model.
        place: Of the neuron.

    Raises:
        Unsupported: It is no plain gradient: weight decay and momentum move rows of neurons that
            never fired.

    Source: AMI, Fig. 2 ("Ret [g_t != 0]").
    """
    if not isinstance(upload, Gradient):
        raise Unsupported(
            f"the verdict is read off a plain gradient, as FedSGD's clients send it; in an "
            f"{type(upload).__name__} weight decay or momentum may have moved a neuron's row "
            "without its firing"
        )
    return bool((gradient_row(upload.values, place) != 0).any())


def first_two(module: nn.Module) -> tuple[str, str]:
    """Names of the first two layers that a neuron is planted in.

    Raises:
        Unsupported: The model is of other layers.
    """
    leaves = [(name, part) for name, part in module.named_modules() if not list(part.children())]
    layers = [(name, part) for name, part in leaves if not isinstance(part, nn.Flatten)]
    kinds = [type(part) for _, part in layers]
    # Behind the planted neuron no further ReLU: where it is silent, gradients end.
    if kinds != [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear] or any(
        part.bias is None for _, part in layers[:4:2]
    ):
        raise Unsupported(
            "a neuron is planted in a model of three dense layers, the first two with biases and "
            f"each followed by a ReLU; this one is {', '.join(k.__name__ for k in kinds[:8])}; "
            'take "mlp" with two hidden layers, such as hidden = "1000,10"'
        )
    return layers[0][0], layers[2][0]


def _refuse_misfit(neurons: Neurons, units: int, features: int, rows: int) -> None:
    count, taken, read = neurons.first.shape
    if read != features:
        raise BadInput(f"the model reads {features} features, and the neurons {read}")
    if count * taken > units or count > rows:
        raise BadInput(
            f"{count} neurons over {taken} units each need {count * taken} units in the model's "
            f"first layer and {count} in its second; it has {units} and {rows}"
        )


def repeated(neurons: Neurons, times: int) -> Neurons:
    """Every neuron so many times, each copy with units of its own.

    Args:
        neurons: To be planted.
        times: Copies of each (the paper's K); 1 changes nothing.

    Raises:
        BadInput: Fewer than one copy.

    Source: AMI, appendix E ("K chosen neurons").
    """
    if times < 1:
        raise BadInput(f"a neuron is planted at least once, got {times}")
    return Neurons(*(part.repeat_interleave(times, 0) for part in neurons))


def louder(neurons: Neurons, by: float) -> Neurons:
    """The same values from a first layer so many times as large.

    The gradient of a neuron's own weights grows by the factor and that of the first layer falls
    by it, so that a record's gradient comes to lie in the neuron's row alone: what is left of it
    under a clip is then left where the server looks.

    Args:
        neurons: To be planted.
        by: The factor; 1 changes nothing.

    Raises:
        BadInput: The factor is not above 0, or infinite.
    """
    if not 0 < by < math.inf:
        raise BadInput(f"a neuron is made louder by a factor above 0, got {by}")
    return neurons._replace(
        first=neurons.first * by, first_bias=neurons.first_bias * by, second=neurons.second / by
    )


def plant_disguised(model: Model, neurons: Neurons) -> Planted:
    """As :func:`plant`, but units are as long as those they replace, and nothing is set to zero.

    A unit of the first layer may be made longer by any factor if what the neuron reads of it is
    divided by the same, and so may the whole neuron: for which records it fires is the same. What
    the neuron must not read, the model's other units, it reads a millionth of.

    Args:
        model: What an honest server would send.
        neurons: As for :func:`plant`.

    Raises:
        Unsupported: As :func:`plant`.
        BadInput: As :func:`plant`.

    Source: AMI, section 7, finds that malicious weights look as others do; here the server sees to
        it that their lengths do.
    """
    planted = plant(model, neurons)
    place = planted.places[0]
    second, second_bias = place.weight, place.bias
    first, first_bias = list(model.params)[:2]
    values = {name: value.clone() for name, value in planted.model.params.items()}
    taken = neurons.first.shape[0] * neurons.first.shape[1]
    factor = _ratio(model.params[first][:taken], values[first][:taken])
    values[first][:taken] *= factor[:, None]
    values[first_bias][:taken] *= factor
    rows = len(planted.places)
    weight = values[second][:rows]
    weight[:, :taken] /= factor
    left = model.params[second][:rows]
    weight[weight == 0] = _TRACE * left[weight == 0] * (weight.norm() / left.norm()).nan_to_num()
    whole = _ratio(model.params[second][:rows], values[second][:rows])
    values[second][:rows] *= whole[:, None]
    values[second_bias][:rows] *= whole
    values[second][rows:] = model.params[second][rows:]
    return Planted(Model(model.architecture, values, model.buffers), planted.places)


def _ratio(wanted: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """By what each row is to be multiplied to be as long as another; 1 where it has no length."""
    lengths = wanted.norm(dim=1), there.norm(dim=1)
    has = (lengths[0] > 0) & (lengths[1] > 0)
    return torch.where(has, lengths[0] / lengths[1], torch.ones_like(lengths[0]))


_RIDGE = 1e-3
"""Of the mean variance of a unit, added to each: records are fewer than units may be."""


def plant_one_row(
    model: Model,
    of_target: Float[Tensor, "copies features"],
    of_others: Float[Tensor, "records features"],
    *,
    batch: int,
) -> Planted:
    """The model with its second layer's first row made to fire for a target; all else is kept.

    The row is the direction that sets the target's mean activations best apart from others'
    (Fisher's discriminant), as long as the row that it replaces. Half of the others place its
    zero, which one bias holds.

    Args:
        model: What an honest server would send: three dense layers, with a ReLU behind each of
            the first two.
        of_target: Copies of the target, as the client might hold it.
        of_others: Records of the server's own.
        batch: Records in a client's batch.

    Raises:
        Unsupported: The model is of other layers.
        BadInput: There are no copies, or fewer than four other records.

    Source: AMI, Eq. (5).
    Differs: the paper trains r units of the first layer as well; here they stay as an honest
        server trained them, so that one row of the model is all that gives the neuron away.
    """
    if len(of_target) < 1 or len(of_others) < 4:
        raise BadInput(
            "a row is fitted to copies of the target and to four other records or more, got "
            f"{len(of_target)} and {len(of_others)}"
        )
    first, second = first_two(model.module())
    values = {name: value.clone() for name, value in model.params.items()}
    weight, bias = (values[f"{first}.{part}"].double() for part in ("weight", "bias"))
    kept = Distinct.of(torch.cat([of_target, of_others]).flatten(1).double())
    active = (kept.rows @ weight.T + bias).relu()
    copies, fitted = len(of_target), len(of_target) + -(-len(of_others) // 2)
    target, fit = (active[part] for part in kept.place.tensor_split([copies, fitted])[:2])
    centred = fit - fit.mean(0)
    spread = centred.T @ centred / len(fit)
    ridge = _RIDGE * spread.diagonal().mean().clamp_min(1e-12)
    spread.diagonal().add_(ridge)
    row = torch.linalg.solve(spread, target.mean(0) - fit.mean(0))
    # Where a unit fires for none of them, a trace of what it was: exact zeros would show.
    honest = values[f"{second}.weight"][0].double()
    row = torch.where(row == 0, _TRACE * honest * row.norm() / honest.norm(), row)
    row *= honest.norm() / row.norm().clamp_min(1e-30)
    fires = (active @ row)[None, kept.place]
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
    """Shift of each neuron's values that serves best in games.

    A neuron is to fire for the target and to stay silent over a whole batch without it: the share
    (TPR + (1 - FPR)^batch) / 2 of single records, as these count it, is largest. Games won by
    another record's firing are not aimed at. Of equally good places the middle of the widest gap
    is taken.

    Args:
        of_target: Values on the target's copies, as the client might hold it.
        of_others: Values on other records.
        batch: Records in a client's batch.

    Raises:
        BadInput: A side is empty, or the batch.

    Source: AMI, Eqs. (3) and (7).
    Differs: the published code keeps zero where training left it, and takes the checkpoint that is
        best on the records of the games themselves.
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
    """Number of these above each gap between two values."""
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
        """Largest minus smallest value."""
        return self.most - self.least


def range_over_box(
    neurons: Neurons, low: Float[Tensor, "*features"], high: Float[Tensor, "*features"]
) -> ValueRange:
    """Limits that hold for every record whose features lie between these, by interval arithmetic.

    No value can lie outside; not every value inside need occur.

    Args:
        neurons: Whose values.
        low: Smallest value of each feature, or of all.
        high: Largest: what a randomised record can decode to.

    Raises:
        BadInput: The box is empty or has no end.

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
    least, most = (centre - reach).relu(), (centre + reach).relu()
    up, down = second.relu(), (-second).relu()
    bias = neurons.second_bias.double()
    return ValueRange(
        (up * least - down * most).sum(1) + bias,
        (up * most - down * least).sum(1) + bias,
    )


class NeuronReading(NamedTuple):
    """The server's reference in uploads: the target's own gradient in the planted rows.

    Attributes:
        places: Of the planted neurons.
        direction: Of that gradient, of length 1 over all rows together; zero where no neuron
            fires for the target.
        length: Of the target's whole gradient, over all parameters.
        share: How much of that length lies in the planted rows: the rows' length over it.
    """

    places: tuple[Place, ...]
    direction: Float[Tensor, "neurons entries"]
    length: float
    share: float

    def score(self, upload: Params) -> float:
        """The part of an upload that points along the target's gradient: its matched filter.

        Nothing tells a known signal in normal noise of one size better. Scores of several
        rounds are averaged.

        Args:
            upload: A gradient at the planted model, or what a sum of several gives.

        Source: AMI, appendix E, averages gradients over rounds and neurons.
        Differs: the paper does not say how a verdict is read off an average, which is never zero.
        """
        return float((self.direction * _rows(upload, self.places).double()).sum())


def reading(planted: Planted, target: Samples) -> NeuronReading:
    """The reference from the target with its label, which the server knows.

    Args:
        planted: The model that is sent.
        target: The one record that is asked about.
    """
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
    """Secure sum of some clients' gradients: their mean, by numbers of samples.

    Unlike the "sum" of :mod:`fedaudit.observe.views`, which is of clients that were sent one
    model: addition does not know that they were not.

    Args:
        uploads: One a client.

    Raises:
        BadInput: There are none, or a client does not say over how many samples its mean is.
    """
    total = sum(upload.samples for upload in uploads)
    if not uploads or not all(upload.samples for upload in uploads):
        raise BadInput(
            "clients' gradients are added up by their numbers of samples: give at least one, each "
            f"with its number; got {[upload.samples for upload in uploads]}"
        )
    shares = [upload.samples / total for upload in uploads]
    return weighted_sum([upload.values for upload in uploads], shares)


def dead(planted: Planted) -> Model:
    """The planted model with its neurons silent for every record: their rows have no gradient.

    Sent to everybody but one client, it leaves in the planted rows of a sum what that client
    sent, as if nothing had been added up.

    Args:
        planted: What the one client is sent.

    Source: Pasquini, Francati and Ateniese 2022 (model inconsistency).
    """
    return silenced(planted.model, planted.places)
