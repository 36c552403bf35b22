"""Security games in a record: the settings of each point, and its figures as estimates.

In a game, a server gives a verdict whether its target sample is in a client's batch. A point is a
setting for which many games are played. A figure of a point has the topic "games" and the point's
label; ``n_members`` of its games had the target in the batch, and ``n_nonmembers`` did not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaudit.core.limits import EstimateWithLimits
from fedaudit.results.estimate import SUCCESS_RATE, Estimate
from fedaudit.results.fields import (
    MAX_NUMBER,
    Count,
    Finite,
    Fraction,
    RecordLimits,
    RecordPart,
    Seconds,
    raise_if_limits_unordered,
)

DETECTOR = "detector"
"""Topic of a detector's figures."""

INDICATOR_AUC = "auc"
"""Probability that a model with a planted neuron looks more suspicious than an honest model. The
two models may be of different runs."""
OWN_AUC = "own_auc"
"""``INDICATOR_AUC`` if the target is among the client's own samples."""
OTHERS_AUC = "others_auc"
"""``INDICATOR_AUC`` if the target is not among the client's own samples."""
DETECTION_RATE = "detection_rate"
"""Fraction of models with a planted neuron that are detected at the threshold."""
FALSE_ALARMS = "false_alarm_rate"
"""Fraction of honest models that are reported as planted at the threshold."""
SERVER_SUCCESS = "attack_success_rate"
"""Attack success rate (Adv) of a kind of server with such neurons, computed from the samples for
which the neurons fire."""
HONEST_ACCURACY = "accuracy"
"""Accuracy of the honest models of the last rounds on the server's samples."""

_INDICATOR_METRICS = (INDICATOR_AUC, OWN_AUC, OTHERS_AUC, DETECTION_RATE, FALSE_ALARMS)


class Outline(RecordPart):
    """Histogram of weights.

    Attributes:
        server: Kind of server that planted the neurons; empty for weights of honest models.
        counts: Number of weights in each bin.
    """

    server: Annotated[str, Field(max_length=60)]
    counts: Annotated[list[Count], Field(max_length=200)]


class WeightSpread(RecordPart):
    """Weights of the first-layer units that a server replaces, in honest and in planted models.

    Attributes:
        edges: Edges of the bins, ascending; the outer bins also count weights beyond the ends.
        outlines: Histograms of the honest models and of each kind of server.
    """

    edges: Annotated[list[Finite], Field(min_length=2, max_length=201)]
    outlines: Annotated[list[Outline], Field(max_length=10)]

    @model_validator(mode="after")
    def _validate_bins(self) -> "WeightSpread":
        if any(len(outline.counts) != len(self.edges) - 1 for outline in self.outlines):
            raise ValueError("the number of counts must be that of the edges less one")
        if sorted(self.edges) != self.edges:
            raise ValueError("edges must ascend")
        return self


class Detector(RecordPart):
    """Detection of planted models by a client, measured on simulated federations.

    Attributes:
        federation: Description of how the federations were trained.
        runs: Number of runs.
        judged: Number of runs on which a threshold is evaluated; it was chosen on the other runs.
        honest: Number of honest models.
        planted: Number of models with a planted neuron, for each kind of server.
        own: Number of the client's own samples with which it inspects models.
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
        estimates: Figures of the detector, without any other figures of the record.
    """

    estimates: list[Estimate]

    @model_validator(mode="after")
    def _validate_numbers(self) -> "Detection":
        self.raise_if_impossible()
        return self

    def raise_if_impossible(self) -> None:
        """Raise ValueError if there is no indicator, or an indicator lacks a required estimate.

        An indicator is a quantity by which the client recognises planted models.
        """
        indicators = self.indicators
        if not indicators or len(self.estimates) > _MAX_FIGURES:
            raise ValueError(
                f"a detector must have an indicator, and at most {_MAX_FIGURES} estimates"
            )
        for (server, name), by_metric in indicators.items():
            for metric in _INDICATOR_METRICS:
                if metric not in by_metric or by_metric[metric].value is None:
                    raise ValueError(f"indicator {name[:60]!r} of {server[:60]!r} has no {metric}")

    @property
    def indicators(self) -> Mapping[tuple[str, str], Mapping[str, Estimate]]:
        """Estimates by kind of server and name of the indicator, and then by metric."""
        by_indicator: dict[tuple[str, str], dict[str, Estimate]] = {}
        for estimate in self.estimates:
            if estimate.group:
                key = (estimate.attack, estimate.group)
                by_indicator.setdefault(key, {})[estimate.metric] = estimate
        return by_indicator

    def success(self, server: str) -> float | None:
        """Return the attack success rate of a kind of server; None if it was not measured."""
        return next(
            (
                estimate.value
                for estimate in self.estimates
                if (estimate.metric, estimate.attack, estimate.group)
                == (SERVER_SUCCESS, server, "")
            ),
            None,
        )


_MAX_FIGURES = 2000


def detection(detector: Detector | None, estimates: Sequence[Estimate]) -> Detection | None:
    """Return a record's detector with its figures; None if the record has none."""
    if detector is None:
        return None
    figures = [estimate for estimate in estimates if estimate.topic == DETECTOR]
    return Detection.model_construct(**dict(detector), estimates=figures)


GAMES = "games"
"""Topic of a point's figures."""

SUCCESS = SUCCESS_RATE
"""Attack success rate (Adv): the mean of the true-positive and the true-negative rate; 50% at
chance level. Its ``ceiling`` is the largest rate that the actual epsilon, or the noise on
gradients, allows any server; 1 without a bound."""
TRUE_POSITIVES = "true_positive_rate"
"""Fraction of games with the target in which the server answered "in". The limits of all rates are
for games with these targets; they hold for new targets only if each game had a different target."""
TRUE_NEGATIVES = "true_negative_rate"
"""Fraction of games without the target in which the server answered "out"."""
FIRES_FOR_TARGET = "target_activation_rate"
"""Fraction of games with the target in which the neuron fired for the target."""
FIRES_FOR_OTHERS = "other_activation_rate"
"""Fraction of other samples for which a neuron fired."""
PREDICTED_NEGATIVES = "predicted_true_negative_rate"
"""True-negative rate that is predicted from the activations on other samples, for each target."""
CLAIMED_EPSILON = "claimed_epsilon"
"""Epsilon of one sample by the mechanism's settings."""
ACTUAL_EPSILON = "actual_epsilon"
"""Epsilon of one sample by the mechanism's probabilities; without a value if there is no bound."""
PROVEN_EPSILON = "proven_epsilon"
"""Lower bound on the epsilon of a sample that the success proves."""
CLAIMED_SUCCESS = "claimed_success_rate"
"""The largest success rate that the claimed epsilon would allow."""
FIT_AUC = "fit_auc"
"""AUC of neurons on the rows on which they were trained, mean over targets. Even arbitrary labels
can be memorised, so only :data:`HELD_OUT` shows how well neurons recognise their targets."""
HELD_OUT = "held_out_auc"
"""AUC of neurons on fresh copies of the targets and on other samples, none of which was used in
training or validation."""
EPOCHS = "epochs"
"""Number of epochs of training, mean over targets. A neuron that never stopped early counts with
the maximum number."""
SIGN_SUCCESS = "sign_success_rate"
"""For games in rounds: success rate of the neurons' signs in the same games. No upload shows these
signs."""
PLANTED_SHARE = "planted_share"
"""Fraction of the target's gradient norm that lies in the planted rows, mean over targets."""
DISTANCE = "distance"
"""Largest shift of all uploads by one sample, in standard deviations of the noise (mu of Gaussian
DP, with a sample replaced)."""
EXPECTED_SUCCESS = "expected_success_rate"
"""Success rate that normal noise allows if the neurons never fire for other samples, given
:data:`PLANTED_SHARE`."""

DESCRIPTIVE_SETTINGS = frozenset({"name", "about", "hours"})
"""Settings that have no effect on games."""

EXACT_METHOD = "Clopper-Pearson 95%"
"""Method of the limits of a fraction of games."""
SHARED_MASK_METHOD = f"{EXACT_METHOD}, no narrower than Student t over games"
"""Method of these limits if all samples of a batch have the same noise."""

_RATES = (SUCCESS, TRUE_POSITIVES, TRUE_NEGATIVES, FIRES_FOR_TARGET, FIRES_FOR_OTHERS)
_ROUND_METRICS = (SIGN_SUCCESS, PLANTED_SHARE)


@dataclass(frozen=True)
class Rate(EstimateWithLimits[float]):
    """Fraction of games, or of samples, with both limits.

    Attributes:
        total: Number of all games or samples.
    """

    total: int

    @property
    def hits(self) -> int:
        """Numerator of the fraction."""
        return round(self.value * self.total)


class TrainingLength(RecordPart):
    """Epochs of neurons whose training stops as soon as they separate all validation samples.

    Attributes:
        least: Smallest number of epochs of a target.
        most: Largest number of epochs of a target.
        stopped: Number of targets whose neuron separated all validation samples.
    """

    least: Count
    most: Count
    stopped: Count


class NeuronMean(RecordPart):
    """Mean of a neuron's outputs on independent randomised samples.

    Attributes:
        value: The mean.
        values: Number of outputs.
        observed_width: Difference between the largest and the smallest of these outputs.
        sound_width: Difference between the largest and the smallest possible output; None if the
            outputs are unbounded.
    """

    value: Finite
    values: Count
    observed_width: Finite
    sound_width: Finite | None


class TargetCertificate(RecordLimits[Fraction]):
    """Certificate of one target's neuron, from fresh copies of the target and other samples.

    Attributes:
        delta_sound: Smallest failure probability of AMI's condition on the two means, from the
            range of possible outputs. 1 if nothing is certified, None if the outputs are unbounded.
        failure_sound: Probability that one of the two means has the wrong sign, from the range of
            possible outputs.
        delta_observed: As ``delta_sound``, but from the range of the observed outputs, as in the
            paper. This is not a valid bound.
        low: Lower limit of the success rate (Adv), with 95% confidence.
        high: Upper limit of the success rate.
        played: Success rate (Adv) in this target's own games; None unless some of them have the
            target in the batch and some do not.
        of_target: The mean on copies of the target.
        of_others: The mean on other samples.
    """

    delta_sound: Fraction | None
    failure_sound: Fraction | None
    delta_observed: Fraction
    played: Fraction | None
    of_target: NeuronMean | None = None
    of_others: NeuronMean | None = None

    @model_validator(mode="after")
    def _validate_limits(self) -> "TargetCertificate":
        if self.low is None or self.high is None:
            raise ValueError("a certificate must have a lower and an upper limit")
        raise_if_limits_unordered(self.low, None, self.high)
        return self


class Spread(RecordPart):
    """Histograms of the outputs of the first target's neuron on fresh randomised samples.

    Attributes:
        edges: Edges of the bins, ascending.
        of_target: Number of copies of the target in each bin.
        of_others: Number of other samples in each bin.
    """

    edges: list[float]
    of_target: list[Count]
    of_others: list[Count]

    @model_validator(mode="after")
    def _validate_bins(self) -> "Spread":
        if not len(self.of_target) == len(self.of_others) == len(self.edges) - 1:
            raise ValueError("the number of counts must be that of the edges less one")
        if sorted(self.edges) != self.edges:
            raise ValueError("edges must ascend")
        return self


class InRounds(RecordPart):
    """Settings of a point whose games were played in rounds of federated learning.

    Attributes:
        defense: Catalogue name of the defense of every client.
        options: Settings of the defense, as texts.
        averaged: Number of rounds whose scores were averaged.
        neurons: Number of planted copies of the target's neuron.
        louder: Factor on the weights of the neurons' first layer.
        clients: Number of clients whose uploads were summed before the server saw them.
        others: Kind of model that the other clients received.
        simulated: Number of rounds that were simulated for each game. It is smaller than
            ``averaged`` if the noise of all rounds was drawn once, for the averaged score.
    """

    defense: str
    options: dict[str, str]
    averaged: Count
    neurons: Count
    louder: Annotated[float, Field(gt=0, le=MAX_NUMBER)]
    clients: Count
    others: Literal["honest", "planted", "dead"]
    simulated: Count

    @model_validator(mode="after")
    def _validate_counts(self) -> "InRounds":
        if not min(self.averaged, self.neurons, self.clients, self.simulated) >= 1:
            raise ValueError("a game in rounds must have a round, a neuron and a client")
        if self.simulated > self.averaged:
            raise ValueError(
                f"{self.simulated} rounds were simulated, but only {self.averaged} averaged"
            )
        return self


class GamePoint(RecordPart):
    """Settings and certificates of one point of a study of games.

    Attributes:
        label: Label of the point; empty for the study's own settings.
        settings: Settings of the point that differ from the study's own, by dotted name.
        samples: Description of the samples that were used.
        mechanism: How clients randomised their samples.
        shared_mask: True if all samples of a batch had the same noise (legacy).
        delta: Probability with which claimed and actual epsilon may be exceeded.
        targets: Number of audited samples.
        batch: Number of samples in a client's batch.
        certificates: Certificates of the first targets.
        spread: Outputs of the first target's neuron; None if no target has a certificate.
        training: Length of the neurons' training; None if the number of epochs is fixed.
        seconds: Duration of this point.
        rounds: Settings of games in rounds; None if the server sees the signs of neurons.
    """

    label: str
    settings: dict[str, str]
    samples: str
    mechanism: str
    shared_mask: bool
    delta: Fraction = 0.0
    targets: Annotated[int, Field(ge=1, le=int(MAX_NUMBER))]
    batch: Count
    certificates: list[TargetCertificate] = Field(default_factory=list)
    spread: Spread | None = None
    training: TrainingLength | None = None
    seconds: Seconds = 0.0
    rounds: InRounds | None = None


class PointPlayed(GamePoint):
    """Point with its figures.

    Attributes:
        estimates: Figures of this point, without those of other points.
    """

    estimates: list[Estimate]

    @model_validator(mode="after")
    def _validate_numbers(self) -> "PointPlayed":
        self.raise_if_impossible()
        return self

    def raise_if_impossible(self) -> None:
        """Raise ValueError if a figure is impossible or missing."""
        by_metric = {estimate.metric: estimate for estimate in self.estimates}
        if len(by_metric) < len(self.estimates):
            raise ValueError(f"point {self.label[:60]!r} has two figures of one metric")
        for metric in (*_RATES, PROVEN_EPSILON, *(_ROUND_METRICS if self.rounds else ())):
            estimate = by_metric.get(metric)
            if estimate is None or estimate.value is None:
                raise ValueError(f"point {self.label[:60]!r} has no {metric}")
            if metric in (*_RATES, SIGN_SUCCESS):
                _raise_if_impossible_rate(estimate)
        if by_metric[SUCCESS].ceiling is None:
            raise ValueError(f"point {self.label[:60]!r} has no ceiling of {SUCCESS}")
        if self.rounds and (self.mechanism != "none" or CLAIMED_EPSILON in by_metric):
            raise ValueError("a point in rounds must have a defense and no mechanism")
        _raise_if_wrong_mean(*(by_metric[metric] for metric in _RATES[:3]))
        epochs, training = self.figure(EPOCHS), self.training
        if (epochs is None) != (training is None):
            raise ValueError("the mean number of epochs needs its minimum and maximum")
        if training is not None:
            raise_if_limits_unordered(float(training.least), epochs, float(training.most))
            if training.stopped > self.targets:
                raise ValueError(f"{training.stopped} targets stopped, of only {self.targets}")

    def estimate(self, metric: str) -> Estimate | None:
        """Return the value of a metric; None if it was not estimated."""
        return next((estimate for estimate in self.estimates if estimate.metric == metric), None)

    def figure(self, metric: str) -> float | None:
        """Return the value of a metric; None if it is missing."""
        estimate = self.estimate(metric)
        return estimate.value if estimate else None

    def rate(self, metric: str) -> Rate:
        """Return a rate that every point has, with both limits.

        Raises:
            KeyError: The point has no such rate, or the rate has no limits.
        """
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
        """Fraction of games with the target in which the server answered "in"."""
        return self.rate(TRUE_POSITIVES)

    @property
    def tnr(self) -> Rate:
        """Fraction of games without the target in which the server answered "out"."""
        return self.rate(TRUE_NEGATIVES)

    @property
    def by_target(self) -> Rate:
        """Fraction of games with the target in which the neuron fired for the target."""
        return self.rate(FIRES_FOR_TARGET)

    @property
    def by_others(self) -> Rate:
        """Fraction of other samples for which a neuron fired."""
        return self.rate(FIRES_FOR_OTHERS)

    @property
    def claimed_epsilon(self) -> float | None:
        """Epsilon by the mechanism's settings; None without a mechanism."""
        return self.figure(CLAIMED_EPSILON)

    @property
    def actual_epsilon(self) -> float | None:
        """Epsilon by the mechanism's probabilities; None without a bound."""
        return self.figure(ACTUAL_EPSILON)

    @property
    def empirical_epsilon(self) -> float:
        """Empirical epsilon: the lower bound on epsilon that the success proves."""
        return self.figure(PROVEN_EPSILON) or 0.0

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
        points: Points without figures.
        estimates: Estimates of a record; those on other topics are ignored.

    Raises:
        ValueError: Two points have the same label, or a figure belongs to no point.
    """
    by_label: dict[str, list[Estimate]] = {point.label: [] for point in points}
    if len(by_label) < len(points):
        raise ValueError("two points have the same label")
    for estimate in estimates:
        if estimate.topic == GAMES:
            if estimate.point not in by_label:
                raise ValueError(
                    f"there is no point {estimate.point[:60]!r}, which an estimate names"
                )
            by_label[estimate.point].append(estimate)
    return [
        PointPlayed.model_construct(**dict(point), estimates=by_label[point.label])
        for point in points
    ]


def _raise_if_impossible_rate(rate: Estimate) -> None:
    """Raise unless a rate has both limits and is a fraction of its number of games or samples."""
    if rate.low is None or rate.high is None:
        raise ValueError(f"{rate.metric} has no limits")
    total = rate.n_members + rate.n_nonmembers
    if total < 1:
        raise ValueError(f"{rate.metric} is a rate over 0 games")
    is_single_rate = rate.metric not in (SUCCESS, SIGN_SUCCESS)
    value = rate.value or 0.0
    if is_single_rate and abs(round(value * total) / total - value) > _TOLERANCE:
        raise ValueError(f"{rate.metric} of {value} is no fraction with denominator {total}")


def _raise_if_wrong_mean(adv: Estimate, tpr: Estimate, tnr: Estimate) -> None:
    if abs(((tpr.value or 0.0) + (tnr.value or 0.0)) / 2 - (adv.value or 0.0)) > _TOLERANCE:
        raise ValueError(
            f"{SUCCESS} must be the mean of {tpr.value} and {tnr.value}, but is {adv.value}"
        )


_TOLERANCE = 1e-9
