from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics.rate_limits import Proportion
from fedaudit.metrics.source import (
    ABSTAINED,
    confusion_matrix,
    excess_over_labels,
    infer_by_label_distribution,
    infer_source,
    mcnemar_test,
    source_null,
    source_success,
)


def test_the_most_likely_client_is_inferred() -> None:
    posterior = np.array([[0.2, 0.5, 1 / 3], [0.7, 0.5, 1 / 3], [0.1, 0.0, 1 / 3]])
    assert infer_source(posterior).tolist() == [1, 0, 0]


def test_the_attack_abstains_below_the_probability_threshold() -> None:
    posterior = np.array([[0.9, 0.5], [0.1, 0.5]])
    assert infer_source(posterior, min_posterior=0.6).tolist() == [0, ABSTAINED]


@pytest.mark.parametrize("min_posterior", [-0.1, 1.5, float("nan")])
def test_a_threshold_outside_zero_and_one_raises(min_posterior: float) -> None:
    with pytest.raises(BadInput, match="smallest probability of an answer"):
        infer_source(np.ones((1, 1)), min_posterior=min_posterior)


def test_posteriors_with_nan_raise() -> None:
    with pytest.raises(BadInput, match="1 of 2 samples have a probability that is not a number"):
        infer_source(np.array([[0.5, np.nan], [0.5, 0.2]]))


def test_source_accuracy_has_an_exact_interval() -> None:
    success = source_success(np.array([0, 1, 2, 0]), np.array([0, 1, 2, 2]))
    expected = binomtest(3, 4).proportion_ci(0.95, method="exact")
    assert (success.value, success.hits, success.total) == (0.75, 3, 4)
    assert success.low == pytest.approx(expected.low)
    assert success.high == pytest.approx(expected.high)


def test_abstentions_are_excluded_from_source_accuracy() -> None:
    success = source_success(np.array([0, ABSTAINED, 1]), np.array([0, 1, 0]))
    assert (success.value, success.total) == (0.5, 2)


def test_constant_abstention_gives_an_uninformative_interval() -> None:
    assert source_success(np.array([ABSTAINED]), np.array([0])) == Proportion(0.0, 0.0, 1.0, 0, 0)


def test_success_without_samples_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one sample"):
        source_success(np.array([], dtype=np.int64), np.array([], dtype=np.int64))


def test_confusion_has_owners_in_rows_and_guesses_in_columns() -> None:
    answers, owner = np.array([0, 1, 1, ABSTAINED]), np.array([0, 0, 1, 1])
    assert confusion_matrix(answers, owner, 2).tolist() == [[1, 1], [0, 1]]


def test_the_permutation_null_is_one_over_the_number_of_clients() -> None:
    owner = np.repeat(np.arange(5), 40)
    null = source_null(owner, owner, rng=seeded_numpy(1, "null"))
    assert null.mean == pytest.approx(0.2, abs=0.005)
    assert null.p_value == pytest.approx(1 / 1001)


def test_guesses_from_classes_equal_the_within_class_null() -> None:
    # Client k has class k alone: inferring the class's client is always correct, as is any
    # shuffle of the owners within a class.
    owner = np.repeat(np.arange(4), 10)
    labels = owner.copy()
    counts = np.eye(4, dtype=np.int64) * 10
    answers = infer_by_label_distribution(counts, labels)
    null = source_null(answers, owner, within=labels, permutations=50, rng=seeded_numpy(1, "null"))
    assert null.mean == 1.0
    assert null.p_value == 1.0


def test_guesses_from_samples_exceed_the_within_class_null() -> None:
    owner = np.tile(np.arange(4), 25)
    labels = np.repeat(np.arange(5), 20)
    null = source_null(owner, owner, within=labels, rng=seeded_numpy(1, "null"))
    assert null.mean == pytest.approx(0.25, abs=0.01)
    assert null.p_value < 0.01


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=30))
def test_within_class_permutation_keeps_the_owners_of_each_class(
    pairs: list[tuple[int, int]],
) -> None:
    owner, labels = (np.array(part) for part in zip(*pairs, strict=True))
    # Always inferring client k is correct as often as k owns a sample, in any such shuffle.
    for client in range(4):
        answers = np.full(len(owner), client)
        null = source_null(answers, owner, within=labels, permutations=3, rng=seeded_numpy(1, "x"))
        assert null.mean == pytest.approx((owner == client).mean())
        assert null.p_value == 1.0


BALANCED = st.integers(2, 4).flatmap(
    lambda clients: st.integers(1, 5).flatmap(
        lambda each: st.tuples(
            st.just(np.repeat(np.arange(clients), each)),
            *[st.lists(st.integers(0, 2), min_size=clients * each, max_size=clients * each)] * 2,
        )
    )
)


@settings(max_examples=40)
@given(BALANCED)
def test_the_label_level_uses_other_samples_of_the_class(
    drawn: tuple[np.ndarray, list[int], list[int]],
) -> None:
    source, labels, answers = drawn[0], np.array(drawn[1]), np.array(drawn[2])
    named = answers % (source.max() + 1)
    per_client = Fraction(int((source == 0).sum()))
    levels = []
    for i in range(len(source)):
        weights = {
            other: per_client / (per_client - 1) if source[other] == source[i] else Fraction(1)
            for other in range(len(source))
            if other != i and labels[other] == labels[i]
        }
        if weights:
            hits = sum(w for other, w in weights.items() if source[other] == named[i])
            levels.append(hits / sum(weights.values()))
    excess = excess_over_labels(named, source, labels)
    success = float((named == source).mean())
    expected = float(sum(levels) / len(levels)) if levels else success
    assert excess.explained_rate == pytest.approx(expected)
    assert excess.value == pytest.approx(success - expected)
    assert excess.low <= excess.value + 1e-12
    assert excess.high >= excess.value - 1e-12


def test_the_label_level_follows_bayes_rule_for_known_counts() -> None:
    counts = np.array([[3, 1, 0], [1, 1, 2], [10, 20, 10]])
    source, labels = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 2, 0, 1, 2])
    answers = np.array([0, 2, 1, 1, 2, 0])
    shares = [[Fraction(int(n), int(sum(row))) for n in row] for row in counts]
    chances = [
        shares[who][label] / sum(row[label] for row in shares)
        for who, label in zip(answers, labels, strict=True)
    ]
    excess = excess_over_labels(answers, source, labels, counts)
    assert excess.explained_rate == pytest.approx(float(sum(chances) / 6))


def test_samples_alone_in_their_class_show_no_excess() -> None:
    everyone = np.arange(4)
    excess = excess_over_labels(everyone, everyone, everyone)
    assert (excess.explained_rate, excess.value) == (1.0, 0.0)
    assert excess.low < 0


def test_abstentions_are_excluded_from_the_label_level() -> None:
    answers, source, labels = np.array([0, 1, 0, 1]), np.array([0, 1, 1, 0]), np.zeros(4, dtype=int)
    silent = np.append(answers, [ABSTAINED, ABSTAINED])
    with_abstentions = excess_over_labels(
        silent, np.append(source, [0, 1]), np.append(labels, [0, 0])
    )
    assert with_abstentions == excess_over_labels(answers, source, labels)


def simulated(
    rng: np.random.Generator, *, classes: int, each: int, knows: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Simulate ten skewed clients, an attack that knows some owners, and the true label level."""
    shares = rng.dirichlet([0.5] * classes, size=10)
    by_class = shares / shares.sum(axis=0)
    source = np.repeat(np.arange(10), each)
    labels = np.array([rng.choice(classes, p=shares[client]) for client in source])
    guesses = np.array([rng.choice(10, p=by_class[:, label]) for label in labels])
    answers = np.where(rng.random(len(source)) < knows, source, guesses)
    level = float((shares.mean(axis=0) * (by_class**2).sum(axis=0)).sum())
    return shares, answers, source, labels, level


@pytest.mark.simulation
def test_the_label_level_is_unbiased_for_few_samples_per_class() -> None:
    rng = seeded_numpy(1, "simulated sources")
    errors = []
    for _ in range(60):
        shares, named, source, labels, level = simulated(rng, classes=10, each=10, knows=1.0)
        counts = np.rint(1e6 * shares).astype(np.int64)
        shuffled = source_null(named, source, within=labels, permutations=20, rng=rng).mean
        estimates = (
            excess_over_labels(named, source, labels).explained_rate,
            excess_over_labels(named, source, labels, counts).explained_rate,
            shuffled,
        )
        errors.append([estimate - level for estimate in estimates])
    mean, error = np.mean(errors, axis=0), np.std(errors, axis=0) / len(errors) ** 0.5
    assert (abs(mean) < 3 * error)[:2].all()
    # A shuffle within a class leaves some samples with their own owner.
    assert mean[2] > 0.04 > 10 * error[2]


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("knows", [0.0, 0.3, 1.0])
def test_intervals_of_the_excess_over_labels_have_their_coverage(knows: float) -> None:
    rng, covered = seeded_numpy(2, "simulated sources"), np.zeros(2)
    for _ in range(200):
        shares, named, source, labels, level = simulated(rng, classes=10, each=10, knows=knows)
        truth = knows * (1 - level)
        counts = np.rint(1e6 * shares).astype(np.int64)
        covered += [
            excess.low <= truth <= excess.high
            for excess in (
                excess_over_labels(named, source, labels),
                excess_over_labels(named, source, labels, counts),
            )
        ]
    # Three standard errors below 95 %.
    assert (covered / 200 > 0.904).all()


def test_label_baseline_names_the_client_with_the_largest_share() -> None:
    # The large client (90 samples) has more samples of each class, but class 1 is a larger share
    # of the small client's data (8 samples).
    counts = np.array([[40, 20, 30], [2, 5, 1]])
    assert infer_by_label_distribution(counts, np.array([0, 1, 2, 1])).tolist() == [0, 1, 0, 1]


def test_ties_of_the_label_baseline_go_to_the_first_client() -> None:
    counts = np.array([[1, 48], [3, 144], [0, 7]])
    assert infer_by_label_distribution(counts, np.array([0, 1])).tolist() == [0, 2]


def test_the_label_baseline_raises_for_empty_clients() -> None:
    with pytest.raises(BadInput, match="client 1 has none"):
        infer_by_label_distribution(np.array([[1, 2], [0, 0]]), np.array([0]))


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=2, max_size=4).filter(
        lambda rows: all(map(any, rows))
    )
)
def test_the_label_baseline_is_the_best_rule_from_class_counts(
    rows: list[list[int]],
) -> None:
    # Each client contributes equally many samples, with its own class shares. Of all rules
    # "class c: client k", none is correct more often.
    counts = np.array(rows)
    shares = [[Fraction(n, sum(row)) for n in row] for row in rows]
    answers = infer_by_label_distribution(counts, np.arange(3))
    best = max(
        sum(shares[client][label] for label, client in enumerate(rule))
        for rule in product(range(len(rows)), repeat=3)
    )
    assert sum(shares[client][label] for label, client in enumerate(answers)) == best


def test_paired_comparison_uses_discordant_samples() -> None:
    is_correct = np.array([True] * 9 + [False] * 3)
    is_correct_of_other = np.array([True] * 2 + [False] * 10)
    result = mcnemar_test(is_correct, is_correct_of_other)
    assert result.difference == pytest.approx(7 / 12)
    assert result.p_value == pytest.approx(2 / 2**7)


def test_paired_comparison_of_equal_guesses_gives_p_value_one() -> None:
    assert mcnemar_test(np.array([True]), np.array([True])) == (0.0, 1.0)


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=4, max_size=40))
def test_source_accuracy_does_not_depend_on_client_names(
    order: list[int], owners: list[int]
) -> None:
    owner = np.array(owners)
    answers = (owner + (np.arange(len(owner)) % 3 == 0)) % 4
    renamed = np.array(order)
    assert source_success(answers, owner) == source_success(renamed[answers], renamed[owner])
