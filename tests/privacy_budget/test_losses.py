"""Epsilon of compositions with known answers."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
import scipy as sp

from fedaudit.defenses.ldp.additive import epsilon_of_gaussian
from fedaudit.plan.values import settings_from
from fedaudit.privacy_budget.losses import Losses, Release, _curve, release_of
from fedaudit.privacy_budget.setup import PrivacySetup, Unit, _tree_releases
from tests.privacy_budget.setups import client, coarse_grid, sample, setup


@pytest.fixture
def _coarse_grid() -> Iterator[None]:
    with coarse_grid():
        yield


def epsilon(settings: dict[str, object], unit: Unit = "client", rounds: int | None = None) -> float:
    resolved = settings_from(settings, PrivacySetup)
    return Losses(resolved, unit).epsilon(resolved.rounds if rounds is None else rounds)


@pytest.mark.parametrize("noise", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("rounds", [1, 7, 1000])
def test_gaussian_composition_has_the_closed_form(noise: float, rounds: int) -> None:
    result = epsilon(setup(client(noise_multiplier=noise, rounds=rounds)))
    assert result == pytest.approx(epsilon_of_gaussian(noise / math.sqrt(rounds), 1e-6), rel=1e-9)


def test_phases_with_different_noise_compose() -> None:
    phases = client(noise_multiplier=3.0, rounds=4), client(noise_multiplier=6.0, rounds=9)
    squares = 4 / 9 + 9 / 36
    assert epsilon(setup(*phases)) == pytest.approx(epsilon_of_gaussian(squares**-0.5, 1e-6))


def test_a_replacement_needs_twice_the_noise() -> None:
    replaced = setup(client(noise_multiplier=8.0), adjacency="replace")
    removed = setup(client(noise_multiplier=4.0))
    assert epsilon(replaced) == pytest.approx(epsilon(removed))
    # A sample changes its client's update, and does not remove it.
    changed = epsilon(setup(client(noise_multiplier=8.0)), "sample")
    assert changed == pytest.approx(epsilon(removed))


def test_people_at_several_clients_need_noise_in_proportion() -> None:
    person = epsilon(setup(client(noise_multiplier=12.0), person_clients=3), "person")
    assert person == pytest.approx(epsilon(setup(client(noise_multiplier=2.0))))


def test_participations_bound_the_number_of_releases() -> None:
    capped = epsilon(setup(client(participations=6)))
    assert capped == pytest.approx(epsilon(setup(client(rounds=6))))


def test_shuffled_batches_release_a_sample_once_in_each_epoch() -> None:
    phase = sample(sampling="shuffle", batch_size=None, epochs=3)
    result = epsilon(setup(phase, adjacency="zero-out"), "sample")
    assert result == pytest.approx(epsilon_of_gaussian(1 / math.sqrt(30), 1e-6))


def test_full_batches_release_a_sample_in_each_step() -> None:
    phase = sample(sampling="all", batch_size=None, epochs=None, steps=5)
    assert epsilon(setup(phase), "sample") == pytest.approx(
        epsilon_of_gaussian(1 / math.sqrt(50), 1e-6)
    )
    # A rate of 1 means no sampling.
    full_batches = sample(batch_size=200, epochs=5)
    assert epsilon(setup(full_batches), "sample") == pytest.approx(epsilon(setup(phase), "sample"))


def test_sampling_without_amplification_counts_every_round() -> None:
    hidden = client(sampling="poisson", rate=0.1)
    without_amplification = hidden | {"amplification": False}
    assert epsilon(setup(without_amplification)) == pytest.approx(epsilon(setup(client())))
    assert epsilon(setup(hidden)) < epsilon(setup(without_amplification)) / 3


def test_adaptive_clipping_costs_the_noise_of_its_count() -> None:
    # Flower and TensorFlow Privacy raise the noise on the sum so that the total is this.
    total, count = 1.2, 6.0
    on_sum = (total**-2 - (2 * count) ** -2) ** -0.5
    adaptive = client(noise_multiplier=on_sum, adaptive_clipping=True, clipped_count_stddev=count)
    assert epsilon(setup(adaptive)) == pytest.approx(epsilon(setup(client(noise_multiplier=total))))


def test_noise_of_honest_clients_adds_up_under_secure_aggregation() -> None:
    summed = client(
        order=["clip", "noise", "sum"],
        noise_multiplier=0.5,
        secure_aggregation=True,
        least_honest_clients=36,
    )
    result = epsilon(setup(summed, adjacency="zero-out"))
    assert result == pytest.approx(epsilon(setup(client(noise_multiplier=3.0))))


def divergence(p: np.ndarray, q: np.ndarray, epsilon: float, width: float) -> float:
    """Integrate the positive part of p - exp(epsilon) q."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * width)


@pytest.mark.parametrize(("members", "rate", "noise"), [(2, 0.1, 1.0), (5, 0.3, 2.0), (90, 0.5, 9)])
def test_a_group_in_one_step_has_the_integrated_epsilon(
    members: int, rate: float, noise: float
) -> None:
    phase = sample(rounds=1, noise_multiplier=noise, batch_size=None, rate=rate, epochs=None)
    phase["steps"] = 1
    result = epsilon(setup(phase, person_samples=members), "person")
    outputs = np.linspace(-12 * noise, members + 12 * noise, 40_001)
    width = float(outputs[1] - outputs[0])
    without = sp.stats.norm.pdf(outputs, scale=noise)
    weights = sp.stats.binom.pmf(np.arange(members + 1), members, rate)
    mixed = sum(
        weight * sp.stats.norm.pdf(outputs, loc=number, scale=noise)
        for number, weight in enumerate(weights)
    )
    for factor, holds in ((0.995, False), (1.005, True)):
        deltas = (
            divergence(mixed, without, factor * result, width),
            divergence(without, mixed, factor * result, width),
        )
        # Above 64 members in a step, numbers are rounded up, which costs accuracy.
        assert (max(deltas) <= 1e-6) == holds or (members > 64 and not holds)


@pytest.mark.usefixtures("_coarse_grid")
def test_a_group_of_one_is_the_sampled_gaussian() -> None:
    phase = sample(batch_size=None, rate=0.02)
    group = epsilon(setup(phase, person_samples=2), "person")
    single = epsilon(setup(phase), "sample")
    assert single < group < 4 * single


@pytest.mark.slow
def test_a_group_agrees_with_the_mixture_of_dp_accounting() -> None:
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    weights = sp.stats.binom.pmf(np.arange(3), 2, 0.05)
    theirs = library.from_mixture_gaussian_mechanism(
        1.0, [0.0, 1.0, 2.0], list(weights), value_discretization_interval=1e-3
    )
    phase = sample(batch_size=None, rate=0.05, epochs=None, steps=10)
    result = epsilon(setup(phase, person_samples=2), "person")
    assert result == pytest.approx(theirs.self_compose(100).get_epsilon_for_delta(1e-6), rel=1e-3)


@pytest.mark.usefixtures("_coarse_grid")
def test_fixed_subsets_cost_slightly_more_than_a_known_replacement() -> None:
    fixed = setup(client(sampling="fixed", clients_per_round=20), adjacency="replace")
    # All other clients may send the opposite of the new update, which then moves the sum by two
    # clip norms: a sampled Gaussian with half the noise. The bound allows both orders in a round.
    replacement = epsilon(setup(client(noise_multiplier=0.5, sampling="poisson", rate=0.02)))
    assert replacement < epsilon(fixed) < 1.05 * replacement
    rdp = pytest.importorskip("dp_accounting.rdp")
    import dp_accounting

    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    # That accountant takes the noise in units of the largest change of the sum, two clip norms.
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 20, dp_accounting.GaussianDpEvent(0.5)
    )
    assert epsilon(fixed) < accountant.compose(event, 100).get_epsilon(1e-6)


@pytest.mark.usefixtures("_coarse_grid")
def test_poisson_sampling_costs_less_than_fixed_subsets() -> None:
    fixed = client(sampling="fixed", clients_per_round=20)
    poisson = client(sampling="poisson", clients_per_round=20)
    assert epsilon(setup(poisson, adjacency="replace")) < epsilon(setup(fixed, adjacency="replace"))


@pytest.mark.usefixtures("_coarse_grid")
def test_a_replaced_group_is_removed_and_added() -> None:
    phase = sample(noise_multiplier=2.0, batch_size=2)
    removed = epsilon(setup(phase, person_samples=3), "person")
    replaced = epsilon(setup(phase, person_samples=3, adjacency="replace"), "person")
    assert 1.5 * removed < replaced < 4 * removed
    bound = Release("subset", 2.0, 6, 1 - (1 - 0.01) ** 3)
    assert replaced < _curve([bound], [200], 1e-6).epsilon(1e-6)


def test_a_loss_too_large_for_a_grid_ignores_sampling() -> None:
    resolved = settings_from(setup(sample(), samples=50_000, delta=1e-9), PrivacySetup)
    (phase,) = resolved.phase
    assert release_of(resolved, phase, "client") == Release("gaussian", 1.0, 50_000)
    assert release_of(resolved, phase, "sample").mechanism == "poisson"


def test_a_person_may_be_in_the_batches_of_several_clients() -> None:
    phase = sample(sampling="fixed", batch_size=4)
    several = {"person_samples": 8, "person_clients": 2, "adjacency": "replace"}
    resolved = settings_from(setup(phase, **several), PrivacySetup)
    assert release_of(resolved, resolved.phase[0], "person").distance == 16
    assert release_of(resolved, resolved.phase[0], "client").distance == 8


def test_a_tree_that_a_client_enters_once_has_its_height_as_releases() -> None:
    tree = client(tree_aggregation=True, participations=1, noise_multiplier=5.0)
    for rounds, height in ((1, 1), (7, 3), (8, 4), (1000, 10)):
        alike = setup(client(noise_multiplier=5.0, rounds=height))
        assert epsilon(setup(tree | {"rounds": rounds})) == pytest.approx(epsilon(alike))


def test_a_tree_agrees_with_dp_accounting() -> None:
    rdp = pytest.importorskip("dp_accounting.rdp")
    import dp_accounting

    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    theirs, alike = rdp.RdpAccountant(neighboring_relation=relation), rdp.RdpAccountant()
    theirs.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(5.0, 1000))
    alike.compose(dp_accounting.GaussianDpEvent(5.0), _tree_releases(1000, 1, 1))
    assert theirs.get_epsilon(1e-6) == pytest.approx(alike.get_epsilon(1e-6))


def largest_sum_of_squares(rounds: int, participations: int, separation: int) -> int:
    """Try all positions of a client's rounds."""
    best = 0
    for positions in combinations(range(rounds), participations):
        if any(b - a < separation for a, b in pairwise(positions)):
            continue
        total, width = 0, 1
        while width <= rounds:
            nodes = Counter(position // width for position in positions)
            total += sum(n**2 for node, n in nodes.items() if (node + 1) * width <= rounds)
            width *= 2
        best = max(best, total)
    return best


@pytest.mark.parametrize("rounds", [1, 5, 8, 13, 16])
@pytest.mark.parametrize("participations", [1, 2, 3])
@pytest.mark.parametrize("separation", [1, 3, 5])
def test_the_bound_of_a_tree_is_at_most_a_third_above_the_worst_positions(
    rounds: int, participations: int, separation: int
) -> None:
    exact = max(
        largest_sum_of_squares(rounds, count, separation) for count in range(1, participations + 1)
    )
    assert exact <= _tree_releases(rounds, participations, separation) <= 4 / 3 * exact


def test_a_longer_tree_with_more_participations_costs_more() -> None:
    tree = client(tree_aggregation=True, participations=4, least_separation=20)
    values = [epsilon(setup(tree), rounds=rounds) for rounds in (1, 20, 50, 100, 101, 120)]
    assert values == sorted(values)
    assert values[-1] > values[-2] > values[-3]
