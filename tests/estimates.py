"""Short constructors of estimates for tests."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel

from fedaudit.results.estimate import Estimate, Interval, Test
from fedaudit.results.record import Record

NOTHING: Mapping[str, object] = {}
Made = TypeVar("Made", bound=BaseModel)


def estimate(fields: Mapping[str, object] = NOTHING, /, **others: object) -> Estimate:
    """Return an estimate; ``significant`` and limits at the threshold are plain fields."""
    return Estimate.model_validate(_fields({**fields, **others}))


def changed(model: Made, /, **changes: object) -> Made:
    """Return a copy of a part of a record with other fields, without validation."""
    return model.model_copy(update=_fields(changes))


def _fields(flat: dict[str, object]) -> dict[str, object]:
    fields = dict(flat)
    if "significant" in fields:
        significant = fields.pop("significant")
        assert significant is None or isinstance(significant, bool)
        # Not in a type-checked function, since the check of a list draws a random position.
        fields["tests"] = [] if significant is None else [Test(significant=significant)]
    names = ("low_at_threshold", "high_at_threshold")
    if any(name in fields for name in names):
        low, high = (fields.pop(name, None) for name in names)
        limits = {"low": low, "high": high}
        fields["at_threshold"] = Interval.model_validate(limits) if low is not None else None
    return fields


def replace_estimates(record: Record, figures: Sequence[Estimate]) -> Record:
    """Return the record with these estimates instead of all others on their topics."""
    kinds = {(figure.topic, bool(figure.by)) for figure in figures}
    others = [figure for figure in record.estimates if (figure.topic, bool(figure.by)) not in kinds]
    return record.model_copy(update={"estimates": [*figures, *others]})
