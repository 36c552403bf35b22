"""Names of figures, the range of each, and how its errors in several runs go together."""

from functools import lru_cache
from typing import NamedTuple

from fedaudit.results.fields import LARGEST

SUCCESS_RATE = "attack_success_rate"
"""Share of samples whose client a source attack identifies."""

TEST_ACCURACY = "test_accuracy"
TRAIN_ACCURACY = "train_accuracy"
GENERALISATION_GAP = "generalisation_gap"
UPLOAD_GAP = "upload_gap"
"""Figures of utility. The upload gap is the generalisation gap of the clients' own models on their
own samples, in the last measured round, averaged over clients. It uses the uploaded models, or
the local ones if clients upload none. It is missing if no single upload is observed, mostly in
clustered federations."""

ACCURACY = "accuracy"
MODEL_RISK = "risk of the model"
MODEL_ESTIMATE = "estimated risk of the model"
CLIENT_RISK = "mean risk of a client"
CLIENT_ESTIMATE = "mean estimated risk of a client"
ESTIMATE_ERROR = "error of the estimate"
VIOLATIONS = "violations"
SURE_VIOLATIONS = "sure violations"
EXPECTED_VIOLATIONS = "expected violations"
CHANCE_VIOLATIONS = "violations by chance"
OWN_MODEL = "clients with the model"
MOVED = "clients that moved"
MOVED_AT_THE_END = "clients that moved at the end"
AGREEMENT = "agreement with the groups"
"""Figures of clustered learning, in addition to the fairness gaps."""

COUNTS = (
    VIOLATIONS,
    SURE_VIOLATIONS,
    EXPECTED_VIOLATIONS,
    CHANCE_VIOLATIONS,
    OWN_MODEL,
    MOVED,
    MOVED_AT_THE_END,
)
"""Numbers of clients."""
FAIRNESS_GAPS = ("demographic parity", "equal opportunity", "equalised odds")
"""Absolute differences between groups; with many classes the mean over classes."""
_RISKS = (MODEL_RISK, MODEL_ESTIMATE, CLIENT_RISK, CLIENT_ESTIMATE, ESTIMATE_ERROR)
_SHARES = ("auc", "accuracy", "_rate", "_share", "tpr")
_ON_THE_SAME_SAMPLES = (TEST_ACCURACY, ACCURACY, *FAIRNESS_GAPS)


class Range(NamedTuple):
    """Range with both ends included."""

    least: float
    most: float


@lru_cache(maxsize=1024)
def range_of(metric: str) -> Range:
    """Return the range of a metric, such as [0, 1] for shares."""
    if metric.startswith("tpr@") or metric.endswith(_SHARES) or metric in (*_RISKS, *FAIRNESS_GAPS):
        return Range(0.0, 1.0)
    if metric in (GENERALISATION_GAP, UPLOAD_GAP, AGREEMENT):
        return Range(-1.0, 1.0)
    return Range(0.0 if metric in COUNTS or "epsilon" in metric else -LARGEST, LARGEST)


def errors_cancel(metric: str) -> bool:
    """Return True if the errors of several runs cancel, because each run audits its own samples.

    False for accuracies and gaps on shared test samples, and for rates at a threshold that each run
    chooses.
    """
    return not metric.startswith("tpr@") and metric not in _ON_THE_SAME_SAMPLES
