"""The verdict after deletion: whether the model still reveals samples that were unlearned."""

from typing import NamedTuple

from fedaudit.core.metric_names import CANNOT_TELL, DESTROYED, NOT_FORGOTTEN, OVERDONE
from fedaudit.report.evidence import checks_of
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import HIDES_LEAKS
from fedaudit.results.record import Record
from fedaudit.results.unlearning import (
    UnlearningRow,
    is_destroyed,
    most_left,
    unlearning_rows,
    unlearning_verdict_of,
)

WITHHELD = "withheld: a control failed"
"""Stands in the place of a verdict on unlearning whose controls failed."""


class Deletion(NamedTuple):
    """What is left of deleted samples.

    Attributes:
        verdict: On all attacks together.
        most: The attack that finds most in the model after deletion.
        both: Largest AUC of an adversary with the models before and after.
    """

    verdict: str
    most: UnlearningRow
    both: Estimate

    @property
    def headline(self) -> str:
        """Return the sentence of a verdict."""
        if self.verdict == WITHHELD:
            return f"The verdict after deletion is {WITHHELD}"
        return f"This is before deletion; verdict after deletion: {self.verdict}"


def deletion(record: Record) -> Deletion | None:
    """Return what is left of deleted samples; None of a record without deletion."""
    rows = unlearning_rows(record)
    if not rows:
        return None
    verdict = deletion_verdict(record, unlearning_verdict_of(rows))
    both = max((row.both for row in rows), key=lambda figure: figure.number)
    return Deletion(verdict, most_left(rows), both)


def deletion_verdict(record: Record, found: str) -> str:
    """Return a verdict after deletion as every reader has it.

    It is withheld if a control failed. A model that no longer predicts is called destroyed, not
    forgetful.

    Args:
        record: The record.
        found: Verdict by figures alone, on one attack or on all.
    """
    verdict = found or CANNOT_TELL
    failed = checks_of(record.controls).failed
    only_hides = all(one.control in HIDES_LEAKS for one in failed)
    # That a leak is left stands where attacks may only have found too little.
    if failed and not (verdict == NOT_FORGOTTEN and only_hides):
        return WITHHELD
    accuses = verdict.startswith((NOT_FORGOTTEN, OVERDONE))
    return DESTROYED if not accuses and is_destroyed(record) else verdict
