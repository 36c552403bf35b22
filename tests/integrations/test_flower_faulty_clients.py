"""Faulty and malicious Flower clients are excluded without affecting others."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Parameters, Scalar, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedaudit.core.errors import BadInput
from fedaudit.integrations.common import raise_if_not_finite, share_no_shape
from fedaudit.integrations.flower import RecordingGrid, RecordingStrategy, client_id_mod
from fedaudit.integrations.flower.messages import client_in
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import fair_split
from fedaudit.live.clients import number_of
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import RoundEntry, read_recording, read_round_log
from fedaudit.observe.measurements import read_measured
from tests.integrations.federation import CLIENTS, StubGrid, client_app, initial
from tests.integrations.test_flower_older import context, strategy
from tests.integrations.test_flower_secure_sum import Client
from tests.live.federation import data, network, recorder
from tests.study.studies import SMALL

Spoils = Callable[[Message], None]
CULPRIT = 1


class IgnoringFedAvg(FedAvg):
    """A strategy that ignores replies, so that no client can disturb the server."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return None, None


class OlderIgnoringFedAvg(OlderFedAvg):
    def aggregate_fit(self, *args: object) -> tuple[None, dict[str, float]]:  # type: ignore[override]
        return None, {}


def spoiling(spoils: Spoils) -> ClientAppCallable:
    """Return a mod that spoils the complete reply of one client."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        training = message.metadata.message_type == "train" and reply.has_content()
        if training and context.node_config["partition-id"] == CULPRIT:
            spoils(reply)
        return reply

    return mod  # type: ignore[return-value]


def newer(folder: Path, spoils: Spoils) -> None:
    run_recorder = recorder(folder, strict=False, attacks=("blackbox-loss", "avg-cosine"))
    grid = StubGrid(client_app([spoiling(spoils), client_id_mod]))  # type: ignore[list-item]
    RecordingStrategy(IgnoringFedAvg(), run_recorder).start(grid, initial(), num_rounds=1)


def older(folder: Path, spoils: Spoils) -> None:
    run_recorder = recorder(folder, strict=False, attacks=("blackbox-loss", "avg-cosine"))
    app = ClientApp(
        lambda node_context: Client(node_context).to_client(),
        mods=[spoiling(spoils), client_id_mod],  # type: ignore[list-item]
    )
    inner = strategy()
    inner.__class__ = OlderIgnoringFedAvg
    with RecordingGrid(StubGrid(app), run_recorder) as grid:
        DefaultWorkflow()(grid, LegacyContext(context(), ServerConfig(num_rounds=1), inner))


INTERFACES = {"newer": newer, "older": older}


def arrays_of(reply: Message) -> ArrayRecord:
    return next(iter(reply.content.array_records.values()))


def weights_of(reply: Message) -> MetricRecord:
    return next(iter(reply.content.metric_records.values()))


def without_weight(reply: Message) -> None:
    for key in [*weights_of(reply)]:
        del weights_of(reply)[key]


def weighing(value: object) -> Spoils:
    def spoil(reply: Message) -> None:
        for key in [*weights_of(reply)]:
            weights_of(reply)[key] = value  # type: ignore[assignment]

    return spoil


def no_arrays(reply: Message) -> None:
    for key in [*reply.content.array_records]:
        del reply.content[key]


def two_models(reply: Message) -> None:
    reply.content["another"] = ArrayRecord([np.zeros(2)])


def empty_model(reply: Message) -> None:
    arrays_of(reply).clear()


def no_array(reply: Message) -> None:
    first = next(iter(arrays_of(reply)))
    arrays_of(reply)[first] = Array("float32", (2,), "numpy.ndarray", b"nonsense")


def filled(value: float) -> Spoils:
    """Return a function that replaces the last value of the first array."""

    def spoil(reply: Message) -> None:
        name = next(iter(arrays_of(reply)))
        array = arrays_of(reply)[name].numpy().copy()
        array.flat[-1] = value
        arrays_of(reply)[name] = Array(array)

    return spoil


def of_kind(kind: str) -> Spoils:
    def spoil(reply: Message) -> None:
        arrays_of(reply)[next(iter(arrays_of(reply)))] = Array(np.zeros((10, 64), kind))

    return spoil


EXCLUDED: dict[str, tuple[Spoils, str]] = {
    "no weight": (without_weight, "no num-examples"),
    "a negative weight": (weighing(-3), "'-3'"),
    "a weight that is no number": (weighing(math.nan), "'nan'"),
    "an infinite weight": (weighing(math.inf), "'inf'"),
    "a huge weight": (weighing(10**400), "a number from 0 to 1e15"),
    "a list of weights": (weighing([1, 2]), r"'\[1, 2\]'"),
    "no arrays": (no_arrays, "has no arrays"),
    "two models": (two_models, "2 sets of arrays"),
    "a model without arrays": (empty_model, "has no arrays"),
    "one value that is NaN": (filled(math.nan), "has values that are not finite numbers"),
    "one infinite value": (filled(-math.inf), "has values that are not finite numbers"),
    "texts": (of_kind("<U3"), "holds no numbers"),
    "dates": (of_kind("<M8[s]"), "holds no numbers"),
    "records": (of_kind("|V4"), "holds no numbers"),
    "complex numbers": (of_kind("<c8"), "holds complex numbers"),
    "bytes that are no array": (no_array, "an array cannot be read"),
}


def losses(folder: Path) -> dict[int, Tensor]:
    (stored,) = read_measured(folder)
    values = stored.measured.signals["loss"]
    return dict(zip(stored.measured.clients, values, strict=True))


def only_entry(folder: Path) -> RoundEntry:
    (entry,) = read_round_log(folder)
    return entry


BOTH = [(fault, interface) for fault in EXCLUDED for interface in INTERFACES]
# Without these records, Flower's older server fails with or without a recorder.
FATAL = [("no weight", "older"), ("no arrays", "older")]


@pytest.mark.parametrize(("fault", "interface"), [case for case in BOTH if case not in FATAL])
def test_a_faulty_reply_excludes_only_its_client(
    fault: str, interface: str, tmp_path: Path
) -> None:
    spoils, why = EXCLUDED[fault]
    INTERFACES[interface](tmp_path / "sound", lambda reply: None)
    with pytest.warns(RuntimeWarning, match=rf"(?s)without client {CULPRIT}: .*{why}"):
        INTERFACES[interface](tmp_path / "faulty", spoils)
    entry = only_entry(tmp_path / "faulty")
    assert (entry.measured, entry.answered, [*entry.excluded]) == (True, (0, 1, 2), [CULPRIT])
    sound, faulty = losses(tmp_path / "sound"), losses(tmp_path / "faulty")
    assert [*faulty] == [0, 2]
    assert all(torch.equal(faulty[client], sound[client]) for client in faulty)


def unidentified(reply: Message) -> None:
    del reply.content["fedaudit"]
    for config in reply.content.config_records.values():
        config.pop("partition-id", None)


def identified(value: object) -> Spoils:
    def spoil(reply: Message) -> None:
        unidentified(reply)
        reply.content["fedaudit"] = ConfigRecord({"partition-id": value})  # type: ignore[dict-item]

    return spoil


UNKNOWN = {
    "no partition-id": (unidentified, "1 of 3 replies do not name their client"),
    "a name where others have numbers": (identified("north"), "'north' is identified by its name"),
    "a negative number": (identified(-1), "1 of 3 replies do not name"),
    "a fraction": (identified(2.7), "'2.7' is identified by its name"),
    "bytes": (identified(b"\x00"), "1 of 3 replies do not name"),
    "a list": (identified([1, 2]), "1 of 3 replies do not name"),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("fault", UNKNOWN)
def test_a_reply_of_an_unknown_client_affects_no_other(
    fault: str, interface: str, tmp_path: Path
) -> None:
    spoils, why = UNKNOWN[fault]
    with pytest.warns(RuntimeWarning, match=f"round 1 is not recorded in full: .*{why}"):
        INTERFACES[interface](tmp_path, spoils)
    entry = only_entry(tmp_path)
    assert (entry.measured, entry.answered, entry.unnamed) == (True, (0, 2), 1)
    assert [*losses(tmp_path)] == [0, 2]


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_duplicate_client_number_excludes_only_that_client(
    interface: str, tmp_path: Path
) -> None:
    with pytest.warns(RuntimeWarning, match="without client 2: several nodes claim .* client 2"):
        INTERFACES[interface](tmp_path, identified(2))
    assert [*losses(tmp_path)] == [0]
    assert [*only_entry(tmp_path).excluded] == [2]


def test_a_single_reported_weight_does_not_exclude_other_clients(tmp_path: Path) -> None:
    def unweighted(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        training = message.metadata.message_type == "train"
        if training and context.node_config["partition-id"] != CULPRIT:
            without_weight(reply)
        return reply

    run_recorder = recorder(tmp_path)
    RecordingStrategy(IgnoringFedAvg(), run_recorder).start(
        StubGrid(client_app([client_id_mod, unweighted])), initial(), num_rounds=1
    )
    assert only_entry(tmp_path).excluded == {}


def test_a_strict_recorder_raises_for_a_faulty_reply(tmp_path: Path) -> None:
    grid = StubGrid(client_app([spoiling(no_arrays), client_id_mod]))  # type: ignore[list-item]
    with pytest.raises(BadInput, match="has no arrays"):
        RecordingStrategy(IgnoringFedAvg(), recorder(tmp_path)).start(grid, initial(), num_rounds=1)


def test_training_continues_if_the_recorder_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise OSError("the disk is gone")

    for method in ("round", "missed", "check_first_round", "close"):
        monkeypatch.setattr(Recorder, method, broken)
    run_recorder = recorder(tmp_path, strict=False)
    with pytest.warns(RuntimeWarning, match="training continues, .* the disk is gone"):
        result = RecordingStrategy(FedAvg(), run_recorder).start(
            StubGrid(client_app([client_id_mod])), initial(), num_rounds=2
        )
    assert result.arrays


@pytest.mark.parametrize(
    ("value", "client"),
    [
        (0, 0),
        ("3", 3),
        (" 3 ", 3),
        (2.0, 2),
        (2.7, "2.7"),
        ("north", "north"),
        ("site-3", "site-3"),
        (True, None),
        (-1, None),
        (10**16, None),
        (math.nan, None),
        (math.inf, None),
        ("", None),
        (" ", None),
        ("a\nb", None),
        ("9" * 5000, None),
        ("n" * 201, None),
        (None, None),
        (b"1", None),
        ([1], None),
    ],
)
def test_a_partition_id_is_a_number_or_a_name(value: object, client: object) -> None:
    assert client_in(value) == client


def config_of(value: object) -> dict[str, object]:
    return {} if value is None else {"partition-id": value}


@pytest.mark.parametrize("value", [None, True, -1, math.nan, b"1", "", "a\nb", object()])
def test_client_id_mod_never_raises_and_passes_the_reply_on(value: object) -> None:
    reply = Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), 1, "train")
    node = Context(1, 1, config_of(value), RecordDict(), {})  # type: ignore[arg-type]
    if value is None:
        assert client_id_mod(reply, node, lambda message, context: message) is reply
    else:
        with pytest.warns(RuntimeWarning, match="does not name its client"):
            assert client_id_mod(reply, node, lambda message, context: message) is reply
    assert "fedaudit" not in reply.content


def named_audit() -> dict[str, tuple[Tensor, Tensor]]:
    audit = data().split.audit
    positions = {place: np.flatnonzero(audit.fair_target == place) for place in range(CLIENTS)}
    x, y = audit.samples.features, audit.samples.labels
    return {name: (x[positions[place]], y[positions[place]]) for place, name in enumerate(NAMES)}


NAMES = ("hospital-a", "clinic 7", "2.7")


def test_named_flower_clients_are_recorded_and_attacked_by_name(tmp_path: Path) -> None:
    audit = fair_split(named_audit(), audited=40).audit
    run_recorder = record(tmp_path / "r", network, audit, attacks=("blackbox-loss",), strict=True)
    names = dict(enumerate(NAMES))

    def naming(message: Message, node: Context, call_next: ClientAppCallable) -> Message:
        name = names[int(node.node_config["partition-id"])]
        named = Context(1, node.node_id, {"partition-id": name}, RecordDict(), {})
        return client_id_mod(message, named, lambda message, _: call_next(message, node))

    RecordingStrategy(FedAvg(), run_recorder).start(
        StubGrid(client_app([naming])), initial(), num_rounds=2
    )
    expected = {number_of(name): name for name in NAMES}
    assert read_recording(tmp_path / "r").names == expected
    assert last_entry(tmp_path / "r").answered == tuple(sorted(expected))
    audit_record = attack_recording(tmp_path / "r", (), tmp_path / "out", figures=SMALL["figures"])
    assert {finding.target for finding in audit_record.findings} >= {*expected}


def last_entry(folder: Path) -> RoundEntry:
    return read_round_log(folder)[-1]


def test_client_names_are_hidden_from_strategies_that_sum_metrics(
    tmp_path: Path,
) -> None:
    def added(metrics: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
        return {key: sum(values[key] * count for count, values in metrics) for key in metrics[0][1]}

    def naming(message: Message, node: Context, call_next: ClientAppCallable) -> Message:
        named = Context(1, node.node_id, {"partition-id": "north"}, RecordDict(), {})
        return client_id_mod(message, named, lambda message, _: call_next(message, node))

    inner = strategy()
    inner.fit_metrics_aggregation_fn = added  # type: ignore[assignment]
    app = ClientApp(lambda node_context: Client(node_context).to_client(), mods=[naming])
    legacy = LegacyContext(context(), ServerConfig(num_rounds=1), inner)
    grid = RecordingGrid(StubGrid(app), recorder(tmp_path, strict=False))
    with pytest.warns(RuntimeWarning, match="is identified by its name"), grid:
        DefaultWorkflow()(grid, legacy)
    assert legacy.history.metrics_distributed_fit == {}


def embedding_app() -> ClientApp:
    """Return a client of vertical federated learning: it sends embeddings and gets gradients."""
    app = ClientApp(mods=[client_id_mod])

    @app.query("generate_embeddings")
    def embed(message: Message, context: Context) -> Message:
        content = RecordDict({"embedding": ArrayRecord([np.zeros((4, 2), np.float32)])})
        return Message(content, reply_to=message)

    @app.train("apply_gradients")
    def apply(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    return app


def vertical(grid: Grid, rounds: int) -> int:
    done = 0
    for index in range(1, rounds + 1):
        for kind in ("query.generate_embeddings", "train.apply_gradients"):
            config = ConfigRecord({"server-round": index})
            arrays = ArrayRecord([np.full((4, 2), index, np.float32)])
            content = {"config": config, **({"gradients": arrays} if "train" in kind else {})}
            nodes = list(grid.get_node_ids())
            grid.send_and_receive([Message(RecordDict(content), node, kind) for node in nodes])
        done += 1
    return done


def test_vertical_federated_learning_warns_and_training_continues(
    tmp_path: Path,
) -> None:
    grid = RecordingGrid(StubGrid(embedding_app()), recorder(tmp_path, strict=False))
    with pytest.warns(RuntimeWarning) as warned, grid:
        assert vertical(grid, 4) == 4
    assert "vertical federated learning or split" in str(warned[0].message)
    assert "round 1 is not recorded: " in str(warned[1].message)
    assert not any(entry.measured for entry in read_round_log(tmp_path))
    with pytest.raises(BadInput, match="vertical federated learning"):
        vertical(RecordingGrid(StubGrid(embedding_app()), recorder(tmp_path / "s")), 4)


class Embedding(NumPyClient):
    """A client of vertical federated learning in the older interface, as in Flower's example."""

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Scalar]
    ) -> tuple[list[np.ndarray], int, dict[str, Scalar]]:
        return [np.ones((5, 4), np.float32)], 1, {}


class Head(OlderFedAvg):
    def aggregate_fit(self, *args: object) -> tuple[Parameters, dict[str, float]]:  # type: ignore[override]
        gradients = [np.zeros((5, 4), np.float32) for _ in range(CLIENTS)]
        return ndarrays_to_parameters(gradients), {"accuracy": 50.0}


def test_embeddings_in_the_older_interface_warn_and_training_continues(
    tmp_path: Path,
) -> None:
    start = ndarrays_to_parameters([np.zeros((1, 12)), np.zeros(1)])
    inner = Head(fraction_evaluate=0.0, initial_parameters=start)
    app = ClientApp(lambda node_context: Embedding().to_client(), mods=[client_id_mod])
    run_recorder = record(tmp_path, network, data().split.audit, attacks=("blackbox-loss",))
    grid = RecordingGrid(StubGrid(app), run_recorder)
    legacy = LegacyContext(context(), ServerConfig(num_rounds=4), inner)
    with pytest.warns(RuntimeWarning) as warned, grid:
        DefaultWorkflow()(grid, legacy)
    warning = "round 1 is not recorded: clients send something other than the model"
    assert warning in str(warned[0].message)
    assert [entry.measured for entry in read_round_log(tmp_path)] == [False] * 4


@pytest.mark.parametrize(
    ("sent", "uploads", "foreign"),
    [
        ([(3, 2)], [[(3, 2)]], False),
        ([(3, 2)], [[(4, 4)], [(3, 2)]], False),
        # Batch normalisation or a head that stays at the client.
        ([(3, 2), (5,)], [[(3, 2)], [(3, 2)]], False),
        ([(3, 2)], [[(4, 4)], [(4, 4), (4,)]], True),
        # A gradient has the shape of the weights, a Hessian has not.
        ([(3, 1)], [[(3, 1), (3, 3)]], False),
        ([], [[(3, 2)]], False),
        ([(3, 2)], [], False),
    ],
)
def test_uploads_without_any_model_shape_are_foreign(
    sent: list[tuple[int, ...]], uploads: list[list[tuple[int, ...]]], foreign: bool
) -> None:
    arrays = [[np.zeros(shape) for shape in shapes] for shapes in (sent, *uploads)]
    assert share_no_shape(arrays[:1], arrays[1:]) == foreign


def test_unchanged_non_finite_values_are_accepted() -> None:
    mask: dict[str, Tensor | np.ndarray] = {
        "mask": np.array([0.0, -np.inf], np.float32),
        "weight": np.ones(2),
    }
    raise_if_not_finite(mask, lambda: mask)
    raise_if_not_finite({**mask, "count": np.array(3)}, lambda: {**mask, "weight": np.zeros(2)})
    others: list[dict[str, Tensor | np.ndarray]] = [{}, {"mask": np.zeros(2)}, {"mask": np.ones(3)}]
    for sent in (None, *others):
        with pytest.raises(BadInput, match="'mask' has values that are not finite"):
            raise_if_not_finite(mask, Mock(return_value=sent))


def test_a_grid_without_training_messages_warns(tmp_path: Path) -> None:
    grid = RecordingGrid(StubGrid(client_app()), recorder(tmp_path, strict=False))
    with pytest.warns(RuntimeWarning, match="no message of the type train was sent"):
        grid.close()
