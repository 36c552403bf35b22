"""Neurons in a model that a client trains: where they are put, and what their gradient says."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedaudit.attacks.ami.neuron import Neurons
from fedaudit.core import Model, Params
from fedaudit.errors import BadInput, Unsupported
from fedaudit.observe.round import Gradient, Upload


class Place(NamedTuple):
    """Where a planted neuron is: a row of the second layer's weight and bias.

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
