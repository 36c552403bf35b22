"""Advice of a report from the leak ladder."""

import re

import pytest

from fedaudit.report.advice import advice
from fedaudit.report.first import first_screen
from fedaudit.report.page import report_html
from fedaudit.report.text.verdict import verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.ladder import ladder, loss_gap, strongest
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from results.archives import unpacked
from tests.estimates import changed, replace_estimates
from tests.report.records import record
from tests.report.seen import must


def federation(auc: float | None = None, defense: str = "none", **parts: object) -> Record:
    """One that has what a rung takes; its attacks find what they do, or all the same."""
    made = record(defenses=((defense, 1.0),))

    def moved(one: Estimate) -> Estimate:
        if one.metric != "auc" or auc is None:
            return one
        return changed(one, value=auc, low=auc - 0.01, high=auc + 0.01)

    findings = [moved(one) for one in made.findings]
    return changed(replace_estimates(made, findings), **parts)


def expected(of: Record) -> float:
    gap = must(loss_gap(of))
    return ladder().uploads.at(gap)


def test_advice_states_the_expected_and_the_measured_auc() -> None:
    usual = federation()
    there = federation(auc=expected(usual))
    found = must(advice(there))
    assert f"{loss_gap(there):.3f} standard deviations" in found.place
    assert f"Here it is {expected(usual):.3f}" in found.place
    assert found.place.endswith("as expected.")
    text = report_html(there)
    assert "On the leak ladder" in text


def test_advice_mentions_deviation_from_the_expected_auc() -> None:
    usual = expected(federation())
    spread = ladder().uploads.spread
    above, below = (
        must(advice(federation(auc=usual + far))) for far in (1.5 * spread, -1.5 * spread)
    )
    assert "more than in nine of ten" in above.place
    assert below.place.endswith("less than expected.")
    with_one = must(advice(federation(auc=usual - 1.5 * spread, defense="cofedmid")))
    assert "less than expected, with cofedmid" in with_one.place


def test_advice_suggests_no_second_defense() -> None:
    undefended, defended = (must(advice(federation(0.9, name))) for name in ("none", "cofedmid"))
    kinds = [point.partition(":")[0] for point in undefended.lowered]
    assert "Fewer local epochs" in kinds
    assert "DP-SGD" in kinds
    assert all(re.search(r"AUC 0\.\d{3} → 0\.\d{3}, test accuracy", p) for p in undefended.lowered)
    assert set(undefended.lowered) - set(defended.lowered) == {
        point for point in undefended.lowered if point.startswith(("DP-SGD", "Clipping"))
    }


def test_advice_lists_only_possible_and_effective_changes() -> None:
    once = must(advice(federation(0.9, config={"training": {"epochs": 1, "rounds": 1}})))
    assert not any(point.startswith("Fewer") for point in once.lowered)
    least = must(advice(federation(auc=0.52)))
    assert least.lowered == ()


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
    assert "On the leak ladder" not in report_html(without)


def test_advice_requires_all_four_ladder_attacks() -> None:
    made = federation()
    assert strongest(made) is not None
    fewer = [one for one in made.findings if one.attack in ("loss-series", "fedmia-1")]
    assert advice(replace_estimates(made, fewer)) is None


def test_the_final_view_is_compared_with_the_generalisation_gap() -> None:
    view = changed(record().view, name="final")
    found = must(advice(federation(view=view, auc=0.6)))
    assert "of the final model is 11.0% higher" in found.place
    assert f"to {ladder().final.at(0.11) + ladder().final.spread:.2f} on the ladder" in found.place


def test_next_steps_start_with_the_cheapest_effective_change() -> None:
    leaking = federation(auc=0.95)
    found = must(advice(leaking))
    helped = [one for one in ladder().changes if one.auc[0] - one.auc[1] >= 0.03]
    cheap = [
        one
        for one in helped
        if one.accuracy[0] - one.accuracy[1] <= 0.05 and one.accuracy[1] >= 0.2
    ]
    most = max(cheap, key=lambda one: one.auc[0] - one.auc[1])
    assert f"AUC {most.auc[0]:.3f} → {most.auc[1]:.3f}" in found.step
    assert "see the section “On the leak ladder”" in found.step, "the page itself has it"
    assert first_screen(leaking, verdict(leaking)).next[0] == found.step
    hidden = federation(auc=0.5)
    assert found.step not in first_screen(hidden, verdict(hidden)).next


@pytest.mark.parametrize("name", ["people-synthetic", "canaries-mnist", "attacker-location30"])
def test_people_canaries_and_malicious_clients_get_no_advice(
    name: str,
) -> None:
    kept = unpacked() / name
    assert advice(read_record(kept / f"{name}.json")) is None
