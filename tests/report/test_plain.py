import pytest

from fedaudit.report.plain import as_text, verdict
from fedaudit.study.record import ControlResult, Figure, Record
from tests.report.records import CONTROLS, record

NOTHING = (0.02, 0.03, 0.0)
UNDEFENDED = (("none", 1.0),)


def none_found(**rest: object) -> Record:
    return record(strengths=NOTHING, defenses=UNDEFENDED, details=False, **rest)  # type: ignore[arg-type]


def test_a_strong_leak_is_told_in_members_of_a_thousand() -> None:
    said = verdict(record(details=False))
    assert said.status == "strong leak"
    assert said.found[0].label == "No defense"
    sentence = said.found[0].sentences[0]
    assert sentence.against == "Against samples that no client trained on"
    assert sentence.found == (
        "the strongest attack is fedmia-2, AUC 0.942 (95% interval 0.927–0.956). Of 1,000 "
        "members, it identifies 327 (95% interval 298 to 357) at the price of one false alarm in "
        "1,000 non-members; guessing would find 1."
    )
    assert "10 clients holding 400 to 625 samples each" in said.audited
    assert "client 0" in said.audited
    assert said.controls.startswith("Controls: all 3 that were run passed. 1 control could not")
    assert any("ami was refused" in point for point in said.open)


def test_each_defense_is_told_apart_and_one_that_holds_is_named() -> None:
    said = verdict(record(defenses=(("none", 1.0), ("dp-sgd", 0.0)), details=False))
    assert [bullet.label for bullet in said.found] == ["No defense", "With dp-sgd"]
    assert "found with no defense, not found with dp-sgd" in said.meaning


def test_no_leak_shown_is_never_called_a_proof() -> None:
    said = verdict(none_found())
    assert said.status == "no leak shown"
    assert "no attack is above guessing" in said.found[0].sentences[0].found
    assert "leave room for an AUC up to 0.546" in said.found[0].sentences[0].found
    assert "not a proof" in said.meaning
    assert "No leak was planted" in said.meaning


def test_a_planted_leak_that_was_found_says_that_the_attacks_work() -> None:
    planted = ControlResult(control="planted leak", expected="above 0.9", value=0.97, passed=True)
    assert "so they work" in verdict(none_found(controls=(planted,))).meaning


def test_wide_intervals_are_inconclusive_and_no_sign_of_safety() -> None:
    said = verdict(none_found(size=30))
    assert said.status == "inconclusive"
    assert "not a sign of safety" in said.meaning
    assert any("needs 970 more non-members" in point for point in said.open)


def test_a_record_without_figures_is_inconclusive() -> None:
    empty = none_found().model_copy(update={"findings": []})
    assert verdict(empty).status == "inconclusive"


def test_a_failed_control_stands_above_any_figure() -> None:
    failed = CONTROLS[2].model_copy(update={"value": 0.71, "passed": False})
    for strengths in (NOTHING, (2.6, 1.0)):
        said = verdict(record(strengths=strengths, controls=(failed,), details=False))
        assert said.status == "control failed"
        assert "do not rely on these figures" in said.headline
        assert "blind classifier (expected: an AUC whose interval holds 0.5; got 0.710)" in (
            said.controls
        )


def test_without_controls_nothing_vouches_for_the_figures() -> None:
    assert "No control was run" in verdict(none_found(controls=())).controls


def test_the_flawed_redraw_gives_no_figure_in_the_verdict() -> None:
    said = verdict(record(evaluation="redraw", details=False))
    assert said.status == "void"
    assert said.found == ()
    assert "nothing here describes the model" in said.meaning


@pytest.mark.parametrize(("rate", "price"), [("tpr@0.01", "one false alarm in 100 non-members")])
def test_where_a_thousandth_is_refused_the_hundredth_is_told(rate: str, price: str) -> None:
    refused = {"value": None, "low": None, "high": None, "note": "needs more", "significant": None}
    whole = record(details=False)
    findings = [
        f.model_copy(update=refused) if f.metric == "tpr@0.001" else f for f in whole.findings
    ]
    said = verdict(whole.model_copy(update={"findings": findings}))
    assert price in said.found[0].sentences[0].found
    assert "guessing would find 10" in said.found[0].sentences[0].found
    assert any(point.startswith("TPR at 0.1% FPR: 48 figures") for point in said.open)


def test_an_auc_below_one_half_is_reported_and_not_turned_round() -> None:
    below = Figure(
        attack="sly", contrast="unseen", metric="auc", value=0.3, low=0.25, high=0.35, target=0
    )
    said = verdict(none_found().model_copy(update={"findings": [below]}))
    assert said.status == "no leak shown"
    assert any("reported as it is" in point for point in said.open)


def test_over_many_clients_the_strongest_is_told_with_its_client() -> None:
    findings = [
        Figure(
            attack="fedmia-1",
            contrast="unseen",
            target=target,
            seed=1,
            metric="auc",
            value=0.6 + target / 100,
            low=0.55,
            high=0.75,
        )
        for target in range(10)
    ]
    said = verdict(none_found().model_copy(update={"findings": findings}))
    assert len(said.found) == 1
    assert said.found[0].sentences[0].found == (
        "the strongest attack is fedmia-1 (client 9), AUC 0.690 (interval 0.550–0.750)."
    )
    assert "asked of 10 of them in turn" in said.audited


def test_the_whole_verdict_is_available_as_text() -> None:
    text = as_text(record(details=False))
    assert text.startswith("Strong leakage")
    assert "- Against samples that no client trained on: the strongest attack is" in text
    assert "Not concluded:" in text
