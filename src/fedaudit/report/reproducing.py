"""Steps to make a record again: the study file, the command, and what to expect of it."""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fedaudit.report.grid import shortened
from fedaudit.results.older import settled
from fedaudit.results.record import Environment, Record

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def study_file(config: Mapping[str, object]) -> str:
    """The configuration of a study as TOML.

    Settings without a value are left out: TOML has no null, and a study takes what is left out
    at its default. Characters that would not show as they are become escapes.

    Args:
        config: Plain values as JSON has them.
    """
    return "\n".join(_table(config, ())).strip() + "\n"


def _table(values: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """A table's settings first, then the tables inside it, as TOML wants them."""
    for key, value in values.items():
        if value is not None and not _stands_alone(value):
            yield f"{_key(key)} = {_inline(value)}"
    for key, value in values.items():
        inside = (*path, key)
        name = ".".join(_key(part) for part in inside)
        if isinstance(value, dict):
            yield from ("", f"[{name}]", *_table(value, inside))
        elif isinstance(value, list) and _stands_alone(value):
            for entry in value:
                yield from ("", f"[[{name}]]", *_table(entry, inside))


def _stands_alone(value: object) -> bool:
    """True where a value gets headings of its own: a table, or a list of tables only."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(entry, dict) for entry in value)
    return isinstance(value, dict)


def _inline(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_inline(entry) for entry in value if entry is not None) + "]"
    if isinstance(value, dict):
        pairs = (f"{_key(k)} = {_inline(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    return repr(value) if isinstance(value, (int, float)) else _text(str(value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(_escaped(char) for char in quoted)


def _escaped(char: str) -> str:
    """Control, direction and unassigned characters by number; TOML has no half surrogates."""
    kind = unicodedata.category(char)
    if kind == "Cs":
        return "\\ufffd"
    if kind[0] == "C" or kind in ("Zl", "Zp"):
        return f"\\U{ord(char):08x}"
    return char


_BUNDLED = ("digits", "synthetic")
"""Data sets that are made without any file."""


class Again(NamedTuple):
    """Everything that a reader needs to make a record again.

    Attributes:
        study: The settings, as a file that ``fedaudit run`` takes.
        command: The command that carries them out.
        data: Which data set it needs besides; empty where none.
        environment: What it was made with, as names and values.
    """

    study: str
    command: str
    data: str
    environment: list[tuple[str, str]]


def reproducing(record: Record) -> Again:
    """Steps to make a record again."""
    needed = needed_data(record.config)
    command = "fedaudit run study.toml" + (" --data-dir FOLDER" if needed else "")
    made = rows_of_environment(
        record.content_hash,
        record.environment,
        ("Seeds", ", ".join(str(seed) for seed in record.seeds)),
        ("Evaluation", record.evaluation),
    )
    return Again(study_file(settled(record.config)), command, needed, made)


def needed_data(config: Mapping[str, object]) -> str:
    """The data set that a study cannot be carried out without; empty where none."""
    data = config.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    return "" if not isinstance(name, str) or name in _BUNDLED else shortened(name, 80)


def rows_of_environment(
    content_hash: str, made: Environment, *settings: tuple[str, str]
) -> list[tuple[str, str]]:
    """Environment of a record, as names and values.

    Args:
        content_hash: Of the record.
        made: Its environment.
        settings: What else belongs beside the hash.
    """
    rows = [
        ("Content hash", shortened(content_hash, 80)),
        *settings,
        ("Commit", shortened(made.commit, 80) or "not recorded"),
        ("Device", shortened(made.device, 80) or "not recorded"),
        ("Started", shortened(made.started, 80) or "not recorded"),
        ("Time taken", "not recorded" if made.seconds is None else _duration(made.seconds)),
    ]
    return rows + [
        (shortened(name, 60), shortened(version, 120)) for name, version in made.versions.items()
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
