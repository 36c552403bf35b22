"""The interface of risk measures, and the threshold between scores of members and of others."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Model, Samples


@runtime_checkable
class MembershipRule(Protocol):
    """Tells members by what was looked at."""

    def __call__(self, evidence: Float[Tensor, "samples _"]) -> Bool[Tensor, " samples"]:
        """Membership decision on each sample."""
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
        """The attack's features of each sample in a model, in 64 bits.

        Args:
            model: Under attack.
            samples: To look at.
            start: Where the model's training began; most attacks need no such thing.
            device: Where to run the model.
        """
        ...

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> MembershipRule:
        """The attack fitted to features of members and of as many others."""
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
    verdict: MembershipRule
    start: Model
    device: torch.device = CPU

    def __call__(
        self, model: Model, samples: Samples, *, start: Model | None = None
    ) -> Bool[Tensor, " samples"]:
        """Membership decision on each sample.

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


def best_threshold(inside: Float[Tensor, " members"], outside: Float[Tensor, " others"]) -> float:
    """The score from which on samples are taken for members with the largest balanced accuracy.

    Compared in whole numbers, so that rounding breaks no tie.

    Args:
        inside: Scores of members, larger for likelier ones.
        outside: Scores of others.

    Returns:
        One of the scores, the highest of equally good ones; infinity, at which nobody is taken for
        a member, where no score is better than a guess.

    Raises:
        BadInput: A side is empty, or a score is not a number.
    """
    refuse_unusable(inside, outside)
    levels = torch.cat([inside, outside]).sort(descending=True).values
    found, alarms = (
        len(side) - torch.searchsorted(side.sort().values, levels) for side in (inside, outside)
    )
    gain = found * len(outside) - alarms * len(inside)
    most = gain.max()
    return float(levels[gain == most][0]) if most > 0 else torch.inf


def refuse_unusable(inside: Tensor, outside: Tensor) -> None:
    """Refuses scores (or losses) that no line can be drawn between.

    Raises:
        BadInput: A side is empty, or one of them is not a number.
    """
    broken = int(torch.cat([inside, outside]).isnan().sum())
    if broken or not (len(inside) and len(outside)):
        raise BadInput(
            f"a line is drawn between members and others, got {len(inside)} and {len(outside)} of "
            f"them, of whose scores or losses {broken} are not numbers; give samples of both kinds "
            "and check the model's outputs"
        )
