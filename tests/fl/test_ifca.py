"""Clustered federated learning: IFCA and IFCA-MIR."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Damaged, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model, Samples, flat, weighted_sum
from fedaudit.defenses.cofedmid.neutral import NeutralNoise
from fedaudit.fl.algorithms.base import Cluster
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.ifca import Ifca, losses
from fedaudit.fl.algorithms.ifca_mir import (
    CHANCE_LEVEL,
    IfcaMir,
    IfcaMirOfClients,
    Preference,
    shortage,
)
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import ClientContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Round, Sent, Update
from fedaudit.observe.tensors import read_tensors, write_tensors

HOW = LocalTraining(lr=0.2, batch_size=10)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))


TINY = Architecture("tiny", partial(net))


def samples(client: int, flipped: bool = False, count: int = 30) -> Samples:
    """Return points whose class is their side of a line, or the opposite side."""
    rng = seeded(2, "points", client)
    points = torch.randn(count, 2, generator=rng)
    side = (points.sum(1) > 0) ^ flipped
    return Samples(points, side.long(), torch.arange(count) + 100 * client)


TWO_KINDS = {client: samples(client, flipped=client >= 4) for client in range(6)}


@dataclass(frozen=True)
class FixedRisks:
    """A measurement that always returns the same risks."""

    risks: tuple[float, ...]

    def __call__(self, clusters: Sequence[Cluster], *, seed: int) -> list[float]:
        return list(self.risks)


def run(algorithm: Ifca, rounds: int = 6, **how: object) -> list[Round]:
    return list(simulate(algorithm, TWO_KINDS, rounds=rounds, seed=5, **how))  # type: ignore[arg-type]


def bits(rounds: Sequence[Round]) -> Tensor:
    return torch.cat([flat(m.tensors()) for r in rounds for m in r.after.values()])


def choices(round: Round) -> list[str]:
    return [round.chosen[client] for client in sorted(round.chosen)]


def test_one_model_equals_fedavg_bit_for_bit() -> None:
    ours = run(Ifca(TINY, HOW, 1))
    theirs = list(simulate(FedAvg(TINY, HOW), TWO_KINDS, rounds=6, seed=5))
    assert torch.equal(bits(ours), bits(theirs))


def test_planted_clusters_are_recovered() -> None:
    last = run(Ifca(TINY, HOW, 2), rounds=15)[-1]
    first, second = choices(last)[:4], choices(last)[4:]
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    outputs = {n: m.module()(TWO_KINDS[5].features) for n, m in last.after.items()}
    right = (outputs[second[0]].argmax(1) == TWO_KINDS[5].labels).float().mean()
    assert right > 0.9


def test_clients_train_the_model_with_the_smallest_loss() -> None:
    for round in run(Ifca(TINY, HOW, 3)):
        for client, data in TWO_KINDS.items():
            models = round.sent[client].models
            client_losses = [
                nn.functional.cross_entropy(m.module()(data.features), data.labels) for m in models
            ]
            upload = round.uploads[client]
            assert isinstance(upload, Update)
            assert upload.choice == int(torch.stack(client_losses).argmin())
            base = round.observed[client].base
            assert base is not None
            assert torch.equal(flat(base.params), flat(models[upload.choice].params))


def test_a_model_is_the_weighted_mean_of_its_clients() -> None:
    clients = {0: samples(0, count=10), 1: samples(1, count=30), 2: samples(2, flipped=True)}
    algorithm = Ifca(TINY, HOW, 3)
    for round in simulate(algorithm, clients, rounds=4, seed=5):
        before = {f"model-{j}": m for j, m in enumerate(round.sent[0].models)}
        for name, model in round.after.items():
            members = [client for client in clients if round.chosen[client] == name]
            if not members:
                assert torch.equal(flat(model.params), flat(before[name].params))
                continue
            sizes = [len(clients[client]) for client in members]
            locals_ = [round.observed[client].local for client in members]
            parts = [local.params for local in locals_ if local is not None]
            mean = weighted_sum(parts, [size / sum(sizes) for size in sizes])
            torch.testing.assert_close(flat(model.params), flat(mean))


def test_a_risk_weight_of_zero_equals_ifca_bit_for_bit() -> None:
    plain = run(Ifca(TINY, HOW, 2))
    mir = IfcaMir(
        TINY,
        HOW,
        2,
        risk=FixedRisks((0.9, 0.5)),
        every=1,
        preference=Preference("fixed", alpha=1.0),
    )
    assert torch.equal(bits(plain), bits(run(mir)))


def test_exploring_clients_choose_at_random() -> None:
    many = {client: samples(client) for client in range(60)}
    first, second = simulate(Ifca(TINY, HOW, 2, explore=1), many, rounds=2, seed=5)
    assert 15 <= choices(first).count("model-0") <= 45
    for client, data in many.items():
        mean_losses = losses(second.sent[client], data, client_context(client))
        assert second.chosen[client] == f"model-{int(mean_losses.argmin())}"


def client_context(client: int) -> ClientContext:
    return ClientContext(
        round=1, rounds=1, client=client, cohort=(client,), weights={client: 1.0}, seed=1
    )


def test_risk_averse_clients_leave_the_risky_model() -> None:
    mir = IfcaMir(
        TINY,
        HOW,
        2,
        risk=FixedRisks((0.9, 0.5)),
        every=2,
        preference=Preference("fixed", alpha=0.0),
    )
    rounds = run(mir)
    # Without measured risks both models are equal, and the first one is chosen.
    assert choices(rounds[0]) == choices(rounds[1]) == ["model-0"] * 6
    assert choices(rounds[2]) == ["model-1"] * 6
    assert rounds[2].sent[0].extra["risk"].tolist() == [0.9, CHANCE_LEVEL]


def test_an_untrained_model_keeps_its_last_risk() -> None:
    mir = IfcaMir(
        TINY,
        HOW,
        2,
        risk=FixedRisks((0.9, 0.2)),
        every=1,
        preference=Preference("fixed", alpha=0.0),
    )
    rounds = run(mir, rounds=3)
    # With risks 0.9 and 0.5, all clients choose the second model, whose risk is then 0.2.
    sent_risks = [round.sent[0].extra["risk"].tolist() for round in rounds]
    assert sent_risks == [[0.5, 0.5], [0.9, 0.5], [0.9, 0.2]]


def test_the_bonus_moves_clients_to_an_unused_model() -> None:
    plain = IfcaMir(TINY, HOW, 2, preference=Preference("fixed", alpha=0.0))
    assert [set(choices(round)) for round in run(plain, rounds=2)] == [{"model-0"}] * 2
    offered = run(replace(plain, bonus=0.1), rounds=2)
    assert [set(choices(round)) for round in offered] == [{"model-0"}, {"model-1"}]


@pytest.mark.parametrize(
    ("share", "expected"), [([0.5, 0.5], [0, 0]), ([1.0, 0.0], [0, 1]), ([0.75, 0.25], [0, 0.5])]
)
def test_shortage_matches_hand_calculation(share: list[float], expected: list[float]) -> None:
    assert shortage(torch.tensor(share)).tolist() == expected


@pytest.mark.parametrize(
    ("preference", "threshold", "chosen"),
    [
        (Preference("fixed", alpha=0.5), 0.6, 1),  # 0.6 + 0.9, 0.7 + 0.6, 1.2 + 0.5
        (Preference("fixed", alpha=1.0), 0.6, 0),
        (Preference("fixed", alpha=0.0), 0.6, 2),
        (Preference("threshold"), 0.8, 0),
        (Preference("threshold"), 0.5, 2),
        (Preference("threshold"), 0.65, 1),
        (Preference("hard"), 0.95, 0),
        (Preference("hard"), 0.7, 1),
        (Preference("hard"), 0.55, 2),
        (Preference("hard"), 0.4, 2),
    ],
)
def test_choices_match_hand_calculation(
    preference: Preference, threshold: float, chosen: int
) -> None:
    loss, risk = torch.tensor([0.6, 0.7, 1.2]), torch.tensor([0.9, 0.6, 0.5])
    assert preference.choose(loss, risk, threshold, torch.zeros(3)) == chosen


def test_a_risk_equal_to_the_threshold_is_accepted() -> None:
    loss, risk = torch.tensor([0.1, 0.9]), torch.tensor([0.5, 0.25])
    assert Preference("hard").choose(loss, risk, 0.5, torch.zeros(2)) == 0


@given(
    st.lists(st.floats(0, 5), min_size=2, max_size=5),
    st.floats(0, 1),
    st.sampled_from(["threshold", "fixed", "hard"]),
    st.floats(0.51, 0.8),
)
def test_with_equal_risks_the_smallest_loss_is_chosen(
    loss_values: list[float], risk: float, way: str, threshold: float
) -> None:
    loss = torch.tensor(loss_values, dtype=torch.float64)
    equal_risks = torch.full_like(loss, risk)
    chosen = Preference(way).choose(loss, equal_risks, threshold, torch.zeros_like(loss))  # type: ignore[arg-type]
    if way != "hard" or risk <= threshold:
        assert float(loss[chosen]) == pytest.approx(float(loss.min()), abs=1e-9)


def test_thresholds_are_uniform_and_fixed_per_client() -> None:
    preference = Preference(accepted=(0.5, 0.8))
    drawn = [preference.threshold(1, client) for client in range(2000)]
    assert drawn[:9] == [preference.threshold(1, client) for client in range(9)]
    assert 0.5 <= min(drawn) < 0.501
    assert 0.799 < max(drawn) <= 0.8
    assert sum(drawn) / len(drawn) == pytest.approx(0.65, abs=0.005)


def test_mean_losses_use_all_client_data() -> None:
    models = tuple(TINY.initial(seed) for seed in (1, 2))
    mean_losses = losses(Sent(models), TWO_KINDS[0], client_context(0))
    for model, loss in zip(models, mean_losses, strict=True):
        outputs = model.module()(TWO_KINDS[0].features).detach()
        expected = nn.functional.cross_entropy(outputs, TWO_KINDS[0].labels)
        assert float(loss) == pytest.approx(float(expected), rel=1e-6)


def test_cancelling_noise_raises_for_clustered_averaging() -> None:
    noisy = NeutralNoise(clients=(0, 1))
    for defense in (noisy, Chain((noisy,))):
        with pytest.raises(Unsupported, match="averages the clients of each model separately"):
            run(Ifca(TINY, HOW), defenses={0: defense})
    silent = NeutralNoise(clients=(0, 1), sigma=0.0)
    assert run(Ifca(TINY, HOW), rounds=1, defenses={0: silent})


def test_an_upload_for_an_unknown_model_raises() -> None:
    algorithm = Ifca(TINY, HOW, 2)
    with pytest.raises(BadInput, match="trained model 2, but there are 2"):
        algorithm.aggregate(algorithm.start(1), {0: Update({}, choice=2)}, {0: 1.0})


def test_an_empty_threshold_range_raises() -> None:
    with pytest.raises(BadInput):
        Preference(accepted=(0.8, 0.8))


def test_initial_models_differ_and_the_first_equals_fedavg() -> None:
    state = Ifca(TINY, HOW, 3).start(9)
    models = list(Ifca(TINY, HOW, 3).models(state).values())
    assert torch.equal(flat(models[0].params), flat(TINY.initial(9).params))
    assert len({tuple(flat(model.params).tolist()) for model in models}) == 3
    assert isinstance(models[0], Model)


@dataclass(frozen=True)
class MiddleThreshold:
    """A threshold in the middle of the mean losses."""

    def threshold(self, trained: Tensor, held_out: Tensor) -> float:
        return float((trained.mean() + held_out.mean()) / 2)

    def risk(self, trained: Tensor, held_out: Tensor, line: float) -> float:
        return float(((trained <= line).double().mean() + (held_out > line).double().mean()) / 2)


def of_clients(**how: object) -> IfcaMirOfClients:
    return IfcaMirOfClients(TINY, HOW, 2, own_risk=MiddleThreshold(), share=0.3, **how)  # type: ignore[arg-type]


def test_clients_never_train_on_their_held_out_samples() -> None:
    algorithm = of_clients()
    for round in run(algorithm, rounds=3):
        for client, data in TWO_KINDS.items():
            used = set(round.client_notes[client]["used"].tolist())
            held_out_ids = data.ids[algorithm.held_out(data.ids, seed=5)]
            assert 0 < len(held_out_ids) < len(data) / 2
            assert used == set(data.ids.tolist()) - set(held_out_ids.tolist())


def test_own_risks_use_the_clients_loss_threshold() -> None:
    algorithm = of_clients(preference=Preference("fixed", alpha=0.0))
    first, second = run(algorithm, rounds=2)
    for client, data in TWO_KINDS.items():
        is_held_out = algorithm.held_out(data.ids, seed=5)
        local, risks = first.observed[client].local, []
        assert local is not None
        line = MiddleThreshold().threshold(*_sides(local, data, is_held_out))
        risks = [
            MiddleThreshold().risk(*_sides(m, data, is_held_out), line)
            for m in second.sent[client].models
        ]
        upload = second.uploads[client]
        assert isinstance(upload, Update)
        assert upload.choice == risks.index(min(risks))


def test_client_losses_exclude_held_out_samples() -> None:
    algorithm = of_clients(preference=Preference("fixed", alpha=1.0))
    last = run(algorithm, rounds=6)[-1]
    sent = Sent(tuple(last.after.values()))
    for client, data in TWO_KINDS.items():
        is_held_out = algorithm.held_out(data.ids, seed=1)
        # Held-out samples are outliers with wrong labels, which the best model fits worst.
        outliers = Samples(
            torch.where(is_held_out[:, None], 1000 * data.features, data.features),
            torch.where(is_held_out, 1 - data.labels, data.labels),
            data.ids,
        )
        choice, choice_with_outliers = (
            algorithm.choose(sent, client_data, {}, client_context(client))
            for client_data in (data, outliers)
        )
        assert choice_with_outliers == choice


def _sides(model: Model, data: Samples, is_held_out: Tensor) -> tuple[Tensor, Tensor]:
    outputs = model.module()(data.features).detach()
    loss = nn.functional.cross_entropy(outputs, data.labels, reduction="none")
    return loss[~is_held_out], loss[is_held_out]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "memory/0/choice",
            torch.tensor(2),
            "model 2 as its last choice, but models are numbered 0 to 1",
        ),
        ("memory/0/choice", torch.tensor(-1), "model -1 as its last choice"),
        (
            "memory/0/choice",
            torch.zeros(3).long(),
            r"choice in the state of client 0 has shape \(3,\)",
        ),
        ("memory/0/choice", torch.tensor(1.5), "the choice in the state of client 0 has shape"),
        ("memory/0/nothing", torch.tensor(0), "no model as its last choice"),
        ("server/server/risk", torch.tensor([7.0, 0.5]), "its models' risks"),
        ("server/server/round", torch.tensor(5), "of round 5"),
    ],
)
def test_impossible_checkpoints_raise(
    name: str, value: Tensor, message: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    mir = IfcaMir(
        TINY, HOW, 2, risk=FixedRisks((0.9, 0.5)), preference=Preference("fixed", alpha=0.3)
    )

    def resume() -> list[Round]:
        return run(mir, rounds=3, checkpoint=checkpoint, participation=0.5)

    stopped = simulate(mir, TWO_KINDS, rounds=3, seed=5, checkpoint=checkpoint, participation=0.5)
    first, _ = next(stopped), next(stopped)
    tensors, notes = read_tensors(checkpoint)
    if name.startswith("memory"):
        client = min(first.uploads)
        del tensors[f"memory/{client}/choice"]
        name = name.replace("0", str(client))
    like = tensors.get(name)
    tensors[name] = value if like is None else value.to(like.dtype)
    write_tensors(tensors, checkpoint, notes)
    with pytest.raises(Damaged, match=f"{message}.*start again") as refused:
        resume()
    assert "\n" not in str(refused.value)


def test_a_client_without_held_out_samples_raises() -> None:
    with pytest.raises(BadInput, match="holds out 0"):
        list(simulate(of_clients(), {0: samples(0, count=1)}, rounds=1, seed=5))
