"""From scores and the truth to figures with intervals.

Importing this package does not import torch.
"""

from fedaudit.metrics.balanced import (
    HeldOutAccuracy,
    OptimisticAccuracy,
    balanced_accuracy,
    best_balanced_accuracy,
    held_out_balanced_accuracy,
)
from fedaudit.metrics.blind import BlindClassifier, BlindResult, blind_classifier
from fedaudit.metrics.delong import AucDifference, AucInterval, auc_interval, compare_auc
from fedaudit.metrics.epsilon import (
    Counts,
    EpsilonBound,
    clopper_pearson_epsilon,
    gaussian_epsilon,
)
from fedaudit.metrics.evaluate import CONTRASTS, Estimate, evaluate
from fedaudit.metrics.family import Holm, above_chance, combined, holm, rate_above_chance
from fedaudit.metrics.groups import (
    Exposed,
    GroupAuc,
    above_nonmembers,
    auc_by_group,
    auc_by_owner,
    most_exposed,
)
from fedaudit.metrics.hypervolume import (
    FrontArea,
    advantage,
    hypervolume,
    hypervolume_over_seeds,
    on_front,
)
from fedaudit.metrics.intervals import (
    Interval,
    Limited,
    SeedMean,
    averaged,
    bootstrap_over_seeds,
    clopper_pearson,
    counted_limits,
    held_together,
    lower_limit,
    over_further_runs,
    summed,
    upper_limit,
)
from fedaudit.metrics.legacy import redraw
from fedaudit.metrics.one_run import (
    Guesses,
    one_run_bound,
    one_run_epsilon,
    one_run_gaussian_bound,
)
from fedaudit.metrics.permuted import PermutationNull, permuted_membership
from fedaudit.metrics.rate_limits import (
    RateLimits,
    limits_at_threshold,
    limits_of_rate,
    lower_rate_limit,
    n_to_bound,
    rate_limits,
    upper_rate_limit,
)
from fedaudit.metrics.rates import (
    CalibratedTpr,
    Share,
    calibrated_tpr,
    inconclusive,
    n_needed,
    n_to_certify,
    share,
    true_fpr_range,
)
from fedaudit.metrics.roc import Roc, TprAtFpr, auc, roc_curve, thin, tpr_at_fpr
from fedaudit.metrics.utility import Gap, accuracy, generalisation_gap

__all__ = [
    "CONTRASTS",
    "AucDifference",
    "AucInterval",
    "BlindClassifier",
    "BlindResult",
    "CalibratedTpr",
    "Counts",
    "EpsilonBound",
    "Estimate",
    "Exposed",
    "FrontArea",
    "Gap",
    "GroupAuc",
    "Guesses",
    "HeldOutAccuracy",
    "Holm",
    "Interval",
    "Limited",
    "OptimisticAccuracy",
    "PermutationNull",
    "RateLimits",
    "Roc",
    "SeedMean",
    "Share",
    "TprAtFpr",
    "above_chance",
    "above_nonmembers",
    "accuracy",
    "advantage",
    "auc",
    "auc_by_group",
    "auc_by_owner",
    "auc_interval",
    "averaged",
    "balanced_accuracy",
    "best_balanced_accuracy",
    "blind_classifier",
    "bootstrap_over_seeds",
    "calibrated_tpr",
    "clopper_pearson",
    "clopper_pearson_epsilon",
    "combined",
    "compare_auc",
    "counted_limits",
    "evaluate",
    "gaussian_epsilon",
    "generalisation_gap",
    "held_out_balanced_accuracy",
    "held_together",
    "holm",
    "hypervolume",
    "hypervolume_over_seeds",
    "inconclusive",
    "limits_at_threshold",
    "limits_of_rate",
    "lower_limit",
    "lower_rate_limit",
    "most_exposed",
    "n_needed",
    "n_to_bound",
    "n_to_certify",
    "on_front",
    "one_run_bound",
    "one_run_epsilon",
    "one_run_gaussian_bound",
    "over_further_runs",
    "permuted_membership",
    "rate_above_chance",
    "rate_limits",
    "redraw",
    "roc_curve",
    "share",
    "summed",
    "thin",
    "tpr_at_fpr",
    "true_fpr_range",
    "upper_limit",
    "upper_rate_limit",
]
