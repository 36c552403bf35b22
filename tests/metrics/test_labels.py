"""AUC of label inference over pairs of a client and a class."""

from itertools import permutations, product

import numpy as np
import pytest
import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics.labels import label_inference_auc
from fedaudit.metrics.roc import midranks

SCORES = np.array([[0.9, -0.4, -0.1], [-0.3, 0.8, -0.2], [-0.2, 0.1, 0.1], [0.7, 0.6, -0.8]])
HAS = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=bool)


def slow_auc(scores: np.ndarray, has_class: np.ndarray) -> float:
    """Compare every pair of the client's classes with every other pair, one by one."""
    pairs = list(product(scores[has_class], scores[~has_class]))
    return float(sum((a > b) + (a == b) / 2 for a, b in pairs)) / len(pairs)


def test_the_auc_is_the_fraction_of_pairs_in_order() -> None:
    result = label_inference_auc(SCORES, HAS, rng=seeded_numpy(1))
    assert result.value == pytest.approx(slow_auc(SCORES, HAS))
    assert result.low < result.value < result.high
    assert "of clients" in result.method


def test_random_exchanges_of_clients_approach_all_exchanges() -> None:
    exact = [slow_auc(SCORES, HAS[list(order)]) for order in permutations(range(4))]
    result = label_inference_auc(SCORES, HAS, permutations=4_000, rng=seeded_numpy(1))
    observed = result.value - 1e-9
    null = result.permuted_clients
    assert null.mean == pytest.approx(np.mean(exact), abs=0.01)
    assert null.p_value == pytest.approx(np.mean([auc >= observed for auc in exact]), abs=0.02)
    assert null.quantile_95 <= max(exact) + 1e-9


def test_permuted_classes_are_at_chance_level_and_exchanged_clients_may_not_be() -> None:
    # All clients but one have class 0, and all scores of class 0 are large.
    rng = seeded_numpy(2)
    has_class = np.zeros((30, 5), dtype=bool)
    has_class[:, 0] = True
    has_class[0] = [False, True, False, False, False]
    scores = rng.normal(size=(30, 5)) + 5 * (np.arange(5) == 0)
    result = label_inference_auc(scores, has_class, rng=rng)
    assert result.value > 0.95
    assert result.permuted_classes.mean == pytest.approx(0.5, abs=0.01)
    assert result.permuted_classes.p_value == 1 / 1000
    assert result.permuted_clients.mean > 0.95
    assert result.permuted_clients.p_value > 0.05


def test_scores_that_ignore_the_clients_classes_are_rarely_significant() -> None:
    p_values, covered = [], 0
    for trial in range(200):
        rng = seeded_numpy(3, trial)
        has_class = rng.random((12, 6)) < 0.4
        scores = rng.normal(size=(12, 6)) + rng.normal(size=(12, 1))
        result = label_inference_auc(scores, has_class, permutations=99, rng=rng)
        p_values += [result.permuted_clients.p_value]
        covered += result.low <= 0.5 <= result.high
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5
    assert covered >= 200 * 0.9


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("clients", "shift"), [(8, 1.3), (20, 0.0), (20, 1.3), (20, 2.5), (40, 1.3)]
)
def test_limits_of_client_and_class_pairs_have_their_coverage(clients: int, shift: float) -> None:
    """Some classes are more common, and the scores of a client share a part of their noise."""

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        has_class = rng.random((n, 10)) < np.linspace(0.2, 0.7, 10)
        noise = rng.normal(size=(n, 10)) + 0.5 * rng.normal(size=(n, 1))
        return noise + shift * has_class, has_class

    scores, has_class = draw(np.random.default_rng(0), 20_000)
    ranks, n_members = midranks(scores.ravel()), int(has_class.sum())
    wins = ranks[has_class.ravel()].sum() - n_members * (n_members + 1) / 2
    truth = wins / (n_members * (has_class.size - n_members))
    missed, trials = 0, 300
    for trial in range(trials):
        pairs = draw(np.random.default_rng([clients, trial]), clients)
        result = label_inference_auc(*pairs, permutations=1, rng=seeded_numpy(trial))
        missed += not result.low <= truth <= result.high
    assert missed <= sp.stats.binom.ppf(0.999, trials, 0.05)


@pytest.mark.parametrize("has_class", [np.ones((3, 4), bool), np.zeros((0, 4), bool)])
def test_clients_with_the_same_classes_are_refused(has_class: np.ndarray) -> None:
    with pytest.raises(BadInput, match="clients with different classes"):
        label_inference_auc(np.zeros(has_class.shape), has_class, rng=seeded_numpy(1))


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(BadInput, match=r"one entry for each client and class, got .* \(4, 2\)"):
        label_inference_auc(SCORES[:, :2], HAS[:, :3], rng=seeded_numpy(1))
