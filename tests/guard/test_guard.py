"""A guard decides which uploads of a client leave."""

import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.guard.guard import Guard
from fedaudit.guard.policy import ATTACKS
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import audit_samples, fair_split, join_audits
from fedaudit.live.decisions import DECISIONS_FILE, read_decisions
from fedaudit.live.record import record
from fedaudit.live.recording import read_recording, read_round_log
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import measured_rounds_in
from fedaudit.report.page import write_report
from tests.guard.client import (
    AUDITED,
    CLIENT,
    State,
    data,
    guard,
    honest,
    initial,
    memorising,
    network,
    noisy,
    trained,
)
from tests.live import federation
from tests.study.studies import SMALL


def outcomes(opened: Guard) -> list[str]:
    return [decision.outcome for decision in opened.decisions]


def same(left: Any, right: State) -> bool:
    return left is not None and all(torch.equal(left[name], right[name]) for name in right)


def test_an_honest_upload_is_sent_unchanged_and_a_memorised_upload_is_withheld(
    tmp_path: Path,
) -> None:
    with guard(tmp_path) as opened:
        assert same(opened.check(1, sent=initial(), upload=honest()), honest())
        assert opened.check(2, sent=honest(), upload=memorising()) is None
    assert outcomes(opened) == ["sent", "withheld"]
    assert [entry.measured for entry in read_round_log(tmp_path)] == [True, False]
    assert [stored_round.measured.index for stored_round in measured_rounds_in(tmp_path)] == [1]


@pytest.mark.parametrize("filter", [None, noisy], ids=["without a filter", "filter"])
def test_a_run_has_at_most_the_configured_number_of_uploads(filter: Any, tmp_path: Path) -> None:
    settings = {"most_uploads": 3, "filter": filter, "limit": 0.65}
    with guard(tmp_path, **settings) as opened:
        assert opened.check(1, sent=initial(), upload=honest()) is not None
        opened.check(2, sent=initial(), upload=memorising())
        # The same bytes are returned without another comparison.
        assert opened.check(1, sent=initial(), upload=honest()) is not None
        if filter is None:
            assert opened.check(3, sent=honest(), upload=honest()) is not None
    with guard(tmp_path, **settings) as reopened:
        assert reopened.check(4, sent=honest(), upload=honest()) is None
        assert "allows 3 measured uploads in a run (most_uploads)" in reopened.decisions[-1].reason
        assert reopened.check(1, sent=initial(), upload=honest()) is not None


def test_reports_show_the_name_of_the_client(tmp_path: Path) -> None:
    x, y, _ = data()
    split = fair_split({"site-1": (x, y)}, audited=AUDITED)
    with Guard(tmp_path, network, split.audit, limit=0.65, client="site-1") as opened:
        assert opened.check(1, sent=initial(), upload=initial()) is not None
    record = attack_recording(tmp_path, ["blackbox-loss"], tmp_path / "attacked", figures=FIGURES)
    write_report(record, tmp_path / "report.html")
    assert "site-1" in (tmp_path / "report.html").read_text()
    with pytest.raises(BadInput, match="client is 'site-2', but the audited samples belong to"):
        Guard(tmp_path / "other", network, split.audit, limit=0.65, client="site-2")


def test_an_audit_of_people_is_refused(tmp_path: Path) -> None:
    audit = data().split.audit
    people = replace(audit, person=np.arange(len(audit)) // 2)
    with pytest.raises(BadInput, match="audit one sample of each person"):
        Guard(tmp_path, network, people, limit=0.6)
    assert not [*tmp_path.iterdir()]


def test_the_filter_is_applied_only_to_a_memorised_upload(tmp_path: Path) -> None:
    with guard(tmp_path, filter=noisy) as opened:
        assert same(opened.check(1, sent=initial(), upload=honest()), honest())
        leaving = opened.check(2, sent=initial(), upload=memorising())
    assert outcomes(opened) == ["sent", "filtered"]
    change = {name: memorising()[name] - value for name, value in initial().items()}
    expected = {name: initial()[name] + value for name, value in noisy(change).items()}
    assert isinstance(leaving, dict)
    for name, value in expected.items():
        torch.testing.assert_close(leaving[name], value)
    decision = opened.decisions[-1]
    assert max(figure.value for figure in decision.unfiltered) > 0.8
    assert all(figure.high <= 0.6 for figure in decision.figures)


def test_an_upload_is_withheld_if_the_filter_hides_too_little(tmp_path: Path) -> None:
    with guard(tmp_path, filter=lambda update: update) as opened:
        assert opened.check(1, sent=initial(), upload=memorising()) is None
    assert str(opened.decisions[0]).startswith("round 1: withheld after the filter: AUC 0.8")


def test_a_federation_continues_without_the_client_that_memorises(tmp_path: Path) -> None:
    audit, train = data().split.audit, data().split.train[CLIENT].tolist()
    members = audit.samples.ids[torch.from_numpy(audit.owner == CLIENT)]
    received, sent = initial(), []
    with guard(tmp_path / "honest") as of_honest, guard(tmp_path / "memorising") as of_memorising:
        for number in (1, 2):
            ways = {
                of_honest: trained(received, train, epochs=1, seed=number),
                of_memorising: memorising(),
            }
            checked = [g.check(number, sent=received, upload=up) for g, up in ways.items()]
            came = [upload for upload in checked if upload is not None]
            sent.append(len(came))
            received = {
                n: torch.stack([torch.as_tensor(up[n]) for up in came]).mean(0) for n in received
            }
    assert len(members) > 300
    assert sent == [1, 1]
    assert outcomes(of_memorising) == ["withheld", "withheld"]


def test_a_returned_upload_is_a_copy_of_the_measured_one(tmp_path: Path) -> None:
    upload = {name: value.clone() for name, value in honest().items()}
    with guard(tmp_path) as opened:
        leaving = opened.check(1, sent=initial(), upload=upload)
        upload["0.weight"].fill_(9.0)
    assert same(leaving, honest())


@pytest.mark.parametrize("form", ["module", "arrays", "list", "updates"])
def test_every_form_of_an_upload_is_measured_and_returned(form: str, tmp_path: Path) -> None:
    sent: Any = initial()
    upload: Any = honest()
    if form == "module":
        upload = network()
        upload.load_state_dict(honest())
    elif form == "updates":
        upload = {name: upload[name] - sent[name] for name in sent}
    elif form == "arrays":
        upload, sent = ({n: v.numpy() for n, v in each.items()} for each in (upload, sent))
    else:
        upload, sent = ([v.numpy() for v in each.values()] for each in (upload, sent))
    with guard(tmp_path) as opened:
        leaving = opened.check(1, sent=sent, upload=upload, is_update=form == "updates")
    assert leaving is not None
    expected = upload.state_dict() if form == "module" else upload
    pairs = zip(expected, leaving, strict=True)
    if form == "list":
        assert all(
            np.array_equal(expected_array, returned_array)
            for expected_array, returned_array in pairs
        )
    else:
        assert all(type(leaving[n]) is type(expected[n]) for n, _ in pairs)
    assert opened.decisions[0].figures[0].value == pytest.approx(auc_of_losses(honest()), abs=1e-4)


def auc_of_losses(state: State) -> float:
    """Return the AUC of the loss, computed without fedaudit's signals."""
    net, audit = network(), data().split.audit
    net.load_state_dict(state)
    with torch.no_grad():
        outputs = net(audit.samples.features)
    losses = torch.nn.functional.cross_entropy(outputs, audit.samples.labels, reduction="none")
    member = torch.from_numpy(audit.owner == CLIENT)
    below = losses[member][:, None] < losses[~member][None]
    return float(below.float().mean())


def test_the_filter_receives_updates_unchanged(tmp_path: Path) -> None:
    change = {name: memorising()[name] - value for name, value in initial().items()}
    with guard(tmp_path, filter=noisy) as opened:
        leaving = opened.check(1, sent=initial(), upload=change, is_update=True)
    assert same(leaving, noisy(change))


FIGURES = {**SMALL["figures"], "blind_classifier": False}


def test_estimates_equal_those_of_a_central_recording_and_of_the_guards_record(
    tmp_path: Path,
) -> None:
    client, parts = 1, {}
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    for number in range(3):
        samples = (x[number:600:3], y[number:600:3])
        parts[number] = fair_split({number: samples}, audited=60)
    central = record(
        tmp_path / "central",
        federation.network,
        join_audits([split.part for split in parts.values()]),
        attacks=ATTACKS,
        log=lambda line: None,
    )
    own_guard = Guard(
        tmp_path / "guard",
        federation.network,
        parts[client].audit,
        limit=0.99,
        decide_by="estimate",
        smallest_audit=20,
        log=lambda line: None,
    )
    with central, own_guard:
        for live in federation.rounds():
            central.round(live.number, sent=live.sent, uploads=live.uploads)
            assert own_guard.check(live.number, sent=live.sent, upload=live.uploads[client])
    measured = {figure.attack: figure for figure in own_guard.decisions[-1].figures}
    assert measured.keys() == {*ATTACKS}
    for folder in ("central", "guard"):
        out = attack_recording(tmp_path / folder, (), tmp_path / f"{folder}-out", figures=FIGURES)
        compared = {
            estimate.attack: estimate
            for estimate in out.findings
            if (estimate.metric, estimate.contrast, estimate.target) == ("auc", "unseen", client)
            and not estimate.by
        }
        assert compared.keys() == {*ATTACKS}
        for attack, figure in measured.items():
            central_figure = compared[attack]
            assert (figure.value, figure.low, figure.high) == pytest.approx(
                (central_figure.value, central_figure.low, central_figure.high), abs=1e-9
            )
    assert any(what.startswith("Attacks that compare clients") for what in out.untested)


def test_withheld_rounds_do_not_count_in_later_estimates(tmp_path: Path) -> None:
    with guard(tmp_path / "first") as first, guard(tmp_path / "second") as second:
        first.check(1, sent=initial(), upload=memorising())
        for opened in (first, second):
            opened.check(2, sent=initial(), upload=honest())
    assert first.decisions[-1].figures == second.decisions[-1].figures


def test_sent_uploads_of_earlier_rounds_count_in_later_estimates(tmp_path: Path) -> None:
    lax = {"limit": 0.95, "decide_by": "estimate", "attacks": ["loss-series"]}
    with guard(tmp_path / "first", **lax) as first, guard(tmp_path / "second", **lax) as second:
        first.check(1, sent=initial(), upload=memorising())
        for opened in (first, second):
            opened.check(2, sent=initial(), upload=honest())
    (mean,), (alone,) = (opened.decisions[-1].figures for opened in (first, second))
    assert mean.value > alone.value + 0.1


def test_the_same_bytes_are_answered_from_the_log_after_a_restart(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.check(1, sent=initial(), upload=honest())
        opened.check(2, sent=initial(), upload=memorising())
    with guard(tmp_path) as reopened:
        assert same(reopened.check(1, sent=initial(), upload=honest()), honest())
        assert reopened.check(2, sent=initial(), upload=memorising()) is None
        assert len(reopened.decisions) == 2


def test_another_upload_of_a_round_is_measured_together_with_the_first(tmp_path: Path) -> None:
    other = trained(initial(), data().split.train[CLIENT].tolist(), epochs=1, seed=9)
    lax = {"limit": 0.95, "decide_by": "estimate", "attacks": ["loss-series"]}
    with guard(tmp_path, **lax) as opened:
        opened.check(1, sent=initial(), upload=memorising())
    with guard(tmp_path, **lax) as reopened:
        assert same(reopened.check(1, sent=initial(), upload=other), other)
    assert [decision.version for decision in reopened.decisions] == [0, 1]
    (mean,) = reopened.decisions[-1].figures
    assert mean.value > 0.7
    assert list(read_recording(tmp_path).conflicts) == [1]
    with guard(tmp_path, **lax) as third:
        third.check(2, sent=initial(), upload=honest())
    (later,) = third.decisions[-1].figures
    assert later.value > 0.6, "both uploads of the first round count"


def test_the_same_upload_for_another_received_model_is_measured(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.check(1, sent=initial(), upload=honest())
        opened.check(1, sent=memorising(), upload=honest())
    assert [decision.version for decision in opened.decisions] == [0, 1]


def test_a_filtered_upload_is_filtered_again(tmp_path: Path) -> None:
    calls = []

    def counted(update: Any) -> Any:
        calls.append(1)
        return noisy(update)

    with guard(tmp_path, filter=counted) as opened:
        for _ in range(2):
            assert opened.check(1, sent=initial(), upload=memorising()) is not None
    assert len(calls) == 2
    assert [decision.version for decision in opened.decisions] == [0, 1]


@pytest.mark.parametrize(
    "upload",
    [
        None,
        5,
        [],
        {},
        {"0.weight": "text"},
        {"0.weight": np.array(["a"])},
        {"0.weight": np.array([object()])},
        {"other": torch.zeros(3)},
    ],
)
def test_an_invalid_upload_is_withheld(upload: Any, tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        # Types are checked only in tests; a training loop may pass any object.
        unchecked: Callable[..., object] = inspect.unwrap(Guard.check)
        assert unchecked(opened, 1, sent=initial(), upload=upload) is None
    (decision,) = opened.decisions
    assert decision.is_error
    assert decision.reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_an_upload_that_cannot_be_measured_is_withheld(value: float, tmp_path: Path) -> None:
    upload = with_bias(value)
    with guard(tmp_path) as opened:
        assert opened.check(1, sent=initial(), upload=upload) is None
        assert opened.check(2, sent=upload, upload=honest()) is None
        assert opened.check(3, sent=initial(), upload=honest()) is not None
    assert [decision.is_error for decision in opened.decisions] == [True, True, False]


def with_bias(value: float) -> State:
    """An upload whose loss is not finite: differences of its logits overflow."""
    bias = torch.full((10,), -value)
    bias[0] = value
    return {**honest(), "2.bias": bias}


@pytest.mark.parametrize("number", [0, -1, 10**9, True])
def test_a_round_without_a_valid_number_is_withheld(number: int, tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        assert opened.check(number, sent=initial(), upload=honest()) is None
    assert opened.decisions[0].is_error


def broken(update: Any) -> Any:
    raise RuntimeError("no memory")


@pytest.mark.parametrize(
    "filter",
    [
        broken,
        lambda update: None,
        lambda update: {},
        lambda update: {name: value[:1] for name, value in update.items()},
        lambda update: {name: value * float("nan") for name, value in update.items()},
        lambda update: dict.fromkeys(update, "text"),
    ],
)
def test_a_failing_filter_withholds_the_upload(filter: Any, tmp_path: Path) -> None:
    with guard(tmp_path, filter=filter) as opened:
        assert opened.check(1, sent=initial(), upload=memorising()) is None
    assert opened.decisions[0].is_error
    assert "no memory" not in opened.decisions[0].reason


PLACES = [
    "fedaudit.guard.guard.digest",
    "fedaudit.live.aucs.auc_interval",
    "fedaudit.live.measuring.measure_round",
    "fedaudit.live.measuring.write_measured",
    "fedaudit.live.recorder.append_round",
    "fedaudit.guard.guard.append_decision",
    "fedaudit.guard.candidates.sync_folder",
]


@pytest.mark.parametrize("error", [OSError(28, "No space left"), MemoryError(), ValueError("x")])
@pytest.mark.parametrize("place", PLACES)
def test_any_error_withholds_and_later_guards_continue(
    place: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **settings: object) -> object:
        raise error

    lines: list[str] = []
    with guard(tmp_path, log=lines.append) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(place, fails)
            assert opened.check(1, sent=initial(), upload=honest()) is None
        assert "round 1: withheld" in lines[-1]
    assert opened.decisions[-1].is_error
    with guard(tmp_path) as reopened:
        assert same(reopened.check(1, sent=initial(), upload=honest()), honest())
    assert [stored_round.measured.index for stored_round in measured_rounds_in(tmp_path)] == [1]


def test_a_log_that_fails_does_not_lose_the_decision(tmp_path: Path) -> None:
    def fails(line: str) -> None:
        if line.startswith("round"):
            raise OSError("no terminal")

    with guard(tmp_path, log=fails) as opened:
        assert opened.check(1, sent=initial(), upload=honest()) is not None
    assert outcomes(opened) == ["sent"]


def test_a_closed_guard_withholds_and_writes_nothing(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.check(1, sent=initial(), upload=honest())
    assert opened.check(2, sent=initial(), upload=honest()) is None
    assert len(read_decisions(tmp_path)) == 1


def test_one_folder_has_one_guard(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.check(1, sent=initial(), upload=honest())
        with pytest.raises(BadInput, match=r"other audited samples"):
            guard_of_other_samples(tmp_path)


def test_a_guard_withholds_after_another_guard_has_written_to_its_folder(tmp_path: Path) -> None:
    with guard(tmp_path) as first, guard(tmp_path) as second:
        assert first.check(1, sent=initial(), upload=honest()) is not None
        assert second.check(2, sent=initial(), upload=honest()) is None
        assert "another guard has written to the folder" in second.decisions[-1].reason
        # The line of the second guard is in the log, so the first one is not up to date either.
        assert first.check(2, sent=initial(), upload=honest()) is None
    with guard(tmp_path) as reopened:
        assert reopened.check(2, sent=initial(), upload=honest()) is not None
        assert outcomes(reopened) == ["sent", "withheld", "withheld", "sent"]


def guard_of_other_samples(folder: Path) -> Guard:
    split = fair_split({CLIENT: (data().x, data().y)}, audited=600, seed=2)
    return Guard(folder, network, split.audit, limit=0.6, log=lambda line: None)


@pytest.mark.parametrize("damage", ["line", "log", "measured", "recording", "altered", "link"])
def test_a_damaged_folder_is_refused(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    with guard(folder) as opened:
        opened.check(1, sent=initial(), upload=honest())
    log, measured = folder / DECISIONS_FILE, folder / "measured" / "round-000001.safetensors"
    if damage == "line":
        log.write_text("{}\n" + log.read_text())
    elif damage == "log":
        log.unlink()
    elif damage == "measured":
        measured.unlink()
    elif damage == "recording":
        (folder / "recording.json").unlink()
    elif damage == "altered":
        content = bytearray(measured.read_bytes())
        content[-1] ^= 1
        measured.write_bytes(content)
    else:
        log.rename(tmp_path / "elsewhere")
        log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged):
        guard(folder)


def test_uploads_are_withheld_after_the_folder_was_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    opened = guard(folder)
    opened.check(1, sent=initial(), upload=honest())
    shutil.rmtree(folder)
    opened.check(2, sent=initial(), upload=memorising())
    opened.check(3, sent=initial(), upload=honest())
    assert outcomes(opened)[0] == "sent"
    assert {*outcomes(opened)[1:]} == {"withheld"}
    with pytest.raises(BadInput, match="could not be written"):
        opened.close()


def test_a_full_log_withholds_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with guard(tmp_path) as opened:
        monkeypatch.setattr("fedaudit.live.decisions.MAX_LOG_BYTES", 100)
        assert opened.check(1, sent=initial(), upload=honest()) is None
    assert read_decisions(tmp_path) == []


def test_a_recording_without_a_guard_is_refused_and_kept(tmp_path: Path) -> None:
    attacks = ["loss-series"]
    quiet: dict[str, Any] = {"attacks": attacks, "log": lambda line: None}
    with record(tmp_path, network, data().split.audit, **quiet) as recorder:
        recorder.round(1, sent=initial(), uploads={CLIENT: honest()})
    with pytest.raises(Damaged, match=r"a recording without decisions\.jsonl"):
        guard(tmp_path, attacks=attacks)
    assert [stored_round.measured.index for stored_round in measured_rounds_in(tmp_path)] == [1]


def test_an_incomplete_last_line_counts_as_no_decision(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.check(1, sent=initial(), upload=honest())
    log = tmp_path / DECISIONS_FILE
    log.write_text(log.read_text()[:-9])
    with guard(tmp_path) as reopened:
        assert reopened.decisions == ()
        assert same(reopened.check(1, sent=initial(), upload=honest()), honest())
    assert [json.loads(line)["round"] for line in log.read_text().splitlines()] == [1]


def test_lines_of_the_log_have_neither_counts_nor_positions(tmp_path: Path) -> None:
    lines: list[str] = []
    with guard(tmp_path, filter=noisy, log=lines.append) as opened:
        opened.check(1, sent=initial(), upload=honest())
        opened.check(2, sent=initial(), upload=memorising())
        opened.check(3, sent=initial(), upload=with_bias(3e38))
    allowed = {"round", "outcome", "limit", "decide_by", "figures", "unfiltered", "reason"}
    allowed |= {"received", "upload", "released", "version"}
    for line in (tmp_path / DECISIONS_FILE).read_text().splitlines():
        entry = json.loads(line)
        assert entry.keys() <= allowed
        for figure in (*entry.get("figures", ()), *entry.get("unfiltered", ())):
            assert figure.keys() == {"attack", "value", "low", "high"}
    assert lines[-1] == "round 3: withheld: its measurements are not finite numbers"


def test_a_guard_warns_of_a_limit_that_allows_strong_leaks(tmp_path: Path) -> None:
    lines: list[str] = []
    with guard(tmp_path / "lax", limit=0.99, log=lines.append) as opened:
        assert opened.check(1, sent=initial(), upload=memorising()) is not None
    (warning,) = [line for line in lines if line.startswith("warning: ")]
    assert "may send uploads with an AUC of up to 0.99" in warning
    lines.clear()
    guard(tmp_path / "strict", limit=0.65, log=lines.append).close()
    assert not [line for line in lines if "warning" in line]


def test_members_of_several_clients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="members of 3 clients; pass only"):
        Guard(tmp_path, federation.network, federation.data().split.audit, limit=0.6)


def test_known_members_are_compared_with_held_out_samples(tmp_path: Path) -> None:
    x, y = data().x, data().y
    audit = audit_samples({CLIENT: (x[:300], y[:300])}, (x[300:600], y[300:600]), copies="drop")
    upload = trained(initial(), range(300), epochs=1)
    lax: dict[str, Any] = {"limit": 0.9, "log": lambda line: None}
    with Guard(tmp_path, network, audit, **lax) as opened:
        assert opened.check(1, sent=initial(), upload=upload) is not None
    out = attack_recording(tmp_path, ("blackbox-loss",), tmp_path / "out", figures=FIGURES)
    (recorded,) = (
        estimate
        for estimate in out.findings
        if (estimate.metric, estimate.contrast, estimate.target) == ("auc", "unseen", CLIENT)
        and not estimate.by
    )
    assert opened.decisions[0].figures[0].value == recorded.value


def test_a_decision_has_the_confidence_interval_of_the_auc(tmp_path: Path) -> None:
    with guard(tmp_path, attacks=["blackbox-loss"]) as opened:
        opened.check(1, sent=initial(), upload=honest())
    (stored,) = measured_rounds_in(tmp_path)
    is_member = data().split.audit.owner == CLIENT
    interval = auc_interval(stored.measured.signals["loss"][0].numpy(), is_member)
    (figure,) = opened.decisions[0].figures
    assert (figure.value, figure.low, figure.high) == (interval.value, interval.low, interval.high)


def test_a_guard_accepts_a_network_of_one_layer(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    x, net = torch.randn(800, 2, generator=draw), torch.nn.Linear(2, 2)
    split = fair_split({0: (x, torch.arange(800) % 2)}, audited=600)
    with Guard(tmp_path, net, split.audit, limit=0.65, log=lambda line: None) as opened:
        assert opened.check(1, sent=net, upload=net) is not None
    assert "avg-projres" in {figure.attack for figure in opened.decisions[0].figures}
