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
from fedaudit.live.recording import LOG_FILE
from fedaudit.report.text.verdict import verdict
from fedaudit.results.record import Record
from fedaudit.results.runs import Coverage
from tests.live.federation import FEW, POLICY, data, network, rounds
from tests.study.studies import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:fedaudit")
AUDIT = data().split.audit
LIST = list(rounds())
FIGURES: Mapping[str, object] = {**SMALL["figures"], "blind_classifier": False}


def broken(upload: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.full_like(value, torch.nan) for name, value in upload.items()}


def tell(
    recorder: Recorder,
    *numbers: int,
    without: Collection[int] = (),
    nan: Collection[int] = (),
    **more: Any,
) -> None:
    """Tell of rounds, without some clients and with faulty uploads of others."""
    for one in LIST:
        if one.number in numbers:
            uploads = {
                client: broken(upload) if client in nan else upload
                for client, upload in one.uploads.items()
                if client not in without
            }
            recorder.round(one.number, sent=one.sent, uploads=uploads, asked=range(3), **more)


def opened(folder: Path, **settings: Any) -> Recorder:
    return record(folder, network, AUDIT, attacks=FEW[:2], log=lambda text: None, **settings)


def attacked(folder: Path) -> Record:
    return attack_recording(folder, (), folder / "attacked", figures=FIGURES)


def _record(attack: Path | Record) -> Record:
    """A record, or that of a recording which is attacked for it."""
    return attacked(attack) if isinstance(attack, Path) else attack


def coverage(attack: Path | Record) -> Coverage:
    found = _record(attack).coverage
    assert found is not None
    return found


def check(attack: Path | Record, policy: str = POLICY) -> Check:
    verdict = evaluate_policy(_record(attack), policy_from(policy))
    return next(one for one in verdict.checks if one.name.startswith("complete coverage"))


def test_a_complete_recording_has_complete_coverage(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1, 2, 3)
    record_of_it = attacked(tmp_path)
    found = coverage(record_of_it)
    assert (found.rounds, found.measured, found.last_measured, found.every) == (3, 3, 3, 1)
    assert found.is_whole
    assert not found.sampled_rounds
    assert [(c.client, c.answered, c.measured, c.first, c.last) for c in found.clients] == [
        (client, 3, 3, 1, 3) for client in range(3)
    ]
    assert len(found.identity) == 64
    assert check(record_of_it).outcome is Outcome.PASS


def test_a_possibly_aggregated_faulty_upload_makes_the_gate_inconclusive(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
        tell(recorder, 2, 3, nan=[1])
    record_of_it = attacked(tmp_path)
    found = coverage(record_of_it)
    assert (found.measured, found.n_missing_uploads, found.n_missing_rounds) == (3, 2, 0)
    assert [(one.client, one.round, one.aggregated) for one in found.missing_uploads] == [
        (1, 2, True),
        (1, 3, True),
    ]
    assert (found.clients[1].answered, found.clients[1].measured) == (3, 1)
    judged = check(record_of_it)
    assert judged.outcome is Outcome.INCONCLUSIVE
    assert "client 1, round 2: its upload has" in judged.reason


@pytest.mark.parametrize("how", ["kept_out", "after"])
def test_a_faulty_upload_that_the_server_rejected_is_not_missing(how: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"kept_out": [1]} if how == "kept_out" else {"after": LIST[1].after}
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
        tell(recorder, 2, nan=[1], **more)
    record_of_it = attacked(tmp_path)
    found = coverage(record_of_it)
    assert found.is_whole
    assert [(one.client, one.round, one.aggregated) for one in found.missing_uploads] == [
        (1, 2, False)
    ]
    assert check(record_of_it).outcome is Outcome.PASS


def test_a_finite_model_does_not_show_that_a_faulty_upload_was_rejected(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as recorder:
        one = LIST[0]
        cut = {name: value[:1] for name, value in one.uploads[1].items()}
        recorder.round(1, sent=one.sent, uploads={**one.uploads, 1: cut}, after=one.after)
    assert coverage(tmp_path).n_missing_uploads == 1


def test_a_client_that_was_not_sampled_is_not_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
        tell(recorder, 2, 3, without=[2])
    found = coverage(tmp_path)
    assert found.is_whole
    assert (found.clients[2].answered, found.clients[2].measured, found.clients[2].last) == (
        1,
        1,
        1,
    )


def test_a_round_without_replies_is_not_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
        tell(recorder, 2, without=[0, 1, 2])
        recorder.missed(3, "no client answered", answered=[])
    assert coverage(tmp_path).is_whole


@pytest.mark.slow
@pytest.mark.parametrize("what", ["failed", "unknown", "gap", "lost", "unlogged", "model"])
def test_an_unmeasured_round_is_missing_with_number_and_reason(what: str, tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
        if what == "failed":
            recorder.missed(2, "no memory", answered=[0])
        elif what == "unknown":
            recorder.missed(2, "no memory")
        elif what == "model":
            recorder.round(2, sent={"x": torch.ones(1)}, uploads=LIST[1].uploads)
        elif what != "gap":
            tell(recorder, 2)
        tell(recorder, 3)
    if what == "lost":
        (tmp_path / "measured" / "round-000002.safetensors").unlink()
    if what == "unlogged":
        lines = (tmp_path / LOG_FILE).read_text().splitlines(keepends=True)
        (tmp_path / LOG_FILE).write_text(lines[0] + lines[2])
    record_of_it = attacked(tmp_path)
    found = coverage(record_of_it)
    reason = {
        "failed": "no memory",
        "unknown": "no memory",
        "gap": "the recorder did not receive it",
        "lost": "its measurements are missing",
        "unlogged": "its entry in the log is missing, so that the clients that replied are unknown",
        "model": "the model sent",
    }[what]
    (span,) = found.missing_rounds
    assert (span.first, span.last) == (2, 2)
    assert span.reason.startswith(reason)
    assert found.n_missing_rounds == 1
    judged = check(record_of_it)
    assert judged.outcome is Outcome.INCONCLUSIVE
    assert "1 round (2)" in judged.reason
    assert reason in judged.reason


def test_queued_rounds_are_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
    recorder = opened(tmp_path, measure="after")
    tell(recorder, 2, 3)
    recorder.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    (span,) = coverage(tmp_path).missing_rounds
    assert (span.first, span.last, span.reason) == (2, 3, "still to be measured")


def test_an_upload_of_an_unknown_client_may_be_from_an_audited_client(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
        recorder.round(
            2, sent=LIST[1].sent, uploads={0: LIST[1].uploads[0], -5: LIST[1].uploads[1]}
        )
    assert coverage(tmp_path).n_missing_uploads == 1


def test_a_failed_round_can_be_recorded_again(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
        recorder.missed(2, "no memory", answered=[0, 1, 2])
        assert not recorder.has(2)
        tell(recorder, 2)
        tell(recorder, 3)
    assert coverage(tmp_path).is_whole


def test_sampled_rounds_are_judged_by_the_policy(tmp_path: Path) -> None:
    with opened(tmp_path, every=2) as recorder:
        tell(recorder, 1, 2, 3, 4)
    record_of_it = attacked(tmp_path)
    found = coverage(record_of_it)
    assert (found.rounds, found.measured, found.every) == (4, 2, 2)
    assert found.is_whole
    assert found.sampled_rounds
    assert check(record_of_it).outcome is Outcome.INCONCLUSIVE
    assert "one in 2 rounds was measured" in check(record_of_it).reason
    allowed = check(record_of_it, POLICY + "sampled_rounds = true\n")
    assert (allowed.outcome, allowed.name) == (
        Outcome.PASS,
        "complete coverage of the sampled rounds",
    )


@pytest.mark.slow
def test_the_globals_view_has_coverage_of_rounds(tmp_path: Path) -> None:
    with record(tmp_path, network, AUDIT, view="globals", log=lambda text: None) as recorder:
        for one in LIST[:3]:
            recorder.round(one.number, sent=one.sent, after=one.after)
        recorder.missed(4, "no memory", answered=[])
    found = coverage(tmp_path)
    assert (found.measured, found.n_missing_rounds) == (3, 1)
    assert [one.measured for one in found.clients] == [3, 3, 3]


@pytest.mark.slow
def test_coverage_identity_is_unique_per_run(tmp_path: Path) -> None:
    identities = []
    for name, numbers in (("a", (1, 2)), ("b", (1, 2)), ("c", (1, 3))):
        with opened(tmp_path / name) as recorder:
            tell(recorder, *numbers)
        identities.append(coverage(tmp_path / name).identity)
    assert identities[0] == identities[1] != identities[2]


def test_another_run_in_the_same_folder_counts_separately(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1, 2)
    recorder = opened(tmp_path)
    for one in LIST[:2]:
        sent = {name: value + 1 for name, value in one.sent.items()}
        recorder.round(one.number, sent=sent, uploads=one.uploads)
    with pytest.warns(RuntimeWarning, match="2 of 2 rounds are not recorded"):
        recorder.close()


def shifted(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value + 1 for name, value in state.items()}


def warned(caught: pytest.WarningsRecorder) -> str:
    return " | ".join(str(one.message) for one in caught)


@pytest.mark.slow
def test_another_run_is_reported_at_its_first_round(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1, 2, 3)
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
        for one in LIST[1:3]:
            recorder.round(one.number, sent=shifted(one.sent), uploads=one.uploads)
    found = coverage(tmp_path)
    assert (found.rounds, found.measured, found.n_missing_rounds) == (3, 3, 1)
    (span,) = found.missing_rounds
    assert (span.first, span.last) == (2, 2)
    assert span.reason.startswith("another run passed it with other models sent")
    assert check(tmp_path).outcome is Outcome.INCONCLUSIVE


@pytest.mark.filterwarnings("always:fedaudit")
@pytest.mark.parametrize("what", ["models sent", "uploads"])
def test_a_repeated_round_is_not_another_run(
    what: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with opened(tmp_path) as recorder:
        one = LIST[1]
        tell(recorder, 1, 2)
        if what == "uploads":
            recorder.round(2, sent=one.sent, uploads={0: one.uploads[0]})
        else:
            recorder.round(2, sent=shifted(one.sent), uploads=one.uploads)
        tell(recorder, 3, 4)
    said = warned(recwarn)
    assert f"round 2 was recorded before with other {what} in this run" in said
    assert "another run" not in said
    assert "not recorded" not in said
    found = coverage(tmp_path)
    assert (found.rounds, found.measured) == (4, 4)
    (span,) = found.missing_rounds
    assert (span.first, span.last) == (2, 2)
    assert span.reason == f"it was passed again with other {what}; the first version is measured"
    assert check(tmp_path).outcome is Outcome.INCONCLUSIVE


def test_a_repeated_round_raises_if_strict(tmp_path: Path) -> None:
    with opened(tmp_path, strict=True) as recorder:
        tell(recorder, 1)
        with pytest.raises(BadInput, match="use each round number once"):
            recorder.round(1, sent=shifted(LIST[0].sent), uploads=LIST[0].uploads)


def test_a_round_passed_again_with_other_data_after_resuming_is_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1, 2)
    with opened(tmp_path) as recorder:
        tell(recorder, 1, 2)
        recorder.round(2, sent=LIST[1].sent, uploads={0: LIST[1].uploads[0]})
        tell(recorder, 3)
    found = coverage(tmp_path)
    assert (found.rounds, found.measured) == (3, 3)
    assert [one.reason.split(" with")[0] for one in found.missing_rounds] == ["it was passed again"]


def test_the_globals_view_may_repeat_the_current_round(tmp_path: Path) -> None:
    with record(tmp_path, network, AUDIT, view="globals", log=lambda text: None) as recorder:
        for one in LIST[:3]:
            recorder.round(one.number, sent=one.sent)
            recorder.round(one.number, sent=one.sent)
        recorder.round(3, sent=shifted(LIST[2].sent))
        recorder.round(4, sent=LIST[3].sent, after=LIST[3].after)
    found = coverage(tmp_path)
    assert (found.rounds, found.measured) == (4, 4)
    assert [(one.first, one.last) for one in found.missing_rounds] == [(3, 3)]


@pytest.mark.filterwarnings("always:fedaudit")
def test_a_repeated_failed_round_counts_once(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with opened(tmp_path) as recorder:
        recorder.missed(1, "no memory", answered=[0, 1, 2])
        tell(recorder, 1, 2)
        recorder.missed(3, "no disk", answered=[0, 1, 2])
        recorder.missed(3, "no disk", answered=[0, 1, 2])
    assert "1 of 3 rounds are not recorded; the first, because no disk" in warned(recwarn)


@pytest.mark.filterwarnings("always:fedaudit")
def test_queued_rounds_of_an_earlier_run_can_count_as_failed(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with suppress(KeyError), opened(tmp_path, measure="after") as recorder:
        tell(recorder, 1, 2)
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
        tell(recorder, 1)
        uploads: dict[Any, Any] = {c: u for c, u in LIST[1].uploads.items() if c not in absent}
        recorder.round(2, sent=LIST[1].sent, uploads={**uploads, "zz": LIST[1].uploads[0]})
    how = "is not recorded in full" if absent else "is recorded without an upload"
    assert f"round 2 {how}: client 'zz' is identified by its name" in warned(recwarn)
    assert coverage(tmp_path).is_whole is not bool(absent)


def test_attacking_a_recording_with_failed_rounds_only_raises(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1, 2, nan=[0, 1, 2])
        recorder.missed(3, "no memory")
    with pytest.raises(
        BadInput, match=r"3 failed, the first .* numbers; fix this, and record rounds again"
    ):
        attacked(tmp_path)


def test_attacking_a_recording_with_too_few_rounds_raises(tmp_path: Path) -> None:
    with opened(tmp_path, every=5) as recorder:
        tell(recorder, 1, 2)
    with pytest.raises(BadInput, match="record at least 5 rounds, of which 2 are recorded"):
        attacked(tmp_path)


def test_attacking_a_recording_without_valid_uploads_raises(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, targets=[1]) as recorder:
        tell(recorder, 1, 2, nan=[1])
    with pytest.raises(BadInput, match=r"2 were left out, the first of client 1 in round 1 .* num"):
        attacked(tmp_path)


def test_logs_of_older_versions_are_read(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1, 2)
    log = tmp_path / LOG_FILE
    older = [
        {
            k: v
            for k, v in json.loads(line).items()
            if k in ("round", "asked", "answered", "measured")
        }
        for line in log.read_text().splitlines()
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in older))
    assert coverage(tmp_path).is_whole


@pytest.mark.slow
def test_an_unclosed_recording_is_inconclusive(tmp_path: Path) -> None:
    recorder = opened(tmp_path)
    tell(recorder, 1, 2)
    recorder.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    stopped = attacked(tmp_path)
    assert coverage(stopped).is_open
    assert check(stopped).outcome is Outcome.INCONCLUSIVE
    assert "rounds after 2 may have run" in check(stopped).reason
    assert "The recorder was not closed: rounds after 2 may have run" in verdict(stopped).headline
    with opened(tmp_path) as recorder:
        tell(recorder, 3)
    shutil.rmtree(tmp_path / "attacked")
    whole = attacked(tmp_path)
    assert not coverage(whole).is_open
    assert check(whole).outcome is Outcome.PASS


def test_a_recording_of_an_older_version_has_no_closed_state(tmp_path: Path) -> None:
    with opened(tmp_path) as recorder:
        tell(recorder, 1)
    path = tmp_path / "recording.json"
    said = json.loads(path.read_text())
    assert said.pop("is_closed") is True
    path.write_text(json.dumps(said))
    assert not coverage(tmp_path).is_open
