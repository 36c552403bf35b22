"""Security games in a record: how each point was played, and its figures as estimates.

A figure of a point has the topic "games" and the point's label. ``n_members`` of its games had the
target in the batch, and ``n_nonmembers`` did not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaudit.core.limits import Limited
from fedaudit.results.estimate import SUCCESS_RATE, Estimate
from fedaudit.results.fields import (
    LARGEST,
    Count,
    Finite,
    Limits,
    Part,
    Seconds,
    Share,
    refuse_disorder,
)

DETECTOR = "detector"
"""Topic of a detector's figures."""

SIGN_AUC = "auc"
"""Probability that a planted model looks more suspicious than an honest one, of any runs."""
OWN_AUC = "own_auc"
"""``SIGN_AUC`` if the target is among the client's own records."""
OTHERS_AUC = "others_auc"
"""``SIGN_AUC`` if the target is not among the client's own records."""
DETECTED = "detection_rate"
"""Share of planted models that are detected at the threshold."""
FALSE_ALARMS = "false_alarm_rate"
"""Share of honest models that are reported as planted at the threshold."""
SERVER_SUCCESS = "attack_success_rate"
"""Attack success rate (Adv) of a kind of server with such neurons, by the records that they fire
for."""
HONEST_ACCURACY = "accuracy"
"""Accuracy of the honest models of the last rounds on the server's records."""

_OF_A_SIGN = (SIGN_AUC, OWN_AUC, OTHERS_AUC, DETECTED, FALSE_ALARMS)


class Outline(Part):
    """Counts of weights in each bin.

    Attributes:
        server: How neurons were planted; empty for weights of honest models.
        counts: One count for each bin.
    """

    server: Annotated[str, Field(max_length=60)]
    counts: Annotated[list[Count], Field(max_length=200)]


class WeightSpread(Part):
    """Weights of the first-layer units that a server replaces, before and after.

    Attributes:
        edges: Edges of the bins, ascending; weights beyond the ends are in the outer bins.
        outlines: Counts for the honest models and for each kind of server.
    """

    edges: Annotated[list[Finite], Field(min_length=2, max_length=201)]
    outlines: Annotated[list[Outline], Field(max_length=10)]

    @model_validator(mode="after")
    def _bins(self) -> "WeightSpread":
        if any(len(outline.counts) != len(self.edges) - 1 for outline in self.outlines):
            raise ValueError("bins lie between the edges")
        if sorted(self.edges) != self.edges:
            raise ValueError("edges ascend")
        return self


class Detector(Part):
    """Detection of planted models by a client, measured on real federations.

    Attributes:
        federation: How the federations were trained, in words.
        runs: Number of runs.
        judged: Runs that figures at a threshold are from; the threshold was chosen on the others.
        honest: Number of honest models.
        planted: Models with a planted neuron, for each kind of server.
        own: The client's own records with which it inspects models.
        weights: Distribution of the weights.
        seconds: Duration of the measurement.
    """

    federation: Annotated[str, Field(max_length=400)]
    runs: Count
    judged: Count
    honest: Count
    planted: Count
    own: Count
    weights: WeightSpread | None = None
    seconds: Seconds = 0.0


class Detection(Detector):
    """Detector with its figures.

    Attributes:
        estimates: Figures on its topic alone.
    """

    estimates: list[Estimate]

    @model_validator(mode="after")
    def _possible(self) -> "Detection":
        self.refuse_impossible()
        return self

    def refuse_impossible(self) -> None:
        """Raise ValueError if there is no sign, or a sign lacks a figure that every sign has."""
        signs = self.signs
        if not signs or len(self.estimates) > _MOST_FIGURES:
            raise ValueError(f"a detector has from one sign to {_MOST_FIGURES} figures")
        for (server, sign), by_metric in signs.items():
            for metric in _OF_A_SIGN:
                if metric not in by_metric or by_metric[metric].value is None:
                    raise ValueError(f"sign {sign[:60]!r} of {server[:60]!r} has no {metric}")

    @property
    def signs(self) -> Mapping[tuple[str, str], Mapping[str, Estimate]]:
        """Figures of each server and sign, by their metric."""
        by_sign: dict[tuple[str, str], dict[str, Estimate]] = {}
        for estimate in self.estimates:
            if estimate.group:
                by_sign.setdefault((estimate.attack, estimate.group), {})[estimate.metric] = (
                    estimate
                )
        return by_sign

    def success(self, server: str) -> float | None:
        """Return the success rate for a kind of server; None if it was not measured."""
        return next(
            (
                estimate.value
                for estimate in self.estimates
                if (estimate.metric, estimate.attack, estimate.group)
                == (SERVER_SUCCESS, server, "")
            ),
            None,
        )


_MOST_FIGURES = 2000


def detection(detector: Detector | None, estimates: Sequence[Estimate]) -> Detection | None:
    """Return a record's detector with its figures; None if the record has none."""
    if detector is None:
        return None
    figures = [estimate for estimate in estimates if estimate.topic == DETECTOR]
    return Detection.model_construct(**dict(detector), estimates=figures)


GAMES = "games"
"""Topic of a point's figures."""

SUCCESS = SUCCESS_RATE
"""Attack success rate (Adv): the mean of the two rates below; guessing gives 50%. Its ``ceiling``
is the largest rate that the actual epsilon, or the noise on gradients, allows any server; 1
without a bound."""
TRUE_POSITIVES = "true_positive_rate"
"""Share of games with the target in which the server answered "in". The limits of all rates are for
games like these; they cover new targets only if each game had a different target."""
TRUE_NEGATIVES = "true_negative_rate"
"""Share of games without the target in which the server answered "out"."""
FIRES_FOR_TARGET = "target_activation_rate"
"""Share of games with the target in which the neuron fired for the target."""
FIRES_FOR_OTHERS = "other_activation_rate"
"""Share of other records for which a neuron fired."""
PREDICTED_NEGATIVES = "predicted_true_negative_rate"
"""True-negative rate that these activations predict, target by target."""
CLAIMED = "claimed_epsilon"
"""Epsilon of one record by the mechanism's settings."""
ACTUAL = "actual_epsilon"
"""Epsilon of one record by the mechanism's probabilities; refused if there is no bound."""
PROVEN = "proven_epsilon"
"""Lower bound on the epsilon of a record that the success proves."""
CLAIMED_SUCCESS = "claimed_success_rate"
"""The largest success rate that the claimed epsilon would allow."""
FIT = "fit_auc"
"""AUC of neurons on the rows that they were trained on, mean over targets. Even arbitrary labels
can be memorised, so only :data:`HELD_OUT` shows what neurons know of their targets."""
HELD_OUT = "held_out_auc"
"""AUC of neurons on fresh copies of the targets and other records, which decided nothing before."""
EPOCHS = "epochs"
"""Epochs of training, mean over targets; the longest training for neurons that never stopped
early."""
SIGN_SUCCESS = "sign_success_rate"
"""For games in rounds: success rate of the neurons' signs in the same games, which no upload
shows."""
PLANTED_SHARE = "planted_share"
"""Share of the target's gradient norm that lies in the planted rows, mean over targets."""
DISTANCE = "distance"
"""Largest shift of all uploads by one record, in standard deviations of the noise (mu of Gaussian
DP, with a record replaced)."""
EXPECTED_SUCCESS = "expected_success_rate"
"""Success rate under normal noise alone if neurons with these shares never fire for other
records."""

DESCRIPTIVE_SETTINGS = frozenset({"name", "about", "hours"})
"""Settings that change no game."""

EXACT_METHOD = "Clopper-Pearson 95%"
"""Method of the limits of a share of games."""
SHARED_MASK_METHOD = f"{EXACT_METHOD}, no narrower than Student t over games"
"""Method of these limits if the records of a batch share their noise."""

_RATES = (SUCCESS, TRUE_POSITIVES, TRUE_NEGATIVES, FIRES_FOR_TARGET, FIRES_FOR_OTHERS)
_OF_ROUNDS = (SIGN_SUCCESS, PLANTED_SHARE)


@dataclass(frozen=True)
class Rate(Limited[float]):
    """Share of games, or of records, with both limits.

    Attributes:
        total: Number of games or records.
    """

    total: int

    @property
    def hits(self) -> int:
        """Number of counted games or records."""
        return round(self.value * self.total)


class TrainingLength(Part):
    """Epochs of neurons that stop training once they separate all validation records.

    Attributes:
        least: Fewest epochs of a target.
        most: Most epochs of a target.
        stopped: Targets whose neuron separated all validation records.
    """

    least: Count
    most: Count
    stopped: Count


class NeuronMean(Part):
    """Mean of a neuron's values on independent randomised records.

    Attributes:
        value: The mean.
        values: Number of values.
        sample_width: Largest of these values less the smallest.
        sound_width: Largest possible value less the smallest; None if the range is unbounded.
    """

    value: Finite
    values: Count
    sample_width: Finite
    sound_width: Finite | None


class TargetCertificate(Limits[Share]):
    """Certificate of one target's neuron, from fresh copies and records.

    Attributes:
        delta_sound: Smallest failure probability of AMI's condition on the means, by the range of
            possible values. 1 if nothing is certified, None if the values have no range.
        failure_sound: Probability that one of the two means has the wrong sign, by that range.
        delta_sample: As ``delta_sound``, by the sample's range as in the paper; it is not sound.
        low: Lower limit of the success rate (Adv), with 95% confidence.
        high: Upper limit of the success rate.
        played: Success rate (Adv) in this target's own games; None unless it has games of both
            kinds.
        of_target: The mean on copies of the target.
        of_others: The mean on other records.
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
        edges: Edges of the bins, ascending.
        of_target: Copies of the target in each bin.
        of_others: Other records in each bin.
    """

    edges: list[float]
    of_target: list[Count]
    of_others: list[Count]

    @model_validator(mode="after")
    def _bins(self) -> "Spread":
        if not len(self.of_target) == len(self.of_others) == len(self.edges) - 1:
            raise ValueError("bins of both kinds lie between the edges")
        if sorted(self.edges) != self.edges:
            raise ValueError("edges ascend")
        return self


class InRounds(Part):
    """How a point was played in real rounds.

    Attributes:
        defense: Catalogue name of the defense of every client.
        options: Its settings, as texts.
        averaged: Rounds whose scores were averaged.
        neurons: Copies of the target's neuron that were planted.
        louder: Factor on the neurons' first layer.
        clients: Number of clients whose sum the server saw.
        others: What the other clients were sent.
        simulated: Rounds simulated for each game. They are fewer than ``averaged`` if the noise of
            all rounds was drawn for the score alone.
    """

    defense: str
    options: dict[str, str]
    averaged: Count
    neurons: Count
    louder: Annotated[float, Field(gt=0, le=LARGEST)]
    clients: Count
    others: Literal["honest", "planted", "dead"]
    simulated: Count

    @model_validator(mode="after")
    def _some_of_each(self) -> "InRounds":
        if not min(self.averaged, self.neurons, self.clients, self.simulated) >= 1:
            raise ValueError("a game in rounds has a round, a neuron and a client")
        if self.simulated > self.averaged:
            raise ValueError(f"{self.simulated} rounds simulated, {self.averaged} averaged")
        return self


class GamePoint(Part):
    """How one point of a study of games was played.

    Attributes:
        label: Label of the point; empty for the study's own settings.
        settings: Settings by dotted name in which it differs from the study.
        records: The records in use, in words.
        mechanism: How clients randomised their records.
        shared_mask: True if all records of a batch were given the same noise (legacy).
        delta: Probability with which claimed and actual epsilon may be exceeded.
        targets: Number of audited records.
        batch: Records in a client's batch.
        certificates: Certificates of the first targets.
        spread: Distribution of the first target's neuron's values; None if none is certified.
        training: Training of its neurons; None if the number of epochs is fixed.
        seconds: Duration of this point.
        rounds: How it was played in rounds; None for a point played by signs.
    """

    label: str
    settings: dict[str, str]
    records: str
    mechanism: str
    shared_mask: bool
    delta: Share = 0.0
    targets: Annotated[int, Field(ge=1, le=int(LARGEST))]
    batch: Count
    certificates: list[TargetCertificate] = Field(default_factory=list)
    spread: Spread | None = None
    training: TrainingLength | None = None
    seconds: Seconds = 0.0
    rounds: InRounds | None = None


class PointPlayed(GamePoint):
    """Point with its figures.

    Attributes:
        estimates: Figures of this point alone.
    """

    estimates: list[Estimate]

    @model_validator(mode="after")
    def _possible(self) -> "PointPlayed":
        self.refuse_impossible()
        return self

    def refuse_impossible(self) -> None:
        """Raise ValueError if a figure is impossible or missing."""
        by_metric = {estimate.metric: estimate for estimate in self.estimates}
        if len(by_metric) < len(self.estimates):
            raise ValueError(f"point {self.label[:60]!r} has a figure twice")
        for metric in (*_RATES, PROVEN, *(_OF_ROUNDS if self.rounds else ())):
            estimate = by_metric.get(metric)
            if estimate is None or estimate.value is None:
                raise ValueError(f"point {self.label[:60]!r} has no {metric}")
            if metric in (*_RATES, SIGN_SUCCESS):
                _refuse_uncounted(estimate)
        if by_metric[SUCCESS].ceiling is None:
            raise ValueError(f"point {self.label[:60]!r} has no largest {SUCCESS}")
        if self.rounds and (self.mechanism != "none" or CLAIMED in by_metric):
            raise ValueError("a point in rounds has a defense and no mechanism")
        _refuse_other_mean(*(by_metric[metric] for metric in _RATES[:3]))
        epochs, training = self.figure(EPOCHS), self.training
        if (epochs is None) != (training is None):
            raise ValueError("epochs are given with the least and the most of them")
        if training is not None:
            refuse_disorder(float(training.least), epochs, float(training.most))
            if training.stopped > self.targets:
                raise ValueError(f"{training.stopped} of {self.targets} targets cannot be")

    def estimate(self, metric: str) -> Estimate | None:
        """Return the figure of a metric; None without one."""
        return next((estimate for estimate in self.estimates if estimate.metric == metric), None)

    def figure(self, metric: str) -> float | None:
        """Return the value of a metric; None if it is missing or was refused."""
        estimate = self.estimate(metric)
        return estimate.value if estimate else None

    def rate(self, metric: str) -> Rate:
        """Return a rate that every point has, with both limits, or raise KeyError."""
        rate = self.estimate(metric)
        if rate is None or rate.value is None or rate.low is None or rate.high is None:
            raise KeyError(metric)
        return Rate(rate.value, rate.low, rate.high, rate.n_members + rate.n_nonmembers)

    @property
    def success(self) -> Rate:
        """Attack success rate: the mean of true-positive and true-negative rate."""
        return self.rate(SUCCESS)

    @property
    def tpr(self) -> Rate:
        """Share of games with the target in which the server answered "in"."""
        return self.rate(TRUE_POSITIVES)

    @property
    def tnr(self) -> Rate:
        """Share of games without the target in which the server answered "out"."""
        return self.rate(TRUE_NEGATIVES)

    @property
    def by_target(self) -> Rate:
        """Share of games with the target in which the neuron fired for the target."""
        return self.rate(FIRES_FOR_TARGET)

    @property
    def by_others(self) -> Rate:
        """Share of other records for which a neuron fired."""
        return self.rate(FIRES_FOR_OTHERS)

    @property
    def claimed_epsilon(self) -> float | None:
        """Epsilon by the mechanism's settings; None without a mechanism."""
        return self.figure(CLAIMED)

    @property
    def actual_epsilon(self) -> float | None:
        """Epsilon by the mechanism's probabilities; None without a bound."""
        return self.figure(ACTUAL)

    @property
    def empirical_epsilon(self) -> float:
        """Empirical epsilon: the lower bound on epsilon that the success proves."""
        return self.figure(PROVEN) or 0.0

    @property
    def largest_success(self) -> float:
        """The largest success rate that actual epsilon or noise allows; 1 without a bound."""
        estimate = self.estimate(SUCCESS)
        return 1.0 if estimate is None or estimate.ceiling is None else estimate.ceiling

    @property
    def refuted(self) -> bool:
        """True if the success contradicts the claimed epsilon."""
        claimed = self.claimed_epsilon
        return claimed is not None and self.empirical_epsilon > claimed


def points_played(points: Sequence[GamePoint], estimates: Sequence[Estimate]) -> list[PointPlayed]:
    """Return each point with its figures.

    Args:
        points: The points as they were played.
        estimates: Estimates of a record; those on other topics are ignored.

    Raises:
        ValueError: Two points have one label, or a figure belongs to no point.
    """
    by_label: dict[str, list[Estimate]] = {point.label: [] for point in points}
    if len(by_label) < len(points):
        raise ValueError("two points have one label")
    for estimate in estimates:
        if estimate.topic == GAMES:
            if estimate.point not in by_label:
                raise ValueError(f"there is no point {estimate.point[:60]!r} that a figure is of")
            by_label[estimate.point].append(estimate)
    return [
        PointPlayed.model_construct(**dict(point), estimates=by_label[point.label])
        for point in points
    ]


def _refuse_uncounted(rate: Estimate) -> None:
    """Raise if a rate lacks a limit, or is not a ratio of whole numbers."""
    if rate.low is None or rate.high is None:
        raise ValueError(f"{rate.metric} has no limits")
    total = rate.n_members + rate.n_nonmembers
    if total < 1:
        raise ValueError(f"{rate.metric} is of no game")
    is_single_rate = rate.metric not in (SUCCESS, SIGN_SUCCESS)
    value = rate.value or 0.0
    if is_single_rate and abs(round(value * total) / total - value) > _SAME:
        raise ValueError(f"no whole number of {total} is a share of {value}")


def _refuse_other_mean(adv: Estimate, tpr: Estimate, tnr: Estimate) -> None:
    if abs(((tpr.value or 0.0) + (tnr.value or 0.0)) / 2 - (adv.value or 0.0)) > _SAME:
        raise ValueError(
            f"{SUCCESS} is the mean of both rates, {tpr.value} and {tnr.value}, and not {adv.value}"
        )


_SAME = 1e-9
