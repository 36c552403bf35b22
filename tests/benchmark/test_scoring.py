import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedaudit.benchmark import scoring
from fedaudit.benchmark.child import load_attack
from fedaudit.benchmark.leaderboard import Leaderboard, leaderboard_text
from fedaudit.benchmark.page import leaderboard_html, markdown_page, terminal_lines
from fedaudit.benchmark.scoring import (
    AttackProcess,
    attack_process,
    catalogue_leaderboard,
    score_attack,
)
from fedaudit.benchmark.suite import (
    Answers,
    Signals,
    checked_scores,
    read_answers,
    stored_file,
    write_answers,
    write_suite,
)
from fedaudit.core.errors import BadInput, Damaged
from tests.benchmark.suites import known_attacks, signals, write_small_suite
from tests.programs import exit_code


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    write_small_suite(folder)
    return folder


def attack_file(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(body)
    return str(path)


@contextmanager
def attack_in_this_process(reference: str, _timeout: float) -> Iterator[SimpleNamespace]:
    """Run an attack as its own process does, without the time that torch takes to load there."""
    score = load_attack(reference, Path.cwd())

    def scores(signals: Signals, rng: np.random.Generator) -> np.ndarray:
        order = rng.permutation(signals.samples)
        values = np.empty(signals.samples)
        values[order] = checked_scores(score(signals.in_order(order)), signals.samples)
        return values

    yield SimpleNamespace(scores=scores)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "attack_process", attack_in_this_process)


MEAN = "def attack(signals, target):\n    return signals['loss'].of(target).mean(0)\n"


@pytest.fixture(scope="module")
def board(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Leaderboard:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "attack_process", attack_in_this_process)
        return score_attack(attack_file(tmp_path_factory.mktemp("mine"), MEAN), suite)


def test_an_attack_that_equals_one_of_the_catalogue_is_not_separable(board: Leaderboard) -> None:
    assert board.attack == "mine"
    assert board.comparisons == 2 * 3
    for regime in board.regimes:
        own, good = regime.of("mine"), regime.of("good")
        assert own.auc == good.auc
        assert own.tpr == good.tpr
        assert good.difference is not None
        assert good.difference.value == 0
        assert good.outcome == "not separable"
        assert (own.best_rank, own.worst_rank) == (1, 2)
        assert regime.of("useless").outcome == "better"
    assert [control.passed for control in board.controls] == [True] * 3


def test_a_leaderboard_of_the_catalogue_compares_all_pairs(suite: Path) -> None:
    board = catalogue_leaderboard(suite)
    assert board.comparisons == 2 * 3
    assert [entry.attack for entry in board.regimes[0].entries] == ["good", "weak", "useless"]
    assert all(entry.best_rank is not None for r in board.regimes for entry in r.entries)


@pytest.mark.parametrize("change", ["attacks", "samples"])
def test_contradictory_answers_of_a_stranger_are_refused(tmp_path: Path, change: str) -> None:
    suite = write_small_suite(tmp_path, ("one",))
    entry = suite.recordings[1]
    answers = read_answers(tmp_path / entry.answers.path)
    scores = dict(answers.by_attack)
    if change == "attacks":
        del scores["weak"]
    kept = slice(0, None if change == "attacks" else 150)
    write_answers(
        Answers(answers.is_member[kept], {name: each[kept] for name, each in scores.items()}),
        tmp_path / entry.answers.path,
    )
    changed = entry.model_copy(update={"answers": stored_file(tmp_path, entry.answers.path)})
    write_suite(suite.model_copy(update={"recordings": [suite.recordings[0], changed]}), tmp_path)
    with pytest.raises(Damaged, match=r"different attacks|other samples"):
        catalogue_leaderboard(tmp_path)


HOSTILE = '''
import gc, os, sys
from pathlib import Path
import numpy as np, torch


def _reachable():
    """Yield all objects of this process that could contain the answers."""
    frame = sys._getframe()
    while frame is not None:
        yield from frame.f_locals.values()
        yield from frame.f_globals.values()
        frame = frame.f_back
    for module in list(sys.modules.values()):
        yield from list(vars(module).values()) if hasattr(module, "__dict__") else []
    yield from gc.get_objects()


def attack(signals, target):
    n = signals["loss"].values.shape[2]
    found = []
    for value in _reachable():
        if isinstance(value, (torch.Tensor, np.ndarray)) and tuple(value.shape) == (n,):
            values = np.asarray(value)
            if values.dtype == bool or set(np.unique(values).tolist()) <= {0, 1}:
                found.append("an array of booleans")
    texts = [*sys.argv, *os.environ.values(), os.getcwd()]
    texts += [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
              if os.path.exists(f"/proc/self/fd/{fd}")]
    found += [text for text in texts if "/answers" in text or SUITE in text]
    here = Path(os.getcwd())
    found += [str(path) for path in here.rglob("*") if path.name not in ("signals", "scores")]
    if found:
        raise RuntimeError(f"found {found}")
    return np.arange(n) * 1.0
'''


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_hostile_attack_finds_no_answers_in_its_process(suite: Path, tmp_path: Path) -> None:
    # The name of the folder is given to the attack only for the test.
    body = f"SUITE = {suite.name[:4]!r} + {suite.name[4:]!r}\n{HOSTILE}"
    board = score_attack(attack_file(tmp_path, body), suite)
    own = board.regimes[0].of("mine")
    # Positions of samples reveal nothing, since they are drawn again.
    assert own.auc.low < 0.5 < own.auc.high
    order = next(control for control in board.controls if control.name == "order of samples")
    assert not order.passed
    assert "have another order" in order.result


ORDER = """\
import torch

def attack(signals, target):
    scores = signals["loss"].of(target).double().mean(0)
    scores = scores + torch.arange(len(scores)) * {step}
    scores[scores.argmin()] = {lowest}
    return scores
"""


@pytest.mark.parametrize(
    ("step", "lowest", "passed"),
    [(1.0, 0.0, False), (1.0, -1e9, False), (1e300, -1e307, False), (1e-9, -1e9, True)],
)
@pytest.mark.usefixtures("in_this_process")
def test_an_outlier_does_not_hide_scores_that_depend_on_the_order(
    suite: Path, tmp_path: Path, step: float, lowest: float, passed: bool
) -> None:
    board = score_attack(attack_file(tmp_path, ORDER.format(step=step, lowest=lowest)), suite)
    order = next(control for control in board.controls if control.name == "order of samples")
    assert order.passed is passed


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_must_be_above_zero(suite: Path, tmp_path: Path, timeout: float) -> None:
    with pytest.raises(BadInput, match="number of seconds above 0"):
        score_attack(attack_file(tmp_path, MEAN), suite, timeout=timeout)


def test_a_suite_without_answers_cannot_be_scored(suite: Path, tmp_path: Path) -> None:
    published = tmp_path / "published"
    shutil.copytree(suite, published, ignore=shutil.ignore_patterns("answers"))
    with pytest.raises(BadInput, match="published without answers"):
        score_attack("loss-series", published)


@pytest.mark.usefixtures("in_this_process")
def test_constant_scores_fail_a_control(suite: Path, tmp_path: Path) -> None:
    body = "def attack(signals, target):\n    return [0.0] * signals['loss'].values.shape[2]\n"
    board = score_attack(attack_file(tmp_path, body), suite)
    constant = next(control for control in board.controls if control.name == "scores differ")
    assert not constant.passed
    assert board.regimes[0].of("mine").auc.value == 0.5
    assert "control failed" in "\n".join(terminal_lines(board)).lower()


FAILING = """\
import os
from pathlib import Path

requests = Path(os.environ["COUNTED_REQUESTS"])
requests.write_text(requests.read_text() + "x")
if requests.read_text() == "x":
    raise SystemExit(0)

def attack(signals, target):
    requests.write_text(requests.read_text() + "x")
    if len(requests.read_text()) == 3:
        return [float("nan")] * 200
    if len(requests.read_text()) == 4:
        return 1 / 0
    os._exit(3)
"""


def test_a_failing_attack_gives_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The attack fails in another way at each request, so that one process is enough.
    monkeypatch.setenv("COUNTED_REQUESTS", str(tmp_path / "requests"))
    (tmp_path / "requests").touch()
    seen, _ = signals(1)
    with attack_process(attack_file(tmp_path, FAILING), 600) as process:
        for message in (
            "raised SystemExit",
            "200 of 200 scores",
            r"ZeroDivisionError.*mine.py, line 14",
            r"ended \(exit code 3\)",
        ):
            with pytest.raises(BadInput, match=message) as caught:
                process.scores(seen, np.random.default_rng(0))
            assert "\n" not in str(caught.value)


def test_an_attack_that_takes_too_long_is_stopped_with_the_processes_that_it_started(
    suite: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    body = (
        "import subprocess\n\ndef attack(signals, target):\n"
        "    process = subprocess.Popen(['sleep', '300'])\n"
        f"    open({str(pid_file)!r}, 'w').write(str(process.pid))\n"
        "    while True: pass\n"
    )
    with pytest.raises(BadInput, match="took more than 1 s") as caught:
        score_attack(attack_file(tmp_path, body), suite, timeout=1)
    assert str(caught.value).startswith("one-1: ")
    assert "\n" not in str(caught.value)
    status = Path(f"/proc/{pid_file.read_text()}/stat")
    # A process that nobody waits for may be left as a zombie.
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_output_of_an_attack_does_not_disturb_the_protocol(
    suite: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = (
        "import os\n"
        "def attack(signals, target):\n"
        "    print('printed by the attack'); os.write(1, b'and below Python')\n"
        "    assert input_is_empty()\n"
        "    return signals['loss'].of(target).mean(0)\n"
        "def input_is_empty():\n"
        "    return os.read(0, 10) == b''\n"
    )
    board = score_attack(attack_file(tmp_path, body), suite)
    assert board.regimes[0].of("mine").auc == board.regimes[0].of("good").auc
    captured = capfd.readouterr()
    assert "printed by the attack" in captured.err
    assert captured.out == ""


def test_pages_have_every_attack_and_escape_names(board: Leaderboard) -> None:
    entries = board.regimes[0].entries
    renamed = board.model_copy(
        update={
            "attack": "<i>mine",
            "regimes": [
                regime.model_copy(
                    update={
                        "entries": [
                            entry.model_copy(update={"attack": "<i>mine"})
                            if entry.attack == "mine"
                            else entry
                            for entry in regime.entries
                        ]
                    }
                )
                for regime in board.regimes
            ],
        }
    )
    for text in (leaderboard_html(renamed), markdown_page(renamed)):
        assert "<i>" not in text
        assert all(text.count(entry.attack) >= 2 for entry in entries if entry.attack != "mine")
        assert f"{entries[0].auc.value:.3f}" in text


def test_a_leaderboard_is_read_from_its_json(board: Leaderboard) -> None:
    import json

    values = json.loads(leaderboard_text(board))
    del values["digest"]
    assert Leaderboard.model_validate(values) == board


def test_the_command_writes_page_and_figures(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attack_file(tmp_path, MEAN)
    monkeypatch.chdir(tmp_path)
    assert exit_code("score", "mine.py", "--suite", suite) == 0
    assert "AUC on one: " in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} >= {
        "score-mine.html",
        "score-mine.json",
        "score-mine.md",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", "absent.py"), "absent.py does not exist"),
        (("score", "mine.py"), "there is no benchmark in runs/benchmark; build it with `fedaudit"),
        (("score", "mine.py", "--out", "mine.py"), "would be an HTML page"),
        (("benchmark", "nist"), "there is no regime named 'nist'; did you mean 'mnist'?"),
    ],
)
def test_errors_are_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    attack_file(tmp_path, MEAN)
    monkeypatch.chdir(tmp_path)
    assert exit_code(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().count("\n") == 0
    assert not (tmp_path / "runs").exists() or arguments[0] == "benchmark"


def test_answers_of_the_small_suite_belong_to_its_signals(suite: Path) -> None:
    seen, is_member = signals(1)
    answers = read_answers(suite / "answers" / "one-1.safetensors")
    assert np.array_equal(answers.is_member, is_member)
    assert np.array_equal(answers.by_attack["good"], known_attacks(seen, 1)["good"])


def test_arguments_and_environment_do_not_show_the_callers_folder(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = tmp_path / "folder-of-the-caller"
    caller.mkdir()
    monkeypatch.chdir(caller)
    monkeypatch.setenv("PWD", str(caller))
    body = (
        "import os, pathlib, sys\n"
        "def attack(signals, target):\n"
        "    line = pathlib.Path('/proc/self/cmdline')\n"
        "    shown = [*sys.argv, *os.environ.values(), os.getcwd()]\n"
        "    shown += [line.read_text()] if line.exists() else []\n"
        "    assert not [text for text in shown if 'of-the-caller' in text], shown\n"
        "    return signals['loss'].of(target).mean(0)\n"
    )
    board = score_attack(attack_file(tmp_path, body), suite)
    assert all(control.passed for control in board.controls)


def test_a_process_that_is_interrupted_at_its_start_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = []

    class Popen(subprocess.Popen[str]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(AttackProcess, "_reply", interrupt)
    with pytest.raises(KeyboardInterrupt):
        AttackProcess("loss-series", tmp_path, 1.0)
    (process,) = started
    assert process.returncode is not None


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (MEAN, 0),
        (MEAN.rstrip() + " * 0\n", 1),
        ("def attack(signals, target):\n    return None\n", 2),
    ],
)
def test_the_exit_code_states_whether_controls_passed(
    body: str, code: int, suite: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = ["score", attack_file(tmp_path, body), "--suite", suite, "--out", page]
    assert exit_code(*words) == code
    assert page.is_file() == (code != 2)


def test_a_stopped_score_ends_with_one_sentence(
    suite: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scoring, "score_attack", stop)
    assert exit_code("score", "loss-series", "--suite", suite, "--out", tmp_path / "a.html") == 130
    assert capsys.readouterr().err == (
        "fedaudit: stopped; no page was written, and the same command starts from the beginning\n"
    )
