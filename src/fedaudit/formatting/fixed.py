"""Fixed texts of reports and summaries, which are stored as TOML in the folder ``texts``."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

TEXTS = Path(__file__).parent / "texts"


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
        parsed = tomllib.loads((TEXTS / f"{name}.toml").read_text(encoding="utf-8"))
        sections = parsed if name in ("wording", "sections") else {name: parsed}
        # Both of these files have a table "games".
        for section, entries in sections.items():
            texts[section] = {**texts.get(section, {}), **entries}
    return texts
