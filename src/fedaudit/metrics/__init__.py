"""Metrics of attack scores, with confidence intervals.

Most names are imported when they are first used. No module of this package imports torch.
"""

from typing import TYPE_CHECKING

from fedaudit.core.lazy import lazy_names

# Imported eagerly: a lazy name would be shadowed by the submodule of the same name.
from fedaudit.metrics.rate_limits import rate_limits as rate_limits

if TYPE_CHECKING:
    from fedaudit.metrics.balanced import HeldOutAccuracy as HeldOutAccuracy
    from fedaudit.metrics.balanced import OptimisticAccuracy as OptimisticAccuracy
    from fedaudit.metrics.balanced import balanced_accuracy as balanced_accuracy
    from fedaudit.metrics.balanced import best_balanced_accuracy as best_balanced_accuracy
    from fedaudit.metrics.balanced import held_out_balanced_accuracy as held_out_balanced_accuracy
    from fedaudit.metrics.controls import BlindClassifier as BlindClassifier
    from fedaudit.metrics.controls import BlindResult as BlindResult
    from fedaudit.metrics.controls import PermutationNull as PermutationNull
    from fedaudit.metrics.controls import blind_classifier as blind_classifier
    from fedaudit.metrics.controls import permuted_membership as permuted_membership
    from fedaudit.metrics.controls import redraw as redraw
    from fedaudit.metrics.delong import AucDifference as AucDifference
    from fedaudit.metrics.delong import AucInterval as AucInterval
    from fedaudit.metrics.delong import auc_interval as auc_interval
    from fedaudit.metrics.delong import clustered_auc as clustered_auc
    from fedaudit.metrics.delong import compare_auc as compare_auc
    from fedaudit.metrics.epsilon import Counts as Counts
    from fedaudit.metrics.epsilon import EpsilonBound as EpsilonBound
    from fedaudit.metrics.epsilon import Guesses as Guesses
    from fedaudit.metrics.epsilon import clopper_pearson_epsilon as clopper_pearson_epsilon
    from fedaudit.metrics.epsilon import gaussian_epsilon as gaussian_epsilon
    from fedaudit.metrics.epsilon import one_run_bound as one_run_bound
    from fedaudit.metrics.epsilon import one_run_epsilon as one_run_epsilon
    from fedaudit.metrics.epsilon import one_run_gaussian_bound as one_run_gaussian_bound
    from fedaudit.metrics.fairness import ExposedMember as ExposedMember
    from fedaudit.metrics.fairness import GroupAuc as GroupAuc
    from fedaudit.metrics.fairness import above_nonmembers as above_nonmembers
    from fedaudit.metrics.fairness import auc_by_group as auc_by_group
    from fedaudit.metrics.fairness import auc_by_owner as auc_by_owner
    from fedaudit.metrics.fairness import most_exposed as most_exposed
    from fedaudit.metrics.family import Holm as Holm
    from fedaudit.metrics.family import above_chance as above_chance
    from fedaudit.metrics.family import fisher_p_value as fisher_p_value
    from fedaudit.metrics.family import holm as holm
    from fedaudit.metrics.family import rate_above_chance as rate_above_chance
    from fedaudit.metrics.individual import IndividualTest as IndividualTest
    from fedaudit.metrics.individual import combined_p_values as combined_p_values
    from fedaudit.metrics.individual import conformal_p_value as conformal_p_value
    from fedaudit.metrics.individual import individual_test as individual_test
    from fedaudit.metrics.individual import membership_chance as membership_chance
    from fedaudit.metrics.intervals import ConfidenceLimits as ConfidenceLimits
    from fedaudit.metrics.intervals import Limited as Limited
    from fedaudit.metrics.intervals import SeedMean as SeedMean
    from fedaudit.metrics.intervals import bootstrap_over_seeds as bootstrap_over_seeds
    from fedaudit.metrics.intervals import clopper_pearson as clopper_pearson
    from fedaudit.metrics.intervals import counted_limits as counted_limits
    from fedaudit.metrics.intervals import limits_by_p_values as limits_by_p_values
    from fedaudit.metrics.intervals import limits_if_dependent as limits_if_dependent
    from fedaudit.metrics.intervals import limits_if_independent as limits_if_independent
    from fedaudit.metrics.intervals import lower_limit as lower_limit
    from fedaudit.metrics.intervals import student_t_over_seeds as student_t_over_seeds
    from fedaudit.metrics.intervals import upper_limit as upper_limit
    from fedaudit.metrics.rate_limits import CalibratedTpr as CalibratedTpr
    from fedaudit.metrics.rate_limits import Proportion as Proportion
    from fedaudit.metrics.rate_limits import RateLimits as RateLimits
    from fedaudit.metrics.rate_limits import calibrated_tpr as calibrated_tpr
    from fedaudit.metrics.rate_limits import limits_at_threshold as limits_at_threshold
    from fedaudit.metrics.rate_limits import limits_of_rate as limits_of_rate
    from fedaudit.metrics.rate_limits import lower_rate_limit as lower_rate_limit
    from fedaudit.metrics.rate_limits import n_needed as n_needed
    from fedaudit.metrics.rate_limits import n_to_bound as n_to_bound
    from fedaudit.metrics.rate_limits import n_to_certify as n_to_certify
    from fedaudit.metrics.rate_limits import nonmember_shortage as nonmember_shortage
    from fedaudit.metrics.rate_limits import proportion as proportion
    from fedaudit.metrics.rate_limits import true_fpr_range as true_fpr_range
    from fedaudit.metrics.rate_limits import upper_rate_limit as upper_rate_limit
    from fedaudit.metrics.roc import Roc as Roc
    from fedaudit.metrics.roc import TprAtFpr as TprAtFpr
    from fedaudit.metrics.roc import auc as auc
    from fedaudit.metrics.roc import roc_curve as roc_curve
    from fedaudit.metrics.roc import thin_roc as thin_roc
    from fedaudit.metrics.roc import tpr_at_fpr as tpr_at_fpr
    from fedaudit.metrics.stratified import labels_alone_auc as labels_alone_auc
    from fedaudit.metrics.stratified import matched_in_class as matched_in_class
    from fedaudit.metrics.stratified import scaled_within as scaled_within
    from fedaudit.metrics.stratified import stratified_above_chance as stratified_above_chance
    from fedaudit.metrics.stratified import stratified_auc as stratified_auc
    from fedaudit.metrics.table import CONTRASTS as CONTRASTS
    from fedaudit.metrics.table import METRICS as METRICS
    from fedaudit.metrics.table import Metric as Metric
    from fedaudit.metrics.table import MetricValue as MetricValue
    from fedaudit.metrics.table import evaluate as evaluate
    from fedaudit.metrics.unlearning import Unlearned as Unlearned
    from fedaudit.metrics.unlearning import unlearned as unlearned
    from fedaudit.metrics.utility import FrontArea as FrontArea
    from fedaudit.metrics.utility import Gap as Gap
    from fedaudit.metrics.utility import accuracy as accuracy
    from fedaudit.metrics.utility import advantage as advantage
    from fedaudit.metrics.utility import generalisation_gap as generalisation_gap
    from fedaudit.metrics.utility import hypervolume as hypervolume
    from fedaudit.metrics.utility import hypervolume_over_seeds as hypervolume_over_seeds
    from fedaudit.metrics.utility import on_front as on_front
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, "rate_limits")
