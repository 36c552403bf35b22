"""A planted neuron that does not show in the lengths of weights, nor in zeros."""

import torch

from fedaudit.attacks.ami.neuron import Neurons
from fedaudit.attacks.ami.plant import Planted, plant
from fedaudit.core import Model

_TRACE = 1e-6
"""Of what honest units weigh, in the row of a neuron that is not to read them."""


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
