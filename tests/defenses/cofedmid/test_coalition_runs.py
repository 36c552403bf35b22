"""CoFedMID in complete runs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import signature

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import held_out, seeded
from fedaudit.core.values import Architecture, Batch, Model, Samples, flat, weighted_sum
from fedaudit.defenses.cofedmid import CoFedMID
from fedaudit.defenses.cofedmid.compensation import Compensation, confidence_penalty
from fedaudit.defenses.cofedmid.neutral import NeutralNoise
from fedaudit.defenses.cofedmid.partition import ClassGuided
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.noise import GradientNoise
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import ClientContext, Defense, TrainingContext
from fedaudit.fl.simulate import run_fingerprint, simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.models import architecture
from fedaudit.observe.round import Round
from tests.defenses import turns

CLASSES, EACH = 6, 60
ROUNDS = 5


def samples(client: int) -> Samples:
    rng = seeded(2, "data", client)
    labels = torch.arange(EACH) % CLASSES
    features = torch.randn(EACH, 4, generator=rng) + labels[:, None] * 0.5
    return Samples(features, labels, torch.arange(EACH) + client * EACH)


DATA = {client: samples(client) for client in range(4)}
NET = architecture("mlp", shape=(4,), classes=CLASSES, hidden="8")
FEDAVG = FedAvg(NET, LocalTraining(epochs=2, batch_size=8, lr=0.1))
PAIR = (0, 1)
SETTINGS: Mapping[str, float | int] = {"m_max": 4, "m_min": 2, "start": 2, "recycle": 0.2}


def run(
    defenses: Mapping[int, Defense], rounds: int = ROUNDS, participation: float = 1.0
) -> Iterator[Round]:
    return simulate(
        FEDAVG, DATA, rounds=rounds, seed=1, defenses=defenses, participation=participation
    )


def pair(**changes: object) -> dict[int, Defense]:
    options = {**SETTINGS, **changes}
    return {client: CoFedMID(clients=PAIR, **options) for client in PAIR}  # type: ignore[arg-type]


def classes_used(round: Round, client: int) -> set[int]:
    return set((round.client_notes[client]["used"] % EACH % CLASSES).tolist())


def context(round: int = 1, client: int = 0) -> TrainingContext:
    return turns.context(round, client, 3, weights={0: 0.5, 1: 0.5}, net=NET)


def test_clients_train_on_their_classes_and_cover_all() -> None:
    guided = {c: ClassGuided(clients=PAIR, m_max=3, m_min=3) for c in PAIR}
    sets = []
    for round in run(guided):
        used = [classes_used(round, client) for client in PAIR]
        assert [len(classes) for classes in used] == [3, 3]
        assert used[0] | used[1] == set(range(CLASSES))
        assert classes_used(round, 2) == set(range(CLASSES))
        sets.append(frozenset(used[0]))
    assert len(set(sets)) > 1


def test_all_samples_of_assigned_classes_are_used_in_every_epoch() -> None:
    (first,) = run({c: ClassGuided(clients=PAIR, m_max=2, m_min=2) for c in PAIR}, rounds=1)
    times = Counter(first.client_notes[0]["used"].tolist())
    assert len(times) == 2 * EACH // CLASSES
    assert set(times.values()) == {2}
    assert len(classes_used(first, 0)) == 2


def test_classes_rotate_if_one_round_cannot_cover_all() -> None:
    guided = ClassGuided(clients=PAIR, m_max=1, m_min=1)
    covered = [
        set(
            np.flatnonzero(
                guided.assignment_in(CLASSES, context(t), n_present=2).sets.any(0)
            ).tolist()
        )
        for t in range(1, 7)
    ]
    assert all(len(classes) == 2 for classes in covered)
    assert covered[0] | covered[1] | covered[2] == set(range(CLASSES))
    assert covered[3] | covered[4] | covered[5] == set(range(CLASSES))


def test_participating_clients_cover_all_classes() -> None:
    guided = ClassGuided(clients=(0, 1, 3), m_max=3, m_min=3)
    has_class = {c: guided.has_class(DATA[c], context(client=c)) for c in PAIR}
    labels = [set(DATA[c].labels[has_class[c]].tolist()) for c in PAIR]
    assert labels[0] | labels[1] == set(range(CLASSES))


def test_the_number_of_classes_is_inferred_from_the_output() -> None:
    unnamed = Architecture("net", partial(nn.Linear, 4, CLASSES)).initial(0)
    training_context = ClientContext(
        round=1, rounds=1, client=0, cohort=(0,), weights={0: 1.0}, seed=0
    ).with_model(unnamed)
    assert (
        len(ClassGuided(clients=(0,), m_max=2, m_min=2).select(DATA[0], training_context))
        == 2 * EACH // CLASSES
    )


def test_invalid_coalitions_and_class_counts_raise() -> None:
    with pytest.raises(BadInput, match=r"needs clients, client numbers, such as \[0, 1\]"):
        CoFedMID()  # type: ignore[call-arg]
    with pytest.raises(BadInput, match="from 1 to 6"):
        ClassGuided(clients=PAIR, m_max=7).select(DATA[0], context())
    with pytest.raises(BadInput, match="is not in it"):
        ClassGuided(clients=(1, 2)).select(DATA[0], context())


def test_samples_return_from_the_start_round_up_to_the_limit() -> None:
    for round in run(pair()):
        for client in PAIR:
            facts = round.client_notes[client]
            back = set(facts.get("recycled", torch.zeros(0)).tolist())
            assert (len(back) == 0) if round.index < 2 else (len(back) <= 0.2 * EACH)
            assert back <= set(facts["used"].tolist())
    assert any(len(r.client_notes[0].get("recycled", ())) for r in run(pair()))


@pytest.mark.parametrize("recycling", ["exp3", "random", "sequential"])
def test_returned_samples_are_of_other_classes_and_limited(recycling: str) -> None:
    ours = Compensation(clients=PAIR, m_max=2, m_min=2, start=1, recycle=0.1, recycling=recycling)  # type: ignore[arg-type]
    for index in range(1, 8):
        training_context = context(index)
        own_ids = DATA[0].ids[ours.has_class(DATA[0], training_context)]
        chosen = ours.select(DATA[0], training_context).ids
        back = chosen[~torch.isin(chosen, own_ids)]
        assert bool(torch.isin(own_ids, chosen).all())
        assert len(set(chosen.tolist())) == len(chosen) == len(own_ids) + len(back)
        assert ours.memory.back is not None
        assert ours.memory.back.sort().values.tolist() == back.sort().values.tolist()
        assert len(back) <= 6
        if recycling != "exp3":
            assert len(back) == 6


def test_loss_intervals_are_fixed_in_the_start_round() -> None:
    ours = Compensation(clients=PAIR, m_max=2, m_min=2, start=3)
    edges = []
    for index in range(1, 7):
        ours.select(DATA[0], context(index))
        edges.append(ours.state()["edges"])
    # With another model, losses change but intervals do not.
    assert [len(e) for e in edges] == [0, 0, 9, 9, 9, 9]
    moved = NET.initial(5)
    training_context = ClientContext(
        round=8, rounds=10, client=0, cohort=(0, 1), weights={}, seed=3
    ).with_model(moved)
    ours.select(DATA[0], training_context)
    assert torch.equal(ours.state()["edges"], edges[2])


def test_sequential_returns_samples_by_increasing_loss() -> None:
    ours = Compensation(
        clients=PAIR, m_max=2, m_min=2, start=1, recycle=0.1, recycling="sequential"
    )
    training_context = context()
    losses = training_context.evaluate(DATA[0])
    is_left_out = ~ours.has_class(DATA[0], training_context)
    ranked = DATA[0].ids[is_left_out][losses[is_left_out].argsort(stable=True)]
    ours.select(DATA[0], training_context)
    assert ours.memory.back is not None
    assert torch.equal(ours.memory.back, ranked[:6])
    ours.select(DATA[0], training_context)
    assert torch.equal(ours.memory.back, ranked[6:12])


def test_confidence_penalty_matches_hand_calculation() -> None:
    outputs = torch.tensor([[2.0, 0.0, -1.0]])
    p = outputs.softmax(1)[0]
    other_probability = (1 - p[0]) / 2
    target = torch.stack([p[0], other_probability, other_probability])
    divergence = (target * (target.log() - p.log())).sum() / 3
    expected = divergence - 0.005 * -(p * p.log()).sum()
    penalty = confidence_penalty(outputs, torch.tensor([0]), mu=0.005)
    torch.testing.assert_close(penalty[0], expected)


def test_no_gradient_flows_through_the_soft_label() -> None:
    outputs = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(
        confidence_penalty(outputs, torch.tensor([0]), mu=0.0).sum(), outputs
    )
    p = outputs.detach().softmax(1)[0]
    other_probability = (1 - p[0]) / 2
    # The true class keeps its probability, and the others tend to their mean.
    expected = (
        torch.stack([torch.zeros(()), p[1] - other_probability, p[2] - other_probability]) / 3
    )
    torch.testing.assert_close(slope[0], expected)


def test_only_returned_samples_have_a_confidence_penalty() -> None:
    ours = Compensation(clients=PAIR, m_max=2, m_min=2, start=1, mu=0.1)
    training_context = context()
    outputs = torch.randn(3, CLASSES, generator=seeded(0, "outputs"))
    batch = Batch(torch.zeros(3, 4), torch.tensor([0, 1, 2]), torch.tensor([7, 8, 9]))
    ours.memory.begin(torch.tensor([8]))
    plain = functional.cross_entropy(outputs, batch.y)
    extra = confidence_penalty(outputs[1:2], batch.y[1:2], mu=0.1).sum() / 3
    torch.testing.assert_close(ours.loss(outputs, batch, training_context), plain + extra)
    ours.memory.begin(torch.tensor([4]))
    assert torch.equal(ours.loss(outputs, batch, training_context), plain)


def test_without_regularisation_training_is_plain() -> None:
    ours = Compensation(clients=PAIR, regularise=False)
    assert not ours.acts_in("loss")
    assert Compensation(clients=PAIR).acts_in("loss")


def test_validation_samples_are_never_in_a_batch() -> None:
    held_out_ids = {c: DATA[c].ids[held_out(DATA[c].ids, 0.1, seed=1)] for c in DATA}
    assert all(0 < len(ids) < EACH / 3 for ids in held_out_ids.values())
    seen: dict[int, set[int]] = {c: set() for c in DATA}
    for round in run(pair(m_max=6)):
        for client in DATA:
            seen[client] |= set(round.client_notes[client]["used"].tolist())
    for client in PAIR:
        assert not seen[client] & set(held_out_ids[client].tolist())
        assert len(seen[client]) == EACH - len(held_out_ids[client])
    assert seen[2] == set(DATA[2].ids.tolist())


def test_client_weights_count_held_out_samples() -> None:
    (first,) = run(pair(start=1), rounds=1)
    assert first.weights == dict.fromkeys(DATA, 0.25)


def test_without_returned_samples_none_are_held_out() -> None:
    for changes in ({"recycle": 0.0}, {"start": ROUNDS + 1}):
        seen = set()
        for round in run(pair(m_max=6, **changes)):
            seen |= set(round.client_notes[0]["used"].tolist())
        assert len(seen) == EACH


def test_holding_out_all_samples_raises() -> None:
    ours = Compensation(clients=PAIR, start=1, validation=0.999)
    client_context = ClientContext(round=0, rounds=5, client=0, cohort=PAIR, weights={}, seed=0)
    with pytest.raises(BadInput, match="all would be held out"):
        ours.prepare(DATA[0].take(slice(0, 2)), client_context)


def test_an_interval_that_harms_validation_samples_loses_weight() -> None:
    ours = Compensation(clients=PAIR, m_max=2, m_min=2, start=1, validation=0.3)
    client_context = ClientContext(round=0, rounds=9, client=0, cohort=PAIR, weights={}, seed=3)
    data = ours.prepare(DATA[0], client_context)
    for index in range(1, 7):
        training_context = context(index)
        ours.select(data, training_context)
        arm = ours.memory.arm
        assert arm is not None
        before = ours.state()["weights"]
        ours.after(
            training_context.received,
            NET.initial(index) if index < 6 else _worse(),
            training_context,
        )
        after = ours.state()["weights"]
        if index < 5:
            assert torch.allclose(before, after)
    assert len(ours.state()["rewards"]) == 6
    assert float(after[arm]) < float(before[arm])


def _worse() -> Model:
    model = NET.initial(0)
    return Model(model.architecture, {n: v * -9 for n, v in model.params.items()}, {})


def test_neutral_noise_cancels_in_the_average() -> None:
    (quiet,) = run(pair(sigma=0.0), rounds=1)
    (loud,) = run(pair(sigma=1.0, ratio=0.5), rounds=1)
    assert float((flat(quiet.uploads[0].values) - flat(loud.uploads[0].values)).abs().max()) > 0.1
    shares = [0.25] * 4
    means = [weighted_sum([r.uploads[c].values for c in DATA], shares) for r in (quiet, loud)]
    assert float((flat(means[0]) - flat(means[1])).abs().max()) < 1e-6


def test_bytes_are_counted_as_the_paper_counts_them() -> None:
    # There is one byte for each class label, and two for the noise.
    for round in run(pair()):
        assert int(round.client_notes[0]["extra_bytes"].sum()) == CLASSES + 2
        assert "extra_bytes" not in round.client_notes[2]


def test_coalitions_are_independent() -> None:
    two = {c: CoFedMID(clients=(2, 3), **SETTINGS) for c in (2, 3)}  # type: ignore[arg-type]
    coalitions = {**pair(), **two}
    rounds = list(run(coalitions))
    assert len(rounds) == ROUNDS
    alone = list(run(pair()))
    assert torch.equal(flat(rounds[0].uploads[0].values), flat(alone[0].uploads[0].values))


def test_coalitions_work_with_partial_participation() -> None:
    everybody = tuple(DATA)
    ours = {c: CoFedMID(clients=everybody, **SETTINGS) for c in DATA}  # type: ignore[arg-type]
    for round in run(ours, rounds=8, participation=0.5):
        covered = set().union(*(classes_used(round, client) for client in round.answered))
        if round.index < 3:
            assert covered == set(range(CLASSES))


def test_cofedmid_has_the_settings_and_defaults_of_its_modules() -> None:
    parameters = signature(CoFedMID).parameters
    parts = [signature(module).parameters for module in (Compensation, NeutralNoise)]
    assert {name: parameters[name].default for name in parameters} == {
        name: part[name].default for part in parts for name in part
    }


def test_a_checkpoint_identifies_a_coalition_as_earlier_versions_did() -> None:
    data = {client: Samples(torch.ones(3, 2), torch.tensor([0, 1, 0])) for client in range(4)}
    guards: dict[int, Defense] = {
        0: CoFedMID(clients=PAIR),
        1: CoFedMID(clients=PAIR),
        2: DPSGD(1.0, 0.5),
        3: GradientNoise(0.1),
    }
    # This is the hash of a version with the setting coalition=(0, 1).
    earlier = "04c35a1f403e9f41ccf2f7d61b4674eacf9503db99943b08080b1f07795c827a"
    assert run_fingerprint(("x",), data, guards) == earlier
    assert run_fingerprint(("x",), data, {**guards, 3: GradientNoise(0.1, clients=[3])}) != earlier
