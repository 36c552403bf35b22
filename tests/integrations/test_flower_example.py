"""The Flower examples."""

import difflib
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_round_log

if TYPE_CHECKING:
    from tests.integrations.federation import StubGrid

FOLDER = Path(__file__).parents[2] / "examples" / "flower"
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
PAIRS = {"quickstart": "audited", "lora": "lora-audited"}
"""Names of audited projects by those of the same projects without audit."""
FILES = [
    (plain, str(path.relative_to(FOLDER / plain)))
    for plain in PAIRS
    for path in sorted((FOLDER / plain).rglob("*"))
    if path.is_file() and path.suffix in (".py", ".toml", ".md")
]


def changes(plain: str, file: str) -> list[str]:
    folders = (FOLDER / plain, FOLDER / PAIRS[plain])
    before, after = ((folder / file).read_text().splitlines() for folder in folders)
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]


def added(plain: str, file: str) -> list[str]:
    return [line[2:] for line in changes(plain, file) if line.startswith("+") and line[2:].strip()]


@pytest.mark.parametrize("plain", PAIRS)
def test_both_projects_have_the_same_files(plain: str) -> None:
    audited = FOLDER / PAIRS[plain]
    paths = {p.relative_to(audited) for p in audited.rglob("*") if p.suffix != ".pyc"}
    files = {str(name) for name in paths if (audited / name).is_file()}
    assert files == {file for project, file in FILES if project == plain}


@pytest.mark.parametrize(("plain", "file"), FILES)
def test_every_line_that_the_audit_adds_is_marked(plain: str, file: str) -> None:
    assert all(line.endswith("# fedaudit") for line in added(plain, file))
    text = (FOLDER / plain / file).read_text()
    assert "fedaudit" not in re.sub('publisher = "fedaudit"', "", text)


def test_the_page_shows_exactly_the_files_that_differ() -> None:
    page = PAGE.read_text()
    included = re.findall(r"literalinclude\} \.\./(\S+/flower/\S+)\n:diff: \.\./(\S+)\n", page)
    assert set(included) == {
        (f"examples/flower/{PAIRS[plain]}/{file}", f"examples/flower/{plain}/{file}")
        for plain, file in FILES
        if changes(plain, file)
    }
    assert "run.sh" in page
    assert (FOLDER / "run.sh").exists()


@pytest.mark.parametrize("plain", PAIRS)
def test_the_audit_adds_few_lines(plain: str) -> None:
    lines = [line for project, file in FILES if project == plain for line in added(plain, file)]
    assert len(lines) <= 25


@contextmanager
def app_in(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SimpleNamespace]:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"{package}.{name}")

    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    try:
        yield SimpleNamespace(
            server=load("server_app").app, client=load("client_app").app, config=config
        )
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]


def run(app: SimpleNamespace, config: dict[str, object]) -> "StubGrid":
    """Run two rounds with three clients."""
    from flwr.app import Context, RecordDict

    from tests.integrations.federation import StubGrid

    config = {**app.config, "num-server-rounds": 2, "local-epochs": 1, "num-clients": 3, **config}
    grid = StubGrid(app.client)
    for context in grid.contexts.values():
        context.run_config = config
    app.server(grid, Context(1, 1, {}, RecordDict(), config))
    return grid


@pytest.mark.parametrize("project", ["quickstart", "audited"])
def test_the_projects_run_and_the_recording_is_complete(
    project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app_in(FOLDER / project, "digits_app", monkeypatch) as app:
        grid = run(app, {"recording": str(tmp_path / "recording")})
    trained = [m for m in grid.received if m.metadata.message_type == "train"]
    assert len(trained) == 6
    if project == "audited":
        assert all(
            entry.measured and entry.complete for entry in read_round_log(tmp_path / "recording")
        )
        audit_record = attack_recording(tmp_path / "recording", ("avg-cosine",), tmp_path / "out")
        assert any(finding.metric == "epsilon" for finding in audit_record.findings), (
            "each client tossed fair coins"
        )
        assert all(message.metadata.message_type == "query.audit" for message in grid.sent[:3])
        samples = [m.content["metrics"]["num-examples"] for m in trained]
        assert max(samples) < 1797 * 4 / 5 / 3, "samples set aside for the audit are not trained on"


def test_an_audited_client_imports_no_measuring_module() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")
    code = "import sys, digits_app.client_app; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=FOLDER / "audited",
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name for name in done.stdout.split() if name.startswith("fedaudit.")}
    assert "fedaudit.live.audited" in loaded
    assert (
        not {"fedaudit.live.recorder", "fedaudit.live.attack", "fedaudit.signals.measure"} & loaded
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("project", ["lora", "lora-audited"])
def test_only_adapters_are_sent_and_recorded(
    project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("all_minilm_l6_v2", "peft", "transformers"):
        pytest.importorskip(needed, reason="pip install 'fedaudit[text]'")
    words = [" ".join(f"word{(7 * number + k) % 100}" for k in range(9)) for number in range(240)]
    texts = np.array([list(text.encode().ljust(99, b"\0")) for text in words], dtype=np.uint8)
    np.savez(tmp_path / "texts.npz", x=texts, y=np.arange(240) % 14)
    with app_in(FOLDER / project, "texts_app", monkeypatch) as app:
        grid = run(app, {"recording": str(tmp_path / "run"), "texts": str(tmp_path / "texts.npz")})
    arrays = [m.content["arrays"] for m in grid.received if m.metadata.message_type == "train"]
    sizes = [sum(array.numpy().size for array in sent.values()) for sent in arrays]
    assert sizes == [6 * 2 * 2 * 8 * 384 + 384 * 14 + 14] * 6
    if project == "lora-audited":
        assert all(entry.measured and entry.complete for entry in read_round_log(tmp_path / "run"))
        audit_record = attack_recording(tmp_path / "run", ("avg-cosine",), tmp_path / "out")
        assert any(finding.metric == "epsilon" for finding in audit_record.findings), (
            "each client tossed fair coins"
        )
