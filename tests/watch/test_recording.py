"""The state of a live recording and of a guard, between their rounds."""

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest

from fedaudit.core.files import RECORDING_FILE
from fedaudit.live.attack import attack_recording
from fedaudit.live.decisions import DECISIONS_FILE
from fedaudit.live.recording import LOG_FILE
from fedaudit.watch.folder import AuditFolder, state_of
from fedaudit.watch.text import view_of
from tests.guard import client
from tests.live.federation import ROUNDS, recorder, rounds
from tests.study.studies import SMALL


def record_rounds(folder: Path, count: int = ROUNDS, absent: int | None = None) -> None:
    """Record some rounds and close the recording; one client may miss the last one."""
    with recorder(folder, strict=False, keep="signals") as live:
        for each in islice(rounds(), count):
            uploads = dict(each.uploads)
            if each.number == count and absent is not None:
                del uploads[absent]
            live.round(each.number, sent=each.sent, uploads=uploads, selected=[0, 1, 2])


def test_an_open_recording_shows_its_rounds_and_no_verdict(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    live = recorder(folder)
    assert state_of(folder).phase == "waiting"
    watched = AuditFolder(folder)
    for each in rounds():
        live.round(each.number, sent=each.sent, uploads=each.uploads)
        state = watched.state()
        assert (state.kind, state.phase) == ("recording", "recording")
        assert [row.round for row in state.runs[0].estimates] == [*range(1, each.number + 1)]
        assert state.result is None
        assert state.seconds_left is None, "the loop does not state its number of rounds"
    live.close()
    assert watched.state().phase == "finished"
    assert watched.state().result is None, "no attack has run"


def test_figures_of_a_recording_are_those_of_its_record(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    record_rounds(folder)
    last = state_of(folder).runs[0].estimates[-1]
    record = attack_recording(folder, (), folder / "attacked", figures=SMALL["figures"])
    for name, auc in last.clients:
        estimates = [
            estimate
            for estimate in record.findings
            if (estimate.metric, estimate.contrast, estimate.attack)
            == ("auc", "unseen", auc.attack)
            if estimate.target == int(name.removeprefix("client "))
        ]
        assert [(e.value, e.low, e.high) for e in estimates] == [(auc.value, auc.low, auc.high)]


def test_an_attacked_recording_has_the_verdict_if_it_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    record_rounds(folder)
    attack_recording(folder, (), folder / "attacked", figures=SMALL["figures"])
    assert state_of(folder).result is not None
    settings = json.loads((folder / RECORDING_FILE).read_text(encoding="utf-8"))
    (folder / RECORDING_FILE).write_text(json.dumps({**settings, "is_closed": False}))
    state = state_of(folder)
    assert state.result is None, "rounds may follow"
    assert state.has_report
    assert any("rounds up to round 4" in note for note in state.notes)


def test_the_client_that_missed_the_last_round_is_named(tmp_path: Path) -> None:
    record_rounds(tmp_path / "live", absent=1)
    clients = state_of(tmp_path / "live").clients
    assert clients is not None
    assert (clients.round, clients.n_received, clients.expected) == (ROUNDS, 2, 3)
    assert clients.missing == ("client 1",)


def test_an_incomplete_line_of_the_log_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    record_rounds(folder)
    with (folder / LOG_FILE).open("a") as log:
        log.write('{"round": 5, "selec')
    state = state_of(folder)
    assert state.problems == ()
    assert state.runs[0].done == ROUNDS


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    record_rounds(folder)
    (folder / LOG_FILE).write_text("nonsense\n")
    state = AuditFolder(folder, clock=lambda: 1e12).state()
    assert LOG_FILE in state.problems[0]
    assert len(state.runs[0].estimates) == ROUNDS


def test_a_round_of_another_recording_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        record_rounds(tmp_path / name)
    path = Path("measured") / "round-000002.safetensors"
    shutil.copy(tmp_path / "one" / path, tmp_path / "two" / path)
    state = AuditFolder(tmp_path / "two", clock=lambda: 1e12).state()
    assert [row.round for row in state.runs[0].estimates] == [1, 3, 4]
    assert "belongs to another recording" in state.problems[0]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a guard that sent one upload and withheld another."""
    folder = tmp_path_factory.mktemp("guard")
    with client.guard(folder) as guard:
        guard.check(1, sent=client.initial(), upload=client.honest())
        guard.check(2, sent=client.initial(), upload=client.memorising())
    return folder


def test_a_guard_shows_what_it_sent_and_withheld(guarded: Path) -> None:
    state = state_of(guarded)
    assert state.kind == "guard"
    assert state.guard is not None
    assert (state.guard.count("sent"), state.guard.count("withheld")) == (1, 1)
    assert state.guard.limit == 0.6
    assert "withheld" in state.guard.last
    worst = [upload.auc.value for upload in state.guard.uploads if upload.auc]
    assert worst[0] < 0.6 < worst[1]


def test_the_page_of_a_guard_draws_both_uploads(guarded: Path) -> None:
    view = view_of(state_of(guarded))
    assert view.headline == "2 uploads checked: 1 sent, 1 withheld"
    assert view.figure is not None
    assert len(view.figure.choices[0].panels[0].points) == 2


def test_a_damaged_log_of_decisions_is_named(guarded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    shutil.copytree(guarded, folder)
    (folder / DECISIONS_FILE).write_text("nonsense\n")
    state = AuditFolder(folder, clock=lambda: 1e12).state()
    assert state.guard is None
    assert DECISIONS_FILE in state.problems[0]
