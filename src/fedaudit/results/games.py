"""The record of a study of games: one JSON document of plain values, with every count."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaudit.results.detector import Detector
from fedaudit.results.fields import MOST, Drawn, Part, Share, Whole, refuse_disorder
from fedaudit.results.record import Environment

GAMES_FORMAT = "fedaudit-games"

Budget = Annotated[float, Field(ge=0, le=MOST)]


class Rate(Part):
    """A share with its limits, and the counts that it is made of.

    Attributes:
        value: The share.
        low: Lower limit.
        high: Upper limit.
        hits: Counted.
        total: Out of so many.
    """

    value: Share
    low: Share
    high: Share
    hits: Whole
    total: Annotated[int, Field(ge=1, le=int(MOST))]

    @model_validator(mode="after")
    def _in_order(self) -> "Rate":
        refuse_disorder(self.low, self.value, self.high)
        if self.hits > self.total or abs(self.hits / self.total - self.value) > 1e-9:
            raise ValueError(f"{self.hits} of {self.total} is not a share of {self.value}")
        return self


class Success(Part):
    """A figure with its limits.

    Attributes:
        method: How the limits were made.
    """

    value: Share
    low: Share
    high: Share
    method: str

    @model_validator(mode="after")
    def _in_order(self) -> "Success":
        refuse_disorder(self.low, self.value, self.high)
        return self


class Epochs(Part):
    """Epochs of neurons that stop training as soon as they tell validation records apart.

    Attributes:
        value: Mean over targets, the longest training taken for those that never did.
        low: Lower limit; None where all took the same.
        high: Upper limit; None likewise.
        least: Of one target.
        most: Of one target.
        stopped: Targets whose neuron told all validation records apart.
        targets: All of them.
    """

    value: Drawn
    low: Drawn | None
    high: Drawn | None
    least: Whole
    most: Whole
    stopped: Whole
    targets: Annotated[int, Field(ge=1, le=int(MOST))]

    @model_validator(mode="after")
    def _in_order(self) -> "Epochs":
        refuse_disorder(self.low, self.value, self.high)
        refuse_disorder(float(self.least), self.value, float(self.most))
        if self.stopped > self.targets:
            raise ValueError(f"{self.stopped} of {self.targets} targets cannot be")
        return self


class NeuronMean(Part):
    """The mean of a neuron's values on independent randomised records.

    Attributes:
        value: The mean.
        values: How many.
        sample_width: Largest of these values less the smallest.
        sound_width: The same of all values that there can be; None where there is no end.
    """

    value: Drawn
    values: Whole
    sample_width: Drawn
    sound_width: Drawn | None


class TargetCertificate(Part):
    """Certificate of one target's neuron, by fresh copies and records.

    Attributes:
        delta_sound: Least failure probability of AMI's condition on the means, by the range that
            values must lie in; 1 where nothing is certified, None where values have no range.
        failure_sound: That one of the two means has the wrong sign after all, by that range.
        delta_sample: As ``delta_sound``, by the sample's own range, as printed; it is not sound.
        low: At least this share of games is won, with 95% confidence.
        high: At most this.
        played: Share that was won of this target's own games (Adv); None without games of both
            kinds.
        of_target: What the condition is about: the mean on copies of the target.
        of_others: And that on other records.
    """

    delta_sound: Share | None
    failure_sound: Share | None
    delta_sample: Share
    low: Share
    high: Share
    played: Share | None
    of_target: NeuronMean | None = None
    of_others: NeuronMean | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "TargetCertificate":
        refuse_disorder(self.low, None, self.high)
        return self


class Spread(Part):
    """Distribution of the first target's neuron's values over fresh randomised records.

    Attributes:
        edges: Of the bins, ascending.
        of_target: Copies of the target in each.
        of_others: Other records in each.
    """

    edges: list[float]
    of_target: list[Whole]
    of_others: list[Whole]

    @model_validator(mode="after")
    def _bins(self) -> "Spread":
        if not len(self.of_target) == len(self.of_others) == len(self.edges) - 1:
            raise ValueError("bins of both kinds lie between the edges")
        if sorted(self.edges) != self.edges:
            raise ValueError("edges ascend")
        return self


class InRounds(Part):
    """A point played in real rounds, and what there is to be expected of it.

    Attributes:
        defense: Of every client, by its name in the catalogue.
        options: Its settings, as texts.
        averaged: Rounds whose scores were averaged.
        neurons: Copies of the target's neuron that were planted.
        louder: Factor on its first layer.
        clients: Of how many clients the server saw the sum.
        others: What the others of them were sent.
        simulated: Rounds simulated for each game; fewer than averaged where the noise of all was
            drawn for the score alone.
        by_signs: Success of the neurons' signs in the same games, which no upload shows exactly.
        share: How much of the target's gradient lies in the planted rows, by length; the mean
            over targets.
        distance: By how many standard deviations of the noise one record moves all uploads at most
            (mu of Gaussian DP, a record replaced); None where nothing is proven.
        expected: Success that normal noise alone leaves to neurons that are silent for all other
            records, with these shares; None where the noise is of another kind, or none.
    """

    defense: str
    options: dict[str, str]
    averaged: Whole
    neurons: Whole
    louder: Annotated[float, Field(gt=0, le=MOST)]
    clients: Whole
    others: Literal["honest", "planted", "dead"]
    simulated: Whole
    by_signs: Success
    share: Share
    distance: Budget | None
    expected: Share | None

    @model_validator(mode="after")
    def _some_of_each(self) -> "InRounds":
        if not min(self.averaged, self.neurons, self.clients, self.simulated) >= 1:
            raise ValueError("a game in rounds has a round, a neuron and a client")
        if self.simulated > self.averaged:
            raise ValueError(f"{self.simulated} rounds simulated, {self.averaged} averaged")
        return self


class PointPlayed(Part):
    """The result of one point of a study.

    Attributes:
        label: Of the point; empty for the study's own settings.
        settings: Settings by dotted name in which it differs from the study.
        records: What was played with, in words.
        mechanism: What clients did to their records.
        shared_mask: Whether all records of a batch were given the same noise (legacy).
        nominal_epsilon: Of one record, as the mechanism's settings name it; None for none.
        true_epsilon: As its probabilities give it; None where there is no bound.
        delta: Probability with which either may be exceeded.
        targets: Records asked about.
        batch: Records in a client's batch.
        tpr: Games with the target in which "in" was said; limits of all rates are for games like
            these, of new targets too only where each game had its own.
        tnr: Games without it in which "out" was said.
        adv: Mean of the two.
        by_target: Games with the target in which the neuron fired for the target itself.
        by_others: Other records for which a neuron fired.
        predicted_tnr: TNR as these rates predict it, target by target; None where no target has
            two batches of such records.
        most: The largest Adv that the true epsilon allows, or the noise on gradients; 1 without a
            bound.
        most_nominal: The largest that the nominal one would allow; None for none.
        proven_epsilon: What the success proves of the privacy of a record: at least this.
        certificates: Of the first targets.
        spread: Of the first target's neuron's values; None if none is certified.
        fit: How well neurons tell the rows apart that they were trained on: AUC, mean over
            targets; None in records of older games.
        held_out: The same of fresh copies of the targets and of other records of the clients, that
            nothing was decided by; None in records of older games. Even arbitrary labels can be
            learned by heart, so that this and not ``fit`` says what neurons know of their targets.
        epochs: That training took; None where it goes through a fixed number.
        seconds: That this point took.
        rounds: How it was played in rounds; None for a point played by signs.
    """

    label: str
    settings: dict[str, str]
    records: str
    mechanism: str
    shared_mask: bool
    nominal_epsilon: Budget | None
    true_epsilon: Budget | None
    delta: Share = 0.0
    targets: Whole
    batch: Whole
    tpr: Rate
    tnr: Rate
    adv: Success
    by_target: Rate
    by_others: Rate
    predicted_tnr: Share | None
    most: Share
    most_nominal: Share | None
    proven_epsilon: Budget
    certificates: list[TargetCertificate] = Field(default_factory=list)
    spread: Spread | None = None
    fit: Share | None = None
    held_out: Share | None = None
    epochs: Epochs | None = None
    seconds: Annotated[float, Field(ge=0, le=MOST)] = 0.0
    rounds: InRounds | None = None

    @model_validator(mode="after")
    def _one_defense(self) -> "PointPlayed":
        if self.rounds and (self.mechanism != "none" or self.nominal_epsilon is not None):
            raise ValueError("a point in rounds has a defense and no mechanism")
        return self

    @model_validator(mode="after")
    def _mean_of_both(self) -> "PointPlayed":
        if abs((self.tpr.value + self.tnr.value) / 2 - self.adv.value) > 1e-9:
            raise ValueError(
                f"adv is the mean of tpr and tnr, {self.tpr.value} and {self.tnr.value}, "
                f"and not {self.adv.value}"
            )
        return self

    @property
    def refuted(self) -> bool:
        """True if the success contradicts the epsilon that the mechanism's settings name."""
        return self.nominal_epsilon is not None and self.proven_epsilon > self.nominal_epsilon


class GameRecord(Part):
    """Everything a study of games found.

    Attributes:
        content_hash: SHA-256 over settings and points; the same for two runs of one study.
        config: The study's own settings.
        about: For the reader.
        detector: What a client can tell of planted models; None where it was not measured.
    """

    format: Literal["fedaudit-games"] = "fedaudit-games"
    version: Literal[1] = 1
    name: str
    content_hash: str
    config: dict[str, object]
    about: str = ""
    points: Annotated[list[PointPlayed], Field(min_length=1)]
    detector: Detector | None = None
    environment: Environment
