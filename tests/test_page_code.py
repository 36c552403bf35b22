"""The Python code on pages that the documentation build does not execute runs as shown."""

import re
import subprocess
import sys
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


def without_numbers(text: str) -> str:
    """Return a text on one line, whose numbers another processor may round differently."""
    return re.sub(r"\d+(?:\.\d+)?", "#", " ".join(text.split()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "verdict"), [(["demo"], "BEST TRADE-OFF"), (["run", "my-study.toml"], "ABOVE")]
)
def test_the_quickstart_shows_actual_output(
    command: list[str], verdict: str, tmp_path: Path
) -> None:
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    study = re.search(r'```toml\n(name = "my-study"\n.*?)```', text, re.DOTALL)
    block = re.search(rf"```\n({verdict}.*?)```", text, re.DOTALL)
    assert study is not None
    assert block is not None
    (tmp_path / "my-study.toml").write_text(study[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "fedaudit", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    for paragraph in block[1].split("\n\n"):
        assert without_numbers(paragraph) in without_numbers(done.stdout)


CELL = re.compile(r"```\{code-cell\} python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=lambda p: p.stem)
def test_a_tutorial_is_executed_when_the_documentation_is_built(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("---\nfile_format: mystnb\n")
    assert len(CELL.findall(text)) >= 5
    assert "assert" in text, "the claims of the text are checked in hidden cells"
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
