"""Catalogue of metrics, and functions that compute them from an attack's scores.

Each metric is computed for one or more *contrasts*. A contrast is the group of non-members with
which members are compared: samples of other clients ("other_client"), held-out samples ("unseen"),
or both ("mixed").
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int, Shaped

from fedaudit.core.display import describe, repr_html
from fedaudit.core.errors import BadInput, custom_code, unknown_name
from fedaudit.core.importing import location_of, look_up
from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY, TPR, Origin, tpr_at
from fedaudit.metrics.balanced import held_out_balanced_accuracy
from fedaudit.metrics.delong import auc_interval
from fedaudit.metrics.intervals import Limits, format_percent, require_confidence
from fedaudit.metrics.rate_limits import (
    limits_at_threshold,
    nonmember_shortage,
    tpr_limits,
    true_fpr_range,
)
from fedaudit.metrics.roc import (
    allowed_false_positives,
    as_array,
    as_origins,
    as_scores,
    raise_if_misaligned,
    tpr_at_fpr,
)
from fedaudit.metrics.significance import auc_p_value, tpr_p_value
from fedaudit.metrics.stratified import scale_within_strata, stratified_auc, stratified_auc_p_value

ScoreFunction: TypeAlias = Callable[
    [Float[np.ndarray, " samples"], Bool[np.ndarray, " samples"]], float
]
"""Function that computes a number from scores (larger for likelier members) and membership."""

_FEWEST_FOR_BOOTSTRAP = 10
"""Fewest members, and fewest non-members, for a bootstrap interval."""


@dataclass(frozen=True, kw_only=True, repr=False)
class MetricValue(Limits[float | None]):
    """Value of a metric on one set of scores, with the fields that a result stores.

    Attributes:
        contrast: Group of non-members with which members are compared: "other_client", "unseen" or
            "mixed".
        metric: Name of the metric, such as "auc", "tpr@0.01" or "balanced_accuracy".
        value: The metric's value; None if it was not computed. The limits are None if there is no
            interval, for example for a rate with too few non-members.
        n_members: Number of members from which the value was computed.
        n_nonmembers: Number of non-members from which the value was computed.
        realised_fpr: Empirical false-positive rate, for metrics that use a threshold.
        low_at_threshold: For a true-positive rate, lower Clopper-Pearson limit of the fraction of
            members above the empirical threshold. It ignores the error of this threshold.
        high_at_threshold: The upper limit of the same fraction.
        ceiling: Value that a perfect attack would have.
        note: Why the value was not computed, or a caveat.
        p_value: One-sided p-value against chance level, before the correction for multiple tests.
            None for metrics other than the AUC and the true-positive rates.

    Examples:
        >>> from fedaudit.metrics import evaluate
        >>> figures = evaluate([3, 1, 2, 0], [True, True, False, False], contrasts=["unseen"])
        >>> figures[0].metric, figures[0].value
        ('auc', 0.75)
    """

    contrast: str
    metric: str
    value: float | None
    n_members: int = 0
    n_nonmembers: int = 0
    realised_fpr: float | None = None
    low_at_threshold: float | None = None
    high_at_threshold: float | None = None
    ceiling: float | None = None
    note: str = ""
    p_value: float | None = None

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)


@dataclass(frozen=True)
class Contrast:
    """Scores of members and of the non-members with which they are compared.

    Attributes:
        name: Name of the contrast: "other_client", "unseen" or "mixed".
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        confidence: Confidence of every interval, in (0, 1).
        rng: Draws bootstrap resamples and splits of the samples.
        fprs: False-positive rates at which true-positive rates are reported.
        note: States which origin of non-members has no samples; empty if all have.
        strata: The stratum of each sample, if members are only compared with non-members of their
            stratum. Scores are then scaled within strata.
    """

    name: str
    scores: Float[np.ndarray, " samples"]
    is_member: Bool[np.ndarray, " samples"]
    confidence: float
    rng: np.random.Generator
    fprs: Sequence[float] = ()
    note: str = ""
    strata: Shaped[np.ndarray, " samples"] | None = None

    @property
    def n_members(self) -> int:
        """Number of members."""
        return int(self.is_member.sum())

    @property
    def n_nonmembers(self) -> int:
        """Number of non-members."""
        return len(self.is_member) - self.n_members

    def metric_value(self, metric: str, **fields: Any) -> MetricValue:
        """Return a metric's value that was computed from all samples of the contrast."""
        return MetricValue(
            contrast=self.name,
            metric=metric,
            n_members=self.n_members,
            n_nonmembers=self.n_nonmembers,
            **fields,
        )

    def missing_value(self, metric: str, note: str) -> MetricValue:
        """Return an entry for a metric that was not computed, with the reason in ``note``."""
        return self.metric_value(metric, value=None, low=None, high=None, note=note)


@dataclass(frozen=True)
class Metric:
    """Metric of an attack's scores with a bootstrap interval.

    Members and non-members are resampled separately, since a study fixes both numbers.

    Attributes:
        function: Computes the metric from scores and membership. It is called once for each
            resample.
        about: Description in one sentence.
        resamples: Number of bootstrap resamples.

    Examples:
        >>> from fedaudit.metrics import Metric
        >>> import numpy as np
        >>> gap = Metric(lambda scores, truth: scores[truth].mean() - scores[~truth].mean())
        >>> float(gap.function(np.array([3.0, 2.0, 1.0]), np.array([True, True, False])))
        1.5
    """

    function: ScoreFunction
    about: str = field(default="", compare=False)
    resamples: int = 1000

    def evaluate(self, name: str, contrast: Contrast) -> list[MetricValue]:
        """Compute the metric with its bootstrap interval.

        Raises:
            BadInput: The metric returns a number that is not finite.
        """
        members, nonmembers = contrast.n_members, contrast.n_nonmembers
        if min(members, nonmembers) < _FEWEST_FOR_BOOTSTRAP:
            note = (
                f"inconclusive: {members} members and {nonmembers} non-members; a bootstrap needs "
                f"{_FEWEST_FOR_BOOTSTRAP} of each"
            )
            return [contrast.missing_value(name, note)]
        value, low, high = bootstrap_interval(
            self,
            contrast.scores,
            contrast.is_member,
            rng=contrast.rng,
            confidence=contrast.confidence,
            name=name,
        )
        method = (
            f"bootstrap (bias-corrected, {self.resamples}), {format_percent(contrast.confidence)}"
        )
        return [contrast.metric_value(name, value=value, low=low, high=high, method=method)]


@dataclass(frozen=True)
class ExactMetric:
    """Metric whose interval is computed without resampling.

    Attributes:
        compute: Computes the metric's values for a contrast.
        about: Description in one sentence.
    """

    compute: Callable[[Contrast], list[MetricValue]]
    about: str = field(compare=False)

    def evaluate(self, name: str, contrast: Contrast) -> list[MetricValue]:
        """Compute the metric's values. ``compute`` determines their names; ``name`` is not used."""
        return self.compute(contrast)


def _auc(contrast: Contrast) -> list[MetricValue]:
    scores, is_member, strata = contrast.scores, contrast.is_member, contrast.strata
    confidence = contrast.confidence
    if strata is None:
        interval = auc_interval(scores, is_member, confidence=confidence)
        p_value = auc_p_value(scores, is_member)
    else:
        interval = stratified_auc(scores, is_member, strata, confidence=confidence)
        p_value = stratified_auc_p_value(scores, is_member, strata)
    return [contrast.metric_value(AUC, **asdict(interval), note=contrast.note, p_value=p_value)]


def _tpr(contrast: Contrast, fpr: float) -> MetricValue:
    metric = tpr_at(fpr)
    shortage = nonmember_shortage(fpr, contrast.n_nonmembers)
    if shortage:
        return contrast.missing_value(metric, shortage)
    scores, is_member, confidence = contrast.scores, contrast.is_member, contrast.confidence
    point = tpr_at_fpr(scores, is_member, fpr)
    limits = tpr_limits(scores, is_member, fpr, confidence=confidence)
    at_threshold = limits_at_threshold(scores, is_member, fpr, confidence=confidence)
    true_fpr = true_fpr_range(fpr, contrast.n_nonmembers, confidence=confidence)
    note = (
        f"{point.true_positives} true and {point.false_positives} false positives; this "
        f"threshold's true false-positive rate is at most {true_fpr.high:.2%} (upper end of a "
        f"{format_percent(confidence)} range)"
    )
    if limits.needs:
        note += f"; a lower limit needs {limits.needs} more non-members"
    return contrast.metric_value(
        metric,
        value=point.tpr,
        low=None if limits.needs else limits.low,
        high=limits.high,
        method=limits.method,
        realised_fpr=point.realised_fpr,
        low_at_threshold=at_threshold.low,
        high_at_threshold=at_threshold.high,
        note=note,
        p_value=tpr_p_value(
            point.true_positives,
            contrast.n_members,
            allowed=allowed_false_positives(fpr, contrast.n_nonmembers),
            nonmembers=contrast.n_nonmembers,
        ),
    )


def _balanced_accuracy(contrast: Contrast) -> list[MetricValue]:
    if min(contrast.n_members, contrast.n_nonmembers) < 2:
        note = "inconclusive: a held-out threshold needs 2 samples per side"
        return [contrast.missing_value(BALANCED_ACCURACY, note)]
    held_out = held_out_balanced_accuracy(
        contrast.scores, contrast.is_member, rng=contrast.rng, confidence=contrast.confidence
    )
    fields = asdict(held_out)
    del fields["threshold"]
    return [MetricValue(contrast=contrast.name, metric=BALANCED_ACCURACY, **fields)]


def average_precision(
    scores: Float[np.ndarray, " samples"], is_member: Bool[np.ndarray, " samples"]
) -> float:
    """Compute the average precision: the area under the precision-recall curve.

    Samples with equal scores are flagged together.
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    is_last_of_tie = np.append(ordered[1:] != ordered[:-1], True)
    n_flagged = 1 + np.flatnonzero(is_last_of_tie)
    n_found = np.cumsum(is_member[order])[is_last_of_tie]
    recall_steps = np.diff(n_found, prepend=0) / n_found[-1]
    return float(recall_steps @ (n_found / n_flagged))


def partial_auc(
    scores: Float[np.ndarray, " samples"], is_member: Bool[np.ndarray, " samples"]
) -> float:
    """Compute the area under the ROC curve up to an FPR of 0.1, scaled to a chance level of 0.5.

    Source: McClish 1989 (standardised partial area).
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(is_member, scores, max_fpr=0.1))


METRICS: dict[str, ExactMetric | Metric] = {
    AUC: ExactMetric(_auc, "Area under the ROC curve; chance level is 0.5."),
    TPR: ExactMetric(
        lambda contrast: [_tpr(contrast, fpr) for fpr in contrast.fprs],
        "True-positive rate at each false-positive rate in figures.fprs; chance level is the "
        "false-positive rate.",
    ),
    BALANCED_ACCURACY: ExactMetric(
        _balanced_accuracy,
        "Mean of the true-positive and the true-negative rate on one half of the samples, at a "
        "threshold chosen on the other half; chance level is 0.5.",
    ),
    "average_precision": Metric(
        average_precision,
        "Area under the precision-recall curve; chance level is the proportion of members.",
    ),
    "partial_auc": Metric(
        partial_auc,
        "Area under the ROC curve up to a false-positive rate of 0.1, scaled so that chance level "
        "is 0.5. Its interval takes about ten seconds for each attack, kind of non-members, client "
        "and seed.",
    ),
}
"""All metrics of the catalogue by name."""

STANDARD_METRICS = (AUC, TPR, BALANCED_ACCURACY)
"""Metrics that :func:`evaluate` computes, in this order. A study adds further metrics with its
setting ``figures.metrics``."""


def bootstrap_interval(
    metric: Metric,
    scores: Float[np.ndarray, " samples"],
    is_member: Bool[np.ndarray, " samples"],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    name: str = "the metric",
) -> tuple[float, float, float]:
    """Compute a metric's value, and the limits of its bias-corrected bootstrap interval.

    Args:
        metric: The metric.
        scores: One score per sample.
        is_member: Whether each sample is a member.
        rng: Draws the resamples.
        confidence: Two-sided confidence, in (0, 1).
        name: Name of the metric, for error messages.

    Raises:
        BadInput: The metric returns a number that is not finite.

    Source: Efron & Tibshirani 1993, section 14.3, without the acceleration constant.
    """
    value = _finite_value(metric, scores, is_member, name)
    groups = [np.flatnonzero(is_member), np.flatnonzero(~is_member)]
    resampled = np.empty(metric.resamples)
    for index in range(metric.resamples):
        positions = np.concatenate([rng.choice(group, len(group)) for group in groups])
        resampled[index] = _finite_value(metric, scores[positions], is_member[positions], name)
    # Resamples that equal the value count half. Otherwise, metrics with few distinct values would
    # have no lower limit.
    fraction_below = ((resampled < value).mean() + (resampled <= value).mean()) / 2
    # The fraction is kept off 0 and 1, where the normal quantile is infinite.
    largest = 1 - 0.5 / metric.resamples
    normal = NormalDist()
    bias = normal.inv_cdf(float(np.clip(fraction_below, 1 - largest, largest)))
    tail = normal.inv_cdf((1 - confidence) / 2)
    percentiles = [normal.cdf(2 * bias + tail), normal.cdf(2 * bias - tail)]
    low, high = np.quantile(resampled, percentiles)
    return value, min(float(low), value), max(float(high), value)


def _finite_value(
    metric: Metric,
    scores: Float[np.ndarray, " samples"],
    is_member: Bool[np.ndarray, " samples"],
    name: str,
) -> float:
    with custom_code(partial(_metric_error, name, len(scores))):
        value = float(metric.function(scores, is_member))
    if not np.isfinite(value):
        raise BadInput(
            f"the metric {name!r} is {value} on {len(scores)} samples; it must return a finite "
            "number for any scores and membership"
        )
    return value


def _metric_error(name: str, count: int, error: Exception, described: str) -> BadInput:
    return BadInput(
        f"the metric {name!r} fails on {count} samples ({described}, {location_of(error)}); it is "
        "called with an array of scores and an array of booleans, True for members, and returns a "
        "number"
    )


def resolve_metric(name: str) -> ExactMetric | Metric:
    """Return a metric by its name in the catalogue, in an installed package or in the user's code.

    A custom metric is called once with test scores, so that errors appear before training.

    Raises:
        BadInput: The name is unknown, the metric is a standard metric, or a custom metric fails.
    """
    if name in STANDARD_METRICS:
        raise BadInput(
            f"every evaluation computes the metric {name!r}; leave it out of figures.metrics"
        )
    metric: ExactMetric | Metric | ScoreFunction = look_up(
        "metric",
        name,
        METRICS,
        expected="a fedaudit.metrics.Metric, or a function of scores and membership",
        is_valid=lambda value: isinstance(value, ExactMetric | Metric) or callable(value),
    )
    if isinstance(metric, ExactMetric):
        return metric
    custom = metric if isinstance(metric, Metric) else Metric(metric)
    if name not in METRICS:
        is_member = np.arange(20) % 2 == 0
        _finite_value(custom, np.linspace(-1, 1, 20), is_member, name)
    return custom


CONTRASTS: dict[str, tuple[Origin, ...]] = {
    "other_client": (Origin.OTHER_CLIENT,),
    "unseen": (Origin.UNSEEN,),
    "mixed": (Origin.OTHER_CLIENT, Origin.UNSEEN),
}
"""Origins of the non-members in each contrast, by the contrast's name."""


def evaluate(
    scores: npt.ArrayLike,
    origin: npt.ArrayLike,
    *,
    fprs: Sequence[float] = (0.01, 0.001),
    seed: int = 0,
    confidence: float = 0.95,
    origin_codes: bool = False,
    contrasts: Sequence[str] = tuple(CONTRASTS),
    strata: npt.ArrayLike | None = None,
) -> list[MetricValue]:
    """Compute the standard metrics of one attack on one target client, for each contrast.

    A contrast is a group of non-members: samples of other clients, held-out samples, or both. For
    each contrast, the metrics are the AUC, the true-positive rate at each false-positive rate, and
    the balanced accuracy at a held-out threshold. The AUC of a contrast without samples is None,
    and so is a rate with too few samples; ``note`` then states the reason. The threshold of a rate
    is estimated on the same non-members. The rate's limits include the error of this estimate.

    Args:
        scores: One score per sample, larger for likelier members.
        origin: Booleans, True for members and False for unseen samples, or the origin of each
            sample: ``Origin`` values, their names, or their numbers if a 2 is among these.
        fprs: False-positive rates at which true-positive rates are computed, each in (0, 1].
        seed: Seed of the random split for the balanced accuracy, 0 or larger.
        confidence: Confidence of every interval, in (0, 1).
        origin_codes: Whether numbers are ``Origin`` values even if no 2 is among them. If False,
            numbers that are only 0 and 1 raise an error, since 1 often means a member but
            ``Origin.MEMBER`` is 0.
        contrasts: Names of contrasts in ``CONTRASTS``.
        strata: The stratum of each sample, such as the client that drew its membership. Each
            member is then only compared with non-members of its stratum. The AUC is computed from
            pairs within strata. Rates and the balanced accuracy are computed from scores that are
            scaled within each stratum.

    Raises:
        BadInput: Lengths differ, a score is NaN, an origin is unknown or ambiguous, there are no
            members or no non-members, or no stratum has both.

    Examples:
        >>> from fedaudit import evaluate
        >>> figures = evaluate([0.9, 0.8, 0.1, 0.2], [True, True, False, False], fprs=(0.5,))
        >>> unseen = [figure for figure in figures if figure.contrast == "unseen"]
        >>> unseen[0].metric, unseen[0].value
        ('auc', 1.0)
    """
    require_confidence(confidence)
    _raise_if_unknown(contrasts)
    values = as_scores(scores)
    raise_if_misaligned(scores, origin)
    origins = as_origins(origin, len(values), codes=origin_codes)
    n_members = int((origins == Origin.MEMBER).sum())
    if n_members in (0, len(values)):
        raise BadInput(
            f"both members and non-members are needed, got {n_members} members among "
            f"{len(values)} samples"
        )
    if seed < 0:
        raise BadInput(f"a seed is 0 or larger, got {seed}")
    metric_values: list[MetricValue] = []
    if strata is not None:
        values = scale_within_strata(values, strata)
    for index, name in enumerate(CONTRASTS):
        if name not in contrasts:
            continue
        rng = np.random.default_rng([seed, index])
        contrast = _select_contrast(name, values, origins, rng, confidence, fprs, strata)
        if contrast.n_nonmembers:
            for metric in STANDARD_METRICS:
                metric_values += METRICS[metric].evaluate(metric, contrast)
        else:
            metric_values.append(contrast.missing_value(AUC, contrast.note))
    return metric_values


def evaluate_metric(
    name: str,
    metric: ExactMetric | Metric,
    scores: npt.ArrayLike,
    origin: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    origin_codes: bool = False,
    contrasts: Sequence[str] = tuple(CONTRASTS),
) -> list[MetricValue]:
    """Compute one metric of one attack on one target client, for each contrast.

    Args:
        name: Name of the metric in the result.
        metric: The metric.
        scores: One score per sample, larger for likelier members.
        origin: As in :func:`evaluate`.
        rng: Draws the resamples.
        confidence: Confidence of the interval, in (0, 1).
        origin_codes: As in :func:`evaluate`.
        contrasts: Names of contrasts in ``CONTRASTS``.

    Raises:
        BadInput: The metric returns a number that is not finite.
    """
    _raise_if_unknown(contrasts)
    values = as_scores(scores)
    origins = as_origins(origin, len(values), codes=origin_codes)
    metric_values: list[MetricValue] = []
    for contrast_name in CONTRASTS:
        if contrast_name in contrasts:
            contrast = _select_contrast(contrast_name, values, origins, rng, confidence)
            metric_values += metric.evaluate(name, contrast)
    return metric_values


def _select_contrast(
    name: str,
    scores: Float[np.ndarray, " samples"],
    origins: Int[np.ndarray, " samples"],
    rng: np.random.Generator,
    confidence: float,
    fprs: Sequence[float] = (),
    strata: npt.ArrayLike | None = None,
) -> Contrast:
    selected = np.isin(origins, [Origin.MEMBER, *CONTRASTS[name]])
    return Contrast(
        name,
        scores[selected],
        origins[selected] == Origin.MEMBER,
        confidence,
        rng,
        fprs,
        _missing_origins(origins, CONTRASTS[name]),
        None if strata is None else as_array(strata)[selected],
    )


def _raise_if_unknown(contrasts: Sequence[str]) -> None:
    for name in contrasts:
        if name not in CONTRASTS:
            raise unknown_name("contrast", name, list(CONTRASTS))


def _missing_origins(origins: Int[np.ndarray, " samples"], expected: tuple[Origin, ...]) -> str:
    """Return a note on the expected origins that have no samples; empty if all have samples."""
    present_origins = [origin for origin in expected if (origins == origin).any()]
    missing_names = [origin.name.lower() for origin in expected if origin not in present_origins]
    if not missing_names:
        return ""
    if not present_origins:
        return f"no {' or '.join(missing_names)} samples to compare members with"
    return f"the same as {present_origins[0].name.lower()}: no {missing_names[0]} samples"
