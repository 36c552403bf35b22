"""The Python code on pages that the documentation build does not execute runs as shown."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["quickstart", "unlearning", "games"])
def test_the_python_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), namespace)


CELL = re.compile(r"```\{code-cell\} python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=lambda p: p.stem)
def test_a_tutorial_is_executed_when_the_documentation_is_built(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("---\nfile_format: mystnb\n")
    assert len(CELL.findall(text)) >= 5
    assert "assert" in text, "the claims of the text are checked in hidden cells"
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
