"""Verdicts on unlearning: forgotten samples against unseen ones, before, after and retrained."""

from typing import NamedTuple

import numpy.typing as npt

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import (
    CANNOT_TELL,
    DESTROYED,
    FORGOTTEN,
    NOT_FORGOTTEN,
    OVERDONE,
    UNTOLD,
)
from fedaudit.metrics.delong import AucDifference, AucInterval, auc_interval, compare_auc
from fedaudit.metrics.roc import as_scores
from fedaudit.metrics.truth import as_truth

EQUIVALENCE = 0.9
"""Confidence of an equivalence interval: two one-sided tests at 5 % each."""


class Unlearned(NamedTuple):
    """AUC of forgotten against unseen samples by one score, with a verdict.

    Attributes:
        before: By the model before unlearning.
        after: By the model after it.
        retrained: By a model that was retrained without the forgotten samples; None without one.
        excess: ``after`` minus ``retrained``, or minus 0.5 without a retrained model, with its
            equivalence interval. Its p-value is two-sided, and 1 if the limits are those of one
            AUC, or of two separate AUCs: the interval decides.
        both: By the difference of the two scores, for an adversary with the models before and
            after unlearning.
        margin: Largest distance from the reference that counts as none.
        verdict: "forgotten", "not forgotten", "overdone", "told nothing before", "cannot be told"
            or, of a model that no longer predicts, "model destroyed".

    Examples:
        >>> before, after, forgotten = [3, 2, 1, 0], [1, 0, 1, 0], [True, True, False, False]
        >>> unlearned(before, after, is_forgotten=forgotten).before.value
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
        """A line for each figure, and the verdict."""
        rows = {
            "before": self.before,
            "after": self.after,
            "retrained": self.retrained,
            f"after less {'0.5' if self.retrained is None else 'retrained'}": self.excess,
            "before and after together": self.both,
        }
        lines = [
            f"{name:<26} {one.value:6.3f}  [{one.low:.3f}, {one.high:.3f}]  {one.method}"
            for name, one in rows.items()
            if one is not None
        ]
        said = verdict_words(self.verdict, self.margin)
        return "\n".join(["AUC of forgotten against unseen samples", *lines, said])


def unlearned(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    retrained: npt.ArrayLike | None = None,
    *,
    is_forgotten: npt.ArrayLike,
    margin: float = 0.05,
) -> Unlearned:
    """Compute AUCs of one score on forgotten samples before and after unlearning, with a verdict.

    Forgotten and unseen samples are from one distribution, as if a fair coin decided which were
    trained on. The reference is the model that never saw the forgotten samples. The verdict is
    "forgotten" if the whole equivalence interval of the excess lies within the margin; at the
    margin's edge, or beyond, that is wrong in at most 5 % of cases. It is "not forgotten" if the
    excess is above 0 (one-sided, 5 %) and may exceed the margin. It is "overdone" if the interval
    lies below minus the margin: the model knows forgotten samples less well than unseen ones. If a
    score did not distinguish them before unlearning, failing to do so afterwards shows nothing.

    Args:
        before: Scores by the model before unlearning, larger for likelier members: one for each
            forgotten and unseen sample, such as minus the loss.
        after: The same score by the model after unlearning, for the same samples in the same
            order.
        retrained: The same score by a model that was retrained without the forgotten samples.
            Without it the reference is 0.5, which rests on the fair draw alone.
        is_forgotten: Whether each sample is a forgotten one.
        margin: Largest difference of AUCs that counts as none, in (0, 0.5); to be chosen before
            looking at scores.

    Raises:
        BadInput: Lengths differ, a score is not finite, a side is empty, or the margin is
            out of range.

    Examples:
        >>> before = [*range(100)]
        >>> after = [0, 1] * 50
        >>> forgotten = [False] * 50 + [True] * 50
        >>> unlearned(before, after, is_forgotten=forgotten, margin=0.2).verdict
        'forgotten'

    Source: Schuirmann 1987 (two one-sided tests); Chen et al. 2021, When Machine Unlearning
        Jeopardizes Privacy (the models before and after together reveal what neither
        reveals alone).
    Differs: Chen et al. train a classifier on the two models' posteriors of shadow models; here
        the score after is taken from the score before.
    """
    require_margin(margin)
    first = as_scores(before)
    truth = as_truth(is_forgotten, len(first))
    then = as_scores(after)
    before_auc, after_auc = (auc_interval(one, truth) for one in (first, then))
    if retrained is None:
        alone = None
        at = auc_interval(then, truth, confidence=EQUIVALENCE)
        excess = AucDifference(at.value - 0.5, at.low - 0.5, at.high - 0.5, at.method, p_value=1.0)
    else:
        alone = auc_interval(retrained, truth)
        excess = compare_auc(then, retrained, is_member=truth, confidence=EQUIVALENCE)
    return Unlearned(
        before=before_auc,
        after=after_auc,
        retrained=alone,
        excess=excess,
        both=auc_interval(first - then, truth),
        margin=margin,
        verdict=unlearning_verdict(
            excess.low, excess.high, margin=margin, told_before=before_auc.low > 0.5
        ),
    )


def require_margin(margin: float) -> None:
    """Refuses a margin that is none.

    Raises:
        BadInput: It is not in (0, 0.5).
    """
    if not 0 < margin < 0.5:
        raise BadInput(
            f"the margin is the largest difference of AUCs that counts as none, between 0 and 0.5, "
            f"got {margin}"
        )


def unlearning_verdict(
    low: float, high: float, *, margin: float, told_before: bool, above: bool | None = None
) -> str:
    """The verdict on an excess over the yardstick.

    Args:
        low: Lower limit of its equivalence interval.
        high: Upper limit.
        margin: How large an excess counts as none.
        told_before: Whether the score told forgotten from unseen samples before unlearning.
        above: Whether the excess is above 0, where that was corrected for several scores; the lower
            limit decides by default.
    """
    if -margin < low and high < margin:
        return FORGOTTEN if told_before else UNTOLD
    if low > 0 if above is None else above:
        return NOT_FORGOTTEN
    return OVERDONE if high < -margin else CANNOT_TELL


def verdict_words(verdict: str, margin: float) -> str:
    """A verdict as a sentence."""
    return {
        FORGOTTEN: f"forgotten as far as this score sees, within ±{margin:g} of the yardstick",
        NOT_FORGOTTEN: "not forgotten: told from unseen samples better than by the yardstick",
        OVERDONE: "overdone: they stand out, as less known than unseen samples",
        UNTOLD: "nothing to say: the score did not tell them from unseen samples before either",
        DESTROYED: "model destroyed: it no longer predicts better than guessing, so that it tells "
        "nothing of any sample",
        CANNOT_TELL: f"cannot be told: the interval reaches beyond ±{margin:g}; take more samples",
    }[verdict]
