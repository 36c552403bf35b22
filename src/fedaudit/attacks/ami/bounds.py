"""The range that a planted neuron's values must lie in, whatever record it is given."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.ami.neuron import Neurons
from fedaudit.errors import BadInput


class Range(NamedTuple):
    """Limits of each neuron's values.

    Attributes:
        low: Smallest.
        high: Largest.
    """

    low: Float[Tensor, " neurons"]
    high: Float[Tensor, " neurons"]

    @property
    def width(self) -> Float[Tensor, " neurons"]:
        """Largest less smallest."""
        return self.high - self.low


def range_over_box(
    neurons: Neurons, low: Float[Tensor, "*features"], high: Float[Tensor, "*features"]
) -> Range:
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
    return Range(
        (up * least - down * most).sum(1) + bias,
        (up * most - down * least).sum(1) + bias,
    )
