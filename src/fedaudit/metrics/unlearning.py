"""Verdicts on unlearning, from AUCs of deleted samples against held-out samples.

Deleted samples are those that the model should have forgotten.
"""

from typing import NamedTuple

import numpy.typing as npt

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import (
    DESTROYED,
    FORGOTTEN,
    INCONCLUSIVE,
    NO_LEAK_BEFORE,
    NOT_FORGOTTEN,
    OVERCORRECTED,
)
from fedaudit.metrics.delong import AucDifference, AucInterval, auc_interval, compare_auc
from fedaudit.metrics.roc import as_membership, as_scores

EQUIVALENCE_CONFIDENCE = 0.9
"""Confidence of an equivalence interval, which corresponds to two one-sided tests at 5 % each."""


class UnlearningResult(NamedTuple):
    """AUCs of one score on deleted against held-out samples, with a verdict.

    Attributes:
        before: AUC with the model before unlearning.
        after: AUC with the model after unlearning.
        retrained: AUC with a model that was retrained without the deleted samples; None if there
            is no such model.
        excess: ``after`` minus ``retrained``, with its equivalence interval. Without a retrained
            model, it is ``after`` minus 0.5. The p-value is two-sided. It is 1 without a
            retrained model, or if no paired DeLong test is possible; the verdict then uses only
            the interval.
        both: AUC of the difference between the scores before and after unlearning, which an
            adversary with both models can compute.
        margin: Largest excess, above or below 0, that counts as 0.
        verdict: "forgotten", "not forgotten", "overdone", "not detected before", "inconclusive", or
            "model destroyed" for a model that predicts no better than chance. See
            :func:`evaluate_unlearning` for their meaning.

    Examples:
        >>> import fedaudit as fa
        >>> before, after, deleted = [3, 2, 1, 0], [1, 0, 1, 0], [True, True, False, False]
        >>> fa.metrics.evaluate_unlearning(before, after, is_deleted=deleted).before.value
        1.0
    """

    before: AucInterval
    after: AucInterval
    retrained: AucInterval | None
    excess: AucDifference
    both: AucInterval
    margin: float
    verdict: str

    def __str__(self) -> str:
        """Return a line for each AUC, a line for the excess, and the verdict."""
        rows = {
            "before": self.before,
            "after": self.after,
            "retrained": self.retrained,
            f"after minus {'0.5' if self.retrained is None else 'retrained'}": self.excess,
            "adversary with both models": self.both,
        }
        lines = [
            f"{name:<26} {row.value:6.3f}  [{row.low:.3f}, {row.high:.3f}]  {row.method}"
            for name, row in rows.items()
            if row is not None
        ]
        verdict = describe_verdict(self.verdict, self.margin)
        return "\n".join(["AUC of deleted against held-out samples", *lines, verdict])


def evaluate_unlearning(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    retrained: npt.ArrayLike | None = None,
    *,
    is_deleted: npt.ArrayLike,
    margin: float = 0.05,
) -> UnlearningResult:
    """Compute AUCs of one score on deleted samples before and after unlearning, with a verdict.

    Deleted and held-out samples must be identically distributed, for example if a fair coin decided
    which samples were trained on. The reference is a model that never saw the deleted samples.
    The excess is the AUC after unlearning minus the AUC of the reference. The verdicts are:

    - "forgotten" if the equivalence interval of the excess is within the margin. If the true excess
      is the margin or larger, this verdict has a probability of at most 5 %.
    - "not forgotten" if the excess is above 0 (one-sided, 5 %) and may exceed the margin.
    - "overdone" if the interval is below minus the margin: the model fits deleted samples worse
      than held-out samples.
    - "not detected before" if the interval is within the margin, but the score did not distinguish
      deleted from held-out samples before unlearning either.
    - "inconclusive" in all other cases.

    Args:
        before: Scores of deleted and held-out samples from the model before unlearning, larger for
            likelier members, such as minus the loss.
        after: The same score from the model after unlearning, for the same samples in the same
            order.
        retrained: The same score from a model that was retrained without the deleted samples.
            Without it the reference is 0.5, which is only valid if deleted and held-out samples are
            identically distributed.
        is_deleted: Whether each sample is a deleted sample.
        margin: Largest difference between AUCs that counts as 0, in (0, 0.5). Choose it before
            looking at scores.

    Raises:
        BadInput: Lengths differ, a score is not finite, there are no deleted or no held-out
            samples, or the margin is out of range.

    Examples:
        >>> import fedaudit as fa
        >>> before = [*range(100)]
        >>> after = [0, 1] * 50
        >>> deleted = [False] * 50 + [True] * 50
        >>> fa.metrics.evaluate_unlearning(before, after, is_deleted=deleted, margin=0.2).verdict
        'forgotten'

    Source: Schuirmann 1987 (two one-sided tests); Chen et al. 2021, When Machine Unlearning
        Jeopardizes Privacy (the models before and after unlearning together reveal more than each
        of them).
    Differs: Chen et al. train a classifier on posteriors from pairs of shadow models. Here, the
        score after unlearning is subtracted from the score before unlearning.
    """
    require_margin(margin)
    scores_before, scores_after = as_scores(before), as_scores(after)
    truth = as_membership(is_deleted, len(scores_before))
    before_auc = auc_interval(scores_before, truth)
    if retrained is None:
        retrained_auc = None
        auc = auc_interval(scores_after, truth, confidence=EQUIVALENCE_CONFIDENCE)
        excess = AucDifference(
            auc.value - 0.5, auc.low - 0.5, auc.high - 0.5, auc.method, p_value=1.0
        )
    else:
        retrained_auc = auc_interval(retrained, truth)
        excess = compare_auc(
            scores_after, retrained, is_member=truth, confidence=EQUIVALENCE_CONFIDENCE
        )
    return UnlearningResult(
        before=before_auc,
        after=auc_interval(scores_after, truth),
        retrained=retrained_auc,
        excess=excess,
        both=auc_interval(scores_before - scores_after, truth),
        margin=margin,
        verdict=unlearning_verdict(
            excess.low, excess.high, margin=margin, leaked_before=before_auc.low > 0.5
        ),
    )


def require_margin(margin: float) -> None:
    """Raise if the margin is not in (0, 0.5)."""
    if not 0 < margin < 0.5:
        raise BadInput(
            f"the margin is the largest difference between AUCs that counts as 0; it must be "
            f"between 0 and 0.5, got {margin}"
        )


def unlearning_verdict(
    low: float, high: float, *, margin: float, leaked_before: bool, above: bool | None = None
) -> str:
    """Return the verdict on the excess: the AUC after unlearning minus that of the reference.

    Args:
        low: Lower limit of the equivalence interval of the excess.
        high: Upper limit of the same interval.
        margin: Largest excess, above or below 0, that counts as 0.
        leaked_before: Whether the score distinguished deleted from held-out samples before
            unlearning.
        above: Whether the excess is significantly above 0 after a correction for several scores.
            By default the lower limit decides.
    """
    if -margin < low and high < margin:
        return FORGOTTEN if leaked_before else NO_LEAK_BEFORE
    is_above = low > 0 if above is None else above
    if is_above:
        return NOT_FORGOTTEN
    return OVERCORRECTED if high < -margin else INCONCLUSIVE


def describe_verdict(verdict: str, margin: float) -> str:
    """Describe a verdict in a sentence that begins with the verdict."""
    # Results store these sentences, and results.unlearning reads the verdict from the beginning.
    return {
        FORGOTTEN: f"forgotten as far as this score measures: within ±{margin:g} of the reference",
        NOT_FORGOTTEN: "not forgotten: more distinguishable from unseen samples than the reference",
        OVERCORRECTED: "overdone: the model fits the samples worse than unseen ones, which exposes "
        "them",
        NO_LEAK_BEFORE: f"{NO_LEAK_BEFORE}: the score did not distinguish the samples before "
        "unlearning either",
        DESTROYED: "model destroyed: it no longer predicts better than guessing, so that its "
        "scores carry no information",
        INCONCLUSIVE: f"{INCONCLUSIVE}: the interval reaches beyond ±{margin:g}; take more samples",
    }[verdict]
