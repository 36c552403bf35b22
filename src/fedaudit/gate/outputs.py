"""Paths that verdicts may be written to: over an earlier one, never over another file."""

from collections.abc import Sequence
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.files import write_whole
from fedaudit.gate.junit import junit_xml
from fedaudit.gate.verdict import VERDICT_FORMAT, Verdict
from fedaudit.study.running.outputs import refuse_missing_folder

_XML = b'<testsuites name="fedaudit"'
_JSON = f'"format":"{VERDICT_FORMAT}"'.encode()


def verdict_json(verdict: Verdict) -> str:
    """The verdict as one line of JSON."""
    return verdict.model_dump_json() + "\n"


def refuse_taken(target: Path, inputs: Sequence[Path]) -> None:
    """Lets a verdict replace an earlier verdict only.

    Args:
        target: The file to write.
        inputs: Files that are read.

    Raises:
        BadInput: The file is one of these, or is there and is no verdict, or has no folder.
    """
    refuse_missing_folder(target)
    if not target.exists():
        return
    if any(one.exists() and target.samefile(one) for one in inputs):
        raise BadInput(f"{target} is what is read here; write to another file")
    start = b""
    if target.is_file():
        with target.open("rb") as file:
            start = file.read(200)
    if _XML not in start and _JSON not in start:
        raise BadInput(
            f"{target} is there and is no verdict, so that it is not replaced; write to another "
            "file, or delete it"
        )


def write_verdict(verdict: Verdict, *, junit: Path | None, json: Path | None) -> None:
    """Writes a verdict as JUnit XML, as JSON, or both; see :func:`refuse_taken`."""
    if junit is not None:
        write_whole(junit, junit_xml(verdict))
    if json is not None:
        write_whole(json, verdict_json(verdict))
