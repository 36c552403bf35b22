"""Steps to make a record again: the study file, the command, and what to expect of it."""

import ast
import json
import re
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

from fedaudit.report.grid import shortened
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.record import Record

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def study_file(config: Mapping[str, object]) -> str:
    """Return the configuration of a study as TOML: a table for each section, all else inline.

    Settings without a value are left out: TOML has no null, and a study takes what is left out
    at its default. Characters that would not show as they are become escapes.

    Args:
        config: Plain values as JSON has them.
    """
    known = {key: value for key, value in config.items() if value is not None}
    lines = [f"{_key(key)} = {inline(v)}" for key, v in known.items() if not isinstance(v, dict)]
    for key, value in known.items():
        if isinstance(value, dict):
            lines += ["", f"[{_key(key)}]"]
            lines += [f"{_key(k)} = {inline(v)}" for k, v in value.items() if v is not None]
    return "\n".join(lines).strip() + "\n"


def inline(value: object) -> str:
    """Return a value as TOML has it on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(inline(entry) for entry in value if entry is not None) + "]"
    if isinstance(value, dict):
        pairs = (f"{_key(k)} = {inline(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    return repr(value) if isinstance(value, (int, float)) else _text(str(value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    return "".join(map(_escaped, json.dumps(text, ensure_ascii=False)))


def _escaped(char: str) -> str:
    """Control, direction and unassigned characters by number; TOML has no half surrogates."""
    kind = unicodedata.category(char)
    if kind == "Cs":
        return "\\ufffd"
    return f"\\U{ord(char):08x}" if kind[0] == "C" or kind in ("Zl", "Zp") else char


_BUNDLED = ("digits", "synthetic")
"""Data sets that are made without any file."""
MOST_SETTINGS = 500_000
"""Characters of a study file up to which it is in the page of games."""
_LONGEST_VALUE = 300


class Again(NamedTuple):
    """Everything that a reader needs to make a record again.

    Attributes:
        study: The settings, as a file that ``fedaudit run`` takes.
        command: The command that runs them.
        data: The data set that it needs as well; empty if none.
        environment: What it was made with, as names and values.
    """

    study: str
    command: str
    data: str
    environment: list[tuple[str, str]]


def reproducing(record: Record) -> Again:
    """Return the steps to make a record again; of games, with a variant for each further point.

    The study file is empty if settings of games are larger than any study's.
    """
    games = record.kind == "games"
    study = study_file(_with_points(record) if games else resolve_older_settings(record.config))
    # What no study file could hold is no study's: it would only make the page too large to open.
    study = "" if games and len(study) > MOST_SETTINGS else study
    data = record.config.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    needed = "" if not isinstance(name, str) or name in _BUNDLED else shortened(name, 80)
    command = "fedaudit run study.toml" + " --data-dir FOLDER" * bool(needed)
    return Again(study, command, needed, _environment(record))


def _with_points(record: Record) -> Mapping[str, object]:
    varied = {
        point.label: {name: _value(text) for name, text in point.settings.items()}
        for point in record.points
        if point.label
    }
    return record.config | ({"variants": varied} if varied else {})


def _environment(record: Record) -> list[tuple[str, str]]:
    made, rows = record.environment, {"Content hash": shortened(record.content_hash, 80)}
    if record.kind != "games":
        rows["Seeds"] = ", ".join(str(seed) for seed in record.seeds)
        rows["Evaluation"] = record.evaluation
    for name in ("commit", "device", "started"):
        rows[name.capitalize()] = shortened(getattr(made, name), 80) or "not recorded"
    rows["Time taken"] = "not recorded" if made.seconds is None else _duration(made.seconds)
    # Names of versions come from the record, and must not replace a row.
    versions = made.versions.items()
    return [*rows.items(), *((shortened(name, 60), shortened(v, 120)) for name, v in versions)]


def _duration(seconds: float) -> str:
    # A timedelta overflows on durations that a damaged record may state.
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} (h:min:s)"


def _value(text: str) -> object:
    """Return a setting from its text; the text itself if it is none of a study's values."""
    if text in ("inf", "-inf", "nan"):
        return float(text)
    try:
        value: object = ast.literal_eval(text) if len(text) <= _LONGEST_VALUE else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text
