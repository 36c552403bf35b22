"""Source inference over several seeds."""

from pathlib import Path

import pytest

from fedaudit.core.errors import Damaged
from fedaudit.evaluation.source import SourceEvaluation
from fedaudit.report.sources import SourceAttack, attacks_in
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.read import read_record
from fedaudit.results.record import write_record
from tests.report.records import over_runs, with_sources
from tests.report.records import source as source_run


def figure(*runs: SourceEvaluation, alpha: float = 0.05) -> SourceAttack:
    (attack,) = figures(*runs, alpha=alpha)
    return attack


def figures(*runs: SourceEvaluation, alpha: float = 0.05) -> list[SourceAttack]:
    return attacks_in(over_runs(*runs, alpha=alpha))


def p_of(estimate: Estimate | None) -> float | None:
    test = None if estimate is None else estimate.test()
    return None if test is None else test.p_value


def adjusted(estimate: Estimate) -> float | None:
    test = estimate.test()
    return None if test is None else test.adjusted


def low(run: SourceEvaluation) -> float:
    return run.estimates[0].low or 0.0


def high(run: SourceEvaluation) -> float:
    return run.estimates[0].high or 0.0


def test_a_single_run_keeps_its_estimate() -> None:
    run = source_run()
    attack = figure(run)
    assert (attack.success.value, attack.success.low, attack.success.high) == (
        0.5,
        low(run),
        high(run),
    )
    assert attack.excess.value == pytest.approx(0.3)
    assert attack.excess.low == pytest.approx(low(run) - 0.2)
    assert attack.success.method == "Clopper-Pearson 95%"
    assert attack.over_baseline is not None
    assert (attack.over_baseline.value, attack.over_baseline.low) == (0.25, None)
    assert (p_of(attack.success), adjusted(attack.success)) == (1 / 1001, 1 / 1001)


def test_seeds_are_averaged_with_their_variances_summed() -> None:
    attack = figure(*(source_run(right=right, seed=right) for right in (56, 60, 64)))
    assert attack.success.value == pytest.approx(0.5)
    runs = [source_run(right=right, seed=right) for right in (56, 60, 64)]
    below = sum((run.estimates[0].number - low(run)) ** 2 for run in runs) ** 0.5 / 3
    above = sum((high(run) - run.estimates[0].number) ** 2 for run in runs) ** 0.5 / 3
    assert attack.success.low == pytest.approx(0.5 - below)
    assert attack.excess.high == pytest.approx(0.3 + above)
    assert attack.success.method == "Clopper-Pearson 95%, over these 3 runs"
    assert attack.over_baseline is not None
    assert attack.over_baseline.low is None
    assert attack.success.further is not None
    assert attack.success.further.method == "an interval over further runs needs 5 seeds, got 3"


def test_five_seeds_give_a_student_t_interval_for_further_runs() -> None:
    attack = figure(*(source_run(right=right, seed=right) for right in (40, 50, 60, 70, 80)))
    # t with 4 degrees of freedom: 2.776; standard deviation of these, of 120.
    reach = 2.77645 * (250**0.5 / 120) / 5**0.5
    for mean, value in ((attack.success, 0.5), (attack.excess, 0.3), (attack.over_baseline, 0.25)):
        assert mean is not None
        assert mean.further is not None
        assert mean.further.low == pytest.approx(value - reach, abs=1e-5)
        assert mean.further.high == pytest.approx(value + reach, abs=1e-5)


def test_two_seeds_that_agree_have_a_smaller_p_value_than_one() -> None:
    runs = source_run(seed=1), source_run(seed=2, mixes=0.1 + 0.1 + 1e-17)
    attack = figure(*runs)
    assert attack.success.low == pytest.approx(0.5 - (0.5 - low(runs[0])) / 2**0.5)
    assert attack.excess.low == pytest.approx(0.3 - (0.5 - low(runs[0])) / 2**0.5)


def test_p_values_of_seeds_are_combined_by_fisher() -> None:
    attack = figure(source_run(seed=1, p_value=0.1), source_run(seed=2, p_value=0.2))
    # Two: p q (1 - log(p q)), by hand.
    assert p_of(attack.success) == pytest.approx(0.02 * (1 - -3.912023), abs=1e-6)


def test_each_question_is_corrected_over_the_attacks_by_holm() -> None:
    p_values = (0.01, 0.02, 0.03, 0.2)
    runs = [source_run(f"a{p}", p_value=p, class_p_value=0.001) for p in p_values]
    attacks = figures(*runs)
    # 4 x 0.01, then 3 x 0.02, which 2 x 0.03 does not fall below, then 0.2 itself.
    assert [adjusted(attack.success) for attack in attacks] == pytest.approx(
        [0.04, 0.06, 0.06, 0.2]
    )
    assert [attack.above_guessing for attack in attacks] == [True, False, False, False]
    # The other question is a family of its own, and passes only above guessing.
    assert all(attack.excess.significant for attack in attacks)
    assert [attack.above_labels for attack in attacks] == [True, False, False, False]


def test_the_error_level_is_that_of_the_study() -> None:
    assert figure(source_run(p_value=0.02)).above_guessing
    assert not figure(source_run(p_value=0.02), alpha=0.01).above_guessing


def test_a_significant_test_also_needs_the_interval() -> None:
    attack = figure(source_run(right=30, mixes=0.24))
    assert attack.above_guessing
    assert attack.excess.significant
    assert not attack.above_labels


@pytest.mark.parametrize(
    ("change", "two_sided", "above"),
    [(0.25, 0.08, True), (0.25, 0.2, False), (-0.25, 0.001, False)],
)
def test_the_test_against_the_label_distribution_baseline_is_one_sided(
    change: float, two_sided: float, above: bool
) -> None:
    attack = figure(source_run(baseline=0.5 - change, baseline_p=two_sided))
    assert attack.over_baseline is not None
    assert p_of(attack.over_baseline) == (two_sided / 2 if change > 0 else 1.0)
    assert above_chance(attack.over_baseline) is above


def test_a_record_without_the_baseline_has_no_figure_over_it() -> None:
    run = source_run(baseline=None)
    attack = figure(run)
    assert attack.over_baseline is None


def test_an_untested_baseline_is_shown_without_comparison() -> None:
    attack = figure(source_run(baseline_p=None), source_run(seed=2, baseline_p=None))
    assert attack.over_baseline is not None
    assert attack.over_baseline.level == pytest.approx(0.25)
    assert (p_of(attack.over_baseline), attack.over_baseline.significant) == (None, None)


def test_every_attack_defense_and_view_has_its_figure() -> None:
    runs = [
        source_run(),
        source_run(defense="dp-sgd"),
        source_run(view="globals"),
        source_run(seed=2),
    ]
    settings = [(attack.success.defense, attack.success.view) for attack in figures(*runs)]
    assert settings == [
        ("none", "uploads"),
        ("dp-sgd", "uploads"),
        ("none", "globals"),
    ]


def test_figures_of_other_attacks_than_the_records_are_refused(tmp_path: Path) -> None:
    record = with_sources(source_run())
    other = source_run("another").estimates
    write_record(record.model_copy(update={"estimates": other}), tmp_path / "bad.json")
    with pytest.raises(Damaged, match="different attacks or seeds"):
        read_record(tmp_path / "bad.json")
