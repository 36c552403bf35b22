"""The verdict after deletion: whether the model still reveals samples that were unlearned."""

from typing import NamedTuple

from fedaudit.core.metric_names import CANNOT_TELL, DESTROYED, NOT_FORGOTTEN, OVERDONE
from fedaudit.report import wording
from fedaudit.report.evidence import checks_of
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import HIDES_LEAKS
from fedaudit.results.record import Record
from fedaudit.results.unlearning import (
    UnlearningRow,
    is_destroyed,
    row_with_largest_auc,
    unlearning_rows,
    unlearning_verdict_of,
)

WITHHELD = "withheld: a control failed"
"""Replaces a verdict on unlearning whose controls failed."""


class Deletion(NamedTuple):
    """What a model still reveals of deleted samples.

    Attributes:
        verdict: Over all attacks.
        most: The attack that finds most in the model after deletion.
        both: Largest AUC of an adversary with the models before and after.
    """

    verdict: str
    most: UnlearningRow
    both: Estimate

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        if self.verdict == WITHHELD:
            return f"The verdict after deletion is {WITHHELD}"
        after, both = (
            ", ".join(filter(None, (wording.value_of(figure), wording.interval_of(figure))))
            for figure in (self.most.after, self.both)
        )
        return (
            f"That is before deletion; after it: {self.verdict} (largest AUC {after}; of an "
            f"adversary with the models before and after {both})"
        )


def deletion(record: Record) -> Deletion | None:
    """Return what a model still reveals of deleted samples; None of a record without deletion."""
    rows = unlearning_rows(record)
    if not rows:
        return None
    verdict = deletion_verdict(record, unlearning_verdict_of(rows))
    both = max((row.both for row in rows), key=lambda figure: figure.number)
    return Deletion(verdict, row_with_largest_auc(rows), both)


def deletion_verdict(record: Record, by_figures: str) -> str:
    """Return the verdict after deletion, given the one by figures of one attack or of all.

    It is withheld if a control failed. A model that no longer predicts is called destroyed, not
    forgetful.
    """
    verdict = by_figures or CANNOT_TELL
    failed = checks_of(record.controls).failed
    only_hides = all(result.control in HIDES_LEAKS for result in failed)
    # Controls that can only hide leaks do not refute that samples are not forgotten.
    if failed and not (verdict == NOT_FORGOTTEN and only_hides):
        return WITHHELD
    accuses = verdict.startswith((NOT_FORGOTTEN, OVERDONE))
    return DESTROYED if not accuses and is_destroyed(record) else verdict
