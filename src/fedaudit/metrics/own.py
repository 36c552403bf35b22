"""Metrics beside the headline figures: one function and one row of a table, or one's own.

The interval of a metric that is any function of scores is a bootstrap: members and non-members are
drawn anew, each as many as there are, since a study fixes how many of either are audited.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from fedaudit.core.errors import BadInput
from fedaudit.core.origin import Origin
from fedaudit.metrics.evaluate import CONTRASTS, Evaluated
from fedaudit.metrics.intervals import percent
from fedaudit.metrics.roc import as_scores

OfScores: TypeAlias = Callable[[Float[np.ndarray, " samples"], Bool[np.ndarray, " samples"]], float]
"""From scores, larger for likelier members, and membership to a number."""

FEWEST = 10
"""Of members and of non-members: a bootstrap of fewer says nothing about its own spread."""


@dataclass(frozen=True)
class Metric:
    """A number about an attack's scores.

    Attributes:
        of: From scores and membership to the number; called some thousand times.
        about: What it is, in a sentence.
        resamples: How often samples are drawn anew for the interval.
    """

    of: OfScores
    about: str = field(default="", compare=False)
    resamples: int = 1000


def average_precision(
    scores: Float[np.ndarray, " samples"], is_member: Bool[np.ndarray, " samples"]
) -> float:
    """Area under the precision-recall curve, as the mean precision over the members found."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(is_member, scores))


def partial_auc(
    scores: Float[np.ndarray, " samples"], is_member: Bool[np.ndarray, " samples"]
) -> float:
    """Area under the ROC curve up to a false-positive rate of 0.1, scaled so that guessing is 0.5.

    Source: McClish 1989 (standardised partial area).
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(is_member, scores, max_fpr=0.1))


METRICS: dict[str, Metric] = {
    "average_precision": Metric(
        average_precision, "Area under the precision-recall curve; guessing is the members' share."
    ),
    "partial_auc": Metric(
        partial_auc, "Area under the ROC curve up to a false-positive rate of 0.1; guessing is 0.5."
    ),
}
"""Metrics that a study may ask for in ``figures.metrics``, beside those of every evaluation."""


def estimates(
    name: str,
    metric: Metric,
    scores: npt.ArrayLike,
    origin: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> list[Evaluated]:
    """A metric of one attack on one target client, contrast by contrast.

    Args:
        name: Of the metric, for the record.
        metric: What is taken.
        scores: One a sample, larger for likelier members.
        origin: Where each sample comes from: ``Origin`` values.
        rng: Draws samples anew.
        confidence: Of the interval.

    Raises:
        BadInput: The metric gives no finite number.
    """
    values, sources = as_scores(scores), np.asarray(origin)
    found = []
    for contrast, against in CONTRASTS.items():
        chosen = np.isin(sources, [Origin.MEMBER, *against])
        is_member = sources[chosen] == Origin.MEMBER
        members = int(is_member.sum())
        others = len(is_member) - members
        of = partial(Evaluated, contrast, name, n_members=members, n_nonmembers=others)
        if min(members, others) < FEWEST:
            note = f"inconclusive: {members} members and {others} non-members; it takes {FEWEST}"
            found.append(of(value=None, note=note))
            continue
        value, low, high = bootstrapped(
            metric, values[chosen], is_member, rng=rng, confidence=confidence, name=name
        )
        method = f"bootstrap (bias-corrected, {metric.resamples}), {percent(confidence)}"
        found.append(of(value=value, low=low, high=high, method=method))
    return found


def bootstrapped(
    metric: Metric,
    scores: Float[np.ndarray, " samples"],
    is_member: Bool[np.ndarray, " samples"],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    name: str = "the metric",
) -> tuple[float, float, float]:
    """A metric's value with the limits of its bias-corrected bootstrap interval.

    Args:
        metric: What is taken.
        scores: One a sample.
        is_member: Who was a member.
        rng: Draws samples anew.
        confidence: Of the interval.
        name: Of the metric, for refusals.

    Raises:
        BadInput: The metric gives no finite number.

    Source: Efron & Tibshirani 1993, section 14.3, without acceleration.
    """
    value = _taken(metric, scores, is_member, name)
    sides = [np.flatnonzero(is_member), np.flatnonzero(~is_member)]
    drawn = np.empty(metric.resamples)
    for place in range(metric.resamples):
        chosen = np.concatenate([rng.choice(side, len(side)) for side in sides])
        drawn[place] = _taken(metric, scores[chosen], is_member[chosen], name)
    # Ties with the value count half, or a metric of few values would have no lower limit.
    below = ((drawn < value).mean() + (drawn <= value).mean()) / 2
    most = 1 - 0.5 / metric.resamples
    normal = NormalDist()
    bias = normal.inv_cdf(float(np.clip(below, 1 - most, most)))
    tail = normal.inv_cdf((1 - confidence) / 2)
    ends = [normal.cdf(2 * bias + tail), normal.cdf(2 * bias - tail)]
    low, high = np.quantile(drawn, ends)
    return value, min(float(low), value), max(float(high), value)


def _taken(
    metric: Metric,
    scores: Float[np.ndarray, " samples"],
    is_member: Bool[np.ndarray, " samples"],
    name: str,
) -> float:
    value = float(metric.of(scores, is_member))
    if not np.isfinite(value):
        raise BadInput(
            f"the metric {name!r} is {value} on {len(scores)} samples; have it give a "
            "finite number for any scores and membership"
        )
    return value
