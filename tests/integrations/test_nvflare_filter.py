"""The recording filter of an NVFlare server."""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'fedaudit[nvflare]'")

from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

from fedaudit.core.errors import BadInput
from fedaudit.integrations.nvflare import RecordingFilter
from fedaudit.integrations.nvflare.collector import RecorderFactory
from fedaudit.integrations.nvflare.filter import upload_in
from fedaudit.live.attack import attack_recording
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import read_round_log
from fedaudit.observe.measurements import read_measured
from tests.live.federation import Live, data, module, network, rounds
from tests.study.studies import SMALL

AUDIT = data().split.audit
SITES = 3


def lenient(folder: Path) -> Recorder:
    return record(folder, network, AUDIT, attacks=("blackbox-loss", "avg-cosine"))


def strict(folder: Path) -> Recorder:
    return record(folder, network, AUDIT, attacks=("blackbox-loss",), strict=True)


def blind(folder: Path) -> Recorder:
    return record(folder, network, AUDIT, view="globals")


def broken(folder: Path) -> Recorder:
    raise RuntimeError("no such data")


class Server:
    """A simulation of NVFlare's server, as its filters see it."""

    def __init__(self, filter: RecordingFilter) -> None:
        self.filter = filter
        self.log: list[str] = []
        self.panics: list[str] = []
        instead = {
            "log_warning": lambda context, text: self.log.append(text),
            "log_error": lambda context, text: self.log.append(text),
            "system_panic": lambda reason, context: self.panics.append(reason),
        }
        for name, does in instead.items():
            setattr(filter, name, does)
        self.event(EventType.START_RUN)

    def event(self, name: str, **props: object) -> None:
        self.filter.handle_event(name, self.context("", "", **props))

    def context(self, site: str, task: str, **props: object) -> FLContext:
        context, peer = FLContext(), FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, site, private=False, sticky=False)
        context.set_peer_context(peer)
        properties = {FLContextKey.TASK_ID: task, FLContextKey.TASK_NAME: "train", **props}
        for key, value in properties.items():
            context.set_prop(key, value, private=True, sticky=False)
        return context

    def send(self, round: object, site: str, content: Shareable) -> None:
        content.set_header(AppConstants.CURRENT_ROUND, round)
        context = self.context(site, f"{round} {site}", **{FLContextKey.TASK_DATA: content})
        self.filter.handle_event(EventType.AFTER_TASK_DATA_FILTER, context)

    def receive(self, round: int, site: str, content: Shareable) -> None:
        before = copy.deepcopy(content)
        assert self.filter.process(content, self.context(site, f"{round} {site}")) is content
        assert content.keys() == before.keys()

    def update(self, params: dict[str, np.ndarray]) -> None:
        model = make_model_learnable(params, {})
        self.event(AppEventType.AFTER_SHAREABLE_TO_LEARNABLE, **{AppConstants.GLOBAL_MODEL: model})


def server(folder: Path, makes: RecorderFactory = lenient, *, task: str = "train") -> Server:
    return Server(RecordingFilter(makes, folder / "recording", task=task))


def numpy_of(params: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in params.items()}


def message(kind: str, params: Mapping[str, object], **meta: object) -> Shareable:
    shareable: Shareable = DXO(kind, dict(params), meta).to_shareable()
    return shareable


def model_of(live: Live) -> Shareable:
    return message(DataKind.WEIGHTS, numpy_of(live.sent))


def weights_of(live: Live, client: int) -> Shareable:
    return message(DataKind.WEIGHTS, numpy_of(live.uploads[client]))


def tensors(live: Live, client: int) -> Shareable:
    return message(DataKind.WEIGHTS, live.uploads[client])


def difference(live: Live, client: int) -> Shareable:
    changed = {name: value - live.sent[name] for name, value in live.uploads[client].items()}
    return message(DataKind.WEIGHT_DIFF, numpy_of(changed))


def first_rounds() -> Iterator[Live]:
    yield from list(rounds())[:2]


def names() -> list[str]:
    return [f"site-{client}" for client in range(SITES)]


@pytest.mark.parametrize("back", [weights_of, tensors, difference])
def test_recorded_losses_match_the_models_of_the_sites(
    back: Callable[[Live, int], Shareable], tmp_path: Path
) -> None:
    nvflare_server = server(tmp_path)
    for live in first_rounds():
        for site in names():
            nvflare_server.send(live.number - 1, site, model_of(live))
        for client, site in enumerate(names()):
            nvflare_server.receive(live.number - 1, site, back(live, client))
        nvflare_server.update(numpy_of(live.after))
    nvflare_server.event(EventType.ABOUT_TO_END_RUN)
    assert nvflare_server.log == []
    x, y = AUDIT.samples.features, AUDIT.samples.labels
    for stored, live in zip(read_measured(tmp_path / "recording"), first_rounds(), strict=True):
        for column, client in enumerate(stored.measured.clients):
            with torch.no_grad():
                outputs = module(live.uploads[client])(x)
            expected = -torch.nn.functional.cross_entropy(outputs, y, reduction="none")
            torch.testing.assert_close(
                stored.measured.signals["loss"][column].float(), expected, rtol=1e-4, atol=1e-4
            )
    assert all(
        entry.complete and entry.measured for entry in read_round_log(tmp_path / "recording")
    )
    out = tmp_path / "out"
    assert attack_recording(tmp_path / "recording", (), out, figures=SMALL["figures"]).findings


def test_failed_and_silent_sites_are_recorded(tmp_path: Path) -> None:
    nvflare_server = server(tmp_path)
    live = next(first_rounds())
    for site in names():
        nvflare_server.send(0, site, model_of(live))
    nvflare_server.receive(0, "site-0", weights_of(live, 0))
    nvflare_server.receive(0, "site-1", make_reply(ReturnCode.EXECUTION_EXCEPTION))
    nvflare_server.event(EventType.ABOUT_TO_END_RUN)
    (entry,) = read_round_log(tmp_path / "recording")
    assert (entry.selected, entry.answered, entry.complete) == ((0, 1, 2), (0,), False)
    assert entry.measured


@pytest.mark.parametrize(
    ("content", "message_pattern"),
    [
        (message(DataKind.METRICS, {"accuracy": 0.5}), "client 0: .* data of the kind METRICS"),
        (
            message(DataKind.WEIGHTS, {"a": 1}, **{MetaKey.PROCESSED_ALGORITHM: "CKKS"}),
            "client 0: its upload cannot be read: its arrays are CKKS",
        ),
        (message(DataKind.WEIGHTS, {}), "data of the kind WEIGHTS without arrays"),
        (Shareable(), "it has no DXO"),
    ],
)
def test_an_unreadable_result_of_the_only_site_loses_only_its_round(
    content: Shareable, message_pattern: str, tmp_path: Path
) -> None:
    nvflare_server = server(tmp_path)
    first, second = first_rounds()
    for live, back in ((first, content), (second, weights_of(second, 0))):
        nvflare_server.send(live.number - 1, "site-0", model_of(live))
        nvflare_server.receive(live.number - 1, "site-0", back)
        nvflare_server.update(numpy_of(live.after))
    nvflare_server.event(EventType.ABOUT_TO_END_RUN)
    line, summary = nvflare_server.log
    assert re.search(message_pattern, line)
    assert "1 of 2 rounds are not recorded" in summary
    assert [entry.measured for entry in read_round_log(tmp_path / "recording")] == [False, True]
    assert nvflare_server.panics == []


@pytest.mark.parametrize(
    "content",
    [
        message(DataKind.METRICS, {"accuracy": 0.5}),
        message(DataKind.WEIGHTS, {"a": 1}, **{MetaKey.PROCESSED_ALGORITHM: "CKKS"}),
        message(DataKind.WEIGHTS, {}),
        message(DataKind.WEIGHT_DIFF, {"new": np.zeros(2)}),
        message(DataKind.COLLECTION, {"a": DXO(DataKind.WEIGHTS, {"a": np.zeros(2)})}),
        message(DataKind.ANALYTIC, {"a": np.zeros(2)}),
        Shareable(),
    ],
)
def test_a_site_that_sends_no_model_is_excluded(content: Shareable, tmp_path: Path) -> None:
    nvflare_server = server(tmp_path)
    live = next(first_rounds())
    for site in names():
        nvflare_server.send(0, site, model_of(live))
    nvflare_server.receive(0, "site-0", weights_of(live, 0))
    nvflare_server.receive(0, "site-1", content)
    nvflare_server.receive(0, "site-2", difference(live, 2))
    nvflare_server.update(numpy_of(live.after))
    nvflare_server.event(EventType.ABOUT_TO_END_RUN)
    assert (
        "round 1 is recorded without client 1: its upload cannot be read" in nvflare_server.log[0]
    )
    (entry,) = read_round_log(tmp_path / "recording")
    assert (entry.measured, entry.answered, [*entry.excluded]) == (True, (0, 1, 2), [1])
    assert nvflare_server.panics == []


@pytest.mark.parametrize(
    ("metrics", "reported"),
    [
        ({"train_loss": 0.25, "train_acc": 0.9}, {"loss": 0.25, "accuracy": 0.9}),
        # By NVFlare's convention, metrics sent with weights are of the received model.
        ({"accuracy": 0.5, "loss": 1.0, "val_loss": 1.0}, {}),
        ({"train_loss": "low", "train_accuracy": None}, {}),
        (0.5, {}),
        (None, {}),
    ],
)
def test_only_training_metrics_of_a_site_are_read(
    metrics: object, reported: dict[str, float]
) -> None:
    content = message(DataKind.WEIGHTS, {"a": np.zeros(1)}, **{MetaKey.INITIAL_METRICS: metrics})
    assert upload_in(content).reported == reported


@pytest.mark.parametrize("steps", [10**400, float("nan"), -1, True, "many"])
def test_an_invalid_weight_counts_as_one(steps: object, tmp_path: Path) -> None:
    nvflare_server = server(tmp_path)
    live = next(first_rounds())
    nvflare_server.send(0, "site-0", model_of(live))
    meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: steps}
    nvflare_server.receive(
        0, "site-0", message(DataKind.WEIGHTS, numpy_of(live.uploads[0]), **meta)
    )
    nvflare_server.event(EventType.ABOUT_TO_END_RUN)
    assert nvflare_server.log == []
    assert [entry.measured for entry in read_round_log(tmp_path / "recording")] == [True]


def test_an_unreadable_sent_model_is_reported(tmp_path: Path) -> None:
    nvflare_server = server(tmp_path)
    live = next(first_rounds())
    nvflare_server.send(0, "site-0", message(DataKind.WEIGHT_DIFF, numpy_of(live.sent)))
    nvflare_server.receive(0, "site-0", weights_of(live, 0))
    nvflare_server.event(EventType.ABOUT_TO_END_RUN)
    assert (
        "the model sent to site-0 cannot be read: it is data of the kind WEIGHT_DIFF"
        in nvflare_server.log[0]
    )


def test_tasks_without_round_or_site_do_not_end_the_run(tmp_path: Path) -> None:
    nvflare_server = server(tmp_path)
    nvflare_server.send("second", "site-0", message(DataKind.WEIGHTS, {"a": np.zeros(1)}))
    assert "the round of a task is 'second'" in nvflare_server.log[0]
    nvflare_server.filter.process(Shareable(), FLContext())
    nvflare_server.filter.handle_event(EventType.AFTER_TASK_DATA_FILTER, FLContext())
    assert nvflare_server.panics == []


def test_other_tasks_are_ignored_and_missing_training_warns(tmp_path: Path) -> None:
    nvflare_server = server(tmp_path, task="learn")
    live = next(first_rounds())
    nvflare_server.send(0, "site-0", model_of(live))
    nvflare_server.receive(0, "site-0", weights_of(live, 0))
    nvflare_server.event(EventType.ABOUT_TO_END_RUN)
    assert "no site was sent a task 'learn'" in nvflare_server.log[0]
    assert read_round_log(tmp_path / "recording") == []


def test_an_unrecordable_run_ends_before_training(tmp_path: Path) -> None:
    nvflare_server = server(tmp_path, broken)
    assert nvflare_server.panics == ["fedaudit: the run cannot be recorded: no such data"]
    nvflare_server.receive(0, "site-0", Shareable())


def test_a_strict_recorder_ends_the_run_at_an_unrecordable_round(
    tmp_path: Path,
) -> None:
    nvflare_server = server(tmp_path, strict)
    live = next(first_rounds())
    nvflare_server.send(0, "site-0", model_of(live))
    nvflare_server.receive(0, "site-0", message(DataKind.METRICS, {"accuracy": 0.5}))
    assert nvflare_server.panics == []
    nvflare_server.update(numpy_of(live.after))
    assert "data of the kind METRICS" in nvflare_server.panics[0]


def test_a_view_without_uploads_reads_no_uploads(tmp_path: Path) -> None:
    nvflare_server = server(tmp_path, blind)
    for live in first_rounds():
        nvflare_server.send(live.number - 1, "site-0", model_of(live))
        nvflare_server.receive(
            live.number - 1, "site-0", message(DataKind.METRICS, {"accuracy": 0.5})
        )
        nvflare_server.update(numpy_of(live.after))
    nvflare_server.event(EventType.ABOUT_TO_END_RUN)
    assert nvflare_server.log == []
    assert [entry.measured for entry in read_round_log(tmp_path / "recording")] == [True, True]


def test_a_job_stores_only_the_arguments_of_the_filter(
    tmp_path: Path,
) -> None:
    job = FedJob(name="job")
    recording_filter = RecordingFilter("task:record", "runs/mine", sites={"north": 0, "south": 1})
    job.to_server(recording_filter, filter_type=FilterType.TASK_RESULT, tasks=["train"])
    job.export_job(str(tmp_path))
    (config,) = tmp_path.rglob("config_fed_server.json")
    (chain,) = json.loads(config.read_text())["task_result_filters"]
    assert chain["tasks"] == ["train"]
    (stored,) = chain["filters"]
    assert stored["path"] == f"{RecordingFilter.__module__}.RecordingFilter"
    assert stored["args"] == {
        "recorder": "task:record",
        "folder": str(Path("runs/mine").absolute()),
        "sites": {"north": 0, "south": 1},
    }
    assert vars(RecordingFilter(**stored["args"])) == vars(recording_filter)
    assert not list(tmp_path.rglob("*.py"))


@pytest.mark.parametrize(
    ("target", "how", "message_pattern"),
    [
        ("server", {"filter_type": FilterType.TASK_DATA}, "with add_server_input_filter"),
        ("server", {"filter_type": FilterType.TASK_RESULT, "tasks": ["learn"]}, "of the task"),
        ("site-1", {"filter_type": FilterType.TASK_RESULT}, "this object can only be assigned"),
    ],
)
def test_a_filter_added_at_a_place_without_models_raises(
    target: str, how: dict[str, object], message_pattern: str
) -> None:
    with pytest.raises((BadInput, ValueError), match=message_pattern):
        FedJob(name="job").to(RecordingFilter("task:record", "runs/mine"), target, **how)
