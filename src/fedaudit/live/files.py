"""Files of a recording: audited samples, untrained models, and rounds that wait for measurement."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import (
    RECORD_FILE,
    RECORDING_FILE,
    create_subfolder,
    parse_json,
    path_without_links,
)
from fedaudit.core.pretrained import MAX_TENSORS
from fedaudit.core.values import (
    Architecture,
    ClientId,
    Model,
    Params,
    Samples,
    add_scaled,
    with_prefix,
)
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.audited import features_by_name, features_stored
from fedaudit.live.recording import Recording, RoundEntry, is_recording, read_recording
from fedaudit.observe.kept_files import models_in, raise_if_misfit, tensors_of_models
from fedaudit.observe.measurements import (
    MeasuredRound,
    measured_rounds_in,
    reason_invalid,
    write_measured,
)
from fedaudit.observe.round import ObservedModels, Round, group_models
from fedaudit.observe.tensors import MAX_BYTES, read_notes, read_tensors, round_paths, write_tensors
from fedaudit.study.running.folder import STUDY_FILE

AUDIT_FILE = "audit.safetensors"
SAMPLES_FILE = "samples.safetensors"
DRAWN_FOR = "drawn_for"
"""Array of the client whose coin decided on each sample, in recordings of separate tables."""

_UNTRAINED = ("untrained-1", "untrained-2")
_MAY_DIFFER = {
    *("key", "started", "name", "refused", "sizes"),
    *("names", "unaudited", "conflicts", "is_closed", "adapter", "tied"),
}
"""Settings of a recording that may change when it is continued."""


def prepare_folder(folder: Path, recording: Recording, samples: AuditSet) -> Recording:
    """Create folders for a recording, and return the stored recording, or the new one.

    Raises:
        BadInput: The folder cannot be used, or has a study or another recording.
        Damaged: The stored recording cannot be read.
    """
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
        _raise_if_leftovers(folder, samples)
    # Create folders now, while another folder can still be chosen, and not in the first round.
    for name in ("measured", *(("rounds",) if recording.keep != "signals" else ())):
        create_subfolder(folder, name)
    if is_new:
        return recording
    stored = read_recording(folder)
    old_settings = stored.model_dump(mode="json", exclude=_MAY_DIFFER)
    for name, value in recording.model_dump(mode="json", exclude=_MAY_DIFFER).items():
        if value != old_settings[name]:
            raise BadInput(
                f"{folder} has a recording with another {name} ({old_settings[name]}, now "
                f"{value}); give this recording another folder"
            )
    stored_tensors, _ = read_tensors(folder / AUDIT_FILE)
    if not _are_tensors_equal(stored_tensors, samples.tensors()):
        raise BadInput(
            f"{folder} has a recording with other audited samples; to continue it, give the same "
            "samples, drawn with the same seed"
        )
    return stored


def _are_tensors_equal(first: Params, second: Params) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def _raise_if_leftovers(folder: Path, samples: AuditSet) -> None:
    """Raise if files of a recording without settings would be lost.

    A process that is killed while it creates a recording leaves untrained models and the audited
    samples. The next process writes the same files again.
    """
    paths = [path for path in folder.glob("*/*.safetensors") if path.parent.name not in _UNTRAINED]
    audit = folder / AUDIT_FILE
    try:
        is_same_audit = _are_tensors_equal(read_tensors(audit)[0], samples.tensors())
    except (BadInput, Damaged):
        is_same_audit = False
    if not is_same_audit:
        paths += [audit, folder / SAMPLES_FILE]
    paths.sort()
    if leftovers := [path for path in paths if path.exists()]:
        raise BadInput(
            f"{folder} has {leftovers[0].relative_to(folder)} but no {RECORDING_FILE}, so it "
            "cannot be continued, and its files would be lost; give another folder, or delete the "
            "folder"
        )


def write_audit(folder: Path, audit: AuditSet, *, features: bool) -> None:
    """Write the audited samples' owners, and optionally their features."""
    write_tensors(audit.tensors(), folder / AUDIT_FILE, owner_only=True)
    if features:
        write_tensors(features_by_name(audit.samples), folder / SAMPLES_FILE, owner_only=True)


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
        if not len(ids) or not all(_is_column(column, len(ids)) for column in columns):
            raise ValueError("its columns are not of one length")
        inputs = features.values() if isinstance(features, dict) else (features,)
        if not all(bool(values.isfinite().all()) for values in (*inputs, targets)):
            raise ValueError("its features or targets are not finite numbers")
        if int(labels.min()) < 0 or int(owner.min()) < -1 or int(panel.min()) < -1:
            raise ValueError("it has invalid labels or owners")
        if len(set(ids.tolist())) < len(ids) or int(ids.min()) < 0:
            raise ValueError("it has a sample twice")
        audit = AuditSet(Samples(features, targets, ids, labels), owner.numpy(), panel.numpy())
        if DRAWN_FOR not in tensors:
            return audit
        if not _is_column(tensors[DRAWN_FOR], len(ids)):
            raise ValueError("its columns are not of one length")
        return replace(audit, drawn_for=tensors[DRAWN_FOR].numpy())
    except (KeyError, ValueError) as error:
        raise Damaged(f"{path} is not a recording ({error}); restore it from a copy") from error


def _is_column(values: Tensor, length: int) -> bool:
    return values.dtype == torch.int64 and values.shape == (length,)


def write_untrained(folder: Path, rounds: tuple[MeasuredRound, ...], key: str) -> None:
    """Write the measurements of untrained models."""
    for name, measured in zip(_UNTRAINED, rounds, strict=False):
        write_measured(create_subfolder(folder, name), measured, {"run": key})


def read_untrained(folder: Path, key: str, samples: int) -> tuple[MeasuredRound, ...]:
    """Read the measurements of untrained models."""
    rounds = list[MeasuredRound]()
    # Each round has its own folder, since the second has fewer signals.
    for name in _UNTRAINED:
        for measured, notes in measured_rounds_in(path_without_links(folder, name)):
            clients = {*measured.clients, *measured.group_of}
            if notes.get("run") != key or reason_invalid(measured, clients, samples):
                raise _untrained_missing(folder)
            rounds.append(measured)
    if not rounds:
        raise _untrained_missing(folder)
    return tuple(rounds)


def _untrained_missing(folder: Path) -> Damaged:
    return Damaged(f"{folder / _UNTRAINED[0]} lacks this recording's untrained models; restore it")


WAITING_FOLDER = "waiting"
"""Folder of the rounds that wait for measurement."""
TRAINING_PID_FILE = "trainer"
"""File in this folder with the id of the training process."""


def waiting_rounds(folder: Path) -> list[tuple[int, Path]]:
    """Return numbers and files of the waiting rounds, ascending."""
    return round_paths(folder / WAITING_FOLDER, ".safetensors")


def waiting_round_entries(folder: Path) -> dict[int, RoundEntry]:
    """Return log entries of the waiting rounds, by number."""
    entries = dict[int, RoundEntry]()
    for index, path in waiting_rounds(folder):
        try:
            entries[index] = RoundEntry.model_validate(parse_json(read_notes(path)["entry"]))
        # Measuring the round raises the same error, so it is ignored here.
        except (Damaged, KeyError, ValueError, RecursionError):
            entries[index] = RoundEntry(round=index, selected=(), answered=(), measured=False)
    return entries


def remove_waiting_folder(folder: Path) -> None:
    """Remove the folder of waiting rounds if no round waits."""
    if not waiting_rounds(folder):
        # The folder may be missing, or contain files of other programs.
        with suppress(OSError):
            (folder / WAITING_FOLDER / TRAINING_PID_FILE).unlink(missing_ok=True)
            (folder / WAITING_FOLDER).rmdir()


def store_waiting(folder: Path, round: Round, entry: RoundEntry) -> bool:
    """Store a round bit for bit until it is measured; return False if it is too large.

    The write is atomic, so a killed process leaves no partial file. A power failure may lose it.
    """
    observed = dict(sorted(round.observed.items()))
    unique_models, numbers = group_models(e.base for e in observed.values() if e.base is not None)
    tensors = tensors_of_models("base", dict(enumerate(unique_models)))
    tensors |= tensors_of_models("after", round.after)
    clients, next_number = list[list[object]](), iter(numbers)
    for client, models in observed.items():
        base_number = -1 if models.base is None else next(next_number)
        local, update = _without_implied(models)
        if local is not None:
            tensors |= tensors_of_models("local", {str(client): local})
        if update is not None:
            tensors |= {f"update/{client}/{name}": value for name, value in update.items()}
        has_local, has_update = models.local is not None, models.update is not None
        clients.append([client, base_number, models.gradient_scale, has_local, has_update])
    if len(tensors) > MAX_TENSORS or sum(value.nbytes for value in tensors.values()) > MAX_BYTES:
        return False
    notes = {
        "entry": entry.model_dump_json(),
        "clients": json.dumps(clients),
        "weights": json.dumps(sorted(round.weights.items())),
        "stands_for": json.dumps(sorted(round.group_of.items())),
    }
    file = create_subfolder(folder, WAITING_FOLDER) / f"round-{round.index:06d}.safetensors"
    write_tensors(tensors, file, notes, durable=False)
    return True


def read_waiting(path: Path, architecture: Architecture) -> tuple[Round, RoundEntry]:
    """Read a round that :func:`store_waiting` stored; the file is untrusted."""
    tensors, notes = read_tensors(path)
    try:
        entry = RoundEntry.model_validate(parse_json(notes["entry"]))
        bases, after, locals_ = (
            models_in(tensors, part, architecture) for part in ("base", "after", "local")
        )
        initial = architecture.initial(0)
        for model in (*bases.values(), *after.values(), *locals_.values()):
            raise_if_misfit(model, initial)
        observed: dict[ClientId, ObservedModels] = {}
        clients = _CLIENTS.validate_python(parse_json(notes["clients"]))
        for client, number, scale, has_local, has_update in clients:
            models = ObservedModels(
                None if number < 0 else bases[str(number)],
                locals_.get(str(client)),
                with_prefix(tensors, f"update/{client}/") or None,
                scale,
            )
            observed[client] = _with_implied(models, has_local=has_local, has_update=has_update)
        return Round(
            index=entry.round,
            observed=observed,
            sent={},
            uploads={},
            weights=dict(_WEIGHTS.validate_python(parse_json(notes["weights"]))),
            selected=entry.selected,
            answered=entry.answered,
            after=after,
            group_of=dict(_GROUPS.validate_python(parse_json(notes["stands_for"]))),
        ), entry
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise Damaged(f"{path} is not a waiting round ({str(error)[:300]}); delete it") from error


_Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_CLIENTS = TypeAdapter(list[tuple[int, int, _Finite | None, bool, bool]])
_WEIGHTS = TypeAdapter(list[tuple[int, _Finite]])
_GROUPS = TypeAdapter(list[tuple[int, int]])


def _without_implied(models: ObservedModels) -> tuple[Model | None, Params | None]:
    """Return the client's model and its update, or only one of them if it implies the other.

    Storing both would double the size of a waiting round.
    """
    base, local, update = models.base, models.local, models.update
    if base is None or local is None or update is None:
        return local, update
    if _are_identical(add_scaled(local.params, base.params, -1.0), update):
        return local, None
    implied = _local_model(base, update)
    if _are_identical(implied.params, local.params) and _are_identical(
        implied.buffers, local.buffers
    ):
        return None, update
    return local, update


def _with_implied(models: ObservedModels, *, has_local: bool, has_update: bool) -> ObservedModels:
    """Restore the model or update that :func:`_without_implied` omitted."""
    base, local, update = models.base, models.local, models.update
    if has_local and local is None:
        if base is None or update is None:
            raise ValueError("a part of a client's round is missing")
        local = _local_model(base, update)
    if has_update and update is None:
        if base is None or local is None:
            raise ValueError("a part of a client's round is missing")
        update = add_scaled(local.params, base.params, -1.0)
    if update is not None and base is not None:
        raise_if_misfit(Model(base.architecture, update), replace(base, buffers={}))
    return replace(models, local=local, update=update)


def _local_model(base: Model, update: Params) -> Model:
    return Model(base.architecture, add_scaled(base.params, update), base.buffers)


def _are_identical(first: Params, second: Params) -> bool:
    """Compare bit for bit: +0 and -0 differ."""
    return first.keys() == second.keys() and all(
        torch.equal(_bits(value), _bits(second[name])) for name, value in first.items()
    )


def _bits(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)
