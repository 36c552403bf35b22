"""One neuron planted several times, or so that its gradient outweighs all others of a record."""

import math

from fedaudit.attacks.ami.neuron import Neurons
from fedaudit.errors import BadInput


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
