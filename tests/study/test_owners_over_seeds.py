"""What a record says of source attacks over its seeds, and what is above guessing."""

import json
from pathlib import Path

import pytest

from fedaudit.core.errors import Damaged
from fedaudit.report.text.sources import label_sentence
from fedaudit.results.older import completed
from fedaudit.results.read import read_record
from fedaudit.results.record import write_record
from fedaudit.results.source_figures import SourceFigure
from fedaudit.results.sources import SourceResult
from fedaudit.results.sources_over_seeds import source_figures
from tests.report.records import source as found
from tests.report.records import with_sources


def figure(*runs: SourceResult, alpha: float = 0.05) -> SourceFigure:
    (one,) = source_figures(runs, alpha)
    return one


def test_one_run_is_its_own_figure() -> None:
    run = found()
    one = figure(run)
    assert (one.success.value, one.success.low, one.success.high) == (0.5, run.low, run.high)
    assert one.excess.value == pytest.approx(0.3)
    assert one.excess.low == pytest.approx(run.low - 0.2)
    assert one.success.method == "Clopper-Pearson 95%"
    assert one.over_label_baseline is not None
    assert (one.over_label_baseline.value, one.over_label_baseline.low) == (0.25, None)
    assert (one.guessing.p_value, one.guessing.adjusted) == (run.p_value, run.p_value)


def test_seeds_are_averaged_with_their_variances_summed() -> None:
    one = figure(*(found(right=right, seed=right) for right in (56, 60, 64)))
    assert one.seeds == [56, 60, 64]
    assert one.success.value == pytest.approx(0.5)
    runs = [found(right=right, seed=right) for right in (56, 60, 64)]
    below = sum((run.success - run.low) ** 2 for run in runs) ** 0.5 / 3
    above = sum((run.high - run.success) ** 2 for run in runs) ** 0.5 / 3
    assert one.success.low == pytest.approx(0.5 - below)
    assert one.excess.high == pytest.approx(0.3 + above)
    assert one.success.method == "Clopper-Pearson 95%, over these 3 runs"
    assert one.over_label_baseline is not None
    assert one.over_label_baseline.low is None
    assert one.success.further is not None
    assert one.success.further.method == "an interval over further runs needs 5 seeds, got 3"


def test_from_five_seeds_on_further_runs_have_students_interval() -> None:
    one = figure(*(found(right=right, seed=right) for right in (56, 58, 60, 62, 64)))
    # t with 4 degrees of freedom: 2.776; standard deviation of these, of 120.
    reach = 2.77645 * (10**0.5 / 120) / 5**0.5
    for mean, value in ((one.success, 0.5), (one.excess, 0.3), (one.over_label_baseline, 0.25)):
        assert mean is not None
        assert mean.further is not None
        assert mean.further.low == pytest.approx(value - reach, abs=1e-5)
        assert mean.further.high == pytest.approx(value + reach, abs=1e-5)


def test_two_seeds_that_agree_are_surer_than_one() -> None:
    runs = found(seed=1), found(seed=2, mixes=0.1 + 0.1 + 1e-17)
    one = figure(*runs)
    assert one.success.low == pytest.approx(0.5 - (0.5 - runs[0].low) / 2**0.5)
    assert one.excess.low == pytest.approx(0.3 - (0.5 - runs[0].low) / 2**0.5)


def test_p_values_of_seeds_are_combined_by_fisher() -> None:
    one = figure(found(seed=1, p_value=0.1), found(seed=2, p_value=0.2))
    # Two: p q (1 - log(p q)), by hand.
    assert one.guessing.p_value == pytest.approx(0.02 * (1 - -3.912023), abs=1e-6)


def test_each_question_is_corrected_over_the_attacks_by_holm() -> None:
    p_values = (0.01, 0.02, 0.03, 0.2)
    runs = [found(f"a{p}", p_value=p, class_p_value=0.001) for p in p_values]
    figures = source_figures(runs, 0.05)
    # 4 x 0.01, then 3 x 0.02, which 2 x 0.03 does not fall below, then 0.2 itself.
    assert [one.guessing.adjusted for one in figures] == pytest.approx([0.04, 0.06, 0.06, 0.2])
    assert [one.above_guessing for one in figures] == [True, False, False, False]
    # The other question is a family of its own, and passes only above guessing.
    assert all(one.class_mixes.significant for one in figures)
    assert [one.above_mixes for one in figures] == [True, False, False, False]


def test_the_error_is_the_studys_own() -> None:
    assert figure(found(p_value=0.02)).above_guessing
    assert not figure(found(p_value=0.02), alpha=0.01).above_guessing


def test_a_test_that_finds_something_needs_the_interval_too() -> None:
    one = figure(found(right=30, mixes=0.24))
    assert one.above_guessing
    assert one.class_mixes.significant
    assert not one.above_mixes


@pytest.mark.parametrize(
    ("change", "two_sided", "above"),
    [(0.25, 0.08, True), (0.25, 0.2, False), (-0.25, 0.001, False)],
)
def test_the_label_distribution_baseline_is_beaten_from_one_side_only(
    change: float, two_sided: float, above: bool
) -> None:
    one = figure(
        found(
            label_baseline=0.5 - change,
            label_baseline_change=change,
            label_baseline_p_value=two_sided,
        )
    )
    assert one.label_baseline_test is not None
    assert one.label_baseline_test.p_value == (two_sided / 2 if change > 0 else 1.0)
    assert one.above_label_baseline is above


def test_an_older_baseline_by_count_is_not_read_as_the_baseline() -> None:
    document = found().model_dump(mode="json")
    names = ("label_baseline", "label_baseline_change", "label_baseline_p_value")
    for old, new in zip(("blind", "blind_change", "blind_p_value"), names, strict=True):
        document[old] = document.pop(new)
    run = SourceResult.model_validate(document)
    assert (run.label_baseline, run.label_baseline_p_value) == (None, None)
    one = figure(run)
    assert (one.label_baseline, one.over_label_baseline) == (None, None)
    assert (one.label_baseline_test, one.above_label_baseline) == (None, None)
    record = with_sources(run, found("other"))
    assert "no label-distribution baseline" in label_sentence(record)
    written = one.model_dump(mode="json") | {"blind": 0.2, "above_blind": True}
    assert SourceFigure.model_validate(written) == one


def test_a_baseline_without_its_test_is_shown_and_nothing_is_said_to_be_above_it() -> None:
    one = figure(found(label_baseline_p_value=None), found(seed=2, label_baseline_p_value=None))
    assert one.label_baseline == pytest.approx(0.25)
    assert (one.label_baseline_test, one.above_label_baseline) == (None, None)


def test_every_attack_defense_and_view_has_its_figure() -> None:
    runs = [found(), found(defense="dp-sgd"), found(view="globals"), found(seed=2)]
    figures = source_figures(runs, 0.05)
    settings = [(one.defense, one.view, one.seeds) for one in figures]
    assert settings == [
        ("none", "uploads", [1, 2]),
        ("dp-sgd", "uploads", [1]),
        ("none", "globals", [1]),
    ]


def test_an_older_record_is_completed_with_its_figures(tmp_path: Path) -> None:
    record = completed(with_sources(found(seed=1), found(seed=2, right=70)))
    path = tmp_path / "old.json"
    document = json.loads(record.model_dump_json())
    del document["source_figures"]
    path.write_text(json.dumps(document))
    old = read_record(path)
    assert not old.source_figures
    assert completed(old) == record
    assert completed(record) is record


def test_figures_of_other_attacks_than_the_records_are_refused(tmp_path: Path) -> None:
    record = with_sources(found())
    other = source_figures([found("another")], 0.05)
    write_record(record.model_copy(update={"source_figures": other}), tmp_path / "bad.json")
    with pytest.raises(Damaged, match="attacks and seeds in sources"):
        read_record(tmp_path / "bad.json")
