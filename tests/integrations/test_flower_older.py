"""Flower's older interface: recorded through the grid, refused by the wrapper."""

import inspect
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Scalar, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg, FedMedian
from flwr.server.workflow import DefaultWorkflow

from fedaudit.core.errors import BadInput
from fedaudit.integrations.flower import RecordingGrid, RecordingStrategy, client_id_mod
from fedaudit.live.attack import attack_recording
from fedaudit.live.record import record
from fedaudit.live.recording import read_round_log
from fedaudit.observe.measurements import read_measured
from tests.integrations.federation import CLIENTS, StubGrid, initial
from tests.integrations.test_flower_secure_sum import AUDIT, NAMES, ROUNDS, Client
from tests.live.federation import data, network


def strategy() -> FedAvg:
    return FedAvg(
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(initial().to_numpy_ndarrays()),
        on_fit_config_fn=lambda index: {"round": index},
    )


def app() -> ClientApp:
    return ClientApp(lambda context: Client(context).to_client(), mods=[client_id_mod])


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


def test_workflows_of_the_older_interface_are_recorded(tmp_path: Path) -> None:
    Client.plain.clear()
    recorder = record(tmp_path / "r", network, AUDIT, attacks=NAMES, keep="full", strict=True)
    with RecordingGrid(StubGrid(app()), recorder) as grid:
        legacy = LegacyContext(context(), ServerConfig(num_rounds=ROUNDS), strategy())
        DefaultWorkflow()(grid, legacy)
    entries = read_round_log(tmp_path / "r")
    assert [(entry.round, entry.answered, entry.measured, entry.note) for entry in entries] == [
        (index, tuple(range(CLIENTS)), True, "") for index in range(1, ROUNDS + 1)
    ]
    record_ = attack_recording(tmp_path / "r", (), tmp_path / "out", figures={"permutations": 20})
    assert {attack.name for attack in record_.attacks} == {*NAMES}


def test_server_apps_with_older_strategies_are_recorded(tmp_path: Path) -> None:
    def components(context: Context) -> ServerAppComponents:
        return ServerAppComponents(config=ServerConfig(num_rounds=1), strategy=strategy())

    recorder = record(tmp_path, network, AUDIT, attacks=NAMES, strict=True)
    with RecordingGrid(StubGrid(app()), recorder) as grid:
        ServerApp(server_fn=components)(grid, context())
    (stored,) = read_measured(tmp_path)
    assert stored.measured.clients == tuple(range(CLIENTS))
    assert torch.isfinite(stored.measured.signals["gradient-cosine"]).all()


@pytest.mark.parametrize("inner", [FedAvg(), FedMedian()])
def test_strategies_of_the_older_interface_raise_with_advice(inner: FedAvg, tmp_path: Path) -> None:
    recorder = record(tmp_path, network, AUDIT, attacks=NAMES)
    with pytest.raises(BadInput, match=r"older interface; .* RecordingGrid\(grid, recorder\)"):
        # Users call it without the type checks of these tests.
        inspect.unwrap(RecordingStrategy.__init__)(
            object.__new__(RecordingStrategy), inner, recorder
        )


class Estimator(NumPyClient):
    """A client that sends the parameters of a scikit-learn estimator as NumPy arrays."""

    def __init__(self, context: Context) -> None:
        self.samples = data().clients[int(context.node_config["partition-id"])]

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Scalar]
    ) -> tuple[list[np.ndarray], int, dict[str, Scalar]]:
        model = LogisticRegression(max_iter=5, warm_start=True)
        model.classes_, (model.coef_, model.intercept_) = np.arange(10), parameters
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(self.samples.features.numpy(), self.samples.labels.numpy())
        return [model.coef_, model.intercept_], len(self.samples), {}


def test_an_estimator_of_scikit_learn_is_recorded_as_a_linear_layer(tmp_path: Path) -> None:
    zeros = [np.zeros((10, 64)), np.zeros(10)]
    learner = FedAvg(fraction_evaluate=0.0, initial_parameters=ndarrays_to_parameters(zeros))
    clients = ClientApp(lambda context: Estimator(context).to_client(), mods=[client_id_mod])
    make = partial(nn.Linear, 64, 10)
    recorder = record(tmp_path, make, AUDIT, attacks=NAMES, strict=True)
    with RecordingGrid(StubGrid(clients), recorder) as grid:
        legacy = LegacyContext(context(), ServerConfig(num_rounds=1), learner)
        DefaultWorkflow()(grid, legacy)
    (stored,) = read_measured(tmp_path)
    labels = AUDIT.samples.labels
    expected = -np.log(10) * np.ones(len(labels))
    assert stored.measured.clients == tuple(range(CLIENTS))
    # Trained models have smaller losses than a uniform guess.
    assert (stored.measured.signals["loss"].mean(1) > expected.mean()).all()
