"""Files of a recording: audited samples, untrained models, and rounds that wait for measurement."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import (
    RECORD_FILE,
    RECORDING_FILE,
    create_subfolder,
    parsed_json,
    unlinked_path,
)
from fedaudit.core.pretrained import MAX_TENSORS
from fedaudit.core.values import Architecture, ClientId, Model, Params, Samples, plus, with_prefix
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.audited import features_by_name, features_stored
from fedaudit.live.recording import Recording, RoundEntry, is_recording, read_recording
from fedaudit.observe.kept_files import models_in, refuse_misfit, tensors_of_models
from fedaudit.observe.measurements import (
    MeasuredRound,
    fault_in,
    measured_rounds_in,
    write_measured,
)
from fedaudit.observe.round import Exposed, Round
from fedaudit.observe.tensors import MAX_BYTES, read_notes, read_tensors, round_paths, write_tensors
from fedaudit.observe.views import group_models
from fedaudit.study.running.folder import STUDY_FILE

AUDIT_FILE = "audit.safetensors"
SAMPLES_FILE = "samples.safetensors"
DRAWN_FOR = "drawn_for"
"""Array of the client whose coin decided on each sample, in recordings of separate tables."""

_UNTRAINED = ("untrained-1", "untrained-2")
_MAY_DIFFER = {
    *("key", "started", "name", "refused", "sizes"),
    *("names", "unaudited", "conflicts", "is_closed"),
}
"""Settings that may differ when a recording is continued."""


def prepare_folder(folder: Path, recording: Recording, samples: AuditSet) -> Recording:
    """Prepare a folder for a recording, and return the recording to continue, or the new one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        study_files = [name for name in (STUDY_FILE, RECORD_FILE) if (folder / name).exists()]
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} cannot be used ({error}); choose another folder") from error
    if study_files:
        raise BadInput(
            f"{folder} has the file {study_files[0]} of a study; give the recording another folder"
        )
    is_new = not is_recording(folder)
    if is_new:
        _refuse_leftovers(folder)
    # Create folders now, while another folder can still be chosen, and not in the first round.
    for name in ("measured", *(("rounds",) if recording.keep != "signals" else ())):
        create_subfolder(folder, name)
    if is_new:
        return recording
    earlier = read_recording(folder)
    now, then = (
        settings.model_dump(mode="json", exclude=_MAY_DIFFER) for settings in (recording, earlier)
    )
    changed = [name for name in now if now[name] != then[name]]
    if changed:
        raise BadInput(
            f"{folder} has a recording with another {changed[0]} ({then[changed[0]]}, now "
            f"{now[changed[0]]}); give this recording another folder"
        )
    stored, _ = read_tensors(folder / AUDIT_FILE)
    tensors = samples.tensors()
    if stored.keys() != tensors.keys() or not all(
        torch.equal(stored[n], tensors[n]) for n in tensors
    ):
        raise BadInput(
            f"{folder} has a recording with other audited samples; to continue it, give the same "
            "samples, drawn with the same seed"
        )
    return earlier


def _refuse_leftovers(folder: Path) -> None:
    """Raise if files of a recording without settings would be replaced."""
    paths = [folder / AUDIT_FILE, folder / SAMPLES_FILE, *sorted(folder.glob("*/*.safetensors"))]
    if leftovers := [path for path in paths if path.exists()]:
        raise BadInput(
            f"{folder} has {leftovers[0].relative_to(folder)} but no {RECORDING_FILE}, so it "
            "cannot be continued, and its files would be lost; give another folder, or delete the "
            "folder"
        )


def write_audit(folder: Path, audit: AuditSet, *, features: bool) -> None:
    """Write the audited samples' owners, and optionally their features."""
    write_tensors(audit.tensors(), folder / AUDIT_FILE, private=True)
    if features:
        write_tensors(features_by_name(audit.samples), folder / SAMPLES_FILE, private=True)


def read_audit(folder: Path) -> AuditSet:
    """Read the audited samples; they have no features if none are stored."""
    path = folder / AUDIT_FILE
    if not path.is_file():
        raise Damaged(f"{path} is missing; restore the recording from a copy")
    tensors, _ = read_tensors(path)
    try:
        ids, labels, owner, panel = (tensors[name] for name in ("ids", "labels", "owner", "panel"))
        features: Tensor | dict[str, Tensor] = torch.zeros(len(ids), 0)
        if (folder / SAMPLES_FILE).is_file():
            features = features_stored(read_tensors(folder / SAMPLES_FILE)[0])
        targets = tensors.get("targets", labels)
        columns = (ids, labels, owner, panel)
        if any(c.dtype != torch.int64 or c.shape != (len(ids),) for c in columns) or not len(ids):
            raise ValueError("its columns are not of one length")
        parts = features.values() if isinstance(features, dict) else (features,)
        if not all(bool(part.isfinite().all()) for part in (*parts, targets)):
            raise ValueError("its features or targets are not finite numbers")
        if int(labels.min()) < 0 or int(owner.min()) < -1 or int(panel.min()) < -1:
            raise ValueError("it has invalid labels or owners")
        if len(set(ids.tolist())) < len(ids) or int(ids.min()) < 0:
            raise ValueError("it has a sample twice")
        audit = AuditSet(Samples(features, targets, ids, labels), owner.numpy(), panel.numpy())
        if DRAWN_FOR not in tensors:
            return audit
        drawn_for = tensors[DRAWN_FOR]
        if drawn_for.dtype != torch.int64 or drawn_for.shape != (len(ids),):
            raise ValueError("its columns are not of one length")
        return replace(audit, drawn_for=drawn_for.numpy())
    except (KeyError, ValueError) as error:
        raise Damaged(f"{path} is not a recording ({error}); restore it from a copy") from error


def write_untrained(folder: Path, rounds: tuple[MeasuredRound, ...], key: str) -> None:
    """Write the measurements of untrained models."""
    for name, measured in zip(_UNTRAINED, rounds, strict=False):
        write_measured(create_subfolder(folder, name), measured, {"run": key})


def read_untrained(folder: Path, key: str, samples: int) -> tuple[MeasuredRound, ...]:
    """Read the measurements of untrained models."""
    # The rounds have folders of their own, since the second has fewer signals.
    rounds = [
        stored for name in _UNTRAINED for stored in measured_rounds_in(unlinked_path(folder, name))
    ]
    if not rounds or any(
        stored.notes.get("run") != key
        or fault_in(
            stored.measured, {*stored.measured.clients, *stored.measured.stands_for}, samples
        )
        for stored in rounds
    ):
        raise Damaged(
            f"{folder / _UNTRAINED[0]} lacks this recording's untrained models; restore it"
        )
    return tuple(stored.measured for stored in rounds)


WAITING_FOLDER = "waiting"
"""Folder of the rounds that wait for measurement."""
TRAINING_PID_FILE = "trainer"
"""File in this folder with the id of the training process."""
_Value = TypeVar("_Value")


def waiting_rounds(folder: Path) -> list[tuple[int, Path]]:
    """Return numbers and files of the waiting rounds, ascending."""
    return round_paths(folder / WAITING_FOLDER, ".safetensors")


def waiting_round_entries(folder: Path) -> dict[int, RoundEntry]:
    """Return log entries of the waiting rounds, by number."""
    entries = dict[int, RoundEntry]()
    for index, path in waiting_rounds(folder):
        try:
            entries[index] = RoundEntry.model_validate(parsed_json(read_notes(path)["entry"]))
        # This error is raised when the round is measured.
        except (Damaged, KeyError, ValueError, RecursionError):
            entries[index] = RoundEntry(round=index, asked=(), answered=(), measured=False)
    return entries


def remove_waiting_folder(folder: Path) -> None:
    """Remove the folder of waiting rounds if it is empty."""
    if not waiting_rounds(folder):
        # The folder may be missing, or contain other files.
        with suppress(OSError):
            (folder / WAITING_FOLDER / TRAINING_PID_FILE).unlink(missing_ok=True)
            (folder / WAITING_FOLDER).rmdir()


def store_waiting(folder: Path, round: Round, entry: RoundEntry) -> bool:
    """Store a round bit for bit until it is measured; return False if it is too large.

    The write is atomic, so a killed process leaves no partial file. A power failure may lose it.
    """
    clients = sorted(round.exposed)
    bases = [base for c in clients if (base := round.exposed[c].base) is not None]
    distinct, numbers = group_models(bases)
    tensors = tensors_of_models("base", dict(enumerate(distinct)))
    tensors |= tensors_of_models("after", round.after)
    clients_json, number = [], iter(numbers)
    for client in clients:
        exposed = round.exposed[client]
        base_number = -1 if exposed.base is None else next(number)
        local, update = _to_store(exposed)
        if local is not None:
            tensors |= tensors_of_models("local", {str(client): local})
        if update is not None:
            tensors |= {f"update/{client}/{name}": value for name, value in update.items()}
        exists = [exposed.local is not None, exposed.update is not None]
        clients_json.append([client, base_number, exposed.gradient_scale, *exists])
    if len(tensors) > MAX_TENSORS or sum(value.nbytes for value in tensors.values()) > MAX_BYTES:
        return False
    notes = {
        "entry": entry.model_dump_json(),
        "clients": json.dumps(clients_json),
        "weights": json.dumps(sorted(round.weights.items())),
        "stands_for": json.dumps(sorted(round.stands_for.items())),
    }
    file = create_subfolder(folder, WAITING_FOLDER) / f"round-{round.index:06d}.safetensors"
    write_tensors(tensors, file, notes, durable=False)
    return True


def read_waiting(path: Path, architecture: Architecture) -> tuple[Round, RoundEntry]:
    """Read a round that :func:`store_waiting` stored; the file is untrusted."""
    tensors, notes = read_tensors(path)
    try:
        entry = RoundEntry.model_validate(parsed_json(notes["entry"]))
        bases, after, locals_ = (
            models_in(tensors, part, architecture) for part in ("base", "after", "local")
        )
        initial = architecture.initial(0)
        for model in (*bases.values(), *after.values(), *locals_.values()):
            refuse_misfit(model, initial)
        exposed: dict[ClientId, Exposed] = {}
        clients = _CLIENTS.validate_python(parsed_json(notes["clients"]))
        for client, number, scale, has_local, has_update in clients:
            base = None if number < 0 else bases[str(number)]
            local = locals_.get(str(client))
            update = with_prefix(tensors, f"update/{client}/") or None
            if has_local and local is None:
                local = _local_model(_required(base), _required(update))
            if has_update and update is None:
                update = plus(_required(local).params, _required(base).params, -1.0)
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
        raise Damaged(f"{path} is not a waiting round ({str(error)[:300]}); delete it") from error


_Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_CLIENTS = TypeAdapter(list[tuple[int, int, _Finite | None, bool, bool]])
_WEIGHTS = TypeAdapter(list[tuple[int, _Finite]])
_GROUPS = TypeAdapter(list[tuple[int, int]])


def _to_store(exposed: Exposed) -> tuple[Model | None, Params | None]:
    """Return the client's model and its update, or only one of them if it implies the other.

    Storing both would double the size of a waiting round.
    """
    base, local, update = exposed.base, exposed.local, exposed.update
    if base is None or local is None or update is None:
        return local, update
    if _equal(plus(local.params, base.params, -1.0), update):
        return local, None
    implied = _local_model(base, update)
    is_implied = _equal(implied.params, local.params) and _equal(implied.buffers, local.buffers)
    return (None if is_implied else local), update


def _local_model(base: Model, update: Params) -> Model:
    return Model(base.architecture, plus(base.params, update), base.buffers)


def _equal(first: Params, second: Params) -> bool:
    """Compare bit for bit: +0 and -0 differ."""
    return first.keys() == second.keys() and all(
        torch.equal(_bits(first[name]), _bits(second[name])) for name in first
    )


def _bits(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)


def _required(value: _Value | None) -> _Value:
    if value is None:
        raise ValueError("a part of a client's round is missing")
    return value
