"""Files of this package: templates, styles, scripts, and fixed texts as TOML."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def package_file(name: str) -> str:
    """Return the text of a file next to the templates."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@cache
def fixed_texts(name: str) -> dict[str, Any]:
    """Return the fixed texts of a file, such as those of "summary", by their keys."""
    return tomllib.loads(package_file(f"{name}.toml"))
