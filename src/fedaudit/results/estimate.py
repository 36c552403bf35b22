"""Estimates of an audit, with their intervals, tests, coordinates and ranges."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple

from pydantic import Field, PrivateAttr, model_validator

from fedaudit.core.display import repr_html
from fedaudit.results.fields import (
    MAX_NUMBER,
    Count,
    Finite,
    Fraction,
    RecordLimits,
    RecordPart,
    raise_if_limits_unordered,
)

NO_DEFENSE = "none"
"""Name that stands for the absence of a defense."""
FIXED_THRESHOLD_METHOD = "at the threshold used"
"""Method of confidence limits that treat a rate's threshold as fixed. No verdict depends on
them."""
PEOPLE_IGNORED = "people ignored"
"""Ends the method of limits that treat several samples of one person as independent."""
GUESSING = "guessing"
"""Null hypothesis: the attack is at chance level."""
OTHER_CLIENT = "classes of another client"
"""Null hypothesis of label inference: a client's update reveals no more about its classes than
about those of another client."""
LABEL_INFERENCE = "labels"
"""Topic of estimates of label inference, whose unit is a client and a class."""
BOOTSTRAP = "bootstrap"
"""Begins the method of limits from resampled data."""

_FIGURES = "figures"
_NEVER_SHARED = ("metric", "value")
"""Fields that every estimate of a compact entry has itself, so that a short file cannot expand to
millions of estimates."""

SUCCESS_RATE = "attack_success_rate"
"""Fraction of samples whose client a source attack identifies."""

TEST_ACCURACY = "test_accuracy"
TRAIN_ACCURACY = "train_accuracy"
GENERALISATION_GAP = "generalisation_gap"
UPLOAD_GAP = "upload_gap"
"""Estimates of utility. The upload gap is the generalisation gap of each client's model on the
client's own samples, in the last measured round, averaged over clients. It uses uploaded models, or
local models if clients upload none. It is missing if no single upload is observed, mostly in
clustered federations."""

ACCURACY = "accuracy"
MODEL_RISK = "risk of the model"
MODEL_ESTIMATE = "estimated risk of the model"
CLIENT_RISK = "mean risk of a client"
CLIENT_ESTIMATE = "mean estimated risk of a client"
ESTIMATE_ERROR = "error of the estimate"
VIOLATIONS = "violations"
SIGNIFICANT_VIOLATIONS = "sure violations"
EXPECTED_VIOLATIONS = "expected violations"
CHANCE_VIOLATIONS = "violations by chance"
CLIENTS_OF_MODEL = "clients with the model"
MOVED_CLIENTS = "clients that moved"
MOVED_AT_THE_END = "clients that moved at the end"
GROUP_AGREEMENT = "agreement with the groups"
"""Estimates of clustered learning, in addition to the fairness gaps."""

# Estimates that are numbers of clients.
COUNTS = (
    VIOLATIONS,
    SIGNIFICANT_VIOLATIONS,
    EXPECTED_VIOLATIONS,
    CHANCE_VIOLATIONS,
    CLIENTS_OF_MODEL,
    MOVED_CLIENTS,
    MOVED_AT_THE_END,
)
FAIRNESS_GAPS = ("demographic parity", "equal opportunity", "equalised odds")
"""Absolute differences between groups; with many classes the mean over classes."""
_RISKS = (MODEL_RISK, MODEL_ESTIMATE, CLIENT_RISK, CLIENT_ESTIMATE, ESTIMATE_ERROR)
_FRACTION_SUFFIXES = ("auc", "accuracy", "_rate", "_share", "tpr")
_ON_SHARED_TEST_SAMPLES = (TEST_ACCURACY, ACCURACY, *FAIRNESS_GAPS)


class Range(NamedTuple):
    """Range with both ends included."""

    minimum: float
    maximum: float


@lru_cache(maxsize=1024)
def range_of(metric: str) -> Range:
    """Return the range of a metric, such as [0, 1] for rates."""
    if (
        metric.startswith("tpr@")
        or metric.endswith(_FRACTION_SUFFIXES)
        or metric in (*_RISKS, *FAIRNESS_GAPS)
    ):
        return Range(0.0, 1.0)
    if metric in (GENERALISATION_GAP, UPLOAD_GAP, GROUP_AGREEMENT):
        return Range(-1.0, 1.0)
    return Range(0.0 if metric in COUNTS or "epsilon" in metric else -MAX_NUMBER, MAX_NUMBER)


def errors_cancel(metric: str) -> bool:
    """Return True if random errors of several runs cancel in their mean.

    They cancel if each run audits its own samples. False for accuracies and gaps on shared test
    samples, and for rates at a threshold that each run chooses.
    """
    return not metric.startswith("tpr@") and metric not in _ON_SHARED_TEST_SAMPLES


class Coordinates(RecordPart):
    """Description of what an estimate measures. Fields that do not apply keep their default.

    Attributes:
        topic: What was audited: "membership", "source", "clusters", "utility", ...
        algorithm: Name of an algorithm in which clients choose between models; otherwise empty.
        attack: Catalogue name of the attack; empty for an estimate of the run itself.
        defense: Name of the defense that was used; "none" without a defense.
        view: Name of the adversary's view.
        contrast: Non-members with which members are compared: "other_client", "unseen" or "mixed".
            For source inference, the audited samples: "own" for random samples of each client's
            training data, or "fair" for samples of a fair draw, whose labels all have the
            distribution of the target's labels.
        unit: Unit of membership: single samples, or people with all of their samples.
        target: The audited client; None for an estimate over all audited clients together.
        within: What a member and a non-member must have in common to be compared: their "class", or
            the "client" whose random draw decided their membership. Empty if all pairs are
            compared.
        by: Whether samples are grouped by their "class", or by the "client" that holds them; empty
            if they are not grouped.
        group: Name of the group of samples, or of a group of clients.
        point: Label of a point of a sweep, as in a study of games.
        seed: Root seed of the run; None for an estimate over the runs of a study.
    """

    topic: str = "membership"
    algorithm: str = ""
    attack: str = ""
    defense: str = NO_DEFENSE
    view: str = "uploads"
    contrast: str = "mixed"
    unit: Literal["sample", "person"] = "sample"
    target: Count | None = None
    within: Literal["", "class", "client"] = ""
    by: Literal["", "class", "client"] = ""
    group: str = ""
    point: str = ""
    seed: Count | None = None

    @property
    def is_of_attack(self) -> bool:
        """True for an estimate of an attack, False for one of the run, such as a proven epsilon."""
        return bool(self.attack)


class Interval(RecordLimits[Finite]):
    """Confidence limits of an estimate.

    Attributes:
        method: How the limits were computed, with their confidence level, or why there are none.
    """

    method: str = ""


class Difference(Interval):
    """Difference between an estimate of a row and that of its base, on the same clients.

    Attributes:
        runs: Number of seeds that were paired; 0 if the limits are those of a single seed.
        further: Interval for further pairs of runs; None with one seed.
    """

    value: float
    runs: int = 0
    further: Interval | None = None


class Test(RecordPart):
    """Test of whether an estimate exceeds the level of its null hypothesis.

    Attributes:
        null: The null hypothesis, such as "guessing".
        level: Expected estimate under the null hypothesis.
        high: Upper 95% quantile of the estimate under the null hypothesis.
        p_value: Uncorrected p-value. For an estimate over several runs, their p-values are combined
            by Fisher's method. None in records that state only the outcome.
        two_sided: True if the p-value is that of a two-sided test.
        adjusted: The smallest family-wise error level at which the test is significant (Holm).
        significant: Whether the test is significant at the study's significance level, corrected
            for all tests of its family. None if it belongs to no family, such as the test of a
            single run in a study with several runs.
    """

    null: str = GUESSING
    level: Finite | None = None
    high: Finite | None = None
    p_value: Fraction | None = None
    two_sided: bool = False
    adjusted: Fraction | None = None
    significant: bool | None = None


class Estimate(Interval, Coordinates):
    """Estimate of a metric at its coordinates, with intervals and tests.

    Attributes:
        metric: "auc", "tpr@0.01", "balanced_accuracy", "epsilon", "formal_epsilon", ...
        against: For a difference, the name of what is subtracted. One of the tests has it as its
            null hypothesis.
        value: The estimated value; None if it could not be computed.
        low: Lower confidence limit for these runs. None if it could not be computed, for example
            for a rate with too few non-members.
        at_threshold: For a rate, confidence limits of the fraction of members above the threshold
            that was used, whose true false-positive rate may differ from the target rate.
        further: For an estimate over five or more runs, the interval for further runs of the same
            procedure, with runs as units. No verdict depends on it.
        tests: Tests of the null hypotheses that could explain the estimate.
        n_members: Number of members from which the estimate is computed.
        n_nonmembers: Number of non-members from which the estimate is computed.
        samples: Number of samples from which an estimate without members and non-members is
            computed.
        fair: True if one random draw decided between members and non-members, so that they differ
            only in membership. If False, differences between clients or pools of samples may
            contribute to the estimate, and headlines and gates use it only if there is no fair
            estimate.
        labels_alone: AUC of the best score that uses labels and no model, learned on one half of
            the samples and evaluated on the other. None if it was not computed.
        realised_fpr: Actual false-positive rate at the threshold of a rate.
        ceiling: Largest possible value, which a perfect attack has. For numbers of clients, the
            number of all clients.
        note: Why the estimate has no value, or a limitation of it ("inconclusive: needs ...").
    """

    metric: str
    against: str = ""
    value: float | None
    at_threshold: Interval | None = None
    further: Interval | None = None
    tests: list[Test] = Field(default_factory=list)
    n_members: Count = 0
    n_nonmembers: Count = 0
    samples: Count = 0
    fair: bool = True
    labels_alone: Fraction | None = None
    realised_fpr: Fraction | None = None
    ceiling: float | None = None
    note: str = ""
    _doubt: str = PrivateAttr("")

    @model_validator(mode="after")
    def _validate_ranges(self) -> "Estimate":
        minimum, maximum = self.range
        for number in (self.value, self.low, self.high, self.ceiling):
            if number is not None and not minimum <= number <= maximum:
                raise ValueError(f"{number:g} is not in [{minimum:g}, {maximum:g}]")
        # A bootstrap of an absolute difference may leave out the difference itself.
        resampled = self.method.startswith(BOOTSTRAP)
        raise_if_limits_unordered(self.low, None if resampled else self.value, self.high)
        for limits in (self.at_threshold, self.further):
            if limits is not None:
                raise_if_limits_unordered(limits.low, self.value, limits.high)
        return self

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        value = "no value" if self.value is None else f"{self.value:.4g}"
        if self.low is not None or self.high is not None:
            limits = ("-" if limit is None else f"{limit:.4g}" for limit in (self.low, self.high))
            value += f" [{', '.join(limits)}]"
        about = {
            name: getattr(self, name)
            for name, field in Coordinates.model_fields.items()
            if getattr(self, name) != field.default or name == "contrast"
        }
        words = ", ".join(f"{name}={value!r}" for name, value in about.items())
        return f"<Estimate {self.metric} {value}: {words}>"

    def __str__(self) -> str:
        return repr(self)

    @property
    def doubt(self) -> str:
        """The failed control that invalidates this estimate; empty if no control failed.

        It is derived from the controls of a record and is not serialised.
        """
        return self._doubt

    def with_doubt(self, doubt: str) -> "Estimate":
        """Return the estimate marked with the failed control that invalidates it."""
        copy = self.model_copy()
        copy._doubt = doubt
        return copy

    @property
    def number(self) -> float:
        """The value, which must not be None.

        Raises:
            ValueError: The estimate has no value.
        """
        if self.value is None:
            raise ValueError(f"{self.metric} has no value: {self.note}")
        return self.value

    @property
    def range(self) -> Range:
        """The range of possible values."""
        minimum, maximum = range_of(self.metric)
        return Range(minimum - maximum, maximum) if self.against else Range(minimum, maximum)

    def test(self, null: str = "") -> Test | None:
        """Return the test of a null hypothesis, or None if it was not tested.

        Args:
            null: The null hypothesis; by default ``against``, or chance level if that is empty.
        """
        hypothesis = null or self.against or GUESSING
        return next((test for test in self.tests if test.null == hypothesis), None)

    @property
    def significant(self) -> bool | None:
        """Outcome of the estimate's default test after correction; None if untested."""
        test = self.test()
        return None if test is None else test.significant

    @property
    def level(self) -> float | None:
        """Expected estimate under the default test's null hypothesis; None if no test states it."""
        test = self.test()
        return None if test is None else test.level


def tests_of(significant: bool | None) -> list[Test]:
    """Return a list of the test against chance level with this outcome; an empty list for None."""
    return [] if significant is None else [Test(significant=significant)]


def compact_estimates(estimates: Sequence[Estimate]) -> list[dict[str, object]]:
    """Merge consecutive estimates at the same coordinates into entries with their shared fields."""
    return [
        _merge([estimate.model_dump(mode="json", exclude_defaults=True) for estimate in group])
        for _, group in groupby(estimates, key=attrgetter(*Coordinates.model_fields))
    ]


def expand_estimates(entries: object) -> object:
    """Return one entry for each estimate. Validation later refuses input that is not a list."""
    if not isinstance(entries, list):
        return entries
    expanded_entries: list[object] = []
    for entry in entries:
        estimates = entry.get(_FIGURES) if isinstance(entry, Mapping) else None
        if not isinstance(estimates, list):
            expanded_entries.append(entry)
            continue
        shared = {
            name: value for name, value in entry.items() if name not in (_FIGURES, *_NEVER_SHARED)
        }
        expanded_entries += [
            {**shared, **estimate} if isinstance(estimate, Mapping) else estimate
            for estimate in estimates
        ]
    return expanded_entries


def _merge(entries: Sequence[dict[str, object]]) -> dict[str, object]:
    first, *others = entries
    if not others:
        return first
    shared = {
        name: value
        for name, value in first.items()
        if name not in _NEVER_SHARED
        and all(name in entry and entry[name] == value for entry in others)
    }
    estimates = [{k: v for k, v in entry.items() if k not in shared} for entry in entries]
    return {**shared, _FIGURES: estimates}
