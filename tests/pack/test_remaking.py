"""The content hash of a packed record, made again from the folder of its run."""

import shutil
from pathlib import Path

import pytest

from fedaudit import cli
from fedaudit.errors import BadInput
from fedaudit.pack.packing import write_pack
from fedaudit.pack.remaking import remade
from fedaudit.study.run import run_study
from tests.report.games import NONE, played
from tests.study.studies import quick_study

POLICY = 'name = "x"\n[membership]\nauc = 0.6\n[controls]\nrequired = []\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_study(quick_study(), folder)
    return folder


@pytest.fixture
def pack(run: Path, tmp_path: Path) -> Path:
    (tmp_path / "policy.toml").write_text(POLICY)
    write_pack(run / "record.json", tmp_path / "policy.toml", tmp_path / "pack")
    return tmp_path / "pack"


def verified(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", *map(str, words)])
    return int(ended.value.code or 0)


def test_a_packed_record_has_the_hash_of_what_its_run_measured(
    run: Path, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in run.iterdir())
    assert verified(pack, "--recording", run) == 0
    assert "held: the content hash is that of what the run has measured" in capsys.readouterr().out
    assert sorted(path.name for path in run.iterdir()) == before
    assert verified(pack) == 0
    assert "not checked: the content hash of a study" in capsys.readouterr().out


def test_the_record_of_another_run_does_not(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(quick_study(training={"lr": 0.05}), tmp_path / "other")
    assert verified(pack, "--recording", tmp_path / "other") == 1
    assert "wrong: the record's content hash is not that" in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_refused(
    run: Path, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "record.json", tmp_path)
    assert verified(pack, "--recording", tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_games_need_no_recording(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="leave it out"):
        list(remade(played(NONE), tmp_path))
