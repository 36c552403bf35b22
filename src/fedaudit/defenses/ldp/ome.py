"""OME: optimised multiple encoding, whose epsilon changes next to nothing."""

from dataclasses import dataclass
from math import log

import torch

from fedaudit.defenses.ldp.bit_mechanism import BitMechanism
from fedaudit.defenses.ldp.bits import BitFlips
from fedaudit.defenses.ldp.mechanism import refuse_no_budget
from fedaudit.errors import BadInput


@dataclass(frozen=True)
class OmePublished(BitMechanism):
    """Keeps nearly every bit at an even place of a record and erases nearly every other one.

    The nominal epsilon is spread over all bits of a record and moves one probability by a
    fraction of a per cent; the true epsilon of 512 features of 10 bits is 35,342 whatever it is.
    The published proof multiplies ratios of even and odd bits, which cancel; two records that
    differ in even bits alone do not.

    Attributes:
        nominal_epsilon: What the paper calls the privacy budget, above 0; infinity perturbs
            nothing. It is not what is guaranteed: see the formal epsilon of a record.
        alpha: Odds with which a 1 at an even place is kept, above 0.

    Source: Lyu et al. 2020 (OME); AMI, appendix C, Eq. (22), and its published code (alpha 100).
    Differs: The true epsilon is worked out and stated. Places are counted through the whole
        record, as printed, which is the same for every feature where it has an even number of
        bits.
    """

    nominal_epsilon: float
    alpha: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_no_budget("nominal_epsilon", self.nominal_epsilon)
        if not 0 < self.alpha < float("inf"):
            raise BadInput(f"alpha is a ratio of chances, above 0 and finite, got {self.alpha}")

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        return self.nominal_epsilon

    def flips(self, features: int) -> BitFlips:
        """Of a 1, by whether its place is even; of a 0, everywhere the same."""
        places = torch.arange(features * self.bits).view(features, self.bits)
        log_odds = torch.tensor(log(self.alpha), dtype=torch.float64)
        drops = torch.sigmoid(torch.where(places % 2 == 0, -log_odds, 3 * log_odds))
        sets = torch.sigmoid(-log_odds - self.nominal_epsilon / places.numel())
        return BitFlips(drops, sets.expand_as(drops))
