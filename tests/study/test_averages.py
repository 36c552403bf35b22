"""Selection of attacks for means, their direction, and the strongest attack."""

from collections.abc import Mapping

import numpy as np
import pytest

from docs.claims import comparing as claims_comparing
from docs.claims.comparing import counts
from docs.claims.data import Term, regimes
from docs.claims.data import Test as ClaimTest
from docs.claims.figures import FigureName
from fedaudit.results.aggregate import Value, Values, average_estimates, mean_over_seeds
from fedaudit.results.comparison import EVERY_ATTACK, STRONGEST_ATTACK, AttackEntry, Comparison
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ControlResult
from fedaudit.results.tradeoffs import (
    AttackKey,
    Direction,
    average_attacks,
    directions_of,
    strongest_attacks,
)
from fedaudit.study.comparing import (
    NO_SHARED_RUN,
    NO_UNDEFENDED_ROW,
    NOTHING_COUNTS,
    compare_records,
)
from tests.estimates import changed, estimate
from tests.study.compare_records import make_record, noise

FOUND, MISSED, INVERTED = 0.8, 0.52, 0.3
PLAIN = make_record(
    "plain",
    {"finds": {1: {0: FOUND}}, "misses": {1: {0: MISSED}}, "inverted": {1: {0: INVERTED}}},
    {1: 0.9},
    reach=0.04,
)


def auc(attack: str, value: float, reach: float = 0.04, seed: int | None = None) -> Estimate:
    return estimate(
        attack=attack,
        seed=seed,
        metric="auc",
        target=0,
        value=value,
        low=value - reach,
        high=value + reach,
        significant=value > 0.6,
    )


def one_run(value: float, reach: float = 0.02) -> Values:
    return {1: {0: Value(value, value - reach, value + reach, "DeLong 95%", True)}}


def entry(comparison: Comparison, row: int, attack: str = EVERY_ATTACK) -> AttackEntry:
    (entry_found,) = [
        e
        for e in comparison.entries
        if (e.row, e.attack, e.part, e.metric) == (row, attack, "inside", "auc")
    ]
    return entry_found


def defended(aucs: Mapping[str, float]) -> Comparison:
    values = {attack: {1: {0: value}} for attack, value in aucs.items()}
    return compare_records(
        [PLAIN, make_record("noise", values, {1: 0.9}, defense=noise(0.1), reach=0.04)]
    )


def test_attacks_count_above_chance_or_mirrored_below_it() -> None:
    figures = [auc("finds", FOUND), auc("misses", MISSED), auc("inverted", INVERTED)]
    directions = directions_of(figures)
    assert {key.attack: by_client[0] for key, by_client in directions.items()} == {
        "finds": 1,
        "misses": 0,
        "inverted": -1,
    }


def test_mirroring_requires_significance_after_correction() -> None:
    alone = auc("a", 0.45)
    assert alone.high is not None
    assert alone.high < 0.5
    assert directions_of([alone])[AttackKey("a", "mixed", "auc")][0] == -1
    many = directions_of([alone, *(auc(f"other {n}", 0.5) for n in range(9))])
    assert many[AttackKey("a", "mixed", "auc")][0] == 0


def test_chance_rarely_mirrors_any_of_ten_attacks() -> None:
    rng = np.random.default_rng(3)
    runs, reach = 300, 1.96 * 0.02
    wrong = 0
    for _ in range(runs):
        figures = [auc(f"{n}", 0.5 + 0.02 * rng.standard_normal(), reach) for n in range(10)]
        directions = directions_of(figures)
        wrong += any(-1 in by_client.values() for by_client in directions.values())
    # 2.5 % on this side; 5 % would be 15 of 300.
    assert wrong <= 15


def test_mirrored_means_without_leak_are_at_chance() -> None:
    rng = np.random.default_rng(4)
    signs: dict[str, dict[int | None, Direction]] = {"a": {0: 1}, "b": {0: -1}}
    means, folded = [], []
    for _ in range(2000):
        aucs = 0.5 + 0.03 * rng.standard_normal(2)
        averaged = average_attacks({"a": one_run(aucs[0]), "b": one_run(aucs[1])}, signs).values
        means.append(averaged[1][0].value)
        folded.append(np.abs(aucs - 0.5).mean() + 0.5)
    assert np.mean(means) == pytest.approx(0.5, abs=0.002)
    assert np.mean(folded) > 0.52, "folding each row by itself takes noise for a leak"


def test_mirroring_exchanges_the_limits() -> None:
    averaged = average_attacks({"b": {1: {0: Value(0.3, 0.25, 0.36, "")}}}, {"b": {0: -1}})
    value = averaged.values[1][0]
    assert (value.value, value.low, value.high) == pytest.approx((0.7, 0.64, 0.75))
    assert averaged.attacks == {0: ("b, mirrored",)}


def test_an_auc_further_below_chance_counts_as_a_larger_leak() -> None:
    further = defended({"finds": FOUND, "misses": MISSED, "inverted": 0.2})
    assert entry(further, 0).value == pytest.approx((0.8 + 0.7) / 2)
    assert entry(further, 1).value == pytest.approx((0.8 + 0.8) / 2)
    assert entry(further, 1).attacks == ["finds", "inverted, mirrored"]


def test_attacks_without_an_undefended_leak_are_excluded_from_the_mean() -> None:
    low, high = (
        entry(defended({"finds": 0.6, "misses": missed, "inverted": 0.4}), 1).value
        for missed in (0.1, 0.9)
    )
    assert low == high == pytest.approx(0.6)


def test_without_counted_attacks_there_is_no_mean() -> None:
    values = {"a": {1: {0: 0.52}}, "b": {1: {0: 0.5}}}
    quiet = compare_records(
        [
            make_record("plain", values, {1: 0.9}),
            make_record("x", values, {1: 0.9}, defense=noise(0.1)),
        ]
    )
    for row in (0, 1):
        assert (entry(quiet, row).value, entry(quiet, row).note) == (None, NOTHING_COUNTS)
    assert entry(quiet, 1).change is None


def test_without_an_undefended_row_there_is_no_mean() -> None:
    values = {"a": {1: {0: 0.8}}, "b": {1: {0: 0.8}}}
    rows = [make_record(f"{s}", values, {1: 0.9}, defense=noise(s)) for s in (0.1, 0.2)]
    assert entry(compare_records(rows), 1).note == NO_UNDEFENDED_ROW


def test_an_undefended_row_with_other_settings_selects_no_attacks() -> None:
    """The first row is the base of a row without an undefended one, and of its single attacks."""
    values = {"a": {1: {0: 0.8}}, "b": {1: {0: 0.8}}}
    rows = [
        make_record("short", values, {1: 0.9}),
        make_record("long-noise", values, {1: 0.9}, rounds=30, defense=noise(0.1)),
    ]
    comparison = compare_records(rows)
    assert comparison.rows[1].base == 0
    assert entry(comparison, 0).value == pytest.approx(0.8)
    lone = entry(comparison, 1)
    assert (lone.value, lone.change, lone.note) == (None, None, NO_UNDEFENDED_ROW)
    assert entry(comparison, 1, "a").change is not None
    # Its own undefended row decides, also one that finds nothing.
    quiet = make_record("long", {"a": {1: {0: 0.5}}, "b": {1: {0: 0.5}}}, {1: 0.9}, rounds=30)
    assert entry(compare_records([*rows, quiet]), 1).note == NOTHING_COUNTS


def test_mirroring_is_decided_only_by_the_same_settings() -> None:
    rows = [
        make_record("short", {"a": {1: {0: 0.1}}}, {1: 0.9}),
        make_record("long-noise", {"a": {1: {0: 0.4}}}, {1: 0.9}, rounds=30, defense=noise(0.1)),
    ]
    comparison = compare_records(rows)
    assert entry(comparison, 0, STRONGEST_ATTACK).attacks == ["a, mirrored"]
    assert entry(comparison, 1, STRONGEST_ATTACK).attacks == ["a"]
    assert entry(comparison, 1, STRONGEST_ATTACK).value == pytest.approx(0.4)


def test_a_mean_lists_the_clients_on_which_attacks_count() -> None:
    aucs = ({0: 0.8, 4: 0.5}, {0: 0.9, 4: 0.52}), ({0: 0.7, 4: 0.9}, {0: 0.6, 4: 0.9})
    plain, less = ({"a": {1: a}, "b": {1: b}} for a, b in aucs)
    comparison = compare_records(
        [
            make_record("plain", plain, {1: 0.9}),
            make_record("x", less, {1: 0.9}, defense=noise(0.1)),
        ]
    )
    for row, mean in ((0, 0.85), (1, 0.65)):
        entry_of_row = entry(comparison, row)
        assert (entry_of_row.clients, entry_of_row.targets) == ([0, 4], [0])
        assert entry_of_row.value == pytest.approx(mean)
        assert entry(comparison, row, "a").targets == [0, 4]
    change = entry(comparison, 1).change
    assert change is not None
    assert change.value == pytest.approx(0.65 - 0.85)


def test_a_change_over_fewer_clients_is_noted() -> None:
    plain = {"a": {1: {0: 0.8}}, "b": {1: {0: 0.8, 4: 0.8}}}
    less = {"a": {1: {0: 0.7, 4: 0.9}}, "b": {1: {0: 0.6, 4: 0.6}}}
    comparison = compare_records(
        [
            make_record("plain", plain, {1: 0.9}),
            make_record("x", less, {1: 0.9}, defense=noise(0.1)),
        ]
    )
    entry_of_row = entry(comparison, 1, "a")
    assert entry_of_row.targets == [0, 4]
    assert entry_of_row.note == "the change is over only client 0"
    assert entry(comparison, 0, "a").targets == [0]
    assert entry(comparison, 1, "b").note == ""


def test_a_mean_over_fewer_runs_is_noted() -> None:
    runs = {seed: {0: 0.8} for seed in (1, 2, 3)}
    less = {"a": runs, "b": {1: {0: 0.6}}}
    accuracy = dict.fromkeys(runs, 0.9)
    comparison = compare_records(
        [
            make_record("plain", {"a": runs, "b": runs}, accuracy),
            make_record("x", less, accuracy, defense=noise(0.1)),
        ]
    )
    assert entry(comparison, 1).value == pytest.approx(0.7)
    assert (entry(comparison, 1).seeds, entry(comparison, 0).seeds) == (1, 3)
    assert entry(comparison, 1).note == "over 1 of 3 runs: the others lack it"
    assert entry(comparison, 1, "b").note == "over 1 of 3 runs: the others lack it"
    for full in (
        entry(comparison, 0),
        entry(comparison, 1, "a"),
        entry(comparison, 1, STRONGEST_ATTACK),
    ):
        assert full.note == ""


def test_a_mean_of_attacks_without_common_runs_is_missing() -> None:
    runs = {seed: {0: 0.8} for seed in (1, 2)}
    less = {"a": {1: {0: 0.6}}, "b": {2: {0: 0.6}}}
    comparison = compare_records(
        [
            make_record("plain", {"a": runs, "b": runs}, {1: 0.9, 2: 0.9}),
            make_record("x", less, {1: 0.9, 2: 0.9}, defense=noise(0.1)),
        ]
    )
    entry_of_row = entry(comparison, 1)
    assert (entry_of_row.value, entry_of_row.attacks, entry_of_row.note) == (
        None,
        [],
        NO_SHARED_RUN,
    )


def test_a_mean_omits_seeds_without_value_and_foreign_limits() -> None:
    value = Value(0.6, 0.5, 0.7, "DeLong 95%", True)
    by_client: dict[int | None, Value] = {0: value}
    first: Values = {1: by_client, None: by_client}
    others: list[Values] = [{2: by_client}, {2: by_client, None: by_client}, {1: {4: value}}]
    for other in others:
        assert average_estimates([first, other]) == {}
    every: Values = {1: by_client, 2: by_client, None: by_client}
    some = average_estimates([every, first])
    assert list(some) == [1]
    mean = mean_over_seeds(some)
    assert mean is not None
    assert mean.seeds == 1
    assert list(average_estimates([every, every])) == [1, 2, None]
    # What a record says over its runs alone is averaged as it is.
    assert list(average_estimates([{None: by_client}, {None: by_client}])) == [None]


def test_claims_do_not_average_attacks_without_common_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = Value(0.6, 0.5, 0.7, "DeLong 95%", True)
    by_client: dict[int | None, Value] = {None: value}
    names = {attack: FigureName("auc", attack, "mixed", 0) for attack in ("a", "b")}
    values_by_name: dict[FigureName, Values] = {
        names["a"]: {1: by_client},
        names["b"]: {2: by_client, None: by_client},
    }
    monkeypatch.setattr(claims_comparing, "rows", lambda study, variant: values_by_name)
    monkeypatch.setattr(claims_comparing, "counts", lambda *_: {"a": 1, "b": 1})
    regime = regimes()["cofedmid-letters"]
    test = ClaimTest(one=Term(attacks=["a", "b"]), others=[], contrast="mixed")
    assert claims_comparing.figure_of(regime, test, test.one) is None
    values_by_name[names["b"]] = {1: by_client, 2: by_client, None: by_client}
    figure = claims_comparing.figure_of(regime, test, test.one)
    assert figure is not None
    assert (figure.value, figure.seeds) == (0.6, 1)


def test_an_attack_with_one_extreme_run_is_not_the_strongest() -> None:
    def runs(*values: float) -> Values:
        return {
            seed: {0: Value.without_limits(value, cancels=True)}
            for seed, value in enumerate(values)
        }

    figures = {"a": runs(0.6, 0.7, 0.8), "b": runs(0.7, 0.7, 0.75), "lucky": runs(0.99)}
    averaged = strongest_attacks(figures, {})
    assert averaged.attacks == {0: ("b",)}
    assert list(averaged.values) == [0, 1, 2]
    # Without an attack that has every run, those with the most are compared where they share any.
    parts: dict[str, Values] = {
        "a": {0: {0: Value.without_limits(0.9)}, 1: {0: Value.without_limits(0.5)}},
        "b": {1: {0: Value.without_limits(0.6)}, 2: {0: Value.without_limits(0.6)}},
        "lucky": {3: {0: Value.without_limits(0.99)}},
    }
    assert strongest_attacks(parts, {}).attacks == {0: ("b",)}
    values_by_attack: dict[str, Values] = {
        "a": {0: {0: Value.without_limits(0.6)}},
        "b": {1: {0: Value.without_limits(0.7)}},
    }
    assert strongest_attacks(values_by_attack, {}).attacks == {0: ("b",)}
    over: dict[str, Values] = {
        "a": {None: {0: Value.without_limits(0.6)}},
        "b": {None: {0: Value.without_limits(0.7)}},
    }
    assert strongest_attacks(over, {}).attacks == {0: ("b",)}


def test_means_over_attacks_have_no_significance_test() -> None:
    for row in (0, 1):
        comparison = defended({"finds": FOUND, "misses": MISSED, "inverted": INVERTED})
        assert entry(comparison, row, EVERY_ATTACK).by_test is None
        assert entry(comparison, row, STRONGEST_ATTACK).by_test is None
        assert entry(comparison, row, "finds").by_test is True
    assert entry(comparison, 0, STRONGEST_ATTACK).above is True


def test_estimates_with_a_failed_control_are_excluded_from_means() -> None:
    failed = ControlResult(
        control="untrained model", attack="finds", expected="it", value=0.7, passed=False
    )
    less = make_record("x", {a: {1: {0: 0.5}} for a in ("finds", "misses", "inverted")}, {1: 0.9})
    comparison = compare_records([changed(PLAIN, controls=[failed]), less])
    assert entry(comparison, 0).attacks == ["inverted, mirrored"]


def test_each_client_has_a_mean_over_its_own_attacks() -> None:
    plain = make_record(
        "plain", {"a": {1: {0: 0.8, 4: 0.5}}, "b": {1: {0: 0.5, 4: 0.9}}}, {1: 0.9}, reach=0.04
    )
    less = make_record(
        "x", {"a": {1: {0: 0.7, 4: 0.1}}, "b": {1: {0: 0.1, 4: 0.6}}}, {1: 0.9}, defense=noise(0.1)
    )
    mean_entry = entry(compare_records([plain, less]), 1)
    assert mean_entry.value == pytest.approx((0.7 + 0.6) / 2)
    assert mean_entry.change is not None
    assert mean_entry.change.value == pytest.approx((0.7 + 0.6) / 2 - (0.8 + 0.9) / 2)


def test_means_over_different_attacks_have_no_difference() -> None:
    values = {"a": {1: {0: 0.8}}, "b": {1: {0: 0.5}}}
    other = {"a": {1: {0: 0.5}}, "b": {1: {0: 0.8}}}
    rows = compare_records(
        [make_record("short", values, {1: 0.9}), make_record("long", other, {1: 0.9}, rounds=30)]
    )
    assert (entry(rows, 0).attacks, entry(rows, 1).attacks) == (["a"], ["b"])
    assert entry(rows, 1).change is None
    assert entry(rows, 1, "a").change is not None


def test_attacks_with_contradicting_runs_do_not_count() -> None:
    figures = [auc("a", 0.8, seed=1), auc("a", 0.2, seed=2)]
    assert directions_of(figures)[AttackKey("a", "mixed", "auc")][0] == 0
    over = directions_of([*figures, auc("a", 0.8, seed=None)])
    assert over[AttackKey("a", "mixed", "auc")][0] == 1


def test_rates_count_by_their_test_and_are_not_mirrored() -> None:
    rates = [
        estimate(
            attack=name, metric="tpr@0.01", target=0, value=v, high=0.005, significant=significant
        )
        for name, v, significant in (("a", 0.001, True), ("b", 0.0, False))
    ]
    directions = directions_of(rates)
    assert [by_client[0] for by_client in directions.values()] == [1, 0]


def test_the_strongest_attack_is_chosen_once_for_all_runs() -> None:
    figures: dict[str, Values] = {
        "a": {1: {0: Value(0.9, 0.85, 0.92, "")}, 2: {0: Value(0.6, 0.5, 0.7, "")}},
        "b": {1: {0: Value(0.5, 0.1, 0.95, "")}, 2: {0: Value(0.8, 0.7, 0.9, "")}},
    }
    averaged = strongest_attacks(figures, {})
    assert averaged.attacks == {0: ("a",)}
    assert [averaged.values[seed][0].value for seed in (1, 2)] == [0.9, 0.6]
    assert [averaged.values[seed][0].high for seed in (1, 2)] == [0.95, 0.9]
    assert [averaged.values[seed][0].low for seed in (1, 2)] == [0.85, 0.5]


def test_the_strongest_attack_may_succeed_only_under_the_defense() -> None:
    comparison = defended({"finds": 0.6, "misses": 0.75, "inverted": 0.5})
    assert entry(comparison, 0, STRONGEST_ATTACK).attacks == ["finds"]
    assert entry(comparison, 1, STRONGEST_ATTACK).attacks == ["misses"]
    mirrored = defended({"finds": 0.6, "misses": 0.55, "inverted": 0.1})
    assert entry(mirrored, 1, STRONGEST_ATTACK).attacks == ["inverted, mirrored"]
    assert entry(mirrored, 1, STRONGEST_ATTACK).value == pytest.approx(0.9)


def test_claims_average_attacks_that_leak_undefended() -> None:
    attacks = ["loss-series", "avg-cosine", "fedmia-1", "fedmia-2", "fta-c", "fta-l", "seqmia"]
    term = Term(variant="cofedmid-pair", attacks=attacks)
    test = ClaimTest(one=term, others=[])
    location, letters = (
        counts(regimes()[f"cofedmid-{name}"], test, term) for name in ("location30", "letters")
    )
    assert location == {attack: 1 for attack in attacks if attack != "fta-l"}
    assert letters == {attack: -1 if attack.startswith("fta") else 1 for attack in attacks}
