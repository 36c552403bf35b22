"""The map from clause to figure: every answer by hand."""

import json

import pytest

from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLIENT_EPSILON,
    FORMAL_EPSILON,
)
from fedaudit.report.clauses import ROWS, UNCHECKED, clause_table, clauses_json
from fedaudit.report.page import report_html
from fedaudit.report.text import clauses
from fedaudit.report.text.clauses import predictive_value
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from tests.estimates import changed, estimate
from tests.gate.parts import auc, bound, found, tpr
from tests.report.games import played, point
from tests.report.records import HOSTILE, HOSTILE_TAG, hostile, record, source, with_sources


def rate(high: float, **changes: object) -> Estimate:
    return changed(tpr(50), high=high, low=None, **changes)


def epsilon(metric: str, value: float | None, **changes: object) -> Estimate:
    given = {"metric": metric, "value": value, "contrast": "unseen", "seed": None}
    return estimate({**given, "method": "Renyi accountant, delta 1e-05", **changes})


def test_a_flag_at_one_per_cent_is_right_as_bayes_says() -> None:
    # Of 1,000 asked about 500 are members: 100 and 5 are flagged. Of 10 members: 2 and 9.9.
    assert predictive_value(0.2, 0.01, 0.5) == pytest.approx(100 / 105)
    assert predictive_value(0.2, 0.01, 0.01) == pytest.approx(2 / 11.9)
    assert predictive_value(0.01, 0.01, 0.3) == pytest.approx(0.3)


def test_the_chance_is_made_of_the_largest_upper_limit_and_rounded_up() -> None:
    two = found(rate(0.2), rate(0.1, attack="fta-c", value=0.09))
    assert clauses.flagged(two).text == (
        "At most 95.3% at a prior of 50% and 16.9% at a prior of 1%"
    )
    assert "(20%: fedmia-2 v. unseen, view “uploads”)" in clauses.flagged(two).more


def test_without_an_upper_limit_of_the_rate_the_chance_is_not_tested() -> None:
    assert clauses.flagged(found(auc(0.5, 0.6))).kind == "not tested"


def test_the_bound_is_the_largest_upper_limit_and_not_that_of_the_largest_value() -> None:
    two = found(auc(0.55, 0.60), auc(0.40, 0.65, attack="loss-series"))
    assert "AUC 0.575" in clauses.membership(two).text
    said = clauses.equivalence(two)
    assert (said.kind, said.text) == ("figure", "AUC at most 0.650 with 95% confidence")
    assert "(fedmia-2 and loss-series)" in said.more
    assert "(2 AUC − 1) at most 30%" in said.more
    assert "Without such a limit" not in said.more


def test_an_upper_limit_is_never_rounded_down() -> None:
    assert clauses.equivalence(found(auc(0.4, 0.6121))).text.startswith("AUC at most 0.613 ")
    assert clauses.equivalence(found(auc(0.4, 0.58))).text.startswith("AUC at most 0.580 ")


def test_attacks_without_a_limit_are_named_beside_the_bound() -> None:
    odd = auc(0.3, 0.9, attack="odd", method="mean of 3 seeds, lowest and highest")
    blank = auc(0.3, 0.9, attack="blank", value=None, low=None, high=None)
    one = found(auc(0.4, 0.6), odd, blank)
    refused = one.attacks[0].model_copy(update={"name": "ami", "status": "refused"})
    one = one.model_copy(update={"attacks": [*one.attacks, refused]})
    said = clauses.equivalence(one)
    assert said.text.startswith("AUC at most 0.600 ")
    assert "Without such a limit, in part or whole: odd, blank and ami." in said.more


def test_the_released_model_was_tested_only_where_the_view_is_of_it() -> None:
    alone = "The released model alone, as somebody is given it, was not tested."
    assert alone in clauses.membership(found(auc(0.4, 0.6))).more
    assert alone not in clauses.membership(found(auc(0.4, 0.6, view="final"))).more


@pytest.mark.parametrize(("attack", "kind"), [("rmia-series", "figure"), ("loss", "not tested")])
def test_only_rmia_and_lira_compare_with_reference_models(attack: str, kind: str) -> None:
    assert clauses.references(found(auc(0.4, 0.6, attack=attack))).kind == kind


def test_attribution_has_the_success_and_what_label_distributions_explain() -> None:
    said = clauses.attribution(with_sources(source(right=60)))  # of 120, ten clients
    assert said.text.startswith("The client is named for 50.0% (95% interval ")
    assert "guessing 10.0%, label distributions alone 20.0%" in said.more
    assert clauses.attribution(found(auc(0.4, 0.6))).kind == "not tested"


def test_a_defense_is_compared_only_where_the_record_has_both() -> None:
    both = clauses.defenses(record(details=False))
    assert both.kind == "figure"
    assert [line.split(":")[0] for line in both.more.splitlines()] == ["no defense", "cofedmid"]
    assert "test accuracy 86.7%" in both.more  # of no defense, in the one run
    alone = clauses.defenses(found(auc(0.4, 0.6)))
    assert alone.kind == "not tested"
    assert "fedaudit compare" in alone.more


def test_an_epsilon_has_unit_adjacency_and_delta() -> None:
    given = epsilon(FORMAL_EPSILON, 8.0, note="unit: one sample, in 20 steps")
    said = clauses.claimed_epsilon(found(auc(0.4, 0.6), given))
    assert said.text == "ε 8.000 (proven)"
    assert said.more == (
        "Proven: unit: one sample, in 20 steps; adjacency: one unit there or not; Renyi "
        "accountant, delta 1e-05."
    )
    local = epsilon(FORMAL_EPSILON, 8.0, note="unit: one record's features", method="BitRand")
    assert "adjacency: as the unit says" in clauses.claimed_epsilon(found(local)).more


def test_without_noise_nothing_is_claimed_and_the_reason_is_told() -> None:
    none = epsilon(FORMAL_EPSILON, None, note="without noise there is no guarantee")
    said = clauses.claimed_epsilon(found(auc(0.4, 0.6), none))
    assert said.kind == "not stated"
    assert said.more == "Without noise there is no guarantee."


@pytest.mark.parametrize(("measured", "refuted"), [(1.9, False), (2.1, True)])
def test_a_measured_bound_above_the_claim_refutes_it(measured: float, refuted: bool) -> None:
    claim = epsilon(CLAIMED_CLIENT_EPSILON, 2.0)
    said = clauses.measured_epsilon(
        found(bound(0.4), epsilon(CLIENT_EPSILON, measured, method="one run 95%"), claim)
    )
    assert said.text == f"ε at least 0.400; ε at least {measured:.3f}"
    assert ("refutes it" in said.more) is refuted
    assert "A lower bound certifies nothing." in said.more


def test_games_answer_for_a_server_that_tampers() -> None:
    games = played(point(right=60))
    assert clauses.malicious_server(games).text.startswith("Right in 60.0% of games (95% interval")
    assert clauses.claimed_epsilon(games).text == (
        "ε 3.000 to 3.000 claimed; the largest actual one 668.0"
    )
    assert clauses.membership(games).kind == "not tested"
    assert clauses.malicious_server(found(auc(0.4, 0.6))).kind == "not tested"


def test_what_is_in_no_record_is_not_stated_and_not_made_up() -> None:
    plain = record(details=False)
    samples = sum(row.samples for row in plain.clients)
    assert clauses.parameters(plain).kind == "not stated"
    assert f"{samples:,} training samples" in clauses.parameters(plain).more
    assert clauses.tester(plain).text == ("When: 2026-11-21; by whom, in which role: not stated")


def test_the_risk_that_remains_is_told_by_upper_limits() -> None:
    said = clauses.residual(found(auc(0.4, 0.6), rate(0.2)))
    assert said.text == (
        "A member stands out in at most 60% of pairs (guessing: 50%); at 1% false alarms at most "
        "20% of members are found"
    )


def test_a_record_of_a_flaw_answers_no_question_about_leakage() -> None:
    flawed = record(details=False, evaluation="redraw")
    asked = (clauses.membership, clauses.equivalence, clauses.flagged, clauses.measured_epsilon)
    assert {answer(flawed).kind for answer in asked} == {"not tested"}
    assert clauses.residual(flawed).text == "Nothing follows from this record"


@pytest.mark.parametrize(
    "of",
    [
        record(details=False),
        played(),
        with_sources(source()),
        record(details=False, controls=()).model_copy(update={"estimates": [], "attacks": []}),
    ],
    ids=["members", "games", "sources", "nothing"],
)
def test_every_question_has_an_answer_in_every_record(of: Record) -> None:
    grid = clause_table(of)
    assert len(grid.rows) == len(ROWS)
    assert all(cell.text for row in grid.rows for cell in row)
    page = report_html(of)
    assert "What the clauses ask" in page
    assert all(row.question.split("’")[0] in page for row in ROWS)


def test_only_clauses_that_could_be_checked_are_quoted() -> None:
    document = json.loads(clauses_json(record(details=False)))
    texts = {one["name"]: one["text"] for row in document["clauses"] for one in row["sources"]}
    quoted = {name for name, text in texts.items() if text != UNCHECKED}
    assert quoted == {f"OWASP AISVS 1.0, 11.2{part}" for part in ("", ".4", ".5")}
    assert {row["kind"] for row in document["clauses"]} <= {
        *("figure", "stated", "not tested", "not stated", "out of scope"),
    }


def test_names_from_outside_are_shortened_and_cannot_end_an_element() -> None:
    text = clauses_json(hostile())
    text.encode("utf-8")
    assert "x" * 1000 not in text
    assert "\u202e" not in text
    assert not any(part in report_html(hostile()) for part in (HOSTILE, HOSTILE_TAG))
