"""Records that a test changes, with an updated digest."""

from pathlib import Path
from typing import Any

from fedaudit.results.text import sealed_json, without_digest


def write_with_digest(document: dict[str, Any], path: Path) -> None:
    """Writes a changed record as JSON with a digest of its new content."""
    path.write_text(sealed_json(without_digest(document)), encoding="utf-8")
