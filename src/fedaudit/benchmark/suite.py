"""Benchmark suites: frozen recordings, with the true membership in separate files.

The folder of a suite has these files. Attacks receive only the content of ``signals``::

    suite.json                       regimes and recordings, with the digest of every file
    croissant.json                   metadata in the Croissant format
    signals/digits-1.safetensors     what the adversary sees
    answers/digits-1.safetensors     membership, and the scores of the catalogue's attacks

``croissant.json`` describes the tensors of these files. Two hashes of a suite differ on purpose:
the one in ``suite.json`` covers its content and detects accidental changes, and pages name the
SHA-256 of the file, which ``sha256sum suite.json`` prints.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from pydantic import Field, ValidationError
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, format_option, type_of
from fedaudit.core.files import open_regular, path_without_links, read_object, write_object
from fedaudit.core.values import ClientId, Params
from fedaudit.metrics.roc import as_array
from fedaudit.observe.measurements import Measurements
from fedaudit.observe.tensors import client_ids_in, read_tensors, write_tensors
from fedaudit.results.fields import Count, RecordPart
from fedaudit.results.text import sealed_json, was_altered, without_digest

SUITE_FILE = "suite.json"
SIGNALS, ANSWERS = "signals", "answers"
"""Folders of a suite."""
DEFAULT_FOLDER = Path("runs") / "benchmark"

NOT_APPLICABLE: Mapping[str, str] = {
    "loss-series-aware": "equals loss-series without a defense that assigns classes",
    "fedmia-2-aware": "equals fedmia-2 without a defense that assigns classes",
    "avg-cosine-control": "needs SCAFFOLD's control variates",
    "fedmia-2-control": "needs SCAFFOLD's control variates",
    "recovery": "needs a malicious client",
}
"""Reason for attacks of the catalogue that are not run on the regimes."""

_NAME = r"[a-z0-9][a-z0-9_-]{0,60}"
_SIGNAL, _SCORES = "signal/", "scores/"
"""Prefixes of the names of tensors."""
_MAX_SIGNAL = 1e100
"""Largest valid absolute value of a signal."""


class StoredFile(RecordPart):
    """File of a suite with its digest.

    Attributes:
        path: Path relative to the suite.
    """

    path: str = Field(pattern=rf"^({SIGNALS}|{ANSWERS})/{_NAME}\.safetensors$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: Count


class RecordingEntry(RecordPart):
    """One frozen recording: a trained federation with one audited client.

    Attributes:
        target: The audited client.
        samples: Number of audited samples.
    """

    name: str = Field(pattern=f"^{_NAME}$")
    regime: str
    seed: Count
    target: Count
    clients: Count
    rounds: Count
    samples: Count
    signals: StoredFile
    answers: StoredFile


class Regime(RecordPart):
    """A federation of the suite, which is recorded once per seed.

    Attributes:
        settings: The settings of its study.
        failed_controls: Controls that failed when the recordings were made.
    """

    name: str = Field(pattern=f"^{_NAME}$")
    about: str = Field(max_length=1000)
    settings: dict[str, object]
    failed_controls: list[str] = Field(default_factory=list)


class Suite(RecordPart):
    """Description of a suite; see the module's docstring.

    Attributes:
        seed: First seed of the recordings. Another seed draws data, clients and membership again.
        fedaudit: Version that made the suite.
        commit: Commit of that version; empty if unknown.
    """

    format: Literal["fedaudit-benchmark"] = "fedaudit-benchmark"
    version: Literal[1] = 1
    seed: Count
    fedaudit: str
    commit: str = ""
    regimes: list[Regime] = Field(max_length=100)
    recordings: list[RecordingEntry] = Field(max_length=1000)

    def of_regime(self, name: str) -> list[RecordingEntry]:
        """Return the recordings of a regime."""
        return [entry for entry in self.recordings if entry.regime == name]


@dataclass(frozen=True, eq=False)
class Signals:
    """Everything that an attack on a recording receives.

    Attributes:
        target: The audited client.
        measured: Measurements by signal name.
        references: Measurements of reference federations, in which no client trained on an audited
            sample, by signal name. The audited client corresponds to their client ``target``.
    """

    target: ClientId
    measured: Mapping[str, Measurements]
    references: Sequence[Mapping[str, Measurements]] = ()

    @property
    def samples(self) -> int:
        """Number of audited samples."""
        return int(next(iter(self.measured.values())).values.shape[2])

    def in_order(self, positions: Int[ndarray, " samples"]) -> "Signals":
        """Return the signals of the samples at these positions."""
        rows = torch.from_numpy(positions)
        measured, *references = (
            {name: m.on_samples(rows) for name, m in federation.items()}
            for federation in (self.measured, *self.references)
        )
        return replace(self, measured=measured, references=references)


@dataclass(frozen=True, eq=False)
class Answers:
    """True membership of a recording's samples, and the scores of the catalogue's attacks.

    Attributes:
        is_member: Whether the target trained on each sample.
        by_attack: Scores by name of the attack, larger for likelier members.
    """

    is_member: Bool[ndarray, " samples"]
    by_attack: Mapping[str, Float[ndarray, " samples"]]


def write_signals(signals: Signals, path: Path, *, durable: bool = True) -> None:
    """Write the signals of a recording."""
    tensors: Params = {"target": torch.tensor([signals.target], dtype=torch.int64)}
    for number, federation in enumerate((signals.measured, *signals.references)):
        first = next(iter(federation.values()))
        tensors |= {
            f"{number}/rounds": torch.tensor(first.rounds, dtype=torch.int64),
            f"{number}/clients": torch.tensor(first.clients, dtype=torch.int64),
            f"{number}/bases": first.bases,
            **{f"{number}/{_SIGNAL}{name}": m.values for name, m in federation.items()},
        }
    write_tensors(tensors, path, durable=durable)


def read_signals(path: Path) -> Signals:
    """Read the signals of a recording from a file that is not trusted.

    Raises:
        BadInput: The file does not exist.
        Damaged: The file was altered, or contains something other than signals.
    """
    tensors, _ = read_tensors(path)
    try:
        target = int(tensors.pop("target"))
        federations: dict[str, Params] = {}
        for name, value in tensors.items():
            number, _, key = name.partition("/")
            federations.setdefault(number, {})[key] = value
        if list(federations) != [str(number) for number in range(len(federations))]:
            raise ValueError("its federations are not numbered")
        measured, *references = map(_measurements, federations.values())
        shapes = {m.values.shape[2] for each in (measured, *references) for m in each.values()}
        if len(shapes) != 1:
            raise ValueError("it has signals of different samples")
        if any(target not in m.clients for each in (measured, *references) for m in each.values()):
            raise ValueError("the audited client was never measured")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(f"{path} has no valid signals ({error}); restore it from a copy") from error
    return Signals(target, measured, references)


def _measurements(tensors: Params) -> dict[str, Measurements]:
    """Return the measurements of one federation by signal name."""
    rounds = tuple(int(index) for index in tensors.pop("rounds").tolist())
    clients, bases = client_ids_in(tensors.pop("clients")), tensors.pop("bases")
    shape = (len(rounds), len(clients))
    if bases.dtype != torch.int64 or bases.shape != shape or rounds != tuple(sorted(rounds)):
        raise ValueError("its rounds or received models are invalid")
    if not tensors or not all(name.startswith(_SIGNAL) for name in tensors):
        raise ValueError("it has no signals")
    if not all(_is_valid(value, shape) for value in tensors.values()):
        raise ValueError("a signal has an invalid shape or value")
    return {
        name.removeprefix(_SIGNAL): Measurements(value, rounds, clients, bases)
        for name, value in tensors.items()
    }


def _is_valid(values: Tensor, shape: tuple[int, ...]) -> bool:
    return (
        values.ndim == 3
        and tuple(values.shape[:2]) == shape
        and values.dtype in (torch.float32, torch.float64)
        # As a 32-bit number, the maximum is infinite.
        and bool((values.isnan() | (values.double().abs() <= _MAX_SIGNAL)).all())
    )


def checked_scores(scores: object, samples: int) -> Float[ndarray, " samples"]:
    """Return the scores of an attack as numbers.

    Raises:
        BadInput: There is not one number per sample, or a score is NaN.
    """
    try:
        values = np.asarray(as_array(scores), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"the attack returned {type_of(scores)}, which is not a list of numbers ({error}); "
            "return one score for each sample"
        ) from error
    if scores is None:
        raise BadInput("the attack returned None; return one score for each sample")
    if values.shape != (samples,):
        raise BadInput(
            f"the attack returned scores of shape {values.shape}, but there are {samples} samples; "
            f"return an array of shape ({samples},)"
        )
    if n_missing := int(np.isnan(values).sum()):
        raise BadInput(
            f"{n_missing} of {samples} scores are NaN; return a number for each sample (signals "
            "are NaN in rounds in which a client was not measured)"
        )
    return values


def write_answers(answers: Answers, path: Path) -> None:
    """Write the membership of a recording's samples, and the scores of the catalogue's attacks."""
    tensors = {"is_member": torch.from_numpy(answers.is_member)}
    tensors |= {
        f"{_SCORES}{name}": torch.from_numpy(np.ascontiguousarray(scores))
        for name, scores in answers.by_attack.items()
    }
    write_tensors(tensors, path, owner_only=True)


def read_answers(path: Path) -> Answers:
    """Read the answers of a recording from a file that is not trusted.

    Raises:
        BadInput: The file does not exist.
        Damaged: The file was altered, or contains something other than answers.
    """
    tensors, _ = read_tensors(path)
    is_member = tensors.pop("is_member", torch.zeros(0))
    if is_member.dtype != torch.bool or is_member.ndim != 1 or len(set(is_member.tolist())) < 2:
        raise Damaged(f"{path} has no members, or no non-members; restore it from a copy")
    by_attack = {}
    for name, scores in tensors.items():
        is_valid = scores.dtype == torch.float64 and scores.shape == is_member.shape
        if not (name.startswith(_SCORES) and is_valid) or bool(scores.isnan().any()):
            raise Damaged(f"{path} has invalid scores of {name[:80]!r}; restore it from a copy")
        by_attack[name.removeprefix(_SCORES)] = scores.numpy()
    return Answers(is_member.numpy(), by_attack)


def write_suite(suite: Suite, folder: Path) -> None:
    """Write the description of a suite."""
    write_object(folder / SUITE_FILE, suite_text(suite))


def suite_text(suite: Suite) -> str:
    """Return the content of the description's file."""
    return sealed_json(suite.model_dump(mode="json"))


def read_suite(folder: Path) -> Suite:
    """Read the description of a suite, and check the digests of all its files.

    Raises:
        BadInput: There is no suite in the folder.
        Damaged: A file is missing or was changed.
    """
    path = folder / SUITE_FILE
    if not path.is_file():
        raise BadInput(
            f"there is no benchmark in {folder}; build it with `fedaudit benchmark --out {folder}`,"
            f" or give the folder of another one with {format_option('suite')}"
        )
    values = read_object(path)
    if was_altered(values):
        raise Damaged(f"{path} was altered after it was written; restore it from a copy")
    try:
        suite = Suite.model_validate(without_digest(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise Damaged(
            f"{path} does not describe a benchmark ({where}: {first['msg'][:120]}); restore it "
            "from a copy"
        ) from error
    _raise_if_inconsistent(suite, path)
    if not any((folder / entry.answers.path).exists() for entry in suite.recordings):
        raise BadInput(
            f"{folder} was published without {ANSWERS}, so that attacks cannot be scored here; "
            "send the scores to its authors, or build a benchmark with `fedaudit benchmark`"
        )
    for entry in suite.recordings:
        for file in (entry.signals, entry.answers):
            if stored_file(folder, file.path) != file:
                raise Damaged(
                    f"{folder / file.path} is not the file that {path} describes; restore both "
                    "from a copy, or build the benchmark again"
                )
    return suite


def _raise_if_inconsistent(suite: Suite, path: Path) -> None:
    """Raise if names are not unique, or a regime has no recordings."""
    regimes, names = ([part.name for part in parts] for parts in (suite.regimes, suite.recordings))
    recorded = {entry.regime for entry in suite.recordings}
    if len({*regimes}) < len(regimes) or len({*names}) < len(names) or recorded != {*regimes}:
        raise Damaged(f"{path} has contradictory regimes and recordings; restore it from a copy")


def stored_file(folder: Path, name: str) -> StoredFile:
    """Return the size and the digest of a file of a suite.

    Raises:
        BadInput: The file does not exist, or is a link.
    """
    path, digest = path_without_links(folder, *name.split("/")), hashlib.sha256()
    try:
        with open_regular(path) as file:
            size = 0
            while block := file.read(2**20):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error}); restore the benchmark") from error
    return StoredFile(path=name, sha256=digest.hexdigest(), bytes=size)
