"""Recording of servers of PFLlib, by a stand-in that is written as users write it."""

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fedaudit.core.errors import BadInput
from fedaudit.integrations.pfllib import record_server
from fedaudit.live.attack import attack_recording
from fedaudit.live.files import read_audit
from fedaudit.observe.measurements import read_measured

CLIENTS, SAMPLES, ROUNDS = 4, 60, 3


class BaseHeadSplit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.base(x))
        return out


def read_client_data(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = torch.Generator().manual_seed(number)
    x = torch.randn(SAMPLES, 10, generator=rng)
    y = torch.randint(0, 3, (SAMPLES,), generator=rng)
    return list(zip(x, y, strict=True))


class Client:
    def __init__(self, model: nn.Module, number: int) -> None:
        self.model, self.id = copy.deepcopy(model), number
        self.train_samples = len(read_client_data(number))
        self.seen: set[tuple[float, ...]] = set()

    def load_train_data(self, batch_size: int | None = None) -> DataLoader[Any]:
        data: Any = read_client_data(self.id)
        return DataLoader(data, batch_size or 8, drop_last=True, shuffle=True)

    def set_parameters(self, model: nn.Module) -> None:
        for new, old in zip(model.parameters(), self.model.parameters(), strict=False):
            old.data = new.data.clone()

    def train(self) -> None:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for _ in range(3):
            for x, y in self.load_train_data():
                self.seen |= {tuple(row) for row in x.tolist()}
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()


class FedAvg:
    """Server with the structure of PFLlib's FedAvg."""

    def __init__(self, *, drop: float = 0.0) -> None:
        torch.manual_seed(0)
        self.global_model: nn.Module = BaseHeadSplit()
        self.clients = [Client(self.global_model, number) for number in range(CLIENTS)]
        self.selected_clients: list[Client] = []
        self.uploaded_models: list[nn.Module] = []
        self.uploaded_weights: list[float] = []
        self.uploaded_ids: list[int] = []
        self.drop = drop

    def send_models(self) -> None:
        for client in self.clients:
            client.set_parameters(self.global_model)

    def receive_models(self) -> None:
        active = random.Random(0).sample(
            self.selected_clients, int((1 - self.drop) * len(self.selected_clients))
        )
        total = sum(client.train_samples for client in active)
        self.uploaded_ids = [client.id for client in active]
        self.uploaded_weights = [client.train_samples / total for client in active]
        self.uploaded_models = [client.model for client in active]

    def aggregate_parameters(self) -> None:
        self.global_model = copy.deepcopy(self.uploaded_models[0])
        for parameter in self.global_model.parameters():
            parameter.data.zero_()
        for weight, model in zip(self.uploaded_weights, self.uploaded_models, strict=True):
            pairs = zip(self.global_model.parameters(), model.parameters(), strict=True)
            for mean, parameter in pairs:
                mean.data += parameter.data.clone() * weight

    def train(self) -> None:
        for _ in range(ROUNDS):
            self.selected_clients = list(self.clients)
            self.send_models()
            for client in self.selected_clients:
                client.train()
            self.receive_models()
            self.aggregate_parameters()


class FedRep(FedAvg):
    """Server whose clients upload the base of their model, without its ids."""

    def send_models(self) -> None:
        for client in self.clients:
            pairs = zip(
                self.global_model.parameters(),
                client.model.base.parameters(),  # type: ignore[union-attr, operator]
                strict=False,
            )
            for new, old in pairs:
                old.data = new.data.clone()

    def receive_models(self) -> None:
        super().receive_models()
        self.uploaded_ids = []
        by_model = {id(client.model): client for client in self.clients}
        clients = [by_model[id(model)] for model in self.uploaded_models]
        self.uploaded_models = [client.model.base for client in clients]  # type: ignore[misc]


def quiet(line: str) -> None:
    """Ignore a line about costs."""


def test_a_server_is_recorded_and_its_clients_hold_out_samples(tmp_path: Path) -> None:
    server = FedAvg()
    with record_server(server, tmp_path / "run", audited=20, log=quiet) as recorder:
        server.train()
    assert recorder.measured == [1, 2, 3]
    audit = read_audit(tmp_path / "run")
    for client in server.clients:
        held_out = {
            tuple(row)
            for row, owner, of in zip(
                audit.samples.features.tolist(), audit.owner, audit.fair_target, strict=True
            )
            if of == client.id and owner != client.id
        }
        members = {
            tuple(row)
            for row, owner in zip(audit.samples.features.tolist(), audit.owner, strict=True)
            if owner == client.id
        }
        assert 3 < len(held_out) < 17
        assert len(members) + len(held_out) == 20
        assert not client.seen & held_out
        assert members <= client.seen
        assert client.train_samples == SAMPLES - len(held_out)


def test_the_recorded_loss_is_that_of_the_uploaded_models(tmp_path: Path) -> None:
    server = FedAvg()
    with record_server(server, tmp_path / "run", audited=20, attacks=["loss-series"], log=quiet):
        server.train()
    audit = read_audit(tmp_path / "run")
    last = read_measured(tmp_path / "run")[-1].measured
    for client in server.clients:
        with torch.no_grad():
            outputs = client.model(audit.samples.features)
        loss = nn.functional.cross_entropy(outputs, audit.samples.labels, reduction="none")
        row = last.signals["loss"][last.clients.index(client.id)]
        torch.testing.assert_close(-row.float(), loss, rtol=1e-4, atol=1e-5)


def test_members_of_clients_that_memorise_are_found(tmp_path: Path) -> None:
    server = FedAvg()
    with record_server(server, tmp_path / "run", audited=30, log=quiet):
        server.train()
    record = attack_recording(tmp_path / "run", ["loss-series"], tmp_path / "out")
    aucs = [
        estimate.value
        for estimate in record.findings
        if estimate.metric == "auc" and estimate.contrast == "unseen" and estimate.value
    ]
    assert np.mean(aucs) > 0.55


def test_clients_without_a_reply_are_recorded_as_missing(tmp_path: Path) -> None:
    server = FedAvg(drop=0.5)
    with record_server(server, tmp_path / "run", audited=20, log=quiet) as recorder:
        server.train()
    for entry in recorder.entries:
        assert len(entry.answered) == 2
        assert set(entry.selected) == set(range(CLIENTS))


def test_a_personal_head_stays_at_the_client(tmp_path: Path) -> None:
    server = FedRep()
    initial = copy.deepcopy(server.clients[0].model)
    with record_server(
        server,
        tmp_path / "run",
        audited=20,
        attacks=["loss-series"],
        not_uploaded=["head.*"],
        log=quiet,
    ) as recorder:
        server.train()
    assert recorder.measured == [1, 2, 3]
    audit = read_audit(tmp_path / "run")
    last = read_measured(tmp_path / "run")[-1].measured
    # The adversary combines the uploaded base with the head that all clients started with.
    for client in server.clients:
        seen = copy.deepcopy(initial)
        seen.base.load_state_dict(client.model.base.state_dict())  # type: ignore[union-attr, operator]
        with torch.no_grad():
            outputs = seen(audit.samples.features)
        loss = nn.functional.cross_entropy(outputs, audit.samples.labels, reduction="none")
        row = last.signals["loss"][last.clients.index(client.id)]
        torch.testing.assert_close(-row.float(), loss, rtol=1e-4, atol=1e-5)


def test_only_named_clients_are_audited(tmp_path: Path) -> None:
    server = FedAvg()
    with record_server(server, tmp_path / "run", audited=20, clients=[1, 2], log=quiet) as r:
        server.train()
    assert r.recording.targets == (1, 2)
    assert server.clients[0].train_samples == SAMPLES
    with pytest.raises(BadInput, match="there is no client 9"):
        record_server(server, tmp_path / "other", clients=[9], log=quiet)


def test_another_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no 'send_models'"):
        record_server(object(), tmp_path / "run")
