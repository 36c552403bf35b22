import numpy as np
import pytest
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom

from fedaudit.core.errors import BadInput
from fedaudit.metrics import (
    ConfusionCounts,
    Guesses,
    Roc,
    clopper_pearson_epsilon,
    clopper_pearson_lower,
    gaussian_epsilon,
    one_run_epsilon_from_counts,
    one_run_epsilon_from_scores,
    one_run_gaussian_bound,
    roc_curve,
)
from fedaudit.metrics.epsilon import (
    _gaussian_refuted,
    gaussian_budget,
    gaussian_shift,
    one_run_p_value,
)

# The largest bounds that 100 to 10,000 samples a side can give.
CEILINGS = [(100, 3.3, 4.2), (500, 4.9, 5.8), (1_000, 5.6, 6.5), (10_000, 7.9, 8.8)]

# jax_privacy tests/auditing_test.py: 10,000 normal quantiles a side, alpha 0.05, delta 1e-6,
# guessing members only, Bonferroni over the corners of the ROC's concave hull.
GOLDEN = [(1.0, 1.13346, 2.164749), (2.0, 2.311945, 4.7218075), (4.0, 4.395568, 9.133752)]


@pytest.mark.parametrize(("n", "by_counts", "by_guesses"), CEILINGS)
def test_a_perfect_attack_reaches_the_tabulated_ceilings(
    n: int, by_counts: float, by_guesses: float
) -> None:
    counted = clopper_pearson_epsilon(ConfusionCounts(n, n, 0, n), delta=1e-5)
    guessed = one_run_epsilon_from_counts(Guesses(2 * n, 2 * n, 2 * n))
    assert round(counted.value, 1) == by_counts
    assert round(guessed.value, 1) == by_guesses
    assert (counted.ceiling, guessed.ceiling) == (counted.value, guessed.value)


def test_published_bound_of_500_perfect_runs() -> None:
    bound = clopper_pearson_epsilon(ConfusionCounts(500, 500, 0, 500), alpha=0.01)
    assert bound.value == pytest.approx(4.54, abs=0.005)
    assert bound.method == "Clopper-Pearson 99%, delta 0"


def test_the_better_of_both_directions_counts() -> None:
    # Few false negatives but many false positives: the true-negative side shows more.
    flagging_most = ConfusionCounts(1000, 1000, 500, 1000)
    flagging_few = ConfusionCounts(500, 1000, 0, 1000)
    assert clopper_pearson_epsilon(flagging_most) == clopper_pearson_epsilon(flagging_few)


def test_a_useless_attack_refutes_nothing() -> None:
    assert clopper_pearson_epsilon(ConfusionCounts(50, 100, 50, 100)).value == 0
    assert gaussian_epsilon(ConfusionCounts(50, 100, 50, 100), delta=1e-5).value == 0
    assert one_run_epsilon_from_counts(Guesses(100, 50, 100)).value == 0
    assert one_run_gaussian_bound(Guesses(100, 50, 100), delta=1e-5).value == 0
    # The ceiling for correct guesses is reported nevertheless.
    perfect = one_run_epsilon_from_counts(Guesses(100, 100, 100))
    assert one_run_epsilon_from_counts(Guesses(100, 50, 100)).ceiling == perfect.value > 0


def test_randomised_response_is_bounded_from_below_close_to_its_budget() -> None:
    # Answering truthfully with probability e^eps / (1 + e^eps) is exactly eps-DP.
    epsilon, n = 1.5, 200_000
    truthful = int(n * expit(epsilon))
    bound = clopper_pearson_epsilon(ConfusionCounts(truthful, n, n - truthful, n))
    assert 0.97 * epsilon < bound.value < epsilon


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_the_gaussian_bound_is_below_the_true_budget_and_within_a_fifth(
    shift: float, delta: float
) -> None:
    n = 500_000
    hits = int(n * ndtr(shift / 2))
    bound = gaussian_epsilon(ConfusionCounts(hits, n, n - hits, n), delta=delta)
    true = gaussian_budget(shift, delta)
    assert 0.8 * true < bound.value < true


def test_gaussian_budget_matches_an_accountant() -> None:
    accounting = pytest.importorskip("dp_accounting")
    for shift in (0.3, 1.0, 3.0):
        expected = accounting.get_epsilon_gaussian(1 / shift, 1e-5)
        assert gaussian_budget(shift, 1e-5) == pytest.approx(expected, rel=1e-4)


def test_gaussian_shift_inverts_gaussian_budget() -> None:
    for epsilon in (0.0, 0.1, 1.0, 20.0):
        assert gaussian_budget(gaussian_shift(epsilon, 1e-6), 1e-6) == pytest.approx(
            epsilon, abs=1e-6
        )


def slow_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    rate = expit(epsilon)
    tail = binom.sf(guesses.correct - 1, guesses.made, rate)
    worst, gathered = 0.0, 0.0
    for fewer in range(1, guesses.correct + 1):
        gathered += binom.pmf(guesses.correct - fewer, guesses.made, rate)
        worst = max(worst, gathered / fewer)
    return float(min(1.0, tail + 2 * guesses.samples * delta * worst))


@pytest.mark.parametrize("count", [1, 10, 100])
@pytest.mark.parametrize("wrong", [0, 1, 10])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.1])
def test_one_run_p_value_matches_a_direct_sum(
    count: int, wrong: int, epsilon: float, delta: float
) -> None:
    if wrong > count:
        return
    guesses = Guesses(count, count - wrong, 150)
    assert one_run_p_value(guesses, epsilon, delta) == pytest.approx(
        slow_p_value(guesses, epsilon, delta), abs=1e-12
    )


def test_one_run_bound_without_delta_is_the_binomial_limit() -> None:
    guesses = Guesses(100, 80, 300)
    limit = clopper_pearson_lower(80, 100)
    assert one_run_epsilon_from_counts(guesses).value == pytest.approx(np.log(limit / (1 - limit)))


def hull(roc: Roc) -> list[tuple[int, int]]:
    """Corners of the ROC's upper concave hull, as pairs of counts."""
    corners: list[tuple[int, int]] = []
    false = np.rint(roc.fpr * roc.n_nonmembers).astype(int)
    true = np.rint(roc.tpr * roc.n_members).astype(int)
    for x, y in zip(false.tolist(), true.tolist(), strict=True):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (x1 - x0) * (y - y0) < (y1 - y0) * (x - x0):
                break
            corners.pop()
        corners.append((x, y))
    return corners


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "one_run", "gaussian"), GOLDEN)
def test_one_run_bounds_match_the_reference_implementation(
    shift: float, one_run: float, gaussian: float
) -> None:
    n, delta = 10_000, 1e-6
    quantiles = ndtri((np.arange(n) + 0.5) / n)
    scores = np.concatenate([quantiles + shift, quantiles])
    corners = hull(roc_curve(scores, np.arange(2 * n) < n))
    alpha = 0.05 / len(corners)
    guesses = [Guesses(x + y, y, 2 * n) for x, y in corners if x + y]

    def refuting(epsilon: float) -> list[Guesses]:
        return [g for g in guesses if one_run_p_value(g, epsilon, delta) <= alpha]

    def refuting_gaussian(epsilon: float) -> list[Guesses]:
        return [g for g in guesses if _gaussian_refuted(g, epsilon, delta=delta, alpha=alpha)]

    # The best bound over corners is the golden one: some corner reaches it and none goes beyond.
    assert not refuting(one_run * (1 + 1e-5))
    best = refuting(one_run * (1 - 1e-5))[0]
    bound = one_run_epsilon_from_counts(best, delta=delta, alpha=alpha).value
    assert bound == pytest.approx(one_run, rel=1e-5)
    assert not refuting_gaussian(gaussian * (1 + 1e-5))
    best = refuting_gaussian(gaussian * (1 - 1e-5))[0]
    bound = one_run_gaussian_bound(best, delta=delta, alpha=alpha).value
    assert bound == pytest.approx(gaussian, rel=1e-5)


def test_the_attack_guesses_on_the_highest_and_lowest_scores() -> None:
    # Correct guesses: 9 and 8 above, 1 and 0 below. The middle is not guessed.
    scores, truth = [9.0, 8.0, 5.0, 4.0, 1.0, 0.0], [True, True, False, True, False, False]
    bound = one_run_epsilon_from_scores(scores, truth, guesses=4, alpha=0.5)
    assert bound == one_run_epsilon_from_counts(Guesses(4, 4, 6), alpha=0.5)
    assert bound.value > 0


def test_ties_do_not_favour_members_that_come_first() -> None:
    truth = np.arange(200) < 100
    assert one_run_epsilon_from_scores(np.zeros(200), truth, guesses=200).value == 0
    assert one_run_epsilon_from_scores(np.zeros(200), ~truth, guesses=20).value == 0
    two_valued = np.where(np.arange(200) < 60, 1.0, 0.0)
    # 60 members have the highest score. The 40 further guesses of membership are ties and count as
    # wrong, while all 100 guesses of non-membership meet the 40 tied members first.
    expected = one_run_epsilon_from_counts(Guesses(200, 60 + 60, 200))
    assert one_run_epsilon_from_scores(two_valued, truth, guesses=200) == expected


@pytest.mark.simulation
@pytest.mark.slow
def test_the_one_run_bound_holds_for_a_mechanism_of_known_budget() -> None:
    # Randomised response at epsilon 1 for each sample: the bound is wrong in at most 5 %.
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        truth = rng.random(300) < 0.5
        answers = np.where(rng.random(300) < expit(1.0), truth, ~truth)
        scores = answers + 0.01 * rng.random(300)
        wrong += one_run_epsilon_from_scores(scores, truth, guesses=100).value > 1
    assert wrong / 200 <= 0.09


def test_implausible_coins_raise() -> None:
    scores, truth = np.arange(1000.0), np.arange(1000) < 100
    with pytest.raises(BadInput, match="implausible for 100 members and 900 non-members"):
        one_run_epsilon_from_scores(scores, truth, guesses=10)


@pytest.mark.parametrize("guesses", [0, 3, 12])
def test_guesses_must_be_even_and_no_more_than_samples(guesses: int) -> None:
    with pytest.raises(BadInput, match="even number from 2 to the 10 samples"):
        one_run_epsilon_from_scores(np.arange(10.0), np.arange(10) < 5, guesses=guesses)


def test_a_delta_or_an_error_out_of_range_is_refused() -> None:
    with pytest.raises(BadInput, match=r"delta is a probability in \[0, 1\)"):
        one_run_epsilon_from_counts(Guesses(2, 2, 2), delta=1.0)
    with pytest.raises(BadInput, match=r"delta is a probability in \(0, 1\)"):
        gaussian_epsilon(ConfusionCounts(1, 1, 0, 1), delta=0.0)
    with pytest.raises(BadInput, match="alpha"):
        clopper_pearson_epsilon(ConfusionCounts(1, 1, 0, 1), alpha=0.0)
    with pytest.raises(BadInput, match="3 correct of 2"):
        one_run_epsilon_from_counts(Guesses(2, 3, 4))
