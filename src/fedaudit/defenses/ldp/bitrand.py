"""BitRand: bits that weigh more are turned less often. Its epsilon is not what it says."""

from dataclasses import dataclass
from math import log

import torch

from fedaudit.defenses.ldp.bit_mechanism import BitMechanism
from fedaudit.defenses.ldp.bits import BitFlips
from fedaudit.defenses.ldp.mechanism import refuse_no_budget


@dataclass(frozen=True)
class BitRandPublished(BitMechanism):
    """Turns every bit of a feature at random, the sign least often and the last bit most often.

    The published bound holds one direction of the likelihood ratio down and leaves the other one
    free, so that the true epsilon of a record is hundreds to thousands of times the nominal one:
    for 512 features of 10 bits 2,207 at 1, 5,350 at 3, 9,239 at 5 and 20,038 at 10.

    Attributes:
        nominal_epsilon: What the paper calls the privacy budget, above 0; infinity perturbs
            nothing. It is not what is guaranteed: see the formal epsilon of a record.

    Source: Lai et al. 2021 (BitRand); AMI, appendix C, Eq. (23), alpha at its upper bound.
    Differs: The true epsilon is worked out and stated. Records are perturbed independently
        unless ``shared_mask`` is set.
    """

    nominal_epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_no_budget("nominal_epsilon", self.nominal_epsilon)

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        return self.nominal_epsilon

    def log_alpha(self, features: int) -> float:
        """The logarithm of the temperature: its published upper bound.

        Args:
            features: How many a record has.
        """
        weight = self.nominal_epsilon / self.bits * torch.arange(self.bits).double()
        total = float((2 * weight).logsumexp(0))
        return (log(self.nominal_epsilon + features * self.bits) - log(2 * features) - total) / 2

    def flips(self, features: int) -> BitFlips:
        """Of the i-th of l bits: alpha e^(i epsilon / l), over one more than that."""
        weight = self.nominal_epsilon / self.bits * torch.arange(self.bits).double()
        chances = torch.sigmoid(self.log_alpha(features) + weight).expand(features, -1)
        return BitFlips(chances, chances)
