"""Fairness gaps between groups, compared with fairlearn."""

import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from fairlearn.metrics import (
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
)
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics.balanced import balanced_accuracy, counted_balanced_accuracy
from fedaudit.metrics.fairness import (
    FAIRNESS_METRICS,
    GroupGap,
    ModelRisk,
    Violations,
    fairness_gaps,
    gaps_of,
    violations,
    violations_by_chance,
)

Answers = np.ndarray
SHORT = (Phase.explicit, Phase.reuse, Phase.generate)
"""Hypothesis phases without shrinking, which would call the slow fairlearn too often."""

FAIRLEARN = {
    "demographic parity": demographic_parity_difference,
    "equal opportunity": equal_opportunity_difference,
    "equalised odds": equalized_odds_difference,
}


def values(
    labels: list[int], predictions: list[int], group: list[int], resamples: int = 2
) -> dict[str, float]:
    gaps = fairness_gaps(
        np.array(labels),
        np.array(predictions),
        np.array(group),
        rng=seeded_numpy(1, "gaps"),
        resamples=resamples,
    )
    return {gap.metric: gap.value for gap in gaps}


def one_class(metric: str, labels: Answers, predictions: Answers, group: Answers) -> float:
    """Return fairlearn's gaps of one class against the rest."""
    how: Callable[..., float] = FAIRLEARN[metric]
    return how(labels, predictions, sensitive_features=group)


def class_by_class(labels: Answers, predictions: Answers, group: Answers) -> dict[str, float]:
    """Average fairlearn's gaps over classes, for each metric."""
    means = {}
    for metric in FAIRNESS_METRICS:
        gaps = []
        for klass in np.unique(np.concatenate([labels, predictions])):
            inside = labels == klass
            every = all(inside[group == g].any() for g in np.unique(group))
            outside = all((~inside[group == g]).any() for g in np.unique(group))
            needs = {"equal opportunity": every, "equalised odds": every and outside}
            if needs.get(metric, True):
                predicted = predictions == klass
                gaps.append(one_class(metric, inside.astype(int), predicted.astype(int), group))
        means[metric] = float(np.mean(gaps))
    return means


def test_fairness_gaps_of_two_classes_match_hand_calculation() -> None:
    labels = [1, 1, 0, 0, 1, 1, 0, 0]
    predictions = [1, 1, 1, 0, 1, 0, 0, 0]
    gaps = values(labels, predictions, [0] * 4 + [1] * 4)
    # Selection rates 3/4 and 1/4, TPRs 2/2 and 1/2, FPRs 1/2 and 0/2.
    assert gaps == pytest.approx(dict(zip(FAIRNESS_METRICS, (0.5, 0.5, 0.5), strict=True)))


def test_equalised_odds_is_the_larger_of_two_gaps() -> None:
    labels = [1, 1, 0, 0, 1, 1, 0, 0]
    predictions = [1, 1, 1, 1, 1, 0, 0, 0]
    gaps = values(labels, predictions, [0] * 4 + [1] * 4)
    assert gaps["equal opportunity"] == pytest.approx(0.5)
    assert gaps["equalised odds"] == pytest.approx(1.0)


def test_identically_treated_groups_have_no_gap() -> None:
    gaps = values([0, 1, 2, 0, 1, 2], [0, 1, 1, 0, 1, 1], [0, 0, 0, 7, 7, 7])
    assert gaps == pytest.approx(dict.fromkeys(FAIRNESS_METRICS, 0.0))


def test_the_gap_is_the_largest_difference_between_groups() -> None:
    labels, group = [1, 0] * 6, [0] * 4 + [1] * 4 + [2] * 4
    predictions = [1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert values(labels, predictions, group)["equal opportunity"] == pytest.approx(1.0)


def test_classes_missing_in_a_group_are_left_out_of_class_rates() -> None:
    labels, predictions = [0, 1, 2, 0, 1, 1], [0, 1, 2, 0, 0, 1]
    gaps = values(labels, predictions, [0, 0, 0, 1, 1, 1])
    # TPRs: equal for class 0, 1/1 and 1/2 for class 1; class 2 occurs in group 0 alone.
    assert gaps["equal opportunity"] == pytest.approx(0.25)
    # Class 2 counts for parity: its selection rates are 1/3 and 0.
    assert gaps["demographic parity"] == pytest.approx((1 / 3 + 0 + 1 / 3) / 3)


answers = st.integers(2, 3).flatmap(
    lambda classes: st.lists(
        st.tuples(
            st.integers(0, classes - 1), st.integers(0, classes - 1), st.integers(0, classes - 1)
        ),
        min_size=4,
        max_size=40,
    )
)


def counted(labels: Answers, predictions: Answers, group: Answers) -> np.ndarray:
    """Count the predicted classes by group and true class, sample by sample."""
    both = np.concatenate([labels, predictions])
    classes = [0, 1] if max(both) < 2 else np.unique(both).tolist()
    tables = np.zeros((len(np.unique(group)), len(classes), len(classes)))
    for label, prediction, g in zip(labels, predictions, group, strict=True):
        place = np.unique(group).tolist().index(g)
        tables[place, classes.index(label), classes.index(prediction)] += 1
    return tables


@pytest.mark.slow
@settings(max_examples=8, deadline=None, phases=SHORT)
@given(answers)
def test_fairness_gaps_match_fairlearn(rows: list[tuple[int, int, int]]) -> None:
    labels, predictions, group = (np.array(column) for column in zip(*rows, strict=True))
    try:
        gaps = fairness_gaps(labels, predictions, group, rng=seeded_numpy(1), resamples=1)
    except BadInput:
        reject()
    tables = counted(labels, predictions, group)
    if tables.shape[-1] == 2:
        # Two classes that are not 0 and 1 are renumbered, since fairlearn takes no others.
        last = max(1, *labels, *predictions)
        true, predicted = ((classes == last).astype(int) for classes in (labels, predictions))
        slow = {metric: one_class(metric, true, predicted, group) for metric in FAIRNESS_METRICS}
    else:
        slow = class_by_class(labels, predictions, group)
    assert {gap.metric: gap.value for gap in gaps} == pytest.approx(slow)
    assert dict(zip(FAIRNESS_METRICS, gaps_of(tables[None])[0], strict=True)) == pytest.approx(slow)


def test_bootstrap_limits_contain_the_true_gap_and_are_seeded() -> None:
    rng = seeded_numpy(3, "answers")
    labels, group = rng.integers(0, 4, 4000), np.repeat([0, 1], 2000)
    wrong = rng.random(4000) < np.where(group == 1, 0.4, 0.1)
    predictions = np.where(wrong, rng.integers(0, 4, 4000), labels)

    def estimate() -> list[GroupGap]:
        return fairness_gaps(labels, predictions, group, rng=seeded_numpy(5, "gaps"))

    assert estimate() == estimate()
    gap = estimate()[1]
    # Three quarters of wrong answers name another class: 0.1 * 0.75 against 0.4 * 0.75.
    assert gap.low < 0.225 < gap.high
    assert gap.low < gap.value < gap.high
    assert gap.high - gap.low < 0.08


def test_fast_bootstrap_matches_resampling_one_by_one() -> None:
    rng = seeded_numpy(4, "answers")
    labels, group = rng.integers(0, 2, 400), np.repeat([0, 1], 200)
    predictions = np.where(rng.random(400) < 0.8 - 0.3 * group, labels, 1 - labels)
    gaps = fairness_gaps(labels, predictions, group, rng=seeded_numpy(1), resamples=2000)
    caught = [np.flatnonzero((labels == 1) & (group == g)) for g in (0, 1)]
    slow = []
    for _ in range(2000):
        drawn = np.concatenate([rng.integers(200 * g, 200 * g + 200, 200) for g in (0, 1)])
        rates = [predictions[drawn[np.isin(drawn, inside)]].mean() for inside in caught]
        slow.append(abs(rates[0] - rates[1]))
    assert (gaps[1].low, gaps[1].high) == pytest.approx(
        tuple(np.quantile(slow, [0.025, 0.975])), abs=0.02
    )


@pytest.mark.parametrize(
    ("labels", "predictions", "group", "match"),
    [
        ([0, 1], [0], [0, 1], "got 2, 1 and 2"),
        ([0, 1], [0, 1], [3, 3], "at least 2 groups"),
        ([0, 1], [0, 1], [0, 1], "more samples of each group"),
    ],
)
def test_incomparable_groups_raise(
    labels: list[int], predictions: list[int], group: list[int], match: str
) -> None:
    with pytest.raises(BadInput, match=match):
        values(labels, predictions, group)


def test_zero_resamples_raise() -> None:
    with pytest.raises(BadInput, match="500 are usual"):
        values([0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], resamples=0)


def test_missing_fairlearn_raises_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fairlearn.metrics", None)
    with pytest.raises(Unsupported, match=r"pip install fedaudit\[fairness\]"):
        values([0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1])


def test_resamples_without_a_class_emit_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gaps = fairness_gaps(
            np.array([0, 1, 2, 0, 1, 2]),
            np.array([0, 1, 2, 0, 2, 2]),
            np.array([0, 0, 0, 1, 1, 1]),
            rng=seeded_numpy(1),
        )
    assert all(np.isfinite([gap.value, gap.low, gap.high]).all() for gap in gaps)


def test_a_risk_above_the_threshold_is_a_violation() -> None:
    # The paper's example: a risk of 0.65 violates a threshold of 0.6, but not one of 0.7.
    risks, thresholds = np.array([0.65, 0.65, 0.52, 0.52]), np.array([0.6, 0.7, 0.5, 0.8])
    lows = np.array([0.62, 0.62, 0.49, 0.49])
    assert violations(risks, thresholds, lows=lows) == Violations(above=2, significant=1, clients=4)


def test_risks_at_the_threshold_and_unknown_ones_are_no_violation() -> None:
    counts = violations(np.array([0.6, np.nan]), np.array([0.6, 0.5]), lows=np.array([0.7, 0.7]))
    assert counts == (0, 0, 2)


def test_a_lower_limit_at_the_threshold_is_no_sure_violation() -> None:
    counts = violations(np.array([0.7]), np.array([0.6]), lows=np.array([0.6]))
    assert counts == (1, 0, 1)


def test_without_lower_limits_no_violation_is_sure() -> None:
    assert violations(np.array([0.9]), np.array([0.6])) == (1, 0, 1)


def test_violations_by_chance_match_hand_calculation() -> None:
    # One member and one non-member: a risk of 0, 1/2, 1/2 or 1 with equal probability.
    simulated = violations_by_chance(
        [ModelRisk(1, 1, [0.5, 0.6, 1.0, 0.4])], rng=seeded_numpy(1, "x")
    )
    assert simulated == pytest.approx(0.25 + 0.25 + 0 + 0.75, abs=0.03)
    assert violations_by_chance([], rng=seeded_numpy(1, "x")) == 0


def test_violations_by_chance_match_the_binomial_expectation() -> None:
    # 30 and 170 clients that accept between 50 and 80 %, on 5,000 members and fewer others.
    thresholds = seeded_numpy(1, "accepted").uniform(0.5, 0.8, 200)
    models = [
        ModelRisk(5_000, 1_500, thresholds[:30].tolist()),
        ModelRisk(5_000, 5_000, thresholds[30:].tolist()),
    ]
    simulated = violations_by_chance(models, rng=seeded_numpy(1, "drawn"))
    # The exact sum of the clients' probabilities of a violation.
    expected = 0.0
    for members, others, accepted in models:
        caught = np.arange(members + 1)
        weights = binom.pmf(caught, members, 0.5)
        for threshold in accepted:
            largest = np.floor(others * (2 * threshold - caught / members) + 1e-9)
            expected += float((weights * binom.sf(largest, others, 0.5)).sum())
    assert simulated == pytest.approx(expected, abs=0.05)
    assert 0.5 < simulated < 3


def test_violations_by_chance_need_members_and_nonmembers() -> None:
    with pytest.raises(BadInput, match="got 0 and 3"):
        violations_by_chance([ModelRisk(0, 3, [0.6])], rng=seeded_numpy(1, "x"))


@pytest.mark.parametrize(
    ("risks", "thresholds", "lows"),
    [([0.5], [0.5, 0.6], None), ([], [], None), ([0.5], [0.5], [0.4, 0.4])],
)
def test_a_client_without_risk_or_threshold_is_refused(
    risks: list[float], thresholds: list[float], lows: list[float] | None
) -> None:
    limits = None if lows is None else np.array(lows)
    with pytest.raises(BadInput, match=r"every (client|risk) needs a"):
        violations(np.array(risks), np.array(thresholds), lows=limits)


def test_counted_balanced_accuracy_averages_two_exact_intervals() -> None:
    result = counted_balanced_accuracy(60, 100, 45, 50)
    sides = [binomtest(60, 100), binomtest(45, 50)]
    limits = [side.proportion_ci(0.975, method="exact") for side in sides]
    assert result.value == pytest.approx(0.75)
    assert result.low == pytest.approx(sum(limit.low for limit in limits) / 2)
    assert result.high == pytest.approx(sum(limit.high for limit in limits) / 2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=1), st.lists(st.booleans(), min_size=1))
def test_balanced_accuracy_from_counts_matches_that_from_scores(
    members: list[bool], others: list[bool]
) -> None:
    called = np.array(members + others, dtype=np.float64)
    truth = np.array([True] * len(members) + [False] * len(others))
    cleared = len(others) - sum(others)
    result = counted_balanced_accuracy(sum(members), len(members), cleared, len(others))
    assert result.value == pytest.approx(balanced_accuracy(called, truth, threshold=1.0))
    assert result.low <= result.value <= result.high


@pytest.mark.simulation
@pytest.mark.parametrize(("members", "others", "tpr", "tnr"), [(30, 30, 0.6, 0.9), (8, 60, 1, 0.5)])
def test_the_balanced_accuracy_interval_has_its_coverage(
    members: int, others: int, tpr: float, tnr: float
) -> None:
    rng = seeded_numpy(2, "coverage")
    caught, cleared = rng.binomial(members, tpr, 2000), rng.binomial(others, tnr, 2000)
    cache = {
        pair: counted_balanced_accuracy(pair[0], members, pair[1], others)
        for pair in set(zip(caught.tolist(), cleared.tolist(), strict=True))
    }
    n_covered = [
        cache[pair].low <= (tpr + tnr) / 2 <= cache[pair].high
        for pair in zip(caught.tolist(), cleared.tolist(), strict=True)
    ]
    assert np.mean(n_covered) >= 0.95
