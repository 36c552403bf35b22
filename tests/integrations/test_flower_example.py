"""The example for Flower: what the audit adds is marked, and both projects run."""

import difflib
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_round_log

FOLDER = Path(__file__).parents[2] / "examples" / "flower"
PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
STUDY = FOLDER / "study"
PLAIN, AUDITED = FOLDER / "quickstart", FOLDER / "audited"
FILES = sorted(
    str(path.relative_to(PLAIN))
    for path in PLAIN.rglob("*")
    if path.is_file() and path.suffix in (".py", ".toml", ".md")
)


def changes(file: str) -> list[str]:
    before, after = ((folder / file).read_text().splitlines() for folder in (PLAIN, AUDITED))
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]


def test_both_projects_have_the_same_files() -> None:
    found = {str(p.relative_to(AUDITED)) for p in AUDITED.rglob("*") if p.suffix != ".pyc"}
    assert {name for name in found if (AUDITED / name).is_file()} == set(FILES)


@pytest.mark.parametrize("file", FILES)
def test_every_line_that_the_audit_adds_is_marked(file: str) -> None:
    added = [line[2:] for line in changes(file) if line.startswith("+") and line[2:].strip()]
    assert all(line.endswith("# fedaudit") for line in added), file
    assert "fedaudit" not in re.sub('publisher = "fedaudit"', "", (PLAIN / file).read_text())


def test_the_page_shows_every_file_that_differs_and_no_copy_of_it() -> None:
    page = PAGE.read_text()
    shown = re.findall(r"literalinclude\} \.\./(\S+)\n:diff: \.\./(\S+)\n", page)
    assert {new for new, _ in shown} == {
        f"examples/flower/audited/{f}" for f in FILES if changes(f)
    }
    for new, old in shown:
        assert new.replace("audited", "quickstart") == old
    assert "run.sh" in page
    assert (FOLDER / "run.sh").exists()


def test_the_audit_adds_few_lines() -> None:
    assert sum(line.startswith("+") for file in FILES for line in changes(file)) < 30


@pytest.fixture(params=["quickstart", "audited"])
def app(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SimpleNamespace]:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")
    folder = FOLDER / str(request.param)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"digits_app.{name}")

    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    yield SimpleNamespace(
        server=load("server_app").app, client=load("client_app").app, config=config, folder=folder
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "digits_app"]:
        del sys.modules[name]


def test_the_projects_run_and_the_recording_is_complete(
    app: SimpleNamespace, tmp_path: Path
) -> None:
    from flwr.app import Context, RecordDict

    from tests.integrations.federation import StubGrid

    config = {**app.config, "num-server-rounds": 2, "local-epochs": 1}
    if app.folder == AUDITED:
        config |= {"recording": str(tmp_path / "recording"), "num-clients": 3}
    grid = StubGrid(app.client)
    for context in grid.contexts.values():
        context.run_config = config
    app.server(grid, Context(1, 1, {}, RecordDict(), config))
    trained = [m for m in grid.received if m.metadata.message_type == "train"]
    assert len(trained) == 6
    if app.folder == AUDITED:
        assert all(one.measured and one.complete for one in read_round_log(tmp_path / "recording"))
        found = attack_recording(tmp_path / "recording", ("avg-cosine",), tmp_path / "out")
        assert any(f.metric == "epsilon" for f in found.findings), "each client tossed fair coins"
        assert all(message.metadata.message_type == "query.audit" for message in grid.sent[:3])
        samples = [m.content["metrics"]["num-examples"] for m in trained]
        assert max(samples) < 1797 * 4 / 5 / 3, "what was set aside is not trained on"


def test_the_study_runs_as_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")
    from flwr.app import Context, RecordDict

    from fedaudit.study.running.run import run_study
    from fedaudit.study.settings.file import read_study
    from tests.integrations.federation import StubGrid

    monkeypatch.syspath_prepend(STUDY)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    project = tomllib.loads((STUDY / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        importlib.import_module(project["components"][name].removesuffix(":app")).app
        for name in ("serverapp", "clientapp")
    )
    settings = {"training.rounds": 1, "figures.permutations": 20}
    config = {**project["config"], "out": str(tmp_path / "nodes"), **settings}
    del config["training"]
    grid = StubGrid(client, nodes=2)
    for context in grid.contexts.values():
        context.run_config = config
    server(grid, Context(1, 1, {}, RecordDict(), config))
    study = read_study(STUDY / "digits_study" / "study.toml", dict(settings))
    assert run_study(study, tmp_path / "here").content_hash in capsys.readouterr().out
