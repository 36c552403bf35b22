"""Training metrics that Flower clients report are compared with recorded ones."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp.strategy import FedAvg

from fedaudit.integrations.flower import RecordingGrid, RecordingStrategy, client_id_mod
from fedaudit.integrations.flower.messages import metrics_of
from fedaudit.live.attack import attack_recording
from tests.integrations.federation import StubGrid, client_app, initial
from tests.integrations.test_flower_older import context, strategy
from tests.integrations.test_flower_secure_sum import Client
from tests.live.federation import recorder
from tests.study.studies import SMALL

CONTROL = "reported training metrics"


def reporting(accuracy: dict[int, float], record: str, key: str) -> Mod:
    """Return a mod with which clients report an accuracy in a record of metrics."""

    def mod(message: Message, node: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, node)
        client = int(node.node_config["partition-id"])
        if message.metadata.message_type == "train" and client in accuracy:
            reply.content[record][key] = accuracy[client]
        return reply

    return mod


def verdicts(folder: Path) -> dict[int | None, bool | None]:
    audit_record = attack_recording(folder, (), folder / "out", figures=SMALL["figures"])
    return {
        control.target: control.passed
        for control in audit_record.controls
        if control.control == CONTROL
    }


@pytest.mark.parametrize("key", ["train_acc", "train-accuracy", "accuracy"])
def test_a_too_high_reported_accuracy_fails_the_control(key: str, tmp_path: Path) -> None:
    run_recorder = recorder(tmp_path / "r", attacks=("blackbox-loss",))
    app = client_app([client_id_mod, reporting({0: 0.99, 1: 0.1}, "metrics", key)])
    RecordingStrategy(NoMetrics(), run_recorder).start(StubGrid(app), initial(), num_rounds=2)
    assert verdicts(tmp_path / "r") == {0: False, 1: True}


def test_a_reported_accuracy_is_read_in_the_older_interface(tmp_path: Path) -> None:
    run_recorder = recorder(tmp_path / "r", attacks=("blackbox-loss",))
    mods = [client_id_mod, reporting({0: 0.99, 1: 0.1}, "fitres.metrics", "train_acc")]
    app = ClientApp(lambda node_context: Client(node_context).to_client(), mods=mods)
    with RecordingGrid(StubGrid(app), run_recorder) as grid:
        DefaultWorkflow()(grid, LegacyContext(context(), ServerConfig(num_rounds=2), strategy()))
    assert verdicts(tmp_path / "r") == {0: False, 1: True}


def test_an_accuracy_on_validation_data_is_not_compared(tmp_path: Path) -> None:
    run_recorder = recorder(tmp_path / "r", attacks=("blackbox-loss",))
    app = client_app([client_id_mod, reporting({0: 0.99}, "metrics", "val_accuracy")])
    RecordingStrategy(NoMetrics(), run_recorder).start(StubGrid(app), initial(), num_rounds=2)
    assert verdicts(tmp_path / "r") == {}


def test_the_comparison_of_reported_metrics_can_be_turned_off(tmp_path: Path) -> None:
    run_recorder = recorder(tmp_path / "r", attacks=("blackbox-loss",))
    app = client_app([client_id_mod, reporting({0: 0.99}, "metrics", "train_acc")])
    strategy = RecordingStrategy(NoMetrics(), run_recorder, reads_metrics=False)
    strategy.start(StubGrid(app), initial(), num_rounds=2)
    assert verdicts(tmp_path / "r") == {}


class NoMetrics(FedAvg):
    """A FedAvg that drops metrics, since Flower averages only those that all clients report."""

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        messages = list(replies)
        for message in messages:
            weight = {"num-examples": message.content["metrics"]["num-examples"]}
            message.content["metrics"] = MetricRecord(weight)
        return super().aggregate_train(server_round, messages)


def reply(content: dict[str, MetricRecord | ConfigRecord]) -> Message:
    return Message(RecordDict(content), 1, "train")


def test_metrics_are_found_in_any_record_of_training_and_in_no_other() -> None:
    loss = MetricRecord({"loss": 1.0})
    assert metrics_of(reply({"mine": loss})) == {"loss": 1.0}
    assert metrics_of(reply({"val": loss})) == {}
    assert metrics_of(reply({"fitres.metrics": ConfigRecord({"train_loss": 1.0})})) == {"loss": 1.0}
    assert metrics_of(reply({"config": ConfigRecord({"train_loss": 1.0})})) == {}
    assert metrics_of(reply({})) == {}
