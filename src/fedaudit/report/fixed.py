"""Access to files of this package: templates, styles, scripts, and fixed texts in TOML."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def package_file(name: str) -> str:
    """Return the text of a file in the folder of templates."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def fixed_text(name: str, **values: object) -> str:
    """Return a fixed text by section and key, such as "sources.remark", with values filled in."""
    section, _, key = name.rpartition(".")
    text: str = fixed_texts(section)[key]
    return text.format(**values)


@cache
def fixed_texts(section: str) -> Mapping[str, Any]:
    """Return the fixed texts of a section, such as "games.limits", by their keys."""
    texts: Mapping[str, Any] = _texts()
    for name in section.split("."):
        texts = texts[name]
    return texts


@cache
def _texts() -> dict[str, Any]:
    texts: dict[str, Any] = {}
    for name in ("wording", "sections", "clauses", "policy", "steps", "summary"):
        parsed = tomllib.loads(package_file(f"{name}.toml"))
        sections = parsed if name in ("wording", "sections") else {name: parsed}
        # Both of these files have a table "games".
        for section, entries in sections.items():
            texts[section] = {**texts.get(section, {}), **entries}
    return texts
