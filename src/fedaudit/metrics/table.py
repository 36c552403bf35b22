"""Catalogue of metrics, and evaluation of scores by catalogued and custom metrics.

An exact metric computes its interval in closed form. All other metrics have a bootstrap interval:
members and non-members are resampled separately, since a study fixes both numbers. A *contrast* is
the kind of non-members with which members are compared: samples of other clients, held-out samples
("unseen"), or both ("mixed").
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int, Shaped

from fedaudit.core.errors import BadInput, custom_code, unknown_name
from fedaudit.core.importing import location_of, look_up
from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY, TPR, Origin, tpr_at
from fedaudit.metrics.balanced import held_out_balanced_accuracy
from fedaudit.metrics.delong import auc_interval
from fedaudit.metrics.family import above_chance, rate_above_chance
from fedaudit.metrics.intervals import Limits, percent, require_confidence
from fedaudit.metrics.rate_limits import (
    inconclusive,
    limits_at_threshold,
    rate_limits,
    true_fpr_range,
)
from fedaudit.metrics.roc import (
    allowed_false_positives,
    as_array,
    as_origins,
    as_scores,
    refuse_misaligned,
    tpr_at_fpr,
)
from fedaudit.metrics.stratified import scaled_within, stratified_above_chance, stratified_auc

OfScores: TypeAlias = Callable[[Float[np.ndarray, " samples"], Bool[np.ndarray, " samples"]], float]
"""Function that computes a number from scores (larger for likelier members) and membership."""

FEWEST = 10
"""Fewest members, and fewest non-members, for a bootstrap interval."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Limits[float | None]):
    """Value of a metric on one set of scores, with the fields that a result stores.

    Attributes:
        contrast: Kind of non-members that members are compared with: "other_client", "unseen" or
            "mixed".
        metric: Name of the metric, such as "auc", "tpr@0.01" or "balanced_accuracy".
        value: The metric's value; None if it was not computed. The limits are None if there is no
            interval, for example for a rate with too few non-members.
        n_members: Number of members that the value was computed on.
        n_nonmembers: Number of non-members that the value was computed on.
        realised_fpr: Empirical false-positive rate, for metrics that use a threshold.
        low_at_threshold: For a true-positive rate, lower limit (Clopper-Pearson) of the fraction of
            members above the empirical threshold, whatever its true false-positive rate.
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


@dataclass(frozen=True)
class Contrast:
    """Scores of members and of the non-members that they are compared with.

    Attributes:
        name: Kind of the non-members: "other_client", "unseen" or "mixed".
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        confidence: Confidence of every interval, in (0, 1).
        rng: Draws bootstrap resamples and splits of the samples.
        fprs: False-positive rates at which true-positive rates are reported.
        note: Note on a missing kind of non-members.
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

    def figure(self, metric: str, **fields: Any) -> Evaluated:
        """Return a metric's value that was computed on all samples of the contrast."""
        return Evaluated(
            contrast=self.name,
            metric=metric,
            n_members=self.n_members,
            n_nonmembers=self.n_nonmembers,
            **fields,
        )

    def refused(self, metric: str, note: str) -> Evaluated:
        """Return an entry without a value, with the reason in ``note``."""
        return self.figure(metric, value=None, low=None, high=None, note=note)


@dataclass(frozen=True)
class Metric:
    """Metric of an attack's scores with a bootstrap interval.

    Attributes:
        of: Function that computes a number from scores and membership. The bootstrap calls it about
            a thousand times.
        about: Description in one sentence.
        resamples: Number of bootstrap resamples behind the interval.

    Examples:
        >>> from fedaudit.metrics import Metric
        >>> import numpy as np
        >>> gap = Metric(lambda scores, truth: scores[truth].mean() - scores[~truth].mean())
        >>> float(gap.of(np.array([3.0, 2.0, 1.0]), np.array([True, True, False])))
        1.5
    """

    of: OfScores
    about: str = field(default="", compare=False)
    resamples: int = 1000

    def figures(self, name: str, contrast: Contrast) -> list[Evaluated]:
        """Compute the metric with its bootstrap interval.

        Raises:
            BadInput: The metric returns a number that is not finite.
        """
        members, others = contrast.n_members, contrast.n_nonmembers
        if min(members, others) < FEWEST:
            note = (
                f"inconclusive: {members} members and {others} non-members; a bootstrap needs "
                f"{FEWEST} of each"
            )
            return [contrast.refused(name, note)]
        value, low, high = bootstrapped(
            self,
            contrast.scores,
            contrast.is_member,
            rng=contrast.rng,
            confidence=contrast.confidence,
            name=name,
        )
        method = f"bootstrap (bias-corrected, {self.resamples}), {percent(contrast.confidence)}"
        return [contrast.figure(name, value=value, low=low, high=high, method=method)]


@dataclass(frozen=True)
class Exact:
    """Metric that computes its interval without resampling.

    Attributes:
        make: Function that computes the metric's values for a contrast.
        about: Description in one sentence.
    """

    make: Callable[[Contrast], list[Evaluated]]
    about: str = field(compare=False)

    def figures(self, name: str, contrast: Contrast) -> list[Evaluated]:
        """Compute the metric's values; their names are predefined, so ``name`` is not used."""
        return self.make(contrast)


def _auc(contrast: Contrast) -> list[Evaluated]:
    scores, is_member, strata = contrast.scores, contrast.is_member, contrast.strata
    level = contrast.confidence
    if strata is None:
        interval = auc_interval(scores, is_member, confidence=level)
        p_value = above_chance(scores, is_member)
    else:
        interval = stratified_auc(scores, is_member, strata, confidence=level)
        p_value = stratified_above_chance(scores, is_member, strata)
    return [contrast.figure(AUC, **asdict(interval), note=contrast.note, p_value=p_value)]


def _tpr(contrast: Contrast, fpr: float) -> Evaluated:
    metric = tpr_at(fpr)
    reason = inconclusive(fpr, contrast.n_nonmembers)
    if reason:
        return contrast.refused(metric, reason)
    point = tpr_at_fpr(contrast.scores, contrast.is_member, fpr)
    limits = rate_limits(contrast.scores, contrast.is_member, fpr, confidence=contrast.confidence)
    at_threshold = limits_at_threshold(
        contrast.scores, contrast.is_member, fpr, confidence=contrast.confidence
    )
    true_fpr = true_fpr_range(fpr, contrast.n_nonmembers, confidence=contrast.confidence)
    # Results store this note.
    missing = f"; a lower limit needs {limits.needs} more non-members" if limits.needs else ""
    return contrast.figure(
        metric,
        value=point.tpr,
        low=None if limits.needs else limits.low,
        high=limits.high,
        method=limits.method,
        realised_fpr=point.realised_fpr,
        low_at_threshold=at_threshold.low,
        high_at_threshold=at_threshold.high,
        note=f"{point.true_positives} true and {point.false_positives} false positives; this "
        f"threshold's true false-positive rate is at most {true_fpr.high:.2%} (upper end of a "
        f"{percent(contrast.confidence)} range){missing}",
        p_value=rate_above_chance(
            point.true_positives,
            contrast.n_members,
            allowed=allowed_false_positives(fpr, contrast.n_nonmembers),
            nonmembers=contrast.n_nonmembers,
        ),
    )


def _balanced_accuracy(contrast: Contrast) -> list[Evaluated]:
    if min(contrast.n_members, contrast.n_nonmembers) < 2:
        reason = "inconclusive: a held-out threshold needs 2 samples per side"
        return [contrast.refused(BALANCED_ACCURACY, reason)]
    held_out = held_out_balanced_accuracy(
        contrast.scores, contrast.is_member, rng=contrast.rng, confidence=contrast.confidence
    )
    fields = asdict(held_out)
    del fields["threshold"]
    return [Evaluated(contrast=contrast.name, metric=BALANCED_ACCURACY, **fields)]


def average_precision(
    scores: Float[np.ndarray, " samples"], is_member: Bool[np.ndarray, " samples"]
) -> float:
    """Compute the average precision: the area under the precision-recall curve."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(is_member, scores))


def partial_auc(
    scores: Float[np.ndarray, " samples"], is_member: Bool[np.ndarray, " samples"]
) -> float:
    """Compute the area under the ROC curve up to an FPR of 0.1, scaled to a chance level of 0.5.

    The bootstrap interval calls scikit-learn 1,000 times, which takes about ten seconds for each
    attack, kind of non-members, client and seed.

    Source: McClish 1989 (standardised partial area).
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(is_member, scores, max_fpr=0.1))


METRICS: dict[str, Exact | Metric] = {
    AUC: Exact(_auc, "Area under the ROC curve; chance level is 0.5."),
    TPR: Exact(
        lambda contrast: [_tpr(contrast, fpr) for fpr in contrast.fprs],
        "True-positive rate at each false-positive rate in figures.fprs; chance level is the "
        "false-positive rate.",
    ),
    BALANCED_ACCURACY: Exact(
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

EVERY_EVALUATION = (AUC, TPR, BALANCED_ACCURACY)
"""Metrics that every evaluation computes, in this order. A study can add others in
``figures.metrics``."""


def bootstrapped(
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
    sides = [np.flatnonzero(is_member), np.flatnonzero(~is_member)]
    drawn = np.empty(metric.resamples)
    for index in range(metric.resamples):
        chosen = np.concatenate([rng.choice(side, len(side)) for side in sides])
        drawn[index] = _finite_value(metric, scores[chosen], is_member[chosen], name)
    # Resamples that equal the value count half. Otherwise, metrics with few distinct values would
    # have no lower limit.
    below = ((drawn < value).mean() + (drawn <= value).mean()) / 2
    largest = 1 - 0.5 / metric.resamples
    normal = NormalDist()
    bias = normal.inv_cdf(float(np.clip(below, 1 - largest, largest)))
    tail = normal.inv_cdf((1 - confidence) / 2)
    ends = [normal.cdf(2 * bias + tail), normal.cdf(2 * bias - tail)]
    low, high = np.quantile(drawn, ends)
    return value, min(float(low), value), max(float(high), value)


def _finite_value(
    metric: Metric,
    scores: Float[np.ndarray, " samples"],
    is_member: Bool[np.ndarray, " samples"],
    name: str,
) -> float:
    with custom_code(partial(_metric_error, name, len(scores))):
        value = float(metric.of(scores, is_member))
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


def metric_named(name: str) -> Exact | Metric:
    """Return a metric by its name in the catalogue, in an installed package or in the user's code.

    A custom metric is called with a few scores, so that errors appear before hours of training.

    Raises:
        BadInput: The name is unknown, every evaluation has this metric already, or the custom
            metric fails.
    """
    if name in EVERY_EVALUATION:
        raise BadInput(
            f"every evaluation computes the metric {name!r}; leave it out of figures.metrics"
        )
    metric: Exact | Metric | OfScores = look_up(
        "metric",
        name,
        METRICS,
        expected="a fedaudit.metrics.Metric, or a function of scores and membership",
        is_valid=lambda value: isinstance(value, Exact | Metric) or callable(value),
    )
    if isinstance(metric, Exact):
        return metric
    custom = metric if isinstance(metric, Metric) else Metric(metric)
    if name not in METRICS:
        is_member = np.arange(2 * FEWEST) % 2 == 0
        _finite_value(custom, np.linspace(-1, 1, 2 * FEWEST), is_member, name)
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
) -> list[Evaluated]:
    """Compute the standard metrics of one attack on one target client, for each contrast.

    A contrast is a kind of non-members: samples of other clients, held-out samples, or both. For
    each contrast, the metrics are the AUC, the true-positive rate at each false-positive rate, and
    the balanced accuracy at a held-out threshold. If a contrast has no samples, its AUC is None and
    ``note`` states the reason. The same applies to a rate with too few samples. The threshold of a
    rate is estimated on the same non-members; the rate's limits include this error.

    Args:
        scores: One score per sample, larger for likelier members.
        origin: Booleans, True for members and False for unseen samples, or the origin of each
            sample: ``Origin`` values, their names, or their numbers if a 2 is among these.
        fprs: False-positive rates at which true-positive rates are computed, each in (0, 1].
        seed: Seed of the random split for the balanced accuracy, 0 or larger.
        confidence: Confidence of every interval, in (0, 1).
        origin_codes: Whether numbers are ``Origin`` values even if no 2 is among them. By default,
            numbers that are only 0 and 1 are refused, since 1 often means a member but
            ``Origin.MEMBER`` is 0.
        contrasts: Names of contrasts in ``CONTRASTS``.
        strata: The stratum of each sample, such as the client that drew its membership. Each
            member is then only compared with non-members of its stratum. The AUC is that of pairs
            within strata; rates and the balanced accuracy use scores that are scaled within each
            stratum.

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
    _refuse_unknown(contrasts)
    values = as_scores(scores)
    sources = _origins(scores, origin, len(values), origin_codes)
    if seed < 0:
        raise BadInput(f"a seed is 0 or larger, got {seed}")
    figures: list[Evaluated] = []
    if strata is not None:
        values = scaled_within(values, strata)
    for index, name in enumerate(CONTRASTS):
        if name not in contrasts:
            continue
        rng = np.random.default_rng([seed, index])
        contrast = _contrast(name, values, sources, rng, confidence, fprs, strata)
        if contrast.n_nonmembers:
            for metric in EVERY_EVALUATION:
                figures += METRICS[metric].figures(metric, contrast)
        else:
            figures.append(contrast.refused(AUC, contrast.note))
    return figures


def estimates(
    name: str,
    metric: Exact | Metric,
    scores: npt.ArrayLike,
    origin: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    origin_codes: bool = False,
    contrasts: Sequence[str] = tuple(CONTRASTS),
) -> list[Evaluated]:
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
    _refuse_unknown(contrasts)
    values = as_scores(scores)
    sources = as_origins(origin, len(values), codes=origin_codes)
    return [
        figure
        for kind in CONTRASTS
        if kind in contrasts
        for figure in metric.figures(name, _contrast(kind, values, sources, rng, confidence))
    ]


def _contrast(
    name: str,
    scores: Float[np.ndarray, " samples"],
    sources: Int[np.ndarray, " samples"],
    rng: np.random.Generator,
    confidence: float,
    fprs: Sequence[float] = (),
    strata: npt.ArrayLike | None = None,
) -> Contrast:
    against = CONTRASTS[name]
    chosen = np.isin(sources, [Origin.MEMBER, *against])
    is_member = sources[chosen] == Origin.MEMBER
    note = _note(sources, against)
    within = None if strata is None else as_array(strata)[chosen]
    return Contrast(name, scores[chosen], is_member, confidence, rng, fprs, note, within)


def _refuse_unknown(contrasts: Sequence[str]) -> None:
    for name in contrasts:
        if name not in CONTRASTS:
            raise unknown_name("contrast", name, list(CONTRASTS))


def _origins(
    scores: npt.ArrayLike, origin: npt.ArrayLike, samples: int, codes: bool
) -> Int[np.ndarray, " samples"]:
    refuse_misaligned(scores, origin)
    sources = as_origins(origin, samples, codes=codes)
    members = int((sources == Origin.MEMBER).sum())
    if members in (0, samples):
        raise BadInput(
            f"both members and non-members are needed, got {members} members among {samples} "
            "samples"
        )
    return sources


def _note(sources: Int[np.ndarray, " samples"], against: tuple[Origin, ...]) -> str:
    """Return a note on origins of the contrast without samples; empty if all have samples."""
    present = [origin for origin in against if (sources == origin).any()]
    missing = [origin.name.lower() for origin in against if origin not in present]
    if not missing:
        return ""
    if not present:
        return f"no {' or '.join(missing)} samples to compare members with"
    return f"the same as {present[0].name.lower()}: no {missing[0]} samples"
