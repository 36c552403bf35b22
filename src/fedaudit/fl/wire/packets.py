"""Clients' turns as text and bytes, for engines whose workers are other people's machines.

Nothing is pickled: structure and plain values are JSON of a fixed form, and tensors are in the
format of safetensors. A network is named by its place in the algorithm, which both sides have.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

from pydantic import ValidationError
from safetensors import SafetensorError
from torch import Tensor

from fedaudit.core import Architecture, Model, Params
from fedaudit.defenses.base import Visit
from fedaudit.errors import BadInput, Unsupported
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.visits import Done, Job
from fedaudit.fl.wire.notes import AllDone, DoneNote, JobNote, Jobs, ModelNote, notes_in
from fedaudit.fl.wire.tensors import Outgoing, Places, opened
from fedaudit.observe.round import Gradient, Logits, Sent, Update, Upload


class Packet(NamedTuple):
    """What travels.

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
    """What came of turns, as a packet.

    Raises:
        Unsupported: A part of it cannot be carried; it is named.
    """
    tensors = Outgoing()
    notes = tuple(_done_note(one, tensors) for one in done)
    return Packet(AllDone(done=notes, axes=tensors.axes).model_dump_json(), tensors.packed())


def unpack_done(packet: Packet) -> list[Done]:
    """What came of turns; whether it fits them is for :func:`fedaudit.fl.wire.checks.refuse_unfit`.

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
