"""What scores are evaluated by: true origins of samples, and names and chance levels of metrics."""

import re
from enum import IntEnum


class Origin(IntEnum):
    """Provenance of a sample with respect to one target client.

    Attributes:
        MEMBER: The target client trained on it.
        OTHER_CLIENT: Another client of the federation trained on it (the literature's
            in-federation non-member, IFL).
        UNSEEN: Nobody trained on it (out-of-federation non-member, OFL).

    Examples:
        >>> Origin.MEMBER.value, Origin.UNSEEN.value
        (0, 2)
    """

    MEMBER = 0
    OTHER_CLIENT = 1
    UNSEEN = 2


AUC = "auc"
TPR = "tpr"
"""The true-positive rate; at a false-positive rate it is named by :func:`tpr_at`."""
BALANCED_ACCURACY = "balanced_accuracy"
EPSILON = "epsilon"
"""A lower bound on epsilon that attacks have shown."""
EPSILON_IF_GAUSSIAN = "epsilon_if_gaussian"
"""The same of a canary record, if the training is as private as a Gaussian mechanism."""
EPSILON_IF_NORMAL = "epsilon_if_normal"
"""The same from the mean scores of canary records alone, if scores are normal."""
FORMAL_EPSILON = "formal_epsilon"
"""The proven epsilon of the whole training: that of an observer of everything."""
FORMAL_EPSILON_OF_A_ROUND = "formal_epsilon_of_a_round"
"""The proven epsilon for an observer of one round's upload."""

CLIENT_EPSILON = "client_epsilon"
"""A lower bound on the epsilon of one client's update, which rests on fair coins alone."""
CLIENT_EPSILON_IF_GAUSSIAN = "client_epsilon_if_gaussian"
"""The same for a Gaussian mechanism in which all clients take part."""
CLAIMED_CLIENT_EPSILON = "claimed_client_epsilon"
"""The epsilon that a defense claims for one client's update in the released models."""
CLAIMED_CLIENT_EPSILON_ALONE = "claimed_client_epsilon_without_canaries"
"""The same for the federation without canary clients, whose noise is less."""

FORGOTTEN, NOT_FORGOTTEN, OVERDONE = "forgotten", "not forgotten", "overdone"
UNTOLD, CANNOT_TELL = "told nothing before", "cannot be told"
DESTROYED = "model destroyed"
"""Verdicts on unlearning, each by one score: see :mod:`fedaudit.metrics.unlearning`."""
SECURE_SUM_EPSILON = "secure_sum_epsilon"
"""A lower bound on the epsilon of one client's update in one round's sum, counted on fresh sums."""
SECURE_SUM_EPSILON_IF_GAUSSIAN = "secure_sum_epsilon_if_gaussian"
"""The same where what is read from a sum is normal."""


def tpr_at(fpr: float) -> str:
    """Name of the true-positive rate at a false-positive rate, such as "tpr@0.01"."""
    return f"{TPR}@{fpr:g}"


HEADLINE_METRICS = (AUC, tpr_at(0.01), tpr_at(0.001))
"""The metrics that verdicts are of, in the order of a report's columns."""


def rate_of(metric: str) -> float | None:
    """The false-positive rate of a metric such as "tpr@0.001"; None for any other."""
    found = re.fullmatch(rf"{TPR}@(0?\.\d+|0|1)", metric)
    return float(found[1]) if found else None


def chance_of(metric: str) -> float | None:
    """The level of chance: 0.5 for AUC and balanced accuracy, the rate itself for a TPR."""
    if metric in (AUC, BALANCED_ACCURACY):
        return 0.5
    return rate_of(metric)
