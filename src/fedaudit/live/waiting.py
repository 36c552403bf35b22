"""Rounds that wait to be measured: a file each, with exactly what the adversary sees."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedaudit.core.errors import Damaged
from fedaudit.core.files import own_folder, parsed_json
from fedaudit.core.pretrained import MAX_TENSORS
from fedaudit.core.values import Architecture, ClientId, Model, Params, plus
from fedaudit.live.recording import RoundEntry
from fedaudit.observe.kept_files import models_in, numbered_models, refuse_misfit, under
from fedaudit.observe.round import Exposed, Round
from fedaudit.observe.tensors import MAX_BYTES, numbered, read_notes, read_tensors, write_tensors
from fedaudit.observe.views import grouped

FOLDER = "waiting"
TRAINER = "trainer"
"""File with the number of the process for which rounds are measured."""
_Value = TypeVar("_Value")


def waiting(folder: Path) -> list[tuple[int, Path]]:
    """Numbers and files of the rounds that a recording still has to measure, ascending."""
    return numbered(folder / FOLDER, ".safetensors")


def waiting_entries(folder: Path) -> dict[int, RoundEntry]:
    """Log entries of the rounds that a recording still has to measure, by number."""
    entries = dict[int, RoundEntry]()
    for index, path in waiting(folder):
        try:
            entries[index] = RoundEntry.model_validate(parsed_json(read_notes(path)["entry"]))
        # It is refused where it is measured.
        except (Damaged, KeyError, ValueError, RecursionError):
            entries[index] = RoundEntry(round=index, asked=(), answered=(), measured=False)
    return entries


def clear(folder: Path) -> None:
    """Takes the folder of waiting rounds away, where none waits."""
    if not waiting(folder):
        # A folder that is not there, or holds what is not ours.
        with suppress(OSError):
            (folder / FOLDER / TRAINER).unlink(missing_ok=True)
            (folder / FOLDER).rmdir()


def hand_over(folder: Path, round: Round, entry: RoundEntry) -> bool:
    """Keeps a round until it is measured; every value as it is, to the bit.

    It is there whole or not at all, whenever a process is killed. A power failure may lose it.

    Args:
        folder: Of the recording.
        round: As the adversary sees it.
        entry: What the log is to say of it.

    Returns:
        False if it is too large for a file, and nothing was kept.

    Raises:
        BadInput: It cannot be written.
    """
    clients = sorted(round.exposed)
    known = [base for c in clients if (base := round.exposed[c].base) is not None]
    distinct, numbers = grouped(known)
    tensors = numbered_models("base", dict(enumerate(distinct)))
    tensors |= numbered_models("after", round.after)
    described, number = [], iter(numbers)
    for client in clients:
        one = round.exposed[client]
        place = -1 if one.base is None else next(number)
        local, update = _not_derived(one)
        if local is not None:
            tensors |= numbered_models("local", {str(client): local})
        if update is not None:
            tensors |= {f"update/{client}/{name}": value for name, value in update.items()}
        held = [one.local is not None, one.update is not None]
        described.append([client, place, one.gradient_scale, *held])
    if len(tensors) > MAX_TENSORS or sum(value.nbytes for value in tensors.values()) > MAX_BYTES:
        return False
    notes = {
        "entry": entry.model_dump_json(),
        "clients": json.dumps(described),
        "weights": json.dumps(sorted(round.weights.items())),
        "stands_for": json.dumps(sorted(round.stands_for.items())),
    }
    file = own_folder(folder, FOLDER) / f"round-{round.index:06d}.safetensors"
    write_tensors(tensors, file, notes, durable=False)
    return True


def read_waiting(path: Path, architecture: Architecture) -> tuple[Round, RoundEntry]:
    """A round that waits, as it was handed over.

    Args:
        path: Its file.
        architecture: What the clients train.

    Raises:
        Damaged: It cannot be read.
    """
    tensors, notes = read_tensors(path)
    try:
        entry = RoundEntry.model_validate(parsed_json(notes["entry"]))
        bases, after, locals_ = (
            models_in(tensors, part, architecture) for part in ("base", "after", "local")
        )
        _refuse_misfits([*bases.values(), *after.values(), *locals_.values()], architecture)
        exposed: dict[ClientId, Exposed] = {}
        clients = _CLIENTS.validate_python(parsed_json(notes["clients"]))
        for client, number, scale, has_local, has_update in clients:
            base = None if number < 0 else bases[str(number)]
            local = locals_.get(str(client))
            update = under(tensors, f"update/{client}/") or None
            if has_local and local is None:
                local = _moved(_known(base), _known(update))
            if has_update and update is None:
                update = plus(_known(local).params, _known(base).params, -1.0)
            if update is not None and base is not None:
                refuse_misfit(Model(base.architecture, update), replace(base, buffers={}))
            exposed[client] = Exposed(base, local, update, scale)
        return Round(
            index=entry.round,
            exposed=exposed,
            sent={},
            uploads={},
            weights=dict(_WEIGHTS.validate_python(parsed_json(notes["weights"]))),
            asked=entry.asked,
            answered=entry.answered,
            after=after,
            stands_for=dict(_GROUPS.validate_python(parsed_json(notes["stands_for"]))),
        ), entry
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise Damaged(f"{path} is no round that waits ({str(error)[:300]}); delete it") from error


_Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_CLIENTS = TypeAdapter(list[tuple[int, int, _Finite | None, bool, bool]])
_WEIGHTS = TypeAdapter(list[tuple[int, _Finite]])
_GROUPS = TypeAdapter(list[tuple[int, int]])


def _refuse_misfits(models: Iterable[Model], architecture: Architecture) -> None:
    initial = architecture.initial(0)
    for model in models:
        refuse_misfit(model, initial)


def _not_derived(one: Exposed) -> tuple[Model | None, Params | None]:
    """The client's model and its change, less the one that follows from the other to the bit."""
    base, local, update = one.base, one.local, one.update
    if base is None or local is None or update is None:
        return local, update
    if _equal(plus(local.params, base.params, -1.0), update):
        return local, None
    made = _moved(base, update)
    same = _equal(made.params, local.params) and _equal(made.buffers, local.buffers)
    return (None if same else local), update


def _moved(base: Model, update: Params) -> Model:
    return Model(base.architecture, plus(base.params, update), base.buffers)


def _equal(left: Params, right: Params) -> bool:
    """To the bit: zeros of either sign are two numbers."""
    return left.keys() == right.keys() and all(
        torch.equal(_bits(left[name]), _bits(right[name])) for name in left
    )


def _bits(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)


def _known(value: _Value | None) -> _Value:
    if value is None:
        raise ValueError("a part of a client's round is missing")
    return value
