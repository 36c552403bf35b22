"""Exit codes and messages of commands that fail or are interrupted."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest

from fedaudit import cli
from fedaudit.cli import application
from fedaudit.cli.application import Terminated, exit_of, stopping_at_sigterm
from fedaudit.core.errors import BadInput
from tests.programs import exit_code, heeding

STUDY = """
name = "stopped"

[partition]
clients = 4

[training]
rounds = 900
epochs = 4
batch_size = 8

[audit]
fair = 150
"""


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (BadInput("no such file; check the path"), "no such file", 2),
        (OSError("disk full"), "operating system reported an error (disk full)", 2),
        (MemoryError(), "operating system reported an error (out of memory)", 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate"), "out of memory; choose", 2),
        (KeyboardInterrupt(), "run the same command again", 130),
        (Terminated(), "run the same command again", 143),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_user_errors_end_with_a_message_and_exit_code(
    error: BaseException, message: str, code: int
) -> None:
    end = exit_of(error)
    assert end is not None
    assert message in end.message
    assert "\n" not in end.message
    assert end.code == code


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), KeyError("x")])
def test_program_errors_keep_their_traceback(error: BaseException) -> None:
    assert exit_of(error) is None


@pytest.fixture
def default_sigterm_handler() -> Iterator[None]:
    """Install the default handler of a new program during a test."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("default_sigterm_handler")
def test_sigterm_stops_the_block_and_its_handler_is_restored() -> None:
    with pytest.raises(Terminated), stopping_at_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_foreign_signal_handler_is_kept() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stopping_at_sigterm():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_install_no_signal_handler() -> None:
    results: list[object] = []

    def look() -> None:
        with stopping_at_sigterm():
            results.append(signal.getsignal(signal.SIGTERM) is application._stop)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert results == [False]


@pytest.mark.parametrize("whole_group", [False, True], ids=["program", "all of its processes"])
@pytest.mark.slow
def test_a_terminated_study_stops_its_workers(whole_group: bool, tmp_path: Path) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(STUDY)
    command = [sys.executable, "-m", "fedaudit", "run", str(study), "--out", str(out)]
    program = subprocess.Popen(
        heeding([*command, "--workers", "2"]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (out / "seed-1" / "checkpoint.safetensors").exists():
        assert program.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    (os.killpg if whole_group else os.kill)(program.pid, signal.SIGTERM)
    _, stderr = program.communicate(timeout=60)
    assert program.returncode == 143
    assert "fedaudit: stopped; run the same command again to resume" in stderr
    assert "Traceback" not in stderr
    assert children
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a worker continues without the program"
        time.sleep(0.05)


def test_program_errors_have_their_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise KeyError("a fault\x1b[2J")

    for target, words in (
        ("fedaudit.gate.policy.read_policy", ("gate", "a.json", "--policy", "p.toml")),
        ("fedaudit.results.read.read_record", ("report", "a.json")),
        ("fedaudit.study.running.reattack.reattack", ("attack", "folder")),
        ("fedaudit.pack.verifying.verify", ("verify", "folder")),
        ("fedaudit.pack.packing.write_pack", ("pack", "a", "--policy", "p", "--out", "o")),
        ("fedaudit.results.read.read_record", ("compare", "a", "b")),
        ("fedaudit.plan.values.read_toml", ("run", "a.toml")),
        ("fedaudit.study.running.run.run_study", ("demo",)),
        ("fedaudit.catalogue.format_catalogue", ("list",)),
        ("fedaudit.catalogue.explain_entry", ("explain", "x")),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(target, failing)
            if words[0] == "gate":
                patched.setattr("fedaudit.results.read.read_record", failing)
            with pytest.raises(SystemExit) as ended:
                cli.main(words)
        assert ended.value.code == 70, words
        stderr = capsys.readouterr().err
        assert "Traceback" in stderr
        assert "\x1b" not in stderr
        assert "not an error in its input" in stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("words", [("list",), ("explain", "fedmia-2"), ("report", "\udcff\u03b5")])
def test_unencodable_characters_are_escaped_with_the_same_exit_code(
    words: tuple[str, ...], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr(sys, "stderr", printed)
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert (ended.value.code or 0) == (2 if words[0] == "report" else 0)
    assert sys.stdout is printed
    assert printed.errors == "strict"
    assert isinstance(printed.buffer, io.BytesIO)
    assert "Traceback" not in printed.buffer.getvalue().decode(encoding)


def closed_pipe() -> TextIO:
    """Return a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1)


@pytest.mark.slow
def test_a_closed_pipe_ends_printing_but_not_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.toml").write_text(
        'name = "x"\npartition.samples_per_client = 20\ntraining.rounds = 2\n'
        "audit.fair = 20\nattacks.blackbox-loss = {}\nfigures.permutations = 20\n"
    )
    with ExitStack() as unread, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", unread.enter_context(closed_pipe()))
        patched.setattr(sys, "stderr", unread.enter_context(closed_pipe()))
        assert exit_code("run", tmp_path / "study.toml", "--out", tmp_path, "--workers=1") == 0
    assert (tmp_path / "record.json").is_file()
    assert (tmp_path / "report.html").is_file()


def test_a_broken_pipe_has_its_own_exit_code() -> None:
    with closed_pipe() as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "fedaudit", "gate", "--print-policy"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def full() -> TextIO:
    """Return a file on a full disk."""
    return Path("/dev/full").open("w", buffering=1)


def closed() -> TextIO:
    """Return a stream with a closed descriptor."""
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    os.close(stream.fileno())
    return stream


def nothing() -> TextIO | None:
    """Return the stream of a program that was started without one."""
    return None


@pytest.mark.parametrize("stream", [full, closed, closed_pipe, nothing])
@pytest.mark.parametrize("both", [False, True], ids=["stderr", "both"])
@pytest.mark.parametrize("end", ["refusal", "fault", "pass", "fail", "inconclusive"])
def test_exit_codes_do_not_depend_on_output_streams(
    stream: Callable[[], TextIO | None], both: bool, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"refusal": 2, "fault": 70, "pass": 0, "fail": 1, "inconclusive": 3}

    def read(path: Path) -> None:
        if end == "fault":
            raise KeyError("a fault")

    monkeypatch.setattr("fedaudit.results.read.read_record", read)
    monkeypatch.setattr("fedaudit.gate.policy.read_policy", read)
    monkeypatch.setattr(
        "fedaudit.gate.evaluate.evaluate_policy", lambda *_: SimpleNamespace(outcome=end)
    )
    monkeypatch.setattr("fedaudit.gate.outputs.write_verdict", lambda *_, **__: None)
    monkeypatch.setattr("fedaudit.gate.outputs.print_verdict", lambda verdict: print("x" * 9000))
    words = ("gate", "a.json", *(() if end == "refusal" else ("--policy", "p.toml")))
    with monkeypatch.context() as patched, ExitStack() as opened:
        for name in ("stdout", "stderr") if both else ("stderr",):
            replacement = stream()
            patched.setattr(sys, name, replacement)
            if replacement is not None:
                opened.callback(suppressed_close, replacement)
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
    assert (ended.value.code or 0) == codes[end]


@pytest.mark.parametrize(
    ("stream", "why"), [(full, "No space left on device"), (nothing, "it is closed")]
)
def test_lost_output_raises_unless_the_exit_code_is_a_verdict(
    stream: Callable[[], TextIO | None],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patched, ExitStack() as opened:
        printed = stream()
        patched.setattr(sys, "stdout", printed)
        if printed is not None:
            opened.callback(suppressed_close, printed)
        assert exit_code("gate", "--print-policy") == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("fedaudit: standard output could not be written")
    assert why in stderr


def suppressed_close(stream: TextIO) -> None:
    with suppress(OSError):
        stream.close()


@pytest.mark.parametrize(
    ("redirection", "code"),
    [("2>/dev/full", 2), ("2>&-", 2), (">&- 2>&-", 2), (">/dev/full 2>/dev/full", 2)],
)
@pytest.mark.slow
def test_without_output_streams_exit_codes_are_kept(redirection: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -m fedaudit verify --nothere {redirection}"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, b"")


def test_closed_streams_do_not_redirect_output_to_files(
    tmp_path: Path,
) -> None:
    code = (
        "import os, sys\nfrom fedaudit.cli.application import robust_printing\n"
        "with robust_printing(), open(sys.argv[1], 'w') as file:\n"
        "    assert file.fileno() > 2\n    os.write(2, b'of a library')\n    print('x')\n"
    )
    output = tmp_path / "told"
    command = f"exec '{sys.executable}' -c \"{code}\" '{output}' >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
    assert output.read_text() == ""


def test_import_errors_do_not_exit_with_a_verdict_code(tmp_path: Path) -> None:
    (tmp_path / "cyclopts.py").write_text("raise ImportError('not installed')")
    done = subprocess.run(
        [sys.executable, "-m", "fedaudit", "list"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 70
    assert "not installed" in done.stderr
