"""Security games in a record: how each point was played, and its figures as estimates.

A figure of a point stands at the topic "games" and at the point's label. Its counts follow from
the games behind it: as many as ``n_members`` had the target in the batch, and ``n_nonmembers`` had
it not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaudit.core.limits import Limited
from fedaudit.results.estimate import Estimate
from fedaudit.results.fields import (
    MOST,
    Drawn,
    Limits,
    Part,
    Seconds,
    Share,
    Whole,
    refuse_disorder,
)
from fedaudit.results.metrics import SUCCESS_RATE

DETECTOR = "detector"
"""Topic of its figures."""

SIGN_AUC = "auc"
"""Chance that a planted model looks more suspicious than an honest one, of any runs."""
OWN_AUC = "own_auc"
"""The same where the target is among the client's own records."""
OTHERS_AUC = "others_auc"
"""The same where it is not."""
DETECTED = "detection_rate"
"""Planted models found at the threshold."""
FALSE_ALARMS = "false_alarm_rate"
"""Honest models taken for planted at it."""
SERVER_SUCCESS = "attack_success_rate"
"""How often a kind of server would be right (Adv) with such neurons, by the records that they fire
for."""
HONEST_ACCURACY = "accuracy"
"""Of the honest models of last rounds on the server's records."""

_OF_A_SIGN = (SIGN_AUC, OWN_AUC, OTHERS_AUC, DETECTED, FALSE_ALARMS)


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
    """Detection of planted models by a client, measured on real federations.

    Attributes:
        federation: How the federations were trained, in words.
        runs: Of them.
        judged: Runs that figures at a threshold are from; it was chosen on the others.
        honest: Honest models in all.
        planted: Models with a neuron, for each kind of server.
        own: Records of the client's own that it looks at models with.
        weights: How weights are spread.
        seconds: That this took.
    """

    federation: Annotated[str, Field(max_length=400)]
    runs: Whole
    judged: Whole
    honest: Whole
    planted: Whole
    own: Whole
    weights: WeightSpread | None = None
    seconds: Seconds = 0.0


class Detection(Detector):
    """A detector with its figures.

    Attributes:
        estimates: On its topic alone.
    """

    estimates: list[Estimate]

    @model_validator(mode="after")
    def _possible(self) -> "Detection":
        self.refuse_impossible()
        return self

    def refuse_impossible(self) -> None:
        """Refuses signs without a figure that every sign has, or without any sign.

        Raises:
            ValueError: Which.
        """
        signs = self.signs
        if not signs or len(self.estimates) > _MOST_FIGURES:
            raise ValueError(f"a detector has from one sign to {_MOST_FIGURES} figures")
        for (server, sign), found in signs.items():
            for metric in _OF_A_SIGN:
                if metric not in found or found[metric].value is None:
                    raise ValueError(f"sign {sign[:60]!r} of {server[:60]!r} has no {metric}")

    @property
    def signs(self) -> Mapping[tuple[str, str], Mapping[str, Estimate]]:
        """Figures by server and sign, by their metric."""
        found: dict[tuple[str, str], dict[str, Estimate]] = {}
        for one in self.estimates:
            if one.group:
                found.setdefault((one.attack, one.group), {})[one.metric] = one
        return found

    def success(self, server: str) -> float | None:
        """Success rate for a kind of server; None where it was not measured."""
        return next(
            (
                one.value
                for one in self.estimates
                if (one.metric, one.attack, one.group) == (SERVER_SUCCESS, server, "")
            ),
            None,
        )


_MOST_FIGURES = 2000


def detection(detector: Detector | None, estimates: Sequence[Estimate]) -> Detection | None:
    """A record's detector with its figures; None where it has none."""
    if detector is None:
        return None
    own = [one for one in estimates if one.topic == DETECTOR]
    return Detection.model_construct(**dict(detector), estimates=own)


GAMES = "games"
"""Topic of a point's figures."""

SUCCESS = SUCCESS_RATE
"""Mean of the two rates below (Adv): 50% is guessing. Its ``ceiling`` is the largest that the
actual epsilon, or the noise on gradients, allows any server; 1 without a bound."""
TRUE_POSITIVES = "true_positive_rate"
"""Games with the target in which "in" was said. Limits of all rates are for games like these, of
new targets too only where each game had its own."""
TRUE_NEGATIVES = "true_negative_rate"
"""Games without it in which "out" was said."""
FIRES_FOR_TARGET = "target_activation_rate"
"""Games with the target in which the neuron fired for the target itself."""
FIRES_FOR_OTHERS = "other_activation_rate"
"""Other records for which a neuron fired."""
PREDICTED_NEGATIVES = "predicted_true_negative_rate"
"""The true-negative rate as these activations predict it, target by target."""
CLAIMED = "claimed_epsilon"
"""Epsilon of one record, as the mechanism's settings name it."""
ACTUAL = "actual_epsilon"
"""The same as the mechanism's probabilities give it; refused where there is no bound."""
PROVEN = "proven_epsilon"
"""What the success proves of the privacy of a record: at least this."""
CLAIMED_SUCCESS = "claimed_success_rate"
"""The largest success that the claimed epsilon would allow."""
FIT = "fit_auc"
"""How well neurons tell apart the rows that they were trained on, mean over targets. Even arbitrary
labels can be learned by heart, so that :data:`HELD_OUT` says what neurons know of their targets."""
HELD_OUT = "held_out_auc"
"""The same of fresh copies of the targets and other records, that nothing was decided by."""
EPOCHS = "epochs"
"""Of training, mean over targets; the longest taken for those whose neuron never stopped."""
SIGN_SUCCESS = "sign_success_rate"
"""Of games in rounds: success of the neurons' signs in the same games, which no upload shows."""
PLANTED_SHARE = "planted_share"
"""How much of the target's gradient lies in the planted rows, by length; mean over targets."""
DISTANCE = "distance"
"""By how many standard deviations of the noise one record moves all uploads at most (mu of
Gaussian DP, a record replaced)."""
EXPECTED_SUCCESS = "expected_success_rate"
"""Success that normal noise alone leaves to neurons that are silent for all other records, with
these shares."""

FOR_PEOPLE = frozenset({"name", "about", "hours"})
"""Settings that change no game."""

COUNTED = "Clopper-Pearson 95%"
"""How limits of a share of games are made."""
SHARED_MASK = f"{COUNTED}, no narrower than Student t over games"
"""How they are where the records of a batch share their noise."""

_RATES = (SUCCESS, TRUE_POSITIVES, TRUE_NEGATIVES, FIRES_FOR_TARGET, FIRES_FOR_OTHERS)
_OF_ROUNDS = (SIGN_SUCCESS, PLANTED_SHARE)


@dataclass(frozen=True)
class Rate(Limited[float]):
    """A figure of games with both limits.

    Attributes:
        total: Games, or records, that it is a share of.
    """

    total: int

    @property
    def hits(self) -> int:
        """Number of them that were counted."""
        return round(self.value * self.total)


class TrainingLength(Part):
    """Epochs of neurons that stop training as soon as they tell validation records apart.

    Attributes:
        least: Epochs of one target.
        most: Epochs of one target.
        stopped: Targets whose neuron told all validation records apart.
    """

    least: Whole
    most: Whole
    stopped: Whole


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


class TargetCertificate(Limits[Share]):
    """Certificate of one target's neuron, by fresh copies and records.

    Attributes:
        delta_sound: Least failure probability of AMI's condition on the means, by the range that
            values must lie in; 1 where nothing is certified, None where values have no range.
        failure_sound: That one of the two means has the wrong sign after all, by that range.
        delta_sample: As ``delta_sound``, by the sample's own range, as printed; it is not sound.
        low: At least this share of games is won, with 95% confidence; at most ``high``.
        played: Share that was won of this target's own games (Adv); None without games of both
            kinds.
        of_target: What the condition is about: the mean on copies of the target.
        of_others: And that on other records.
    """

    delta_sound: Share | None
    failure_sound: Share | None
    delta_sample: Share
    played: Share | None
    of_target: NeuronMean | None = None
    of_others: NeuronMean | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "TargetCertificate":
        if self.low is None or self.high is None:
            raise ValueError("a certificate has a lower and an upper limit")
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
    """

    defense: str
    options: dict[str, str]
    averaged: Whole
    neurons: Whole
    louder: Annotated[float, Field(gt=0, le=MOST)]
    clients: Whole
    others: Literal["honest", "planted", "dead"]
    simulated: Whole

    @model_validator(mode="after")
    def _some_of_each(self) -> "InRounds":
        if not min(self.averaged, self.neurons, self.clients, self.simulated) >= 1:
            raise ValueError("a game in rounds has a round, a neuron and a client")
        if self.simulated > self.averaged:
            raise ValueError(f"{self.simulated} rounds simulated, {self.averaged} averaged")
        return self


class GamePoint(Part):
    """The play of one point of a study of games.

    Attributes:
        label: Of the point; empty for the study's own settings.
        settings: Settings by dotted name in which it differs from the study.
        records: What was played with, in words.
        mechanism: What clients did to their records.
        shared_mask: Whether all records of a batch were given the same noise (legacy).
        delta: Probability with which claimed and actual epsilon may be exceeded.
        targets: Records asked about.
        batch: Records in a client's batch.
        certificates: Of the first targets.
        spread: Of the first target's neuron's values; None if none is certified.
        training: Of its neurons; None where it goes through a fixed number of epochs.
        seconds: That this point took.
        rounds: How it was played in rounds; None for a point played by signs.
    """

    label: str
    settings: dict[str, str]
    records: str
    mechanism: str
    shared_mask: bool
    delta: Share = 0.0
    targets: Annotated[int, Field(ge=1, le=int(MOST))]
    batch: Whole
    certificates: list[TargetCertificate] = Field(default_factory=list)
    spread: Spread | None = None
    training: TrainingLength | None = None
    seconds: Seconds = 0.0
    rounds: InRounds | None = None


class PointPlayed(GamePoint):
    """A point with its figures.

    Attributes:
        estimates: Of this point alone.
    """

    estimates: list[Estimate]

    @model_validator(mode="after")
    def _possible(self) -> "PointPlayed":
        self.refuse_impossible()
        return self

    def refuse_impossible(self) -> None:
        """Refuses figures that no games can have, or that are missing.

        Raises:
            ValueError: Which, and why.
        """
        found = {one.metric: one for one in self.estimates}
        if len(found) < len(self.estimates):
            raise ValueError(f"point {self.label[:60]!r} has a figure twice")
        for metric in (*_RATES, PROVEN, *(_OF_ROUNDS if self.rounds else ())):
            one = found.get(metric)
            if one is None or one.value is None:
                raise ValueError(f"point {self.label[:60]!r} has no {metric}")
            if metric in (*_RATES, SIGN_SUCCESS):
                _refuse_uncounted(one)
        if found[SUCCESS].ceiling is None:
            raise ValueError(f"point {self.label[:60]!r} has no largest {SUCCESS}")
        if self.rounds and (self.mechanism != "none" or CLAIMED in found):
            raise ValueError("a point in rounds has a defense and no mechanism")
        _refuse_other_mean(*(found[metric] for metric in _RATES[:3]))
        epochs, training = self.figure(EPOCHS), self.training
        if (epochs is None) != (training is None):
            raise ValueError("epochs are given with the least and the most of them")
        if training is not None:
            refuse_disorder(float(training.least), epochs, float(training.most))
            if training.stopped > self.targets:
                raise ValueError(f"{training.stopped} of {self.targets} targets cannot be")

    def estimate(self, metric: str) -> Estimate | None:
        """The figure of this name; None where there is none."""
        return next((one for one in self.estimates if one.metric == metric), None)

    def figure(self, metric: str) -> float | None:
        """Its value; None likewise, or where it was refused."""
        found = self.estimate(metric)
        return found.value if found else None

    def rate(self, metric: str) -> Rate:
        """A figure that every point has, with both limits.

        Raises:
            KeyError: It is none of these.
        """
        found = self.estimate(metric)
        if found is None or found.value is None or found.low is None or found.high is None:
            raise KeyError(metric)
        return Rate(found.value, found.low, found.high, found.n_members + found.n_nonmembers)

    @property
    def adv(self) -> Rate:
        """Attack success rate: the mean of the two rates below."""
        return self.rate(SUCCESS)

    @property
    def tpr(self) -> Rate:
        """Games with the target in which "in" was said."""
        return self.rate(TRUE_POSITIVES)

    @property
    def tnr(self) -> Rate:
        """Games without it in which "out" was said."""
        return self.rate(TRUE_NEGATIVES)

    @property
    def by_target(self) -> Rate:
        """Games with the target in which the neuron fired for it."""
        return self.rate(FIRES_FOR_TARGET)

    @property
    def by_others(self) -> Rate:
        """Other records for which a neuron fired."""
        return self.rate(FIRES_FOR_OTHERS)

    @property
    def claimed_epsilon(self) -> float | None:
        """As the mechanism's settings name it; None for no mechanism."""
        return self.figure(CLAIMED)

    @property
    def actual_epsilon(self) -> float | None:
        """As its probabilities give it; None where there is no bound."""
        return self.figure(ACTUAL)

    @property
    def proven_epsilon(self) -> float:
        """The least epsilon that the success proves."""
        return self.figure(PROVEN) or 0.0

    @property
    def most(self) -> float:
        """The largest success that the actual epsilon or the noise allows; 1 without a bound."""
        found = self.estimate(SUCCESS)
        return 1.0 if found is None or found.ceiling is None else found.ceiling

    @property
    def refuted(self) -> bool:
        """True if the success contradicts the claimed epsilon."""
        claimed = self.claimed_epsilon
        return claimed is not None and self.proven_epsilon > claimed


def points_played(points: Sequence[GamePoint], estimates: Sequence[Estimate]) -> list[PointPlayed]:
    """Each point with its figures.

    Args:
        points: As they were played.
        estimates: Of a record; those on other topics are left aside.

    Raises:
        ValueError: Two points of one label, figures of no point, or figures that cannot be.
    """
    by_label: dict[str, list[Estimate]] = {point.label: [] for point in points}
    if len(by_label) < len(points):
        raise ValueError("two points have one label")
    for one in estimates:
        if one.topic == GAMES:
            if one.point not in by_label:
                raise ValueError(f"there is no point {one.point[:60]!r} that a figure is of")
            by_label[one.point].append(one)
    return [
        PointPlayed.model_construct(**dict(point), estimates=by_label[point.label])
        for point in points
    ]


def _refuse_uncounted(one: Estimate) -> None:
    """Refuses a rate without both limits, or that is no share of whole numbers."""
    if one.low is None or one.high is None:
        raise ValueError(f"{one.metric} has no limits")
    total = one.n_members + one.n_nonmembers
    if total < 1:
        raise ValueError(f"{one.metric} is of no game")
    of_one_kind = one.metric not in (SUCCESS, SIGN_SUCCESS)
    value = one.value or 0.0
    if of_one_kind and abs(round(value * total) / total - value) > _SAME:
        raise ValueError(f"no whole number of {total} is a share of {value}")


def _refuse_other_mean(adv: Estimate, tpr: Estimate, tnr: Estimate) -> None:
    if abs(((tpr.value or 0.0) + (tnr.value or 0.0)) / 2 - (adv.value or 0.0)) > _SAME:
        raise ValueError(
            f"{SUCCESS} is the mean of both rates, {tpr.value} and {tnr.value}, and not {adv.value}"
        )


_SAME = 1e-9
