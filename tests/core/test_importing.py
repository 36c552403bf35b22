"""Custom code of a folder is imported only if it is trusted."""

import sys
from pathlib import Path

import pytest

from fedaudit import reattack, run_study
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import code_named_in, import_callable
from fedaudit.pack.packing import write_pack
from tests.programs import exit_code
from tests.study.studies import quick_study

POLICY = 'name = "x"\n[membership]\nauc = 0.6\n[controls]\nrequired = []\n'
STRANGERS = """
from pathlib import Path
Path(__file__).with_name("was-run").touch()
def same(update):
    return update
"""


@pytest.fixture
def was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that a module writes when it is imported."""
    (tmp_path / "strangers_module.py").write_text(STRANGERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "was-run"


def forgotten(ran: Path) -> None:
    """Forget the module, so that its next import runs it and writes the file."""
    sys.modules.pop("strangers_module", None)
    ran.unlink(missing_ok=True)


@pytest.mark.slow
def test_attack_and_verify_run_code_of_a_folder_only_with_trust(
    was_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filtered = {"name": "filter", "options": {"path": "strangers_module:same"}}
    run_study(quick_study(training={"rounds": 2}, defense=filtered), tmp_path / "run")
    (tmp_path / "policy.toml").write_text(POLICY)
    write_pack(tmp_path / "run/record.json", tmp_path / "policy.toml", tmp_path / "pack")
    assert was_run.exists()
    for words in (
        ("attack", tmp_path / "run", "--out", tmp_path / "again"),
        ("verify", tmp_path / "pack", "--recording", tmp_path / "run"),
    ):
        forgotten(was_run)
        assert exit_code(*words) == 2
        message = capsys.readouterr().err.split("fedaudit: ")[-1]
        assert message.count("\n") == 1
        assert "study.json names the filter 'strangers_module:same'" in message
        assert "pass --trust" in message
        assert not was_run.exists(), "it was imported"
        assert exit_code(*words, "--trust") == 0
        assert was_run.exists()
    forgotten(was_run)
    with pytest.raises(BadInput, match="trust=True in Python"):
        reattack(tmp_path / "run", [], tmp_path / "other")
    assert not was_run.exists()


def test_commands_that_only_read_import_no_module_that_a_file_names() -> None:
    with code_named_in("a.json", trusted=False):
        with pytest.raises(BadInput, match=r"a.json names the model 'math:sqrt'"):
            import_callable("math:sqrt", "model")
        with code_named_in("mine.toml", trusted=True):
            assert import_callable("math:sqrt", "model")(4.0) == 2.0
        with pytest.raises(BadInput, match="--trust"):
            import_callable("math:sqrt", "model")
    assert import_callable("math:sqrt", "model")(4.0) == 2.0


@pytest.mark.parametrize("fault", ["raise RuntimeError('no licence')", "import sys; sys.exit(0)"])
def test_failing_imports_raise_in_one_sentence(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing_module.py").write_text(fault)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "study.toml").write_text(
        'name = "x"\n[defense]\nname = "filter"\noptions.path = "failing_module:filter"\n'
    )
    assert exit_code("run", tmp_path / "study.toml", "--out", tmp_path / "out") == 2
    stderr = capsys.readouterr().err
    assert "'failing_module' cannot be imported, since it raises" in stderr
    assert stderr.count("\n") == 1
