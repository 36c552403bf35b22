"""What a client makes of losses and membership risks: which model it takes."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core import ClientId
from fedaudit.errors import BadInput, unknown_name
from fedaudit.seeds import seeded

WAYS = ("threshold", "fixed", "hard")


@dataclass(frozen=True)
class Preference:
    """How a client weighs its loss against a model's membership risk.

    Each client accepts a risk of its own, drawn between ``low`` and ``high``. With the way
    "threshold" it follows from that how much the loss counts: alpha is 0 for who accepts the
    lowest risk and 1 for who accepts the highest. With "fixed" everybody has the same alpha.
    With "hard" a client takes the least loss among the models whose risk it accepts, and the
    least risk where it accepts none.

    Attributes:
        way: One of the three.
        alpha: Weight of the loss where it is fixed, in [0, 1]; that of the risk is 1 - alpha.
        low: The lowest risk that some client may accept (balanced accuracy, 0.5 is a guess).
        high: The highest.

    Source: IFCA-MIR, Algorithm 1, line 12; section 5.2.2 (thresholds between 0.5 and 0.8).
    Differs: The paper does not say how alpha follows from the threshold; the straight line is
        ours, and so is the way "hard".
    """

    way: str = "threshold"
    alpha: float = 0.5
    low: float = 0.5
    high: float = 0.8

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise unknown_name("preference", self.way, WAYS)
        if not 0 <= self.alpha <= 1:
            raise BadInput(f"alpha is a weight between 0 and 1, got {self.alpha}")
        if not 0 <= self.low < self.high <= 1:
            raise BadInput(
                "low and high are the lowest and highest risk that clients accept, 0 <= low < "
                f"high <= 1, got {self.low} and {self.high}"
            )

    def threshold(self, seed: int, client: ClientId) -> float:
        """The highest risk that a client accepts.

        Args:
            seed: Of the federation.
            client: Whose it is.
        """
        drawn = torch.rand((), generator=seeded(seed, "risk threshold", client))
        return self.low + (self.high - self.low) * float(drawn)

    def weight(self, threshold: float) -> float:
        """alpha of a client with that threshold."""
        if self.way == "fixed":
            return self.alpha
        return (threshold - self.low) / (self.high - self.low)

    def choose(
        self,
        loss: Float[Tensor, " models"],
        risk: Float[Tensor, " models"],
        threshold: float,
        bonus: Float[Tensor, " models"],
    ) -> int:
        """The model that a client takes, the first of equals.

        Args:
            loss: Mean loss of each model on the client's data.
            risk: Membership risk of each.
            threshold: The highest risk that the client accepts.
            bonus: Taken off each model's cost.
        """
        if self.way == "hard":
            accepted = risk <= threshold
            if not bool(accepted.any()):
                return int(risk.argmin())
            return int((loss - bonus).where(accepted, torch.inf).argmin())
        alpha = self.weight(threshold)
        return int((alpha * loss + (1 - alpha) * risk - bonus).argmin())
