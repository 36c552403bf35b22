"""The smallest door: scores and where the samples came from in, figures out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.core.origin import Origin
from fedaudit.metrics.balanced import held_out_balanced_accuracy
from fedaudit.metrics.delong import auc_interval
from fedaudit.metrics.family import above_chance, rate_above_chance
from fedaudit.metrics.intervals import percent, require_confidence
from fedaudit.metrics.rate_limits import limits_at_threshold, rate_limits
from fedaudit.metrics.rates import inconclusive, true_fpr_range
from fedaudit.metrics.roc import allowed_false_positives, as_scores, tpr_at_fpr

CONTRASTS: dict[str, tuple[Origin, ...]] = {
    "other_client": (Origin.OTHER_CLIENT,),
    "unseen": (Origin.UNSEEN,),
    "mixed": (Origin.OTHER_CLIENT, Origin.UNSEEN),
}
"""Which non-members the members are held against, by name."""


@dataclass(frozen=True)
class Evaluated:
    """One figure about one set of scores; the fields are those of a record's figure.

    Attributes:
        contrast: Members against "other_client", "unseen" or "mixed" non-members.
        metric: "auc", "tpr@0.01" and the like, "balanced_accuracy".
        value: The figure; None where it was refused.
        low: Lower limit of the interval; None without one, as for a rate with too few
            non-members for any.
        high: Upper limit.
        method: How the interval was made, with its level.
        n_members: Members behind the figure.
        n_nonmembers: Non-members behind the figure.
        realised_fpr: False-positive rate really reached, for figures at a threshold.
        low_at_threshold: For a rate, the lower limit of the share of members above the threshold
            that was used (Clopper-Pearson), whatever its true false-positive rate.
        high_at_threshold: The upper limit of the same.
        ceiling: The most that a perfect attack could have reached.
        note: Why the figure is refused, or what to bear in mind.
        p_value: One-sided, against guessing; not yet corrected for a family. None for figures
            other than the AUC and the true-positive rates.
    """

    contrast: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    method: str = ""
    n_members: int = 0
    n_nonmembers: int = 0
    realised_fpr: float | None = None
    low_at_threshold: float | None = None
    high_at_threshold: float | None = None
    ceiling: float | None = None
    note: str = ""
    p_value: float | None = None


@dataclass(frozen=True)
class _Contrast:
    name: str
    scores: Float[np.ndarray, " samples"]
    is_member: Bool[np.ndarray, " samples"]
    confidence: float

    @property
    def n_members(self) -> int:
        return int(self.is_member.sum())

    @property
    def n_nonmembers(self) -> int:
        return len(self.is_member) - self.n_members

    def refused(self, metric: str, note: str) -> Evaluated:
        return Evaluated(
            self.name,
            metric,
            value=None,
            n_members=self.n_members,
            n_nonmembers=self.n_nonmembers,
            note=note,
        )


def evaluate(
    scores: npt.ArrayLike,
    origin: npt.ArrayLike,
    *,
    fprs: Sequence[float] = (0.01, 0.001),
    seed: int = 0,
    confidence: float = 0.95,
) -> list[Evaluated]:
    """All headline figures of one attack on one target client, contrast by contrast.

    For each contrast: the AUC, the true-positive rate at each false-positive rate, and the
    balanced accuracy at a held-out threshold. A contrast without samples gives one refused
    AUC that says so; a rate that the sample cannot show is refused by name. Limits of a rate
    allow for the threshold, which rests on the same non-members.

    Args:
        scores: One a sample, larger for likelier members.
        origin: Where each sample comes from: ``Origin`` values or their numbers.
        fprs: False-positive rates to report at, each in (0, 1].
        seed: Seed of the split behind the balanced accuracy, 0 or larger.
        confidence: Confidence of every interval, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, an origin is unknown, or one of members and
            non-members is missing altogether.
    """
    require_confidence(confidence)
    values = as_scores(scores)
    sources = _origins(origin, len(values))
    if seed < 0:
        raise BadInput(f"a seed is 0 or larger, got {seed}")
    estimates: list[Evaluated] = []
    for place, (name, against) in enumerate(CONTRASTS.items()):
        chosen = np.isin(sources, [Origin.MEMBER, *against])
        contrast = _Contrast(name, values[chosen], sources[chosen] == Origin.MEMBER, confidence)
        rng = np.random.default_rng([seed, place])
        estimates += _figures(contrast, _note(sources, against), fprs, rng)
    return estimates


def _origins(origin: npt.ArrayLike, samples: int) -> Int[np.ndarray, " samples"]:
    sources = np.asarray(origin)
    if sources.shape != (samples,):
        raise BadInput(
            f"scores and origins must have one entry a sample, got {samples} scores and origins "
            f"of shape {sources.shape}"
        )
    strange = sorted({str(value) for value in sources[~np.isin(sources, list(Origin))]})
    if strange:
        known = ", ".join(f"{one.value} ({one.name})" for one in Origin)
        raise BadInput(f"unknown origins {', '.join(strange[:5])}; known: {known}")
    members = int((sources == Origin.MEMBER).sum())
    if members in (0, samples):
        raise BadInput(
            f"both members and non-members are needed, got {members} members among {samples} "
            "samples"
        )
    return sources.astype(np.int64)


def _note(sources: Int[np.ndarray, " samples"], against: tuple[Origin, ...]) -> str:
    """Note on a contrast whose non-members lack one of their origins."""
    present = [one for one in against if (sources == one).any()]
    missing = [one.name.lower() for one in against if one not in present]
    if not missing:
        return ""
    if not present:
        return f"no {' or '.join(missing)} samples to hold members against"
    return f"the same as {present[0].name.lower()}: no {missing[0]} samples"


def _figures(
    contrast: _Contrast, note: str, fprs: Sequence[float], rng: np.random.Generator
) -> list[Evaluated]:
    if not contrast.n_nonmembers:
        return [contrast.refused("auc", note)]
    return [
        _auc(contrast, note),
        *(_tpr(contrast, fpr) for fpr in fprs),
        _balanced_accuracy(contrast, rng),
    ]


def _auc(contrast: _Contrast, note: str) -> Evaluated:
    scores, is_member = contrast.scores, contrast.is_member
    value, low, high, method = auc_interval(scores, is_member, confidence=contrast.confidence)
    return Evaluated(
        contrast.name,
        "auc",
        value=value,
        low=low,
        high=high,
        method=method,
        n_members=contrast.n_members,
        n_nonmembers=contrast.n_nonmembers,
        note=note,
        p_value=above_chance(scores, is_member),
    )


def _tpr(contrast: _Contrast, fpr: float) -> Evaluated:
    metric = f"tpr@{fpr:g}"
    why_not = inconclusive(fpr, contrast.n_nonmembers)
    if why_not:
        return contrast.refused(metric, why_not)
    point = tpr_at_fpr(contrast.scores, contrast.is_member, fpr)
    limits = rate_limits(contrast.scores, contrast.is_member, fpr, confidence=contrast.confidence)
    used = limits_at_threshold(
        contrast.scores, contrast.is_member, fpr, confidence=contrast.confidence
    )
    behind = true_fpr_range(fpr, contrast.n_nonmembers, confidence=contrast.confidence)
    return Evaluated(
        contrast.name,
        metric,
        value=point.tpr,
        low=None if limits.needs else limits.low,
        high=limits.high,
        method=limits.method,
        n_members=contrast.n_members,
        n_nonmembers=contrast.n_nonmembers,
        realised_fpr=point.realised_fpr,
        low_at_threshold=used.low,
        high_at_threshold=used.high,
        note=f"{point.true_positives} true and {point.false_positives} false positives; this "
        f"threshold's true false-positive rate is at most {behind.high:.2%} (upper end of a "
        f"{percent(contrast.confidence)} range){_lacking(limits.needs)}",
        p_value=rate_above_chance(
            point.true_positives,
            contrast.n_members,
            allowed=allowed_false_positives(fpr, contrast.n_nonmembers),
            nonmembers=contrast.n_nonmembers,
        ),
    )


def _lacking(nonmembers: int) -> str:
    return f"; a lower limit needs {nonmembers} more non-members" if nonmembers else ""


def _balanced_accuracy(contrast: _Contrast, rng: np.random.Generator) -> Evaluated:
    if min(contrast.n_members, contrast.n_nonmembers) < 2:
        return contrast.refused(
            "balanced_accuracy", "inconclusive: a held-out threshold needs 2 samples a side"
        )
    held = held_out_balanced_accuracy(
        contrast.scores, contrast.is_member, rng=rng, confidence=contrast.confidence
    )
    return Evaluated(
        contrast.name,
        "balanced_accuracy",
        value=held.value,
        low=held.low,
        high=held.high,
        method=held.method,
        n_members=held.n_members,
        n_nonmembers=held.n_nonmembers,
        realised_fpr=held.realised_fpr,
    )
