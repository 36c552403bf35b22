"""Clients' turns as text and bytes, for engines whose workers are other people's machines.

Nothing is pickled: structure and plain values are JSON of a fixed form, read with suspicion, and
tensors are in the format of safetensors. A network is named by its place in the algorithm, which
both sides have. Of several errors in a packet the first alone is reported: a list of all takes 400
times the memory of the text.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    ValidationError,
    model_validator,
)
from safetensors import SafetensorError
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.headers import MAX_TENSORS
from fedaudit.core.values import Architecture, Model, Params
from fedaudit.defenses.base import Visit
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.visits import Done, Job
from fedaudit.fl.wire.tensors import Axes, Outgoing, Places, opened
from fedaudit.observe.round import Gradient, Logits, Sent, Update, Upload

Item = TypeVar("Item")

_LONGEST = 256 * 2**20
"""Characters: more than 2,000 clients in one packet need, each of which knows of all."""

_MOST_AXES = 64
"""That torch knows."""

_Row: TypeAlias = Annotated[
    tuple[Item, ...], Field(max_length=MAX_TENSORS), FailFast(), Strict(False)
]


def _named(said: object) -> object:
    """Names of tensors, with their numbers."""
    if not isinstance(said, dict) or len(said) > MAX_TENSORS:
        raise ValueError(f"names of tensors are to stand there, {MAX_TENSORS} at most")
    if not all(type(place) is int for place in said.values()):
        raise ValueError("a name stands there with something else than the number of a tensor")
    return said


def _lying(said: object) -> Axes:
    """Axes in memory of each tensor."""
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
    """The result of a turn; see :class:`fedaudit.fl.visits.Done`."""

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
    """The results of all turns of a packet, and the memory order of its tensors."""

    done: _Row[DoneNote]
    axes: _Axes


Notes = TypeVar("Notes", Jobs, AllDone)


def notes_in(text: str, kind: type[Notes]) -> Notes:
    """The note of a packet.

    Args:
        text: JSON of anybody's.
        kind: What it should be.

    Raises:
        ValueError: It is something else, or longer than any.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, and {_LONGEST} at most fit")
    return kind.model_validate_json(text)


class Packet(NamedTuple):
    """A note and its tensors, as they travel.

    Attributes:
        values: Structure and plain values, as JSON.
        tensors: All tensors, each once, in the format of safetensors.
    """

    values: str
    tensors: bytes


One = TypeVar("One")


def pack_jobs(jobs: Iterable[Job], algorithm: Algorithm) -> Packet:
    """Turns to be taken, as a packet; what several share is in it once.

    Raises:
        Unsupported: A part of a turn cannot be carried; it is named.
    """
    tensors, nets = Outgoing(), _nets(algorithm)
    notes = tuple(_job_note(job, nets, tensors) for job in jobs)
    return Packet(Jobs(jobs=notes, axes=tensors.axes).model_dump_json(), tensors.packed())


def unpack_jobs(packet: Packet, algorithm: Algorithm) -> list[Job]:
    """The turns of a packet, with tensors of their own.

    Raises:
        BadInput: It is no packet of turns for this algorithm.
    """
    nets = _nets(algorithm)
    try:
        note = notes_in(packet.values, Jobs)
        tensors = opened(packet.tensors, note.axes)
        return [_job(one, nets, tensors) for one in note.jobs]
    except (ValidationError, SafetensorError, LookupError, ValueError) as error:
        raise _no_packet("turns to be taken", error) from error


def pack_done(done: Iterable[Done]) -> Packet:
    """Packs the results of turns.

    Raises:
        Unsupported: A part of it cannot be carried; it is named.
    """
    tensors = Outgoing()
    notes = tuple(_done_note(one, tensors) for one in done)
    return Packet(AllDone(done=notes, axes=tensors.axes).model_dump_json(), tensors.packed())


def unpack_done(packet: Packet) -> list[Done]:
    """Results of turns, unchecked: see :func:`fedaudit.fl.visits.refuse_unfit`.

    Raises:
        BadInput: It is no packet of what came of turns.
    """
    try:
        note = notes_in(packet.values, AllDone)
        tensors = opened(packet.tensors, note.axes)
        return [_done(one, tensors) for one in note.done]
    except (ValidationError, SafetensorError, LookupError, ValueError) as error:
        raise _no_packet("what comes of turns", error) from error


def _nets(algorithm: Algorithm) -> tuple[Architecture, ...]:
    """The networks that may be sent, each once, in the same order on both sides."""
    return tuple(dict.fromkeys([algorithm.architecture, *algorithm.nets]))


def _job_note(job: Job, nets: Sequence[Architecture], tensors: Outgoing) -> JobNote:
    turn = job.visit
    return JobNote(
        models=tuple(_model_note(model, nets, tensors) for model in job.sent.models),
        extra=tensors.places(job.sent.extra, "what is sent as"),
        memory=tensors.places(job.memory, f"what stays with client {turn.client} as"),
        defense=tensors.places(job.defense, f"the state of client {turn.client}'s defense"),
        round=turn.round,
        rounds=turn.rounds,
        client=turn.client,
        cohort=turn.cohort,
        weights=tuple(turn.weights.items()),
        seed=turn.seed,
    )


def _model_note(model: Model, nets: Sequence[Architecture], tensors: Outgoing) -> ModelNote:
    if model.architecture not in nets:
        raise Unsupported(
            f"the network {model.architecture.name!r} cannot be carried to another machine: it "
            "is none of those that the algorithm names; use the local engine"
        )
    return ModelNote(
        net=nets.index(model.architecture),
        params=tensors.places(model.params, "the parameter"),
        buffers=tensors.places(model.buffers, "the buffer"),
    )


def _job(note: JobNote, nets: Sequence[Architecture], tensors: Sequence[Tensor]) -> Job:
    models = tuple(
        Model(_at(nets, one.net), _params(one.params, tensors), _params(one.buffers, tensors))
        for one in note.models
    )
    return Job(
        Sent(models, _params(note.extra, tensors)),
        _params(note.memory, tensors),
        _params(note.defense, tensors),
        Visit(
            round=note.round,
            rounds=note.rounds,
            client=note.client,
            cohort=note.cohort,
            weights=dict(note.weights),
            seed=note.seed,
        ),
    )


def _done_note(done: Done, tensors: Outgoing) -> DoneNote:
    upload = done.upload
    return DoneNote(
        kind=_kind(upload),
        values=tensors.places(upload.values, "the upload"),
        buffers={}
        if isinstance(upload, Logits)
        else tensors.places(upload.buffers, "the uploaded buffer"),
        choice=upload.choice if isinstance(upload, Update) else 0,
        samples=0 if isinstance(upload, Logits) else upload.samples,
        memory=tensors.places(done.memory, "what stays with a client as"),
        defense=tensors.places(done.defense, "the state of a defense"),
        facts=tensors.places(done.facts, "the note"),
        seconds=done.seconds,
    )


def _kind(upload: Upload) -> Literal["Update", "Gradient", "Logits"]:
    if isinstance(upload, Update):
        return "Update"
    return "Gradient" if isinstance(upload, Gradient) else "Logits"


def _done(note: DoneNote, tensors: Sequence[Tensor]) -> Done:
    return Done(
        _upload(note, tensors),
        _params(note.memory, tensors),
        _params(note.defense, tensors),
        _params(note.facts, tensors),
        note.seconds,
    )


def _upload(note: DoneNote, tensors: Sequence[Tensor]) -> Upload:
    values, buffers = _params(note.values, tensors), _params(note.buffers, tensors)
    if note.kind == "Update":
        return Update(values, buffers, note.choice, note.samples)
    return Gradient(values, buffers, note.samples) if note.kind == "Gradient" else Logits(values)


def _params(places: Places, tensors: Sequence[Tensor]) -> Params:
    return {name: _at(tensors, place) for name, place in places.items()}


def _at(of: Sequence[One], place: int) -> One:
    if place < 0:
        raise IndexError(f"there is no place {place}")
    return of[place]


def _no_packet(of_what: str, error: Exception) -> BadInput:
    said = " ".join(str(error).split())[:200]
    return BadInput(
        f"what came is no packet of {of_what} ({said}); use the same fedaudit and study on every "
        "machine"
    )
