"""Recording of servers of FL-bench, by a stand-in that is written as users write it."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput
from fedaudit.integrations.flbench import record_server
from fedaudit.live.files import read_audit
from fedaudit.observe.measurements import read_measured

CLIENTS, SAMPLES, ROUNDS = 4, 60, 3


class DecoupledModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.classifier = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.classifier(self.base(x))
        return out


class Dataset:
    """Data set with a transform that only training uses."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(0)
        self.data = torch.randn(CLIENTS * SAMPLES, 10, generator=rng)
        self.targets = torch.randint(0, 3, (CLIENTS * SAMPLES,), generator=rng)
        self.is_training = True

    def train(self) -> None:
        self.is_training = True

    def eval(self) -> None:
        self.is_training = False

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[index] * (1.01 if self.is_training else 1), self.targets[index]


class FedAvgClient:
    def __init__(
        self, model: nn.Module, dataset: Dataset, indices: list[dict[str, list[int]]], diff: bool
    ) -> None:
        self.model, self.dataset, self.data_indices = model, dataset, indices
        self.regular_params_name = [name for name, _ in model.named_parameters()]
        self.personal_params_name: list[str] = []
        self.return_diff = diff
        self.seen: set[int] = set()

    def train(self, package: dict[str, Any]) -> dict[str, Any]:
        self.model.load_state_dict(package["regular_model_params"], strict=False)
        self.model.load_state_dict(package["personal_model_params"], strict=False)
        indices = self.data_indices[package["client_id"]]["train"]
        self.seen |= {*indices}
        self.dataset.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for _ in range(3):
            for index in indices:
                x, y = self.dataset[index]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x[None]), y[None])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        state = self.model.state_dict()
        trained = {key: state[key].clone() for key in self.regular_params_name}
        answer: dict[str, Any] = {
            "weight": len(indices),
            "personal_model_params": {key: state[key].clone() for key in self.personal_params_name},
        }
        if self.return_diff:
            sent = package["regular_model_params"]
            return answer | {"model_params_diff": {k: sent[k] - v for k, v in trained.items()}}
        return answer | {"regular_model_params": trained}


class FedPerClient(FedAvgClient):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.personal_params_name.extend(
            [name for name in self.model.state_dict() if "classifier" in name]
        )


class FedAvgServer:
    client_cls: type[FedAvgClient] = FedAvgClient
    return_diff = False

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DecoupledModel()
        self.public_model_params = {k: v.data.clone() for k, v in self.model.named_parameters()}
        self.dataset = Dataset()
        self.client_data_indices: list[dict[str, list[int]]] = [
            {"train": list(range(c * SAMPLES, (c + 1) * SAMPLES)), "val": [], "test": []}
            for c in range(CLIENTS)
        ]
        self.train_clients = list(range(CLIENTS))
        self.clients_personal_model_params: list[dict[str, torch.Tensor]] = [
            {} for _ in range(CLIENTS)
        ]
        worker = self.client_cls(
            copy.deepcopy(self.model), self.dataset, self.client_data_indices, self.return_diff
        )
        self.trainer = SimpleNamespace(worker=worker)
        self.selected_clients: list[int] = []
        self.current_epoch = 0
        self.trained: list[dict[int, dict[str, torch.Tensor]]] = []

    def aggregate_client_updates(self, client_packages: dict[int, dict[str, Any]]) -> None:
        weights = torch.tensor([package["weight"] for package in client_packages.values()])
        weights = weights / weights.sum()
        for name, mean in self.public_model_params.items():
            if self.return_diff:
                values = [
                    package["model_params_diff"][name] for package in client_packages.values()
                ]
                mean.data -= torch.sum(torch.stack(values, -1) * weights, -1)
            else:
                values = [p["regular_model_params"][name] for p in client_packages.values()]
                mean.data = torch.sum(torch.stack(values, -1) * weights, -1)

    def run_experiment(self) -> None:
        for epoch in range(ROUNDS):
            self.current_epoch = epoch
            self.selected_clients = [0, 1, 3] if epoch == 1 else [3, 2, 1, 0]
            packages: dict[int, dict[str, Any]] = {}
            trained = {}
            for client in self.selected_clients:
                personal = self.clients_personal_model_params[client]
                packages[client] = self.trainer.worker.train(
                    {
                        "client_id": client,
                        "regular_model_params": copy.deepcopy(self.public_model_params),
                        "personal_model_params": personal,
                    }
                )
                personal.update(packages[client]["personal_model_params"])
                trained[client] = copy.deepcopy(self.trainer.worker.model.state_dict())
            self.trained.append(trained)
            self.aggregate_client_updates(packages)


class DiffServer(FedAvgServer):
    return_diff = True


class FedPerServer(FedAvgServer):
    client_cls = FedPerClient


def quiet(line: str) -> None:
    """Ignore a line about costs."""


@pytest.mark.parametrize("kind", [FedAvgServer, DiffServer, FedPerServer])
def test_the_recorded_loss_is_that_of_the_uploaded_parameters(
    tmp_path: Path, kind: type[FedAvgServer]
) -> None:
    server = kind()
    initial = copy.deepcopy(server.model.state_dict())
    with record_server(
        server, tmp_path / "run", audited=20, attacks=["loss-series"], log=quiet
    ) as recorder:
        server.run_experiment()
    assert recorder.measured == [1, 2, 3]
    audit = read_audit(tmp_path / "run")
    for stored, trained in zip(read_measured(tmp_path / "run"), server.trained, strict=True):
        assert {*stored.measured.clients} == {*trained}
        for client, state in trained.items():
            model = DecoupledModel()
            seen = dict(state)
            if kind is FedPerServer:
                # The classifier stays at the client, so that the adversary uses the initial one.
                seen |= {name: initial[name] for name in state if "classifier" in name}
            model.load_state_dict(seen)
            with torch.no_grad():
                outputs = model(audit.samples.features)
            loss = nn.functional.cross_entropy(outputs, audit.samples.labels, reduction="none")
            row = stored.measured.signals["loss"][stored.measured.clients.index(client)]
            torch.testing.assert_close(-row.float(), loss, rtol=1e-4, atol=1e-5)


def test_clients_hold_out_the_non_members(tmp_path: Path) -> None:
    server = FedAvgServer()
    features = {tuple(row): index for index, row in enumerate(server.dataset.data.tolist())}
    with record_server(server, tmp_path / "run", audited=20, clients=[0, 2], log=quiet):
        server.run_experiment()
    audit = read_audit(tmp_path / "run")
    rows = [features[tuple(row)] for row in audit.samples.features.tolist()]
    members = {row for row, owner in zip(rows, audit.owner, strict=True) if owner >= 0}
    assert {*audit.fair_target.tolist()} == {0, 2}
    assert 10 < len(members) < 30
    seen = server.trainer.worker.seen
    assert seen == {*range(CLIENTS * SAMPLES)} - ({*rows} - members)


def test_parallel_training_and_other_servers_are_refused(tmp_path: Path) -> None:
    server = FedAvgServer()
    server.trainer = SimpleNamespace(workers=[])
    with pytest.raises(BadInput, match="set mode to serial"):
        record_server(server, tmp_path / "run")
    with pytest.raises(BadInput, match="has no 'aggregate_client_updates'"):
        record_server(object(), tmp_path / "run")
    with pytest.raises(BadInput, match="client 9 does not train"):
        record_server(FedAvgServer(), tmp_path / "run", clients=[9])
