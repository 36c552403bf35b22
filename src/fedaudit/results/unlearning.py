"""Figures on unlearning in a record: of which model each is, and what they come to."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import CANNOT_TELL, FORGOTTEN, NOT_FORGOTTEN, OVERDONE, UNTOLD
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import is_near_guessing, most_frequent_class
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.record import Record

UNLEARNING = "unlearning"
"""The topic of these figures."""

BEFORE, AFTER, RETRAINED, BOTH = "before", "after", "retrained", "before and after"
"""Points of these figures: the model that is looked at, or the two that are."""

_GRAVEST = (NOT_FORGOTTEN, OVERDONE, CANNOT_TELL, FORGOTTEN, UNTOLD)
NOT_TOLD = (FORGOTTEN, UNTOLD, CANNOT_TELL)
"""Verdicts that accuse nobody."""
_OPENINGS = {"nothing to say": UNTOLD}


class UnlearningRow(NamedTuple):
    """One attack on one target: the AUCs of forgotten against unseen samples, over all runs.

    Attributes:
        before: By the released model.
        after: By the model after unlearning.
        retrained: By the federation that never had the forgotten samples.
        excess: After less retrained, with its equivalence interval and the verdict as a note.
        both: By the models before and after together.
    """

    before: Estimate
    after: Estimate
    retrained: Estimate
    excess: Estimate
    both: Estimate

    @property
    def verdict(self) -> str:
        """One of the verdicts of :mod:`fedaudit.metrics.unlearning`."""
        opening = self.excess.note.partition(":")[0].partition(" as far")[0]
        return _OPENINGS.get(opening, opening)


def of_point(figures: Sequence[Estimate], like: Estimate, point: str) -> Estimate | None:
    """The AUC at another point of the attack, target and run that a figure is of."""
    where = (like.attack, like.target, like.seed, like.metric)
    return next(
        (
            one
            for one in figures
            if one.point == point
            and not one.against
            and (one.attack, one.target, one.seed, one.metric) == where
        ),
        None,
    )


def unlearning_rows(record: Record) -> list[UnlearningRow]:
    """A row for each attack and target, over all runs; empty without unlearning."""
    figures = record.where(topic=UNLEARNING, seed=None)
    rows = []
    for excess in figures:
        if excess.against == RETRAINED:
            parts = [of_point(figures, excess, one) for one in (BEFORE, AFTER, RETRAINED, BOTH)]
            before, after, retrained, both = parts
            if before and after and retrained and both:
                rows.append(UnlearningRow(before, after, retrained, excess, both))
    return rows


def unlearning_verdict_of(rows: Sequence[UnlearningRow]) -> str:
    """The gravest verdict of all attacks: forgotten is what every attack that told them says.

    Args:
        rows: At least one.
    """
    given = {row.verdict for row in rows}
    return next((one for one in _GRAVEST if one in given), CANNOT_TELL)


def is_destroyed(record: Record) -> bool:
    """Return whether unlearning took a model that predicts down to guessing.

    Such a model tells nothing of any sample, forgotten or not. False where accuracies or the
    classes of clients' samples are not known.
    """
    guess = most_frequent_class(record)
    figures = record.where(topic=UNLEARNING, seed=None, metric=TEST_ACCURACY)
    accuracy = {one.point: one.number for one in figures if one.value is not None}
    if guess is None or not {BEFORE, AFTER} <= accuracy.keys():
        return False
    return is_near_guessing(accuracy[AFTER], guess) and not is_near_guessing(
        accuracy[BEFORE], guess
    )


def most_left(rows: Sequence[UnlearningRow]) -> UnlearningRow:
    """The row of the attack that tells most after unlearning.

    Args:
        rows: At least one.
    """
    return max(rows, key=lambda row: row.after.number)
