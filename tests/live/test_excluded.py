"""Rounds with excluded uploads."""

from pathlib import Path

import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_round_log
from tests.live.federation import measured, recorder, rounds
from tests.study.studies import SMALL

WHY = "its arrays cannot be read"


def test_an_excluded_client_does_not_affect_others(
    tmp_path: Path,
) -> None:
    live = next(rounds())
    others = {client: live.uploads[client] for client in (0, 2)}
    warning = f"round 1 is recorded without client 1: {WHY}"
    with (
        recorder(tmp_path / "a", strict=False) as recording,
        pytest.warns(RuntimeWarning, match=warning),
    ):
        recording.round(1, sent=live.sent, uploads=others, after=live.after, unreadable={1: WHY})
    with recorder(tmp_path / "b") as recording:
        recording.round(1, sent=live.sent, uploads=others, after=live.after)
    actual, expected = measured(tmp_path / "a"), measured(tmp_path / "b")
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[key], expected[key]) for key in actual)
    (entry,) = read_round_log(tmp_path / "a")
    assert (entry.answered, entry.excluded, entry.measured) == ((0, 1, 2), {1: WHY}, True)


def test_an_excluded_client_is_listed_as_untested(tmp_path: Path) -> None:
    first, *later = rounds()
    others = {client: first.uploads[client] for client in (0, 2)}
    with recorder(tmp_path, strict=False) as recording:
        with pytest.warns(RuntimeWarning):
            recording.round(
                1, sent=first.sent, uploads=others, after=first.after, unreadable={1: WHY}
            )
        for live in later:
            recording.round(live.number, sent=live.sent, uploads=live.uploads, after=live.after)
    record = attack_recording(tmp_path, (), tmp_path / "out", figures=SMALL["figures"])
    assert f"The upload of client 1 in round 1: {WHY}" in record.untested


def test_uploads_of_unknown_clients_are_noted_and_the_round_is_measured(tmp_path: Path) -> None:
    live = next(rounds())
    others = {client: live.uploads[client] for client in (0, 2)}
    warning = "round 1 is not recorded in full: who sent it"
    with recorder(tmp_path, strict=False) as recording, pytest.warns(RuntimeWarning, match=warning):
        recording.round(
            1, sent=live.sent, uploads=others, unnamed=1, unattributed_fault="who sent it"
        )
    (entry,) = read_round_log(tmp_path)
    assert (entry.unnamed, entry.note, entry.measured) == (1, "who sent it", True)


def test_a_sum_without_one_of_its_uploads_is_not_recorded(tmp_path: Path) -> None:
    live = next(rounds())
    others = {client: live.uploads[client] for client in (0, 2)}
    recording = recorder(tmp_path, strict=False, view="sum", attacks=())
    with pytest.warns(RuntimeWarning, match=f"round 1 is not recorded: upload of client 1: {WHY}"):
        recording.round(1, sent=live.sent, uploads=others, unreadable={1: WHY})
    with pytest.warns(RuntimeWarning, match="1 of 1 rounds are not recorded"):
        recording.close()
    assert not read_round_log(tmp_path)[0].measured


def test_a_strict_recording_stops_at_an_excluded_client(tmp_path: Path) -> None:
    live = next(rounds())
    with recorder(tmp_path) as recording, pytest.raises(BadInput, match=WHY):
        recording.round(1, sent=live.sent, uploads={0: live.uploads[0]}, unreadable={1: WHY})
