from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, ClientId, Model, Params, Samples, flat
from fedaudit.defenses.noise import GradientNoise
from fedaudit.fl.algorithms.base import Tampering
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import ClientContext, Defense, TrainingContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Round, Upload
from fedaudit.observe.tensors import read_tensors, write_tensors
from tests.samples import random_samples


def net() -> nn.Module:
    return nn.Linear(3, 2)


FEDAVG = FedAvg(Architecture("net for rounds", partial(net)), LocalTraining(batch_size=4))


def samples(client: ClientId, count: int = 6) -> Samples:
    return random_samples(seeded(0, client), count, 3, classes=2, first=100 * client)


DATA = {client: samples(client) for client in range(5)}


def uploads(rounds: list[Round]) -> torch.Tensor:
    return torch.cat([flat(r.uploads[c].values) for r in rounds for c in sorted(r.uploads)])


def test_rounds_are_numbered_from_one_and_complete() -> None:
    rounds = list(simulate(FEDAVG, DATA, rounds=3, seed=0))
    assert [round.index for round in rounds] == [1, 2, 3]
    for round in rounds:
        assert round.complete
        assert round.selected == round.answered == tuple(DATA)
        assert sum(round.weights.values()) == pytest.approx(1)


def test_simulation_does_not_use_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = uploads(list(simulate(FEDAVG, DATA, rounds=2, seed=0, participation=0.5)))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    second = uploads(list(simulate(FEDAVG, DATA, rounds=2, seed=0, participation=0.5)))
    assert torch.equal(first, second)


def test_participants_are_drawn_in_every_round() -> None:
    rounds = list(simulate(FEDAVG, DATA, rounds=6, seed=0, participation=0.4))
    assert {len(round.selected) for round in rounds} == {2}
    assert len({round.selected for round in rounds}) > 2
    assert all(sum(r.weights.values()) == pytest.approx(1) for r in rounds)


def test_at_least_one_client_participates() -> None:
    (round,) = simulate(FEDAVG, DATA, rounds=1, seed=0, participation=0.01)
    assert len(round.selected) == 1


def test_rounds_are_generated_lazily() -> None:
    run = simulate(FEDAVG, DATA, rounds=10**9, seed=0)
    assert next(run).index == 1
    assert next(run).index == 2


@dataclass
class RecordingDefense(Defense):
    """A defense that records the contexts that it receives."""

    prepared: ClassVar[list[ClientContext]] = []
    turns: ClassVar[list[TrainingContext]] = []
    seen: int = field(default=0)

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        self.prepared.append(client_context)
        return replace(data, features=data.features + 1)

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        self.turns.append(context)
        assert torch.equal(data.features, DATA[context.client].features + 1), "prepared once"
        return data


def test_a_defense_is_prepared_once_and_called_in_each_round() -> None:
    RecordingDefense.prepared.clear()
    RecordingDefense.turns.clear()
    rounds = list(simulate(FEDAVG, DATA, rounds=2, seed=9, defenses={3: RecordingDefense()}))
    (prepared,) = RecordingDefense.prepared
    assert (prepared.round, prepared.client, prepared.cohort) == (0, 3, tuple(DATA))
    for context, round in zip(RecordingDefense.turns, rounds, strict=True):
        assert (context.round, context.rounds, context.client, context.seed) == (
            round.index,
            2,
            3,
            9,
        )
        assert (context.cohort, context.weights) == (round.selected, round.weights)
        assert torch.equal(flat(context.received.params), flat(round.sent[3].model.params))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "at least one round"),
        ({"participation": 0.0}, "participation in"),
        ({"participation": 1.5}, "participation in"),
        ({"clients": {}}, "got 0 clients"),
        ({"defenses": {7: Defense()}}, r"defenses for clients \[7\]"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_impossible_runs_raise(settings: dict[str, object], message: str) -> None:
    options = {"clients": DATA, "rounds": 1, "seed": 0} | settings
    clients = options.pop("clients")
    with pytest.raises(BadInput, match=message):
        next(simulate(FEDAVG, clients, **options))  # type: ignore[arg-type]


def same(model: Model) -> Model:
    return model


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (
            Tampering({7: same, 1: same}),
            r"clients \[7\], but the federation has only clients \[0",
        ),
        (
            Tampering({1: same}, frozenset({0})),
            r"rounds \[0\], but rounds are numbered 1 to 2",
        ),
        (
            Tampering({1: same}, frozenset({1, 3})),
            r"rounds \[3\], but rounds are numbered 1 to",
        ),
        (Tampering({2: same}, frozenset({2})), ""),
    ],
)
def test_a_malicious_server_must_name_existing_clients_and_rounds(
    server: Tampering, message: str
) -> None:
    def run() -> Iterator[Round]:
        return simulate(FEDAVG, DATA, rounds=2, seed=1, server=server)

    if message:
        with pytest.raises(BadInput, match=message):
            run()
    else:
        assert len(list(run())) == 2


@dataclass(frozen=True)
class Scaled(Defense):
    """A defense with a function and a list among its settings."""

    factor: object = field(default=abs)
    levels: list[float] = field(default_factory=lambda: [0.5])

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        return upload


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"rounds": 4},
        {"participation": 0.5},
        {"clients": {**DATA, 5: samples(5)}},
        {"clients": {**DATA, 0: replace(DATA[0], labels=1 - DATA[0].labels)}},
        {"clients": {**DATA, 0: replace(DATA[0], features=2 * DATA[0].features)}},
        {"defenses": {0: GradientNoise(0.1)}},
        {"defenses": {0: GradientNoise(0.2)}},
        {"server": Tampering({0: same})},
        {"algorithm": replace(FEDAVG, training=LocalTraining(lr=0.2))},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_checkpoint_of_another_run_raises(other: dict[str, object], tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    ours: dict[str, object] = {"algorithm": FEDAVG, "clients": DATA, "rounds": 3, "seed": 0}

    def run(run_settings: dict[str, object]) -> Round | None:
        algorithm, clients = run_settings["algorithm"], run_settings["clients"]
        options = {k: v for k, v in run_settings.items() if k not in ("algorithm", "clients")}
        return next(simulate(algorithm, clients, checkpoint=checkpoint, **options), None)  # type: ignore[arg-type]

    list(simulate(FEDAVG, DATA, rounds=3, seed=0, checkpoint=checkpoint))
    before = checkpoint.read_bytes()
    assert run(ours) is None, "this run is finished"
    with pytest.raises(BadInput, match="belongs to a run with other settings"):
        run(ours | other)
    assert checkpoint.read_bytes() == before


def test_runs_with_functions_or_lists_as_settings_resume(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"

    def run(defense: Defense) -> int:
        rounds = simulate(
            FEDAVG, DATA, rounds=2, seed=0, defenses={0: defense}, checkpoint=checkpoint
        )
        return len(list(rounds))

    def make_function() -> Callable[[float], float]:
        return lambda x: x

    # Two functions with equal names and sources, like one function in two processes.
    assert run(Scaled(factor=make_function())) == 2
    assert run(Scaled(factor=make_function())) == 0


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", None])
def test_a_damaged_checkpoint_raises_and_is_not_changed(
    tmp_path: Path, content: bytes | None
) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    list(simulate(FEDAVG, DATA, rounds=1, seed=0, checkpoint=checkpoint))
    cut = checkpoint.read_bytes()[:-7] if content is None else content
    checkpoint.write_bytes(cut)
    with pytest.raises(Damaged):
        next(simulate(FEDAVG, DATA, rounds=1, seed=0, checkpoint=checkpoint))
    assert checkpoint.read_bytes() == cut


def test_a_foreign_safetensors_file_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    write_tensors({"weight": torch.ones(2)}, checkpoint)
    with pytest.raises(BadInput, match="other settings"):
        next(simulate(FEDAVG, DATA, rounds=1, seed=0, checkpoint=checkpoint))


def without(name: str) -> Callable[[Params], Params]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("alter", "round", "message"),
    [
        (dict, "-5", "of round -5, but the run has 3 rounds"),
        (dict, "0", "of round 0"),
        (dict, "4", "of round 4"),
        (dict, "9" * 300, "of round 999"),
        (dict, "one", "invalid literal"),
        (without("server/params/weight"), "1", "missing or too many, such as 'params/weight'"),
        (lambda t: t | {"server/params/more": torch.ones(1)}, "1", "such as 'params/more'"),
        (
            lambda t: t | {"server/params/bias": torch.ones(7)},
            "1",
            "'params/bias' has another shape",
        ),
        (
            lambda t: t | {"server/params/bias": torch.ones(2, dtype=torch.float64)},
            "1",
            "'params/bias' has another shape",
        ),
        (lambda t: t | {"memory/99/x": torch.ones(1)}, "1", "has client 99"),
        (lambda t: t | {"defense/-1/x": torch.ones(1)}, "1", "has client -1"),
        (lambda t: t | {"other/1/x": torch.ones(1)}, "1", "'other'"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_an_impossible_checkpoint_state_raises(
    alter: Callable[[Params], Params], round: str, message: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    list(simulate(FEDAVG, DATA, rounds=3, seed=0, checkpoint=checkpoint))
    tensors, notes = read_tensors(checkpoint)
    write_tensors(alter(tensors), checkpoint, notes | {"round": round})
    with pytest.raises(Damaged, match=f"{message}.*delete it to start again") as refused:
        next(simulate(FEDAVG, DATA, rounds=3, seed=0, checkpoint=checkpoint))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@dataclass
class Learning(Defense):
    """A defense whose state is a number, and a list that grows with every round."""

    level: torch.Tensor = field(default_factory=lambda: torch.zeros(2))
    seen: torch.Tensor = field(default_factory=lambda: torch.zeros(0))

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        self.level, self.seen = self.level + 1, torch.cat([self.seen, torch.ones(1)])

    def state(self) -> Params:
        return {"level": self.level, "seen": self.seen}

    def restore(self, state: Params) -> None:
        self.level, self.seen = state["level"], state["seen"]


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (without("defense/0/level"), "missing or too many, such as 'level'"),
        (lambda t: t | {"defense/0/more": torch.ones(1)}, "such as 'more'"),
        (lambda t: t | {"defense/1/level": torch.ones(2)}, "such as 'level'"),
        (
            lambda t: t | {"defense/0/level": torch.ones(3)},
            "'level' has another shape .* client 0's",
        ),
        (lambda t: t | {"defense/0/level": torch.ones(2).int()}, "'level' has another shape"),
        (lambda t: t | {"defense/0/seen": torch.ones(1, 1)}, "'seen' has another shape"),
    ],
)
def test_an_impossible_defense_state_raises(
    alter: Callable[[Params], Params], message: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"

    def run() -> Iterator[Round]:
        return simulate(
            FEDAVG, DATA, rounds=3, seed=0, defenses={0: Learning()}, checkpoint=checkpoint
        )

    stopped = run()
    next(stopped), next(stopped)
    tensors, notes = read_tensors(checkpoint)
    assert next(run()).index == 2, "the grown list is restored"
    write_tensors(alter(tensors), checkpoint, notes)
    with pytest.raises(Damaged, match=f"{message}.*delete it to start again") as refused:
        next(run())
    assert "\n" not in str(refused.value)
