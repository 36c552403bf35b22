"""Safe reading of records and comparisons from untrusted files."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import MAX_RESULT_BYTES, TooLarge, parse_json, raise_if_absent, read_text
from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY
from fedaudit.results.comparison import COMPARISON_FORMAT, Comparison
from fedaudit.results.fields import MAX_NUMBER
from fedaudit.results.record import FORMAT, VERSION, Record
from fedaudit.results.runs import FAIR_DRAW, OWN_SAMPLES
from fedaudit.results.text import (
    MAX_DEPTH,
    MAX_TEXT_LENGTH,
    deeper_than,
    is_plain,
    is_plain_json,
    iterate_texts,
    was_altered,
    without_digest,
)

_MAX_DIGITS = 400
_MAX_METRICS = 1000
_MAYBE_LARGE = re.compile(r"[\s\[,:]-?(?:\d{16}|\d[\d.]*[eE]\+?\d{3})")
"""Pattern of a large number. If a text has no match, its numbers are not checked one by one, which
would take seconds for millions of numbers."""

Document = TypeVar("Document", bound=BaseModel)


def read_record(path: Path, *, max_bytes: int = MAX_RESULT_BYTES) -> Record:
    """Read a record that :func:`fedaudit.results.record.write_record` wrote.

    The file is not trusted. Its size and depth are limited. It must be JSON without repeated keys,
    infinite or NaN numbers, and control characters. All fields are validated, so that impossible
    estimates raise an error.

    Args:
        path: A record file.
        max_bytes: Maximum size of the file.

    Raises:
        BadInput: The file does not exist, is too large, is not a fedaudit record, or has another
            version.
        Damaged: The file is not JSON, or violates the format.
    """
    document = _checked_document(path, max_bytes, _RECORD)
    if deeper_than(document.get("config"), MAX_DEPTH):
        raise Damaged(
            f"{path} has a configuration nested over {MAX_DEPTH} levels deep, which no study "
            "writes; use the original record"
        )
    record = _with_source_contrast(_validated(Record, document, path, "the record format"))
    # ``findings`` are the estimates on membership that are not limited to a class or to one
    # client's samples, and ``estimates`` are all of them.
    metrics = len({estimate.metric for estimate in record.findings})
    if metrics > _MAX_METRICS:
        raise Damaged(
            f"{path} has {metrics:,} different metrics, but a record has at most "
            f"{_MAX_METRICS:,}; use the original record"
        )
    _raise_if_missing_samples(record, path)
    return record


def _with_source_contrast(record: Record) -> Record:
    """Add the contrast of source inference, which is missing in records of older versions.

    Older versions used the samples of the membership audit. If label distributions differed, the
    fair draw gave the samples of all clients the label distribution of the target. If label
    distributions were equal, the samples did not differ from random samples of each client's data.
    """
    audit, partition = (record.config.get(name) for name in ("audit", "partition"))
    draw = audit.get("draw", "fair") if isinstance(audit, Mapping) else ""
    scheme = partition.get("scheme") if isinstance(partition, Mapping) else "iid"
    is_equal = scheme == "iid" and record.config.get("shift") is None
    is_fair = not record.watched and draw == "fair" and not is_equal
    contrast = {"contrast": FAIR_DRAW if is_fair else OWN_SAMPLES}
    estimates = [
        estimate.model_copy(update=contrast)
        if estimate.topic == "source" and estimate.contrast not in (OWN_SAMPLES, FAIR_DRAW)
        else estimate
        for estimate in record.estimates
    ]
    return record.model_copy(update={"estimates": estimates})


def _raise_if_missing_samples(record: Record, path: Path) -> None:
    """Raise if an estimate from scores has no members or no non-members.

    Confidence limits depend on both numbers. Bounds on epsilon are exempt: for an empirical bound,
    the random assignment may have made every sample a member, and a formal bound has no samples.
    """
    for estimate in [*record.findings, *record.groups]:
        is_from_scores = estimate.metric in (AUC, BALANCED_ACCURACY) or estimate.metric.startswith(
            "tpr@"
        )
        if not (estimate.is_of_attack and is_from_scores):
            continue
        if estimate.value is not None and min(estimate.n_members, estimate.n_nonmembers) < 1:
            raise Damaged(
                f"{path} has an estimate of {_short(estimate.attack)} with {estimate.n_members} "
                f"members and {estimate.n_nonmembers} non-members, but it needs at least one of "
                "each; use the original record"
            )


def read_comparison(path: Path, *, max_bytes: int = MAX_RESULT_BYTES) -> Comparison:
    """Read a comparison that ``fedaudit compare`` wrote. The file is checked like a record.

    Args:
        path: A comparison file.
        max_bytes: Maximum size of the file.

    Raises:
        BadInput: The file does not exist, is too large, is not a comparison, or has another
            version.
        Damaged: The file is not JSON, or violates the format.
    """
    document = _checked_document(path, max_bytes, _COMPARISON)
    return _validated(Comparison, document, path, "the comparison's format")


class _Kind(NamedTuple):
    """Kind of document, with texts for error messages.

    Attributes:
        name: Name in the error about a file of another kind.
        noun: Name in the error about a file of another version.
        format: Value of the field "format".
        advice: Advice in the error about a file of another kind.
        made_by: Command that writes such a document.
        version: Version of the format.
    """

    name: str
    noun: str
    format: str
    advice: str
    made_by: str
    version: int


_RECORD = _Kind(
    "fedaudit record",
    "record",
    FORMAT,
    "give the record that `fedaudit run` or `fedaudit attack` wrote",
    "fedaudit attack",
    VERSION,
)
_COMPARISON = _Kind(
    "comparison",
    "comparison",
    COMPARISON_FORMAT,
    "give the comparison that `fedaudit compare` wrote, or two or more records",
    "fedaudit compare",
    2,
)


def _checked_document(path: Path, max_bytes: int, kind: _Kind) -> dict[str, object]:
    """Read a JSON file, and check its kind, version and digest."""
    document = _parsed(_text(path, max_bytes), path)
    if not isinstance(document, dict) or document.get("format") != kind.format:
        raise BadInput(
            f"{path} is not a {kind.name} (its 'format' is not {kind.format!r}); {kind.advice}"
        )
    version = document.get("version")
    if version != kind.version or not isinstance(version, int) or isinstance(version, bool):
        raise BadInput(
            f"{path} is a {kind.noun} of version {_short(version)}, but this fedaudit reads "
            f"version {kind.version}; use the fedaudit that wrote it, or run the study again"
        )
    if was_altered(document):
        raise Damaged(
            f"{path} was altered after it was written: its content does not match its digest; "
            f"restore it from a copy, or write it again with `{kind.made_by}`"
        )
    return without_digest(document)


def _validated(
    model: type[Document], document: dict[str, object], path: Path, format_name: str
) -> Document:
    try:
        return model.model_validate(document, strict=True)
    except ValidationError as error:
        raise Damaged(f"{path} does not fit {format_name}: {_describe_error(error)}") from None


def _text(path: Path, max_bytes: int) -> str:
    raise_if_absent(path, "the folder of a completed study, or its record (JSON)")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise BadInput(f"{path} is {kind}; give the path of a record file (JSON)")
    try:
        return read_text(path, max_bytes=max_bytes)
    except TooLarge:
        raise BadInput(
            f"{path} is larger than {max_bytes / 2**20:g} MiB, the largest record that is read; "
            "split the study into smaller ones"
        ) from None
    except UnicodeDecodeError as error:
        raise Damaged(
            f"{path} is not UTF-8 text (byte {error.start}); use the original record"
        ) from None


def _parsed(text: str, path: Path) -> object:
    try:
        has_large = _MAYBE_LARGE.search(text)
        document = parse_json(
            text,
            parse_int=_parse_integer if has_large else int,
            parse_float=_parse_float if has_large else float,
            parse_constant=_reject_constant,
        )
    except RecursionError:
        raise Damaged(
            f"{path} is nested too deeply to be a record; use the original record"
        ) from None
    except ValueError as error:
        raise Damaged(f"{path} is not a complete JSON document: {error}") from None
    forbidden = None
    if not is_plain_json(text):
        forbidden = next((value for value in iterate_texts(document) if not is_plain(value)), None)
    if forbidden is not None:
        raise Damaged(
            f"{path} contains a text with control characters, with bidirectional control "
            f"characters, or of over {MAX_TEXT_LENGTH:,} characters ({_short(forbidden)}); use the "
            "original record"
        )
    return document


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; a missing figure is null")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {_short(digits)} is too large for a record")
    return value


def _parse_integer(digits: str) -> int:
    # Check the length first: parsing thousands of digits takes long.
    if len(digits) > _MAX_DIGITS or abs(int(digits)) > MAX_NUMBER:
        raise ValueError(f"the number {_short(digits)} is too large for a record")
    return int(digits)


def _describe_error(error: ValidationError) -> str:
    """Describe the first error with its location, and count the others."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    location = ".".join(str(part) for part in first["loc"])
    others = len(errors) - 1
    further = f" (and {others} more error{'s' if others > 1 else ''})" if others else ""
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[:1].lower()}{message[1:]}"
    return f"at {_short(location)}: {message}{further}; use the original record"


def _short(value: object) -> str:
    # Shorten the value first: the repr of megabytes takes long.
    text = repr(value[:80] + "..." if isinstance(value, str) and len(value) > 80 else value)
    return text if len(text) <= 80 else text[:77] + "..."
