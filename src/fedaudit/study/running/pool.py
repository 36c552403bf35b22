"""Pool of measured runs, so that studies with the same settings share a run that is trained once.

A pool has a folder for each run, whose name is a digest of the run's identity. The folder of a
study then has only the record, the report, and the paths of its runs in ``runs.json``::

    runs/pool/3f2a9c41d0b7e865/    run.json, checkpoint, audit set, measured rounds
    runs/my-study/                 study.json, runs.json, record.json, report.html

Without a pool, runs are stored in the study's folder, as ``seed-N``.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedaudit import __version__
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import (
    Lock,
    create_subfolder,
    path_without_links,
    read_object,
    write_object,
)
from fedaudit.core.modules import frozen_digest
from fedaudit.core.objects import canonical_repr, class_source_digest
from fedaudit.core.values import Samples
from fedaudit.plan.parts import Setup
from fedaudit.signals.base import Signal

RUN_FILE = "run.json"
RUNS_FILE = "runs.json"
ADDITIONAL_FOLDER = "shadow"
"""Subfolder of a study's folder for auxiliary federations, if the study uses no pool."""
_NAME_LENGTH = 16


@dataclass(frozen=True)
class Identity:
    """Identity of a measured run.

    Attributes:
        run: Digest of settings, seed and kind of device.
        data: Digest of all training, audited and test samples, and of frozen pretrained weights. If
            a data file changes, the run is another run.
        signals: Maps the name of each measured signal to its settings.
        fedaudit: Version of fedaudit.
    """

    run: str
    data: str
    signals: dict[str, str]
    fedaudit: str = __version__

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    @property
    def name(self) -> str:
        """Name of the run's folder in a pool."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_NAME_LENGTH]

    def is_same_run(self, other: "Identity") -> bool:
        """Return whether two runs are the same, whatever signals were measured."""
        return (self.run, self.data, self.fedaudit) == (other.run, other.data, other.fedaudit)

    def covers(self, other: "Identity") -> bool:
        """Return whether this is the same run, with all signals of the other."""
        return self.is_same_run(other) and other.signals.items() <= self.signals.items()


_IDENTITY = TypeAdapter(Identity)


def assign_folder(run: Setup, out: Path, pool: Path | None, kind: str) -> Setup:
    """Return a run with its folder, in the study's folder or in a pool.

    A finished run in the pool is reused if it has all signals of this run. It is also reused if it
    stored its updates, on which missing signals can be measured. An unfinished run is resumed only
    if its identity is exactly the same.

    Args:
        run: The run.
        out: Folder of the study. If it already contains the run, the run stays there.
        pool: Folder of runs that studies share; None for the study's folder.
        kind: Kind of device.
    """
    found, identity = find_folder(run, out, pool, kind)
    if identity is not None:
        _write(create_subfolder(found.folder.parent, identity.name) / RUN_FILE, asdict(identity))
    return found


def find_folder(
    run: Setup, out: Path, pool: Path | None, kind: str
) -> tuple[Setup, Identity | None]:
    """Return a run with its folder as :func:`assign_folder`, without writing to the pool.

    Returns:
        The run, and its identity if it needs a new folder in the pool.
    """
    in_study = out / f"seed-{run.seed}"
    if pool is None or in_study.is_dir():
        return replace(run, folder=in_study), None
    identity = Identity(run.key(kind), _data_digest(run), dict(map(_signal_key, run.signals)))
    exact = replace(run, folder=pool / identity.name)
    folders = sorted(path.parent for path in pool.glob(f"*/{RUN_FILE}"))
    candidates = [exact, *(replace(run, folder=folder) for folder in folders)]
    conditions = [Identity.covers]
    if run.study.audit.keep == "full" and not run.is_auxiliary:
        conditions.append(Identity.is_same_run)
    for is_usable in conditions:
        for candidate in candidates:
            pooled = _identity_in(candidate.folder)
            if pooled is None or not is_usable(pooled, identity) or not is_measured(candidate):
                continue
            if not any(extension.missing_signals(candidate) for extension in run.extensions):
                return candidate, None
    return exact, identity


def is_measured(run: Setup) -> bool:
    """Return whether the folder of a run has all rounds that the run measures."""
    folder = run.folder / "measured"
    files = (folder / f"round-{index:06d}.safetensors" for index in run.measured_rounds)
    return all(file.is_file() for file in files)


def write_run_folders(runs: Iterable[Setup], out: Path) -> None:
    """Write the paths of runs in a pool to the study's folder."""
    pooled = {
        str(run.seed): Path(os.path.relpath(run.folder, out)).as_posix()
        for run in runs
        if run.folder.parent != out
    }
    if pooled:
        _write(out / RUNS_FILE, pooled)


def run_folder(out: Path, seed: int) -> Path:
    """Return the folder of one run of a study, in the study's folder or in a pool.

    Raises:
        BadInput: The pool has been moved, or the run's folder is a link.
        Damaged: The study's list of runs cannot be read.
    """
    in_study, runs_file = path_without_links(out, f"seed-{seed}"), out / RUNS_FILE
    if in_study.is_dir() or not runs_file.is_file():
        return in_study
    relative = read_object(runs_file).get(str(seed))
    if not isinstance(relative, str):
        raise Damaged(f"{runs_file} has no path for seed {seed}; restore it from a copy")
    try:
        folder = path_without_links((out / relative).parent, Path(relative).name)
        exists = folder.is_dir()
    except (OSError, ValueError) as error:
        raise Damaged(
            f"{runs_file} has an invalid path for seed {seed} ({relative[:80]!a}); restore it from "
            "a copy"
        ) from error
    if not exists:
        raise BadInput(
            f"the run of seed {seed} was stored in {folder}, which does not exist; copy that "
            "folder back, or run the study again"
        )
    return folder


@contextmanager
def lock_run(folder: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Lock a run's folder within the context, after waiting for any other process that uses it.

    The operating system releases the lock of a process that ends or is killed.
    """
    create_subfolder(folder.parent, folder.name)
    with closing(Lock(folder)) as lock:
        if not lock.acquire():
            log(f"waiting for another study that is training the run in {folder}")
            lock.acquire(wait=True)
        yield


def _signal_key(signal: Signal) -> tuple[str, str]:
    """Return the name of a signal, and its settings with the source code of a custom signal."""
    source = class_source_digest(type(signal))
    return signal.name, " ".join(filter(None, [canonical_repr(signal), source]))


def _data_digest(run: Setup) -> str:
    digest = hashlib.blake2b(digest_size=16)
    parts: Sequence[Samples] = (
        *(data for _, data in sorted(run.assignment.clients.items())),
        run.assignment.measured,
        run.dataset.test,
    )
    for samples in parts:
        ids, labels, features, *targets = samples.parts
        for tensor in (features, labels, ids, *targets):
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.contiguous().numpy().reshape(-1).view(np.uint8).data)
    digest.update(frozen_digest(run.algorithm.nets).encode())
    return digest.hexdigest()


def _identity_in(folder: Path) -> Identity | None:
    """Return the identity of the run in a folder; None if it cannot be read."""
    try:
        return _IDENTITY.validate_python(read_object(folder / RUN_FILE))
    except (Damaged, ValidationError):
        return None


def _write(path: Path, values: Mapping[str, object]) -> None:
    write_object(path, json.dumps(values, indent=1, sort_keys=True) + "\n")
