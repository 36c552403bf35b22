"""A guard with edited folders, full disks, several threads, and reversed or absorbed leaks."""

import json
import resource
import shutil
import signal
from pathlib import Path
from threading import Thread

import pytest

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.live.attack import attack_recording
from fedaudit.live.decisions import DECISIONS_FILE, read_decisions
from fedaudit.results.record import Record
from tests.guard.client import CLIENT, State, data, guard, honest, initial, memorising, trained
from tests.study.studies import SMALL


def lines_of(folder: Path) -> list[str]:
    return (folder / DECISIONS_FILE).read_text().splitlines()


def write_lines(folder: Path, lines: list[str]) -> None:
    (folder / DECISIONS_FILE).write_text("".join(f"{line}\n" for line in lines))


def test_a_forged_log_line_does_not_release_an_upload(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.check(1, sent=initial(), upload=honest())
        opened.check(2, sent=initial(), upload=memorising())
    sent, withheld = map(json.loads, lines_of(tmp_path))
    forged = {**sent, "upload": withheld["upload"], "released": withheld["upload"]}
    write_lines(tmp_path, [json.dumps(forged)])
    with guard(tmp_path) as again:
        assert again.check(1, sent=initial(), upload=memorising()) is None
    assert "a new measurement differs" in again.decisions[-1].reason


def test_a_forged_measurement_does_not_release_an_upload(
    tmp_path: Path,
) -> None:
    lax, strict = tmp_path / "lax", tmp_path / "strict"
    with guard(lax, limit=0.95) as opened:
        assert opened.check(1, sent=initial(), upload=memorising()) is not None
    shutil.copytree(lax, strict)
    with guard(strict) as again:
        assert again.check(1, sent=initial(), upload=memorising()) is None


def test_a_log_that_lists_an_upload_twice_is_refused(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.check(1, sent=initial(), upload=honest())
    write_lines(tmp_path, lines_of(tmp_path) * 2)
    with pytest.raises(Damaged, match="lists an upload twice"):
        guard(tmp_path)


def test_an_older_log_is_refused_and_keeps_the_measurements(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        for number in (1, 2, 3):
            opened.check(number, sent=initial(), upload=honest())
    write_lines(tmp_path, lines_of(tmp_path)[:1])
    with pytest.raises(Damaged, match="so it may be an older copy"):
        guard(tmp_path)
    assert len([*(tmp_path / "measured").iterdir()]) == 3


def record_without_line(folder: Path, *removed: int) -> Record:
    """Return the record of attacks on a guard with two sent uploads, without lines of its log."""
    second = trained(honest(), data().split.train[CLIENT].tolist(), epochs=1, seed=3)
    with guard(folder, limit=0.65) as opened:
        assert opened.check(1, sent=initial(), upload=honest()) is not None
        assert opened.check(2, sent=honest(), upload=second) is not None
    lines = [line for number, line in enumerate(lines_of(folder), 1) if number not in removed]
    write_lines(folder, lines)
    figures = SMALL["figures"]
    return attack_recording(folder, ["blackbox-loss"], folder / "attacked", figures=figures)


def test_attacks_are_refused_if_the_log_lacks_decisions_on_measured_uploads(
    tmp_path: Path,
) -> None:
    with pytest.raises(Damaged, match="so it may be an older copy"):
        record_without_line(tmp_path, 1, 2)


def test_a_record_states_that_the_log_lacks_a_decision(tmp_path: Path) -> None:
    record = record_without_line(tmp_path, 2)
    (stated,) = [text for text in record.untested if "no decision on it" in text]
    assert stated.startswith("Whether the upload of round 2 was sent")
    assert not [
        text for text in record_without_line(tmp_path / "whole").untested if "no dec" in text
    ]


def test_attacks_are_refused_if_a_sent_upload_has_no_measurement(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.check(1, sent=initial(), upload=honest())
        opened.check(2, sent=initial(), upload=memorising())
    forged = [line.replace('"withheld"', '"sent"') for line in lines_of(tmp_path)]
    write_lines(tmp_path, forged)
    with pytest.raises(Damaged, match="lacks the measurements of round 2, whose upload was sent"):
        attack_recording(tmp_path, ["blackbox-loss"], tmp_path / "attacked")


def test_a_withheld_upload_is_measured_again_for_another_policy(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        assert opened.check(1, sent=initial(), upload=memorising()) is None
    with guard(tmp_path, limit=0.95) as again:
        assert again.check(1, sent=initial(), upload=memorising()) is not None


def reversed_update(update: State) -> State:
    return {name: -value for name, value in update.items()}


def test_a_leak_that_a_filter_reverses_is_withheld(tmp_path: Path) -> None:
    with guard(tmp_path, filter=reversed_update) as opened:
        assert opened.check(1, sent=initial(), upload=memorising()) is None
    (decision,) = opened.decisions
    assert decision.worst is not None
    assert decision.worst.value < 0.4
    assert all(figure.high <= 0.6 for figure in decision.figures)
    assert f", at least {decision.worst.low:.3f} (avg-cosine)" in str(decision)


def test_an_update_that_the_received_model_absorbs_is_withheld(tmp_path: Path) -> None:
    change = {name: memorising()[name] - value for name, value in initial().items()}
    large = {name: value + 1e9 for name, value in initial().items()}
    with guard(tmp_path) as opened:
        assert opened.check(1, sent=large, upload=change, is_update=True) is None
    assert "lost to rounding" in opened.decisions[-1].reason


def test_a_small_update_of_an_ordinary_model_is_sent(tmp_path: Path) -> None:
    # About the smallest step of training in single precision.
    change = {n: 1e-5 * (honest()[n] - v) for n, v in initial().items()}
    computed = {n: (v + change[n]) - v for n, v in initial().items()}
    with guard(tmp_path) as opened:
        assert opened.check(1, sent=initial(), upload=computed, is_update=True) is not None


def test_threads_get_the_answers_to_their_own_uploads(tmp_path: Path) -> None:
    leaving = dict[int, bool]()

    def send(number: int) -> None:
        upload = honest() if number % 2 else memorising()
        leaving[number] = opened.check(number, sent=initial(), upload=upload) is not None

    with guard(tmp_path) as opened:
        threads = [Thread(target=send, args=(number,)) for number in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert leaving == {number: number % 2 == 1 for number in range(1, 7)}


def test_the_number_of_workers_does_not_change_estimates(tmp_path: Path) -> None:
    with guard(tmp_path / "one") as one, guard(tmp_path / "two", workers=2) as two:
        for opened in (one, two):
            opened.check(1, sent=initial(), upload=honest())
    assert one.decisions == two.decisions
    with pytest.raises(BadInput, match="workers"):
        guard(tmp_path / "none", workers=0)


@pytest.mark.parametrize("limit", [100, 600, 800, 2000, 9000, 20_000])
def test_on_a_full_disk_an_upload_is_sent_only_with_its_decision(
    limit: int, tmp_path: Path
) -> None:
    second = trained(honest(), data().split.train[CLIENT].tolist(), epochs=1, seed=3)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with guard(tmp_path) as opened:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            leaving = {
                1: opened.check(1, sent=initial(), upload=honest()),
                2: opened.check(2, sent=honest(), upload=second),
            }
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
    sent = {decision.round for decision in read_decisions(tmp_path) if decision.was_sent}
    assert {number for number, upload in leaving.items() if upload is not None} == sent
    with guard(tmp_path) as again:
        assert again.check(1, sent=initial(), upload=honest()) is not None
