"""The interface of risk measures, the threshold between scores, and a client's own measure.

A client knows its own model, and which of its samples it held out. Where losses best tell the two
apart in its own model is where it draws the line in the models that it is sent: no shadow models,
no trust in the server.
"""

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


@dataclass(frozen=True)
class ByLoss:
    """A client's own attack, as an algorithm takes it."""

    def line(
        self, trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]
    ) -> float:
        """See :func:`threshold_of`."""
        return threshold_of(trained, held_out)

    def risk(
        self,
        trained: Float[Tensor, " trained"],
        held_out: Float[Tensor, " held_out"],
        line: float,
    ) -> float:
        """See :func:`risk_of`."""
        return risk_of(trained, held_out, line)


def threshold_of(trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]) -> float:
    """The loss up to which samples are best taken for members of the client's own model.

    Args:
        trained: Losses in that model of samples that it was trained on.
        held_out: Losses of samples of the same client that it was not trained on.

    Returns:
        One of these losses, the lowest of those with the largest balanced accuracy; minus
        infinity, at which nobody is taken for a member, if that is the best.

    Raises:
        BadInput: A side is empty, or a loss is not a number.

    Source: IFCA-MIR, section 5.7, which names the idea only; the threshold on the loss is that of
        Yeom et al. 2018.
    """
    return -best_threshold(-trained.double(), -held_out.double())


def risk_of(
    trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"], threshold: float
) -> float:
    """Balanced accuracy of a client's threshold on a model that it was sent.

    Args:
        trained: Losses in that model of samples that the client trains on.
        held_out: Losses of the samples that it holds out.
        threshold: Samples with this loss or less are taken for members; see :func:`threshold_of`.

    Returns:
        A share; 0.5 is what a guess gets right.

    Raises:
        BadInput: A side is empty, or a loss is not a number.

    Source: IFCA-MIR, Eqs. (8)-(10).
    """
    refuse_unusable(trained, held_out)
    # In 64 bits: a threshold is not rounded to the losses' precision first.
    caught = int((trained.double() <= threshold).sum())
    cleared = int((held_out.double() > threshold).sum())
    return (caught / len(trained) + cleared / len(held_out)) / 2
