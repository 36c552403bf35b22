"""Types and ranges of a record's fields, so that no impossible estimate can be read from a file."""

from collections.abc import Sized
from itertools import pairwise
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

MAX_NUMBER = 1e15
"""Limit of all counts and estimates. Floats represent every integer up to it exactly."""

Fraction = Annotated[float, Field(ge=0, le=1)]
SignedFraction = Annotated[float, Field(ge=-1, le=1)]
Count = Annotated[int, Field(ge=0, le=int(MAX_NUMBER))]
Seconds = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
Finite = Annotated[float, Field(ge=-1e100, le=1e100)]
"""Number of magnitude up to 1e100: confidence limits, levels of tests, signals and scores.

Losses of a diverged run are large."""

SMALLEST_GROUP = 10
"""Default minimum number of samples in a group. Estimates on smaller groups are removed from
evidence packs."""

_ROUNDING = 1e-6


class RecordPart(BaseModel):
    """Base class of the parts of a record, which rejects unknown keys and non-finite numbers."""

    # Schemas are built on first use, since most commands read and write no record.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ser_json_inf_nan="null",
        allow_inf_nan=False,
        defer_build=True,
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Make validation stop at the first error in a list: millions of errors take gigabytes."""
        schema = handler(source)
        waiting: list[object] = [schema]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                if part.get("type") in ("list", "tuple"):
                    part["fail_fast"] = True
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part
        return schema


Limit = TypeVar("Limit", bound=float)


class RecordLimits(RecordPart, Generic[Limit]):
    """Base class of record parts with a lower and an upper confidence limit.

    For permuted members, these are the limits of the central range over shuffles.

    Attributes:
        low: Lower limit; None if it is unknown.
        high: Upper limit; None if it is unknown.
    """

    low: Limit | None = None
    high: Limit | None = None


def raise_if_limits_unordered(low: float | None, value: float | None, high: float | None) -> None:
    """Raise ValueError unless low <= value <= high, where any of them may be None."""
    numbers = [number for number in (low, value, high) if number is not None]
    for smaller, larger in pairwise(numbers):
        if smaller > larger + _ROUNDING:
            raise ValueError(f"low, value and high are not in order ({low}, {value}, {high})")


def raise_if_lengths_differ(**lists: Sized) -> None:
    """Raise ValueError unless all lists have the same length."""
    if len({len(values) for values in lists.values()}) > 1:
        raise ValueError(f"{', '.join(lists)} are not of the same length")
