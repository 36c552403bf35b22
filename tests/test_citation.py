"""CITATION.cff agrees with the package."""

import re
import tomllib
from pathlib import Path

import fedaudit

ROOT = Path(__file__).parents[1]
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def field(name: str) -> str:
    match = re.search(rf"^{name}: (.+)$", CITATION, re.MULTILINE)
    assert match is not None, name
    return match[1]


def test_the_citation_has_the_version_and_licence_of_the_package() -> None:
    assert field("version") == PROJECT["version"] == fedaudit.__version__
    assert field("license") == PROJECT["license"]
    assert field("title") == PROJECT["name"]


def test_the_citation_names_the_maintainers() -> None:
    assert "authors:\n  - name: The fedaudit maintainers\n" in CITATION
