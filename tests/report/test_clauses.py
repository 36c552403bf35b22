"""Answers of the clause map."""

import json
import re
from pathlib import Path

import pytest

from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
    FORMAL_EPSILON,
)
from fedaudit.pack.packing import clauses_json
from fedaudit.report import clauses as answers
from fedaudit.report.clauses import CAVEAT, CLAUSES, ClauseAnswer, clause_summary, predictive_value
from fedaudit.report.comparison.tables import epsilon_comparison
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.first import tiles_of
from fedaudit.report.page import report_html
from fedaudit.report.text.games import game_verdict
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.results.runs import CheckedUploads, Coverage, GuardCoverage, ModelDigests
from fedaudit.study.comparing import compare_records
from fedaudit.summary.page import summary_markdown
from results.archives import unpacked
from tests.estimates import changed, estimate
from tests.gate.parts import auc, bound, control, record_of, tpr
from tests.report.games import NONE, played, point
from tests.report.records import HOSTILE, HOSTILE_TAG, hostile, record, source, with_sources
from tests.report.seen import must


def rate(high: float, **changes: object) -> Estimate:
    return changed(tpr(50), high=high, low=None, **changes)


def epsilon(metric: str, value: float | None, **changes: object) -> Estimate:
    settings = {"metric": metric, "value": value, "contrast": "unseen", "seed": None}
    return estimate({**settings, "method": "Renyi accountant, delta 1e-05", **changes})


def answer_to(topic: str, record: Record) -> ClauseAnswer:
    """Return the answer of one row of the map."""
    (row,) = [row for row in CLAUSES if row.topic == topic]
    return row.answer(record)


def test_predictive_value_at_one_per_cent_fpr_follows_bayes_rule() -> None:
    # Of 1,000 asked about 500 are members: 100 and 5 are flagged. Of 10 members: 2 and 9.9.
    assert predictive_value(0.2, 0.01, 0.5) == pytest.approx(100 / 105)
    assert predictive_value(0.2, 0.01, 0.01) == pytest.approx(2 / 11.9)
    assert predictive_value(0.01, 0.01, 0.3) == pytest.approx(0.3)


def test_predictive_value_uses_the_largest_upper_limit_rounded_up() -> None:
    two = record_of(rate(0.2), rate(0.1, attack="fta-c", value=0.09))
    assert answers.flagged(two).text == (
        "At most 95.3% at a prior of 50% and 16.9% at a prior of 1%"
    )
    assert (
        "(20.0%: attack: fedmia-2; non-members: samples that no client" in answers.flagged(two).more
    )
    odd = rate(0.3, attack="odd", method="lowest and highest")
    assert answers.flagged(record_of(rate(0.2), odd)).more.endswith(
        "an assumption. Some or all figures of these have no such limit: odd."
    )


def test_without_a_tpr_the_predictive_value_is_not_tested() -> None:
    assert answers.flagged(record_of(auc(0.5, 0.6))).kind == "not tested"


def test_a_tpr_refused_for_few_samples_is_inconclusive() -> None:
    blank = {"value": None, "high": None, "method": ""}
    refused = [
        changed(
            rate(0.2),
            **blank,
            contrast=contrast,
            note=f"inconclusive: needs {needs} more non-members",
        )
        for contrast, needs in (("unseen", 67), ("other_client", 69))
    ]
    answer = answers.flagged(record_of(auc(0.4, 0.6), *refused))
    assert answer.kind == "inconclusive"
    assert answer.more == (
        "TPR at 1% FPR: 2 figures could not be computed. More non-members are needed."
    )


def test_the_first_clause_gives_the_verdict_and_the_audited_samples() -> None:
    two = record_of(auc(0.4, 0.6), auc(0.4, 0.6, seed=2, n_members=480, n_nonmembers=510))
    answer = answers.conclusion(two)
    assert answer.text == summarise_verdict(two).headline + "."
    assert answer.more == (
        "Audited: client 0: 480 to 500 samples as members, 500 to 510 held out as non-members "
        "(fewest and most over training runs); 2 seeds. "
        "The verdict of a policy is in the file verdict.json of an evidence pack."
    )
    games = played(point(right=60))
    assert answers.conclusion(games).text.startswith(game_verdict(games).first.headline)
    assert CLAUSES[0].question == "What does this audit conclude?"


@pytest.mark.parametrize(
    ("topic", "record"),
    [
        ("membership of a sample", record(details=False)),
        ("client of a sample", with_sources(source())),
        ("malicious server", played()),
    ],
)
def test_answers_repeat_the_numbers_of_the_summary(topic: str, record: Record) -> None:
    answer = answer_to(topic, record)
    topics = {"membership of a sample": "membership", "client of a sample": "sources"}
    assert answer.kind == "figure"
    assert all(
        f"{tile.label}: {tile.value} ({tile.detail})" in answer.text
        for tile in tiles_of(record)[topics.get(topic, "games")]
    )


def test_the_bound_is_of_the_worst_run_not_of_the_mean() -> None:
    mean = auc(0.45, 0.577, seed=None)
    runs = [auc(0.4, 0.56), auc(0.5, 0.657, seed=2, contrast="other_client")]
    answer = answers.bound_on_success(record_of(mean, *runs))
    assert answer.text == (
        "AUC at most 0.657 with 95% confidence (attack: fedmia-2; non-members: samples that "
        "another client trained on; seed 2)"
    )
    residual = answers.residual(record_of(mean, *runs)).text
    assert "another client trained on; seed 2; guessing: 50%)" in residual


def test_the_bound_is_of_the_worst_client_not_of_the_mean() -> None:
    targets = [auc(0.4, 0.56), auc(0.5, 0.64, target=3)]
    answer = answers.bound_on_success(record_of(auc(0.45, 0.58, target=None), *targets)).text
    assert "0.640 with 95% confidence (" in answer
    assert answer.endswith("client 3)")


def test_a_mean_alone_is_not_called_the_worst_of_its_models() -> None:
    range_ = "lowest and highest"
    runs = [auc(0.4, 0.7, seed=seed, method=range_) for seed in (1, 2)]
    answer = answers.bound_on_success(record_of(auc(0.45, 0.577, seed=None), *runs))
    assert "over seeds" in answer.text
    assert "Some or all figures of these have no such limit: fedmia-2" in answer.more


def test_controls_are_counted_by_kind_and_missing_ones_are_listed() -> None:
    ran = [control("permuted members"), control("permuted members"), control("untrained model")]
    answer = answers.controls(
        record_of(auc(0.4, 0.6), controls=[*ran, control("planted leak", None)])
    )
    assert answer.text == "3 of 4 controls passed, 1 without a result"
    assert answer.more == (
        "Run: permuted members and untrained model. Not run: blind classifier and planted leak."
    )


def test_the_strongest_reference_attack_is_reported() -> None:
    answer = answers.references(
        record_of(auc(0.4, 0.6, attack="rmia"), auc(0.5, 0.6, attack="loss"))
    )
    assert answer.text == "Yes; their largest AUC is 0.500 (95% interval 0.400–0.600), rmia"


def test_the_bound_is_the_largest_upper_confidence_limit() -> None:
    two = record_of(auc(0.55, 0.60), auc(0.40, 0.65, attack="loss-series"))
    answer = answers.bound_on_success(two)
    assert (answer.kind, answer.text) == (
        "figure",
        "AUC at most 0.650 with 95% confidence (attack: loss-series; non-members: samples that no "
        "client trained on)",
    )
    assert "Without such a limit" not in answer.more


def test_an_upper_limit_is_never_rounded_down() -> None:
    assert answers.bound_on_success(record_of(auc(0.4, 0.6121))).text.startswith(
        "AUC at most 0.613 "
    )
    assert answers.bound_on_success(record_of(auc(0.4, 0.58))).text.startswith("AUC at most 0.580 ")


def test_attacks_without_an_upper_limit_are_listed_with_the_bound() -> None:
    odd = auc(0.3, 0.9, attack="odd", method="mean of 3 seeds, lowest and highest")
    blank = auc(0.3, 0.9, attack="blank", value=None, low=None, high=None)
    record = record_of(auc(0.4, 0.6), odd, blank)
    refused = changed(record.attacks[0], name="ami", status="refused")
    record = changed(record, attacks=[*record.attacks, refused])
    answer = answers.bound_on_success(record)
    assert answer.text.startswith("AUC at most 0.600 ")
    assert "Some or all figures of these have no such limit: odd, blank and ami." in answer.more


def test_the_released_model_counts_as_tested_only_in_the_final_view() -> None:
    alone = "No adversary that sees only the released model was tested."
    assert alone in answers.caveats(record_of(auc(0.4, 0.6)))
    assert alone not in answers.caveats(record_of(auc(0.4, 0.6, view="final")))


@pytest.mark.parametrize(("attack", "kind"), [("rmia-series", "figure"), ("loss", "not tested")])
def test_only_rmia_and_lira_use_reference_models(attack: str, kind: str) -> None:
    assert answers.references(record_of(auc(0.4, 0.6, attack=attack))).kind == kind


def test_source_inference_is_reported_with_the_label_baseline() -> None:
    answer = answer_to("client of a sample", with_sources(source(right=60)))  # of 120, ten clients
    assert answer.text.startswith("Attack success rate: 50.0% (above guessing (10.0%)")
    assert "label distributions alone 20.0%" in answer.text
    assert answer_to("client of a sample", record_of(auc(0.4, 0.6))).kind == "not tested"


def test_defenses_are_compared_only_with_an_undefended_run() -> None:
    answer_for_both = answers.defenses(record(details=False))
    assert answer_for_both.kind == "figure"
    assert [line.split(":")[0] for line in answer_for_both.more.splitlines()] == [
        "no defense",
        "cofedmid",
    ]
    assert "test accuracy 86.7%" in answer_for_both.more  # of no defense, in the one run
    alone = answers.defenses(record_of(auc(0.4, 0.6)))
    assert alone.kind == "not tested"
    assert "fedaudit compare" in alone.more


def test_a_claimed_epsilon_is_stated_with_unit_adjacency_and_delta() -> None:
    formal = epsilon(FORMAL_EPSILON, 8.0, note="unit: one sample, in 20 steps")
    answer = answers.claimed_epsilon(record_of(auc(0.4, 0.6), formal))
    assert answer.text == "ε 8.000 (proven; against an adversary that sees every upload)"
    assert answer.more == (
        "Proven: unit: one sample, in 20 steps; adjacency: one unit added or removed; Renyi "
        "accountant, delta 1e-05."
    )
    local = epsilon(FORMAL_EPSILON, 8.0, note="unit: one sample's features", method="BitRand")
    assert "adjacency: as stated for the unit" in answers.claimed_epsilon(record_of(local)).more
    client_level = epsilon(
        FORMAL_EPSILON, 8.0, note="unit: a client's whole contribution to each upload"
    )
    assert (
        "whether a client takes part is not covered"
        in answers.claimed_epsilon(record_of(client_level)).more
    )


def test_without_noise_no_epsilon_is_claimed() -> None:
    none = epsilon(FORMAL_EPSILON, None, note="without noise there is no guarantee")
    answer = answers.claimed_epsilon(record_of(auc(0.4, 0.6), none))
    assert answer.kind == "not stated"
    assert answer.more == "Without noise there is no guarantee."


@pytest.mark.parametrize(
    ("measured", "ends"),
    [
        (1.9, "The claimed 2.000 is not refuted, which proves nothing"),
        (2.1, "The claimed 2.000 is refuted"),
    ],
)
def test_the_empirical_epsilon_is_compared_with_the_claim(measured: float, ends: str) -> None:
    claim = epsilon(CLAIMED_CLIENT_EPSILON, 2.0)
    coins = epsilon(CLIENT_EPSILON, measured, method="one run 95%")
    record = record_of(bound(0.4), coins, claim)
    answer = answers.measured_epsilon(record)
    observer = "against an adversary with the first and the last global model"
    assert answer.text == (
        "Epsilon at least 0.400 for one sample, against the adversary here; epsilon at least "
        f"{measured:.3f} for one client's whole contribution, {observer}"
    )
    assert ends in answer.more
    assert answer.more.endswith("A lower bound does not certify privacy.")
    assert answers.claimed_epsilon(record).text == (
        f"ε 2.000 (claimed, with canary clients, as audited; {observer})"
    )
    assert answers.residual(record).text.endswith(
        f"ne client's whole contribution: epsilon at least {measured:.3f}; t{ends[1:]}"
    )


def test_a_gaussian_bound_refutes_a_claim_only_under_its_assumption() -> None:
    gauss = epsilon(CLIENT_EPSILON_IF_GAUSSIAN, 3.0, method="mean-only Gaussian 95%")
    record = record_of(gauss, epsilon(CLAIMED_CLIENT_EPSILON, 2.0))
    (bounds,) = shown_bounds(record)
    assert bounds.refutes
    assert "3.000 if the mechanism is Gaussian; the claimed 2.000 is refuted" in bounds.sentence
    assert "3.000 if the mechanism is Gaussian" in answers.measured_epsilon(record).text


def test_a_refuted_claim_is_shown_although_its_control_failed() -> None:
    figures = [epsilon(CLIENT_EPSILON, 3.0), epsilon(CLAIMED_CLIENT_EPSILON, 2.0)]
    refuted = record_of(
        auc(0.4, 0.6), *figures, controls=[control("claimed epsilon", passed=False)]
    )
    assert summarise_verdict(refuted).status == "control failed"
    assert "the claimed 2.000 is refuted" in summarise_verdict(refuted).headline
    blind = record_of(auc(0.4, 0.6), *figures, controls=[control("blind classifier", passed=False)])
    assert "at least 3.000" not in summarise_verdict(blind).headline


def test_a_claim_of_another_defense_is_not_compared() -> None:
    coins = epsilon(CLIENT_EPSILON, 3.0, method="one run 95%")
    other = record_of(coins, epsilon(CLAIMED_CLIENT_EPSILON, 2.0, defense="client-dp"))
    assert "refuted" not in answers.measured_epsilon(other).more + summarise_verdict(other).headline


def test_games_answer_the_malicious_server_clause() -> None:
    games = played(point(right=60))
    answer = answer_to("malicious server", games)
    assert "60.0%" in answer.text
    assert "95% interval" in answer.text
    assert answers.claimed_epsilon(games).text == "ε 3.000 claimed for one sample, delta 0"
    assert "the actual ε is 668" in answers.claimed_epsilon(games).more
    assert "one sample, against a server that tampers" in answers.measured_epsilon(games).text
    assert answer_to("membership of a sample", games).kind == "not tested"
    assert answer_to("malicious server", record_of(auc(0.4, 0.6))).kind == "not tested"


def test_details_missing_in_the_record_are_not_stated() -> None:
    plain = record(details=False)
    samples = sum(row.samples for row in plain.clients)
    assert answers.parameters(plain).kind == "not stated"
    assert f"{samples:,} training samples" in answers.parameters(plain).more
    assert answers.origin(plain).text == ("Date: 2026-11-21; tester and role: not stated")


def test_audited_samples_of_a_recording_are_not_called_its_training_samples() -> None:
    plain = record(details=False)
    audited_only = [row.model_copy(update={"audited": row.samples}) for row in plain.clients]
    unknown = answers.parameters(changed(plain, watched=True, clients=audited_only))
    assert unknown.more.startswith("The record has neither the number of training samples nor")
    # A client that reports its size has more samples than the audited ones.
    reported = [row.model_copy(update={"audited": row.samples - 1}) for row in plain.clients]
    samples = sum(row.samples for row in plain.clients)
    known = answers.parameters(changed(plain, watched=True, clients=reported))
    assert f"{samples:,} training samples" in known.more


def test_the_parameter_count_is_given_per_training_sample() -> None:
    plain = record(details=False)
    samples = sum(row.samples for row in plain.clients)
    answer = answers.parameters(changed(plain, parameters=2 * samples))
    assert answer.kind == "figure"
    assert answer.text == (
        f"{2 * samples:,} trained parameters, 2.000 for each of {samples:,} training samples"
    )
    alone = changed(plain, parameters=1, clients=[])
    assert answers.parameters(alone).text == "1 trained parameter"


def test_a_person_level_epsilon_is_labelled() -> None:
    bound_at_ceiling = changed(epsilon("epsilon", 0.5, attack="rmia"), unit="person")
    assert "for one person" in answers.measured_epsilon(record_of(bound_at_ceiling)).text


def test_residual_risk_is_given_by_upper_confidence_limits() -> None:
    answer = answers.residual(record_of(auc(0.4, 0.6), rate(0.2)))
    assert answer.text == (
        "An attack ranks a member above a non-member in at most 60.0% of pairs (attack: fedmia-2; "
        "non-members: samples that no client trained on; guessing: 50%); at 1% false alarms, "
        "an attack finds at most 20.0% of members (attack: fedmia-2; non-members: samples that no "
        "client trained on; guessing: 1%)"
    )


def test_trivial_upper_limits_are_left_out() -> None:
    certain = record_of(auc(0.4, 1.0), rate(0.2))
    text = answers.residual(certain).text
    assert text.startswith("At 1% false alarms, an attack finds at most 20.0% of members")
    games = played(NONE, point(right=60), point("ome", right=100))
    assert answers.residual(games).text == "No upper limit of a risk is known"
    assert "upper limit" not in summary_markdown(games)
    fewer = answers.residual(played(NONE, point(right=60))).text
    assert fewer == "A server that tampers is right in at most 71.0% of games (behind bitrand, ε 3)"


@pytest.mark.parametrize("kind", ["planted leak", "blind classifier"])
def test_a_failed_control_suppresses_upper_limits(kind: str) -> None:
    failed = record_of(auc(0.4, 0.6), rate(0.2), controls=[control(kind, passed=False)])
    for answer in (answers.bound_on_success, answers.flagged):
        assert answer(failed).kind == "inconclusive"
    assert answers.residual(failed).text == "No upper limit of a risk is known"


def test_a_flawed_evaluation_answers_no_leakage_clause() -> None:
    flawed = record(details=False, evaluation="redraw")
    topics = ("membership of a sample", "bound on attack success", "certainty of a flagged sample")
    assert {answer_to(topic, flawed).kind for topic in (*topics, "measured epsilon")} == {
        "not tested"
    }
    assert answers.residual(flawed).text == "Nothing follows from this record"


@pytest.mark.parametrize(
    "record",
    [
        record(details=False),
        played(),
        with_sources(source()),
        changed(record(details=False, controls=()), estimates=[], attacks=[]),
    ],
    ids=["members", "games", "sources", "nothing"],
)
def test_every_question_has_an_answer_in_every_record(record: Record) -> None:
    answers_of_record = [row.answer(record) for row in CLAUSES]
    assert all(answer.text for answer in answers_of_record)
    introduction, kinds = clause_summary(record)
    page = report_html(record)
    assert introduction in page.replace("&#39;", "'")
    for row, answer in zip(CLAUSES, answers_of_record, strict=True):
        listed = any(row.topic in topics for _, topics in kinds)
        assert listed is (answer.kind not in ("figure", "stated")), row.topic


def test_only_clauses_that_could_be_read_are_quoted_and_numbered() -> None:
    document = json.loads(clauses_json(record(details=False)))
    assert document["about"] == CAVEAT
    assert document["verdict"] == document["clauses"][0]["text"]
    sources = [entry for row in document["clauses"] for entry in row["sources"]]
    for entry in sources:
        is_quoted = entry["quoted_from"] in ("the document", "other publications")
        assert is_quoted is bool(entry["paragraph"])
        assert entry["text"].startswith("not quoted: ") is not is_quoted
    quoted = {f"{s['name']}, {s['paragraph']}" for s in sources if s["quoted_from"]}
    assert quoted == {
        *(f"OWASP AISVS 1.0, 11.2{part}" for part in ("", ".4", ".5")),
        *(f"SATRE 2.0.1, {number}" for number in ("3.1.16", "5.6.01")),
        *(f"SATRE 2.0.1, 3.3.0{number}" for number in (6, 7, 8, 9)),
        *(f"NIST AI 100-2e2025, 2.{part}" for part in ("3.4", "4.1", "4.2", "4.3", "4.4")),
        *(f"EDPB Opinion 28/2024, {number}" for number in (43, 55, 58)),
    }
    secondary = {s["name"] for s in sources if s["quoted_from"] == "other publications"}
    assert secondary == {"EDPB Opinion 28/2024"}
    (draft,) = [entry for entry in sources if entry["name"] == "ISO/IEC 27090"]
    assert draft["text"] == "not quoted: the text is not public"
    assert {row["kind"] for row in document["clauses"]} <= {
        *("figure", "stated", "inconclusive", "not tested", "not stated", "out of scope"),
    }


def test_the_guide_lists_every_question_with_its_documents() -> None:
    """docs/gate.md has a row "| `id` | question | documents |" for each question."""
    guide = (Path(__file__).parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")
    listed = re.findall(r"(?m)^\| `([a-z-]+)` \| (.+?) \| (.+?) \|$", guide)
    expected = []
    for row in CLAUSES:
        numbers: dict[str, list[str]] = {}
        for document in row.sources:
            paragraphs = numbers.setdefault(SHORT_NAMES[document.name], [])
            paragraphs.extend([document.paragraph] * bool(document.paragraph))
        documents = "; ".join(
            " ".join(filter(None, [name, ", ".join(listed_numbers)]))
            for name, listed_numbers in numbers.items()
        )
        expected.append((row.id, row.question, documents))
    assert listed == expected


SHORT_NAMES = {
    "EDPB Opinion 28/2024": "EDPB",
    "EDPS TechDispatch 1/2025": "EDPS",
    "CNIL, status of AI models": "CNIL",
    "NIST SP 800-226": "NIST SP 800-226",
    "NIST AI 100-2e2025": "NIST AI 100-2",
    "ISO/IEC 27090": "ISO/IEC 27090",
    "OWASP AISVS 1.0": "AISVS",
    "SATRE 2.0.1": "SATRE",
}
"""Names of documents in the guide."""


def test_the_criteria_are_linked_to_the_final_model() -> None:
    plain = record(details=False)
    unknown = answers.criteria(plain)
    assert unknown.kind == "stated"
    assert unknown.more == "The record does not identify the model by a digest."
    digest = "ab" * 32
    models = [ModelDigests(round=1, after=digest)]
    coverage = Coverage(rounds=1, measured=1, last_measured=1, models=models)
    assert digest in answers.criteria(changed(plain, coverage=coverage)).more


def test_the_policy_clause_states_what_a_guard_decided() -> None:
    plain = record(details=False)
    assert "policy.toml" in answers.release_policy(plain).text
    assert "No guard judged single uploads" in answers.release_policy(plain).more
    uploads = [CheckedUploads(outcome="withheld", count=1, rounds=[])]
    guard = GuardCoverage(limit=0.6, decide_by="upper", uploads=uploads)
    coverage = Coverage(rounds=3, measured=3, last_measured=3, guard=guard)
    guarded = answers.release_policy(changed(plain, coverage=coverage))
    assert "withheld 1 upload" in guarded.more


def test_records_do_not_state_the_purpose_of_the_model() -> None:
    assert answer_to("purpose and validity", record(details=False)).kind == "not stated"


def test_names_in_records_are_shortened_and_escaped() -> None:
    text = clauses_json(hostile())
    text.encode("utf-8")
    assert "x" * 1000 not in text
    assert "\u202e" not in text
    assert not any(part in report_html(hostile()) for part in (HOSTILE, HOSTILE_TAG))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (1.5, "epsilon at least 1.500; the claimed 2.000 is not refuted, which proves nothing"),
        (2.5, "epsilon at least 2.500; the claimed 2.000 is refuted"),
    ],
)
def test_the_verdict_compares_the_canary_bound_with_the_claim(
    measured: float, expected: str
) -> None:
    coins = epsilon(CLIENT_EPSILON, measured, method="one run 95%")
    record = record_of(auc(0.4, 0.6), coins, epsilon(CLAIMED_CLIENT_EPSILON, 2.0))
    assert summarise_verdict(record).headline.endswith(
        f"One client's whole contribution: {expected}"
    )
    bare = summarise_verdict(record_of(auc(0.4, 0.6), coins)).headline
    assert bare.endswith("and none is claimed")
    gauss = epsilon(CLIENT_EPSILON_IF_GAUSSIAN, 1.0, method="mean-only Gaussian 95%")
    assert (
        "1.000 if the mechanism is Gaussian"
        in summarise_verdict(record_of(auc(0.4, 0.6), gauss)).headline
    )


def test_a_comparison_has_claimed_and_measured_epsilons_row_by_row() -> None:
    first = record_of(
        auc(0.4, 0.6), epsilon(CLIENT_EPSILON, 1.5), epsilon(CLAIMED_CLIENT_EPSILON, 2.0)
    )
    second = record_of(auc(0.4, 0.6))
    grid = must(epsilon_comparison(compare_records([first, second]), [first, second]))
    (row,) = grid.rows
    by_column = dict(zip((c.text for c in grid.columns), (c.text for c in row), strict=True))
    assert (by_column["ε claimed"], by_column["ε at least, without assumptions"]) == (
        "2.000",
        "1.500",
    )
    assert epsilon_comparison(compare_records([second, second]), [second, second]) is None


def test_the_claim_without_canaries_is_given_as_deployed() -> None:
    alone = epsilon("claimed_client_epsilon_without_canaries", 3.0)
    record = record_of(auc(0.4, 0.6), epsilon(CLAIMED_CLIENT_EPSILON, 2.0), alone)
    claimed = answers.claimed_epsilon(record).text
    assert claimed.startswith("ε 3.000 (claimed, without canary clients, as deployed;")
    assert "ε 2.000 (claimed, with canary clients, as audited;" in claimed
    measured = changed(record, estimates=[*record.estimates, epsilon(CLIENT_EPSILON, 1.0)])
    risk = answers.residual(measured).text
    assert "the claimed 2.000 (without canary clients, as deployed, 3.000) is not refuted" in risk


def test_a_partly_missing_limit_is_attributed_to_its_seed() -> None:
    aucs = [auc(0.4, 0.6), auc(0.4, 0.55, seed=2)]
    rates = [rate(0.139), changed(tpr(50), value=None, low=None, high=None, seed=2, note="few")]
    record = record_of(*aucs, *rates)
    residual = answers.residual(record).text
    assert "finds at most 13.9% of members (attack: fedmia-2; non-members: samples" in residual
    assert residual.endswith("; seed 1; guessing: 1%)")
    assert "have no such limit: fedmia-2" in answers.flagged(record).more


def test_a_bound_at_the_ceiling_of_its_test_is_labelled() -> None:
    bound_at_ceiling = epsilon("secure_sum_epsilon", 3.984, ceiling=3.984, method="counted 95%")
    record = record_of(auc(0.4, 0.6), bound_at_ceiling)
    expected = "epsilon at least 3.984, the most this test can show"
    answer = (
        answers.one_sum(record).text,
        answers.residual(record).text,
        summarise_verdict(record).headline,
    )
    assert all(expected in text.lower() for text in answer)
    lower = record_of(auc(0.4, 0.6), epsilon("secure_sum_epsilon", 1.0, ceiling=3.984))
    assert "the most" not in answers.one_sum(lower).text


def test_person_deletion_sum_and_malice_clauses_default_to_not_tested() -> None:
    plain = record(details=False)
    for topic in ("people with several samples", "deletion", "one round’s sum", "malicious client"):
        assert answer_to(topic, plain).kind == "not tested"


def test_a_person_audit_claims_no_sample_level_epsilon() -> None:
    person = changed(auc(0.6, 0.8), unit="person")
    record = record_of(person, auc(0.45, 0.55), epsilon(FORMAL_EPSILON, 8.0))
    answer = answer_to("people with several samples", record)
    assert answer.text.startswith("These figures are for people, each with all of their samples. ")
    assert "0.700" in answer.text
    assert "none is stated for a person" in answer.more


def test_the_deletion_clause_uses_the_model_after_unlearning() -> None:
    folder = unpacked() / "unlearning-location30"
    retrained, unchanged = (
        read_record(folder / f"unlearning-location30-{name}.json")
        for name in ("retrain", "nothing")
    )
    answer = answer_to("deletion", retrained)
    assert answer.text.startswith("Unlearning by retrain: forgotten (")
    assert "adversary with both models 0.87" in answer.text
    assert ": not forgotten (" in answer_to("deletion", unchanged).text
    assert summarise_verdict(retrained).headline.endswith(
        "These figures are for the model before deletion; verdict after deletion: forgotten"
    )
    assert answers.caveats(retrained).startswith("The figures are for the model before deletion.")


def test_a_malicious_client_is_reported_with_its_attack() -> None:
    record = changed(record_of(auc(0.6, 0.8)), config={"attacker": {"kind": "mislabel"}})
    answer = answer_to("malicious client", record)
    assert answer.kind == "figure"
    assert "0.700" in answer.text
    assert "a client that poisons its updates" in answer.more
    looks_on = changed(record, config={"attacker": {"kind": "none"}})
    assert answer_to("malicious client", looks_on).kind == "not tested"


def test_a_failed_control_makes_the_clauses_inconclusive() -> None:
    with_failed_control = record(
        details=False, controls=(control("untrained model", passed=False),)
    )
    document = json.loads(clauses_json(with_failed_control))["clauses"][1]
    assert document["kind"] == "inconclusive"
    assert "not relied on: a control failed" in document["text"]
