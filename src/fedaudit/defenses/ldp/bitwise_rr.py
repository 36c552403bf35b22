"""Bitwise randomised response: a record's privacy budget shared out over its bits."""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from fedaudit.defenses.ldp.bit_mechanism import BitMechanism
from fedaudit.defenses.ldp.bits import BitFlips
from fedaudit.defenses.ldp.mechanism import refuse_no_budget
from fedaudit.errors import unknown_name

SPLITS = ("even", "linear")

_UPWARDS = 1 + 2.0**-45
"""More than the rounding of a probability and of a budget of up to 43, beyond which `_LEAST` acts:
no bit gives away more than its budget, nor all of them together more than a record's."""


_LEAST = 2.0**-61
"""Nothing is turned less often, however large its budget; 0 would have no finite epsilon."""


@dataclass(frozen=True)
class BitwiseRR(BitMechanism):
    """Turns every bit with a probability that its share of a record's budget allows.

    A bit with budget b is turned with probability 1 / (1 + e^b), and all budgets add up to
    epsilon: what it says is what it gives.

    Attributes:
        epsilon: Of a whole record, any features against any other, above 0; infinity perturbs
            nothing.
        split: "even" gives every bit the same budget, epsilon / (features x bits). "linear"
            gives the first of l bits of a feature, its sign, l times the budget of the last one:
            the i-th has epsilon / features x 2 (l + 1 - i) / (l (l + 1)).

    Source: Warner 1965 (randomised response); Kairouz, Oh and Viswanath 2014 (optimal for one
        bit).
    """

    epsilon: float
    split: str = "even"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_no_budget("epsilon", self.epsilon)
        if self.split not in SPLITS:
            raise unknown_name("split of the defense 'bitwise-rr'", self.split, SPLITS)

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        return self.epsilon

    def budgets(self, features: int) -> Float64[Tensor, "features bits"]:
        """The epsilon of every bit.

        Args:
            features: How many a record has.
        """
        falling = torch.arange(self.bits, 0, -1).double()
        weights = falling if self.split == "linear" else torch.ones_like(falling)
        return (self.epsilon / features * weights / weights.sum()).expand(features, -1)

    def flips(self, features: int) -> BitFlips:
        """Of each bit, as its budget allows."""
        chances = (torch.sigmoid(-self.budgets(features)) * _UPWARDS).clamp(_LEAST, 0.5)
        return BitFlips(chances, chances)
