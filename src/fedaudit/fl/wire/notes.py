"""What a packet says beside its tensors: JSON of a fixed form, read with suspicion.

Of what is wrong the first is told of: a list of all takes 400 times the memory of the text.
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    model_validator,
)

from fedaudit.fl.wire.tensors import Axes, Places
from fedaudit.observe.tensors import MAX_TENSORS

One = TypeVar("One")

_LONGEST = 256 * 2**20
"""Characters: more than 2,000 clients in one packet need, each of which knows of all."""

_MOST_AXES = 64
"""That torch knows."""

_Row: TypeAlias = Annotated[
    tuple[One, ...], Field(max_length=MAX_TENSORS), FailFast(), Strict(False)
]


def _named(said: object) -> object:
    """Names of tensors, with their numbers."""
    if not isinstance(said, dict) or len(said) > MAX_TENSORS:
        raise ValueError(f"names of tensors are to stand there, {MAX_TENSORS} at most")
    if not all(type(place) is int for place in said.values()):
        raise ValueError("a name stands there with something else than the number of a tensor")
    return said


def _lying(said: object) -> Axes:
    """How tensors lie, for each its axes."""
    if not isinstance(said, list | tuple) or len(said) > MAX_TENSORS:
        raise ValueError(f"the axes of tensors are to stand there, of {MAX_TENSORS} at most")
    if not all(isinstance(axes, list | tuple) and len(axes) <= _MOST_AXES for axes in said):
        raise ValueError(f"a tensor has a row of axes, {_MOST_AXES} at most")
    if not all(type(axis) is int for axes in said for axis in axes):
        raise ValueError("an axis is a whole number")
    return tuple(tuple(axes) for axes in said)


_Places: TypeAlias = Annotated[Places, BeforeValidator(_named)]
_Axes: TypeAlias = Annotated[Axes, BeforeValidator(_lying)]


class Note(BaseModel):
    """A part of what is said; tensors are in it by their numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _of_few(cls, said: object) -> object:
        if isinstance(said, dict) and len(said) > len(cls.model_fields):
            raise ValueError(f"it has {len(said)} parts, and {len(cls.model_fields)} at most fit")
        return said


class ModelNote(Note):
    """A model; its network is named by its place in the algorithm."""

    net: int
    params: _Places
    buffers: _Places


class JobNote(Note):
    """A turn to be taken; see :class:`fedaudit.fl.visits.Job`."""

    models: _Row[ModelNote]
    extra: _Places
    memory: _Places
    defense: _Places
    round: int
    rounds: int
    client: int
    cohort: _Row[int]
    weights: _Row[Annotated[tuple[int, float], Strict(False)]]
    seed: int


class DoneNote(Note):
    """What came of a turn; see :class:`fedaudit.fl.visits.Done`."""

    kind: Literal["Update", "Gradient", "Logits"]
    values: _Places
    buffers: _Places = {}
    choice: int = 0
    samples: int = 0
    memory: _Places
    defense: _Places
    facts: _Places
    seconds: float


class Jobs(Note):
    """All turns of a packet, and how its tensors lie in memory."""

    jobs: _Row[JobNote]
    axes: _Axes


class AllDone(Note):
    """What came of all turns of a packet, and how its tensors lie in memory."""

    done: _Row[DoneNote]
    axes: _Axes


Notes = TypeVar("Notes", Jobs, AllDone)


def notes_in(text: str, kind: type[Notes]) -> Notes:
    """What a packet says.

    Args:
        text: JSON of anybody's.
        kind: What it should be.

    Raises:
        ValueError: It is something else, or longer than any.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, and {_LONGEST} at most fit")
    return kind.model_validate_json(text)
