"""Contents of a verified pack, as exports need them."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import open_regular
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.verdict import Check, Verdict
from fedaudit.pack.manifest import Manifest
from fedaudit.pack.verifying import verify
from fedaudit.results.record import Record
from fedaudit.report.grid import shortened

_CHUNK_BYTES = 1 << 20


class ModelFile(NamedTuple):
    """File of a released model.

    Attributes:
        name: Name of the file.
        bytes: Size of the file.
        sha256: SHA-256 of the file.
    """

    name: str
    bytes: int
    sha256: str


class Evidence(NamedTuple):
    """A verified pack, and the files of the models that it is about.

    Attributes:
        folder: Folder of the pack.
        manifest: Manifest of the pack.
        record: The packed record, without small groups.
        verdict: Verdict of the policy on the record.
        started: Time at which the audit started.
        models: Files of released models; may be empty.
    """

    folder: Path
    manifest: Manifest
    record: Record
    verdict: Verdict
    started: datetime
    models: tuple[ModelFile, ...]


def read_evidence(folder: Path, models: Sequence[Path] = ()) -> Evidence:
    """Verify a pack and read it.

    Args:
        folder: Folder of the pack.
        models: Files of the models that were released.

    Raises:
        BadInput: The folder is not a pack, or a file of a model cannot be read.
        Damaged: The pack is not sound.
    """
    verified = verify(folder)
    record, manifest, policy = verified.record, verified.manifest, verified.policy
    if verified.problems or record is None or manifest is None or policy is None:
        raise Damaged(
            f"{folder} is not sound ({'; '.join(verified.problems[:3])}), so nothing is exported; "
            "use an intact copy of the pack"
        )
    return Evidence(
        folder,
        manifest,
        record,
        evaluate_policy(record, policy),
        _time(record.environment.started),
        tuple(_model_file(path) for path in models),
    )


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Damaged(
            f"the record states no valid time of the audit ({shortened(text, 40)!r}); use the "
            "original pack"
        ) from None


def _model_file(path: Path) -> ModelFile:
    digest, size = hashlib.sha256(), 0
    try:
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise BadInput(f"the model {path} cannot be read ({error}); name a file") from error
    return ModelFile(path.name, size, digest.hexdigest())


def describe_check(check: Check) -> str:
    """Return the name of a check with its ceiling."""
    ceiling = "" if check.ceiling is None else f" at most {check.ceiling:g}"
    return f"{check.name}{ceiling}"
