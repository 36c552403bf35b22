"""Short constructors of estimates for tests."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel

from fedaudit.results.estimate import Estimate, Interval, Test
from fedaudit.results.record import Record

NOTHING: Mapping[str, object] = {}
Made = TypeVar("Made", bound=BaseModel)


def estimate(given: Mapping[str, object] = NOTHING, **more: object) -> Estimate:
    """An estimate with the test against guessing and limits at the threshold as plain fields."""
    return Estimate.model_validate(_fields({**given, **more}))


def changed(one: Made, **changes: object) -> Made:
    """The same with other fields, unchecked: an estimate, or what else a record holds."""
    return one.model_copy(update=_fields(changes))


def _fields(flat: dict[str, object]) -> dict[str, object]:
    found = dict(flat)
    if "significant" in found:
        significant = found.pop("significant")
        assert significant is None or isinstance(significant, bool)
        # Without a function that is type-checked: the check of a list draws a random place of it.
        found["tests"] = [] if significant is None else [Test(significant=significant)]
    names = ("low_at_threshold", "high_at_threshold")
    if any(name in found for name in names):
        low, high = (found.pop(name, None) for name in names)
        given = {"low": low, "high": high}
        found["at_threshold"] = Interval.model_validate(given) if low is not None else None
    return found


def replace_estimates(record: Record, figures: Sequence[Estimate]) -> Record:
    """The record with these figures instead of all others on their topics, by group or not."""
    kinds = {(figure.topic, bool(figure.by)) for figure in figures}
    others = [figure for figure in record.estimates if (figure.topic, bool(figure.by)) not in kinds]
    return record.model_copy(update={"estimates": [*figures, *others]})
