import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fedaudit import cli
from fedaudit.catalogue import CATALOGUES
from fedaudit.cli import running
from fedaudit.core.errors import CATALOGUE_NAMES
from fedaudit.gate.policy import DEFAULT_POLICY
from fedaudit.plan.sections import Study
from fedaudit.study.running import reattack
from tests.programs import exit_code

STUDY = """
name = "small"
[training]
rounds = 3
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """Collect the studies that would be run, without running them."""
    handed: list[Study] = []

    def keep(study: Study, *_: object) -> None:
        handed.append(study)

    monkeypatch.setattr(running, "_run", keep)
    return handed


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.err.startswith("fedaudit: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert captured.out == ""
    return captured.err


def test_help_is_fast_and_names_every_command() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "fedaudit", "--help"], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # About 0.3 s of CPU time, which does not depend on the load of the machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5
    for command in (
        "demo",
        "run",
        "attack",
        "report",
        "ask",
        "summary",
        "compare",
        "gate",
        "pack",
        "verify",
        "check-dp",
        "check-guard",
        "budget",
        "list",
        "explain",
    ):
        assert command in done.stdout


def test_the_program_is_installed_under_its_name() -> None:
    program = Path(sys.executable).with_name("fedaudit")
    done = subprocess.run([program, "bogus"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith('fedaudit: Unknown command "bogus"')


def test_the_program_runs_as_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedaudit", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip()


def test_list_shows_every_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("list") == 0
    output = capsys.readouterr().out
    assert all(name in output for name in ("fedmia-2", "client-dp", "resnet18", "uploads"))


def test_list_shows_one_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("list", "attacks") == 0
    output = capsys.readouterr().out
    assert "one-sided" in output
    assert "client-dp" not in output


def test_explain_shows_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("explain", "fedmia-2") == 0
    assert "fedmia-2 (attack)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("list", "atacks"), "did you mean 'attacks'?"),
        (("explain", "fedmai-2"), "did you mean 'fedmia-2'?"),
        (("bogus",), "Available commands"),
        (("run",), "requires an argument"),
        (("run", "nowhere.toml"), "nowhere.toml does not exist"),
        (("report", "nowhere"), "nowhere does not exist"),
        (("report", "one", "two"), "Unused Tokens"),
        (("ask", "nowhere", "--row", "0"), "nowhere does not exist"),
        (("ask", "nowhere"), "give one of --row, --line, --sample and --person"),
        (("compare", "one"), "at least two records"),
        (("attack", "nowhere"), "nowhere does not exist"),
        (("verify", "nowhere"), "nowhere does not exist"),
        (("explain", "fedmia2"), "did you mean 'fedmia-2'? `fedaudit list` lists all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line_ends_with_one_sentence_and_code_2(
    words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*words) == 2
    assert hint in one_sentence(capsys)


KINDS = {
    "study.toml": STUDY,
    "policy.toml": DEFAULT_POLICY,
    "record.json": '{"format":"fedaudit-record"}',
    "comparison.json": '{"format":"fedaudit-comparison"}',
    "verdict.json": '{"format":"fedaudit-verdict"}',
    "pack/manifest.json": '{\n "format": "fedaudit-pack"}',
    "run/study.json": "{}",
}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run policy.toml", "policy.toml is a policy and not a study; `fedaudit gate`, `summary`"),
        ("run run", "run is the folder of a run and not a study; `fedaudit report`,"),
        ("run record.json", "record.json is the record of a run and not a study"),
        ("gate study.toml --policy policy.toml", "study.toml is a study and not the record of a"),
        ("gate record.json --policy comparison.json", "comparison.json is a comparison and not a"),
        ("pack verdict.json --policy policy.toml --out out", "verdict.json is a verdict and not"),
        ("report comparison.json", "comparison.json is a comparison and not the record of a run"),
        ("compare study.toml record.json", "study.toml is a study and not the record of a run"),
        ("compare policy.toml", "policy.toml is a policy and not a comparison"),
        ("attack pack", "pack is a pack and not the folder of a run; `fedaudit verify` checks"),
        ("verify run", "run is the folder of a run and not a pack"),
        (
            "verify study.toml",
            "study.toml is a study and not a pack; `fedaudit run` runs it",
        ),
        ("gate record.json --policy policy.toml", "record.json is a record of version None"),
        ("report pipe", "pipe is not a regular file"),
    ],
)
def test_arguments_of_another_command_raise_with_that_command(
    line: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in KINDS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert exit_code(*line.split()) == 2
    assert message in one_sentence(capsys)


@pytest.mark.parametrize(
    "override", [("--training.rounds=10",), ("--training.rounds", "10")], ids=" ".join
)
def test_settings_on_the_command_line_replace_those_of_the_file(
    override: tuple[str, ...], study: Path, ran: list[Study]
) -> None:
    assert exit_code("run", study, *override) == 0
    assert [started.training.rounds for started in ran] == [10]


def test_settings_and_options_may_be_in_any_order(study: Path, ran: list[Study]) -> None:
    line = ["--workers", "2", "--training.batch-size", "7", "--out", "folder", "--name=other"]
    assert exit_code("run", *line, study) == 2, "the study comes first"
    assert exit_code("run", study, *line) == 0
    assert [(started.training.batch_size, started.name) for started in ran] == [(7, "other")]


def test_lists_texts_and_settings_of_attacks_are_accepted(study: Path, ran: list[Study]) -> None:
    line = ["--seeds=[1, 2]", "--audit.view=sum", "--attacks.fedmia-2.outlier-sigmas=2.5"]
    assert exit_code("run", study, *line) == 0
    assert ran[0].seeds == (1, 2)
    assert ran[0].audit.view == "sum"
    assert ran[0].attacks == {"fedmia-2": {"outlier_sigmas": 2.5}}


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("--training.roundz=2", "did you mean 'training.rounds'?"),
        ("--wrokers=2", "did you mean '--workers'?"),
        ("--training.rounds=0", "training.rounds"),
        ("--training.rounds", "needs a value"),
        ("training.rounds=2", "write it as --section.setting=value"),
    ],
)
def test_a_wrong_setting_ends_with_one_sentence_and_code_2(
    override: str, hint: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("run", study, override) == 2
    assert hint in one_sentence(capsys)


def test_an_unknown_key_in_the_file_raises_with_its_name(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(STUDY + "epoch = 2\n")
    assert exit_code("run", study) == 2
    assert "did you mean 'training.epochs'?" in one_sentence(capsys)


def test_ctrl_c_explains_how_to_resume_and_ends_with_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reattack, "reattack", interrupted)
    assert exit_code("attack", "recording") == 130
    assert "run the same command again" in one_sentence(capsys)


@pytest.mark.parametrize(
    "words",
    [
        ("report", "a\0b"),
        ("report", "a.json", "--out", "a\0b"),
        ("gate", "a.json", "--policy", "p.toml", "--junit=a\0b"),
        ("run", "a.toml", "--training.rounds=1\0"),
        ("demo", "--out", "a\0/b"),
    ],
)
def test_a_character_that_no_path_has_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*words) == 2
    assert "has a NUL character" in one_sentence(capsys)


def test_a_setting_with_undecodable_bytes_raises(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bytes_of_a_shell = b"caf\xe9".decode(errors="surrogateescape")
    assert exit_code("run", study, "--about", bytes_of_a_shell) == 2
    assert "the value of --about has bytes that are not text" in one_sentence(capsys)


def test_a_refusal_has_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("report", str(tmp_path / "\x1b[2J\r\u202e")) == 2
    assert "/\ufffd[2J\ufffd\ufffd does not exist" in one_sentence(capsys)


def test_list_fits_a_terminal_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("list", "attacks") == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    assert "A member's gradient points along the last update." in output


def test_help_of_list_names_every_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("list", "--help") == 0
    output = capsys.readouterr().out
    assert list(CATALOGUE_NAMES.values()) == list(CATALOGUES)
    assert all(kind in output for kind in CATALOGUES)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--training.rounds=abc", "--training.rounds: it should be a whole number, got 'abc'"),
        ("--training.round=3", "there is no setting named 'training.round'"),
        ("--rounds=3", "write settings with their section: --training.rounds"),
    ],
)
def test_a_wrong_override_is_not_blamed_on_the_file(
    override: str, message: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("run", study, override) == 2
    sentence = one_sentence(capsys)
    assert message in sentence
    assert str(study) not in sentence


GAMES = """
name = "played"
[game]
games = 20
"""


def test_the_run_command_plays_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_games = tmp_path / "games.toml"
    of_games.write_text(GAMES)
    assert exit_code("run", of_games, "--variant", "all") == 2
    assert "--variant applies to studies that train" in one_sentence(capsys)
    played: list[tuple[object, ...]] = []
    monkeypatch.setattr(running, "_play", lambda *arguments: played.append(arguments))
    assert exit_code("run", of_games, "--game.games=10") == 0
    assert played == [(of_games, ("--game.games=10",), None, None)]


def test_every_argument_of_every_command_has_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [name for name in cli.app if not name.startswith("-")]
    assert "run" in commands
    for command in commands:
        assert exit_code(command, "--help") == 0
        for line in capsys.readouterr().out.splitlines():
            words = line.strip("│* ").split()
            bare = len(words) < 2 or words[1] == "[required]"
            assert not (bare and words and words[0].isupper()), (command, line)
