"""The smallest door: scores and where the samples came from in, figures out."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.metric_names import AUC, Origin
from fedaudit.metrics.intervals import require_confidence
from fedaudit.metrics.roc import as_scores
from fedaudit.metrics.stratified import scaled_within
from fedaudit.metrics.table import EVERY_EVALUATION, METRICS, Contrast, Evaluated, Exact, Metric
from fedaudit.metrics.truth import as_array, as_origins, refuse_misaligned

CONTRASTS: dict[str, tuple[Origin, ...]] = {
    "other_client": (Origin.OTHER_CLIENT,),
    "unseen": (Origin.UNSEEN,),
    "mixed": (Origin.OTHER_CLIENT, Origin.UNSEEN),
}
"""Which non-members the members are held against, by name."""


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
    """Compute all headline figures of one attack on one target client, for each contrast.

    For each contrast these are the AUC, the true-positive rate at each false-positive rate, and the
    balanced accuracy at a held-out threshold. A contrast without samples gives one refused AUC with
    the reason. A rate that the samples cannot show is refused by name. Limits of a rate allow for
    the error of its threshold, which is set on the same non-members.

    Args:
        scores: One score per sample, larger for likelier members.
        origin: Booleans, True for members and False for unseen samples, or the origin of each
            sample: ``Origin`` values, their names, or their numbers if a 2 is among these.
        fprs: False-positive rates to report at, each in (0, 1].
        seed: Seed of the split behind the balanced accuracy, 0 or larger.
        confidence: Confidence of every interval, in (0, 1).
        origin_codes: Whether numbers are ``Origin`` values even if no 2 is among them. Without,
            0 and 1 alone are refused, since 1 often means a member.
        contrasts: Kinds of non-members to compare with, of ``CONTRASTS``.
        strata: The stratum of each sample, such as the client whose coin decided about it. Each
            member is then compared with non-members of its stratum only. The AUC is that of pairs
            within strata; rates and the balanced accuracy use scores that are scaled within each
            stratum.

    Raises:
        BadInput: Lengths differ, a score is NaN, an origin is unknown or ambiguous, one of
            members and non-members is missing altogether, or no stratum has both.

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
    for place, name in enumerate(CONTRASTS):
        if name not in contrasts:
            continue
        rng = np.random.default_rng([seed, place])
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
    """A metric of one attack on one target client, contrast by contrast.

    Args:
        name: Of the metric, for the record.
        metric: What is taken.
        scores: One score per sample, larger for likelier members.
        origin: As in :func:`evaluate`.
        rng: Draws samples anew.
        confidence: Of the interval.
        origin_codes: As in :func:`evaluate`.
        contrasts: Kinds of non-members to compare with, of ``CONTRASTS``.

    Raises:
        BadInput: The metric gives no finite number.
    """
    _refuse_unknown(contrasts)
    values = as_scores(scores)
    sources = as_origins(origin, len(values), codes=origin_codes)
    asked = (one for one in CONTRASTS if one in contrasts)
    made = (_contrast(one, values, sources, rng, confidence) for one in asked)
    return [figure for one in made for figure in metric.figures(name, one)]


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
    """Note on a contrast whose non-members lack one of their origins."""
    present = [one for one in against if (sources == one).any()]
    missing = [one.name.lower() for one in against if one not in present]
    if not missing:
        return ""
    if not present:
        return f"no {' or '.join(missing)} samples to hold members against"
    return f"the same as {present[0].name.lower()}: no {missing[0]} samples"
