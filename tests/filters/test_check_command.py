"""Exit codes of check-dp."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import pytest

from fedaudit.filters.isolated import _receive
from tests.programs import exit_code

ROOT = Path(__file__).parents[2]
CLAIM = ("--sensitivity", 1.0, "--sigma", 0.8)


@pytest.mark.parametrize(
    ("name", "code", "first"),
    [
        ("plain", 0, "SOUND: tests.filters.cases:plain does what is declared"),
        ("one_layer_unclipped", 1, "BROKEN: tests.filters.cases:one_layer_unclipped does not"),
        ("rounded", 3, "NOT CHECKED: tests.filters.cases:rounded could not be checked"),
    ],
)
def test_each_verdict_has_its_exit_code(
    name: str, code: int, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("check-dp", f"tests.filters.cases:{name}", *CLAIM) == code
    assert capsys.readouterr().out.startswith(first)


ENDING = ("fails", "ends_the_program", "of_python", "ends_when_copied", "missing")


@pytest.mark.parametrize("name", ENDING)
def test_a_filter_that_fails_is_a_refusal_and_no_verdict(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("check-dp", f"tests.filters.cases:{name}", *CLAIM) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedaudit: ")


CODE, NAMED = "exit code", "signal SIGKILL"


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("exits", f"{CODE} 0"),
        pytest.param("exits_as_if_broken", f"{CODE} 1", marks=pytest.mark.slow),
        pytest.param("is_killed", NAMED, marks=pytest.mark.slow),
        pytest.param("leaves", "SystemExit: 0", marks=pytest.mark.slow),
        ("prints_a_verdict", f"{CODE} 0"),
    ],
)
def test_a_filter_that_ends_its_process_gets_no_verdict(
    name: str, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("check-dp", f"tests.filters.ending:{name}", *CLAIM) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedaudit: ")
    assert how in captured.err
    assert len(captured.err) < 1000


TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    "sent",
    [
        ["", "verdict", "sound", "SOUND"],
        [TOKEN[::-1], "verdict", "sound", "SOUND"],
        ["verdict", "sound", "SOUND"],
        [[TOKEN], "verdict", "sound", "SOUND"],
        {"token": TOKEN},
        None,
        0,
    ],
)
def test_an_answer_without_the_token_of_this_check_is_no_verdict(sent: object) -> None:
    ours, theirs = Pipe(duplex=False)
    theirs.send_bytes(json.dumps(sent).encode())
    assert _receive(ours, TOKEN) is None


@pytest.mark.parametrize("sent", [b"", b"\xff", b"[" * 4000, b"x" * (2**20 + 1), b'["0",'])
def test_an_answer_that_is_no_json_is_no_verdict(sent: bytes) -> None:
    ours, theirs = Pipe(duplex=False)
    sender = Thread(target=_send, args=(theirs, sent))
    sender.start()
    ours.poll(10)
    assert _receive(ours, TOKEN) is None
    ours.close()
    sender.join()


def _send(connection: Connection, content: bytes) -> None:
    with suppress(OSError):
        connection.send_bytes(content)


def test_an_answer_with_the_token_is_the_verdict() -> None:
    ours, theirs = Pipe(duplex=False)
    theirs.send_bytes(json.dumps([TOKEN, "verdict", "sound", "SOUND"]).encode())
    assert _receive(ours, TOKEN) == ("verdict", "sound", "SOUND")


@pytest.mark.slow
def test_a_filter_that_never_ends_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tests.filters.ending:never_ends", *CLAIM, "--seconds", 1)
    begun = time.monotonic()
    assert exit_code("check-dp", *words) == 2
    assert time.monotonic() - begun < 30
    assert "was stopped after 1 s" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [-1, 1e12, "nan"])
def test_an_impossible_time_limit_is_refused(
    seconds: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("check-dp", "tests.filters.cases:plain", *CLAIM, f"--seconds={seconds}") == 2
    assert "--seconds is from 0" in capsys.readouterr().err


def test_an_example_that_ends_the_program_is_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--shape-from", "tests.filters.cases:example_that_ends")
    assert exit_code("check-dp", "tests.filters.cases:plain", *CLAIM, *words) == 2
    assert "failed (SystemExit" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("filter", 1), ("corrected", 0)])
def test_the_example_prints_the_output_on_its_page(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT / "examples" / "check-dp")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert exit_code("check-dp", f"privacy:{name}", *CLAIM) == code
    page = (ROOT / "docs" / "check-dp.md").read_text(encoding="utf-8")
    lines = capsys.readouterr().out.split("\n")
    if code:
        assert "\n".join(lines[:3]) in page
    else:
        assert not any(line.startswith(("✗", "?", "!")) for line in lines)


@pytest.mark.slow
def test_options_reach_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tests.filters.cases:with_the_length", *CLAIM, "--elsewhere", "norm"]
    assert exit_code("check-dp", *words, "--calls", 16, "--seed", 3, "--stateful") == 0
    step = [
        "tests.filters.steps:FedauditStep",
        "--shape-from",
        "tests.filters.steps:batch",
        "--kind",
        "step",
    ]
    replaced = ["--sensitivity", 0.25, "--sigma", 0.4, "--adjacency", "replace", "--calls", 16]
    assert exit_code("check-dp", *step, *replaced) == 0
    words = ["tests.filters.cases:laplace", "--sensitivity", 1.0, "--sigma", 2.0]
    assert exit_code("check-dp", *words, "--noise", "laplace") == 0


@pytest.mark.slow
def test_modules_of_the_current_folder_are_found(tmp_path: Path) -> None:
    code = "import sys\n\ndef clip(update):\n    print('a verdict')\n    sys.exit(0)\n"
    (tmp_path / "own_privacy.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "fedaudit", "check-dp", "own_privacy:clip", *map(str, CLAIM)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "fails: SystemExit: 0 (in own_privacy.py, line 5)" in done.stderr
