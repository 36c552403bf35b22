"""What a measure of risk is: something to look at, and what it says of members."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.core import Model, Samples
from fedaudit.devices import CPU


@runtime_checkable
class Verdict(Protocol):
    """Tells members by what was looked at."""

    def __call__(self, evidence: Float[Tensor, "samples _"]) -> Bool[Tensor, " samples"]:
        """Whether each sample is taken for a member."""
        ...


@runtime_checkable
class Measure(Protocol):
    """An attack on one model, to be fitted on shadows; a frozen dataclass with its settings.

    What it looks at is kept apart from what it concludes, because a shadow is looked at once and
    fitted on several times.
    """

    def evidence(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        """What the attack sees of each sample in a model, in 64 bits.

        Args:
            model: Under attack.
            samples: To look at.
            start: Where the model's training began; most attacks need no such thing.
            device: Where to run the model.
        """
        ...

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> Verdict:
        """What is learned from evidence of members and of as many others."""
        ...


@dataclass(frozen=True)
class Decision:
    """Takes samples for members of a model's training data, or not.

    Attributes:
        measure: Looks at the model.
        verdict: What it has learned from shadows.
        start: Where the shadows began.
        device: Where models are run.
    """

    measure: Measure
    verdict: Verdict
    start: Model
    device: torch.device = CPU

    def __call__(
        self, model: Model, samples: Samples, *, start: Model | None = None
    ) -> Bool[Tensor, " samples"]:
        """Whether each sample is taken for a member.

        Args:
            model: Under attack.
            samples: To decide on.
            start: Where its training began; None for where the shadows did. Attacks on updates
                need it for the very model that the shadows began at.
        """
        evidence = self.measure.evidence(
            model, samples, start=start or self.start, device=self.device
        )
        return self.verdict(evidence)
