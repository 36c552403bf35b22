"""The pool of measured runs, so that studies with the same settings train once.

A pool holds a folder for each run, named by what makes the run what it is; a study's own folder
then holds the record and report only, and ``runs.json``, which says where its runs are::

    runs/pool/3f2a9c41d0b7e865/    run.json, checkpoint, audit set, measured rounds
    runs/my-study/                 study.json, runs.json, record.json, report.html

Without a pool, runs are kept in the study's own folder, as ``seed-N``.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedaudit import __version__
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import Lock, own_folder, own_place, read_object, write_object
from fedaudit.core.modules import frozen_digest
from fedaudit.core.objects import canonical_repr, source_behind
from fedaudit.core.values import Samples
from fedaudit.plan.parts import Setup
from fedaudit.signals.base import Signal

RUN_FILE = "run.json"
RUNS_FILE = "runs.json"
_NAME_LENGTH = 16


@dataclass(frozen=True)
class Identity:
    """Identity of a measured run.

    Attributes:
        run: Settings, seed and kind of device, digested.
        data: Everything that is trained, audited and tested on, and all that is pretrained and
            frozen, digested: a file that was changed in its place gives another run.
        signals: What is measured, each with its settings.
        fedaudit: Version of the program.
    """

    run: str
    data: str
    signals: dict[str, str]
    fedaudit: str = __version__

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    @property
    def name(self) -> str:
        """Of the run's folder in a pool."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_NAME_LENGTH]

    def is_same_run(self, asked: "Identity") -> bool:
        """True if this run is the one asked for, whatever was measured in it."""
        return (self.run, self.data, self.fedaudit) == (asked.run, asked.data, asked.fedaudit)

    def covers(self, asked: "Identity") -> bool:
        """True if this run is the one asked for, and all that is asked for was measured in it."""
        return self.is_same_run(asked) and asked.signals.items() <= self.signals.items()


_IDENTITY = TypeAdapter(Identity)


def identity_of(run: Setup, kind: str) -> Identity:
    """Identity of a run on a kind of device."""
    signals = {signal.name: _signal_text(signal) for signal in run.signals}
    return Identity(run.key(kind), _data_digest(run), signals)


def place_of(run: Setup, out: Path, pool: Path | None, kind: str) -> Path:
    """The folder of a run: in its study's own, or wherever the pool has it or will have it.

    A run that is finished and measured all that is asked for, and more, is as good as one that
    measured just that. Next comes a finished run that kept its updates, on which the rest can be
    measured. One that is not finished must be just the same to be gone on with.

    Args:
        run: The run.
        out: The study's folder. Runs that it already holds stay there.
        pool: Folder of runs that studies share; None for the study's own folder.
        kind: Of device.
    """
    own = out / f"seed-{run.seed}"
    if pool is None or own.is_dir():
        return own
    asked = identity_of(run, kind)
    exact = pool / asked.name
    others = sorted(path.parent for path in pool.glob(f"*/{RUN_FILE}"))
    kept = run.study.audit.keep == "full" and not run.is_shadow
    for suits in (Identity.covers, Identity.is_same_run)[: 2 if kept else 1]:
        for place in (exact, *others):
            there = _identity_in(place)
            if there is None or not suits(there, asked) or not is_measured(run, place):
                continue
            if not any(one.missing_signals(run, place) for one in run.extensions):
                return place
    own_folder(pool, asked.name)
    _write(exact / RUN_FILE, asdict(asked))
    return exact


def is_measured(run: Setup, place: Path) -> bool:
    """True if a folder holds every round that the run measures."""
    files = (place / "measured" / f"round-{at:06d}.safetensors" for at in run.measured_rounds)
    return all(file.is_file() for file in files)


def write_run_places(places: Mapping[int, Path], out: Path) -> None:
    """Writes down in a study's folder where its runs are, unless they are in it."""
    found = {
        str(seed): Path(os.path.relpath(place, out)).as_posix()
        for seed, place in places.items()
        if place.parent != out
    }
    if found:
        _write(out / RUNS_FILE, found)


def run_folder(out: Path, seed: int) -> Path:
    """The folder of one run of a study, in the study's own or in a pool.

    Raises:
        BadInput: The pool is not where it was, or the run's folder is a link.
        Damaged: The study's list of runs cannot be read.
    """
    own, listed = own_place(out, f"seed-{seed}"), out / RUNS_FILE
    if own.is_dir() or not listed.is_file():
        return own
    where = read_object(listed).get(str(seed))
    if not isinstance(where, str):
        raise Damaged(f"{listed} does not say where seed {seed} is; restore it from a copy")
    try:
        place = own_place((out / where).parent, Path(where).name)
        is_there = place.is_dir()
    except (OSError, ValueError) as error:
        raise Damaged(
            f"{listed} has a path for seed {seed} that no folder can have ({where[:80]!a}); "
            "restore it from a copy"
        ) from error
    if not is_there:
        raise BadInput(
            f"the run of seed {seed} was kept in {place}, which is not there; copy that folder "
            "beside the study's again, or run the study again"
        )
    return place


@contextmanager
def locked(place: Path, log: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Keeps a run's folder to this process, after waiting for another one that works on it.

    The lock goes with its process, so that one that was killed leaves nothing behind.
    """
    own_folder(place.parent, place.name)
    with closing(Lock(place)) as lock:
        if not lock.taken():
            log(f"waiting for another study that is training the run in {place}")
            lock.taken(wait=True)
        yield


def _signal_text(signal: Signal) -> str:
    """A signal with its settings, and the source of one of the user's own."""
    source = source_behind(type(signal))
    return f"{canonical_repr(signal)} {source}" if source else canonical_repr(signal)


def _data_digest(run: Setup) -> str:
    digest = hashlib.blake2b(digest_size=16)
    parts: Sequence[Samples] = (
        *(data for _, data in sorted(run.deal.clients.items())),
        run.deal.measured,
        run.dataset.test,
    )
    for samples in parts:
        ids, labels, features, *targets = samples.parts
        for tensor in (features, labels, ids, *targets):
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.contiguous().numpy().reshape(-1).view(np.uint8).data)
    digest.update(frozen_digest(run.algorithm.nets).encode())
    return digest.hexdigest()


def _identity_in(place: Path) -> Identity | None:
    """Identity of its run that a folder states; None where it does not state it in our words."""
    try:
        return _IDENTITY.validate_python(read_object(place / RUN_FILE))
    except (Damaged, ValidationError):
        return None


def _write(path: Path, values: Mapping[str, object]) -> None:
    write_object(path, json.dumps(values, indent=1, sort_keys=True) + "\n")
