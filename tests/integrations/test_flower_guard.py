"""The guard of a Flower node."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedaudit.integrations.flower import client_id_mod, guard_mod
from fedaudit.live.decisions import read_decisions
from fedaudit.live.preparing import PreparingProcess
from fedaudit.observe.round import Round
from tests.guard.client import honest, initial, memorising
from tests.guard.test_site import POLICY, site
from tests.integrations.federation import StubGrid

SECRET = np.arange(20.0)
WITHHELD = "the reply is withheld by the guard of this node"


def app(**records: Any) -> ClientApp:
    """Return an app whose partition 0 trains honestly and whose other partitions memorise."""
    client_app = ClientApp(mods=[guard_mod, client_id_mod])

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        upload = honest() if context.node_config["partition-id"] == 0 else memorising()
        metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5})
        content = {"arrays": ArrayRecord(upload), "metrics": metrics, **records}
        for array in message.content.array_records["arrays"].values():
            array.data = b""  # as a client that trains in place
        return Message(
            RecordDict({k: v for k, v in content.items() if v is not None}), reply_to=message
        )

    @client_app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 10})})
        return Message(content, reply_to=message)

    return client_app


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        site(tmp_path / str(number), POLICY)
    monkeypatch.setenv("FEDAUDIT_GUARD", f"{tmp_path}/{{site}}/guard.toml")
    return tmp_path


def run(grid: StubGrid, rounds: int = 2) -> Any:
    strategy = FedAvg(min_available_nodes=2, fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(initial()), num_rounds=rounds)
    return result.arrays


def replies(grid: StubGrid) -> list[Message]:
    return grid.received


def test_a_federation_continues_without_the_node_that_memorises(sites: Path) -> None:
    grid = StubGrid(app(), nodes=2)
    arrays = run(grid).to_torch_state_dict()
    for name, value in honest().items():
        torch.testing.assert_close(arrays[name], value)
    outcomes = [
        [d.outcome for d in read_decisions(sites / str(number) / "guards" / "run-1")]
        for number in range(2)
    ]
    assert outcomes == [["sent", "sent"], ["withheld", "withheld"]]
    errors = [reply.error.reason for reply in replies(grid) if reply.has_error()]
    assert errors == [WITHHELD, WITHHELD]


def test_only_measured_arrays_and_the_number_of_examples_are_sent(sites: Path) -> None:
    grid = StubGrid(app(extra=ConfigRecord({"secret": "x"})), nodes=1)
    run_of_one(grid)
    (reply,) = replies(grid)
    assert {*reply.content} == {"arrays", "metrics"}
    assert {**reply.content.metric_records["metrics"]} == {"num-examples": 10.0}


@pytest.mark.parametrize("allowed", [True, False])
def test_the_model_of_a_message_is_measured_while_the_node_trains(
    allowed: bool, sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (sites / "0" / "guard.toml").open("a") as policy:
        policy.write(f"prepare = {str(allowed).lower()}\n")
    used, begin = list[bool](), PreparingProcess._send_update

    def watched(self: PreparingProcess, seen: Round) -> Any:
        elsewhere = begin(self, seen)
        used.append(bool(elsewhere))
        return elsewhere

    monkeypatch.setattr(PreparingProcess, "_send_update", watched)
    grid = StubGrid(app(), nodes=1)
    run_of_one(grid)
    assert not replies(grid)[0].has_error()
    assert used == [True] * allowed


def test_a_node_with_an_invalid_policy_does_not_train(sites: Path) -> None:
    (sites / "0" / "guard.toml").write_text("limit = 5")
    client_app = ClientApp(mods=[guard_mod, client_id_mod])

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        raise AssertionError("it trains")

    grid = StubGrid(client_app, nodes=1)
    with pytest.warns(RuntimeWarning, match="a reply is withheld: .*limit"):
        run_of_one(grid)
    assert replies(grid)[0].error.reason == WITHHELD


def run_of_one(grid: StubGrid) -> None:
    strategy = FedAvg(min_available_nodes=1, min_train_nodes=1, fraction_evaluate=0.0)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(initial()), num_rounds=1)


@pytest.mark.parametrize(
    "records",
    [
        {"more": ArrayRecord([SECRET])},
        {"arrays": ArrayRecord([SECRET])},
        {"arrays": ArrayRecord({**honest(), "secret": torch.arange(20.0)})},
        {"arrays": None},
        {"more": MetricRecord({"secret": [1.0] * 20})},
        {"metrics": None},
    ],
)
def test_unmeasured_content_is_not_sent(records: dict[str, Any], sites: Path) -> None:
    grid = StubGrid(app(**records), nodes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        run_of_one(grid)
    (reply,) = replies(grid)
    assert reply.error.reason == WITHHELD


def test_metrics_are_sent_if_the_policy_allows_them(sites: Path) -> None:
    path = sites / "0" / "guard.toml"
    path.write_text(f"{path.read_text()}metrics = true\n")
    grid = StubGrid(app(), nodes=1)
    run_of_one(grid)
    (reply,) = replies(grid)
    assert {**reply.content.metric_records["metrics"]} == {"num-examples": 10.0, "train_loss": 0.5}


def test_a_node_without_a_policy_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDAUDIT_GUARD", raising=False)
    grid = StubGrid(app(), nodes=1)
    with pytest.warns(RuntimeWarning, match="has no policy for its guard"):
        run_of_one(grid)
    assert replies(grid)[0].error.reason == WITHHELD


def test_the_text_of_an_error_is_not_sent(sites: Path) -> None:
    client_app = ClientApp(mods=[guard_mod])

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        raise RuntimeError("secret")

    grid = StubGrid(client_app, nodes=1)
    with pytest.warns(RuntimeWarning, match="RuntimeError"):
        run_of_one(grid)
    assert replies(grid)[0].error.reason == WITHHELD


def test_settings_of_a_run_are_not_read(sites: Path, tmp_path: Path) -> None:
    grid = StubGrid(app(), nodes=2)
    for context in grid.contexts.values():
        context.run_config = {"fedaudit-guard": str(tmp_path / "other.toml"), "limit": 0.99}
    run(grid, rounds=1)
    assert [reply.has_error() for reply in replies(grid)].count(True) == 1


SIMULATION = """
import sys

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from tests.guard.client import initial
from tests.integrations.test_flower_guard import app

server = ServerApp()


@server.main()
def main(grid, context):
    strategy = FedAvg(min_available_nodes=2, fraction_evaluate=0.0)
    start = ArrayRecord(initial())
    arrays = strategy.start(grid=grid, initial_arrays=start, num_rounds=2).arrays
    torch.save(arrays.to_torch_state_dict(), sys.argv[1])


run_simulation(server, app(), num_supernodes=2)
"""


@pytest.mark.slow
def test_a_flower_simulation_continues_without_the_node_that_memorises(sites: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedaudit[flower,ray]'")
    script, model = sites / "simulation.py", sites / "model.pt"
    script.write_text(SIMULATION)
    settings = {
        "FLWR_HOME": str(sites / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, script, model],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    outcomes = [
        [d.outcome for path in (sites / str(n) / "guards").iterdir() for d in read_decisions(path)]
        for n in range(2)
    ]
    assert outcomes == [["sent", "sent"], ["withheld", "withheld"]]
    arrays = torch.load(model, weights_only=True)
    for name, value in honest().items():
        torch.testing.assert_close(arrays[name], value)
