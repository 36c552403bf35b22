"""Success of source inference, and the success that label distributions alone explain.

Functions that evaluate answers take ``inferred``, the inferred source of each sample, and
``source``, the client that the sample comes from. An inferred source is ``ABSTAINED`` if the
adversary abstains. These functions raise an error if there are no samples.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy as sp
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import EstimateWithLimits
from fedaudit.metrics.rate_limits import Proportion, proportion

_PERMUTATIONS_IN_MEMORY = 100
"""Largest number of permutations in memory at the same time."""

_NORMAL_QUANTILE = 1.959963984540054
"""Quantile of the normal distribution for two-sided 95 % limits."""

ABSTAINED = -1
"""Inferred source of a sample for which the adversary abstains."""


class SourceNull(NamedTuple):
    """Distribution of a source attack's success rate when sources are permuted.

    Attributes:
        mean: Mean success rate over permutations of the sources.
        std: Standard deviation of the success rate over permutations.
        quantile_95: 95 % quantile of the success rate over permutations.
        p_value: One-sided p-value: fraction of permutations with at least the observed success
            rate. The observed order counts as one permutation, so the p-value is never 0.
    """

    mean: float
    std: float
    quantile_95: float
    p_value: float


@dataclass(frozen=True)
class ExcessOverLabels(EstimateWithLimits[float]):
    """Success rate of a source attack minus the rate that label distributions alone explain.

    Attributes:
        explained_rate: Expected success rate of the same answers if sources depended only on
            classes, in [0, 1].
    """

    explained_rate: float


class McNemarTest(NamedTuple):
    """Comparison of two source attacks on the same samples by McNemar's test.

    Attributes:
        difference: Success rate of the first attack minus that of the second, over all samples.
        p_value: Exact two-sided p-value. The null hypothesis is: if exactly one attack is correct
            on a sample, each attack is equally likely to be the correct one.
    """

    difference: float
    p_value: float


def infer_source(
    posterior: Float[ndarray, "clients samples"], *, min_posterior: float = 0.0
) -> Int[ndarray, " samples"]:
    """Infer the likeliest source of each sample, as a position among the clients.

    Args:
        posterior: Probability that each client is the source; columns sum to 1.
        min_posterior: Smallest posterior of the likeliest client at which the adversary answers, in
            [0, 1]. Below it, the adversary abstains (``ABSTAINED``).

    Raises:
        BadInput: ``min_posterior`` is out of range, or an entry is NaN.

    Source: Hu et al. 2024 (SIA), Algorithms 1-3 (arg min of the loss; the lowest index if losses
        are equal).
    """
    if not 0 <= min_posterior <= 1:
        raise BadInput(f"the smallest probability of an answer is in [0, 1], got {min_posterior}")
    if np.isnan(posterior).any():
        raise BadInput(
            f"{int(np.isnan(posterior).any(axis=0).sum())} of {posterior.shape[1]} samples have a "
            "probability that is not a number; check that their losses are finite"
        )
    likeliest = posterior.argmax(axis=0)
    return np.where(posterior.max(axis=0) >= min_posterior, likeliest, ABSTAINED).astype(np.int64)


def source_success(
    inferred: Int[ndarray, " samples"], source: Int[ndarray, " samples"]
) -> Proportion:
    """Compute the attack success rate: the fraction of answers that are correct.

    Source: Hu et al. 2024 (SIA), section 4.2 (attack success rate).
    Differs: The rate has an interval, and samples for which the adversary abstains are left out.
    """
    _raise_if_mismatched(inferred, source)
    correct = int((inferred == source).sum())
    answers = int((inferred != ABSTAINED).sum())
    return proportion(correct, answers) if answers else Proportion(0.0, 0.0, 1.0, 0, 0)


def source_null(
    inferred: Int[ndarray, " samples"],
    source: Int[ndarray, " samples"],
    *,
    within: Int[ndarray, " samples"] | None = None,
    permutations: int = 1_000,
    rng: np.random.Generator,
) -> SourceNull:
    """Compute the success rate when sources are permuted among all samples, or within classes.

    Permuting within classes preserves the label distribution of each client. The p-value is exact.
    The mean overestimates the success rate that classes explain: in a class of n samples, a
    permutation leaves each sample at its position with probability 1/n. To estimate that rate, use
    :func:`excess_over_labels`.

    Args:
        inferred: The inferred source of each sample; ``ABSTAINED`` never counts as correct.
        source: The client that each sample comes from.
        within: Class of each sample. If None, sources are permuted among all samples.
        permutations: Number of permutations.
        rng: Draws the permutations.

    Raises:
        BadInput: No samples.
    """
    _raise_if_mismatched(inferred, source)
    groups = np.zeros(len(source), dtype=np.int64) if within is None else within
    n_correct = int((inferred == source).sum())
    chunks = []
    for start in range(0, permutations, _PERMUTATIONS_IN_MEMORY):
        size = min(_PERMUTATIONS_IN_MEMORY, permutations - start)
        chunks.append(_correct_when_permuted(inferred, source, groups, size, rng))
    permuted = np.concatenate(chunks)
    n_answers = max(int((inferred != ABSTAINED).sum()), 1)
    return SourceNull(
        mean=float(permuted.mean()) / n_answers,
        std=float(permuted.std()) / n_answers,
        quantile_95=float(np.quantile(permuted, 0.95)) / n_answers,
        p_value=(1 + int((permuted >= n_correct).sum())) / (1 + permutations),
    )


def excess_over_labels(
    inferred: Int[ndarray, " samples"],
    source: Int[ndarray, " samples"],
    labels: Int[ndarray, " samples"],
    class_counts: Int[ndarray, "clients classes"] | None = None,
) -> ExcessOverLabels:
    """Estimate the success rate of a source attack beyond what label distributions explain.

    The explained rate is the expected success rate if the attack's answers stayed the same and each
    sample's source were drawn at random given its class. With ``class_counts``, the distribution of
    sources follows from Bayes' rule with equal priors. Without them, it is that of the other
    samples of the class, reweighted to equal priors.

    Args:
        inferred: The inferred source of each sample; samples with ``ABSTAINED`` are left out.
        source: The client that each sample comes from, with equally many samples of each client.
        labels: Class of each sample.
        class_counts: Number of training samples of each class that each client has. Pass it only if
            the samples are drawn at random from each client's data. If None, samples that are the
            only ones of their class are left out. If no sample remains, the excess is 0.

    Raises:
        BadInput: No samples.

    Source: Zou 2007, Toward using confidence intervals to compare correlations (limits of a
        difference of two correlated estimates).
    """
    success = source_success(inferred, source)
    answered = inferred != ABSTAINED
    inferred, source, labels = inferred[answered], source[answered], labels[answered]
    if class_counts is not None:
        proportions = class_counts / class_counts.sum(axis=1, keepdims=True)
        explained = proportions[inferred, labels] / proportions.sum(axis=0)[labels]
        influence, is_correct = explained, inferred == source
    else:
        usable, explained, influence = _leave_one_out(inferred, source, labels)
        is_correct = (inferred == source)[usable]
    if not len(explained):
        value = success.value
        return ExcessOverLabels(
            0.0, success.low - value, success.high - value, explained_rate=value
        )
    explained_rate = float(explained.mean())
    error = _NORMAL_QUANTILE * float(influence.std()) / len(influence) ** 0.5
    varies = influence.std() > 0 and is_correct.std() > 0
    correlation = float(np.corrcoef(influence, is_correct)[0, 1]) if varies else 0.0

    def distance_to_limit(success_error: float) -> float:
        squared = success_error**2 + error**2 - 2 * correlation * success_error * error
        return float(max(squared, 0.0) ** 0.5)

    excess = success.value - explained_rate
    low = excess - distance_to_limit(success.value - success.low)
    high = excess + distance_to_limit(success.high - success.value)
    return ExcessOverLabels(excess, max(low, -1.0), min(high, 1.0), explained_rate=explained_rate)


def _leave_one_out(
    inferred: Int[ndarray, " samples"],
    source: Int[ndarray, " samples"],
    labels: Int[ndarray, " samples"],
) -> tuple[Bool[ndarray, " samples"], Float[ndarray, " usable"], Float[ndarray, " usable"]]:
    """Return a mask of samples that are not the only ones of their class, and two values of each.

    The first value is the fraction of the class's other samples that come from the client inferred
    for this sample. The second value is the influence of the sample on the mean of the first
    values. This mean is a U-statistic. The influence is therefore the first value plus the fraction
    of the class's other samples whose inferred source is the true client of this sample.
    """
    clients = int(max(inferred.max(initial=0), source.max(initial=0))) + 1
    _, label, class_size = np.unique(labels, return_inverse=True, return_counts=True)
    # Numbers of samples by class and client.
    n_source, n_inferred, n_correct = np.zeros((3, len(class_size), clients))
    np.add.at(n_source, (label, source), 1)
    np.add.at(n_inferred, (label, inferred), 1)
    is_correct = inferred == source
    np.add.at(n_correct, (label, source), is_correct)
    # Leaving a sample out makes its client under-represented. A weight restores equal priors.
    per_client = np.bincount(source, minlength=clients)[source]
    weight = per_client / np.maximum(per_client - 1, 1)
    same_client = n_source[label, source] - 1
    n_others = class_size[label] - 1 - same_client + weight * same_client
    usable = n_others > 0
    by_source = np.where(is_correct, weight * same_client, n_source[label, inferred])
    correct = n_correct[label, source] - is_correct
    by_inferred = n_inferred[label, source] - is_correct - correct + weight * correct
    explained = (by_source / np.maximum(n_others, 1))[usable]
    return usable, explained, explained + (by_inferred / np.maximum(n_others, 1))[usable]


def infer_by_label_distribution(
    class_counts: Int[ndarray, "clients classes"], labels: Int[ndarray, " samples"]
) -> Int[ndarray, " samples"]:
    """Infer sources by the label-distribution baseline, which uses no model.

    The inferred source is the client in whose data the sample's class has the largest proportion;
    the first of several such clients. This is Bayes' rule with equal priors, since the audit has
    equally many samples of every client. The baseline uses only the class counts of each client.

    Args:
        class_counts: Number of training samples of each class that each client has.
        labels: Class of each sample.

    Raises:
        BadInput: A client has no training samples.
    """
    sizes = class_counts.sum(axis=1, keepdims=True)
    if not sizes.all():
        raise BadInput(
            "the label-distribution baseline needs clients with samples, but client "
            f"{int(np.flatnonzero(sizes[:, 0] == 0)[0])} has none; leave out such clients"
        )
    # Proportions are compared as cross-multiplied integers, because equal ones may differ as
    # floating-point numbers.
    best = np.zeros(class_counts.shape[1], dtype=np.int64)
    for client in range(1, len(class_counts)):
        client_counts = class_counts[client] * sizes[best, 0]
        best_counts = class_counts[best, np.arange(len(best))] * sizes[client]
        best = np.where(client_counts > best_counts, client, best)
    return np.asarray(best[labels], dtype=np.int64)


def confusion_matrix(
    inferred: Int[ndarray, " samples"], source: Int[ndarray, " samples"], clients: int
) -> Int[ndarray, "clients clients"]:
    """Count the samples of each client (row) for which each client (column) was inferred."""
    _raise_if_mismatched(inferred, source)
    answered = inferred != ABSTAINED
    counts = np.zeros((clients, clients), dtype=np.int64)
    np.add.at(counts, (source[answered], inferred[answered]), 1)
    return counts


def mcnemar_test(
    first: Bool[ndarray, " samples"], second: Bool[ndarray, " samples"]
) -> McNemarTest:
    """Test whether two attacks are equally often correct on the same samples.

    Args:
        first: Whether the first attack is correct on each sample.
        second: The same for the second attack.
    """
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    differ = only_first + only_second
    p_value = float(sp.stats.binomtest(only_first, differ, 0.5).pvalue) if differ else 1.0
    return McNemarTest((only_first - only_second) / max(len(first), 1), p_value)


def _correct_when_permuted(
    inferred: Int[ndarray, " samples"],
    source: Int[ndarray, " samples"],
    groups: Int[ndarray, " samples"],
    count: int,
    rng: np.random.Generator,
) -> Int[ndarray, " shuffles"]:
    """Count the correct answers for random permutations of the sources within groups."""
    # Sorting group numbers plus random fractions sorts by group and shuffles within each group.
    shuffled = (groups + rng.random((count, len(source)))).argsort(axis=1)
    by_group = np.argsort(groups, kind="stable")
    return np.asarray((inferred[by_group] == source[shuffled]).sum(axis=1), dtype=np.int64)


def _raise_if_mismatched(
    inferred: Int[ndarray, " samples"], source: Int[ndarray, " samples"]
) -> None:
    if not len(source) or len(inferred) != len(source):
        raise BadInput(
            f"source inference needs at least one sample and an inferred source for each, got "
            f"{len(inferred)} inferred sources for {len(source)} samples"
        )
