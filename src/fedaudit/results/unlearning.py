"""Results of unlearning in an audit's result file, and the verdict."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import (
    FORGOTTEN,
    INCONCLUSIVE,
    NO_LEAK_BEFORE,
    NOT_FORGOTTEN,
    OVERCORRECTED,
)
from fedaudit.results.estimate import TEST_ACCURACY, Estimate
from fedaudit.results.guessing import is_near_guessing, most_frequent_class
from fedaudit.results.record import Record

UNLEARNING = "unlearning"
"""Topic of the estimates of unlearning."""

BEFORE, AFTER, RETRAINED, BOTH = "before", "after", "retrained", "before and after"
"""Stages: the model that the adversary attacks (before or after unlearning, or retrained), or the
models before and after unlearning together. Estimates store the stage in their field ``point``."""

_BY_SEVERITY = (NOT_FORGOTTEN, OVERCORRECTED, INCONCLUSIVE, FORGOTTEN, NO_LEAK_BEFORE)
WITHOUT_EVIDENCE = (FORGOTTEN, NO_LEAK_BEFORE, INCONCLUSIVE)
"""Verdicts without evidence of incomplete unlearning."""


class UnlearningRow(NamedTuple):
    """AUCs of one attack that distinguishes an audited client's forgotten from held-out samples.

    Each AUC is a mean over all runs.

    Attributes:
        before: AUC on the model before unlearning.
        after: AUC on the model after unlearning.
        retrained: AUC on the model of a federation that never trained on the forgotten samples.
        excess: AUC after unlearning minus AUC on the retrained model, with its equivalence interval
            and the verdict as a note.
        both: AUC of an adversary that has the models before and after unlearning.
    """

    before: Estimate
    after: Estimate
    retrained: Estimate
    excess: Estimate
    both: Estimate

    @property
    def verdict(self) -> str:
        """Verdict on this attack and client (:mod:`fedaudit.metrics.unlearning`).

        Empty if the excess has no interval.
        """
        note = self.excess.note
        return next((verdict for verdict in _BY_SEVERITY if note.startswith(verdict)), "")


def estimate_at(estimates: Sequence[Estimate], template: Estimate, stage: str) -> Estimate | None:
    """Return the AUC at a stage, for the same attack, client and run as another estimate."""
    where = (template.attack, template.target, template.seed, template.metric)
    return next(
        (
            estimate
            for estimate in estimates
            if estimate.point == stage
            and not estimate.against
            and (estimate.attack, estimate.target, estimate.seed, estimate.metric) == where
        ),
        None,
    )


def unlearning_rows(record: Record) -> list[UnlearningRow]:
    """Return a row for each attack and audited client; empty if the study has no unlearning."""
    estimates = record.where(topic=UNLEARNING, seed=None)
    rows = []
    for excess in estimates:
        if excess.against == RETRAINED:
            parts = [
                estimate_at(estimates, excess, stage) for stage in (BEFORE, AFTER, RETRAINED, BOTH)
            ]
            before, after, retrained, both = parts
            if before and after and retrained and both:
                rows.append(UnlearningRow(before, after, retrained, excess, both))
    return rows


def unlearning_verdict_of(rows: Sequence[UnlearningRow]) -> str:
    """Return the most severe verdict of all attacks and audited clients."""
    verdicts = {row.verdict for row in rows}
    return next((verdict for verdict in _BY_SEVERITY if verdict in verdicts), INCONCLUSIVE)


def is_model_destroyed(record: Record) -> bool:
    """Return True if unlearning reduced the accuracy of the model to chance level.

    Such a model reveals nothing about any sample, forgotten or not. False if accuracies or the
    classes of clients' samples are unknown.
    """
    guess = most_frequent_class(record)
    estimates = record.where(topic=UNLEARNING, seed=None, metric=TEST_ACCURACY)
    accuracy = {e.point: e.number for e in estimates if e.value is not None}
    if guess is None or not {BEFORE, AFTER} <= accuracy.keys():
        return False
    return is_near_guessing(accuracy[AFTER], guess) and not is_near_guessing(
        accuracy[BEFORE], guess
    )


def row_with_largest_auc(rows: Sequence[UnlearningRow]) -> UnlearningRow:
    """Return the row of the attack with the largest AUC after unlearning."""
    return max(rows, key=lambda row: row.after.number)
