"""Steps to reproduce a record: the study file, the command and the environment."""

import ast
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import study_setting
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.record import Record

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_NOT_PLAIN = re.compile(r"[^ -~]")


def study_file(config: Mapping[str, object]) -> str:
    """Return the settings of a study as TOML, with a table for each section.

    Settings that are None are omitted, since TOML has no null. A study then uses the defaults.
    """
    entries = {key: value for key, value in config.items() if value is not None}
    lines = [f"{_key(k)} = {inline_toml(v)}" for k, v in entries.items() if not isinstance(v, dict)]
    for key, value in entries.items():
        if isinstance(value, dict):
            lines += ["", f"[{_key(key)}]"]
            lines += [f"{_key(k)} = {inline_toml(v)}" for k, v in value.items() if v is not None]
    return "\n".join(lines).strip() + "\n"


def inline_toml(value: object) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(inline_toml(entry) for entry in value if entry is not None) + "]"
    if isinstance(value, dict):
        pairs = (f"{_key(k)} = {inline_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    return repr(value) if isinstance(value, (int, float)) else _text(str(value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    return _NOT_PLAIN.sub(_escaped, json.dumps(text, ensure_ascii=False))


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    kind = unicodedata.category(char)
    if kind == "Cs":  # TOML has no lone surrogates
        return "\\ufffd"
    return f"\\U{ord(char):08x}" if kind[0] == "C" or kind in ("Zl", "Zp") else char


_BUNDLED = ("diabetes", "digits", "synthetic")  # data sets that need no file
MOST_SETTINGS = 500_000  # largest length of a study file of games that a page prints
_LONGEST_VALUE = 300
_OF_A_SCRIPT = re.compile(r"__main__:|[^\s#]{1,80}#[0-9a-f]{8}$")
"""Matches names of objects of a script or notebook, which no study file can recreate."""


class Recipe(NamedTuple):
    """Study file, command, data set and versions to reproduce a record; empty if unknown.

    ``of_script`` is True if the audit used objects of a script or notebook.
    """

    study: str
    command: str
    data: str
    environment: list[tuple[str, str]]
    of_script: bool = False


def reproduction_steps(record: Record) -> Recipe:
    """Return the steps to reproduce a record; the study file of games has a variant per point."""
    games = record.kind == "games"
    study = study_file(_with_points(record) if games else resolve_older_settings(record.config))
    # The settings of a damaged record could make the page too large to open.
    study = "" if games and len(study) > MOST_SETTINGS else study
    name = study_setting(record, "data", "name")
    if any(map(_OF_A_SCRIPT.match, _texts(record.config))):
        return Recipe("", "", "", _environment(record), of_script=True)
    data = "" if not isinstance(name, str) or name in _BUNDLED else shorten(name, 80)
    command = "fedaudit run study.toml" + " --data-dir FOLDER" * bool(data)
    return Recipe(study, command, data, _environment(record))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _texts(entry)


def _with_points(record: Record) -> Mapping[str, object]:
    varied = {
        point.label: {name: _value(text) for name, text in point.settings.items()}
        for point in record.points
        if point.label
    }
    return record.config | ({"variants": varied} if varied else {})


def _environment(record: Record) -> list[tuple[str, str]]:
    environment = record.environment
    rows = {"Content hash": shorten(record.content_hash, 80)}
    if record.kind != "games":
        rows["Seeds"] = ", ".join(str(seed) for seed in record.seeds)
        rows["Evaluation"] = record.evaluation
    for name in ("commit", "device", "started"):
        rows[name.capitalize()] = shorten(getattr(environment, name), 80) or "not recorded"
    rows["Time taken"] = _duration(environment.seconds)
    # Package names come from the record. In a dictionary, they could replace other rows.
    versions = environment.versions.items()
    return [*rows.items(), *((shorten(name, 60), shorten(v, 120)) for name, v in versions)]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "not recorded"
    # A timedelta overflows on durations that a damaged record may state.
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} (h:min:s)"


def _value(text: str) -> object:
    if text in ("inf", "-inf", "nan"):
        return float(text)
    try:
        value: object = ast.literal_eval(text) if len(text) <= _LONGEST_VALUE else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text
