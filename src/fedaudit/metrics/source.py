"""Source inference: whose sample is it, and how much of the answer is the class alone?"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy as sp
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import Limited
from fedaudit.metrics.rate_limits import Share, share

_AT_ONCE = 100
"""Shuffles that are held in memory together."""

_QUANTILE = 1.959963984540054
"""Of the normal distribution, for two-sided limits of 95 %."""

ABSTAINED = -1
"""The answer of an adversary that gives none."""


class SourceNull(NamedTuple):
    """Distribution of a source attack's success when its answers ignore the sources.

    Attributes:
        mean: Mean success over permutations of the sources.
        spread: Their standard deviation.
        high: Their 95 % quantile.
        p_value: One-sided: how often a permutation reaches the true success, never 0.
    """

    mean: float
    spread: float
    high: float
    p_value: float


@dataclass(frozen=True)
class LabelExcess(Limited[float]):
    """Success of a source attack less what label distributions alone explain of it.

    Attributes:
        level: Expected success of the same answers if sources depended on classes alone, in [0, 1].
    """

    level: float


class Paired(NamedTuple):
    """Two ways of inferring sources, compared on the same samples.

    Attributes:
        difference: Success of the first less that of the second, of all samples.
        p_value: Two-sided, exact (McNemar): of samples that one of them named rightly, each is
            as likely to be the one's as the other's.
    """

    difference: float
    p_value: float


def inferred_source(
    posterior: Float[ndarray, "clients samples"], *, least: float = 0.0
) -> Int[ndarray, " samples"]:
    """The likeliest source of each sample, as a position among the clients.

    Args:
        posterior: Chance of each client to be the source; columns sum to 1.
        least: Nobody is named (``ABSTAINED``) where no client's chance reaches this; in [0, 1].

    Raises:
        BadInput: ``least`` is no share, or an entry is not a number.

    Source: SIA, Algorithms 1-3 (arg min of the loss; the lowest index where losses are equal).
    """
    if not 0 <= least <= 1:
        raise BadInput(f"least is a chance that a client must reach, in [0, 1], got {least}")
    if np.isnan(posterior).any():
        raise BadInput(
            f"{int(np.isnan(posterior).any(axis=0).sum())} of {posterior.shape[1]} samples have a "
            "chance that is not a number; check that their losses are finite"
        )
    named = posterior.argmax(axis=0)
    return np.where(posterior.max(axis=0) >= least, named, ABSTAINED).astype(np.int64)


def source_success(named: Int[ndarray, " samples"], source: Int[ndarray, " samples"]) -> Share:
    """Compute the attack success rate: the share of answered samples whose source was inferred.

    Args:
        named: Whom the attack names, ``ABSTAINED`` for nobody.
        source: The client that each sample is really from.

    Raises:
        BadInput: No samples.

    Source: SIA, section 4.2 (attack success rate).
    Differs: With an interval, and silent answers are counted apart.
    """
    _check(named, source)
    answered = named != ABSTAINED
    right = int((named == source).sum())
    total = int(answered.sum())
    return share(right, total) if total else Share(0.0, 0.0, 1.0, 0, 0)


def source_null(
    named: Int[ndarray, " samples"],
    source: Int[ndarray, " samples"],
    *,
    within: Int[ndarray, " samples"] | None = None,
    permutations: int = 1_000,
    rng: np.random.Generator,
) -> SourceNull:
    """Success when sources are shuffled among the samples, or among those of one class.

    Shuffled within classes, sources keep which classes each client has and forget which samples.
    The p-value is exact. The mean is too large as an estimate of what classes explain, because a
    shuffle leaves one in n samples of a class in place: :func:`beyond_labels` estimates that.

    Args:
        named: Whom the attack names; those for whom it names nobody never count as right.
        source: The client that each sample is really from.
        within: Class of each sample; None shuffles among all.
        permutations: How many.
        rng: Decides the shuffles.

    Raises:
        BadInput: No samples.
    """
    _check(named, source)
    groups = np.zeros(len(source), dtype=np.int64) if within is None else within
    right = int((named == source).sum())
    found = np.concatenate(
        [
            _right_when_shuffled(named, source, groups, min(_AT_ONCE, permutations - done), rng)
            for done in range(0, permutations, _AT_ONCE)
        ]
    )
    answered = max(int((named != ABSTAINED).sum()), 1)
    return SourceNull(
        mean=float(found.mean()) / answered,
        spread=float(found.std()) / answered,
        high=float(np.quantile(found, 0.95)) / answered,
        p_value=(1 + int((found >= right).sum())) / (1 + permutations),
    )


def beyond_labels(
    named: Int[ndarray, " samples"],
    source: Int[ndarray, " samples"],
    labels: Int[ndarray, " samples"],
    class_counts: Int[ndarray, "clients classes"] | None = None,
) -> LabelExcess:
    """Estimate what label distributions alone explain of a source attack's success.

    The answers stay as they are, and each sample gets the source of another sample of its class.
    Where the label distributions are known, that is an expectation by Bayes' rule with equal
    priors. Otherwise it is a leave-one-out mean: the sources of all other samples of the class.

    Args:
        named: Client that the attack names; samples without an answer are left out.
        source: The client that each sample is really from, equally many of each.
        labels: Class of each sample.
        class_counts: Training samples of each class that each client has, where the samples are
            random ones of each client's data; None for the leave-one-out estimate. That leaves
            out samples without another one of their class. If every sample is such, nothing is
            beyond labels.

    Raises:
        BadInput: No samples.

    Source: Zou 2007, Toward using confidence intervals to compare correlations (limits of a
        difference of two correlated estimates).
    """
    _check(named, source)
    success = source_success(named, source)
    answered = named != ABSTAINED
    named, source, labels = named[answered], source[answered], labels[answered]
    if class_counts is not None:
        shares = class_counts / class_counts.sum(axis=1, keepdims=True)
        explained = shares[named, labels] / shares.sum(axis=0)[labels]
        influence, right = explained, named == source
    else:
        kept, explained, influence = _left_one_out(named, source, labels)
        right = (named == source)[kept]
    if not len(explained):
        value = success.value
        return LabelExcess(0.0, success.low - value, success.high - value, level=value)
    level = float(explained.mean())
    error = _QUANTILE * float(influence.std()) / len(influence) ** 0.5
    varies = influence.std() > 0 and right.std() > 0
    correlation = float(np.corrcoef(influence, right)[0, 1]) if varies else 0.0
    below, above = (
        max(side**2 + error**2 - 2 * correlation * side * error, 0.0) ** 0.5
        for side in (success.value - success.low, success.high - success.value)
    )
    excess = success.value - level
    return LabelExcess(excess, max(excess - below, -1.0), min(excess + above, 1.0), level=level)


def _left_one_out(
    named: Int[ndarray, " samples"],
    source: Int[ndarray, " samples"],
    labels: Int[ndarray, " samples"],
) -> tuple[Bool[ndarray, " samples"], Float[ndarray, " kept"], Float[ndarray, " kept"]]:
    """Return the samples that are not alone in their class, and two values of each.

    The first is the share of the others in its class whose source is the client that is named for
    it. The second adds the share of them for which its own source is named: the mean is a
    U-statistic, so that each sample moves it in both ways.
    """
    clients = int(max(named.max(initial=0), source.max(initial=0))) + 1
    _, label, size = np.unique(labels, return_inverse=True, return_counts=True)
    as_source, as_named, together = np.zeros((3, len(size), clients))
    np.add.at(as_source, (label, source), 1)
    np.add.at(as_named, (label, named), 1)
    right = named == source
    np.add.at(together, (label, source), right)
    # A client has one sample less among the others, although all have as many: they count more.
    asked = np.bincount(source, minlength=clients)[source]
    weight = asked / np.maximum(asked - 1, 1)
    same = as_source[label, source] - 1
    others = size[label] - 1 - same + weight * same
    kept = others > 0
    by_source = np.where(right, weight * same, as_source[label, named])
    right_others = together[label, source] - right
    by_named = as_named[label, source] - right - right_others + weight * right_others
    explained = (by_source / np.maximum(others, 1))[kept]
    return kept, explained, explained + (by_named / np.maximum(others, 1))[kept]


def by_label_distribution(
    class_counts: Int[ndarray, "clients classes"], labels: Int[ndarray, " samples"]
) -> Int[ndarray, " samples"]:
    """The label-distribution baseline: the client of whose data the sample's class is most.

    Equally many samples of every client are asked about, so that the likeliest source of a sample
    of a class is the client with the largest share of it among its own data, not the one with
    the largest count (Bayes' rule with equal priors); the first of several. It looks at no model,
    and knows of each client only how many samples of which class it has.

    Args:
        class_counts: Training samples of each class that each client has.
        labels: Class of each sample.

    Raises:
        BadInput: A client has no sample.
    """
    sizes = class_counts.sum(axis=1, keepdims=True)
    if not sizes.all():
        raise BadInput(
            "the label-distribution baseline needs clients with samples, got none of client "
            f"{int(np.flatnonzero(sizes[:, 0] == 0)[0])}; leave out clients without samples"
        )
    # Whole numbers compare exactly: two shares that are equal may differ as floats.
    best = np.zeros(class_counts.shape[1], dtype=np.int64)
    for client in range(1, len(class_counts)):
        theirs = class_counts[client] * sizes[best, 0]
        best = np.where(
            theirs > class_counts[best, np.arange(len(best))] * sizes[client], client, best
        )
    return np.asarray(best[labels], dtype=np.int64)


def confusion(
    named: Int[ndarray, " samples"], source: Int[ndarray, " samples"], clients: int
) -> Int[ndarray, "clients clients"]:
    """Confusion matrix: samples of each client (row) attributed to each client (column).

    Args:
        named: Whom the attack names; silent answers are left out.
        source: The client that each sample is really from.
        clients: How many there are.

    Raises:
        BadInput: No samples.
    """
    _check(named, source)
    answered = named != ABSTAINED
    counts = np.zeros((clients, clients), dtype=np.int64)
    np.add.at(counts, (source[answered], named[answered]), 1)
    return counts


def paired(one_right: Bool[ndarray, " samples"], other_right: Bool[ndarray, " samples"]) -> Paired:
    """Tests if one attack infers more sources than another, on the same samples.

    Args:
        one_right: Where the first way is right.
        other_right: Where the second is.
    """
    first, second = int((one_right & ~other_right).sum()), int((other_right & ~one_right).sum())
    differ = first + second
    p_value = float(sp.stats.binomtest(first, differ, 0.5).pvalue) if differ else 1.0
    return Paired((first - second) / max(len(one_right), 1), p_value)


def _right_when_shuffled(
    named: Int[ndarray, " samples"],
    source: Int[ndarray, " samples"],
    groups: Int[ndarray, " samples"],
    count: int,
    rng: np.random.Generator,
) -> Int[ndarray, " shuffles"]:
    """Agreement of the answers with each of some shuffles of the sources, within groups."""
    # Whole numbers plus a fraction: in order of groups, and at random within each.
    at_random = (groups + rng.random((count, len(source)))).argsort(axis=1)
    in_order = np.argsort(groups, kind="stable")
    return np.asarray((named[in_order] == source[at_random]).sum(axis=1), dtype=np.int64)


def _check(named: Int[ndarray, " samples"], source: Int[ndarray, " samples"]) -> None:
    if not len(source) or len(named) != len(source):
        raise BadInput(
            f"source inference needs at least one sample and an answer for each, got "
            f"{len(named)} answers for {len(source)} samples"
        )
