"""The NVFlare collector records rounds like a custom loop."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.integrations.nvflare.collector import (
    NvflareRoundCollector,
    Upload,
    client_of,
    create_recorder,
    factory_name,
)
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import fair_split
from fedaudit.live.clients import number_of
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import RoundEntry, read_recording, read_round_log
from tests.live.federation import data, measured, network, recorder, rounds
from tests.study.studies import SMALL


def arrays(params: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in params.items()}


def record_with_collector(
    folder: Path, *, difference: bool = False, spoilt: bool = False, **how: object
) -> None:
    """Record the federation's rounds with a collector; sites receive and reply in any order."""
    collector = NvflareRoundCollector(recorder(folder, **how))
    for live in rounds():
        sent = arrays(live.sent)
        for client in (2, 0, 1):
            collector.add_task(live.number, f"{live.number}/{client}", f"site-{client}", sent)
        base = arrays(live.sent)
        if spoilt:
            sent["1.weight"] = sent["1.weight"] * 0
        for client in (1, 2, 0):
            back = arrays(live.uploads[client])
            if difference:
                back = {name: value - base[name] for name, value in back.items()}
            collector.add_result(f"{live.number}/{client}", Upload(back, difference))
            if spoilt:
                for value in back.values():
                    value *= 0
        collector.close(arrays(live.after))
    collector.end()


def by_hand(folder: Path, **how: object) -> None:
    with recorder(folder, **how) as hand_recorder:
        for live in rounds():
            blind = how.get("view") == "globals"
            uploads = None if blind else live.uploads
            hand_recorder.round(live.number, sent=live.sent, uploads=uploads, after=live.after)


def same(first: Path, second: Path, *, within: float = 0.0) -> None:
    signals, expected = measured(first), measured(second)
    assert signals.keys() == expected.keys()
    assert signals
    for key, values in signals.items():
        torch.testing.assert_close(values, expected[key], rtol=within, atol=within, equal_nan=True)


@pytest.mark.parametrize("view", ["uploads", "sum", "globals"])
def test_nvflare_models_are_recorded_like_a_custom_loop(view: str, tmp_path: Path) -> None:
    record_with_collector(tmp_path / "collector", view=view, attacks=())
    by_hand(tmp_path / "hand", view=view, attacks=())
    same(tmp_path / "collector", tmp_path / "hand")
    assert len(read_round_log(tmp_path / "collector")) == len(list(rounds()))


def test_nvflare_differences_are_added_to_the_sent_model(tmp_path: Path) -> None:
    record_with_collector(tmp_path / "collector", difference=True)
    by_hand(tmp_path / "hand")
    same(tmp_path / "collector", tmp_path / "hand", within=1e-4)


def test_later_in_place_changes_do_not_affect_recorded_arrays(tmp_path: Path) -> None:
    record_with_collector(tmp_path / "spoilt", spoilt=True)
    record_with_collector(tmp_path / "unchanged")
    same(tmp_path / "spoilt", tmp_path / "unchanged")


def test_an_nvflare_recording_can_be_attacked(tmp_path: Path) -> None:
    record_with_collector(tmp_path / "collector")
    out = tmp_path / "out"
    audit_record = attack_recording(
        tmp_path / "collector", ("avg-cosine",), out, figures=SMALL["figures"]
    )
    assert audit_record.findings


def sent() -> dict[str, np.ndarray]:
    return arrays(next(iter(rounds())).sent)


def upload(**changed: object) -> Upload:
    values: dict[str, object] = {**arrays(next(iter(rounds())).uploads[0]), **changed}
    return Upload(values)  # type: ignore[arg-type]


def start_collector(folder: Path, *sites: str, **how: object) -> NvflareRoundCollector:
    collector = NvflareRoundCollector(recorder(folder, strict=False, **how))
    for site in sites:
        collector.add_task(1, site, site, sent())
    return collector


def only_entry(folder: Path) -> RoundEntry:
    (entry,) = read_round_log(folder)
    return entry


def test_sites_that_do_not_reply_are_recorded(tmp_path: Path) -> None:
    collector = start_collector(tmp_path, "site-0", "site-1", "site-2")
    collector.add_result("site-0", upload())
    collector.add_error("site-2", "EXECUTION_EXCEPTION")
    collector.end()
    assert (only_entry(tmp_path).selected, only_entry(tmp_path).answered) == ((0, 1, 2), (0,))
    assert only_entry(tmp_path).measured
    assert not only_entry(tmp_path).complete


def test_a_site_that_replies_after_an_error_is_not_lost(tmp_path: Path) -> None:
    collector = start_collector(tmp_path, "site-0")
    collector.add_error("site-0", "TIMEOUT")
    collector.add_result("site-0", upload())
    collector.end()
    assert only_entry(tmp_path).complete


def test_a_round_without_replies_warns_with_the_error(tmp_path: Path) -> None:
    collector = start_collector(tmp_path, "site-0", "site-1")
    collector.add_error("site-1", "EXECUTION_EXCEPTION")
    with pytest.warns(RuntimeWarning, match="no site answered .1 errors, such as 'EXECUTION_EX"):
        collector.end()
    assert not only_entry(tmp_path).measured
    assert only_entry(tmp_path).selected == (0, 1)


def test_late_and_repeated_results_are_ignored(tmp_path: Path) -> None:
    collector = start_collector(tmp_path, "site-0", "site-1")
    collector.add_result("site-0", upload())
    collector.add_result("site-0", Upload({}))
    collector.add_result("of another time", upload())
    collector.add_task(2, "second", "site-0", sent())
    collector.add_result("site-1", upload())
    collector.add_result("second", upload())
    collector.end()
    first, second = read_round_log(tmp_path)
    assert (first.answered, second.answered) == ((0,), (0,))
    assert first.measured
    assert second.measured


@pytest.mark.parametrize(
    ("back", "message"),
    [
        (upload(**{"1.weight": object()}), "'1.weight' is not an array, but an object"),
        (Upload({"new": np.zeros(3)}, difference=True), "has 'new', which was not sent"),
        (Upload({"1.bias": np.zeros(3)}, difference=True), "'1.bias' of shape .3,., and .16,. was"),
        (Upload({"1.bias": np.zeros(16, "<U3")}, difference=True), "1.bias holds no numbers"),
        (
            Upload({"1.bias": torch.zeros(16).to(torch.float8_e4m3fn)}, difference=True),
            "client 1: its upload cannot be read",
        ),
        (upload(**{"1.bias": np.array([None] * 16)}), "'1.bias' holds no numbers"),
        (Upload({}), "none of the parameters"),
        (upload(new=np.zeros(3)), "has 'new', which the model"),
    ],
)
def test_an_unreadable_result_warns_with_the_site_and_reason(
    back: Upload, message: str, tmp_path: Path
) -> None:
    collector = start_collector(tmp_path, "site-0", "site-1")
    collector.add_result("site-0", upload())
    collector.add_result("site-1", back)
    with pytest.warns(RuntimeWarning, match=message):
        collector.end()
    assert only_entry(tmp_path).answered == (0, 1)


def test_parameters_missing_in_a_difference_are_unchanged(tmp_path: Path) -> None:
    base, after = sent(), upload().arrays
    collector = start_collector(tmp_path / "part", "site-0")
    part = {"1.bias": np.asarray(after["1.bias"]) - base["1.bias"]}
    collector.add_result("site-0", Upload(part, difference=True))
    collector.end()
    with recorder(tmp_path / "hand") as hand_recorder:
        hand_recorder.round(
            1, sent=base, uploads={0: {**base, "1.bias": np.asarray(after["1.bias"])}}
        )
    same(tmp_path / "part", tmp_path / "hand", within=1e-4)


def test_each_site_is_recorded_with_the_model_it_received(
    tmp_path: Path,
) -> None:
    first, second, *_ = rounds()
    collector = NvflareRoundCollector(recorder(tmp_path / "collector"))
    for client, live in enumerate((first, second)):
        collector.add_task(1, str(client), f"site-{client}", arrays(live.sent))
        collector.add_result(str(client), Upload(arrays(live.uploads[client])))
    collector.end()
    with recorder(tmp_path / "hand") as hand_recorder:
        uploads = {0: first.uploads[0], 1: second.uploads[1]}
        hand_recorder.round(1, sent={0: first.sent, 1: second.sent}, uploads=uploads)
    same(tmp_path / "collector", tmp_path / "hand")


def test_weights_equal_those_that_sites_report(tmp_path: Path) -> None:
    collector = start_collector(tmp_path / "collector", "site-0", "site-1", view="sum", attacks=())
    live = next(iter(rounds()))
    collector.add_result("site-0", Upload(arrays(live.uploads[0]), weight=3.0))
    collector.add_result("site-1", Upload(arrays(live.uploads[1])))
    collector.end()
    with recorder(tmp_path / "hand", view="sum", attacks=()) as hand_recorder:
        uploads = {c: live.uploads[c] for c in (0, 1)}
        hand_recorder.round(1, sent=live.sent, uploads=uploads, weights={0: 3.0, 1: 1.0})
    same(tmp_path / "collector", tmp_path / "hand")


def test_a_second_run_into_the_same_folder_warns(tmp_path: Path) -> None:
    collector = start_collector(tmp_path, "site-0")
    collector.add_result("site-0", upload())
    collector.end()
    with pytest.warns(RuntimeWarning, match="give a run of NVFlare another folder"):
        start_collector(tmp_path, "site-0")
    with pytest.raises(BadInput, match="round 1 was recorded before"):
        NvflareRoundCollector(recorder(tmp_path)).add_task(1, "site-0", "site-0", sent())


def test_unreadable_task_data_warns(tmp_path: Path) -> None:
    collector = NvflareRoundCollector(recorder(tmp_path, strict=False))
    collector.add_task(1, "task", "site-0", None, fault="sites are sent data of the kind METRICS")
    collector.add_result("task", upload())
    with pytest.warns(RuntimeWarning, match="data of the kind METRICS"):
        collector.end()
    assert only_entry(tmp_path).answered == (0,)


def test_site_names_end_with_the_client_number() -> None:
    assert client_of("site-12", None) == 12
    assert client_of("7", None) == 7
    assert client_of("north", {"north": 3}) == 3
    for site in ("north", "site-1 ", "site-" + 16 * "1", ""):
        with pytest.raises(BadInput, match="does not end with the number"):
            client_of(site, None)
    with pytest.raises(BadInput, match="'site-1' is not in sites"):
        client_of("site-1", {"north": 3})


def test_two_sites_with_one_number_exclude_only_that_client(tmp_path: Path) -> None:
    collector = start_collector(tmp_path, "north-1", "south-1", "site-0")
    for site in ("north-1", "south-1", "site-0"):
        collector.add_result(site, upload())
    with pytest.warns(RuntimeWarning, match="without client 1: several sites are client 1: north"):
        collector.end()
    entry = only_entry(tmp_path)
    assert (entry.measured, entry.answered, [*entry.excluded]) == (True, (0, 1), [1])


def test_a_site_without_client_is_noted_and_others_are_measured(tmp_path: Path) -> None:
    collector = start_collector(tmp_path, "site-1", "south")
    for site in ("site-1", "south"):
        collector.add_result(site, upload())
    with pytest.warns(
        RuntimeWarning, match="recorded in full: the name 'south' does not end with the num"
    ):
        collector.end()
    entry = only_entry(tmp_path)
    assert (entry.measured, entry.answered, entry.unnamed) == (True, (1,), 1)


@pytest.mark.parametrize(
    "back",
    [
        upload(**{"1.weight": object()}),
        Upload({"new": np.zeros(3)}, difference=True),
        Upload({"1.bias": np.zeros(3)}, difference=True),
        Upload({"1.bias": np.zeros(16, "<U3")}, difference=True),
        Upload({"1.bias": torch.zeros(16).to(torch.float8_e4m3fn)}, difference=True),
        Upload({"1.bias": np.full(16, np.nan, np.float32)}, difference=True),
        upload(**{"1.bias": torch.full((16,), torch.inf)}),
        upload(**{"1.bias": np.array([None] * 16)}),
        None,
    ],
)
def test_a_faulty_site_does_not_change_signals_of_other_sites(
    back: Upload | None, tmp_path: Path
) -> None:
    for folder, spoilt in (("sound", False), ("faulty", True)):
        collector = start_collector(
            tmp_path / folder, "site-0", "site-1", "site-2", attacks=("blackbox-loss",)
        )
        collector.add_result("site-0", upload())
        collector.add_result(
            "site-1", upload() if not spoilt else back, fault="no DXO" if spoilt else ""
        )
        collector.add_result("site-2", upload())
        if spoilt:
            with pytest.warns(RuntimeWarning, match="round 1 is recorded without client 1: "):
                collector.end()
        else:
            collector.end()
    entry = only_entry(tmp_path / "faulty")
    assert (entry.measured, entry.answered, [*entry.excluded]) == (True, (0, 1, 2), [1])
    (sound,), (faulty,) = (measured(tmp_path / folder).values() for folder in ("sound", "faulty"))
    assert torch.equal(faulty, sound[[0, 2]])


def test_an_unreadable_task_excludes_only_its_site(tmp_path: Path) -> None:
    collector = start_collector(tmp_path, "site-0")
    collector.add_task(
        1, "other", "site-1", None, fault="the model sent to site-1 cannot be read: a diff"
    )
    collector.add_task(1, "third", "site-2", {"1.bias": "text"})  # type: ignore[dict-item]
    for task in ("site-0", "other", "third"):
        collector.add_result(task, upload())
    with pytest.warns(RuntimeWarning, match="without client [12]: the model"):
        collector.end()
    assert [*only_entry(tmp_path).excluded] == [1, 2]
    assert only_entry(tmp_path).measured


@pytest.mark.parametrize("reads_metrics", [True, False])
def test_a_much_better_reported_accuracy_fails_the_control(
    reads_metrics: bool, tmp_path: Path
) -> None:
    run_recorder = recorder(tmp_path / "r", attacks=("blackbox-loss",))
    collector = NvflareRoundCollector(run_recorder, reads_metrics=reads_metrics)
    noise = {name: np.zeros_like(value) for name, value in sent().items()}
    for index in (1, 2):
        for client, metrics in enumerate(({"accuracy": 0.99}, {"accuracy": 0.01}, {})):
            collector.add_task(index, f"{index} {client}", f"site-{client}", sent())
            collector.add_result(f"{index} {client}", Upload(noise, reported=metrics))
    collector.end()
    audit_record = attack_recording(tmp_path / "r", (), tmp_path / "out", figures=SMALL["figures"])
    controls = [
        control
        for control in audit_record.controls
        if control.control == "reported training metrics"
    ]
    expected = {0: False, 1: True} if reads_metrics else {}
    assert {control.target: control.passed for control in controls} == expected


def test_named_clients_are_matched_to_sites_by_name(tmp_path: Path) -> None:
    audit = data().split.audit
    parts = {place: np.flatnonzero(audit.fair_target == place) for place in range(2)}
    x, y = audit.samples.features, audit.samples.labels
    names = ("charite", "site-2")
    split = fair_split({n: (x[parts[p]], y[parts[p]]) for p, n in enumerate(names)}, audited=40)
    run_recorder = record(tmp_path, network, split.audit, attacks=("blackbox-loss",), strict=True)
    collector = NvflareRoundCollector(run_recorder)
    for site in (*names, "declined"):
        collector.add_task(1, site, site, sent())
        collector.add_result(site, upload())
    collector.end()
    numbers = {number_of(name): name for name in (*names, "declined")}
    assert read_recording(tmp_path).names == numbers
    assert only_entry(tmp_path).answered == tuple(sorted(numbers))


def test_site_names_can_be_mapped_to_client_names(tmp_path: Path) -> None:
    assert client_of("north", {"north": "charite"}) == "charite"


HERE = __name__


def make_recorder(folder: Path) -> Recorder:
    return record(folder, network, data().split.audit, attacks=("avg-cosine",))


def changes(folder: Path) -> Recorder:
    audit = data().split.audit
    return record(folder, network, audit, attacks=("avg-cosine",), uploads="updates")


def nothing(folder: Path) -> None:
    pass


def test_a_function_is_stored_and_resolved_by_name(tmp_path: Path) -> None:
    assert (
        factory_name(make_recorder)
        == f"{HERE}:make_recorder"
        == factory_name(f"{HERE}:make_recorder")
    )
    assert create_recorder(factory_name(make_recorder), tmp_path).recording.attacks == (
        "avg-cosine",
    )


@pytest.mark.parametrize(
    "makes", [lambda folder: None, "make_recorder", "a b:c", "__main__:make_recorder", "os:"]
)
def test_a_function_that_other_processes_cannot_import_raises(makes: object) -> None:
    with pytest.raises(BadInput, match="in the server's process, which cannot find"):
        factory_name(makes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:make_recorder", "add its file to the job with add_server_file"),
        (f"{HERE}:no_such", "add its file to the job with add_server_file"),
        (f"{HERE}:nothing", "returns None; return a fedaudit recorder"),
        (f"{HERE}:changes", "returns a recorder with uploads='updates'; omit"),
    ],
)
def test_functions_that_return_no_recorder_raise(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        create_recorder(name, tmp_path)


def test_missing_nvflare_raises_with_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fedaudit.integrations.nvflare as package

    monkeypatch.setattr(package, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"install \"fedaudit\[nvflare\]\""):
        package.__getattr__("RecordingFilter")
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        package.__getattr__("other")
    if importlib.util.find_spec("nvflare") is None:
        monkeypatch.undo()
        with pytest.raises(ImportError, match="needs NVFlare"):
            from fedaudit.integrations.nvflare import RecordingFilter  # noqa: F401
