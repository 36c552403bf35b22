"""Records that a test has changed, with the digest that they then have to carry."""

from pathlib import Path
from typing import Any

from fedaudit.results.sealing import DIGEST, sealed_json


def write_with_digest(document: dict[str, Any], path: Path) -> None:
    """Writes a changed record as JSON with a digest of its new content."""
    document.pop(DIGEST, None)
    path.write_text(sealed_json(document), encoding="utf-8")
