"""Views and signals with different client models or partial participation."""

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import nn

from fedaudit.attacks import ATTACKS
from fedaudit.core.errors import NotVisible
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.fl.algorithms.base import HONEST_SERVER, Algorithm, Server, Tampering
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.ifca import Ifca
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.measurements import stacked
from fedaudit.observe.round import Round
from fedaudit.observe.views import VIEWS, seen_from
from fedaudit.signals.measure import measure, measure_round
from fedaudit.signals.outputs import Loss
from fedaudit.signals.updates import GradientCosine
from tests.samples import random_samples

ROUNDS, CLIENTS, FEATURES, CLASSES = 3, 5, 6, 3


def samples(count: int, first_id: int, purpose: str) -> Samples:
    return random_samples(seeded(1, purpose), count, FEATURES, classes=CLASSES, first=first_id)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def shifted(model: Model) -> Model:
    return replace(model, params={name: value + 0.5 for name, value in model.params.items()})


# Sizes differ, and each client has more than one batch.
DATA = {client: samples(8 + client, 100 * client, f"client {client}") for client in range(CLIENTS)}
PROBE = Samples.concatenate(DATA[0], samples(6, 1000, "unseen"))
TINY = Architecture("tiny", partial(net))
HOW = LocalTraining(epochs=1, batch_size=4, lr=0.3, momentum=0.5)
CASES: dict[str, tuple[Algorithm, Server, float]] = {
    "several models": (Ifca(TINY, HOW, 2), HONEST_SERVER, 1.0),
    "a server that tampers": (FedAvg(TINY, HOW), Tampering({1: shifted}), 1.0),
    "some clients a round": (FedAvg(TINY, HOW), HONEST_SERVER, 0.6),
}


@cache
def trained(name: str) -> tuple[Round, ...]:
    algorithm, server, share = CASES[name]
    how = {"rounds": ROUNDS, "seed": 7, "server": server, "participation": share}
    return tuple(simulate(algorithm, DATA, **how))  # type: ignore[arg-type]


def test_clients_that_chose_different_models_are_not_peers() -> None:
    measured = list(measure(trained("several models"), [Loss()], PROBE))
    assert any(len(set(m.bases.tolist())) == 2 for m in measured)
    m = stacked(measured)["loss"]
    for numbers, peers, values in zip(m.bases.tolist(), m.peers(0), m.values, strict=True):
        alike = [
            position for position, number in enumerate(numbers) if position and number == numbers[0]
        ]
        assert torch.equal(peers, values[alike])


@pytest.mark.parametrize("name", ["several models", "a server that tampers"])
def test_the_sum_view_raises_for_different_models(name: str) -> None:
    with pytest.raises(NotVisible, match="received different models"):
        list(seen_from(trained(name), VIEWS["sum"]))


def test_a_client_with_a_tampered_model_has_no_peers_and_is_no_peer() -> None:
    m = stacked(measure(trained("a server that tampers"), [Loss()], PROBE))["loss"]
    with pytest.raises(NotVisible, match="at least 2 other clients"):
        ATTACKS["fedmia-1"].scores({"loss": m}, 1)
    assert [len(peers) for peers in m.peers(0)] == [len(DATA) - 2] * ROUNDS
    assert bool(ATTACKS["fedmia-1"].scores({"loss": m}, 0).isfinite().all())


def test_gradients_are_computed_at_the_model_that_each_client_received() -> None:
    (round, *_) = trained("a server that tampers")
    together = measure_round(round, [GradientCosine()], PROBE).signals["gradient-cosine"]
    for row, client in enumerate(sorted(round.observed)):
        alone = replace(round, observed={client: round.observed[client]})
        single = measure_round(alone, [GradientCosine()], PROBE).signals["gradient-cosine"]
        torch.testing.assert_close(together[row], single[0])


def test_the_sum_view_supports_partial_participation() -> None:
    rounds = trained("some clients a round")
    assert len({round.answered for round in rounds}) > 1
    m = stacked(measure(seen_from(rounds, VIEWS["sum"]), [Loss()], PROBE))["loss"]
    for target in DATA:
        took_part = [target in round.answered for round in rounds]
        if any(took_part):
            assert m.of(target).isfinite().all(1).tolist() == took_part


@pytest.mark.parametrize("view", ["globals", "final"])
def test_global_models_represent_all_clients(view: str) -> None:
    rounds = seen_from(trained("some clients a round"), VIEWS[view])
    m = stacked(measure(rounds, [Loss()], PROBE))["loss"]
    assert all(bool(m.of(target).isfinite().all()) for target in DATA)
    assert [len(peers) for peers in m.peers(0)] == [0] * ROUNDS
