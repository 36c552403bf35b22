"""Recording Flower's secure aggregation: the recorder sees masks and a sum."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.common import Code, FitRes, Parameters, Scalar, Status, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from fedaudit.core.errors import BadInput
from fedaudit.integrations.flower import RecordingGrid, client_id_mod
from fedaudit.integrations.flower.secure_sum import SumRecordingStrategy
from fedaudit.live.attack import attack_recording
from fedaudit.live.record import record
from fedaudit.live.recording import RoundEntry, read_round_log
from fedaudit.observe.measurements import read_measured
from tests.integrations.federation import CLIENTS, StubGrid, initial, trained
from tests.live.federation import data, network

AUDIT = data().split.audit
NAMES = ("blackbox-loss", "avg-cosine")
ROUNDS = 2
OK = Status(Code.OK, "")


class Client(NumPyClient):
    """A client that trains like those of other tests and keeps its unmasked arrays."""

    plain: dict[tuple[int, int], list[np.ndarray]] = {}  # noqa: RUF012

    def __init__(self, context: Context) -> None:
        self.context = context

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, object]
    ) -> tuple[list[np.ndarray], int, dict[str, object]]:
        names = network().state_dict().keys()
        state = {n: torch.tensor(a) for n, a in zip(names, parameters, strict=True)}
        index, client = int(str(config["round"])), int(self.context.node_config["partition-id"])
        content = RecordDict(
            {"arrays": ArrayRecord(state), "config": ConfigRecord({"server-round": index})}
        )
        net, examples = trained(Message(content, 1, "train"), self.context)
        arrays = [value.numpy() for value in net.state_dict().values()]
        self.plain[index, client] = arrays
        return arrays, examples, {}


def aggregated(folder: Path, mods: list[Mod], secure: bool = True) -> StubGrid:
    """Record two rounds of Flower's SecAgg+; the returned grid has the server's messages."""
    Client.plain.clear()
    grid = StubGrid(ClientApp(lambda context: Client(context).to_client(), mods=mods))
    arrays = initial().to_numpy_ndarrays()
    strategy = FedAvg(
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(arrays),
        on_fit_config_fn=lambda index: {"round": index},
    )
    recorder = record(folder, network, AUDIT, view="sum", attacks=NAMES, strict=True)
    with recorder:
        context = LegacyContext(
            Context(1, 1, {}, RecordDict(), {}),
            ServerConfig(num_rounds=ROUNDS),
            SumRecordingStrategy(strategy, recorder),
        )
        # Fine quantization steps, so that the sum is close to that of the clients' arrays.
        workflow = SecAggPlusWorkflow(
            3, 2, clipping_range=2.0, quantization_range=2**22, modulus_range=2**32
        )
        fit = {"fit_workflow": workflow} if secure else {}
        DefaultWorkflow(**fit)(grid, context)
    return grid


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StubGrid, dict]:  # type: ignore[type-arg]
    folder = tmp_path_factory.mktemp("secure") / "recording"
    grid = aggregated(folder, [secaggplus_mod, client_id_mod])
    return folder, grid, dict(Client.plain)


def test_the_server_receives_only_masked_uploads(secret: tuple) -> None:  # type: ignore[type-arg]
    _, grid, plain = secret
    replies = [m for m in grid.received if m.metadata.message_type == "train"]
    assert len(replies) == 4 * CLIENTS * ROUNDS, "four stages"
    carried = [a for m in replies for r in m.content.array_records.values() for a in r.values()]
    assert carried == [], "no arrays"
    packed = [
        item
        for message in replies
        for config in message.content.config_records.values()
        for value in config.values()
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, bytes)
    ]
    assert packed
    for arrays in plain.values():
        for array in arrays:
            assert not any(array.tobytes() in item for item in packed)


def test_the_recorded_sum_equals_the_sum_of_the_uploads(secret: tuple, tmp_path: Path) -> None:  # type: ignore[type-arg]
    folder, _, plain = secret
    sizes = {client: len(samples) for client, samples in data().clients.items()}
    arrays = initial().to_numpy_ndarrays()
    with record(tmp_path, network, AUDIT, view="sum", attacks=NAMES, strict=True) as recorder:
        for index in range(1, ROUNDS + 1):
            uploads = {client: plain[index, client] for client in range(CLIENTS)}
            weights = {client: float(size) for client, size in sizes.items()}
            recorder.round(index, sent=arrays, uploads=uploads, weights=weights)
            total = sum(sizes.values())
            shares = [size / total for size in sizes.values()]
            arrays = [
                sum(share * uploads[c][place] for c, share in enumerate(shares))
                for place in range(len(arrays))
            ]
    recorded, expected = read_measured(folder), read_measured(tmp_path)
    assert len(recorded) == len(expected) == ROUNDS
    for stored, reference in zip(recorded, expected, strict=True):
        for name, values in reference.measured.signals.items():
            torch.testing.assert_close(
                stored.measured.signals[name], values, rtol=2e-2, atol=2e-2, msg=name
            )
    assert [(entry.answered, entry.complete) for entry in read_round_log(folder)] == [
        ((0, 1, 2), True)
    ] * ROUNDS


def test_attacks_that_need_uploads_are_refused_and_other_attacks_run(secret: tuple) -> None:  # type: ignore[type-arg]
    folder, _, _ = secret
    audit_record = attack_recording(folder, (), folder / "out")
    assert {finding.attack for finding in audit_record.findings} == set(NAMES)
    with pytest.raises(BadInput, match="fedmia-1"):
        attack_recording(folder, ("fedmia-1",), folder / "other")


def test_uploads_without_secure_aggregation_are_not_recorded_as_a_sum(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="do not come from secure aggregation"):
        aggregated(tmp_path / "a", [client_id_mod], secure=False)
    with pytest.raises(BadInput, match=r"add client_id_mod .* after secaggplus_mod"):
        aggregated(tmp_path / "b", [secaggplus_mod])
    with pytest.raises(BadInput, match="create it with view='sum'"):
        SumRecordingStrategy(FedAvg(), record(tmp_path / "c", network, AUDIT, attacks=NAMES))


def proxy(cid: str) -> ClientProxy:
    """Return a client of Flower's older interface, which identifies it by a name."""
    return Mock(spec=ClientProxy, cid=cid)  # type: ignore[no-any-return]


def record_claims(folder: Path, *rounds: dict[str, object]) -> list[RoundEntry]:
    """Return the log of rounds in which named clients claim these client ids."""
    arrays = initial().to_numpy_ndarrays()
    parameters = ndarrays_to_parameters(arrays)
    with record(folder, network, AUDIT, view="sum", attacks=NAMES) as recorder:
        strategy = SumRecordingStrategy(FedAvg(), recorder)
        strategy._sent = arrays
        for index, claimed_ids in enumerate(rounds, 1):
            strategy._selected = tuple(claimed_ids)
            answers = [
                (proxy(cid), FitRes(OK, parameters, 10, {"partition-id": client}))
                for cid, client in claimed_ids.items()
            ]
            strategy.aggregate_fit(index, answers, [])
    return read_round_log(folder)


@pytest.mark.parametrize("client_id", [-1, 10**16, True, "", "\n", float("nan")])
def test_a_reply_with_an_invalid_client_number_counts_as_unnamed(
    client_id: object, tmp_path: Path
) -> None:
    with pytest.warns(RuntimeWarning, match="1 of 2 replies do not name their client"):
        (entry,) = record_claims(tmp_path, {"a": 0, "b": client_id})
    assert (entry.measured, entry.answered, entry.unnamed) == (False, (0,), 1)


def test_changed_and_duplicate_client_numbers_warn(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning) as warned:
        first, second, third = record_claims(
            tmp_path, {"a": 0, "b": 1}, {"a": 0, "b": 2}, {"a": 0, "c": 0}
        )
    assert [first.measured, second.measured, third.measured] == [True, False, False]
    assert (second.answered, second.unnamed) == ((0,), 1)
    assert "node b claims to be client 2, but claimed to be client 1" in str(warned[0].message)
    assert "several nodes claim to be client 0" in str(warned[1].message)


def test_an_unreadable_sum_does_not_stop_training(tmp_path: Path) -> None:
    class Trusting(FedAvg):
        def aggregate_fit(self, *args: object) -> tuple[None, dict[str, Scalar]]:
            return None, {}

    with record(tmp_path, network, AUDIT, view="sum", attacks=NAMES) as recorder:
        strategy = SumRecordingStrategy(Trusting(), recorder)
        broken = FitRes(OK, Parameters([b"no array"], "numpy.ndarray"), 10, {"partition-id": 0})
        with pytest.warns(RuntimeWarning, match="the sum cannot be read"):
            strategy.aggregate_fit(1, [(proxy("a"), broken)], [])
    assert [entry.measured for entry in read_round_log(tmp_path)] == [False]


def test_numpy_clients_of_the_older_interface_are_recorded_individually(tmp_path: Path) -> None:
    Client.plain.clear()
    mods: list[Mod] = [client_id_mod]
    grid = StubGrid(ClientApp(lambda context: Client(context).to_client(), mods=mods))
    strategy = FedAvg(
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(initial().to_numpy_ndarrays()),
        on_fit_config_fn=lambda index: {"round": index},
    )
    folder = tmp_path / "recording"
    recorder = record(folder, network, AUDIT, attacks=NAMES, strict=True)
    config = ServerConfig(num_rounds=ROUNDS)
    with RecordingGrid(grid, recorder) as watched:
        legacy = LegacyContext(Context(1, 1, {}, RecordDict(), {}), config, strategy)
        DefaultWorkflow()(watched, legacy)
    assert [(entry.round, entry.measured, entry.complete) for entry in read_round_log(folder)] == [
        (1, True, True),
        (2, True, True),
    ]
    arrays = initial().to_numpy_ndarrays()
    uploads = {client: Client.plain[1, client] for client in range(CLIENTS)}
    with record(tmp_path / "mine", network, AUDIT, attacks=NAMES, strict=True) as hand_recorder:
        hand_recorder.round(1, sent=arrays, uploads=uploads)
    recorded, expected = (read_measured(path)[0].measured for path in (folder, tmp_path / "mine"))
    for name, values in expected.signals.items():
        torch.testing.assert_close(recorded.signals[name], values)
