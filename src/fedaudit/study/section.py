"""What every section of a study is made of: fields with a range, and no unknown key."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from fedaudit.core import Setting


def _setting(value: object) -> Setting:
    """An option of a catalogue entry; the entry itself says what it takes."""
    if isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= 1e15):
        return value
    raise ValueError("it should be a number up to 1e15 in size, a text, or true or false")


Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Positive = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Settings = dict[str, Annotated[Setting, PlainValidator(_setting)]]


class Section(BaseModel):
    """A table of settings, read once and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
