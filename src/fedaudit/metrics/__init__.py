"""Metrics of attack scores, with confidence intervals.

Most names are imported when they are first used. No module of this package imports torch.
"""

from typing import TYPE_CHECKING

from fedaudit.core.lazy import lazy_names

if TYPE_CHECKING:
    from fedaudit.metrics.balanced import HeldOutAccuracy as HeldOutAccuracy
    from fedaudit.metrics.balanced import OptimisticAccuracy as OptimisticAccuracy
    from fedaudit.metrics.balanced import balanced_accuracy as balanced_accuracy
    from fedaudit.metrics.balanced import best_balanced_accuracy as best_balanced_accuracy
    from fedaudit.metrics.balanced import held_out_balanced_accuracy as held_out_balanced_accuracy
    from fedaudit.metrics.catalogue import CONTRASTS as CONTRASTS
    from fedaudit.metrics.catalogue import METRICS as METRICS
    from fedaudit.metrics.catalogue import Metric as Metric
    from fedaudit.metrics.catalogue import MetricValue as MetricValue
    from fedaudit.metrics.catalogue import evaluate as evaluate
    from fedaudit.metrics.controls import BlindClassifier as BlindClassifier
    from fedaudit.metrics.controls import BlindResult as BlindResult
    from fedaudit.metrics.controls import PermutationNull as PermutationNull
    from fedaudit.metrics.controls import blind_classifier as blind_classifier
    from fedaudit.metrics.controls import (
        permute_nonmembers_per_round as permute_nonmembers_per_round,
    )
    from fedaudit.metrics.controls import permuted_membership as permuted_membership
    from fedaudit.metrics.delong import AucDifference as AucDifference
    from fedaudit.metrics.delong import AucInterval as AucInterval
    from fedaudit.metrics.delong import auc_interval as auc_interval
    from fedaudit.metrics.delong import clustered_auc as clustered_auc
    from fedaudit.metrics.delong import compare_auc as compare_auc
    from fedaudit.metrics.epsilon import ConfusionCounts as ConfusionCounts
    from fedaudit.metrics.epsilon import EpsilonBound as EpsilonBound
    from fedaudit.metrics.epsilon import Guesses as Guesses
    from fedaudit.metrics.epsilon import clopper_pearson_epsilon as clopper_pearson_epsilon
    from fedaudit.metrics.epsilon import gaussian_epsilon as gaussian_epsilon
    from fedaudit.metrics.epsilon import one_run_epsilon_from_counts as one_run_epsilon_from_counts
    from fedaudit.metrics.epsilon import one_run_epsilon_from_scores as one_run_epsilon_from_scores
    from fedaudit.metrics.epsilon import one_run_gaussian_bound as one_run_gaussian_bound
    from fedaudit.metrics.fairness import ExposedMember as ExposedMember
    from fedaudit.metrics.fairness import GroupAuc as GroupAuc
    from fedaudit.metrics.fairness import auc_by_group as auc_by_group
    from fedaudit.metrics.fairness import auc_by_owner as auc_by_owner
    from fedaudit.metrics.fairness import (
        fraction_of_nonmembers_below as fraction_of_nonmembers_below,
    )
    from fedaudit.metrics.fairness import most_exposed as most_exposed
    from fedaudit.metrics.individual import IndividualTest as IndividualTest
    from fedaudit.metrics.individual import combined_p_values as combined_p_values
    from fedaudit.metrics.individual import conformal_p_value as conformal_p_value
    from fedaudit.metrics.individual import individual_test as individual_test
    from fedaudit.metrics.individual import (
        membership_posterior_limits as membership_posterior_limits,
    )
    from fedaudit.metrics.intervals import ConfidenceLimits as ConfidenceLimits
    from fedaudit.metrics.intervals import EstimateWithLimits as EstimateWithLimits
    from fedaudit.metrics.intervals import SeedMean as SeedMean
    from fedaudit.metrics.intervals import bootstrap_over_seeds as bootstrap_over_seeds
    from fedaudit.metrics.intervals import clopper_pearson as clopper_pearson
    from fedaudit.metrics.intervals import clopper_pearson_function as clopper_pearson_function
    from fedaudit.metrics.intervals import clopper_pearson_lower as clopper_pearson_lower
    from fedaudit.metrics.intervals import clopper_pearson_upper as clopper_pearson_upper
    from fedaudit.metrics.intervals import mean_limits_by_p_values as mean_limits_by_p_values
    from fedaudit.metrics.intervals import mean_limits_if_dependent as mean_limits_if_dependent
    from fedaudit.metrics.intervals import mean_limits_if_independent as mean_limits_if_independent
    from fedaudit.metrics.intervals import student_t_over_seeds as student_t_over_seeds
    from fedaudit.metrics.rate_limits import CalibratedTpr as CalibratedTpr
    from fedaudit.metrics.rate_limits import Proportion as Proportion
    from fedaudit.metrics.rate_limits import TprLimits as TprLimits
    from fedaudit.metrics.rate_limits import calibrated_tpr as calibrated_tpr
    from fedaudit.metrics.rate_limits import limits_at_threshold as limits_at_threshold
    from fedaudit.metrics.rate_limits import nonmember_shortage as nonmember_shortage
    from fedaudit.metrics.rate_limits import (
        nonmembers_for_one_false_positive as nonmembers_for_one_false_positive,
    )
    from fedaudit.metrics.rate_limits import (
        nonmembers_for_tpr_lower_limit as nonmembers_for_tpr_lower_limit,
    )
    from fedaudit.metrics.rate_limits import nonmembers_to_certify_fpr as nonmembers_to_certify_fpr
    from fedaudit.metrics.rate_limits import proportion as proportion
    from fedaudit.metrics.rate_limits import tpr_limits as tpr_limits
    from fedaudit.metrics.rate_limits import tpr_limits_function as tpr_limits_function
    from fedaudit.metrics.rate_limits import tpr_lower_limit as tpr_lower_limit
    from fedaudit.metrics.rate_limits import tpr_upper_limit as tpr_upper_limit
    from fedaudit.metrics.rate_limits import true_fpr_range as true_fpr_range
    from fedaudit.metrics.roc import Roc as Roc
    from fedaudit.metrics.roc import TprAtFpr as TprAtFpr
    from fedaudit.metrics.roc import auc as auc
    from fedaudit.metrics.roc import roc_curve as roc_curve
    from fedaudit.metrics.roc import thin_roc as thin_roc
    from fedaudit.metrics.roc import tpr_at_fpr as tpr_at_fpr
    from fedaudit.metrics.significance import Holm as Holm
    from fedaudit.metrics.significance import auc_p_value as auc_p_value
    from fedaudit.metrics.significance import fisher_p_value as fisher_p_value
    from fedaudit.metrics.significance import holm as holm
    from fedaudit.metrics.significance import tpr_p_value as tpr_p_value
    from fedaudit.metrics.stratified import label_matched_mask as label_matched_mask
    from fedaudit.metrics.stratified import labels_alone_auc as labels_alone_auc
    from fedaudit.metrics.stratified import scale_within_strata as scale_within_strata
    from fedaudit.metrics.stratified import stratified_auc as stratified_auc
    from fedaudit.metrics.stratified import stratified_auc_p_value as stratified_auc_p_value
    from fedaudit.metrics.unlearning import UnlearningResult as UnlearningResult
    from fedaudit.metrics.unlearning import evaluate_unlearning as evaluate_unlearning
    from fedaudit.metrics.utility import GeneralisationGap as GeneralisationGap
    from fedaudit.metrics.utility import HypervolumeEstimate as HypervolumeEstimate
    from fedaudit.metrics.utility import accuracy as accuracy
    from fedaudit.metrics.utility import advantage as advantage
    from fedaudit.metrics.utility import generalisation_gap as generalisation_gap
    from fedaudit.metrics.utility import hypervolume as hypervolume
    from fedaudit.metrics.utility import hypervolume_over_seeds as hypervolume_over_seeds
    from fedaudit.metrics.utility import is_pareto_optimal as is_pareto_optimal
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
