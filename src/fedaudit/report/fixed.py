"""Files of this package: templates, styles, scripts, and fixed texts as TOML."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_SECTIONS = ("clauses", "policy", "steps", "summary")
"""Files that are a section each."""
_OF_SECTIONS = ("sections", "wording")
"""Files of several sections, of which each may be in several files."""


@cache
def package_file(name: str) -> str:
    """Return the text of a file next to the templates."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def fixed(name: str, **values: object) -> str:
    """Return a fixed text by section and key, such as "sources.remark", with values filled in."""
    section, _, key = name.rpartition(".")
    text: str = fixed_texts(section)[key]
    return text.format(**values)


@cache
def fixed_texts(section: str) -> Mapping[str, Any]:
    """Return the fixed texts of a section, such as "games.limits", by their keys."""
    found: Any = _texts()
    for name in section.split("."):
        found = found[name]
    texts: Mapping[str, Any] = found
    return texts


@cache
def _texts() -> dict[str, Any]:
    texts: dict[str, Any] = {name: _parsed(name) for name in _SECTIONS}
    for name in _OF_SECTIONS:
        for section, entries in _parsed(name).items():
            texts[section] = {**texts.get(section, {}), **entries}
    return texts


def _parsed(name: str) -> dict[str, Any]:
    return tomllib.loads(package_file(f"{name}.toml"))
