"""Custom code that ends the program raises an error with the grid row."""

import sys
from pathlib import Path
from typing import NoReturn

import pytest

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import convert_exits_to_errors, location_of
from fedaudit.fl.hooks import Defense, TrainingContext
from fedaudit.observe.round import Upload
from fedaudit.study.running.preflight import check_grid
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.programs import exit_code
from tests.study.studies import quick_study

GRID = """
name = "grid"
[data]
name = "digits"
[partition]
clients = 3
samples_per_client = 60
[training]
rounds = 2
epochs = 1
batch_size = 20
[audit]
fair = 60
[figures]
permutations = 20
blind_classifier = false
[attacks.blackbox-loss]
[variants.exits]
"defense.name" = "tests.study.test_exits:Exits"
[variants.asserts]
"defense.name" = "tests.study.test_exits:Asserts"
[variants.raises]
"defense.name" = "tests.study.test_exits:Raises"
"""


class Exits(Defense):
    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        sys.exit(0)


class Asserts(Defense):
    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        raise AssertionError


class Raises(Defense):
    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        raise KeyError("a")


class ExitsWhenMade(Defense):
    def __init__(self) -> None:
        sys.exit(0)


class ExitsAtTheFirstBatch(Defense):
    def batch(self, batch: object, context: TrainingContext) -> NoReturn:
        sys.exit(0)


def test_a_variant_whose_code_exits_fails_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = tmp_path / "grid.toml", tmp_path / "out"
    study.write_text(GRID)
    assert exit_code("run", study, "--variant=all", "--out", out, "--workers=1") == 70
    stderr = capsys.readouterr().err
    assert "3 of 4 variants failed" in stderr
    assert "grid-exits: custom code ended the process (SystemExit: 0, in test_exits.py" in stderr
    # The traceback is of the first fault: the others are found by the line that raised them.
    for fault in ("AssertionError: ", "KeyError: 'a'"):
        assert f"a bug in fedaudit ({fault}, in test_exits.py, line " in stderr
    assert (out / "grid" / "record.json").is_file()
    assert not (out / "grid-exits" / "record.json").exists()


def test_a_study_of_code_that_exits_is_refused_in_python(tmp_path: Path) -> None:
    study = quick_study(defense={"name": "tests.study.test_exits:Exits"})
    with pytest.raises(BadInput, match=r"custom code ended .*SystemExit: 0, in test_exits\.py"):
        run_study(study, tmp_path)


@pytest.mark.parametrize("part", ["ExitsWhenMade", "ExitsAtTheFirstBatch"])
def test_custom_code_that_exits_raises_with_the_grid_row(
    part: str,
) -> None:
    study = quick_study(defense={"name": f"tests.study.test_exits:{part}"}, name="its-name")
    with pytest.raises(BadInput, match=r"SystemExit: 0, in test_exits\.py"):
        check_grid([quick_study(), study])


class ExitingAttack(Attack):
    def __init__(self) -> None:
        sys.exit(0)


def test_an_attack_that_exits_is_refused(tmp_path: Path) -> None:
    run_study(quick_study(), tmp_path / "run")
    with pytest.raises(BadInput, match="SystemExit: 0"):
        reattack(
            tmp_path / "run", ["tests.study.test_exits:ExitingAttack"], tmp_path / "new", trust=True
        )


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit("x")])
def test_every_way_to_end_the_program_is_refused(error: BaseException) -> None:
    allowed = "return a value or raise an Exception; remove"
    with pytest.raises(BadInput, match=allowed), convert_exits_to_errors():
        raise error


def test_an_interruption_and_an_error_stay_as_they_are() -> None:
    for error in (KeyboardInterrupt(), ValueError("x")):
        with pytest.raises(type(error)), convert_exits_to_errors():
            raise error


def test_an_error_that_was_never_raised_has_no_line() -> None:
    assert location_of(ValueError()) == "nowhere"
