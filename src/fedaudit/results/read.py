"""Reading a record or a comparison back, from a file that anybody may have written."""

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
from fedaudit.results.fields import MOST
from fedaudit.results.record import FORMAT, VERSION, Record
from fedaudit.results.sources import FAIR, OWN
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
"""Without a number like this in a text none of it needs a look: millions of them take seconds."""

Document = TypeVar("Document", bound=BaseModel)


def read_record(path: Path, *, max_bytes: int = LONGEST_RESULT) -> Record:
    """The record in a file that :func:`fedaudit.results.record.write_record` wrote.

    The file is treated as hostile: it is bounded in size and depth, holds plain JSON without
    repeated keys or numbers that are not finite, without text that steers a screen, and must fit
    the format to the last field: no figure that cannot be.

    Args:
        path: A record file.
        max_bytes: Largest file that is read at all.

    Raises:
        BadInput: There is no such file, it is too large, is no fedaudit record, or is one of
            another version.
        Damaged: It is not JSON, or does not fit the format.
    """
    return _as_record(_parsed(_text(path, max_bytes), path), path)


def _as_record(parsed: object, path: Path) -> Record:
    document = _of_kind(parsed, path, _RECORD)
    if deeper_than(document.get("config"), MAX_DEPTH):
        raise Damaged(
            f"{path} has a configuration nested over {MAX_DEPTH} levels deep, which no study "
            "has; take the original record"
        )
    found = _with_draws(_fitting(Record, document, path, "the record format"))
    metrics = len({figure.metric for figure in found.findings})
    if metrics > _MOST_METRICS:
        raise Damaged(
            f"{path} has figures of {metrics:,} kinds, and at most {_MOST_METRICS:,} are read, as "
            "no study has so many; take the original record"
        )
    _refuse_nobody(found, path)
    return found


def _with_draws(record: Record) -> Record:
    """Return a record of an older version with the samples named that source inference asked about.

    They were the audited ones: of a fair draw, where clients' label distributions differ.
    """
    audit, partition = (record.config.get(name) for name in ("audit", "partition"))
    draw = audit.get("draw", "fair") if isinstance(audit, Mapping) else ""
    scheme = partition.get("scheme") if isinstance(partition, Mapping) else "iid"
    is_equal = scheme == "iid" and record.config.get("shift") is None
    is_fair = not record.watched and draw == "fair" and not is_equal
    contrast = {"contrast": FAIR if is_fair else OWN}
    estimates = [
        one.model_copy(update=contrast)
        if one.topic == "source" and one.contrast not in (OWN, FAIR)
        else one
        for one in record.estimates
    ]
    return record.model_copy(update={"estimates": estimates})


def _refuse_nobody(record: Record, path: Path) -> None:
    """Refuses a figure of scores with nobody on a side: limits and sizes are calculated by these.

    A bound on epsilon is made of guesses, which a coin may all have made members; what is proven
    has no samples.
    """
    for one in [*record.findings, *record.groups]:
        if not (one.attack and _is_of_scores(one.metric)):
            continue
        if one.value is not None and min(one.n_members, one.n_nonmembers) < 1:
            raise Damaged(
                f"{path} has a figure of {_short(one.attack)} with {one.n_members} members and "
                f"{one.n_nonmembers} non-members, and it takes one of each to tell them apart; "
                "take the original record"
            )


def _is_of_scores(metric: str) -> bool:
    return metric in (AUC, BALANCED_ACCURACY) or metric.startswith("tpr@")


def read_comparison(path: Path, *, max_bytes: int = LONGEST_RESULT) -> Comparison:
    """The comparison in a file that ``fedaudit compare`` wrote; as guarded as a record.

    Args:
        path: A comparison file.
        max_bytes: Largest file that is read at all.

    Raises:
        BadInput: There is no such file, it is too large, is no comparison, or is one of another
            version.
        Damaged: It is not JSON, or does not fit the format.
    """
    document = _of_kind(_parsed(_text(path, max_bytes), path), path, _COMPARISON)
    return _fitting(Comparison, document, path, "the comparison's format")


class _Kind(NamedTuple):
    """A kind of document: what it is called, its mark, and what to give where it is another."""

    name: str
    noun: str
    mark: str
    instead: str
    made_by: str
    versions: tuple[int, ...] = (1,)


_RECORD = _Kind(
    "fedaudit record",
    "record",
    FORMAT,
    "give the record that `fedaudit run` or `fedaudit attack` wrote",
    "fedaudit attack",
    (VERSION,),
)
_COMPARISON = _Kind(
    "comparison",
    "comparison",
    COMPARISON_FORMAT,
    "give the one that `fedaudit compare` wrote, or two or more records",
    "fedaudit compare",
    (2,),
)


def _of_kind(document: object, path: Path, kind: _Kind) -> dict[str, object]:
    """A JSON object that says that it is of a kind and of this version, in plain text."""
    if not isinstance(document, dict) or document.get("format") != kind.mark:
        raise BadInput(
            f"{path} is not a {kind.name} (its 'format' is not {kind.mark!r}); {kind.instead}"
        )
    _refuse_other_version(document, path, kind)
    if was_altered(document):
        raise Damaged(
            f"{path} was altered after it was written: its content does not have the digest that "
            f"it carries; restore it from a copy, or make it again with `{kind.made_by}`"
        )
    return without_digest(document)


def _fitting(model: type[Document], document: dict[str, object], path: Path, what: str) -> Document:
    try:
        return model.model_validate(document, strict=True)
    except ValidationError as error:
        raise Damaged(f"{path} does not fit {what}: {_sentence(error)}") from None


def _refuse_other_version(document: Mapping[str, object], path: Path, kind: _Kind) -> None:
    version = document.get("version")
    if version not in kind.versions or not isinstance(version, int) or isinstance(version, bool):
        raise BadInput(
            f"{path} is a {kind.noun} of version {_short(version)}; this fedaudit reads version "
            f"{kind.versions[-1]}; use the fedaudit that wrote it, or run the study again"
        )


def _refuse_steering(document: object, path: Path) -> None:
    bad = next((text for text in texts(document) if not is_plain(text)), None)
    if bad is not None:
        raise Damaged(
            f"{path} holds a text with control characters or turns of direction, or of over "
            f"{LONGEST:,} characters ({_short(bad)}); take the original record"
        )


def _text(path: Path, max_bytes: int) -> str:
    refuse_absent(path, "the folder of a study that was carried out, or its record (JSON)")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
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
    """The JSON value of a text, with plain texts only."""
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
        raise Damaged(f"{path} is not a whole JSON document: {error}") from None
    if not is_plain_json(text):
        _refuse_steering(document, path)
    return document


def _refused_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; a figure that is missing is null")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {_short(digits)} is beyond what a record can hold")
    return value


def _bounded(digits: str) -> int:
    # Counted first, since reading thousands of digits takes long.
    if len(digits) > _LONGEST_NUMBER or abs(int(digits)) > MOST:
        raise ValueError(f"the number {_short(digits)} is beyond what a record can hold")
    return int(digits)


def _sentence(error: ValidationError) -> str:
    """The first fault as one sentence that names the place, and how many more there are."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    place = ".".join(str(part) for part in first["loc"])
    others = len(faults) - 1
    more = f" (and {others} more fault{'s' if others > 1 else ''})" if others else ""
    said = first["msg"].removeprefix("Value error, ")
    said = f"{said[:1].lower()}{said[1:]}"
    return f"at {_short(place)}: {said}{more}; take the original record"


def _short(value: object) -> str:
    # The value is cut first: writing out megabytes takes long.
    text = repr(value[:80] + "..." if isinstance(value, str) and len(value) > 80 else value)
    return text if len(text) <= 80 else text[:77] + "..."
