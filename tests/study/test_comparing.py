"""Comparisons of defenses: leakage and accuracy."""

import math
from pathlib import Path

import pytest
from scipy.stats import t as student

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.results.aggregate import Value, Values, difference, mean_over_seeds
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    Front,
    write_comparison_file,
)
from fedaudit.results.read import read_comparison
from fedaudit.results.record import ControlResult, Record, write_record
from fedaudit.results.tradeoffs import lost_share
from fedaudit.study.comparing import compare_records, record_paths
from tests.estimates import changed, estimate
from tests.study.compare_records import PLAIN, STRONG, WEAK, make_record, noise

THREE = compare_records([PLAIN, WEAK, STRONG])


def entry(
    row: int, attack: str, part: str = "inside", comparison: Comparison = THREE
) -> AttackEntry:
    (entry_found,) = [
        e for e in comparison.entries if (e.row, e.attack, e.part) == (row, attack, part)
    ]
    return entry_found


def front(family: str, attack: str, comparison: Comparison = THREE) -> Front:
    (front_found,) = [f for f in comparison.fronts if (f.family, f.attack) == (family, attack)]
    return front_found


def test_rows_list_the_coalition_and_their_undefended_base() -> None:
    assert [row.defense for row in THREE.rows] == [
        "none",
        "gradient-noise (sigma 0.01)",
        "gradient-noise (sigma 0.1)",
    ]
    assert [row.coalition for row in THREE.rows] == [None, [0, 1], [0, 1]]
    assert [row.base for row in THREE.rows] == [None, 0, 0]
    assert THREE.rows[1].settings == {}


def test_each_setting_has_its_own_undefended_row() -> None:
    values = {"a": {1: {0: 0.7}}}
    records = [
        make_record("short", values, {1: 0.9}),
        make_record("long", values, {1: 0.9}, rounds=30),
        make_record("long-noise", values, {1: 0.9}, rounds=30, defense=noise(0.1)),
        make_record("longer-noise", values, {1: 0.9}, rounds=90, defense=noise(0.1)),
    ]
    rows = compare_records(records).rows
    assert [row.base for row in rows] == [None, 0, 1, 0]
    assert [row.settings for row in rows] == [
        {"training.rounds": text} for text in ("10", "30", "30", "90")
    ]
    assert rows[2].coalition is None


def test_row_labels_include_chains_and_groups() -> None:
    defense = {
        **noise(0.1, 0),
        "chain": [{"name": "mixup", "options": {"alpha": 0.5}}],
        "also": [{"name": "client-dp", "clients": [3], "options": {"clip": 1}}],
    }
    row = compare_records(
        [PLAIN, make_record("x", {"a": {1: {0: 0.5}}}, {1: 0.9}, defense=defense)]
    ).rows[1]
    assert row.defense == "gradient-noise (sigma 0.1) + mixup (alpha 0.5), client-dp (clip 1)"
    assert row.coalition == [0, 3]


def test_row_labels_mention_undefended_reference_models() -> None:
    values = {"a": {1: {0: 0.7}}}
    names = []
    for kind in ("same", "none"):
        tables = {"references": {"count": 2, "defense": kind}, "shadow": {"defense": kind}}
        records = [make_record("x", values, {1: 0.9}, defense=noise(0.1), tables=tables), PLAIN]
        names.append(compare_records(records).rows[0].defense)
    defense = "gradient-noise (sigma 0.1)"
    assert names == [defense, f"{defense}; undefended shadow; undefended references"]


def test_differences_are_paired_over_seeds() -> None:
    change = entry(1, "a").change
    assert change is not None
    # Client 0: 0.70 - 0.80 and 0.76 - 0.84.
    assert change.value == pytest.approx(-0.09)
    # Each AUC is known to 0.02, their difference in a seed to 0.02 times the root of 2, and the
    # mean of two seeds to half of that times the root of 2.
    assert change.low == pytest.approx(-0.09 - 0.02)
    assert change.high == pytest.approx(-0.09 + 0.02)
    assert (change.runs, change.method) == (2, "paired by seed, over these 2 runs")
    assert change.further is not None
    assert change.further.low is None
    assert change.further.method == "an interval over further runs needs 5 seeds, got 2"


def test_changes_over_five_seeds_have_an_interval_for_further_runs() -> None:
    gaps = (-0.3, 0.1, -0.2, 0.0, -0.1)
    ours: Values = {s: {0: Value(0.7 + gap, 0.6, 0.8, "a", True)} for s, gap in enumerate(gaps)}
    base: Values = {s: {0: Value(0.7, 0.6, 0.8, "a", True)} for s in range(5)}
    change = difference(ours, base)
    assert change is not None
    assert change.further is not None
    reach = student.ppf(0.975, 4) * math.sqrt(0.025) / math.sqrt(5)
    assert change.further.low == pytest.approx(-0.1 - reach)
    assert change.further.high == pytest.approx(-0.1 + reach)
    assert change.further.method == "Student t over 5 seeds 95%"


def test_correlated_errors_do_not_narrow_with_seeds() -> None:
    """Their errors are the same in every run, or all to one side."""
    for cancels, reach in ((True, 0.1 * math.sqrt(2) / 2), (False, 0.1 * math.sqrt(2))):
        values_by_seed: Values = {s: {0: Value(0.7, 0.6, 0.8, "a", cancels)} for s in range(4)}
        change = difference(values_by_seed, values_by_seed)
        assert change is not None
        assert (change.low, change.high) == pytest.approx((-reach, reach))


def test_a_constant_change_has_no_interval() -> None:
    values_by_seed: Values = {1: {0: Value.without_limits(0.5)}, 2: {0: Value.without_limits(0.75)}}
    other: Values = {1: {0: Value.without_limits(0.25)}, 2: {0: Value.without_limits(0.5)}}
    change = difference(values_by_seed, other)
    assert change is not None
    assert (change.value, change.low) == (0.25, None)


def test_a_single_seed_combines_both_intervals() -> None:
    change = difference({1: {0: Value(0.7, 0.6, 0.75, "")}}, {1: {0: Value(0.5, 0.4, 0.53, "")}})
    assert change is not None
    assert change.value == pytest.approx(0.2)
    assert change.low == pytest.approx(0.2 - math.hypot(0.1, 0.03))
    assert change.high == pytest.approx(0.2 + math.hypot(0.05, 0.1))
    assert change.runs == 0
    assert "not paired" in change.method


def test_without_a_common_seed_or_client_there_is_no_difference() -> None:
    assert (
        difference({1: {0: Value.without_limits(0.7)}}, {2: {0: Value.without_limits(0.7)}}) is None
    )
    assert (
        difference({1: {0: Value.without_limits(0.7)}}, {1: {1: Value.without_limits(0.7)}}) is None
    )


def test_clients_of_one_seed_are_averaged_with_their_limits() -> None:
    """They share a model, so that their errors need not cancel."""
    values_by_seed: Values = {
        1: {0: Value(0.7, 0.6, 0.8, "DeLong 95%"), 1: Value(0.5, 0.4, 0.6, "DeLong 95%")}
    }
    mean = mean_over_seeds(values_by_seed)
    assert mean is not None
    assert mean.value == pytest.approx(0.6)
    assert mean.low == pytest.approx(0.6 - 0.1)
    assert mean.method == "DeLong 95%, limits of 2 clients averaged"
    assert mean_over_seeds({}) is None


def test_clients_inside_and_outside_the_coalition_are_separate() -> None:
    ours, others = entry(2, "a"), entry(2, "a", "outside")
    assert (ours.targets, others.targets) == ([0], [4])
    assert ours.value == pytest.approx(0.55)
    assert others.value == pytest.approx(0.80)
    assert others.change is not None
    # Client 4 without anybody's defense: 0.70 and 0.72.
    assert others.change.value == pytest.approx(0.09)


def test_the_undefended_row_is_repeated_for_each_coalition() -> None:
    entries = [e for e in THREE.entries if (e.row, e.part, e.attack) == (0, "reference", "a")]
    assert {tuple(e.targets): e.value for e in entries} == {
        (0,): pytest.approx(0.82),
        (4,): pytest.approx(0.71),
    }


def test_the_mean_covers_attacks_that_leak_undefended_in_every_row() -> None:
    # Attack b is not significant undefended.
    assert entry(2, EVERY_ATTACK).value == pytest.approx(0.55)
    assert entry(0, EVERY_ATTACK).value == pytest.approx((0.82 + 0.71) / 2)
    assert entry(0, EVERY_ATTACK).attacks == ["a"]
    alone = make_record("alone", {"a": {1: {0: 0.5}}}, {1: 0.9})
    assert all(e.attack != EVERY_ATTACK for e in compare_records([PLAIN, alone]).entries)


def test_a_refused_figure_keeps_its_reason() -> None:
    figure = PLAIN.findings[0].model_copy(update={"value": None, "note": "inconclusive: needs 9"})
    bare = PLAIN.model_copy(update={"estimates": [figure]})
    refused = entry(0, "a", comparison=compare_records([bare, WEAK]))
    assert (refused.value, refused.note) == (None, "inconclusive: needs 9")


def test_above_chance_requires_test_and_interval() -> None:
    wide = make_record("wide", {"a": {1: {0: 0.7}}}, {1: 0.9}, defense=noise(0.1), reach=0.25)
    compare = compare_records([PLAIN, wide])
    for row, attack, counts_as_above, by_test in ((0, "a", True, True), (0, "b", False, False)):
        entry_of_row = entry(row, attack, comparison=compare)
        assert (entry_of_row.above, entry_of_row.by_test) == (counts_as_above, by_test)
    entry_of_row = entry(1, "a", comparison=compare)
    # The test finds 0.7 above guessing, and its interval from 0.45 on does not.
    assert (entry_of_row.above, entry_of_row.by_test) == (False, True)


def test_a_figure_without_values_appears_once_per_row() -> None:
    note = "inconclusive: needs 500 more"
    refused = estimate(attack="a", contrast="unseen", metric="tpr@0.001", value=None, note=note)
    records = [
        record.model_copy(
            update={
                "estimates": [
                    *record.findings,
                    refused.model_copy(update={"defense": label, "target": 0, "seed": 1}),
                ]
            }
        )
        for record, label in ((PLAIN, "none"), (WEAK, "gradient-noise"), (STRONG, "gradient-noise"))
    ]
    entries = [
        e
        for e in compare_records(records).entries
        if e.metric == "tpr@0.001" and e.part == "inside"
    ]
    assert [(e.row, e.value, e.note) for e in entries] == [(row, None, note) for row in range(3)]


def test_accuracy_changes_by_seed() -> None:
    change = THREE.on("utility")[2].change
    assert change is not None
    assert change.value == pytest.approx(-0.2)
    assert THREE.on("utility")[0].change is None


def test_a_front_contains_all_strengths_and_no_defense() -> None:
    front_of_noise = front("gradient-noise", "a")
    assert [point.row for point in front_of_noise.points] == [0, 1, 2]
    # Twice the distance of client 0's AUC from a half, means over seeds.
    assert [p.leakage for p in front_of_noise.points] == pytest.approx([0.64, 0.46, 0.10])
    assert [p.error for p in front_of_noise.points] == pytest.approx([0.09, 0.10, 0.29])
    assert all(point.on_front for point in front_of_noise.points)
    area = 0.36 * 0.91 + (0.64 - 0.46) * 0.90 + (0.46 - 0.10) * 0.71
    assert front_of_noise.hypervolume == pytest.approx(area)
    assert front_of_noise.gain == pytest.approx(area - 0.36 * 0.91)
    assert front("none", "a").gain is None


def test_a_front_without_undefended_row_has_no_relative_values() -> None:
    values = {"a": {1: {0: 0.7}}}
    records = [
        make_record("short", values, {1: 0.5}),
        make_record("long-weak", values, {1: 0.9}, rounds=30, defense=noise(0.01)),
        make_record("long-strong", values, {1: 0.8}, rounds=30, defense=noise(0.1)),
    ]
    front_of_noise = front("gradient-noise", "a", compare_records(records))
    assert [point.row for point in front_of_noise.points] == [1, 2]
    assert (front_of_noise.gain, front_of_noise.gain_low) == (None, None)
    assert [point.lost for point in front_of_noise.points] == [None, None]
    longer = make_record("long", values, {1: 0.95}, rounds=30)
    front_with_longer = front("gradient-noise", "a", compare_records([*records, longer]))
    assert [point.row for point in front_with_longer.points] == [3, 1, 2]
    assert front_with_longer.gain is not None
    assert front_with_longer.points[1].lost == pytest.approx(0.05 / 0.95)


def test_the_strongest_attack_is_the_same_in_all_runs() -> None:
    values = {"a": {1: {0: 0.9}, 2: {0: 0.6}}, "b": {1: {0: 0.5}, 2: {0: 0.8}}}
    record = make_record("x", values, {1: 0.9, 2: 0.9}, defense=noise(0.1))
    strongest = front("gradient-noise", STRONGEST_ATTACK, compare_records([PLAIN, record]))
    # Attack a by its mean of 0.75, whichever is the larger one in a run.
    assert strongest.points[1].leakage == pytest.approx((0.8 + 0.2) / 2)


def test_a_front_point_has_limits_and_the_share_of_lost_accuracy() -> None:
    point = front("gradient-noise", "a").points[2]
    assert point.leakage_limits is not None
    assert point.error_limits is not None
    # AUCs of 0.55, each known to 0.02, and their mean to 0.02 over the root of 2.
    assert point.leakage_limits.low == pytest.approx(0.10 - 0.04 / math.sqrt(2))
    assert point.leakage_limits.high == pytest.approx(0.10 + 0.04 / math.sqrt(2))
    assert point.error_limits.low == pytest.approx(0.28)
    assert point.error_limits.high == pytest.approx(0.30)
    # These records do not state their classes, so that guessing is taken to be never right.
    assert point.lost == pytest.approx(0.2 / 0.91)
    assert front("none", "a").points[0].lost == 0


@pytest.mark.parametrize(
    ("undefended", "error", "guess", "lost"),
    [
        (0.961, 0.983, 0.01, 0.022 / 0.029),
        (0.5, 0.95, 0.1, 1.0),
        (0.5, 0.45, None, -0.1),
        (0.9, 0.95, 0.1, None),
        (0.95, 0.9, 0.1, None),
    ],
)
def test_lost_share_is_relative_to_accuracy_above_chance(
    undefended: float, error: float, guess: float | None, lost: float | None
) -> None:
    assert lost_share(undefended, error, guess) == (None if lost is None else pytest.approx(lost))


def test_without_a_defense_there_is_no_front() -> None:
    assert compare_records([PLAIN, PLAIN]).fronts == []


def test_a_record_with_unknown_settings_can_be_compared() -> None:
    foreign = WEAK.model_copy(update={"config": {"federation": {"clients": 9}}})
    row = compare_records([PLAIN, foreign]).rows[1]
    assert (row.defense, row.coalition) == ("gradient-noise", None)


def test_a_comparison_needs_two_records() -> None:
    with pytest.raises(BadInput, match="at least 2 records, got 1"):
        compare_records([PLAIN])


def test_a_comparison_reads_back_and_finds_its_records(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    write_record(PLAIN, folder / "record.json")
    write_record(WEAK, tmp_path / "weak.json")
    comparison = compare_records([PLAIN, WEAK], ["plain/record.json", "weak.json"])
    path = tmp_path / "comparison.json"
    write_comparison_file(comparison, path)
    assert read_comparison(path) == comparison
    assert record_paths(path) == [folder / "record.json", tmp_path / "weak.json"]
    (tmp_path / "weak.json").unlink()
    with pytest.raises(BadInput, match="needs the record 'weak', which is not at"):
        record_paths(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "is not a comparison"),
        ('{"format": "fedaudit-comparison", "version": 1}', "of version 1"),
        ('{"format": "fedaudit-comparison", "version": 2}', "does not fit"),
        ("[", "not a complete JSON document"),
    ],
)
def test_an_invalid_comparison_file_raises(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(text)
    with pytest.raises((BadInput, Damaged), match=sentence):
        read_comparison(path)


def test_fair_contrasts_take_precedence_in_comparisons() -> None:
    def with_unfair(record: Record) -> Record:
        unfair = [
            changed(estimate, contrast="other_client", fair=False) for estimate in record.findings
        ]
        return changed(record, estimates=[*record.estimates, *unfair])

    values = {"a": {1: {0: 0.7}}}
    records = [
        with_unfair(make_record("plain", values, {1: 0.9})),
        with_unfair(make_record("noise", values, {1: 0.9}, defense=noise(0.1))),
    ]
    assert {entry.contrast for entry in compare_records(records).entries} == {"unseen"}


def test_estimates_with_a_failed_control_are_not_above_chance() -> None:
    failed = ControlResult(
        control="untrained model", attack="a", expected="it", value=0.7, passed=False
    )
    doubtful = changed(PLAIN, controls=[failed])
    assert entry(0, "a", comparison=THREE).above is True
    assert entry(0, "a", comparison=compare_records([doubtful, WEAK])).above is False
