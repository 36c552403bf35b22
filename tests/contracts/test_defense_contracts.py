"""What every defense of the catalogue keeps to."""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import islice, permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.devices import device_named
from fedaudit.core.errors import Refusal
from fedaudit.core.params import flat, plus, weighted_sum
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Architecture, Model, Params, Samples, Setting
from fedaudit.defenses.base import Defense, Plan, Visit
from fedaudit.defenses.catalog import DEFENSES, made
from fedaudit.defenses.chain import Chain
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Gradient, Logits, Round, Sent, Update, Upload
from fedaudit.signals.base import Seen
from fedaudit.signals.outputs import Loss
from tests.simulated_gpu import simulated_gpu


def halved(update: Params) -> Params:
    return {name: value.mul_(0.5) for name, value in update.items()}


NEUTRAL: dict[str, Mapping[str, Setting]] = {
    "none": {},
    "gradient-noise": {"sigma": 0.0},
    "client-dp": {"clip": float("inf"), "noise_multiplier": 0.0},
    "dp-sgd": {"clip": float("inf"), "noise_multiplier": 0.0},
    "sparsification": {"ratio": 0.0},
    "quantization": {"bits": 32},
    "data-sampling": {"share": 1.0},
    "filter": {"path": "copy:copy"},
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
    "cofedmid": {"m_max": 3, "m_min": 3, "recycle": 0.0, "sigma": 0.0},
    "class-guided": {"m_max": 3, "m_min": 3},
    "compensation": {"m_max": 3, "m_min": 3, "recycle": 0.0},
    "neutral-noise": {"sigma": 0.0},
    "bitrand": {"nominal_epsilon": float("inf")},
    "ome": {"nominal_epsilon": float("inf")},
    "bitwise-rr": {"epsilon": float("inf")},
    "ldp-laplace": {"epsilon": float("inf"), "clip": float("inf")},
    "ldp-gaussian": {"epsilon": float("inf"), "clip": float("inf")},
}
"""For each defense the settings at which it does nothing."""

ACTIVE: dict[str, Mapping[str, Setting]] = {
    "gradient-noise": {"sigma": 0.01},
    "client-dp": {"clip": 0.1, "noise_multiplier": 1.0},
    "dp-sgd": {"clip": 0.1, "noise_multiplier": 1.0},
    "sparsification": {"ratio": 0.5},
    "quantization": {"bits": 2},
    "data-sampling": {"share": 0.5},
    "filter": {"path": f"{__name__}:halved"},
    "mixup": {"alpha": 1.0},
    "augmentation": {"padding": 1},
    "relaxloss": {"target_loss": 1.0},
    "hamp": {"entropy_threshold": 0.5, "entropy_weight": 0.01},
    "cofedmid": {"m_max": 2, "m_min": 1, "start": 1, "recycle": 0.3},
    "class-guided": {"m_max": 2, "m_min": 1},
    "compensation": {"m_max": 2, "m_min": 1, "start": 1, "recycle": 0.3},
    "neutral-noise": {},
    "bitrand": {"nominal_epsilon": 5.0},
    "ome": {"nominal_epsilon": 5.0},
    "bitwise-rr": {"epsilon": 20.0},
    "ldp-laplace": {"epsilon": 5.0, "clip": 2.0},
    "ldp-gaussian": {"epsilon": 5.0, "clip": 2.0},
}
"""For each defense that can do something, settings at which it does."""


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def samples(client: int) -> Samples:
    rng = seeded(2, "data", client)
    features = torch.randn(9, 1, 2, 2, generator=rng)
    return Samples(features, torch.randint(0, 3, (9,), generator=rng), torch.arange(9) + client * 9)


DATA = {client: samples(client) for client in range(3)}
FEDAVG = FedAvg(Architecture("net", partial(net)), LocalTraining(batch_size=5, lr=0.3))
DEFENDED = (0, 2)
"""Clients that use the defense, as a coalition where it takes one."""

every_defense = pytest.mark.parametrize("name", NEUTRAL)
every_active = pytest.mark.parametrize("name", ACTIVE)


def neutral(name: str) -> dict[int, Defense]:
    return {client: made(name, NEUTRAL[name], coalition=DEFENDED) for client in DEFENDED}


def active(name: str) -> dict[int, Defense]:
    return {client: made(name, ACTIVE[name], coalition=DEFENDED) for client in DEFENDED}


@cache
def bare_run() -> list[Round]:
    """Without a defense; to be read only, as is the next."""
    return run()


@cache
def active_run(name: str) -> list[Round]:
    return run(active(name))


def run(
    defenses: Mapping[int, Defense] | None = None, data: Mapping[int, Samples] = DATA
) -> list[Round]:
    return list(simulate(FEDAVG, data, rounds=2, seed=1, defenses=defenses))


def visit(round: int = 1) -> Visit:
    """Client 0's."""
    weights = dict.fromkeys(DATA, 1 / len(DATA))
    return Visit(round=round, rounds=2, client=0, cohort=tuple(DATA), weights=weights, seed=0)


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def test_every_defense_has_a_neutral_setting_here_and_active_ones_but_for_none() -> None:
    assert NEUTRAL.keys() == DEFENSES.keys()
    assert ACTIVE.keys() == DEFENSES.keys() - {"none"}


@every_defense
def test_the_neutral_setting_gives_the_undefended_run_to_the_bit(name: str) -> None:
    for ours, bare in zip(run(neutral(name)), bare_run(), strict=True):
        for client in DATA:
            assert same(ours.uploads[client].values, bare.uploads[client].values)


@every_active
def test_before_anything_is_trained_nothing_is_refused_that_would_run(name: str) -> None:
    plan = Plan(architecture=FEDAVG.architecture, shape=(1, 2, 2), classes=3, rounds=2)
    for defense in (*active(name).values(), *neutral(name).values()):
        defense.refuse_misfit(plan)
        Chain((defense,)).refuse_misfit(plan)


@every_active
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    for one, other in zip(run(active(name)), active_run(name), strict=True):
        for client in DATA:
            assert same(one.uploads[client].values, other.uploads[client].values)


@every_active
def test_on_a_gpu_the_same_seed_gives_the_run_of_the_cpu(name: str) -> None:
    here = active_run(name)
    with simulated_gpu():
        there = list(
            simulate(
                FEDAVG, DATA, rounds=2, seed=1, defenses=active(name), device=device_named("cuda")
            )
        )
    for one, other in zip(here, there, strict=True):
        for client in DATA:
            assert same(one.uploads[client].values, other.uploads[client].values)


@every_active
def test_only_the_defended_clients_first_uploads_change(name: str) -> None:
    ours, bare = active_run(name)[0], bare_run()[0]
    for client in DATA:
        unchanged = same(ours.uploads[client].values, bare.uploads[client].values)
        assert unchanged is (client not in DEFENDED)


@every_active
def test_two_clients_with_the_same_defense_draw_for_themselves(name: str) -> None:
    data = dict.fromkeys(DATA, DATA[0])
    first = run(active(name), data)[0]
    assert not same(first.uploads[0].values, first.uploads[2].values)


@every_active
def test_what_the_adversary_measures_is_the_defended_upload(name: str) -> None:
    audited = Samples.joined(*DATA.values())
    for round in active_run(name):
        losses = Loss()(Seen(round, audited))
        for client, upload in round.uploads.items():
            exposed, base = round.exposed[client], round.sent[client].model
            assert exposed.update is not None
            assert same(exposed.update, upload.values)
            returned = Model(base.architecture, plus(base.params, upload.values)).module()
            with torch.no_grad():
                expected = -cross_entropy(returned(audited.features), audited.labels)
            torch.testing.assert_close(losses[client], expected.double())


@every_active
def test_the_model_whose_accuracy_is_counted_is_made_of_defended_uploads(name: str) -> None:
    for round in active_run(name):
        uploads = [round.uploads[client].values for client in DATA]
        mean = weighted_sum(uploads, [round.weights[client] for client in DATA])
        made_of = plus(round.sent[0].model.params, mean)
        for param, value in round.after["global"].params.items():
            torch.testing.assert_close(value, made_of[param])


@pytest.mark.parametrize("kind", [Update, Gradient, Logits])
@every_active
def test_an_upload_of_zeros_is_survived(name: str, kind: type[Upload]) -> None:
    defense = active(name)[0]
    if kind not in defense.accepts:
        return
    model = FEDAVG.architecture.initial(0)
    zeros = kind({"w": torch.zeros(3, 2), "b": torch.zeros(3, dtype=torch.float64)})
    sent = defense.upload(zeros, visit().at(model))
    assert isinstance(sent, kind)
    assert {n: (v.shape, v.dtype) for n, v in sent.values.items()} == {
        n: (v.shape, v.dtype) for n, v in zeros.values.items()
    }
    assert all(bool(value.isfinite().all()) for value in sent.values.values())


@every_active
def test_an_upload_is_left_as_it_was_given(name: str) -> None:
    model = Model(FEDAVG.architecture, {"w": torch.ones(3)})
    given = Update({"w": torch.ones(3)})
    active(name)[0].upload(given, visit().at(model))
    assert torch.equal(given.values["w"], torch.ones(3))


@every_active
def test_a_state_given_to_a_new_instance_goes_on_where_the_old_one_was(name: str) -> None:
    old, new = active(name)[0], active(name)[0]
    data = old.prepare(DATA[0], visit(0))
    assert torch.equal(new.prepare(DATA[0], visit(0)).ids, data.ids)
    sent = Sent((FEDAVG.architecture.initial(0),))
    FEDAVG.local(sent, data, {}, old, visit(1))
    new.restore(old.state())
    assert same(new.state(), old.state())
    ours, theirs = (FEDAVG.local(sent, data, {}, d, visit(2)).upload for d in (old, new))
    assert same(ours.values, theirs.values)


@every_active
def test_a_run_that_was_killed_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    def started() -> Iterator[Round]:
        path = tmp_path / "checkpoint.safetensors"
        return simulate(FEDAVG, DATA, rounds=3, seed=1, defenses=active(name), checkpoint=path)

    whole = list(simulate(FEDAVG, DATA, rounds=3, seed=1, defenses=active(name)))
    assert [round.index for round in islice(started(), 2)] == [1, 2]
    rest = list(started())
    assert [round.index for round in rest] == [2, 3]
    for ours, theirs in zip(rest, whole[1:], strict=True):
        for client in DATA:
            assert same(ours.uploads[client].values, theirs.uploads[client].values)


@every_active
def test_a_chain_of_one_defense_is_that_defense_to_the_bit(name: str) -> None:
    chains = {client: Chain((defense,)) for client, defense in active(name).items()}
    for ours, alone in zip(run(chains), active_run(name), strict=True):
        for client in DATA:
            assert same(ours.uploads[client].values, alone.uploads[client].values)


def pair(first: str, second: str) -> dict[int, Defense]:
    ones, others = active(first), active(second)
    return {client: Chain((ones[client], others[client])) for client in DEFENDED}


def refusal(first: str, second: str) -> str:
    """Why two defenses make no chain, or nothing where they do."""
    try:
        rounds = run(pair(first, second), {client: DATA[client] for client in DEFENDED})
    except Refusal as error:
        return str(error)
    uploads = [upload for round in rounds for upload in round.uploads.values()]
    assert all(bool(flat(upload.values).isfinite().all()) for upload in uploads)
    return ""


@pytest.mark.parametrize(("first", "second"), list(permutations(ACTIVE, 2)))
def test_two_defenses_make_a_chain_that_runs_or_is_refused_by_name(first: str, second: str) -> None:
    said = refusal(first, second)
    known = {name: {name, type(active(name)[0]).__name__} for name in (first, second)}
    assert not said or any(word in said for words in known.values() for word in words), said
