import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.datasets.partitions.schemes import (
    IID,
    PARTITIONS,
    Dirichlet,
    Partition,
    Shards,
    SIAClass0Size,
    WholeClasses,
    apportion,
    assign_samples,
    limit_quotas,
)

COUNTS = np.array([30, 50, 20, 60])
LABELS = np.repeat([0, 1, 2, 3], COUNTS)
EXACT: list[Partition] = [
    IID(),
    Dirichlet(beta=0.5),
    Dirichlet(beta=5.0),
    Shards(per_client=2),
    Shards(per_client=3),
]
FIXED: list[IID | Dirichlet | Shards] = [
    IID(samples_per_client=9),
    Dirichlet(beta=0.2, samples_per_client=9),
    Dirichlet(beta=100.0, samples_per_client=32),
    Shards(per_client=2, samples_per_client=9),
    Shards(per_client=3, samples_per_client=32),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def dealt(how: Partition, clients: int = 5, seed: int = 0) -> list[Int[ndarray, " _"]]:
    generator = rng(seed)
    return assign_samples(LABELS, how.quotas(COUNTS, clients, rng=generator), rng=generator)


@pytest.mark.parametrize("how", EXACT)
@pytest.mark.parametrize("seed", range(5))
def test_every_sample_is_assigned_exactly_once(how: Partition, seed: int) -> None:
    assert sorted(np.concatenate(dealt(how, seed=seed))) == list(range(160))


@pytest.mark.parametrize("how", FIXED)
@pytest.mark.parametrize("seed", range(5))
def test_each_client_gets_the_requested_number_of_distinct_samples(
    how: IID | Dirichlet | Shards, seed: int
) -> None:
    rows_by_client = dealt(how, seed=seed)
    assert {len(hand) for hand in rows_by_client} == {how.samples_per_client}
    assert len(np.unique(np.concatenate(rows_by_client))) == sum(map(len, rows_by_client))


@pytest.mark.parametrize("how", [*EXACT, *FIXED, SIAClass0Size(beta=1.0)])
def test_a_partition_depends_only_on_its_seed(how: Partition) -> None:
    first, second, other = (np.concatenate(dealt(how, seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("how", EXACT)
def test_assignments_follow_the_quotas(how: Partition) -> None:
    quotas = how.quotas(COUNTS, 5, rng=rng())
    for hand, quota in zip(assign_samples(LABELS, quotas, rng=rng()), quotas, strict=True):
        assert np.bincount(LABELS[hand], minlength=4).tolist() == quota.tolist()


def test_iid_clients_differ_in_size_by_one_at_most() -> None:
    sizes = IID().quotas(COUNTS, 7, rng=rng()).sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


def test_iid_clients_have_the_overall_label_distribution_on_average() -> None:
    quotas = np.mean([IID().quotas(COUNTS, 4, rng=rng(seed)) for seed in range(400)], axis=0)
    np.testing.assert_allclose(quotas, np.tile(COUNTS / 4, (4, 1)), rtol=0.06)


def test_a_small_beta_is_more_unequal_than_a_large_one() -> None:
    def unevenness(beta: float) -> float:
        drawn = [Dirichlet(beta=beta).quotas(COUNTS, 4, rng=rng(seed)) for seed in range(50)]
        return float(
            np.mean([(counts.max(axis=1) / counts.sum(axis=1)).mean() for counts in drawn])
        )

    assert unevenness(0.3) > unevenness(3.0) + 0.1
    assert unevenness(3.0) > unevenness(300.0) + 0.03


def test_dirichlet_shares_have_the_spread_of_that_distribution() -> None:
    beta, clients, size = 0.8, 4, 10_000
    counts = np.array([size, size])
    shares = np.concatenate(
        [Dirichlet(beta=beta).quotas(counts, clients, rng=rng(s)).T / size for s in range(500)]
    )
    # Var of one share of a symmetric Dirichlet: (1/K)(1 - 1/K) / (K beta + 1).
    expected = 0.25 * 0.75 / (clients * beta + 1)
    assert shares.var(axis=0).mean() == pytest.approx(expected, rel=0.08)


def test_dirichlet_redraws_until_every_client_has_the_minimum() -> None:
    for seed in range(20):
        assert (
            Dirichlet(beta=0.3, minimum=10).quotas(COUNTS, 5, rng=rng(seed)).sum(axis=1).min() >= 10
        )


def test_a_minimum_out_of_reach_is_refused_with_advice() -> None:
    with pytest.raises(BadInput, match=r"none of 200 draws .* 32 samples; raise beta"):
        Dirichlet(beta=0.01, minimum=32).quotas(COUNTS, 5, rng=rng())


def test_each_client_of_two_shards_sees_few_classes() -> None:
    quotas = Shards(per_client=2).quotas(np.full(10, 100), 10, rng=rng())
    assert ((quotas > 0).sum(axis=1) <= 2).all()
    assert (quotas.sum(axis=1) == 100).all()


def test_whole_classes_are_assigned_with_balanced_sizes() -> None:
    counts = np.array([50, 10, 40, 20, 30, 0])
    quotas = WholeClasses().quotas(counts, 3, rng=rng())
    assert ((quotas > 0).sum(axis=0) == (counts > 0)).all()
    assert (quotas.sum(axis=0) == counts).all()
    # 50; 40 and 10; 30 and 20.
    assert quotas.sum(axis=1).tolist() == [50, 50, 50]
    some = WholeClasses(samples_per_client=25).quotas(counts, 3, rng=rng())
    assert (some.sum(axis=1) == 25).all()
    assert (some <= counts).all()
    assert ((some > 0).sum(axis=0) <= 1).all()


def test_more_clients_than_whole_classes_or_samples_are_refused() -> None:
    with pytest.raises(BadInput, match="with 2 whole classes for 3 clients, one gets 0"):
        WholeClasses().quotas(np.array([5, 5]), 3, rng=rng())
    with pytest.raises(BadInput, match="one gets 2 of the needed 3 samples"):
        WholeClasses(samples_per_client=3).quotas(np.array([8, 2]), 2, rng=rng())


def test_sia_class0_size_partition_limits_classes_to_class_0() -> None:
    quotas = SIAClass0Size(beta=100.0).quotas(np.array([20, 1000, 5]), 4, rng=rng())
    assert quotas.sum(axis=0)[1] == pytest.approx(20, abs=2)  # 980 of 1,000 are dropped
    assert quotas.sum(axis=0)[2] == 5
    assert quotas[-1, 2] == 0  # the class ran out before the last client


@pytest.mark.parametrize("how", [*EXACT, SIAClass0Size(beta=1.0)])
@pytest.mark.parametrize("clients", [0, -1, 161])
def test_too_few_or_too_many_clients_are_refused(how: Partition, clients: int) -> None:
    with pytest.raises(BadInput, match="160"):
        how.quotas(COUNTS, clients, rng=rng())


@pytest.mark.parametrize("how", FIXED)
def test_too_many_samples_per_client_raise_with_the_shortage(how: Partition) -> None:
    with pytest.raises(BadInput, match=r"there are 160 \(\d+ short\)"):
        how.quotas(COUNTS, 50, rng=rng())


@pytest.mark.parametrize("beta", [0.0, -1.0, float("inf"), float("nan")])
def test_beta_must_be_positive_and_finite(beta: float) -> None:
    with pytest.raises(BadInput, match="beta of Dirichlet takes a finite number above 0"):
        Dirichlet(beta=beta)


def test_an_invalid_number_of_shards_raises() -> None:
    with pytest.raises(BadInput, match="per_client of Shards takes a whole number from 1"):
        Shards(per_client=0)
    with pytest.raises(BadInput, match="between 1 and 32"):
        Shards(per_client=33).quotas(COUNTS, 5, rng=rng())


def test_the_largest_remainders_are_rounded_up() -> None:
    assert apportion(10, np.array([1, 1, 1])).tolist() == [4, 3, 3]
    assert apportion(5, np.array([0.5, 0.3, 0.2])).tolist() == [3, 1, 1]
    assert apportion(4, np.array([0, 0])).tolist() == [2, 2]


@given(
    total=st.integers(0, 500),
    shares=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=8),
)
@settings(deadline=None)
def test_apportioning_adds_up_and_stays_within_one_of_exact(
    total: int, shares: list[float]
) -> None:
    weights = np.array(shares)
    parts = apportion(total, weights)
    assert parts.sum() == total
    assert parts.min() >= 0
    if weights.sum() > 0:
        assert np.abs(parts - total * weights / weights.sum()).max() <= 1 + 1e-6


def test_quotas_are_limited_to_the_available_samples() -> None:
    quotas = np.array([[5, 1], [5, 2], [0, 3]])
    served = limit_quotas(quotas, np.array([6, 10]), rng=rng())
    assert served.sum(axis=0).tolist() == [6, 6]
    assert (served <= quotas).all()
    assert served[:, 1].tolist() == [1, 2, 3]


def test_the_catalogue_builds_partitions_by_name() -> None:
    settings_of = {"dirichlet": {"beta": 0.5}, "sia_class0_size": {"beta": 0.5}}
    for name, build in PARTITIONS.items():
        assert isinstance(build(**settings_of.get(name, {})), Partition)
