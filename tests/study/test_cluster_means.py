"""Means over seeds of clustered learning."""

from collections.abc import Sequence

import pytest

from fedaudit.evaluation.clusters import cluster_estimates, utility_estimate
from fedaudit.results.aggregate import average_each
from fedaudit.results.comparison import Row
from fedaudit.results.estimate import ACCURACY, Difference, Estimate
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.runs import (
    ClusterResult,
    ClusterRound,
    ModelState,
    model_changes,
    model_choices,
    models_of_groups,
)
from fedaudit.study.comparing import figure_entries, paired_change
from tests.report.clustered import clustered, with_clusters

GROUPS = [0, 0, 0, 0, 1, 1]


def states(*sizes: int, risks: tuple[float | None, ...] = (0.52, 0.7)) -> list[ModelState]:
    return [
        ModelState(
            clients=size,
            risk=risk,
            low=None if risk is None else risk - 0.05,
            high=None if risk is None else risk + 0.05,
            estimated=None if risk is None else risk + 0.02,
        )
        for size, risk in zip(sizes, risks, strict=True)
    ]


def result(
    *choices: list[int],
    seed: int = 1,
    risks: tuple[float | None, ...] = (0.52, 0.7),
) -> ClusterResult:
    rounds = [
        ClusterRound(
            round=5 * i + 5,
            choice=choice,
            models=states(*(choice.count(m) for m in range(len(risks))), risks=risks),
        )
        for i, choice in enumerate(choices)
    ]
    return ClusterResult(
        algorithm="ifca",
        seed=seed,
        measure="train-mia",
        clients=list(range(10, 16)),
        group_names=["majority", "minority"],
        group=GROUPS,
        thresholds=[0.51, 0.6, 0.7, 0.8, 0.6, 0.75],
        rounds=rounds,
    )


def figures_of(
    runs: Sequence[ClusterResult], accuracies: Sequence[float] = (0.8,)
) -> list[Estimate]:
    """Estimates of runs with the given accuracies, and over the runs."""
    estimates = []
    for i, run in enumerate(runs):
        share = accuracies[i % len(accuracies)]
        parts = [("majority", 0.84), ("minority", 0.72), ("everybody", share)]
        served = [
            utility_estimate(run, ACCURACY, (share, 0.1, 0.95), group=name, samples=10)
            for name, share in parts
            if name in (*run.group_names, "everybody")
        ]
        served.append(utility_estimate(run, "equal opportunity", (0.1, 0.05, 0.2)))
        estimates += cluster_estimates(run, served)
    return [*estimates, *average_each(estimates)]


def counts(**by_seed: int) -> list[Estimate]:
    """Violations in some runs, by seed, and over them."""
    runs = [
        Estimate(topic="clusters", metric="violations", seed=int(seed[1:]), value=value, ceiling=6)
        for seed, value in by_seed.items()
    ]
    return [*average_each(runs), *runs]


def change_of(after: list[Estimate], before: list[Estimate]) -> Difference | None:
    return paired_change(after[0], before[0], after[1:], before[1:])


def mean_of(figures: list[Estimate], metric: str, group: str = "everybody") -> Estimate:
    (mean,) = [
        estimate
        for estimate in figures
        if (estimate.metric, estimate.group, estimate.seed) == (metric, group, None)
    ]
    return mean


def seeds_of(figures: list[Estimate], metric: str, group: str = "everybody") -> list[int | None]:
    same = [
        estimate for estimate in figures if (estimate.metric, estimate.group) == (metric, group)
    ]
    return [estimate.seed for estimate in same if estimate.seed is not None]


def test_each_group_has_the_model_that_most_of_its_clients_chose() -> None:
    means = figures_of([result([0, 0, 0, 1, 1, 1])])
    assert models_of_groups(result([0, 0, 0, 1, 1, 1])) == {0: 0, 1: 1}
    assert mean_of(means, "risk of the model", "majority").value == 0.52
    assert mean_of(means, "risk of the model", "minority").value == 0.7
    assert mean_of(means, "clients with the model", "majority").value == 3


def test_if_groups_share_a_model_the_minority_gets_the_other_one() -> None:
    run = result([0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0])
    assert models_of_groups(run) == {0: 0, 1: 1}
    estimate = mean_of(figures_of([run]), "risk of the model", "minority")
    assert estimate.value == 0.7
    assert "use another group's model" in estimate.note


def test_without_a_second_trained_model_the_minority_has_no_model() -> None:
    empty = result([0] * 6, risks=(0.52, None), seed=2)
    assert models_of_groups(empty) == {0: 0, 1: None}
    means = figures_of([result([0, 0, 0, 0, 1, 1]), empty])
    estimate = mean_of(means, "risk of the model", "minority")
    assert (seeds_of(means, "risk of the model", "minority"), estimate.value) == ([1], 0.7)
    assert "1 of 2 runs do not have this figure" in estimate.note


def test_client_risk_is_the_risk_of_its_model() -> None:
    means = figures_of([result([0, 0, 0, 0, 0, 1])])
    assert mean_of(means, "mean risk of a client", "minority").value == pytest.approx(0.61)
    assert mean_of(means, "mean risk of a client").value == pytest.approx((5 * 0.52 + 0.7) / 6)
    assert mean_of(means, "error of the estimate").value == pytest.approx(0.02)


def test_violations_are_counted_group_by_group() -> None:
    means = figures_of([result([0, 0, 0, 0, 1, 1])])
    # 0.52 is above 0.51, and 0.7 above 0.6.
    assert mean_of(means, "violations", "majority").value == 1
    assert mean_of(means, "violations", "minority").value == 1
    assert mean_of(means, "violations").value == 2
    assert mean_of(means, "sure violations").value == 1
    assert mean_of(means, "expected violations").value == 2


def counted(run: ClusterResult, members: int) -> ClusterResult:
    """The same run, whose models were asked about so many samples of each side."""
    last = run.rounds[-1]
    models = [
        model.model_copy(update={"members": members, "others": members}) for model in last.models
    ]
    return run.model_copy(update={"rounds": [last.model_copy(update={"models": models})]})


def test_violations_are_reported_with_their_noise_floor() -> None:
    run = result([0, 0, 0, 0, 1, 1])
    assert not [
        estimate for estimate in figures_of([run]) if estimate.metric == "violations by chance"
    ]
    # Of one member and one other: a quarter of the draws is above every threshold.
    means = figures_of([counted(run, 1)])
    assert mean_of(means, "violations by chance").value == pytest.approx(6 / 4, abs=0.05)
    many = mean_of(figures_of([counted(run, 5000)]), "violations by chance")
    # The one who accepts 51 % is two standard errors away, the others twenty and more.
    assert many.value == pytest.approx(0.0228, abs=0.006)


def test_accuracy_intervals_do_not_narrow_over_runs_on_one_test_set() -> None:
    estimate = mean_of(figures_of([result([0, 0, 0, 0, 1, 1])]), "accuracy")
    assert (estimate.low, estimate.high, estimate.method) == (0.1, 0.95, "Clopper-Pearson 95%")
    runs = [result(GROUPS, seed=seed) for seed in (1, 2, 3)]
    mean = mean_of(figures_of(runs, (0.81, 0.82, 0.83)), "accuracy")
    assert mean.value == pytest.approx(0.82)
    assert (mean.low, mean.high) == pytest.approx((0.1, 0.95))
    assert mean.method == "Clopper-Pearson 95%, over these 3 runs"
    assert mean.further is not None
    assert mean.further.method == "an interval over further runs needs 5 seeds, got 3"


def test_agreement_is_one_for_the_groups_and_zero_for_one_model() -> None:
    turned = [1 - group for group in GROUPS]
    assert mean_of(figures_of([result(turned)]), "agreement with the groups").value == 1.0
    assert mean_of(figures_of([result([0] * 6)]), "agreement with the groups").value == 0.0


def test_moves_are_counted_client_by_client() -> None:
    run = result([0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0])
    assert model_changes(run) == [[0, 5], [0]]
    means = figures_of([run])
    assert mean_of(means, "clients that moved").value == 2
    assert mean_of(means, "clients that moved at the end").value == 1


def test_one_measured_round_gives_no_count_of_moves() -> None:
    assert not [m for m in figures_of([result(GROUPS)]) if "moved" in m.metric]


def test_a_single_group_has_figures_over_all_clients_only() -> None:
    means = figures_of([clustered(minority=0, clients=12)])
    assert {mean.group for mean in means} == {"everybody"}
    over_runs = [estimate for estimate in means if estimate.seed is None]
    assert len({estimate.metric for estimate in over_runs}) == len(over_runs)


def test_figures_of_different_algorithms_are_separate() -> None:
    means = figures_of([clustered(name, clients=40) for name in ("ifca", "ifca-mir")])
    assert {mean.algorithm for mean in means} == {"ifca", "ifca-mir"}


def test_changes_are_paired_by_seed() -> None:
    change = change_of(counts(s3=3, s2=3, s9=0), counts(s1=4, s2=5, s3=6))
    assert change is not None
    # 3 - 6 and 3 - 5; seed 9 has no partner.
    assert (change.value, change.runs) == (-2.5, 2)
    assert change.method == "over the 2 runs that both have"
    assert change.further is not None
    assert (change.low, change.further.low) == (None, None)
    assert change.further.method == "an interval over further runs needs 5 seeds, got 2"


def test_five_common_seeds_give_an_interval_for_further_pairs() -> None:
    ifca, mir = (
        counts(**{f"s{seed}": value for seed, value in enumerate(values)})
        for values in ((4, 5, 6, 4, 6), (2, 2, 4, 1, 3))
    )
    change = change_of(mir, ifca)
    assert change is not None
    assert change.further is not None
    # 2, 3, 2, 3, 3 fewer: a mean of 2.6 and a standard deviation of the root of 0.3.
    assert change.further.low == pytest.approx(-2.6 - 2.7764 * (0.3 / 5) ** 0.5, abs=1e-3)


def test_the_risk_interval_narrows_over_runs() -> None:
    estimate, many = (
        mean_of(
            figures_of([result([0, 0, 0, 0, 1, 1], seed=s) for s in range(runs)]),
            "risk of the model",
            "minority",
        )
        for runs in (1, 4)
    )
    assert None not in (estimate.low, estimate.high, many.low, many.high)
    assert (many.high or 0) - many.number == pytest.approx(
        ((estimate.high or 0) - estimate.number) / 2
    )
    assert many.number - (many.low or 0) == pytest.approx(
        (estimate.number - (estimate.low or 0)) / 2
    )


def test_a_single_common_seed_gives_a_change_without_interval() -> None:
    change = change_of(counts(s1=1), counts(s1=4))
    assert change is not None
    assert (change.value, change.low, change.method) == (-3.0, None, "one seed")
    assert change_of(counts(s1=1), counts(s7=4)) is None


def test_each_row_of_a_comparison_has_its_figures() -> None:
    records = [with_clusters(clustered("ifca")), with_clusters(clustered("ifca-mir"))]
    rows = [
        Row(source=0, defense="none", family="none"),
        Row(source=1, defense="none", family="none", base=0),
    ]
    entries = figure_entries(rows, records)
    assert all(entry.change is None for entry in entries if entry.row == 0)
    assert all(entry.change is not None for entry in entries if entry.row == 1)


def late(first: list[int | None]) -> ClusterResult:
    """Clients that first take part in these rounds, measured after rounds 5 and 10."""
    choice = [1, 0, 0, 0, 1, 0]
    before = [model if since == 1 else 0 for model, since in zip(choice, first, strict=True)]
    return result(before, choice).model_copy(update={"joined": first})


def test_clients_have_no_choice_before_participating() -> None:
    violations = late([7, 1, 1, 1, 1, None])
    assert model_choices(violations, violations.rounds[0]) == [None, 0, 0, 0, 1, None]
    assert model_choices(violations) == [1, 0, 0, 0, 1, None]


def test_the_first_participation_is_no_move() -> None:
    assert model_changes(late([7, 1, 1, 1, 1, 1])) == [[]]
    assert model_changes(result([0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0])) == [[0]]


def test_clients_that_do_not_participate_do_not_count() -> None:
    everybody, without = result([1, 0, 0, 0, 1, 0]), late([1, 1, 1, 1, 1, None])
    count = mean_of(figures_of([without]), "clients with the model", "minority")
    assert count.value == 1
    risk = mean_of(figures_of([without]), "mean risk of a client", "minority")
    assert risk.value == pytest.approx(0.7)
    assert mean_of(figures_of([everybody]), risk.metric, "minority").number < 0.7
    (agreement, of_all) = (
        mean_of(figures_of([result_of_case]), "agreement with the groups").value
        for result_of_case in (without, everybody)
    )
    assert agreement != of_all


def test_a_group_that_never_participates_has_no_model() -> None:
    assert models_of_groups(late([1, 1, 1, 1, None, None]))[1] is None


def test_older_studies_keep_their_shadow_settings() -> None:
    old = resolve_older_settings({"name": "x", "risk": {"shadows": 3, "epochs": 5}})
    assert old["risk"] == {"training": "continued", "sizes": "capped", "shadows": 3, "epochs": 5}
    new = {"risk": {"training": "repeated", "epochs": None, "sizes": "proportional"}}
    assert resolve_older_settings(new) == new
    assert resolve_older_settings({"name": "x"}) == {"name": "x"}
