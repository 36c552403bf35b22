"""The map from clause to figure: every answer by hand."""

import json

import pytest

from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
    FORMAL_EPSILON,
)
from fedaudit.report.clauses import CAVEAT, ROWS, UNCHECKED, clause_summary, clauses_json
from fedaudit.report.comparison.tables import epsilon_comparison
from fedaudit.report.page import report_html
from fedaudit.report.text import answers, bounds, epsilons
from fedaudit.report.text.bounds import predictive_value
from fedaudit.report.text.games import game_verdict
from fedaudit.report.text.verdict import verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.comparing import compared
from results.archives import unpacked
from tests.estimates import changed, estimate
from tests.gate.parts import auc, bound, control, found, tpr
from tests.report.games import played, point
from tests.report.records import HOSTILE, HOSTILE_TAG, hostile, record, source, with_sources
from tests.report.seen import must


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
    assert bounds.flagged(two).text == (
        "At most 95.3% at a prior of 50% and 16.9% at a prior of 1%"
    )
    assert "(20%: fedmia-2 v. unseen, view “uploads”)" in bounds.flagged(two).more
    odd = rate(0.3, attack="odd", method="lowest and highest")
    assert bounds.flagged(found(rate(0.2), odd)).more.endswith(
        "an assumption. Without such a limit, in part or whole: odd."
    )


def test_without_a_rate_the_chance_is_not_tested() -> None:
    assert bounds.flagged(found(auc(0.5, 0.6))).kind == "not tested"


def test_a_rate_refused_for_want_of_samples_is_inconclusive_with_its_own_reason() -> None:
    blank = {"value": None, "high": None, "method": ""}
    refused = [
        changed(rate(0.2), **blank, contrast=contrast, note=f"inconclusive: needs {needs} more")
        for contrast, needs in (("other_client", 69), ("unseen", 67))
    ]
    few = found(auc(0.4, 0.6), *refused)
    said = bounds.flagged(few)
    assert said.kind == "inconclusive"
    reasons = (
        "v. unseen: inconclusive: needs 67 more; v. other clients': inconclusive: needs 69 more."
    )
    assert said.more == reasons
    assert f"TPR at 1% FPR: {reasons}" in bounds.membership(few).more
    assert bounds.membership(found(*refused)).kind == "inconclusive"


def test_the_first_row_is_the_verdict_of_the_first_screen_and_what_was_audited() -> None:
    two = found(auc(0.4, 0.6), auc(0.4, 0.6, seed=2, n_members=480, n_nonmembers=510))
    said = answers.conclusion(two)
    assert said.text == verdict(two).headline + "."
    assert said.more == (
        "Audited: 2 models; 2 seeds.\n"
        "For each model 480 to 500 members; non-members: 500 to 510 (unseen).\n"
        "That is the record’s verdict: a policy’s stands in a pack’s verdict.json."
    )
    games = played(point(right=60))
    assert answers.conclusion(games).text.startswith(game_verdict(games).headline)
    assert ROWS[0].question == "What does this audit conclude?"


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [(0.4, 0.552, "47.6% of pairs; guessing 50%; not shown above"), (0.6, 0.7, "65.0% of pairs")],
)
def test_an_auc_is_told_in_plain_words(least: float, most: float, said: str) -> None:
    more = bounds.membership(found(auc(least, most))).more
    assert f"the best attack picks the member in {said}" in more
    assert ("not shown above guessing" in more) is (least < 0.5)


def test_the_limit_of_a_mean_does_not_hide_a_worse_model() -> None:
    mean = auc(0.45, 0.577, seed=None)
    runs = [auc(0.4, 0.56), auc(0.5, 0.657, seed=2, contrast="other_client")]
    said = bounds.equivalence(found(mean, *runs))
    assert said.text == (
        "AUC at most 0.657 with 95% confidence for the worst of the 2 models (fedmia-2 v. other "
        "clients', seed 2); at most 0.577 for their mean"
    )
    assert "65.7% of pairs for the worst of the 2 models, at most 57.7% for their mean" in (
        bounds.residual(found(mean, *runs)).text
    )


def test_the_worst_audited_client_counts_where_there_is_a_mean_over_them() -> None:
    targets = [auc(0.4, 0.56), auc(0.5, 0.64, target=3)]
    said = bounds.equivalence(found(auc(0.45, 0.58, target=None), *targets)).text
    assert "0.640 with 95% confidence for the worst of the 2 audited clients (" in said
    assert said.endswith("client 3); at most 0.580 for their mean")


def test_a_mean_alone_is_not_called_the_worst_of_its_models() -> None:
    range_ = "lowest and highest"
    runs = [auc(0.4, 0.7, seed=seed, method=range_) for seed in (1, 2)]
    said = bounds.equivalence(found(auc(0.45, 0.577, seed=None), *runs)).text
    assert "for a mean of 2 models, none of which has a limit of its own" in said


def test_attack_accuracy_is_bounded_where_the_record_has_it() -> None:
    balanced = auc(0.45, 0.6, metric="balanced_accuracy", method="Clopper-Pearson 95%")
    assert "Attack accuracy (balanced, guessing has 50%) at most 60% (" in (
        bounds.equivalence(found(auc(0.4, 0.6), balanced)).more
    )
    assert "accuracy" not in bounds.equivalence(found(auc(0.4, 0.6))).more


def test_checks_are_counted_by_kind_and_those_not_run_are_named() -> None:
    ran = [control("permuted members"), control("permuted members"), control("untrained model")]
    said = answers.controls(found(auc(0.4, 0.6), controls=[*ran, control("planted leak", None)]))
    assert said.text == (
        "3 of 3 checks hold, of 2 kinds: permuted members and untrained model; not run: blind "
        "classifier and planted leak"
    )


def test_reference_attacks_stand_beside_the_others() -> None:
    said = bounds.references(found(auc(0.4, 0.6, attack="rmia"), auc(0.5, 0.6, attack="loss")))
    assert said.text == (
        "Yes, rmia: largest AUC 0.500 (95% interval 0.400–0.600), beside 0.550 (95% interval "
        "0.500–0.600) without"
    )


def test_the_bound_is_the_largest_upper_limit_and_not_that_of_the_largest_value() -> None:
    two = found(auc(0.55, 0.60), auc(0.40, 0.65, attack="loss-series"))
    assert "AUC 0.575" in bounds.membership(two).text
    said = bounds.equivalence(two)
    assert (said.kind, said.text) == (
        "figure",
        "AUC at most 0.650 with 95% confidence (loss-series v. unseen)",
    )
    assert "(fedmia-2 and loss-series)" in said.more
    assert "advantage" not in said.more
    assert "Without such a limit" not in said.more


def test_an_upper_limit_is_never_rounded_down() -> None:
    assert bounds.equivalence(found(auc(0.4, 0.6121))).text.startswith("AUC at most 0.613 ")
    assert bounds.equivalence(found(auc(0.4, 0.58))).text.startswith("AUC at most 0.580 ")


def test_attacks_without_a_limit_are_named_beside_the_bound() -> None:
    odd = auc(0.3, 0.9, attack="odd", method="mean of 3 seeds, lowest and highest")
    blank = auc(0.3, 0.9, attack="blank", value=None, low=None, high=None)
    one = found(auc(0.4, 0.6), odd, blank)
    refused = changed(one.attacks[0], name="ami", status="refused")
    one = changed(one, attacks=[*one.attacks, refused])
    said = bounds.equivalence(one)
    assert said.text.startswith("AUC at most 0.600 ")
    assert "Without such a limit, in part or whole: odd, blank and ami." in said.more


def test_the_released_model_was_tested_only_where_the_view_is_of_it() -> None:
    alone = "The released model alone, as somebody is given it, was not tested."
    assert alone in bounds.membership(found(auc(0.4, 0.6))).more
    assert alone not in bounds.membership(found(auc(0.4, 0.6, view="final"))).more


@pytest.mark.parametrize(("attack", "kind"), [("rmia-series", "figure"), ("loss", "not tested")])
def test_only_rmia_and_lira_compare_with_reference_models(attack: str, kind: str) -> None:
    assert bounds.references(found(auc(0.4, 0.6, attack=attack))).kind == kind


def test_attribution_has_the_success_and_what_label_distributions_explain() -> None:
    said = answers.attribution(with_sources(source(right=60)))  # of 120, ten clients
    assert said.text.startswith("The client is named for 50.0% (95% interval ")
    assert "guessing 10.0%, label distributions alone 20.0%" in said.more
    assert answers.attribution(found(auc(0.4, 0.6))).kind == "not tested"


def test_a_defense_is_compared_only_where_the_record_has_both() -> None:
    both = answers.defenses(record(details=False))
    assert both.kind == "figure"
    assert [line.split(":")[0] for line in both.more.splitlines()] == ["no defense", "cofedmid"]
    assert "test accuracy 86.7%" in both.more  # of no defense, in the one run
    alone = answers.defenses(found(auc(0.4, 0.6)))
    assert alone.kind == "not tested"
    assert "fedaudit compare" in alone.more


def test_an_epsilon_has_unit_adjacency_and_delta() -> None:
    given = epsilon(FORMAL_EPSILON, 8.0, note="unit: one sample, in 20 steps")
    said = epsilons.claimed_epsilon(found(auc(0.4, 0.6), given))
    assert said.text == (
        "ε 8.000 (proven; unit: one sample, in 20 steps; against whoever sees every upload)"
    )
    assert said.more == (
        "Proven: unit: one sample, in 20 steps; against whoever sees every upload; adjacency: one "
        "unit there or not; Renyi accountant, delta 1e-05."
    )
    local = epsilon(FORMAL_EPSILON, 8.0, note="unit: one record's features", method="BitRand")
    assert "adjacency: as the unit says" in epsilons.claimed_epsilon(found(local)).more


def test_without_noise_nothing_is_claimed_and_the_reason_is_told() -> None:
    none = epsilon(FORMAL_EPSILON, None, note="without noise there is no guarantee")
    said = epsilons.claimed_epsilon(found(auc(0.4, 0.6), none))
    assert said.kind == "not stated"
    assert said.more == "Without noise there is no guarantee."


@pytest.mark.parametrize(
    ("measured", "ends"),
    [
        (1.9, "below the claim: not refuted, not confirmed."),
        (2.1, "above the claim: refuted."),
    ],
)
def test_a_measured_bound_is_held_against_the_claim(measured: float, ends: str) -> None:
    claim = epsilon(CLAIMED_CLIENT_EPSILON, 2.0)
    coins = epsilon(CLIENT_EPSILON, measured, method="one run 95%")
    of = found(bound(0.4), coins, claim)
    said = epsilons.measured_epsilon(of)
    observer = "against whoever has the first and the last global model"
    unit = "one client’s whole contribution, its updates or zeros in their place"
    assert said.text == (
        "ε at least 0.400 (one sample of the audited client, there or not, against the adversary "
        f"here); ε at least {measured:.3f} ({unit}, from coins alone, {observer})"
    )
    assert "A lower bound certifies nothing." in said.more
    assert said.more.endswith(ends)
    claimed = epsilons.claimed_epsilon(of)
    assert claimed.text == (
        f"ε 2.000 (claimed, with canary clients, as audited; unit: {unit}; {observer})"
    )
    assert claimed.more.endswith(ends)
    assert bounds.residual(of).text.endswith(
        f"{unit[1:]}, {observer}: ε at most 2.000 claimed with canary clients, as audited, "
        f"ε at least {measured:.3f} measured"
    )


def test_a_bound_that_assumes_a_mechanism_refutes_only_under_it() -> None:
    gauss = epsilon(CLIENT_EPSILON_IF_GAUSSIAN, 3.0, method="mean-only Gaussian 95%")
    said = epsilons.measured_epsilon(found(gauss, epsilon(CLAIMED_CLIENT_EPSILON, 2.0)))
    assert said.more.endswith("above the claim: refuted, if the mechanism is Gaussian.")


def test_a_claim_under_another_defense_is_no_claim_here() -> None:
    coins = epsilon(CLIENT_EPSILON, 3.0, method="one run 95%")
    other = epsilon(CLAIMED_CLIENT_EPSILON, 2.0, defense="client-dp")
    assert "refuted" not in epsilons.measured_epsilon(found(coins, other)).more


def test_games_answer_for_a_server_that_tampers() -> None:
    games = played(point(right=60))
    assert answers.malicious_server(games).text.startswith("Right in 60.0% of games (95% interval")
    assert epsilons.claimed_epsilon(games).text == (
        "ε 3.000 to 3.000 claimed; the largest actual one 668.0"
    )
    said = epsilons.measured_epsilon(games)
    assert "(one record, against a server that tampers)" in said.text
    assert said.more.endswith("1 point below the claim: not refuted, not confirmed.")
    assert bounds.membership(games).kind == "not tested"
    assert answers.malicious_server(found(auc(0.4, 0.6))).kind == "not tested"


def test_what_is_in_no_record_is_not_stated_and_not_made_up() -> None:
    plain = record(details=False)
    samples = sum(row.samples for row in plain.clients)
    assert answers.parameters(plain).kind == "not stated"
    assert f"{samples:,} training samples" in answers.parameters(plain).more
    assert answers.tester(plain).text == ("When: 2026-11-21; by whom, in which role: not stated")


def test_parameters_stand_beside_the_training_samples() -> None:
    plain = record(details=False)
    samples = sum(row.samples for row in plain.clients)
    said = answers.parameters(changed(plain, parameters=2 * samples))
    assert said.kind == "figure"
    assert said.text == (
        f"{2 * samples:,} trained parameters, 2.000 for each of {samples:,} training samples"
    )
    alone = changed(plain, parameters=1, clients=[])
    assert answers.parameters(alone).text == "1 trained parameter"


def test_a_measured_epsilon_of_people_says_so() -> None:
    one = changed(epsilon("epsilon", 0.5, attack="rmia"), unit="person")
    assert "one person of the audited client" in epsilons.measured_epsilon(found(one)).text


def test_the_risk_that_remains_is_told_by_upper_limits() -> None:
    said = bounds.residual(found(auc(0.4, 0.6), rate(0.2)))
    assert said.text == (
        "A member stands out in at most 60% of pairs (guessing: 50%); at 1% false alarms at most "
        "20% of members are found"
    )


def test_a_record_of_a_flaw_answers_no_question_about_leakage() -> None:
    flawed = record(details=False, evaluation="redraw")
    asked = (bounds.membership, bounds.equivalence, bounds.flagged, epsilons.measured_epsilon)
    assert {answer(flawed).kind for answer in asked} == {"not tested"}
    assert bounds.residual(flawed).text == "Nothing follows from this record"


@pytest.mark.parametrize(
    "of",
    [
        record(details=False),
        played(),
        with_sources(source()),
        changed(record(details=False, controls=()), estimates=[], attacks=[]),
    ],
    ids=["members", "games", "sources", "nothing"],
)
def test_every_question_has_an_answer_in_every_record(of: Record) -> None:
    said = [row.answer(of) for row in ROWS]
    assert all(answer.text for answer in said)
    summary = clause_summary(of)
    page = report_html(of)
    assert summary.said in page.replace("&#39;", "'")
    for row, answer in zip(ROWS, said, strict=True):
        listed = any(row.topic in topics for _, topics in summary.kinds)
        assert listed is (answer.kind not in ("figure", "stated")), row.topic


def test_only_clauses_that_could_be_checked_are_quoted() -> None:
    document = json.loads(clauses_json(record(details=False)))
    assert document["about"] == CAVEAT
    assert document["verdict"] == document["clauses"][0]["text"]
    texts = {one["name"]: one["text"] for row in document["clauses"] for one in row["sources"]}
    quoted = {name for name, text in texts.items() if text != UNCHECKED}
    assert quoted == {f"OWASP AISVS 1.0, 11.2{part}" for part in ("", ".4", ".5")}
    assert {row["kind"] for row in document["clauses"]} <= {
        *("figure", "stated", "inconclusive", "not tested", "not stated", "out of scope"),
    }


def test_names_from_outside_are_shortened_and_cannot_end_an_element() -> None:
    text = clauses_json(hostile())
    text.encode("utf-8")
    assert "x" * 1000 not in text
    assert "\u202e" not in text
    assert not any(part in report_html(hostile()) for part in (HOSTILE, HOSTILE_TAG))


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (1.5, "epsilon at least 1.500; 2.000 claimed is not refuted, which proves nothing"),
        (2.5, "epsilon at least 2.500; 2.000 claimed is refuted"),
    ],
)
def test_the_verdict_names_what_canary_clients_measured_beside_the_claim(
    measured: float, said: str
) -> None:
    coins = epsilon(CLIENT_EPSILON, measured, method="one run 95%")
    one = found(auc(0.4, 0.6), coins, epsilon(CLAIMED_CLIENT_EPSILON, 2.0))
    assert verdict(one).headline.endswith(f"Of one client's whole contribution: {said}")
    bare = verdict(found(auc(0.4, 0.6), coins)).headline
    assert bare.endswith("and none is claimed")
    gauss = epsilon(CLIENT_EPSILON_IF_GAUSSIAN, 1.0, method="mean-only Gaussian 95%")
    assert "1.000 if the mechanism is Gaussian" in verdict(found(auc(0.4, 0.6), gauss)).headline


def test_a_comparison_has_claimed_and_measured_epsilons_row_by_row() -> None:
    first = found(auc(0.4, 0.6), epsilon(CLIENT_EPSILON, 1.5), epsilon(CLAIMED_CLIENT_EPSILON, 2.0))
    second = found(auc(0.4, 0.6))
    grid = must(epsilon_comparison(compared([first, second]), [first, second]))
    (row,) = grid.rows
    shown = dict(zip((c.text for c in grid.columns), (c.text for c in row), strict=True))
    assert (shown["ε claimed"], shown["ε at least, from coins"]) == ("2.000", "1.500")
    assert epsilon_comparison(compared([second, second]), [second, second]) is None


def test_the_claim_without_canaries_is_the_one_of_what_is_deployed() -> None:
    alone = epsilon("claimed_client_epsilon_without_canaries", 3.0)
    one = found(auc(0.4, 0.6), epsilon(CLAIMED_CLIENT_EPSILON, 2.0), alone)
    claimed = epsilons.claimed_epsilon(one).text
    assert claimed.startswith("ε 3.000 (claimed, without canary clients, as deployed;")
    assert "ε 2.000 (claimed, with canary clients, as audited;" in claimed
    risk = bounds.residual(one).text
    assert "ε at most 3.000 claimed without canary clients, which was not audited" in risk


def test_a_limit_that_some_models_lack_is_not_called_the_worst_of_all() -> None:
    given = [auc(0.4, 0.6), auc(0.4, 0.55, seed=2)]
    rates = [rate(0.139), changed(tpr(50), value=None, low=None, high=None, seed=2, note="few")]
    said = bounds.residual(found(*given, *rates)).text
    assert "the 1 of 2 models that have this figure v. unseen" in said


def test_a_bound_that_is_all_a_test_can_show_says_so() -> None:
    one = epsilon("secure_sum_epsilon", 3.984, ceiling=3.984, method="counted 95%")
    record = found(auc(0.4, 0.6), one)
    assert "the truth may be any amount larger" in epsilons.one_sum(record).more
    assert "the most this test can show" in bounds.residual(record).text
    assert "epsilon at least 3.984, the most this test can show" in verdict(record).headline
    lower = found(auc(0.4, 0.6), epsilon("secure_sum_epsilon", 1.0, ceiling=3.984))
    assert "any amount larger" not in epsilons.one_sum(lower).more


def test_what_is_not_asked_of_people_deletion_sums_and_malice_is_not_tested() -> None:
    plain = record(details=False)
    for ask in (answers.people, answers.deletion, epsilons.one_sum, answers.malicious_client):
        assert ask(plain).kind == "not tested"


def test_an_audit_of_people_says_so_and_that_a_samples_epsilon_is_not_theirs() -> None:
    person = changed(auc(0.6, 0.8), unit="person")
    one = found(person, auc(0.45, 0.55), epsilon(FORMAL_EPSILON, 8.0))
    said = answers.people(one)
    assert said.text.startswith("People, each with all of their samples: largest AUC 0.700")
    assert "Of their samples one by one: 0.500" in said.more
    assert "none is stated for a person" in said.more


def test_deletion_is_answered_of_the_model_after_it() -> None:
    kept = unpacked() / "unlearning-location30"
    gone, there = (
        read_record(kept / f"unlearning-location30-{name}.json") for name in ("retrain", "nothing")
    )
    said = answers.deletion(gone)
    assert said.text.startswith("Forgotten, as far as 3 attacks can tell: after")
    assert "493 deleted samples, margin 0.05" in said.more
    assert "Who has the models before and after: AUC 0.87" in said.more
    assert answers.deletion(there).text.startswith("Not forgotten")
    assert (
        "That is before deletion; after it: forgotten (largest AUC 0.507)" in verdict(gone).headline
    )
    assert bounds.residual(gone).more.startswith("Of the model before deletion.")


def test_a_malicious_client_is_named_with_what_it_does() -> None:
    one = changed(found(auc(0.6, 0.8)), config={"attacker": {"kind": "mislabel"}})
    assert answers.malicious_client(one).text.startswith("Largest AUC 0.700")
    looks_on = changed(one, config={"attacker": {"kind": "none"}})
    assert answers.malicious_client(looks_on).kind == "not tested"
