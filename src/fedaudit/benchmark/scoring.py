"""Scoring of an attack in its own process on a suite, and the leaderboard of the catalogue."""

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import IO

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.stats import rankdata

from fedaudit.benchmark.leaderboard import (
    Control,
    Leaderboard,
    ScoredRecording,
    n_comparisons,
    regime_board,
)
from fedaudit.benchmark.suite import (
    SUITE_FILE,
    Answers,
    RecordingEntry,
    Signals,
    Suite,
    checked_scores,
    read_answers,
    read_signals,
    read_suite,
    suite_text,
    write_signals,
)
from fedaudit.core.errors import BadInput, Damaged, format_option
from fedaudit.core.files import MAX_USER_FILE_BYTES, read_bytes
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.metrics import permuted_membership

TIMEOUT = 600.0
"""Default maximum number of seconds that an attack may take for one recording."""
_PERMUTATIONS = 200
_MIN_RANK_CORRELATION = 0.999
"""Smallest rank correlation of the scores in two orders of samples, which allows for rounding."""
_MAX_ATTACKS = 200
"""Maximum number of attacks of a suite, since all pairs are compared."""
_RESTORE = "restore the benchmark from a copy, or build it again"
_MAX_REPLY = 100_000
"""Maximum number of characters of a reply, which the code of an attack may have written."""
_MAX_START_SECONDS = 600.0
_FOLDERS = ("PWD", "OLDPWD")
"""Environment variables that contain the folder of the caller."""


class AttackProcess:
    """Process that runs an attack on signals; see :mod:`fedaudit.benchmark.child`.

    It receives the signals of one recording at a time, in a random order of samples. It receives no
    path of the suite, and no membership. The code of an attack could still search the disk for
    files of the same user.
    """

    def __init__(self, reference: str, scratch: Path, timeout: float) -> None:
        self._scratch, self._timeout = scratch, timeout
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedaudit.benchmark.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=scratch,
            # Neither the arguments nor the environment show the folder of the caller, which may
            # contain the benchmark.
            env={name: value for name, value in os.environ.items() if name not in _FOLDERS},
            text=True,
            # Processes that the attack starts are stopped with it.
            start_new_session=True,
        )
        attack = {"attack": reference, "folder": str(Path.cwd())}
        try:
            # Imports are slow on a busy computer, and no fault of the attack.
            self._reply(attack, _MAX_START_SECONDS)
        except BaseException:
            # The caller has no object yet that it could close, for example after Ctrl-C.
            self.close()
            raise

    def scores(self, signals: Signals, rng: np.random.Generator) -> Float[ndarray, " samples"]:
        """Return the attack's score of each sample.

        Args:
            signals: Signals of a recording.
            rng: Draws the order in which the attack receives the samples.

        Raises:
            BadInput: The attack failed, took too long, or returned something other than scores.
        """
        order = rng.permutation(signals.samples)
        input_file, output_file = self._scratch / "signals", self._scratch / "scores"
        write_signals(signals.in_order(order), input_file, durable=False)
        output_file.unlink(missing_ok=True)
        request = {"signals": str(input_file), "scores": str(output_file)}
        self._reply(request, self._timeout)
        values = np.frombuffer(_content(output_file, 8 * signals.samples), dtype="<f8")
        scores = np.empty(signals.samples)
        scores[order] = checked_scores(values, signals.samples)
        return scores

    def close(self) -> None:
        """Stop the process, and all processes that it has started."""
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            # A request that was not sent yet cannot be sent to a process that has ended.
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def _kill(self) -> None:
        # The group exists as long as one of its processes does.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reply(self, request: dict[str, str], timeout: float) -> None:
        """Send a request, and wait for its reply."""
        expired = False

        def stop() -> None:
            nonlocal expired
            expired = True
            self._kill()

        timer = Timer(timeout, stop)
        timer.start()
        try:
            error = self._exchange(request)
        finally:
            timer.cancel()
        if expired:
            raise BadInput(
                f"the attack took more than {timeout:g} s for one recording; make it faster, or "
                f"raise {format_option('timeout')}"
            )
        if error is None:
            raise BadInput(
                f"the process of the attack ended (exit code {self._process.wait()}) before it "
                "returned scores; run the attack in a script to debug it"
            )
        if error:
            raise BadInput(error)

    def _exchange(self, request: dict[str, str]) -> str | None:
        """Return the error that the process replies; None if it has ended."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        try:
            print(json.dumps(request), file=requests, flush=True)
            return _error_in(replies)
        except (OSError, ValueError):
            return None


def _error_in(replies: IO[str]) -> str:
    reply = json.loads(replies.readline(_MAX_REPLY))
    if not isinstance(reply, dict) or not isinstance(reply.get("error"), str):
        raise ValueError("not a reply")
    error: str = reply["error"]
    return error


def _content(path: Path, size: int) -> bytes:
    try:
        content = read_bytes(path, max_bytes=size)
    except (OSError, ValueError) as error:
        raise BadInput(f"the attack's scores cannot be read ({error}); start again") from error
    if len(content) != size:
        raise BadInput("the attack's scores are incomplete; start again")
    return content


@contextmanager
def attack_process(reference: str, timeout: float) -> Iterator[AttackProcess]:
    """Start the process of an attack, and stop it at the end of the context.

    Args:
        reference: ``file.py``, ``file.py:name``, ``module:object`` or a name of the catalogue.
            Files have absolute paths.
        timeout: Maximum number of seconds for one recording.
    """
    with tempfile.TemporaryDirectory(prefix="fedaudit-") as scratch:
        process = AttackProcess(reference, Path(scratch), timeout)
        try:
            yield process
        finally:
            process.close()


def score_attack(
    reference: str, folder: Path, *, timeout: float = TIMEOUT, progress: Progress = ignore_progress
) -> Leaderboard:
    """Run an attack on all recordings of a suite, and compare it with the catalogue's attacks.

    The attack runs in another process, which receives the signals in a random order of samples and
    returns scores. The true membership stays in this process.

    Args:
        reference: ``file.py``, ``file.py:name``, ``module:object`` or a name of the catalogue. Its
            code is run.
        folder: Folder of the suite.
        timeout: Maximum number of seconds for one recording.
        progress: Called with (phase, done, total).

    Raises:
        BadInput: There is no suite or no such attack, the attack fails or returns no scores, or
            the timeout is not above 0.
        Damaged: A file of the suite was changed.
    """
    if not timeout > 0:
        raise BadInput(
            f"{format_option('timeout')} is a number of seconds above 0, got {timeout:g}"
        )
    path, name = _file_of(reference), reference
    suite = read_suite(folder)
    if path is not None:
        name = reference.replace(str(path), path.stem).removesuffix(":attack")
        reference = reference.replace(str(path), str(path.absolute()))
    # The order of samples must not be predictable by the attack.
    rng = np.random.default_rng(secrets.randbits(128))
    phase, total = "scores of the attack", len(suite.recordings) + 1
    own = dict[str, Float[ndarray, " samples"]]()
    with attack_process(reference, timeout) as process:
        for done, entry in enumerate(suite.recordings):
            progress(phase, done, total)
            own[entry.name] = _scores(process, folder, entry, rng)
        progress(phase, total - 1, total)
        smallest = min(suite.recordings, key=lambda entry: entry.samples)
        again = _scores(process, folder, smallest, rng)
        progress(phase, total, total)
    answers = _all_answers(suite, folder)
    while name in next(iter(answers.values())).by_attack:
        name += " (scored)"
    scored = {
        entry.name: _scored(answers[entry.name], {name: own[entry.name]})
        for entry in suite.recordings
    }
    controls = [
        _permutation_control(list(scored.values()), name),
        _constant_control(own),
        _order_control(smallest.name, own[smallest.name], again),
    ]
    board = _board(suite, scored, name, progress)
    code = ""
    if path is not None:
        content = read_bytes(path, max_bytes=MAX_USER_FILE_BYTES)
        code = hashlib.sha256(content).hexdigest()
    return board.model_copy(update={"controls": controls, "code": code})


def catalogue_leaderboard(folder: Path, *, progress: Progress = ignore_progress) -> Leaderboard:
    """Compare all attacks of the catalogue with each other on a suite.

    Raises:
        BadInput: There is no suite in the folder.
        Damaged: A file of the suite was changed.
    """
    suite = read_suite(folder)
    scored = {name: _scored(each, {}) for name, each in _all_answers(suite, folder).items()}
    return _board(suite, scored, "", progress)


def _file_of(reference: str) -> Path | None:
    """Return the path of ``file.py`` or ``file.py:name``; None for another reference."""
    path, _, name = reference.partition(".py:")
    file = Path(f"{path}.py" if name else reference)
    if file.suffix != ".py":
        return None
    if not file.is_file():
        raise BadInput(f"{file} does not exist; give the Python file of an attack")
    return file


def _scores(
    process: AttackProcess, folder: Path, entry: RecordingEntry, rng: np.random.Generator
) -> Float[ndarray, " samples"]:
    signals = read_signals(folder / entry.signals.path)
    if (signals.samples, signals.target) != (entry.samples, entry.target):
        raise Damaged(f"{entry.signals.path} has other samples than {SUITE_FILE}; {_RESTORE}")
    try:
        return process.scores(signals, rng)
    except BadInput as error:
        raise BadInput(f"{entry.name}: {error}") from error


def _all_answers(suite: Suite, folder: Path) -> dict[str, Answers]:
    """Return the answers of each recording.

    Raises:
        Damaged: Recordings have scores of different attacks, or other numbers of samples than the
            suite states.
    """
    answers = {entry.name: read_answers(folder / entry.answers.path) for entry in suite.recordings}
    attacks = [{*each.by_attack} for each in answers.values()]
    counts = [len(each.is_member) for each in answers.values()]
    if any(names != attacks[0] for names in attacks) or not 0 < len(attacks[0]) <= _MAX_ATTACKS:
        raise Damaged(f"the recordings in {folder} have scores of different attacks; {_RESTORE}")
    if counts != [entry.samples for entry in suite.recordings]:
        raise Damaged(f"the answers in {folder} have other samples than {SUITE_FILE}; {_RESTORE}")
    return answers


def _scored(answers: Answers, own: Mapping[str, Float[ndarray, " samples"]]) -> ScoredRecording:
    return ScoredRecording(answers.is_member, {**own, **answers.by_attack})


def _board(
    suite: Suite,
    scored: Mapping[str, ScoredRecording],
    attack: str,
    progress: Progress,
) -> Leaderboard:
    n_attacks, n_regimes = len(next(iter(scored.values())).by_attack), len(suite.regimes)
    comparisons = n_comparisons(n_attacks, n_regimes, scored=bool(attack))
    done, total, phase = 0, comparisons + n_regimes * n_attacks, "confidence limits"
    progress(phase, done, total)

    def step() -> None:
        nonlocal done
        done += 1
        progress(phase, done, total)

    boards = [
        regime_board(
            regime.name,
            regime.about,
            [scored[entry.name] for entry in suite.of_regime(regime.name)],
            attack=attack,
            comparisons=comparisons,
            step=step,
        )
        for regime in suite.regimes
    ]
    return Leaderboard(
        attack=attack,
        comparisons=comparisons,
        seed=suite.seed,
        suite=hashlib.sha256(suite_text(suite).encode()).hexdigest(),
        fedaudit=suite.fedaudit,
        regimes=boards,
        warnings=[
            f"{regime.name}: the control {name!r} failed when the recordings were made"
            for regime in suite.regimes
            for name in regime.failed_controls
        ],
    )


def _permutation_control(scored: Sequence[ScoredRecording], attack: str) -> Control:
    """Check that shuffled membership gives an AUC at chance level."""
    rng = np.random.default_rng(0)
    nulls = [
        permuted_membership(
            each.by_attack[attack], each.is_member, rng=rng, permutations=_PERMUTATIONS
        )
        for each in scored
    ]
    alarms, shuffles = sum(null.alarms for null in nulls), _PERMUTATIONS * len(nulls)
    return Control(
        name="permuted membership",
        passed=all(null.passed for null in nulls),
        result=f"with shuffled membership, the mean AUC is "
        f"{np.mean([null.mean for null in nulls]):.3f}; {alarms} of {shuffles} intervals exclude "
        "0.5 (5 % are expected)",
    )


def _constant_control(own: Mapping[str, Float[ndarray, " samples"]]) -> Control:
    """Check that the scores of a recording differ."""
    constant = [name for name, scores in own.items() if len(np.unique(scores)) < 2]
    result = "the scores of every recording differ between samples"
    if constant:
        result = f"all scores are equal in {', '.join(constant)}, so that the AUC is 0.5"
    return Control(name="scores differ", passed=not constant, result=result)


def _order_control(
    recording: str, first: Float[ndarray, " samples"], second: Float[ndarray, " samples"]
) -> Control:
    """Check that the ranks of scores do not depend on the order of samples, except by rounding."""
    ranks, ranks_again = rankdata(first), rankdata(second)
    varies = len({*ranks}) > 1 and len({*ranks_again}) > 1
    # Ranks are used because a single large score would hide changes of all others.
    correlation = float(np.corrcoef(ranks, ranks_again)[0, 1]) if varies else 1.0
    passed = correlation >= _MIN_RANK_CORRELATION
    result = f"{recording} has the same ranking of samples in another order of samples"
    if not passed:
        result = (
            f"the ranking of {recording} changes if the samples have another order (rank "
            f"correlation {correlation:.3f}), or the attack draws random numbers that are not "
            "seeded in each call"
        )
    return Control(name="order of samples", passed=passed, result=result)
