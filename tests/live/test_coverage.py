"""Coverage of a recording: measured and missing rounds, and the gate."""

import json
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import policy_from
from fedaudit.gate.verdict import Check
from fedaudit.live.attack import attack_recording
from fedaudit.live.files import waiting_rounds
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import LOG_FILE, read_round_log
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import Record
from fedaudit.results.runs import Coverage
from tests.live.federation import POLICY, data, network, rounds
from tests.study.studies import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:fedaudit")
AUDIT = data().split.audit
LIVE_ROUNDS = list(rounds())
FIGURES: Mapping[str, object] = {**SMALL["figures"], "blind_classifier": False}


def broken(upload: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.full_like(value, torch.nan) for name, value in upload.items()}


def pass_rounds(
    recorder: Recorder,
    *numbers: int,
    without: Collection[int] = (),
    nan: Collection[int] = (),
    **settings: Any,
) -> None:
    """Tell of rounds, without some clients and with faulty uploads of others."""
    for live_round in LIVE_ROUNDS:
        if live_round.number in numbers:
            uploads = {
                client: broken(upload) if client in nan else upload
                for client, upload in live_round.uploads.items()
                if client not in without
            }
            recorder.round(
                live_round.number,
                sent=live_round.sent,
                uploads=uploads,
                selected=range(3),
                **settings,
            )


def opened(folder: Path, **settings: Any) -> Recorder:
    # One attack on updates is enough, since coverage does not depend on attacks.
    return record(folder, network, AUDIT, attacks=["avg-cosine"], log=lambda text: None, **settings)


def attacked(folder: Path) -> Record:
    return attack_recording(folder, (), folder / "attacked", figures=FIGURES)


def _record(attack: Path | Record) -> Record:
    """A record, or that of a recording which is attacked for it."""
    return attacked(attack) if isinstance(attack, Path) else attack


def coverage(attack: Path | Record) -> Coverage:
    of_record = _record(attack).coverage
    assert of_record is not None
    return of_record


def check(attack: Path | Record, policy: str = POLICY) -> Check:
    verdict = evaluate_policy(_record(attack), policy_from(policy))
    return next(
        check for check in verdict.checks if check.name.startswith("all planned measurements")
    )


def test_a_complete_recording_has_complete_coverage(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1, 2, 3)
    record = attacked(tmp_path)
    measured_coverage = coverage(record)
    assert (
        measured_coverage.rounds,
        measured_coverage.measured,
        measured_coverage.last_measured,
        measured_coverage.every,
    ) == (3, 3, 3, 1)
    assert measured_coverage.is_whole
    assert not measured_coverage.sampled_rounds
    assert [
        (c.client, c.answered, c.measured, c.first, c.last) for c in measured_coverage.clients
    ] == [(client, 3, 3, 1, 3) for client in range(3)]
    assert len(measured_coverage.identity) == 64
    assert check(record).outcome is Outcome.PASS


def test_a_possibly_aggregated_faulty_upload_makes_the_gate_inconclusive(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        pass_rounds(recorder, 2, 3, nan=[1])
    record = attacked(tmp_path)
    measured_coverage = coverage(record)
    assert (
        measured_coverage.measured,
        measured_coverage.n_missing_uploads,
        measured_coverage.n_missing_rounds,
    ) == (3, 2, 0)
    assert [
        (upload.client, upload.round, upload.aggregated)
        for upload in measured_coverage.missing_uploads
    ] == [
        (1, 2, True),
        (1, 3, True),
    ]
    assert (measured_coverage.clients[1].answered, measured_coverage.clients[1].measured) == (3, 1)
    judged = check(record)
    assert judged.outcome is Outcome.INCONCLUSIVE
    assert "client 1, round 2: its upload has" in judged.reason


@pytest.mark.parametrize("how", ["rejected", "after"])
def test_a_faulty_upload_that_the_server_rejected_is_not_missing(how: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = (
        {"rejected": [1]} if how == "rejected" else {"after": LIVE_ROUNDS[1].after}
    )
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        pass_rounds(recorder, 2, nan=[1], **settings)
    record = attacked(tmp_path)
    measured_coverage = coverage(record)
    assert measured_coverage.is_whole
    assert [
        (upload.client, upload.round, upload.aggregated)
        for upload in measured_coverage.missing_uploads
    ] == [(1, 2, False)]
    assert check(record).outcome is Outcome.PASS


def test_a_finite_model_does_not_show_that_a_faulty_upload_was_rejected(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as recorder:
        live_round = LIVE_ROUNDS[0]
        cut = {name: value[:1] for name, value in live_round.uploads[1].items()}
        recorder.round(
            1, sent=live_round.sent, uploads={**live_round.uploads, 1: cut}, after=live_round.after
        )
    assert coverage(tmp_path).n_missing_uploads == 1


def test_a_client_that_was_not_sampled_is_not_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        pass_rounds(recorder, 2, 3, without=[2])
    measured_coverage = coverage(tmp_path)
    assert measured_coverage.is_whole
    assert (
        measured_coverage.clients[2].answered,
        measured_coverage.clients[2].measured,
        measured_coverage.clients[2].last,
    ) == (
        1,
        1,
        1,
    )


def test_a_round_without_replies_is_not_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        pass_rounds(recorder, 2, without=[0, 1, 2])
        recorder.missed(3, "no client answered", answered=[])
    assert coverage(tmp_path).is_whole


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["failed", "unknown", "gap", "lost", "unlogged", "model"])
def test_an_unmeasured_round_is_missing_with_number_and_reason(cause: str, tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        if cause == "failed":
            recorder.missed(2, "no memory", answered=[0])
        elif cause == "unknown":
            recorder.missed(2, "no memory")
        elif cause == "model":
            recorder.round(2, sent={"x": torch.ones(1)}, uploads=LIVE_ROUNDS[1].uploads)
        elif cause != "gap":
            pass_rounds(recorder, 2)
        pass_rounds(recorder, 3)
    if cause == "lost":
        (tmp_path / "measured" / "round-000002.safetensors").unlink()
    if cause == "unlogged":
        lines = (tmp_path / LOG_FILE).read_text().splitlines(keepends=True)
        (tmp_path / LOG_FILE).write_text(lines[0] + lines[2])
    record = attacked(tmp_path)
    measured_coverage = coverage(record)
    reason = {
        "failed": "no memory",
        "unknown": "no memory",
        "gap": "the recorder did not receive it",
        "lost": "its measurements are missing",
        "unlogged": "its entry in the log is missing, so that the clients that replied are unknown",
        "model": "the model sent",
    }[cause]
    (span,) = measured_coverage.missing_rounds
    assert (span.first, span.last) == (2, 2)
    assert span.reason.startswith(reason)
    assert measured_coverage.n_missing_rounds == 1
    judged = check(record)
    assert judged.outcome is Outcome.INCONCLUSIVE
    assert "1 round (2)" in judged.reason
    assert reason in judged.reason


def test_queued_rounds_are_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
    recorder = opened(tmp_path, measure="after")
    pass_rounds(recorder, 2, 3)
    recorder.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    (span,) = coverage(tmp_path).missing_rounds
    assert (span.first, span.last, span.reason) == (2, 3, "still to be measured")


def test_an_upload_of_an_unknown_client_may_be_from_an_audited_client(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        recorder.round(
            2,
            sent=LIVE_ROUNDS[1].sent,
            uploads={0: LIVE_ROUNDS[1].uploads[0], -5: LIVE_ROUNDS[1].uploads[1]},
        )
    assert coverage(tmp_path).n_missing_uploads == 1


def test_a_failed_round_can_be_recorded_again(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        recorder.missed(2, "no memory", answered=[0, 1, 2])
        assert not recorder.has(2)
        pass_rounds(recorder, 2)
        pass_rounds(recorder, 3)
    assert coverage(tmp_path).is_whole


def test_sampled_rounds_are_judged_by_the_policy(tmp_path: Path) -> None:
    with opened(tmp_path, every=2) as recorder:
        pass_rounds(recorder, 1, 2, 3, 4)
    record = attacked(tmp_path)
    measured_coverage = coverage(record)
    assert (measured_coverage.rounds, measured_coverage.measured, measured_coverage.every) == (
        4,
        2,
        2,
    )
    assert measured_coverage.is_whole
    assert measured_coverage.sampled_rounds
    assert check(record).outcome is Outcome.INCONCLUSIVE
    assert "one in 2 rounds was measured" in check(record).reason
    allowed = check(record, POLICY + "sampled_rounds = true\n")
    assert (allowed.outcome, allowed.name) == (
        Outcome.PASS,
        "all planned measurements of the sampled rounds",
    )


@pytest.mark.slow
def test_the_globals_view_has_coverage_of_rounds(tmp_path: Path) -> None:
    with record(tmp_path, network, AUDIT, view="globals", log=lambda text: None) as recorder:
        for live_round in LIVE_ROUNDS[:3]:
            recorder.round(live_round.number, sent=live_round.sent, after=live_round.after)
        recorder.missed(4, "no memory", answered=[])
    measured_coverage = coverage(tmp_path)
    assert (measured_coverage.measured, measured_coverage.n_missing_rounds) == (3, 1)
    assert [client.measured for client in measured_coverage.clients] == [3, 3, 3]


@pytest.mark.slow
def test_coverage_identity_is_unique_per_run(tmp_path: Path) -> None:
    identities = []
    for name, numbers in (("a", (1, 2)), ("b", (1, 2)), ("c", (1, 3))):
        with opened(tmp_path / name) as recorder:
            pass_rounds(recorder, *numbers)
        identities.append(coverage(tmp_path / name).identity)
    assert identities[0] == identities[1] != identities[2]


def test_another_run_in_the_same_folder_counts_separately(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1, 2)
    recorder = opened(tmp_path)
    for live_round in LIVE_ROUNDS[:2]:
        sent = {name: value + 1 for name, value in live_round.sent.items()}
        recorder.round(live_round.number, sent=sent, uploads=live_round.uploads)
    with pytest.warns(RuntimeWarning, match="2 of 2 rounds are not recorded"):
        recorder.close()


def shifted(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value + 1 for name, value in state.items()}


def warned(caught: pytest.WarningsRecorder) -> str:
    return " | ".join(str(warning.message) for warning in caught)


@pytest.mark.slow
def test_another_run_is_reported_at_its_first_round(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1, 2, 3)
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        for live_round in LIVE_ROUNDS[1:3]:
            recorder.round(
                live_round.number, sent=shifted(live_round.sent), uploads=live_round.uploads
            )
    measured_coverage = coverage(tmp_path)
    assert (
        measured_coverage.rounds,
        measured_coverage.measured,
        measured_coverage.n_missing_rounds,
    ) == (3, 3, 1)
    (span,) = measured_coverage.missing_rounds
    assert (span.first, span.last) == (2, 2)
    assert span.reason.startswith("another run passed it with other models sent")
    assert check(tmp_path).outcome is Outcome.INCONCLUSIVE


@pytest.mark.filterwarnings("always:fedaudit")
@pytest.mark.parametrize("changed_part", ["models sent", "uploads"])
def test_a_repeated_round_is_not_another_run(
    changed_part: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with opened(tmp_path) as recorder:
        live_round = LIVE_ROUNDS[1]
        pass_rounds(recorder, 1, 2)
        if changed_part == "uploads":
            recorder.round(2, sent=live_round.sent, uploads={0: live_round.uploads[0]})
        else:
            recorder.round(2, sent=shifted(live_round.sent), uploads=live_round.uploads)
        pass_rounds(recorder, 3, 4)
    warnings = warned(recwarn)
    assert f"round 2 was recorded before with other {changed_part} in this run" in warnings
    assert "another run" not in warnings
    assert "not recorded" not in warnings
    measured_coverage = coverage(tmp_path)
    assert (measured_coverage.rounds, measured_coverage.measured) == (4, 4)
    (span,) = measured_coverage.missing_rounds
    assert (span.first, span.last) == (2, 2)
    assert (
        span.reason
        == f"it was passed again with other {changed_part}; the first version is measured"
    )
    assert check(tmp_path).outcome is Outcome.INCONCLUSIVE


def test_a_repeated_round_raises_if_strict(tmp_path: Path) -> None:
    with opened(tmp_path, strict=True) as recorder:
        pass_rounds(recorder, 1)
        with pytest.raises(BadInput, match="use each round number once"):
            recorder.round(1, sent=shifted(LIVE_ROUNDS[0].sent), uploads=LIVE_ROUNDS[0].uploads)


def test_a_round_passed_again_with_other_data_after_resuming_is_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1, 2)
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1, 2)
        recorder.round(2, sent=LIVE_ROUNDS[1].sent, uploads={0: LIVE_ROUNDS[1].uploads[0]})
        pass_rounds(recorder, 3)
    measured_coverage = coverage(tmp_path)
    assert (measured_coverage.rounds, measured_coverage.measured) == (3, 3)
    assert [gap.reason.split(" with")[0] for gap in measured_coverage.missing_rounds] == [
        "it was passed again"
    ]


def test_the_globals_view_may_repeat_the_current_round(tmp_path: Path) -> None:
    with opened(tmp_path, view="globals") as recorder:
        for live_round in LIVE_ROUNDS[:3]:
            recorder.round(live_round.number, sent=live_round.sent)
            recorder.round(live_round.number, sent=live_round.sent)
        recorder.round(3, sent=shifted(LIVE_ROUNDS[2].sent))
        recorder.round(4, sent=LIVE_ROUNDS[3].sent, after=LIVE_ROUNDS[3].after)
    measured_coverage = coverage(tmp_path)
    assert (measured_coverage.rounds, measured_coverage.measured) == (4, 4)
    assert [(gap.first, gap.last) for gap in measured_coverage.missing_rounds] == [(3, 3)]


@pytest.mark.filterwarnings("always:fedaudit")
def test_a_repeated_failed_round_counts_once(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with opened(tmp_path) as recorder:
        recorder.missed(1, "no memory", answered=[0, 1, 2])
        pass_rounds(recorder, 1, 2)
        recorder.missed(3, "no disk", answered=[0, 1, 2])
        recorder.missed(3, "no disk", answered=[0, 1, 2])
    assert "1 of 3 rounds are not recorded; the first, because no disk" in warned(recwarn)


@pytest.mark.filterwarnings("always:fedaudit")
def test_queued_rounds_of_an_earlier_run_can_count_as_failed(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with suppress(KeyError), opened(tmp_path, measure="after") as recorder:
        pass_rounds(recorder, 1, 2)
        raise KeyError
    (_, path), *_ = waiting_rounds(tmp_path)
    path.write_bytes(b"")
    opened(tmp_path).close()
    assert "1 of 2 rounds are not recorded" in warned(recwarn)


@pytest.mark.filterwarnings("always:fedaudit")
@pytest.mark.parametrize("absent", [[], [1]])
def test_an_unknown_upload_is_missing_only_without_an_audited_client(
    absent: list[int], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
        uploads: dict[Any, Any] = {
            c: u for c, u in LIVE_ROUNDS[1].uploads.items() if c not in absent
        }
        recorder.round(
            2, sent=LIVE_ROUNDS[1].sent, uploads={**uploads, "zz": LIVE_ROUNDS[1].uploads[0]}
        )
    how = "is not recorded in full" if absent else "is recorded without an upload"
    assert f"round 2 {how}: client 'zz' is identified by its name" in warned(recwarn)
    assert coverage(tmp_path).is_whole is not bool(absent)


def test_attacking_a_recording_with_failed_rounds_only_raises(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1, 2, nan=[0, 1, 2])
        recorder.missed(3, "no memory")
    with pytest.raises(
        BadInput, match=r"3 failed, the first .* numbers; fix this, and record rounds again"
    ):
        attacked(tmp_path)


def test_attacking_a_recording_with_too_few_rounds_raises(tmp_path: Path) -> None:
    with opened(tmp_path, every=5) as recorder:
        pass_rounds(recorder, 1, 2)
    with pytest.raises(BadInput, match="record at least 5 rounds, of which 2 are recorded"):
        attacked(tmp_path)


def test_attacking_a_recording_without_valid_uploads_raises(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, targets=[1]) as recorder:
        pass_rounds(recorder, 1, 2, nan=[1])
    with pytest.raises(BadInput, match=r"2 were left out, the first of client 1 in round 1 .* num"):
        attacked(tmp_path)


def test_logs_of_older_versions_are_read(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1, 2)
    log = tmp_path / LOG_FILE
    older = []
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        older.append(
            {name: entry[name] for name in ("round", "answered", "measured")}
            | {"asked": entry["selected"], "kept_out": [1], "unknown": True}
        )
    log.write_text("".join(json.dumps(entry) + "\n" for entry in older))
    for entry_read in read_round_log(tmp_path):
        assert entry_read.selected == entry_read.answered
        assert (entry_read.rejected, entry_read.has_unidentified) == ((1,), True)
    assert coverage(tmp_path).is_whole


@pytest.mark.slow
def test_an_unclosed_recording_is_inconclusive(tmp_path: Path) -> None:
    recorder = opened(tmp_path)
    pass_rounds(recorder, 1, 2)
    recorder.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    stopped = attacked(tmp_path)
    assert coverage(stopped).is_open
    assert check(stopped).outcome is Outcome.INCONCLUSIVE
    assert "rounds after round 2 may be missing" in check(stopped).reason
    assert (
        "The recorder was not closed: rounds after 2 may have run"
        in summarise_verdict(stopped).headline
    )
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 3)
    shutil.rmtree(tmp_path / "attacked")
    record = attacked(tmp_path)
    assert not coverage(record).is_open
    assert check(record).outcome is Outcome.PASS


def test_a_recording_of_an_older_version_has_no_closed_state(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        pass_rounds(recorder, 1)
    path = tmp_path / "recording.json"
    settings = json.loads(path.read_text())
    assert settings.pop("is_closed") is True
    path.write_text(json.dumps(settings))
    assert not coverage(tmp_path).is_open
