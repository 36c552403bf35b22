import pickle
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from fedaudit.attacks import ATTACKS
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Samples
from fedaudit.fl.algorithms.base import Cluster, Risk
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.ifca_mir import IfcaMir
from fedaudit.fl.simulate import run_fingerprint, simulate
from fedaudit.fl.training import parallel
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.models import architecture
from fedaudit.risk.catalog import CatalogueAttack, RiskAttack, TrainMia
from fedaudit.risk.server import ServerRisk, ShadowTraining, train_shadow_models

MLP = architecture("mlp", shape=(20,), classes=4, hidden="64")
TRAINING = LocalTraining(batch_size=10, lr=0.2)
LOSS = CatalogueAttack(ATTACKS["blackbox-loss"])


def noisy(count: int) -> Samples:
    """Return samples of which half have random labels, which can only be memorised."""
    rng = seeded(2, "noisy", count)
    features = torch.randn(count, 20, generator=rng)
    labels = features[:, :4].argmax(1)
    wrong = torch.rand(count, generator=rng) < 0.5
    return Samples(
        features,
        torch.where(wrong, torch.randint(4, (count,), generator=rng), labels),
        torch.arange(count),
    )


def risk(measure: RiskAttack, *, count: int = 3, epochs: int = 40, lr: float = 0.2) -> ServerRisk:
    how = ShadowTraining(replace(TRAINING, lr=lr), count, "continued", epochs, sizes="capped")
    return ServerRisk(noisy(400), how, measure)


def predicted(seen: tuple[torch.Tensor, torch.Tensor], tried: torch.Tensor) -> np.ndarray:
    """Apply TrainMIA's rule with scikit-learn only."""
    members, nonmembers = seen
    both = torch.cat([members, nonmembers]).numpy()
    center, scale = both.mean(0), both.std(0)
    is_member = np.repeat([1, 0], [len(members), len(nonmembers)])
    model = LogisticRegression(max_iter=1000).fit((both - center) / scale, is_member)
    return np.asarray(model.predict((tried.numpy() - center) / scale)).astype(bool)


@pytest.mark.parametrize("measure", [TrainMia(), LOSS])
def test_a_memorising_cluster_has_a_higher_risk(measure: RiskAttack) -> None:
    model = MLP.initial(1)
    few, many = risk(measure, epochs=8).estimate(
        [Cluster(model, 20), Cluster(model, 10_000)], seed=3
    )
    assert few is not None
    assert many is not None
    assert few.value > 0.75
    assert many.value < few.value - 0.05


@pytest.mark.slow
def test_shadows_that_repeat_training_estimate_the_risk_of_memorisation() -> None:
    # Four clients with 15 samples, twenty rounds of five epochs.
    how, data = LocalTraining(epochs=5, batch_size=10, lr=0.1), noisy(1400)
    parts = {client: data.take(slice(15 * client, 15 * client + 15)) for client in range(4)}
    *_, last = simulate(FedAvg(MLP, how), parts, rounds=20, seed=1)
    cluster = Cluster(last.after["global"], 60, clients=4, rounds=20)
    members, others = data.take(slice(60)), data.take(slice(400, 1400))
    errors = {}
    ways: tuple[Literal["repeated", "continued"], ...] = ("repeated", "continued")
    for way in ways:
        server = ServerRisk(data.take(slice(60, 400)), ShadowTraining(how, 3, way, rounds=20))
        (judged,) = server.estimate([cluster], seed=3)
        assert judged is not None
        caught, let_go = (judged.attack(cluster.model, part) for part in (members, others))
        real = counted_balanced_accuracy(int(caught.sum()), 60, int((~let_go).sum()), 1000).value
        assert real > 0.75
        errors[way] = judged.value - real
    assert abs(errors["repeated"]) < 0.07
    # Shadows that continue the model for a few epochs see their samples too rarely.
    assert errors["continued"] < -0.07


@pytest.mark.parametrize("measure", [TrainMia(), LOSS])
def test_untrained_shadows_give_chance_level(measure: RiskAttack) -> None:
    idle = risk(measure, epochs=1, lr=1e-9)
    for seed in range(3):
        (estimate,) = idle.estimate([Cluster(MLP.initial(1), 200)], seed=seed)
        assert estimate is not None
        assert estimate.low <= 0.5 <= estimate.high
        assert abs(estimate.value - 0.5) < 0.06


def test_the_risk_is_the_accuracy_on_unseen_shadows() -> None:
    server = risk(TrainMia(), epochs=5)
    cluster = Cluster(MLP.initial(1), 50)
    (shadows,) = train_shadow_models([cluster], server.samples, server.shadows, seed=3)
    seen = []
    for shadow in shadows:
        rows = []
        for chosen in (shadow.members, shadow.nonmembers):
            part = server.samples.take(chosen)
            with torch.no_grad():
                outputs = shadow.model.module()(part.features)
            top = outputs.double().softmax(1).sort(1, descending=True).values[:, :3]
            loss = functional.cross_entropy(outputs, part.labels, reduction="none")
            rows.append(torch.cat([top, loss[:, None].double()], 1))
        seen.append((rows[0], rows[1]))
    right = 0.0
    for left_out, (members, nonmembers) in enumerate(seen):
        others = [evidence for place, evidence in enumerate(seen) if place != left_out]
        training = (
            torch.cat([evidence[0] for evidence in others]),
            torch.cat([evidence[1] for evidence in others]),
        )
        right += float(np.mean(predicted(training, members)))
        right += 1 - float(np.mean(predicted(training, nonmembers)))
    (estimate,) = server.estimate([cluster], seed=3)
    assert estimate is not None
    assert estimate.value == pytest.approx(right / 6, abs=1e-12)
    assert estimate.low < estimate.value < estimate.high
    assert server([cluster], seed=3) == [estimate.value]


def test_the_decision_is_fitted_on_all_shadows() -> None:
    server = risk(LOSS, epochs=10)
    cluster = Cluster(MLP.initial(1), 30)
    (shadows,) = train_shadow_models([cluster], server.samples, server.shadows, seed=3)
    (estimate,) = server.estimate([cluster], seed=3)
    assert estimate is not None
    losses = [
        [
            functional.cross_entropy(
                shadow.model.module()(server.samples.features[positions]),
                server.samples.labels[positions],
                reduction="none",
            ).detach()
            for shadow, positions in sides
        ]
        for sides in (
            [(shadow, shadow.members) for shadow in shadows],
            [(shadow, shadow.nonmembers) for shadow in shadows],
        )
    ]
    members, nonmembers = (torch.cat(side) for side in losses)
    best = max(
        torch.cat([members, nonmembers]).tolist(),
        key=lambda t: float((members <= t).float().mean() - (nonmembers <= t).float().mean()),
    )
    fresh = noisy(90)
    with torch.no_grad():
        outputs = shadows[0].model.module()(fresh.features)
        expected = functional.cross_entropy(outputs, fresh.labels, reduction="none") <= best
    assert torch.equal(estimate.attack(shadows[0].model, fresh), expected)
    assert 0 < int(expected.sum()) < 90


def test_a_single_shadow_is_evaluated_by_halves() -> None:
    server = risk(LOSS, count=1)
    (estimate,) = server.estimate([Cluster(MLP.initial(1), 21)], seed=3)
    assert estimate is not None
    assert estimate.value > 0.7
    # The halves have 10 and 11 of 21 members and 21 others, and each is counted once.
    assert (estimate.value * 42) == pytest.approx(round(estimate.value * 42))


def test_the_risk_of_a_one_sample_cluster_is_estimated() -> None:
    for count in (1, 3):
        (value,) = risk(TrainMia(), count=count, epochs=2)([Cluster(MLP.initial(1), 1)], seed=3)
        assert 0 <= value <= 1


def test_an_untrained_cluster_has_a_risk_at_chance_level() -> None:
    server, model = risk(LOSS, epochs=1), MLP.initial(1)
    empty, _ = server.estimate([Cluster(model, 0), Cluster(model, 30)], seed=3)
    assert empty is None
    assert server([Cluster(model, 0)], seed=3) == [0.5]


def test_estimates_do_not_depend_on_other_clusters_or_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, risks = risk(TrainMia(), epochs=3), []
    cluster, other = Cluster(MLP.initial(1), 30), Cluster(MLP.initial(2), 200)
    for cores, clusters in ((1, [cluster]), (2, [cluster, other]), (4, [cluster, cluster, other])):
        monkeypatch.setattr(parallel, "_cores", lambda cores=cores: cores)
        risks.append(server(clusters, seed=3)[0])
    assert risks[0] == risks[1] == risks[2]


def test_the_risk_of_a_model_with_dropout_is_deterministic() -> None:
    drops = architecture("mlp", shape=(20,), classes=4, hidden="16", dropout=0.3)
    server = risk(TrainMia(), epochs=3)
    first, second = (server([Cluster(drops.initial(1), 30)], seed=3) for _ in range(2))
    assert first == second


def test_a_server_with_too_few_samples_raises() -> None:
    with pytest.raises(BadInput, match="at least 10 samples"):
        ServerRisk(noisy(400).take(slice(9)), ShadowTraining(TRAINING))


def test_server_risk_can_be_pickled_and_fingerprinted() -> None:
    server = risk(LOSS, epochs=2)
    clusters = [Cluster(MLP.initial(1), 30)]
    copy = pickle.loads(pickle.dumps(server))
    assert copy(clusters, seed=3) == server(clusters, seed=3)
    assert isinstance(server, Risk)

    def fingerprint(server_risk: ServerRisk) -> str:
        return run_fingerprint((IfcaMir(MLP, TRAINING, 2, risk=server_risk),), {}, {})

    assert fingerprint(server) == fingerprint(copy)
    assert fingerprint(server) != fingerprint(replace(server, measure=TrainMia()))
    assert fingerprint(server) != fingerprint(replace(server, samples=noisy(300)))
