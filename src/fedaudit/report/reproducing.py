"""How to make a record again: the study file, the command, and what to expect of it."""

from collections.abc import Mapping
from typing import NamedTuple

from fedaudit.report.grid import shortened
from fedaudit.report.reading import Environment, Record, settled
from fedaudit.report.study_file import study_file

_BUNDLED = ("digits", "synthetic")
"""Data sets that are made without any file."""


class Again(NamedTuple):
    """What a reader needs to make a record again.

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
    """How to make a record again."""
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
    """What a record was made with, as names and values.

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
