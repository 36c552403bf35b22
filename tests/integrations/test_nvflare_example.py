"""The NVFlare example."""

import difflib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_round_log

FOLDER = Path(__file__).parents[2] / "examples" / "nvflare"
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
PLAIN, AUDITED = FOLDER / "quickstart", FOLDER / "audited"
FILES = sorted(path.name for path in PLAIN.glob("*.py"))


def changes(file: str) -> list[str]:
    before, after = ((folder / file).read_text().splitlines() for folder in (PLAIN, AUDITED))
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]


def test_both_projects_have_the_same_files() -> None:
    assert sorted(path.name for path in AUDITED.glob("*.py")) == FILES == sorted(FILES)
    assert FILES == ["client.py", "job.py", "task.py"]


@pytest.mark.parametrize("file", FILES)
def test_every_line_that_the_audit_adds_is_marked(file: str) -> None:
    added = [line[2:] for line in changes(file) if line.startswith("+") and line[2:].strip()]
    assert all(line.endswith("# fedaudit") for line in added), file
    assert "fedaudit" not in (PLAIN / file).read_text()


def test_the_page_shows_exactly_the_files_that_differ() -> None:
    diff = r"literalinclude\} \.\./(\S+/nvflare/\S+)\n:diff: \.\./(\S+)\n"
    included = re.findall(diff, PAGE.read_text())
    assert {new for new, _ in included} == {
        f"examples/nvflare/audited/{f}" for f in FILES if changes(f)
    }
    for new, old in included:
        assert new.replace("audited", "quickstart") == old


def test_the_audit_adds_few_lines_to_the_server_only() -> None:
    assert changes("client.py") == []
    assert sum(line.startswith("+") for file in FILES for line in changes(file)) < 25


def test_the_server_joins_the_splits_of_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(AUDITED)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    task = importlib.import_module("task")
    try:
        for site in (3, 1, 2):
            task.audit_split(site).save(tmp_path / "recording-parts" / f"site-{site}")
        with task.record(tmp_path / "recording") as recorder:
            assert recorder.recording.targets == (1, 2, 3)
            assert recorder.recording.sizes == {}
    finally:
        del sys.modules["task"]


@pytest.mark.slow
def test_the_simulated_project_has_a_complete_recording(tmp_path: Path) -> None:
    pytest.importorskip(
        "nvflare", reason="NVFlare is not installed: pip install 'fedaudit[nvflare]'"
    )
    folder = tmp_path / "recording"
    script = str(AUDITED / "job.py")
    command = [sys.executable, script, "--rounds", "2", "--recording", str(folder)]
    settings = {
        "NVFLARE_SIMULATOR_WORKSPACE_ROOT": str(tmp_path / "simulator"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-5000:]
    every = (1, 2, 3, 4, 5)
    rounds = [
        (entry.round, entry.measured, entry.selected, entry.answered)
        for entry in read_round_log(folder)
    ]
    assert rounds == [(1, True, every, every), (2, True, every, every)]
    findings = attack_recording(folder, ("avg-cosine",), tmp_path / "out").findings
    assert any(finding.metric == "epsilon" for finding in findings), "each site tossed fair coins"
