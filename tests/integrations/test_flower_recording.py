"""Recording Flower strategies and grids."""

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    Krum,
    Result,
    Strategy,
)

from fedaudit.core.errors import BadInput
from fedaudit.integrations.flower import RecordingGrid, RecordingStrategy, client_id_mod
from fedaudit.integrations.flower.collector import Claims
from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_round_log
from tests.integrations.federation import CLIENTS, StubGrid, client_app, initial
from tests.live.federation import FEW, measured, network, recorder
from tests.study.studies import SMALL

ROUNDS = 3


def npy(length: str) -> bytes:
    """Return an empty array in NumPy's format whose header states a length."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({length},), }}".ljust(117)
    return b"\x93NUMPY\x01\x00\x76\x00" + f"{header}\n".encode()


def by_hand(
    grid: StubGrid, folder: Path, after: list[ArrayRecord], **settings: object
) -> dict[tuple[int, str], Tensor]:
    """Record the same messages without the integration."""
    partition = {node: int(c.node_config["partition-id"]) for node, c in grid.contexts.items()}
    train = [m for m in grid.sent if m.metadata.message_type == "train"]
    replies = {m.metadata.reply_to_message_id: m for m in grid.received if m.has_content()}
    with recorder(folder, **settings) as hand_recorder:
        for index in range(1, len(train) // len(partition) + 1):
            round_messages = train[(index - 1) * len(partition) : index * len(partition)]
            answers = {
                partition[m.metadata.dst_node_id]: replies[m.metadata.message_id].content
                for m in round_messages
                if m.metadata.message_id in replies
            }
            hand_recorder.round(
                index,
                sent=round_messages[0].content["arrays"].to_torch_state_dict(),
                uploads={c: a["arrays"].to_torch_state_dict() for c, a in answers.items()},
                weights={c: float(a["metrics"]["num-examples"]) for c, a in answers.items()},
                after=after[index - 1].to_torch_state_dict(),
            )
    return measured(folder)


class Remembering(Strategy):
    """A strategy that wraps another one and keeps the model after each round."""

    def __init__(self, inner: Strategy) -> None:
        self.inner, self.ends = inner, list[ArrayRecord]()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = self.inner.aggregate_train(server_round, replies)
        if arrays is not None:
            self.ends.append(arrays)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()


def same(recorded: dict[tuple[int, str], Tensor], expected: dict[tuple[int, str], Tensor]) -> None:
    assert recorded.keys() == expected.keys()
    for key, values in expected.items():
        torch.testing.assert_close(recorded[key], values, msg=str(key))


STRATEGIES = {
    "fedavg": lambda: FedAvg(),
    "fedadam": lambda: FedAdam(),
    "fedmedian": lambda: FedMedian(),
    "krum": lambda: Krum(num_malicious_nodes=0),
    # Clips replies in place, as FedMedian empties them; the original replies are recorded.
    "server-side dp": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 0.5, 3),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_recorded_like_its_messages(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    inner = Remembering(STRATEGIES[name]())
    grid = StubGrid(client_app([client_id_mod]), seed=5)
    strategy = RecordingStrategy(inner, recorder(tmp_path / "flower"))
    strategy.start(grid, initial(), num_rounds=ROUNDS)
    same(measured(tmp_path / "flower"), by_hand(grid, tmp_path / "hand", inner.ends))
    assert [(entry.selected, entry.complete) for entry in read_round_log(tmp_path / "flower")] == [
        ((0, 1, 2), True)
    ] * ROUNDS


def test_recording_does_not_change_flower_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Flower draws nodes from the global generator, and so do the type checks of these tests.
    monkeypatch.setattr(random, "sample", lambda nodes, number: list(nodes)[:number])

    def final(strategy: Strategy) -> ArrayRecord:
        result = strategy.start(StubGrid(client_app([client_id_mod])), initial(), num_rounds=ROUNDS)
        return result.arrays

    plain = final(FedAvg())
    assert final(RecordingStrategy(FedAvg(), recorder(tmp_path))) == plain


def test_reply_order_and_node_ids_do_not_change_signals(tmp_path: Path) -> None:
    signals = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        grid = StubGrid(client_app([client_id_mod]), seed=seed)
        RecordingStrategy(FedMedian(), recorder(folder)).start(grid, initial(), num_rounds=2)
        signals.append(measured(folder))
    same(signals[0], signals[1])


def test_a_flower_recording_can_be_attacked(tmp_path: Path) -> None:
    strategy = RecordingStrategy(FedAvg(), recorder(tmp_path))
    strategy.start(StubGrid(client_app([client_id_mod])), initial(), num_rounds=2)
    audit_record = attack_recording(tmp_path, (), tmp_path / "out", figures=SMALL["figures"])
    assert {finding.attack for finding in audit_record.findings} >= set(FEW)
    assert not any("answer" in text for text in audit_record.untested)


def test_lost_clients_are_identified_by_their_messages(tmp_path: Path) -> None:
    grid = StubGrid(
        client_app([client_id_mod]), fails=lambda client, index: (client, index) == (1, 2)
    )
    RecordingStrategy(FedAvg(), recorder(tmp_path)).start(grid, initial(), num_rounds=ROUNDS)
    assert [entry.answered for entry in read_round_log(tmp_path)] == [(0, 1, 2), (0, 2), (0, 1, 2)]
    assert [entry.selected for entry in read_round_log(tmp_path)] == [(0, 1, 2)] * 3
    assert [entry.complete for entry in read_round_log(tmp_path)] == [True, False, True]
    audit_record = attack_recording(tmp_path, (), tmp_path / "out", figures=SMALL["figures"])
    assert any("did not reply, in round 2." in text for text in audit_record.untested)


def test_a_client_that_never_replies_makes_the_record_incomplete(tmp_path: Path) -> None:
    grid = StubGrid(client_app([client_id_mod]), fails=lambda client, index: client == 1)
    RecordingStrategy(FedAvg(), recorder(tmp_path)).start(grid, initial(), num_rounds=1)
    (entry,) = read_round_log(tmp_path)
    assert (entry.selected, entry.answered, entry.unnamed, entry.complete) == (
        (0, 2),
        (0, 2),
        1,
        False,
    )


def test_a_round_without_replies_warns(tmp_path: Path) -> None:
    grid = StubGrid(client_app([client_id_mod]), fails=lambda client, index: index == 1)
    strategy = RecordingStrategy(FedAvg(), recorder(tmp_path, strict=False))
    with (
        pytest.warns(RuntimeWarning, match="1 of 2 rounds are not recorded"),
        pytest.warns(RuntimeWarning, match=r"round 1 .* no client answered .*3 errors.*died"),
    ):
        strategy.start(grid, initial(), num_rounds=2)
    assert [(entry.measured, entry.complete) for entry in read_round_log(tmp_path)] == [
        (False, False),
        (True, True),
    ]


def test_replies_without_client_id_warn_unless_strict(tmp_path: Path) -> None:
    strategy = RecordingStrategy(FedAvg(), recorder(tmp_path / "a", strict=False))
    with pytest.warns(
        RuntimeWarning, match="3 of 3 replies do not name their client; add client_id_mod"
    ):
        result = strategy.start(StubGrid(client_app()), initial(), num_rounds=1)
    assert result.arrays
    strategy = RecordingStrategy(FedAvg(), recorder(tmp_path / "b"))
    with pytest.raises(BadInput, match="add client_id_mod"):
        strategy.start(StubGrid(client_app()), initial(), num_rounds=1)


def test_a_second_run_into_the_same_folder_warns(tmp_path: Path) -> None:
    def run(strict: bool) -> None:
        strategy = RecordingStrategy(FedAvg(), recorder(tmp_path, strict=strict))
        strategy.start(StubGrid(client_app([client_id_mod])), initial(), num_rounds=1)

    run(strict=True)
    with pytest.warns(RuntimeWarning, match="recorded before.* another folder"):
        run(strict=False)
    with pytest.raises(BadInput, match="recorded before"):
        run(strict=True)


@pytest.mark.parametrize("client_id", [10**16, -1, True])
def test_an_invalid_client_number_warns(client_id: int, tmp_path: Path) -> None:
    def lying(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 1:
            reply.content["fedaudit"] = ConfigRecord({"partition-id": client_id})
        return reply

    strategy = RecordingStrategy(FedAvg(), recorder(tmp_path, strict=False))
    with pytest.warns(RuntimeWarning, match="1 of 3 replies do not name"):
        result = strategy.start(
            StubGrid(client_app([lying, client_id_mod])), initial(), num_rounds=1
        )
    assert result.arrays


def claiming(claim: Callable[[int, int], int]) -> Mod:
    """Return a mod that claims a client id, which depends on the partition and the round."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type == "train":
            index = int(message.content.config_records["config"]["server-round"])
            client_id = claim(int(context.node_config["partition-id"]), index)
            reply.content["fedaudit"] = ConfigRecord({"partition-id": client_id})
        return reply

    return mod


def test_a_node_that_changes_its_client_id_is_excluded(tmp_path: Path) -> None:
    app = client_app([claiming(lambda place, index: 5 if (place, index) == (1, 2) else place)])
    strategy = RecordingStrategy(FedAvg(), recorder(tmp_path, strict=False))
    warning = r"round 2 .* without client 1: .* client 5, but claimed to be client 1 in round 1"
    with pytest.warns(RuntimeWarning, match=warning):
        strategy.start(StubGrid(app), initial(), num_rounds=3)
    first, second, third = read_round_log(tmp_path)
    assert [entry.measured for entry in (first, second, third)] == [True, True, True]
    assert (second.selected, second.answered, second.unnamed) == ((0, 1, 2), (0, 1, 2), 0)
    assert [*second.excluded] == [1]
    assert (third.answered, third.complete) == ((0, 1, 2), True)


def test_a_strict_recorder_raises_if_a_node_changes_its_client_id(tmp_path: Path) -> None:
    app = client_app([claiming(lambda place, index: place + index)])
    with pytest.raises(
        BadInput, match=r"claims to be client [2-4], but claimed to be client [1-3] in"
    ):
        RecordingStrategy(FedAvg(), recorder(tmp_path)).start(StubGrid(app), initial(), 2)
    assert [entry.measured for entry in read_round_log(tmp_path)] == [True]


def test_the_globals_view_ignores_client_ids(tmp_path: Path) -> None:
    app = client_app([claiming(lambda place, index: place + index)])
    run_recorder = recorder(tmp_path, view="globals", attacks=("blackbox-loss",))
    RecordingStrategy(FedAvg(), run_recorder).start(StubGrid(app), initial(), num_rounds=2)
    assert [entry.measured for entry in read_round_log(tmp_path)] == [True, True]


def test_a_node_may_replace_a_lost_one_but_not_alternate_with_it() -> None:
    claims = Claims[int]()
    assert claims.check(11, 3, 1) == claims.check(12, 4, 1) == claims.check(11, 3, 2) == ""
    assert claims.check(13, 3, 3) == "", "restarted with another node id"
    assert claims.check(13, 3, 4) == ""
    assert "nodes 11 and 13 alternately claim to be client 3" in claims.check(11, 3, 5)
    assert "node 13 claims to be client 4, but claimed to be client 3 in round 3" in claims.check(
        13, 4, 6
    )
    assert claims.clients == {11: 3, 12: 4, 13: 3}


def test_terminal_escapes_from_nodes_are_removed(tmp_path: Path) -> None:
    def shouting(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type == "train":
            reply.content["\x1b[2J\u202e" * 1000] = ArrayRecord()
        return reply

    strategy = RecordingStrategy(Remembering(FedAvg()), recorder(tmp_path, strict=False))
    with pytest.warns(RuntimeWarning, match="2 sets of arrays") as warned, suppress(Exception):
        # Flower itself rejects such replies.
        strategy.start(StubGrid(client_app([shouting, client_id_mod])), initial(), num_rounds=1)
    texts = [str(warning.message) for warning in warned] + [
        entry.note for entry in read_round_log(tmp_path)
    ]
    assert len(texts) >= 2
    assert all("\x1b" not in text and len(text) < 1000 for text in texts)


NONSENSE = [
    b"no array",
    b"",
    b"PK\x03\x04 no archive",
    b"PK\x05\x06" + bytes(18),
    b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118,
    npy("9" * 40),
    npy("10000000000000"),
]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        *(
            (Array("float32", (2,), "numpy.ndarray", data), "its reply cannot be read")
            for data in NONSENSE
        ),
    ],
)
def test_an_unreadable_reply_is_excluded_with_a_warning(
    sent: Array, reason: str, tmp_path: Path
) -> None:
    def nonsense(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == "train":
            reply.content["arrays"]["1.weight"] = sent
        return reply

    class Trusting(Remembering):
        """A server that accepts every reply."""

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            return None, None

    strategy = RecordingStrategy(Trusting(FedAvg()), recorder(tmp_path, strict=False))
    with pytest.warns(RuntimeWarning, match=f"round 1 .* without client 1: {reason}"):
        strategy.start(StubGrid(client_app([nonsense, client_id_mod])), initial(), num_rounds=1)
    (entry,) = read_round_log(tmp_path)
    assert (entry.measured, [*entry.excluded]) == (True, [1])


def test_two_nodes_with_one_client_id_raise(tmp_path: Path) -> None:
    grid = StubGrid(client_app([client_id_mod]))
    for context in list(grid.contexts.values())[1:]:
        context.node_config["partition-id"] = 1
    with pytest.raises(BadInput, match="several nodes claim to be client 1"):
        RecordingStrategy(FedAvg(), recorder(tmp_path)).start(grid, initial(), num_rounds=1)


def test_recording_waits_for_late_nodes(tmp_path: Path) -> None:
    few = FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    plain = StubGrid(client_app([client_id_mod]), late=2)
    few.start(plain, initial(), num_rounds=1)
    assert sum(m.metadata.message_type == "train" for m in plain.sent) == 1, "Flower does not wait"
    grid = StubGrid(client_app([client_id_mod]), late=3)
    RecordingStrategy(few, recorder(tmp_path)).start(grid, initial(), num_rounds=1)
    assert read_round_log(tmp_path)[0].selected == (0, 1, 2)


def test_too_few_nodes_warn_once_and_raise_if_strict(tmp_path: Path) -> None:
    grid = StubGrid(client_app([client_id_mod]))
    lax = recorder(tmp_path / "a", strict=False)
    with pytest.warns(RuntimeWarning, match="3 of 5 nodes are connected") as warned:
        RecordingStrategy(FedAvg(), lax, nodes=5, node_timeout=0.0).start(
            grid, initial(), num_rounds=2
        )
    assert len(warned) == 1
    strict = RecordingStrategy(FedAvg(), recorder(tmp_path / "b"), nodes=5, node_timeout=0.0)
    with pytest.raises(BadInput, match="nodes=3"):
        strict.start(grid, initial(), num_rounds=2)
    with pytest.raises(BadInput, match="nodes is 2 and there are 3 audited clients"):
        RecordingStrategy(FedAvg(), recorder(tmp_path / "c"), nodes=2)


def test_a_custom_start_method_of_a_strategy_is_called(tmp_path: Path) -> None:
    class CustomStart(FedAvg):
        def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: object) -> Result:  # type: ignore[override]
            self.begun = True
            arrays = initial_arrays
            for index in (1, 2):
                messages = self.configure_train(index, arrays, ConfigRecord(), grid)
                new, _ = self.aggregate_train(index, grid.send_and_receive(messages))
                arrays = new or arrays
            return Result(arrays)

    inner = CustomStart(fraction_train=0.9)
    strategy = RecordingStrategy(inner, recorder(tmp_path))
    strategy.start(StubGrid(client_app([client_id_mod])), initial())
    assert strategy.begun
    assert strategy.fraction_train == 0.9
    assert [entry.measured for entry in read_round_log(tmp_path)] == [True, True]
    assert "configure_train" not in vars(inner), "the strategy is unchanged"


@pytest.mark.parametrize("view", ["sum", "globals"])
def test_other_views_record_flower_like_a_custom_loop(view: str, tmp_path: Path) -> None:
    names = ("blackbox-loss", "avg-cosine")
    inner = Remembering(FedAvg())
    grid = StubGrid(client_app([client_id_mod]))
    run_recorder = recorder(tmp_path / "flower", view=view, attacks=names)
    RecordingStrategy(inner, run_recorder).start(grid, initial(), num_rounds=2)
    signals = measured(tmp_path / "flower")
    same(signals, by_hand(grid, tmp_path / "hand", inner.ends, view=view, attacks=names))
    assert all(values.shape[0] == 1 for values in signals.values()), "one model for all"


def loop(grid: Grid, rounds: int = 2) -> None:
    """Run a custom server without strategy or evaluation, with rounds from 0."""
    arrays = initial()
    for index in range(rounds):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": index})})
        messages = [Message(content, node, "train") for node in grid.get_node_ids()]
        numbers = grid.push_messages(messages)
        replies = [m.content for m in grid.pull_messages(numbers) if m.has_content()]
        states = [reply["arrays"].to_torch_state_dict() for reply in replies]
        arrays = (
            ArrayRecord({})
            if not states
            else ArrayRecord({k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]})
        )


def test_a_custom_flower_loop_is_recorded_through_its_grid(tmp_path: Path) -> None:
    stub = StubGrid(client_app([client_id_mod]))
    with RecordingGrid(stub, recorder(tmp_path / "flower")) as grid:
        loop(grid)
        assert grid.run is stub.run
    ends = []
    for index in (1, 2):
        replies = [m for m in stub.received if m.metadata.message_type == "train"]
        round_replies = replies[(index - 1) * CLIENTS : index * CLIENTS]
        states = [m.content["arrays"].to_torch_state_dict() for m in round_replies]
        ends.append(
            ArrayRecord({k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]})
        )
    signals = measured(tmp_path / "flower")
    expected = by_hand(stub, tmp_path / "hand", ends)
    # No message contains the last model, so that the weighted mean is assumed.
    same(
        {key: value for key, value in signals.items() if key[0] == 1},
        {key: value for key, value in expected.items() if key[0] == 1},
    )
    assert {index for index, _ in signals} == {1, 2}


def test_strategies_can_be_recorded_through_the_grid(tmp_path: Path) -> None:
    inner = Remembering(FedAvg())
    stub = StubGrid(client_app([client_id_mod]), fails=lambda client, index: client == index)
    with RecordingGrid(stub, recorder(tmp_path / "flower")) as grid:
        inner.start(grid, initial(), num_rounds=2)
    same(measured(tmp_path / "flower"), by_hand(stub, tmp_path / "hand", inner.ends))
    assert [entry.answered for entry in read_round_log(tmp_path / "flower")] == [(0, 2), (0, 1)]
    assert [(entry.selected, entry.unnamed) for entry in read_round_log(tmp_path / "flower")] == [
        ((0, 2), 1),
        ((0, 1, 2), 0),
    ]


def test_each_client_is_recorded_with_the_model_it_received(
    tmp_path: Path,
) -> None:
    stub = StubGrid(client_app([client_id_mod]))
    run_recorder = recorder(tmp_path, attacks=("blackbox-loss", "avg-cosine"))
    with RecordingGrid(stub, run_recorder) as grid:
        for index in (1, 2):
            models = [ArrayRecord(network().state_dict()) for _ in range(CLIENTS)]
            config = ConfigRecord({"server-round": index})
            grid.send_and_receive(
                Message(RecordDict({"arrays": model, "config": config}), node, "train")
                for model, node in zip(models, grid.get_node_ids(), strict=True)
            )
    assert [(entry.measured, entry.complete) for entry in read_round_log(tmp_path)] == [
        (True, True)
    ] * 2
