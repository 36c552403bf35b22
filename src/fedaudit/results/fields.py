"""Ranges of a record's fields, so that a reader never shows an impossible figure."""

from collections.abc import Sized
from itertools import pairwise
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

MOST = 1e15
"""Larger than any count or figure; up to here floats hold every whole number."""

Share = Annotated[float, Field(ge=0, le=1)]
Change = Annotated[float, Field(ge=-1, le=1)]
Whole = Annotated[int, Field(ge=0, le=int(MOST))]
Seconds = Annotated[float, Field(ge=0, le=MOST)]
Drawn = Annotated[float, Field(ge=-1e100, le=1e100)]
"""A signal or score as it is drawn: losses of a run that diverged are large."""

_ROUNDING = 1e-6


class Part(BaseModel):
    """A piece of a record: no unknown key, no number that is not finite."""

    # Its schema is built when first used, which is at the end of a study.
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
        """Lists are read up to their first fault: to note each of millions takes gigabytes."""
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


class Limits(Part, Generic[Limit]):
    """Base of what has limits, as far as there are any.

    Attributes:
        low: Lower limit; None where there is none.
        high: Upper limit; None likewise.
    """

    low: Limit | None = None
    high: Limit | None = None


def refuse_disorder(low: float | None, value: float | None, high: float | None) -> None:
    """Limits lie on both sides of their figure, where they are given."""
    given = [number for number in (low, value, high) if number is not None]
    for one, other in pairwise(given):
        if one > other + _ROUNDING:
            raise ValueError(f"low, value and high are not in order ({low}, {value}, {high})")


def refuse_ragged(**lists: Sized) -> None:
    """Lists that belong together have one length."""
    if len({len(values) for values in lists.values()}) > 1:
        raise ValueError(f"{', '.join(lists)} are not of the same length")
