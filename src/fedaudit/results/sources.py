"""The part of a record that is about source inference: whose sample is it?"""

from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.estimate import Estimate
from fedaudit.results.fields import Change, Part, Share, Whole, refuse_ragged

LABELS = "label distributions"
"""Null hypothesis: the clients' different label distributions explain the answers, which are right
as often when each sample's owner is that of another sample of its class."""
LABEL_BASELINE = "label-distribution baseline"
"""Null hypothesis: the answers are right as often as naming the client of whose data the sample's
class is the largest share, without a look at any model."""

LABELS_METHOD = "Clopper-Pearson and Zou 95%"
"""Method of limits beyond label distributions, with the error of their level."""
OLDER_LEVEL = (
    "The record is of an earlier version, whose level of label distributions counts each sample's "
    "own owner: it may be too high, and what is beyond it too low. Run the study again for the "
    "present level."
)

OWN = "own"
"""Contrast of figures on random samples of each client's own training data, which lead."""
FAIR = "fair"
"""Contrast of figures on samples of a fair draw, all with the label distribution of its target, so
that classes reveal no client."""


def has_older_level(excess: Estimate) -> bool:
    """True if what label distributions explain is as earlier versions had it, possibly too high.

    Args:
        excess: Success less that level, of one run or over runs.
    """
    return "Clopper-Pearson" in excess.method and "Zou" not in excess.method


class Answered(Part):
    """Selective prediction: figures of an adversary that names nobody unless it is sure.

    Attributes:
        least: Chance that a client must reach to be named.
        answered: Samples for which somebody was.
        right: Those of them whose owner it was.
    """

    least: Share
    answered: Whole
    right: Whole

    @model_validator(mode="after")
    def _possible(self) -> "Answered":
        if self.right > self.answered:
            raise ValueError(f"{self.right} right of {self.answered} answered")
        return self


class Chained(Part):
    """Membership first, and the owner only of samples that are called members.

    Attributes:
        fpr: Share of samples of nobody that were to be called members.
        realised_fpr: Share that was.
        called: Members that were called so.
        right: Those of them whose owner was named.
    """

    fpr: Share
    realised_fpr: Share
    called: Whole
    right: Whole

    @model_validator(mode="after")
    def _possible(self) -> "Chained":
        if self.right > self.called:
            raise ValueError(f"{self.right} right of {self.called} called members")
        return self


class ClassSuccess(Part):
    """Samples of one class, and how many of them had their owner named."""

    label: Whole
    samples: Whole
    right: Whole


class SourceResult(Part):
    """The clients that one attack names in one run; how often it is right is an estimate.

    As many samples of every client are asked about, so that a guess is right once in as many
    times as there are clients.

    Attributes:
        attack: Catalogue name.
        defense: Name of the defense in force, "none" without.
        view: What the adversary saw.
        seed: Root seed of the run.
        clients: In the order of ``confusion``.
        samples: Asked about, over all clients.
        confusion: Samples of each client (row) said to be each client's (column).
        classes: Class by class.
        answers: With silence allowed.
        chained: Membership first; empty where no audited sample is nobody's.
        rounds: Measured rounds.
        by_round: Success at each of them alone; empty for an attack that needs several.
        overfitting: For each client, training less test accuracy of its model in the last measured
            round; empty where that was not counted.
        absent: Clients of whom no measured round shows a model, so that no sample is said to be
            theirs.
    """

    attack: str
    defense: str = "none"
    view: str = "uploads"
    seed: Whole
    clients: Annotated[list[Whole], Field(min_length=2)]
    samples: Annotated[Whole, Field(ge=1)]
    confusion: list[list[Whole]]
    classes: list[ClassSuccess]
    answers: list[Answered]
    chained: list[Chained] = Field(default_factory=list)
    rounds: list[Whole]
    by_round: list[Share] = Field(default_factory=list)
    overfitting: list[Change] = Field(default_factory=list)
    absent: list[Whole] = Field(default_factory=list)

    @property
    def chance(self) -> float:
        """Success of a guess."""
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
            raise ValueError("clients are absent that nobody was asked about")
        if sum(map(sum, self.confusion)) != self.samples:
            raise ValueError(f"confusion does not add up to {self.samples} samples")
        return self
