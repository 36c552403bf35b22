"""What every defense of the catalogue keeps to."""

from collections.abc import Mapping
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core import Architecture, Model, Samples, Setting
from fedaudit.defenses.base import Defense, Visit
from fedaudit.defenses.catalog import DEFENSES
from fedaudit.fl.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training import LocalTraining
from fedaudit.observe.round import Gradient, Logits, Round, Update, Upload
from fedaudit.params import difference
from fedaudit.seeds import seeded

NEUTRAL: dict[str, Mapping[str, Setting]] = {
    "none": {},
    "gradient-noise": {"sigma": 0.0},
    "client-dp": {"clip": float("inf"), "noise_multiplier": 0.0},
    "mixup": {"alpha": 0.0},
    "augmentation": {
        "padding": 0,
        "horizontal_flip": 0.0,
        "vertical_flip": 0.0,
        "rotation": 0.0,
        "brightness": 0.0,
        "contrast": 0.0,
    },
    "relaxloss": {"target_loss": 0.0},
    "hamp": {"entropy_threshold": 0.0, "entropy_weight": 0.0, "divide_by_classes": False},
}
"""For each defense the settings at which it does nothing."""

ACTIVE: dict[str, Mapping[str, Setting]] = {
    "gradient-noise": {"sigma": 0.01},
    "client-dp": {"clip": 0.1, "noise_multiplier": 1.0},
    "mixup": {"alpha": 1.0},
    "augmentation": {"padding": 1},
    "relaxloss": {"target_loss": 1.0},
    "hamp": {"entropy_threshold": 0.5, "entropy_weight": 0.01},
}
"""For each defense that can do something, settings at which it does."""


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def samples(client: int) -> Samples:
    rng = seeded(2, "data", client)
    features = torch.randn(9, 1, 2, 2, generator=rng)
    return Samples(features, torch.randint(0, 3, (9,), generator=rng), torch.arange(9) + client * 9)


DATA = {client: samples(client) for client in range(3)}
FEDAVG = FedAvg(Architecture("net", partial(net)), LocalTraining(batch_size=4, lr=0.3))
every_active = pytest.mark.parametrize("name", ACTIVE)


def run(**defenses: Defense) -> list[Round]:
    """Two rounds; defenses are given as ``client_0=...``."""
    by_client = {int(key.removeprefix("client_")): value for key, value in defenses.items()}
    return list(simulate(FEDAVG, DATA, rounds=2, seed=1, defenses=by_client))


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def test_every_defense_has_a_neutral_setting_here_and_active_ones_but_for_none() -> None:
    assert NEUTRAL.keys() == DEFENSES.keys()
    assert ACTIVE.keys() == DEFENSES.keys() - {"none"}


@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_setting_gives_the_undefended_run_to_the_bit(name: str) -> None:
    make = partial(DEFENSES[name], **NEUTRAL[name])
    for ours, bare in zip(run(client_0=make(), client_2=make()), run(), strict=True):
        for client in DATA:
            assert same(ours.uploads[client].values, bare.uploads[client].values)


@every_active
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    make = partial(DEFENSES[name], **ACTIVE[name])
    for one, other in zip(run(client_0=make()), run(client_0=make()), strict=True):
        assert same(one.uploads[0].values, other.uploads[0].values)


@every_active
def test_only_the_defended_clients_first_upload_changes(name: str) -> None:
    ours, bare = run(client_0=DEFENSES[name](**ACTIVE[name]))[0], run()[0]
    assert not same(ours.uploads[0].values, bare.uploads[0].values)
    for client in (1, 2):
        assert same(ours.uploads[client].values, bare.uploads[client].values)


@every_active
def test_two_clients_with_the_same_defense_draw_for_themselves(name: str) -> None:
    make = partial(DEFENSES[name], **ACTIVE[name])
    data = {0: DATA[0], 1: DATA[0]}
    (ours,) = simulate(FEDAVG, data, rounds=1, seed=1, defenses={0: make(), 1: make()})
    assert not same(ours.uploads[0].values, ours.uploads[1].values)


@every_active
def test_what_the_adversary_measures_is_the_defended_upload(name: str) -> None:
    for round in run(client_0=DEFENSES[name](**ACTIVE[name])):
        exposed, upload = round.exposed[0], round.uploads[0]
        assert exposed.update is not None
        assert exposed.local is not None
        assert exposed.base is not None
        assert same(exposed.update, upload.values)
        for param, moved in difference(exposed.local.params, exposed.base.params).items():
            torch.testing.assert_close(moved, upload.values[param], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [Update, Gradient, Logits])
@every_active
def test_an_upload_of_zeros_is_survived(name: str, kind: type[Upload]) -> None:
    defense = DEFENSES[name](**ACTIVE[name])
    if kind not in defense.accepts:
        return
    model = FEDAVG.architecture.initial(0)
    visit = Visit(round=1, rounds=1, client=0, cohort=(0,), weights={0: 1.0}, seed=0)
    zeros = kind({"w": torch.zeros(3, 2), "b": torch.zeros(3, dtype=torch.float64)})
    sent = defense.upload(zeros, visit.at(model))
    assert isinstance(sent, kind)
    assert {n: (v.shape, v.dtype) for n, v in sent.values.items()} == {
        n: (v.shape, v.dtype) for n, v in zeros.values.items()
    }
    assert all(bool(value.isfinite().all()) for value in sent.values.values())


@every_active
def test_an_upload_is_left_as_it_was_given(name: str) -> None:
    model = Model(FEDAVG.architecture, {"w": torch.ones(3)})
    visit = Visit(round=1, rounds=1, client=0, cohort=(0,), weights={0: 1.0}, seed=0)
    given = Update({"w": torch.ones(3)})
    DEFENSES[name](**ACTIVE[name]).upload(given, visit.at(model))
    assert torch.equal(given.values["w"], torch.ones(3))
