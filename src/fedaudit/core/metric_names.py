"""Names and chance levels of metrics, and the possible origins of samples."""

import re
from enum import IntEnum


class Origin(IntEnum):
    """Origin of a sample from the point of view of one target client.

    Attributes:
        MEMBER: The target client trained on it.
        OTHER_CLIENT: Another client of the federation trained on it. The literature calls it an
            in-federation non-member (IFL).
        UNSEEN: No client trained on it. The literature calls it an out-of-federation non-member
            (OFL).

    Examples:
        >>> import fedaudit as fa
        >>> fa.Origin.MEMBER.value, fa.Origin.UNSEEN.value
        (0, 2)
    """

    MEMBER = 0
    OTHER_CLIENT = 1
    UNSEEN = 2


AUC = "auc"
TPR = "tpr"
"""True-positive rate; :func:`tpr_at` names it with its false-positive rate."""
BALANCED_ACCURACY = "balanced_accuracy"
EPSILON = "epsilon"
"""Lower bound on epsilon from the success of attacks."""
EPSILON_IF_GAUSSIAN = "epsilon_if_gaussian"
"""Lower bound on epsilon from the canary samples of one run, valid for a Gaussian mechanism."""
EPSILON_IF_NORMAL = "epsilon_if_normal"
"""Lower bound on epsilon from mean scores of canary samples, valid for normal scores."""
FORMAL_EPSILON = "formal_epsilon"
"""Proven epsilon of the whole training, for an observer of all messages."""
FORMAL_EPSILON_OF_A_ROUND = "formal_epsilon_of_a_round"
"""Proven epsilon for an observer of one round's upload."""

CLIENT_EPSILON = "client_epsilon"
"""Lower bound on the epsilon of one client's update. It assumes only that canary clients' random
draws are fair."""
CLIENT_EPSILON_IF_GAUSSIAN = "client_epsilon_if_gaussian"
"""Lower bound on the epsilon of one client's update, valid for a Gaussian mechanism in which all
clients take part."""
CLAIMED_CLIENT_EPSILON = "claimed_client_epsilon"
"""Epsilon that a defense claims for one client's update in the released models."""
CLAIMED_CLIENT_EPSILON_WITHOUT_CANARIES = "claimed_client_epsilon_without_canaries"
"""Claimed epsilon for the deployed federation, which has less noise without canary clients."""

FORGOTTEN, NOT_FORGOTTEN, OVERCORRECTED = "forgotten", "not forgotten", "overdone"
NO_LEAK_BEFORE, INCONCLUSIVE = "not detected before", "inconclusive"
DESTROYED = "model destroyed"
"""Verdicts on unlearning, as results store them; see :mod:`fedaudit.metrics.unlearning`."""

SECURE_SUM_EPSILON = "secure_sum_epsilon"
"""Lower bound on the epsilon of one client's update in a round's sum. It is computed from the error
counts of a test on sums to which the test was not fitted."""
SECURE_SUM_EPSILON_IF_GAUSSIAN = "secure_sum_epsilon_if_gaussian"
"""As ``SECURE_SUM_EPSILON``, valid if the attack's statistic of a sum is normally distributed."""

LOWER_BOUNDS = frozenset(
    {
        EPSILON,
        EPSILON_IF_GAUSSIAN,
        EPSILON_IF_NORMAL,
        CLIENT_EPSILON,
        CLIENT_EPSILON_IF_GAUSSIAN,
        SECURE_SUM_EPSILON,
        SECURE_SUM_EPSILON_IF_GAUSSIAN,
    }
)
"""Metrics whose values are lower bounds. Reports round them down."""


def tpr_at(fpr: float) -> str:
    """Return the name of the true-positive rate at a false-positive rate, such as "tpr@0.01"."""
    return f"{TPR}@{fpr:g}"


HEADLINE_METRICS = (AUC, tpr_at(0.01), tpr_at(0.001))
"""Metrics of verdicts, in the order of a report's columns."""


def rate_of(metric: str) -> float | None:
    """Return the false-positive rate of a metric such as "tpr@0.001"; None for other metrics."""
    match = re.fullmatch(rf"{TPR}@(0?\.\d+|0|1)", metric)
    return float(match[1]) if match else None


def chance_of(metric: str) -> float | None:
    """Return the chance level: 0.5 for AUC and balanced accuracy, the rate itself for a TPR."""
    if metric in (AUC, BALANCED_ACCURACY):
        return 0.5
    return rate_of(metric)
