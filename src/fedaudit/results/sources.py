"""Source inference in a record: identifying the client that a sample comes from."""

from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.estimate import Estimate
from fedaudit.results.fields import Count, Part, Share, SignedShare, refuse_ragged

LABELS = "label distributions"
"""Null hypothesis: the clients' different label distributions explain the answers. Under it the
success rate is the same if each sample's owner is replaced by that of another sample of its
class."""
LABEL_BASELINE = "label-distribution baseline"
"""Null hypothesis: the success rate is that of naming, without any model, the client in whose
data the sample's class has the largest share."""

LABELS_METHOD = "Clopper-Pearson and Zou 95%"
"""Method of limits of the success above label distributions, with the error of that level."""
OLDER_LEVEL = (
    "The record is of an earlier version. Its level of label distributions includes each sample's "
    "actual owner, so it may be too high and the excess over it too low. Run the study again for "
    "the corrected level."
)

OWN = "own"
"""Contrast of figures on random samples of each client's own training data, the main figures."""
FAIR = "fair"
"""Contrast of figures on samples of a fair draw, all with the label distribution of its target,
so that classes reveal no client."""


def has_older_level(excess: Estimate) -> bool:
    """Return True if the level of label distributions is by earlier versions, possibly too high.

    Args:
        excess: Success less that level, of one run or over runs.
    """
    return "Clopper-Pearson" in excess.method and "Zou" not in excess.method


class Answered(Part):
    """Selective prediction: figures of an adversary that names a client only if it is confident.

    Attributes:
        least: Probability that a client must reach to be named.
        answered: Samples for which a client was named.
        right: Samples whose owner was named.
    """

    least: Share
    answered: Count
    right: Count

    @model_validator(mode="after")
    def _possible(self) -> "Answered":
        if self.right > self.answered:
            raise ValueError(f"{self.right} right of {self.answered} answered")
        return self


class Chained(Part):
    """Membership inference first, then source inference on the predicted members.

    Attributes:
        fpr: Target false-positive rate on samples that no client trained on.
        realised_fpr: Actual false-positive rate.
        called: Members that were predicted as members.
        right: Predicted members whose owner was named.
    """

    fpr: Share
    realised_fpr: Share
    called: Count
    right: Count

    @model_validator(mode="after")
    def _possible(self) -> "Chained":
        if self.right > self.called:
            raise ValueError(f"{self.right} right of {self.called} called members")
        return self


class ClassSuccess(Part):
    """Samples of one class, and the number of them whose owner was named."""

    label: Count
    samples: Count
    right: Count


class SourceResult(Part):
    """Clients that one attack names in one run. Its success rates are estimates.

    Equally many samples of every client are audited, so that guessing is right for a share of one
    over the number of clients.

    Attributes:
        attack: Catalogue name.
        defense: Name of the defense in force; "none" without one.
        view: What the adversary saw.
        seed: Root seed of the run.
        clients: Client numbers, in the order of ``confusion``.
        samples: Audited samples of all clients.
        confusion: Samples of each client (row) that are attributed to each client (column).
        classes: Success for each class.
        answers: Selective prediction at several thresholds.
        chained: Membership first; empty if no audited sample is a non-member.
        rounds: Measured rounds.
        by_round: Success rate from each round alone; empty for an attack that needs several.
        overfitting: Training less test accuracy of each client's model in the last measured round;
            empty if it was not measured.
        absent: Clients without a model in any measured round, so that no sample is attributed to
            them.
    """

    attack: str
    defense: str = "none"
    view: str = "uploads"
    seed: Count
    clients: Annotated[list[Count], Field(min_length=2)]
    samples: Annotated[Count, Field(ge=1)]
    confusion: list[list[Count]]
    classes: list[ClassSuccess]
    answers: list[Answered]
    chained: list[Chained] = Field(default_factory=list)
    rounds: list[Count]
    by_round: list[Share] = Field(default_factory=list)
    overfitting: list[SignedShare] = Field(default_factory=list)
    absent: list[Count] = Field(default_factory=list)

    @property
    def chance(self) -> float:
        """Success rate of guessing."""
        return 1 / len(self.clients)

    @model_validator(mode="after")
    def _possible(self) -> "SourceResult":
        refuse_ragged(clients=self.clients, confusion=self.confusion)
        for row in self.confusion:
            refuse_ragged(clients=self.clients, confusion=row)
        if self.by_round:
            refuse_ragged(rounds=self.rounds, by_round=self.by_round)
        if self.overfitting:
            refuse_ragged(clients=self.clients, overfitting=self.overfitting)
        if not set(self.absent) <= set(self.clients):
            raise ValueError("absent clients are not among the clients")
        if sum(map(sum, self.confusion)) != self.samples:
            raise ValueError(f"confusion does not add up to {self.samples} samples")
        return self
