"""Collecting audit parts from Flower clients."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedaudit.core.errors import BadInput
from fedaudit.integrations.flower import (
    RecordingStrategy,
    audit_decline,
    audit_mod,
    audit_reply,
    client_id_mod,
    gathered_audit,
)
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import Split, fair_split
from fedaudit.live.record import record
from fedaudit.live.recording import read_recording
from tests.integrations.federation import CLIENTS, StubGrid, client_app, initial
from tests.live.federation import data, network
from tests.study.studies import SMALL

Answer = Callable[[Message, Context], Message]


def split_of(context: Context, shape: tuple[int, ...] = (2,)) -> Split:
    client = int(context.node_config["partition-id"])
    return fair_split({client: samples(client, 40, shape)}, audited=20)


def samples(client: int, count: int, shape: tuple[int, ...] = (2,)) -> tuple[Tensor, Tensor]:
    """Return samples whose features are between the client's number and the next one."""
    rng = torch.Generator().manual_seed(client)
    return client + torch.rand((count, *shape), generator=rng), torch.zeros(count).long()


def answering(place: int, answer: Answer) -> ClientApp:
    """Return an app whose clients send their parts, except the client at a place."""
    app = ClientApp(mods=[client_id_mod])

    @app.query("audit")
    def audit(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == place:
            return answer(message, context)
        return audit_reply(message, split_of(context))

    return app


def trainer() -> Client:
    return NumPyClient().to_client()


def handing_over() -> ClientApp:
    return answering(-1, lambda message, context: message)


def test_clients_send_their_audit_parts_before_training() -> None:
    grid = StubGrid(handing_over(), late=2)
    audit = gathered_audit(grid, nodes=CLIENTS, node_timeout=10.0)
    assert [message.metadata.message_type for message in grid.sent] == ["query.audit"] * CLIENTS
    assert sorted(set(audit.fair_target.tolist())) == list(range(CLIENTS))
    assert audit.samples.features[:, 0].floor().tolist() == audit.fair_target.tolist()
    assert all(int((audit.fair_target == client).sum()) == 20 for client in range(CLIENTS))
    assert audit.unaudited == {}


def replying(content: RecordDict) -> Answer:
    return lambda message, context: Message(content, reply_to=message)


def raising(message: Message, context: Context) -> Message:
    return Message(Error(1, "the disk is full"), reply_to=message)


def of_another_shape(message: Message, context: Context) -> Message:
    return audit_reply(message, split_of(context, (3,)))


def of_another_client(message: Message, context: Context) -> Message:
    return audit_reply(message, fair_split({5: samples(5, 9)}, audited=4))


OTHER_ANSWERS = {
    "declines": (lambda m, c: audit_decline(m), "declined"),
    "declines with a reason": (lambda m, c: audit_decline(m, "no consent"), "declined: no consent"),
    "answers with an error": (raising, r"an error \(the disk is full\)"),
    "answers with nothing": (replying(RecordDict()), "without a part"),
    "sends no part": (
        replying(RecordDict({"fedaudit.part": ArrayRecord([np.zeros(2)])})),
        "without",
    ),
    "sends half a part": (
        replying(RecordDict({"fedaudit.part": ArrayRecord({"labels": Array(np.zeros(2))})})),
        "no 'owner'",
    ),
    "sends samples of another shape": (
        of_another_shape,
        r"features \(3,\).*most others are features",
    ),
    "sends the part of another client": (of_another_client, "belongs to another client"),
}


@pytest.mark.parametrize("kind", OTHER_ANSWERS)
@pytest.mark.parametrize("place", range(CLIENTS))
def test_a_client_without_audit_part_is_reported(kind: str, place: int) -> None:
    answer, why = OTHER_ANSWERS[kind]
    with pytest.warns(RuntimeWarning, match=f"1 of 3 clients are not audited.*{why}"):
        audit = gathered_audit(StubGrid(answering(place, answer)), nodes=CLIENTS)
    assert sorted(set(audit.fair_target.tolist())) == [
        client for client in range(CLIENTS) if client != place
    ]
    assert len(audit.unaudited) == 1


def test_two_nodes_with_one_client_id_are_both_reported() -> None:
    grid = StubGrid(handing_over())
    first, second, _ = grid.contexts.values()
    second.node_config["partition-id"] = first.node_config["partition-id"] = 0
    with pytest.warns(RuntimeWarning, match="a part of the same client"):
        audit = gathered_audit(grid, nodes=CLIENTS)
    assert set(audit.fair_target.tolist()) == {2}


def test_absent_nodes_are_reported_and_others_are_audited() -> None:
    with pytest.warns(
        RuntimeWarning, match="2 of 5 clients .* 2 nodes: not connected after 0 seconds"
    ):
        audit = gathered_audit(StubGrid(handing_over()), nodes=5, node_timeout=0.0)
    assert len(audit) == 60


def test_nodes_that_do_not_reply_in_time_are_reported() -> None:
    class Slow(StubGrid):
        def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
            return list(super().pull_messages(message_ids))[:2]

    with pytest.warns(RuntimeWarning, match="1 node: no answer within 600 seconds"):
        audit = gathered_audit(Slow(handing_over()), nodes=CLIENTS)
    assert len(audit) == 40


def test_an_audit_below_its_quorum_raises_before_training() -> None:
    with pytest.raises(BadInput, match=r"3 of 5 .* the quorum is 4 .*2 nodes: not connected"):
        gathered_audit(StubGrid(handing_over()), nodes=5, quorum=4, node_timeout=0.0)
    app = ClientApp(lambda context: trainer(), mods=[audit_mod(lambda context: None)])
    with pytest.raises(BadInput, match=r"0 of 3 .* a ClientApp needs @app.query"):
        gathered_audit(StubGrid(app), nodes=CLIENTS)
    with pytest.raises(BadInput, match="quorum is 0; give a number of clients from 1 to nodes=3"):
        gathered_audit(StubGrid(handing_over()), nodes=3, quorum=0)


def test_audit_mod_sends_the_part_of_a_client_function_app() -> None:
    app = ClientApp(lambda context: trainer(), mods=[audit_mod(split_of)])
    audit = gathered_audit(StubGrid(app), nodes=CLIENTS)
    assert sorted(set(audit.fair_target.tolist())) == list(range(CLIENTS))


def test_clients_can_decline_or_report_a_failed_split() -> None:
    def split(context: Context) -> Split | None:
        client = context.node_config["partition-id"]
        if client == 2:
            raise OSError("no such file")
        return split_of(context) if client else None

    app = ClientApp(lambda context: trainer(), mods=[client_id_mod, audit_mod(split)])
    with pytest.warns(RuntimeWarning) as warned:
        audit = gathered_audit(StubGrid(app), nodes=CLIENTS)
    assert audit.unaudited == {
        "client 0": "declined",
        "client 2": "declined: its part cannot be created: no such file",
    }
    assert len(warned) == 1


def test_training_messages_pass_audit_mod(tmp_path: Path) -> None:
    app = client_app([client_id_mod, audit_mod(split_of)])
    assert FedAvg().start(StubGrid(app), initial(), num_rounds=1).arrays


def test_declined_clients_are_in_recording_and_record(tmp_path: Path) -> None:
    digits = data().split

    app = client_app([client_id_mod])

    @app.query("audit")
    def part(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        if client == 2:
            return audit_decline(message)
        mine = np.flatnonzero(digits.audit.fair_target == client)
        x, y = digits.audit.samples.features[mine], digits.audit.samples.labels[mine]
        return audit_reply(message, fair_split({client: (x, y)}, audited=40))

    grid = StubGrid(app)
    with pytest.warns(RuntimeWarning, match="client 2: declined"):
        audit = gathered_audit(grid, nodes=CLIENTS)
    recorder = record(tmp_path / "r", network, audit, attacks=("blackbox-loss",), strict=True)
    RecordingStrategy(FedAvg(), recorder).start(grid, initial(), num_rounds=2)
    assert read_recording(tmp_path / "r").unaudited == {"client 2": "declined"}
    audit_record = attack_recording(tmp_path / "r", (), tmp_path / "out", figures=SMALL["figures"])
    assert "What training reveals about client 2: declined" in audit_record.untested
    assert {finding.target for finding in audit_record.findings} >= {0, 1}
    assert 2 not in {finding.target for finding in audit_record.findings}


def test_client_names_are_taken_from_nodes() -> None:
    def split(context: Context) -> Split:
        name = str(context.node_config["partition-id"])
        return fair_split({name: samples(sum(map(ord, name)), 9)}, audited=4)

    grid = StubGrid(ClientApp(lambda context: trainer(), mods=[client_id_mod, audit_mod(split)]))
    for context, name in zip(grid.contexts.values(), ("north", "south", "2.7"), strict=True):
        context.node_config["partition-id"] = name
    assert len(gathered_audit(grid, nodes=CLIENTS)) == 12
