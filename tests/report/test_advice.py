"""Advice of a report from the leak ladder."""

import re

import pytest

from fedaudit.report.advice import advice
from fedaudit.report.first import first_screen
from fedaudit.report.page import report_html
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.ladder import loss_gap, read_ladder, strongest_upload_attack
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from results.archives import unpacked
from tests.estimates import changed, replace_estimates
from tests.report.records import record
from tests.report.seen import must


def federation(auc: float | None = None, defense: str = "none", **parts: object) -> Record:
    """Return a record with all inputs of a rung, optionally with one AUC for all attacks."""
    base_record = record(defenses=((defense, 1.0),))

    def moved(estimate: Estimate) -> Estimate:
        if estimate.metric != "auc" or auc is None:
            return estimate
        return changed(estimate, value=auc, low=auc - 0.01, high=auc + 0.01)

    findings = [moved(estimate) for estimate in base_record.findings]
    return changed(replace_estimates(base_record, findings), **parts)


def expected(record: Record) -> float:
    gap = must(loss_gap(record))
    return read_ladder().uploads.at(gap)


def test_advice_states_the_expected_and_the_measured_auc() -> None:
    standard = federation()
    as_expected = federation(auc=expected(standard))
    suggestion = must(advice(as_expected))
    assert f"{loss_gap(as_expected):.3f} standard deviations" in suggestion.place
    assert f"Here it is {expected(standard):.3f}" in suggestion.place
    assert suggestion.place.endswith("as expected.")
    text = report_html(as_expected)
    assert "Compared with other federations" in text


def test_advice_mentions_deviation_from_the_expected_auc() -> None:
    expected_auc = expected(federation())
    spread = read_ladder().uploads.spread
    above, below = (
        must(advice(federation(auc=expected_auc + far))) for far in (1.5 * spread, -1.5 * spread)
    )
    assert "more than expected: in nine of ten" in above.place
    assert below.place.endswith("less than expected.")
    with_one = must(advice(federation(auc=expected_auc - 1.5 * spread, defense="cofedmid")))
    assert "less than expected, with cofedmid" in with_one.place


def test_advice_suggests_no_second_defense() -> None:
    undefended, defended = (must(advice(federation(0.9, name))) for name in ("none", "cofedmid"))
    kinds = [point.partition(":")[0] for point in undefended.changes]
    assert "Fewer local epochs" in kinds
    assert "DP-SGD" in kinds
    assert all(re.search(r"AUC 0\.\d{3} → 0\.\d{3}, test accuracy", p) for p in undefended.changes)
    assert set(undefended.changes) - set(defended.changes) == {
        point for point in undefended.changes if point.startswith(("DP-SGD", "Clipping"))
    }


def test_advice_lists_only_possible_and_effective_changes() -> None:
    once = must(advice(federation(0.9, config={"training": {"epochs": 1, "rounds": 1}})))
    assert not any(point.startswith("Fewer") for point in once.changes)
    least = must(advice(federation(auc=0.52)))
    assert least.changes == ()


@pytest.mark.parametrize(
    "parts",
    [
        {"trajectories": []},
        {"evaluation": "redraw"},
        {"null_members": True},
        {"view": changed(record().view, name="sum")},
    ],
)
def test_a_record_without_required_parts_gets_no_advice(parts: dict[str, object]) -> None:
    without = changed(federation(), **parts)
    assert advice(without) is None
    assert "Compared with other federations" not in report_html(without)


def test_advice_requires_all_four_ladder_attacks() -> None:
    standard_record = federation()
    assert strongest_upload_attack(standard_record) is not None
    fewer = [
        estimate
        for estimate in standard_record.findings
        if estimate.attack in ("loss-series", "fedmia-1")
    ]
    assert advice(replace_estimates(standard_record, fewer)) is None


def test_the_final_view_is_compared_with_the_generalisation_gap() -> None:
    view = changed(record().view, name="final")
    suggestion = must(advice(federation(view=view, auc=0.6)))
    assert "of the final model is 11.0% higher" in suggestion.place
    assert (
        f"to {read_ladder().final.at(0.11) + read_ladder().final.spread:.2f} on the ladder"
        in suggestion.place
    )


def test_next_steps_start_with_the_cheapest_effective_change() -> None:
    leaking = federation(auc=0.95)
    suggestion = must(advice(leaking))
    helped = [change for change in read_ladder().changes if change.auc[0] - change.auc[1] >= 0.03]
    cheap = [
        change
        for change in helped
        if change.accuracy[0] - change.accuracy[1] <= 0.05 and change.accuracy[1] >= 0.2
    ]
    best_change = max(cheap, key=lambda change: change.auc[0] - change.auc[1])
    assert f"AUC {best_change.auc[0]:.3f} → {best_change.auc[1]:.3f}" in suggestion.step
    assert "see the section “Compared with other federations”" in suggestion.step, (
        "the page itself has it"
    )
    assert first_screen(leaking, summarise_verdict(leaking)).next[0] == suggestion.step
    hidden = federation(auc=0.5)
    assert suggestion.step not in first_screen(hidden, summarise_verdict(hidden)).next


@pytest.mark.parametrize("name", ["people-synthetic", "canaries-mnist", "attacker-location30"])
def test_people_canaries_and_malicious_clients_get_no_advice(
    name: str,
) -> None:
    folder = unpacked() / name
    assert advice(read_record(folder / f"{name}.json")) is None
