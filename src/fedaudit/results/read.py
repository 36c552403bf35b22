"""Safe reading of records and comparisons from untrusted files."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import LONGEST_RESULT, TooLarge, parsed_json, read_text, refuse_absent
from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY
from fedaudit.results.comparison import COMPARISON_FORMAT, Comparison
from fedaudit.results.fields import LARGEST
from fedaudit.results.record import FORMAT, VERSION, Record
from fedaudit.results.runs import FAIR, OWN
from fedaudit.results.text import (
    LONGEST,
    MAX_DEPTH,
    deeper_than,
    is_plain,
    is_plain_json,
    texts,
    was_altered,
    without_digest,
)

_LONGEST_NUMBER = 400
_MOST_METRICS = 1000
_MAYBE_LARGE = re.compile(r"[\s\[,:]-?(?:\d{16}|\d[\d.]*[eE]\+?\d{3})")
"""Pattern of a large number. Numbers of a text without a match need no check, which saves
seconds for millions of numbers."""

Document = TypeVar("Document", bound=BaseModel)


def read_record(path: Path, *, max_bytes: int = LONGEST_RESULT) -> Record:
    """Return the record in a file that :func:`fedaudit.results.record.write_record` wrote.

    The file is treated as hostile. It is bounded in size and depth and must hold plain JSON,
    without repeated keys, numbers that are not finite, or text that controls a terminal. It must
    fit the format to the last field, so that impossible figures are refused.

    Args:
        path: A record file.
        max_bytes: Largest file that is read at all.

    Raises:
        BadInput: The file does not exist, is too large, is not a fedaudit record, or has another
            version.
        Damaged: The file is not JSON, or does not fit the format.
    """
    document = _of_kind(path, max_bytes, _RECORD)
    if deeper_than(document.get("config"), MAX_DEPTH):
        raise Damaged(
            f"{path} has a configuration nested over {MAX_DEPTH} levels deep, which no study "
            "has; take the original record"
        )
    record = _with_draws(_fitting(Record, document, path, "the record format"))
    metrics = len({figure.metric for figure in record.findings})
    if metrics > _MOST_METRICS:
        raise Damaged(
            f"{path} has figures of {metrics:,} kinds, and at most {_MOST_METRICS:,} are read, as "
            "no study has so many; take the original record"
        )
    _refuse_one_sided(record, path)
    return record


def _with_draws(record: Record) -> Record:
    """Name the audited samples of source inference in the record of an older version.

    They were the samples of the membership audit: those of a fair draw if clients' label
    distributions differ.
    """
    audit, partition = (record.config.get(name) for name in ("audit", "partition"))
    draw = audit.get("draw", "fair") if isinstance(audit, Mapping) else ""
    scheme = partition.get("scheme") if isinstance(partition, Mapping) else "iid"
    is_equal = scheme == "iid" and record.config.get("shift") is None
    is_fair = not record.watched and draw == "fair" and not is_equal
    contrast = {"contrast": FAIR if is_fair else OWN}
    estimates = [
        estimate.model_copy(update=contrast)
        if estimate.topic == "source" and estimate.contrast not in (OWN, FAIR)
        else estimate
        for estimate in record.estimates
    ]
    return record.model_copy(update={"estimates": estimates})


def _refuse_one_sided(record: Record, path: Path) -> None:
    """Raise if a figure of scores has no members or no non-members, since limits depend on both.

    Bounds on epsilon are exempt: they count guesses, which a coin may all have made members, and
    formal bounds have no samples.
    """
    for figure in [*record.findings, *record.groups]:
        of_scores = figure.metric in (AUC, BALANCED_ACCURACY) or figure.metric.startswith("tpr@")
        if not (figure.attack and of_scores):
            continue
        if figure.value is not None and min(figure.n_members, figure.n_nonmembers) < 1:
            raise Damaged(
                f"{path} has a figure of {_short(figure.attack)} with {figure.n_members} members "
                f"and {figure.n_nonmembers} non-members, and it takes at least one of each; take "
                "the original record"
            )


def read_comparison(path: Path, *, max_bytes: int = LONGEST_RESULT) -> Comparison:
    """Return the comparison in a file that ``fedaudit compare`` wrote, checked like a record.

    Args:
        path: A comparison file.
        max_bytes: Largest file that is read at all.

    Raises:
        BadInput: The file does not exist, is too large, is not a comparison, or has another
            version.
        Damaged: The file is not JSON, or does not fit the format.
    """
    document = _of_kind(path, max_bytes, _COMPARISON)
    return _fitting(Comparison, document, path, "the comparison's format")


class _Kind(NamedTuple):
    """Kind of document: its names, its format field, and advice for a file of another kind."""

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
    "give the one that `fedaudit compare` wrote, or two or more records",
    "fedaudit compare",
    2,
)


def _of_kind(path: Path, max_bytes: int, kind: _Kind) -> dict[str, object]:
    """Return the content of a JSON file that states a kind, this version and the right digest."""
    document = _parsed(_text(path, max_bytes), path)
    if not isinstance(document, dict) or document.get("format") != kind.format:
        raise BadInput(
            f"{path} is not a {kind.name} (its 'format' is not {kind.format!r}); {kind.advice}"
        )
    version = document.get("version")
    if version != kind.version or not isinstance(version, int) or isinstance(version, bool):
        raise BadInput(
            f"{path} is a {kind.noun} of version {_short(version)}; this fedaudit reads version "
            f"{kind.version}; use the fedaudit that wrote it, or run the study again"
        )
    if was_altered(document):
        raise Damaged(
            f"{path} was altered after it was written: its content does not match its digest; "
            f"restore it from a copy, or write it again with `{kind.made_by}`"
        )
    return without_digest(document)


def _fitting(model: type[Document], document: dict[str, object], path: Path, what: str) -> Document:
    try:
        return model.model_validate(document, strict=True)
    except ValidationError as error:
        raise Damaged(f"{path} does not fit {what}: {_sentence(error)}") from None


def _text(path: Path, max_bytes: int) -> str:
    refuse_absent(path, "the folder of a completed study, or its record (JSON)")
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
            f"{path} is not UTF-8 text (byte {error.start}); take the original record"
        ) from None


def _parsed(text: str, path: Path) -> object:
    try:
        large = _MAYBE_LARGE.search(text)
        document = parsed_json(
            text,
            whole=_bounded if large else int,
            real=_finite if large else float,
            constant=_refused_constant,
        )
    except RecursionError:
        raise Damaged(
            f"{path} is nested too deeply to be a record; take the original record"
        ) from None
    except ValueError as error:
        raise Damaged(f"{path} is not a complete JSON document: {error}") from None
    bad = None
    if not is_plain_json(text):
        bad = next((value for value in texts(document) if not is_plain(value)), None)
    if bad is not None:
        raise Damaged(
            f"{path} contains a text with control characters or changes of the reading direction, "
            f"or of over {LONGEST:,} characters ({_short(bad)}); take the original record"
        )
    return document


def _refused_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON number; a missing figure is null")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {_short(digits)} is beyond what a record can hold")
    return value


def _bounded(digits: str) -> int:
    # Counted first, since reading thousands of digits takes long.
    if len(digits) > _LONGEST_NUMBER or abs(int(digits)) > LARGEST:
        raise ValueError(f"the number {_short(digits)} is beyond what a record can hold")
    return int(digits)


def _sentence(error: ValidationError) -> str:
    """Describe the first fault with its place, and the number of further ones."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    place = ".".join(str(part) for part in first["loc"])
    others = len(faults) - 1
    further = f" (and {others} more fault{'s' if others > 1 else ''})" if others else ""
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[:1].lower()}{message[1:]}"
    return f"at {_short(place)}: {message}{further}; take the original record"


def _short(value: object) -> str:
    # The value is cut first: writing out megabytes takes long.
    text = repr(value[:80] + "..." if isinstance(value, str) and len(value) > 80 else value)
    return text if len(text) <= 80 else text[:77] + "..."
