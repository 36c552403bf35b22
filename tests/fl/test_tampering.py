"""A server that tampers names clients and rounds that there will be."""

from functools import partial

import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.fl.algorithms.fedsgd import FedSGD
from fedaudit.fl.server import Tampering
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.models.mlp import mlp

NET = Architecture("net", partial(mlp, shape=(3,), classes=2, hidden="4"))
DATA = {c: Samples(torch.ones(2, 3), torch.tensor([0, 1]), torch.arange(2)) for c in range(3)}


def same(model: Model) -> Model:
    return model


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (Tampering({7: same, 1: same}), r"clients \[7\], which never come: there are 3 clients"),
        (Tampering({1: same}, frozenset({0})), r"rounds \[0\].* and rounds 1 to 2"),
        (Tampering({1: same}, frozenset({1, 3})), r"rounds \[3\], which never come"),
    ],
)
def test_what_never_comes_is_refused_before_anything_is_trained(
    server: Tampering, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        simulate(FedSGD(NET, LocalTraining()), DATA, rounds=2, seed=1, server=server)


def test_what_comes_is_not_refused() -> None:
    server = Tampering({2: same}, frozenset({2}))
    rounds = simulate(FedSGD(NET, LocalTraining()), DATA, rounds=2, seed=1, server=server)
    assert len(list(rounds)) == 2
