"""A section of a report as data, and the fixed texts that explain sections and tables."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedaudit.report.figures.drawing import Figures
from fedaudit.report.grid import Grid

TEXTS_FILE = "sections.toml"
"""Fixed texts by the section or table that they explain."""


@dataclass(frozen=True)
class Section:
    """A part of a report below its first screen.

    Attributes:
        ident: Its name in the document.
        title: Its heading.
        said: What explains it, a paragraph each.
        points: Computed sentences, as a list.
        tables: What it shows first.
        figure: Its chart.
        folded: Tables that a reader opens one by one.
    """

    ident: str
    title: str
    said: Sequence[str] = ()
    points: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    figure: Figures | None = None
    folded: Sequence[Grid] = ()


def of_table(ident: str, title: str, table: Grid | None, *said: str) -> Section | None:
    """Return a section with one table; None without it."""
    return None if table is None else Section(ident, title, said, tables=[table])


def fixed(name: str, **values: object) -> str:
    """Return a fixed text by its topic and key, such as "sources.remark", with values filled in."""
    topic, _, key = name.partition(".")
    return fixed_texts(topic)[key].format(**values)


@cache
def fixed_texts(topic: str) -> dict[str, str]:
    """Return the fixed texts of a topic, by their keys."""
    texts: dict[str, dict[str, str]] = tomllib.loads(template_file(TEXTS_FILE))
    return texts[topic]


@cache
def template_file(name: str) -> str:
    """Return a file of this package's templates."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
