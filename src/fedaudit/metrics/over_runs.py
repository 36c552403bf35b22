"""An area under the curve whose samples come in runs that are alike within."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Int

from fedaudit.errors import BadInput
from fedaudit.metrics.intervals import percent, require_confidence
from fedaudit.metrics.rates import Share, share
from fedaudit.metrics.roc import allowed_false_positives, auc
from fedaudit.metrics.sides import as_scores, as_truth

_FEWEST = 10


class RunsAuc(NamedTuple):
    """An AUC over all pairs, with limits that count runs and not samples.

    Attributes:
        value: Chance that a random member scores above a random non-member, of any two runs.
        low: Lower limit; None where every draw of runs gives the same.
        high: Upper limit; None as well.
        method: How the limits were made.
    """

    value: float
    low: float | None
    high: float | None
    method: str


def auc_over_runs(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    run: Int[np.ndarray, " samples"],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 4000,
) -> RunsAuc:
    """AUC with a percentile bootstrap that draws whole runs, members and non-members together.

    Samples of one run may depend on each other in any way; runs are taken as independent.

    Args:
        scores: One a sample, larger for likelier members; may be infinite.
        is_member: The truth, one a sample.
        run: To which run each belongs.
        rng: Draws the resamples.
        confidence: Two-sided confidence, in (0, 1).
        resamples: Number of resamples.

    Raises:
        BadInput: Fewer than ten runs, a run without samples of both sides, or as :func:`auc`.
    """
    require_confidence(confidence)
    values = as_scores(scores)
    truth = as_truth(is_member, len(values))
    runs, place = np.unique(run, return_inverse=True)
    count = len(runs)
    members, others = (np.bincount(place[side], minlength=count) for side in (truth, ~truth))
    if count < _FEWEST or not (members.all() and others.all()):
        raise BadInput(
            f"an interval over runs needs at least {_FEWEST} runs, each with samples of both "
            f"sides, got {count}"
        )
    # won[i, j]: pairs of a member of run i and a non-member of run j, ties counting half.
    won = np.zeros((count, count))
    sides = [[values[(place == i) & side] for i in range(count)] for side in (truth, ~truth)]
    for i, ours in enumerate(sides[0]):
        for j, theirs in enumerate(sides[1]):
            above, same = ours[:, None] > theirs, ours[:, None] == theirs
            won[i, j] = above.sum() + same.sum() / 2
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    areas = np.einsum("di,ij,dj->d", drawn, won, drawn) / ((drawn @ members) * (drawn @ others))
    value = auc(values, truth)
    if np.ptp(areas) < 1e-12:
        return RunsAuc(value, None, None, f"no spread over {count} runs")
    tail = (1 - confidence) / 2
    low, high = np.quantile(areas, [tail, 1 - tail])
    method = f"bootstrap over {count} runs {percent(confidence)}"
    return RunsAuc(value, float(min(low, value)), float(max(high, value)), method)


class Judged(NamedTuple):
    """What a threshold finds that was chosen on other runs.

    Attributes:
        found: Members above it.
        mistaken: Non-members above it.
    """

    found: Share
    mistaken: Share


def judged_on_others(
    chosen_on: npt.ArrayLike, members: npt.ArrayLike, nonmembers: npt.ArrayLike, *, fpr: float
) -> Judged:
    """Rates at the threshold that at most this share of other runs' non-members exceeds.

    The limits (Clopper-Pearson) hold where members and non-members are one a run.

    Args:
        chosen_on: Scores of non-members of other runs.
        members: Scores to be judged, larger for likelier members.
        nonmembers: Scores to be judged.
        fpr: Share of ``chosen_on`` that may lie above the threshold, in [0, 1).

    Raises:
        BadInput: A side is empty or holds NaNs, or the share is none.
    """
    known, ours, theirs = (as_scores(side) for side in (chosen_on, members, nonmembers))
    if not (len(known) and len(ours) and len(theirs) and 0 <= fpr < 1):
        raise BadInput(
            "a threshold needs scores to choose it on, scores of both sides to judge, and a "
            f"false-positive rate in [0, 1), got {len(known)}, {len(ours)}, {len(theirs)} and {fpr}"
        )
    threshold = np.sort(known)[len(known) - 1 - allowed_false_positives(fpr, len(known))]
    # An infinite score is the highest suspicion, whatever else was seen.
    above = [(side > threshold) | (side == np.inf) for side in (ours, theirs)]
    return Judged(*(share(int(side.sum()), len(side)) for side in above))
