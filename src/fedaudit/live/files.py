"""Files of a live recording beside its measured rounds: the audited samples, untrained models."""

from pathlib import Path

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import RECORD_FILE, RECORDING_FILE, own_folder, own_place
from fedaudit.core.values import ClientId, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.audited import features_by_name, features_stored
from fedaudit.live.recording import Recording, is_recording, read_recording
from fedaudit.observe.measurements import MeasuredRound, fault_in, stored_in, write_measured
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.study.running.folder import STUDY_FILE

AUDIT_FILE = "audit.safetensors"
SAMPLES_FILE = "samples.safetensors"
_UNTRAINED = ("untrained-1", "untrained-2")
_OF_EACH_START = {
    "key",
    "started",
    "name",
    "refused",
    "sizes",
    "names",
    "unaudited",
    "conflicts",
    "is_closed",
}


def claim(folder: Path, recording: Recording, samples: AuditSet) -> Recording:
    """Makes a folder a recording's own; a recording that is there is gone on with.

    Args:
        folder: Of the recording.
        recording: As it is begun now.
        samples: That are audited.

    Returns:
        The recording as it was begun first.

    Raises:
        BadInput: The folder holds something else, a link or a file where rounds go, or a recording
            of other settings or samples.
        Damaged: What it holds cannot be read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = [name for name in (STUDY_FILE, RECORD_FILE) if (folder / name).exists()]
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} cannot be used ({error}); choose another folder") from error
    if taken:
        raise BadInput(
            f"{folder} holds {taken[0]}, which is of a study; give the recording its own folder"
        )
    if not is_recording(folder):
        _refuse_leftovers(folder)
        _make_room(folder, recording)
        return recording
    _make_room(folder, recording)
    there = read_recording(folder)
    now, then = (one.model_dump(mode="json", exclude=_OF_EACH_START) for one in (recording, there))
    changed = [name for name in now if now[name] != then[name]]
    if changed:
        raise BadInput(
            f"{folder} holds a recording with another {changed[0]} ({then[changed[0]]}, now "
            f"{now[changed[0]]}); give this one another folder"
        )
    kept, _ = read_tensors(folder / AUDIT_FILE)
    made = samples.tensors()
    if kept.keys() != made.keys() or not all(torch.equal(kept[n], made[n]) for n in made):
        raise BadInput(
            f"{folder} holds a recording with other audited samples; a recording that is gone on "
            "with needs the same ones, drawn with the same seed"
        )
    return there


def _refuse_leftovers(folder: Path) -> None:
    """Refuses files of a recording, or of somebody else's, that would be replaced."""
    measured = sorted(folder.glob("*/*.safetensors"))
    left = [one for one in (folder / AUDIT_FILE, folder / SAMPLES_FILE) if one.exists()] + measured
    if left:
        raise BadInput(
            f"{folder} holds {left[0].relative_to(folder)} and no {RECORDING_FILE}: it is no "
            "recording to go on with, and what is there would be lost; give another folder, or "
            "delete this one"
        )


def _make_room(folder: Path, recording: Recording) -> None:
    """Makes the folders of rounds while another can still be chosen, not in the first round."""
    for name in ("measured", *(("rounds",) if recording.keep != "signals" else ())):
        own_folder(folder, name)


def write_audit(folder: Path, audit: AuditSet, *, features: bool) -> None:
    """Keeps who trains on what, and the samples themselves if that is asked for."""
    write_tensors(audit.tensors(), folder / AUDIT_FILE, private=True)
    if features:
        write_tensors(features_by_name(audit.samples), folder / SAMPLES_FILE, private=True)


def read_audit(folder: Path) -> AuditSet:
    """The audited samples; without features, where these were not kept, each has none.

    Raises:
        Damaged: The files cannot be read, or do not fit together.
    """
    path = folder / AUDIT_FILE
    if not path.is_file():
        raise Damaged(f"{path} is missing; restore the recording from a copy")
    kept, _ = read_tensors(path)
    try:
        ids, labels, owner, panel = (kept[name] for name in ("ids", "labels", "owner", "panel"))
        features: Tensor | dict[str, Tensor] = torch.zeros(len(ids), 0)
        if (folder / SAMPLES_FILE).is_file():
            features = features_stored(read_tensors(folder / SAMPLES_FILE)[0])
        targets = kept.get("targets", labels)
        columns = (ids, labels, owner, panel)
        if any(c.dtype != torch.int64 or c.shape != (len(ids),) for c in columns) or not len(ids):
            raise ValueError("its columns are not of one length")
        given = features.values() if isinstance(features, dict) else (features,)
        if not all(bool(part.isfinite().all()) for part in (*given, targets)):
            raise ValueError("its features or targets are no finite numbers")
        if int(labels.min()) < 0 or int(owner.min()) < -1 or int(panel.min()) < -1:
            raise ValueError("it has labels or owners that cannot be")
        if len(set(ids.tolist())) < len(ids) or int(ids.min()) < 0:
            raise ValueError("it has a sample twice")
        return AuditSet(Samples(features, targets, ids, labels), owner.numpy(), panel.numpy())
    except (KeyError, ValueError) as error:
        raise Damaged(f"{path} is no recording's ({error}); restore it from a copy") from error


def write_untrained(folder: Path, rounds: tuple[MeasuredRound, ...], key: str) -> None:
    """Keeps what was measured of models that nobody trained."""
    for name, one in zip(_UNTRAINED, rounds, strict=False):
        write_measured(own_folder(folder, name), one, {"run": key})


def read_untrained(folder: Path, key: str, samples: int) -> tuple[MeasuredRound, ...]:
    """Measurements of models that nobody trained.

    Raises:
        Damaged: It is missing, cannot be read, or is another recording's.
    """
    # Apart, since the second round has fewer signals.
    found = [one for name in _UNTRAINED for one in stored_in(own_place(folder, name))]
    if not found or any(
        one.notes.get("run") != key or fault_in(one.measured, _named(one.measured), samples)
        for one in found
    ):
        raise Damaged(
            f"{folder / _UNTRAINED[0]} does not hold this recording's untrained models; restore it"
        )
    return tuple(one.measured for one in found)


def _named(measured: MeasuredRound) -> list[ClientId]:
    """All clients that a measured round speaks of: by themselves, or as one of a sum."""
    return sorted({*measured.clients, *measured.stands_for})
