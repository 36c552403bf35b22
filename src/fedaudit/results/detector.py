"""Detection of planted models by a client, as a part of a record of games."""

from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.fields import Drawn, Part, Seconds, Share, Whole, refuse_disorder

Word = Annotated[str, Field(min_length=1, max_length=60)]
Figure = Annotated[str, Field(max_length=100)]


class Caught(Part):
    """A share of models with its Clopper-Pearson limits.

    Attributes:
        hits: Models counted.
        total: Out of so many, each of another run.
        low: Lower limit of the share.
        high: Upper limit.
    """

    hits: Whole
    total: Annotated[int, Field(ge=1, le=10**9)]
    low: Share
    high: Share

    @property
    def value(self) -> float:
        """The share."""
        return self.hits / self.total

    @model_validator(mode="after")
    def _in_order(self) -> "Caught":
        if self.hits > self.total:
            raise ValueError(f"{self.hits} of {self.total} is no share")
        refuse_disorder(self.low, self.value, self.high)
        return self


class SignWorth(Part):
    """ROC of one sign that tells planted models of one kind of server from honest ones.

    Attributes:
        sign: Its name.
        server: How neurons were planted.
        auc: Chance that a planted model looks more suspicious than an honest one, of any runs;
            0.5 is guessing.
        low: Lower limit; None where every draw of runs gives the same.
        high: Upper limit.
        method: How the limits were made.
        own: AUC where the target is among the client's own records.
        others: AUC where it is not.
        tpr: Planted models found at a threshold chosen on other runs.
        fpr: Honest models taken for planted at it.
    """

    sign: Word
    server: Word
    auc: Share
    low: Share | None
    high: Share | None
    method: Figure
    own: Share
    others: Share
    tpr: Caught
    fpr: Caught

    @model_validator(mode="after")
    def _in_order(self) -> "SignWorth":
        refuse_disorder(self.low, self.auc, self.high)
        return self


class Outline(Part):
    """Counts of weights in each bin.

    Attributes:
        server: How neurons were planted; empty for weights of honest models.
        counts: One a bin.
    """

    server: Annotated[str, Field(max_length=60)]
    counts: Annotated[list[Whole], Field(max_length=200)]


class WeightSpread(Part):
    """Weights of first layers' units that a server takes, before and after.

    Attributes:
        edges: Of the bins, ascending; weights beyond the ends are in the outer bins.
        outlines: For the honest models, and for each kind of server.
    """

    edges: Annotated[list[Drawn], Field(min_length=2, max_length=201)]
    outlines: Annotated[list[Outline], Field(max_length=10)]

    @model_validator(mode="after")
    def _bins(self) -> "WeightSpread":
        if any(len(one.counts) != len(self.edges) - 1 for one in self.outlines):
            raise ValueError("bins lie between the edges")
        if sorted(self.edges) != self.edges:
            raise ValueError("edges ascend")
        return self


class Detector(Part):
    """Signs of planted neurons, measured on real federations.

    Attributes:
        federation: How the federations were trained, in words.
        runs: Of them.
        judged: Runs that figures at a threshold are from; it was chosen on the others.
        honest: Honest models in all.
        planted: Models with a neuron, for each kind of server.
        own: Records of the client's own that it looks at models with.
        accuracy: Of the honest models of last rounds on the server's records; None without.
        success: How often each kind of server would be right (Adv) with such neurons, by the
            records that they fire for.
        signs: A row for each sign and kind of server.
        weights: How weights are spread.
        seconds: That this took.
    """

    federation: Annotated[str, Field(max_length=400)]
    runs: Whole
    judged: Whole
    honest: Whole
    planted: Whole
    own: Whole
    accuracy: Share | None
    success: Annotated[dict[Word, Share], Field(max_length=20)]
    signs: Annotated[list[SignWorth], Field(min_length=1, max_length=200)]
    weights: WeightSpread | None = None
    seconds: Seconds = 0.0
