from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import Architecture, Params, Samples
from fedaudit.fl.algorithms.base import Cluster, LocalResult
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import UNDEFENDED, ClientContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training import parallel
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.models import architecture
from fedaudit.observe.round import Sent
from fedaudit.risk.server import Shadow, ShadowTraining, shadow_sizes, train_shadow_models
from tests.samples import random_samples

MLP = architecture("mlp", shape=(6,), classes=3, hidden="5")
CNN = architecture("cnn", shape=(1, 8, 8), classes=3, channels="4", kernel=3, hidden="6")
DROPS = architecture("mlp", shape=(6,), classes=3, hidden="5", dropout=0.5)
TRAINING = LocalTraining(epochs=7, batch_size=4, lr=0.1)
HOW = ShadowTraining(TRAINING, count=3, way="continued", epochs=2)
REPEATED = ShadowTraining(replace(TRAINING, epochs=2), count=2)


def samples(count: int, shape: tuple[int, ...] = (6,)) -> Samples:
    return random_samples(seeded(1, "server's samples", count), count, *shape, classes=3, first=100)


def clusters(*sizes: int, kind: Architecture = MLP) -> list[Cluster]:
    return [Cluster(kind.initial(place), size) for place, size in enumerate(sizes)]


def same(left: list[Shadow], right: list[Shadow]) -> bool:
    return all(
        torch.equal(shadow.members, other.members)
        and torch.equal(shadow.nonmembers, other.nonmembers)
        and all(
            torch.equal(shadow.model.params[name], other.model.params[name])
            for name in shadow.model.params
        )
        for shadow, other in zip(left, right, strict=True)
    )


@settings(max_examples=15)
@given(size=st.integers(1, 40), available=st.integers(10, 40), seed=st.integers(0, 10**6))
def test_shadows_have_as_many_members_and_nonmembers_as_their_cluster(
    size: int, available: int, seed: int
) -> None:
    how = replace(HOW, epochs=1)
    (shadows,) = train_shadow_models(clusters(size), samples(available), how, seed=seed)
    expected = max(2, min(size, available // 2))
    for shadow in shadows:
        assert len(shadow.members) == len(shadow.nonmembers) == expected
        both = set(shadow.members.tolist()) | set(shadow.nonmembers.tolist())
        assert len(both) == 2 * expected
        assert both <= set(range(available))


def test_continued_shadows_start_from_the_model_of_the_cluster() -> None:
    server, (cluster,) = samples(20), clusters(8)
    (shadows,) = train_shadow_models([cluster], server, HOW, seed=5)
    client_context = ClientContext(
        round=1,
        rounds=1,
        client=1,
        cohort=(1,),
        weights={},
        seed=seed_for(5, "cluster", 0, "shadow"),
    )
    alone = train(
        cluster.model,
        server.take(shadows[1].members),
        replace(TRAINING, epochs=2),
        UNDEFENDED,
        client_context.with_model(cluster.model),
    )
    assert all(
        torch.equal(shadows[1].model.params[name], alone.params[name]) for name in alone.params
    )
    assert shadows[1].start is cluster.model


@pytest.mark.parametrize(("kind", "shape"), [(MLP, (6,)), (DROPS, (6,)), (CNN, (1, 8, 8))])
@pytest.mark.parametrize("how", [HOW, REPEATED])
def test_shadows_do_not_depend_on_the_number_of_cores(
    monkeypatch: pytest.MonkeyPatch, kind: Architecture, shape: tuple[int, ...], how: ShadowTraining
) -> None:
    results = []
    tested = [cluster._replace(clients=3, rounds=2) for cluster in clusters(9, 4, kind=kind)]
    for cores in (1, 2, 4):
        monkeypatch.setattr(parallel, "_cores", lambda cores=cores: cores)
        results.append(train_shadow_models(tested, samples(30, shape), how, seed=3))
    for others in results[1:]:
        assert all(map(same, results[0], others))


@pytest.mark.parametrize("how", [HOW, REPEATED])
def test_shadows_do_not_depend_on_other_clusters(how: ShadowTraining) -> None:
    cluster, other = clusters(9, 4)
    together = train_shadow_models([cluster, other], samples(30), how, seed=3)
    alone = train_shadow_models([cluster], samples(30), how, seed=3)
    assert same(together[0], alone[0])
    changed = train_shadow_models([cluster._replace(samples=0), other], samples(30), how, seed=3)
    assert same(together[1], changed[1])


def test_shadow_sizes_are_scaled_to_the_samples_of_the_server() -> None:
    assert shadow_sizes([7_500, 42_500], 10_000) == [882, 5_000]
    assert shadow_sizes([7_500, 42_500], 10_000, "capped") == [5_000, 5_000]
    # With enough server samples, shadows are as large as the clusters.
    assert shadow_sizes([7_500, 42_500, 0], 100_000) == [7_500, 42_500, 0]
    assert shadow_sizes([], 100) == []


@given(
    st.lists(st.integers(0, 10**5), min_size=1, max_size=5),
    st.integers(10, 10**5),
    st.sampled_from(["proportional", "capped"]),
)
def test_shadow_sizes_are_within_bounds(sizes: list[int], available: int, way: str) -> None:
    shadow_counts = shadow_sizes(sizes, available, way)
    for size, shadow in zip(sizes, shadow_counts, strict=True):
        assert shadow == 0 if size == 0 else 2 <= shadow <= max(2, min(size, available // 2))
    # A smaller cluster never has the larger shadow.
    pairs = sorted(zip(sizes, shadow_counts, strict=True))
    assert [shadow for _, shadow in pairs] == sorted(shadow_counts)


def test_repeated_shadows_train_a_federation_of_equal_size() -> None:
    server, (cluster,) = samples(30), clusters(12)
    cluster = cluster._replace(clients=3, rounds=4, share=0.67)
    how = replace(REPEATED, training=replace(REPEATED.training, schedule="cosine"), rounds=6)
    (shadows,) = train_shadow_models([cluster], server, how, seed=5)
    run_seed = seed_for(5, "cluster", 0, "shadow", 1)
    first = MLP.initial(seed_for(5, "cluster", 0, "shadow", 1, "initial model"))

    @dataclass(frozen=True)
    class Begun(FedAvg):
        """Federated averaging from given parameters."""

        def start(self, seed: int) -> Params:
            return first.tensors()

    members = server.take(shadows[1].members)
    parts = {client: members.take(slice(4 * client, 4 * client + 4)) for client in range(3)}
    rounds = list(
        islice(
            simulate(Begun(MLP, how.training), parts, rounds=6, seed=run_seed, participation=0.67),
            4,
        )
    )
    assert len(rounds[0].selected) == 2
    for shadow, number in ((shadows[1].start, 2), (shadows[1].model, 3)):
        theirs = rounds[number].after["global"].params
        assert all(torch.equal(shadow.params[name], theirs[name]) for name in theirs)


def test_a_scaled_down_shadow_has_fewer_clients_of_the_same_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def run_client(self: FedAvg, sent: Sent, data: Samples, *arguments: object) -> LocalResult:
        seen.append(len(data))
        return plain(self, sent, data, *arguments)  # type: ignore[arg-type]

    plain = FedAvg.run_client
    monkeypatch.setattr(FedAvg, "run_client", run_client)
    (cluster,) = clusters(120)
    how = replace(REPEATED, count=1)
    train_shadow_models([cluster._replace(clients=24, rounds=2)], samples(40), how, seed=3)
    assert seen == [5] * 4 * 2


def test_shadows_differ_by_number_and_seed() -> None:
    (shadows,) = train_shadow_models(clusters(9), samples(30), HOW, seed=3)
    (others,) = train_shadow_models(clusters(9), samples(30), HOW, seed=4)
    assert not torch.equal(shadows[0].members.sort().values, shadows[1].members.sort().values)
    assert not same(shadows, others)


def test_an_untrained_cluster_has_no_shadows() -> None:
    empty, used = train_shadow_models(clusters(0, 5), samples(30), HOW, seed=3)
    assert empty == []
    assert len(used) == 3


def test_shadows_continue_the_running_statistics() -> None:
    model = architecture("vgg11", shape=(3, 32, 32), classes=3, hidden="").initial(1)
    server = samples(10, (3, 32, 32))
    how = ShadowTraining(LocalTraining(batch_size=2, lr=1e-3), 1, "continued", epochs=1)
    (shadows,) = train_shadow_models([Cluster(model, 4)], server, how, seed=3)
    means = [name for name in model.buffers if name.endswith("running_mean")]
    assert means
    for name in means:
        assert not torch.equal(shadows[0].model.buffers[name], model.buffers[name])


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(BadInput, match=r"at least 10 samples .* got 9"):
        train_shadow_models(clusters(4), samples(9), HOW, seed=3)


@pytest.mark.parametrize(("count", "epochs"), [(0, 1), (1, 0)])
def test_zero_shadows_or_epochs_raise(count: int, epochs: int) -> None:
    with pytest.raises(BadInput, match="a whole number from 1"):
        ShadowTraining(TRAINING, count=count, epochs=epochs)


@pytest.mark.parametrize("options", [{"way": "lazily"}, {"sizes": "large"}])
def test_unknown_shadow_settings_raise(options: dict[str, str]) -> None:
    with pytest.raises(BadInput, match=r"lazily|large"):
        ShadowTraining(TRAINING, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["repeated", "continued"])
def test_a_diverging_shadow_raises_with_its_number(
    way: Literal["repeated", "continued"],
) -> None:
    wild = ShadowTraining(replace(TRAINING, lr=1e30), 1, way, epochs=3)
    with pytest.raises(BadInput, match="shadow model 0 of model 0 diverged"):
        train_shadow_models(clusters(8), samples(20), wild, seed=3)
