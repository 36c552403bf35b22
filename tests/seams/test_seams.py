from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedaudit.attacks.catalog import ATTACKS
from fedaudit.core.errors import NotVisible
from fedaudit.core.seeds import seeded
from fedaudit.core.values import ClientId, Samples
from fedaudit.defenses.base import Defense
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL, Workers
from fedaudit.fl.algorithms.base import HONEST, Algorithm, Server
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.measurements import stacked
from fedaudit.observe.round import Round
from fedaudit.observe.views import VIEWS, seen_from
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure, measure_round
from fedaudit.signals.outputs import Confidence, Loss
from fedaudit.signals.updates import GradientCosine, GradientDifference, GradientNorm
from tests.seams.parts import (
    CLASSES,
    FEATURES,
    IFCA,
    Apart,
    FedMD,
    FedSGD,
    Learning,
    PerExample,
    Tampering,
    tiny,
)

ROUNDS, CLIENTS = 3, 5
HOW = LocalTraining(epochs=1, batch_size=4, lr=0.3, momentum=0.5)
OUTPUTS: tuple[Signal, ...] = (Loss(), Confidence())
SOME: tuple[Signal, ...] = (Loss(), GradientCosine())
ALL: tuple[Signal, ...] = (*OUTPUTS, GradientCosine(), GradientNorm(), GradientDifference())


def samples(count: int, first_id: int, purpose: str) -> Samples:
    rng = seeded(1, purpose)
    return Samples(
        torch.randn(count, FEATURES, generator=rng),
        torch.randint(0, CLASSES, (count,), generator=rng),
        torch.arange(first_id, first_id + count),
    )


# Unequal sizes, and more than one batch a client.
DATA = {client: samples(8 + client, 100 * client, f"client {client}") for client in range(CLIENTS)}
PROBE = Samples.joined(DATA[0], samples(6, 1000, "unseen"))
FEDAVG = FedAvg(tiny(), HOW)


@dataclass(frozen=True)
class Case:
    """One seam, with the signals that each view of it can measure (none: refused)."""

    algorithm: Algorithm
    defenses: Mapping[ClientId, Defense] = field(default_factory=dict)
    server: Server = HONEST
    participation: float = 1.0
    signals: Mapping[str, tuple[Signal, ...]] = field(
        default_factory=lambda: {"uploads": ALL, "sum": ALL, "globals": ALL, "final": OUTPUTS}
    )


CASES = {
    "fedavg": Case(FEDAVG),
    "fedavg, some clients a round": Case(FEDAVG, participation=0.6),
    "fedsgd": Case(FedSGD(tiny(), lr=0.5)),
    "fedmd": Case(
        FedMD(
            {client: tiny(hidden=4 + client % 2) for client in DATA},
            student=tiny(),
            public=samples(10, 0, "public"),
            training=HOW,
        ),
        signals={"uploads": OUTPUTS, "sum": (), "globals": (), "final": ()},
    ),
    "ifca": Case(
        IFCA(FEDAVG),
        {2: Learning()},
        signals={"uploads": ALL, "sum": (), "globals": (), "final": ()},
    ),
    "tampering server": Case(
        FEDAVG,
        server=Tampering(victim=1),
        signals={"uploads": ALL, "sum": (), "globals": ALL, "final": OUTPUTS},
    ),
    "per-example clipping on Poisson batches": Case(FEDAVG, {0: PerExample(), 3: PerExample()}),
    "per-example clipping under fedsgd": Case(FedSGD(tiny(), lr=0.5), {0: PerExample(rate=1.0)}),
    "some samples apart": Case(FEDAVG, {0: Apart(ids=(0, 1, 2))}),
    "a defense that learns": Case(FEDAVG, {0: Learning(), 1: Learning(scale=0.5)}),
    "a defense that learns, some clients a round": Case(
        FEDAVG, {0: Learning(), 1: Learning()}, participation=0.6
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def stream(case: Case, checkpoint: Path | None = None, engine: Engine = LOCAL) -> Iterator[Round]:
    return simulate(
        case.algorithm,
        DATA,
        rounds=ROUNDS,
        seed=7,
        defenses=case.defenses,
        server=case.server,
        participation=case.participation,
        checkpoint=checkpoint,
        engine=engine,
    )


def everything(round: Round, signals: Sequence[Signal]) -> dict[str, Tensor]:
    """All tensors of a round and of what is measured in it, by name."""
    found = dict(measure_round(round, signals, PROBE).signals)
    for client, upload in round.uploads.items():
        found |= {f"upload/{client}/{name}": value for name, value in upload.values.items()}
    for name, model in round.after.items():
        found |= {f"after/{name}/{key}": value for key, value in model.tensors().items()}
    return found


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@cache
def trained(name: str) -> tuple[Round, ...]:
    """The whole run, never stopped."""
    return tuple(stream(CASES[name]))


@every_case
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_measures_what_it_shows_and_refuses_the_rest_by_name(
    name: str, view: str
) -> None:
    shown = CASES[name].signals[view]
    if shown:
        for measured in measure(seen_from(trained(name), VIEWS[view]), shown, PROBE):
            for values in measured.signals.values():
                assert values.shape == (len(measured.clients), len(PROBE))
                assert bool(values.isfinite().all())
    for signal in set(ALL) - set(shown):
        with pytest.raises(NotVisible):
            list(measure(seen_from(trained(name), VIEWS[view]), [signal], PROBE))


@every_case
@pytest.mark.parametrize("finished", [1, ROUNDS])
def test_a_run_that_is_killed_goes_on_as_if_it_had_never_stopped(
    name: str, finished: int, tmp_path: Path
) -> None:
    case, checkpoint = CASES[name], tmp_path / "checkpoint.safetensors"
    first = stream(case, checkpoint)
    for _ in range(finished):
        next(first)
    del first
    rest = list(stream(case, checkpoint))
    # The round in hand when the run was killed was not finished with, and comes again.
    assert [round.index for round in rest] == list(range(finished, ROUNDS + 1))
    signals = [signal for signal in SOME if signal in case.signals["uploads"]]
    for again, once in zip(rest[:1], trained(name)[finished - 1 :], strict=False):
        assert same(everything(again, signals), everything(once, signals))
    assert same(everything(rest[-1], []), everything(trained(name)[-1], []))
    assert list(stream(case, checkpoint)) == []


def test_two_worker_processes_give_the_same_bits_as_one() -> None:
    for one, two in zip(trained("ifca"), stream(CASES["ifca"], engine=Workers(2)), strict=True):
        assert same(everything(one, SOME), everything(two, SOME))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.defenses])
def test_a_run_leaves_the_defenses_it_was_given_as_they_were(name: str) -> None:
    before = repr(CASES[name].defenses)
    list(stream(CASES[name]))
    assert repr(CASES[name].defenses) == before


def test_clients_that_chose_another_model_are_no_peers() -> None:
    measured = list(measure(trained("ifca"), [Loss()], PROBE))
    assert any(len(set(m.bases.tolist())) == 2 for m in measured)
    m = stacked(measured)["loss"]
    for row, numbers in enumerate(m.bases.tolist()):
        alike = [number == numbers[0] for number in numbers[1:]]
        assert m.peers(0)[row].isfinite().all(1).tolist() == alike


def test_a_client_sent_a_tampered_model_has_no_peers_and_is_no_peer() -> None:
    m = stacked(measure(trained("tampering server"), [Loss()], PROBE))["loss"]
    with pytest.raises(NotVisible, match="at least 2 clients besides the target"):
        ATTACKS["fedmia-1"].scores({"loss": m}, 1)
    assert m.peers(0).isnan().all(2).sum(1).tolist() == [1] * ROUNDS
    assert bool(ATTACKS["fedmia-1"].scores({"loss": m}, 0).isfinite().all())


def test_gradients_are_taken_at_the_model_that_each_client_was_sent() -> None:
    (round, *_) = trained("tampering server")
    together = measure_round(round, [GradientCosine()], PROBE).signals["gradient-cosine"]
    for row, client in enumerate(sorted(round.exposed)):
        alone = replace(round, exposed={client: round.exposed[client]})
        single = measure_round(alone, [GradientCosine()], PROBE).signals["gradient-cosine"]
        torch.testing.assert_close(together[row], single[0])


def test_memory_stays_with_the_client_and_outlives_rounds() -> None:
    rounds = trained("fedmd")
    assert all(set(u.values) == {"logits"} for r in rounds for u in r.uploads.values())
    first, last = rounds[0].uploads[0].values["logits"], rounds[-1].uploads[0].values["logits"]
    assert not torch.equal(first, last)


def test_the_sum_follows_a_target_through_rounds_in_which_not_everybody_takes_part() -> None:
    rounds = trained("fedavg, some clients a round")
    assert len({round.answered for round in rounds}) > 1
    m = stacked(measure(seen_from(rounds, VIEWS["sum"]), [Loss()], PROBE))["loss"]
    for target in DATA:
        took_part = [target in round.answered for round in rounds]
        if any(took_part):
            assert m.of(target).isfinite().all(1).tolist() == took_part


@pytest.mark.parametrize("view", ["globals", "final"])
def test_global_models_speak_of_every_client_whoever_took_part(view: str) -> None:
    rounds = seen_from(trained("fedavg, some clients a round"), VIEWS[view])
    m = stacked(measure(rounds, [Loss()], PROBE))["loss"]
    assert all(bool(m.of(target).isfinite().all()) for target in DATA)
    assert m.peers(0).shape == (ROUNDS, 0, len(PROBE))
