"""Success of label inference: which classes occur in the training data of which client."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.metrics.delong import clustered_auc
from fedaudit.metrics.intervals import IntervalEstimate
from fedaudit.metrics.roc import midranks


class PermutedAuc(NamedTuple):
    """Distribution of an AUC over random permutations of the true labels.

    Attributes:
        mean: Mean AUC over the permutations.
        quantile_95: 95 % quantile of the AUC over the permutations.
        p_value: One-sided p-value: fraction of permutations with at least the observed AUC. The
            observed order counts as one permutation, so the p-value is never 0.
    """

    mean: float
    quantile_95: float
    p_value: float


@dataclass(frozen=True)
class LabelInferenceAuc(IntervalEstimate[float]):
    """AUC of label inference over pairs of a client and a class, with two tests.

    Attributes:
        permuted_classes: AUC if the classes are permuted within each client. Its mean is close to
            0.5. It differs from 0.5 if the mean score of a client depends on its number of classes.
        permuted_clients: AUC if each client has the classes of another, randomly chosen client. It
            shows what an adversary finds who knows only how many clients have each class.
    """

    permuted_classes: PermutedAuc
    permuted_clients: PermutedAuc


def label_inference_auc(
    scores: Float[ndarray, "clients classes"],
    has_class: Bool[ndarray, "_ _"],
    *,
    permutations: int = 999,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> LabelInferenceAuc:
    """Compute the AUC of label inference over all pairs of a client and a class.

    Scores of pairs in which the client has the class are compared with scores of all other pairs.
    The pairs of one client may depend on each other in any way, so clients are the units of the
    interval (:func:`fedaudit.metrics.clustered_auc`).

    Args:
        scores: One score per pair; a larger score suggests that the client has the class.
        has_class: Whether the class occurs in the client's training data.
        permutations: Number of permutations in each test.
        rng: Draws the permutations.
        confidence: Two-sided confidence of the interval, in (0, 1).

    Raises:
        BadInput: All clients have the same classes, so that no permutation of clients changes
            anything, the shapes differ, or a score is NaN.
    """
    if scores.shape != has_class.shape:
        raise BadInput(
            "scores and has_class need one entry for each client and class, got the shapes "
            f"{scores.shape} and {has_class.shape}"
        )
    if not len(has_class) or (has_class == has_class[0]).all():
        raise BadInput(
            f"label inference needs clients with different classes, but all {len(has_class)} "
            "clients have the same; divide the data differently, such as by a Dirichlet partition"
        )
    client = np.arange(len(scores)).repeat(scores.shape[1])
    interval = clustered_auc(scores.ravel(), has_class.ravel(), client, confidence=confidence)
    ranks = midranks(scores.ravel()).reshape(scores.shape)
    # The AUC depends only on the rank sum of the members: the pairs in which the client has the
    # class. overlap[i, j] is the sum of the ranks of client i's scores for the classes of client j.
    overlap = ranks @ has_class.T
    rows = np.arange(len(scores))
    of_clients = [overlap[rows, rng.permutation(len(scores))].sum() for _ in range(permutations)]
    of_classes = [(ranks * rng.permuted(has_class, axis=1)).sum() for _ in range(permutations)]
    return LabelInferenceAuc(
        interval.value,
        interval.low,
        interval.high,
        interval.method.replace("people", "clients"),
        permuted_classes=_permuted_auc(np.array(of_classes), ranks, has_class),
        permuted_clients=_permuted_auc(np.array(of_clients), ranks, has_class),
    )


def _permuted_auc(
    rank_sums: Float[ndarray, " permutations"],
    ranks: Float[ndarray, "clients classes"],
    has_class: Bool[ndarray, "clients classes"],
) -> PermutedAuc:
    """Return the distribution of the AUC from the rank sums of permuted pairs."""
    n_members, observed = int(has_class.sum()), float(ranks[has_class].sum())
    n_comparisons = n_members * (has_class.size - n_members)
    aucs = (rank_sums - n_members * (n_members + 1) / 2) / n_comparisons
    # Rank sums are multiples of 0.5, so that equal ones compare as equal.
    n_as_large = int((rank_sums >= observed).sum())
    return PermutedAuc(
        float(aucs.mean()), float(np.quantile(aucs, 0.95)), (1 + n_as_large) / (1 + len(aucs))
    )
