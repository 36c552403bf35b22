"""The verdict on a record, which every output shares."""

from typing import Any

import pytest

from fedaudit.core.metric_names import INCONCLUSIVE, NO_LEAK_BEFORE
from fedaudit.formatting.wording import clean_texts, client_name
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.outputs import junit_xml
from fedaudit.gate.policy import Policy
from fedaudit.metrics.unlearning import describe_verdict
from fedaudit.pack.packing import clauses_json
from fedaudit.report.advice import advice
from fedaudit.report.deciding.caveats import controls_line
from fedaudit.report.evidence import main_estimates, marker_of
from fedaudit.report.first import first_screen
from fedaudit.report.page import comparison_html, report_html
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.report.unlearning import (
    WITHHELD,
    deletion_result,
    unlearning_section,
    unlearning_tile,
)
from fedaudit.results.ladder import read_ladder
from fedaudit.results.record import ControlResult, Record
from fedaudit.results.runs import ClientCoverage, Coverage, MissingRounds, MissingUpload
from fedaudit.study.comparing import compare_records
from tests.estimates import changed, estimate
from tests.report.records import (
    HOSTILE_LINK,
    HOSTILE_TAG,
    clients,
    record,
    source,
    unlearned,
    used,
    with_sources,
)
from tests.report.seen import must, printed, words
from tests.report.test_plain import auc, barely_trained, none_found, only, rate

NUMBER = 128962569
NONE = (("none", 1.0),)
CEILINGS = {"auc": 0.6, "contrasts": ["unseen"], "attacks": ["a"]}
POLICY = Policy.model_validate({"name": "p", "membership": CEILINGS, "controls": {"required": []}})
ATTACKS_AB = {
    "name": "p",
    "membership": {**CEILINGS, "attacks": ["a", "b"]},
    "controls": {"required": []},
}


def named(name: str = "hospital-a", value: float = 0.8) -> Record:
    figures = [
        auc(value, value - 0.02, value + 0.02, target=NUMBER, significant=True),
        auc(0.52, 0.45, 0.58, target=NUMBER + 1, significant=False),
    ]
    names = {str(NUMBER): name, str(NUMBER + 1): "hospital-b"}
    return changed(only(*figures), config={"recording": {"names": names}})


def test_every_output_uses_the_name_of_a_client() -> None:
    audit = named()
    checked = evaluate_policy(audit, POLICY)
    surfaces = {
        "terminal": printed(audit),
        "page": words(report_html(audit)).partition("Settings")[0],
        "gate": checked.reason,
        "junit": junit_xml(checked),
        "clauses": clauses_json(audit),
    }
    for surface, text in surfaces.items():
        assert "hospital-a" in text, surface
        assert f"client {NUMBER}" not in text, surface


@pytest.mark.parametrize("named_as", ["hospital-a", "3", "Client A"])
def test_no_table_or_picture_shows_the_number_of_a_named_client(
    named_as: str,
) -> None:
    """Pictures and tables of single clients, groups, sources and sizes once had numbers."""
    numbers = {number: NUMBER + number for number in range(10)}
    names = {str(NUMBER + n): named_as if n == 0 else f"clinic-{n}" for n in range(10)}
    audit = with_sources(source(clients=10), membership=True, details=True, defenses=NONE)
    figures = [
        changed(
            item,
            **({} if item.target is None else {"target": NUMBER + item.target}),
            **({"group": str(NUMBER + int(item.group))} if item.by == "client" else {}),
        )
        for item in audit.estimates
    ]
    (run,) = audit.sources
    recorded = changed(
        audit,
        estimates=[*figures, *(changed(f, target=NUMBER + 1) for f in figures if f.attack)],
        sources=[changed(run, clients=list(numbers.values()))],
        clients=[changed(row, client=NUMBER + row.client) for row in clients()],
        config={"recording": {"names": names}},
    )
    page = report_html(recorded)
    assert named_as in words(page)
    assert "clinic-7" in words(page)
    assert str(NUMBER) not in page.replace(f"{NUMBER} =", "")
    assert str(NUMBER + 7) not in page.replace(f"{NUMBER + 7} =", "")


@pytest.mark.parametrize("name", [HOSTILE_TAG, HOSTILE_LINK, "a\n::error::PASS", "x" * 5000])
def test_a_hostile_client_name_stays_text_of_bounded_length(name: str) -> None:
    audit = named(name)
    page = report_html(audit)
    assert "<img src=x" not in page
    assert '<a href="https://evil' not in page
    assert "\n::error::" not in printed(audit) + evaluate_policy(audit, POLICY).reason
    assert len(client_name(clean_texts(audit).findings[0].target or 0)) <= 41


def test_names_of_the_wrong_kind_leave_clients_with_their_numbers() -> None:
    for names in (["a"], {"x": "a", "\u0665": "b", "9" * 5000: "c"}, "a", None):
        audit = changed(named(), config={"recording": {"names": names}})
        assert f"client {NUMBER}" in printed(audit)


def test_canary_samples_are_labelled_and_their_epsilon_is_shown_first() -> None:
    bound = auc(1.4, 1.4, None, metric="epsilon", ceiling=2.9)
    audit = changed(
        only(auc(0.8, 0.77, 0.83, significant=True), bound),
        config={"audit": {"draw": "canaries"}},
    )
    answer = summarise_verdict(audit)
    first = first_screen(audit, answer)
    assert "canary samples" in first.headline
    assert "epsilon at least 1.400" in first.headline
    assert any(tile.label == "One canary sample, epsilon at least" for tile in first.numbers)
    assert "whose data" not in answer.meaning
    assert "These figures are for canary samples, not for people" in clauses_json(audit)


def test_a_leak_without_a_lower_limit_is_reported_as_a_range() -> None:
    audit = only(
        auc(0.55, 0.5, 0.6, significant=False),
        rate(0.106, None, 0.197, significant=True, method="exact 95%"),
    )
    first = first_screen(audit, summarise_verdict(audit))
    assert first.status == "leak shown"
    start = "A leak is shown; its size is between trace and strong; best estimate 10.6%"
    assert first.headline.startswith(start)
    assert "slightly better" not in words(report_html(audit))
    assert marker_of(main_estimates(audit)[1]).word == "trace to strong"


def test_a_small_leak_with_a_low_estimate_stays_a_trace() -> None:
    audit = only(auc(0.53, 0.51, 0.55, significant=True), rate(0.01, 0.005, 0.02))
    assert summarise_verdict(audit).headline.startswith("A trace of leakage")


def test_a_model_that_leaks_sources_has_no_learning_warning() -> None:
    audit = barely_trained(none_found(), 0.1)
    assert summarise_verdict(audit).warning
    success = estimate(
        topic="source", metric="success", value=0.5, low=0.4, high=0.6, significant=True
    )
    extended = changed(audit, estimates=[*audit.estimates, success])
    assert not summarise_verdict(extended).warning


def test_advice_on_a_defended_record_does_not_ask_for_a_defense() -> None:
    plain = record(details=False, defenses=(("none", 1.0),))
    defended = record(details=False, defenses=(("dp-sgd", 1.0),))
    steps = [
        " ".join(first_screen(item, summarise_verdict(item)).next) for item in (plain, defended)
    ]
    assert "Run the same study with a defense" in steps[0]
    assert "Run the same study with a defense" not in steps[1]
    assert "Strengthen the defense" in steps[1]


@pytest.mark.parametrize("defense", ["none", "dp-sgd"])
@pytest.mark.parametrize("case", ["leak", "no figures", "hardly learned"])
def test_advice_on_a_recording_never_asks_to_run_a_study(case: str, defense: str) -> None:
    audit = {
        "leak": record(details=False, defenses=((defense, 1.0),)),
        "no figures": only(auc(0.5, 0.4, 0.6)),
        "hardly learned": barely_trained(none_found(), 0.1),
    }[case]
    recorded = changed(audit, watched=True)
    steps = " ".join(first_screen(recorded, summarise_verdict(recorded)).next)
    assert steps
    assert "study" not in steps
    assert "seeds" not in steps


def test_a_view_of_sums_does_not_claim_to_reveal_clients() -> None:
    audit = only(auc(0.8, 0.77, 0.83, significant=True))
    sums = changed(audit, view=changed(audit.view, sees=["predictions", "global_model"]))
    assert "whose data" not in summarise_verdict(sums).meaning


def partly(defended: float, undefended: float) -> Record:
    where = {"defense": "cofedmid", "significant": True}
    return changed(
        only(
            auc(defended, defended - 0.02, defended + 0.02, target=0, **where),
            auc(undefended, undefended - 0.02, undefended + 0.02, target=9, **where),
        ),
        usage=[used(client, defense="cofedmid", defended=client == 0) for client in (0, 9)],
    )


def test_a_partly_defended_run_is_judged_by_its_worst_clients() -> None:
    audit = partly(0.64, 0.85)
    first = first_screen(audit, summarise_verdict(audit))
    assert first.status == first.look == "strong leak", "the worst audited client decides"
    assert first.headline.startswith("Client 0, defended: clear leakage")
    assert first.headline.endswith("Client 9, undefended: strong leak")
    labels = [tile.label for tile in first.numbers]
    assert labels[0].startswith("Client 0, defended")
    assert labels[1].startswith("Client 9, undefended")
    assert [forest.title for forest in first.picture] == [
        "Attacks against guessing: client 9, undefended",
        "Attacks against guessing: client 0, defended",
    ], "the picture of the badge comes first"
    assert len({forest.label for forest in first.picture}) == len(first.picture)
    assert report_html(audit).count('class="panels n1 printed"') == 2
    assert first.next[0].startswith("Strengthen the defense")
    hidden = partly(0.5, 0.85)
    assert summarise_verdict(hidden).badge == "strong leak"
    assert (
        first_screen(hidden, summarise_verdict(hidden))
        .next[0]
        .startswith("Have every client use the")
    )


def test_an_auc_below_one_half_never_passes_a_gate() -> None:
    good = only(auc(0.5, 0.45, 0.55, method="DeLong 95%", significant=False))
    flipped = only(auc(0.13, 0.098, 0.171, method="DeLong 95%", significant=False))
    assert evaluate_policy(good, POLICY).outcome is Outcome.PASS
    checked = evaluate_policy(flipped, POLICY)
    assert checked.outcome is Outcome.INCONCLUSIVE
    assert "wrong sign" in checked.reason


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("owners", ["too small", "none", "not asked"])
def test_no_defense_is_advised_if_labels_explain_the_sources(owners: str, watched: bool) -> None:
    explained = source(right=60, baseline_p=0.5, class_p_value=0.5, mixes=0.5)
    audit = with_sources(explained, membership=owners != "not asked", strengths=(0.0,))
    if owners == "too small":
        wide = auc(0.5, 0.3, 0.7, n_members=30, n_nonmembers=30, significant=False)
        audit = changed(audit, estimates=[*audit.where(topic="source"), wide])
    audit = changed(audit, watched=watched)
    answer = summarise_verdict(audit)
    assert answer.status == "above guessing"
    steps = first_screen(audit, answer).next
    assert steps
    assert "defense" not in " ".join(steps)


def test_the_summary_shows_the_client_of_a_failed_control() -> None:
    failed = ControlResult(
        control="reported training metrics",
        expected="within ten points",
        value=0.46,
        passed=False,
        target=NUMBER,
    )
    audit = changed(named(), controls=[failed])
    for text in (printed(audit), words(report_html(audit))):
        assert "failed: reported training metrics (hospital-a)" in " ".join(text.split())
    extended = [changed(failed, control=f"control {n}", attack="a", target=None) for n in range(5)]
    assert "control 2 (a) and 2 more" in " ".join(
        printed(changed(named(), controls=extended)).split()
    )


def test_a_tiny_auc_is_below_one_half() -> None:
    tiny = auc(5e-324, 0.0, 5e-324, method="DeLong 95%", significant=False)
    assert "wrong sign" in summarise_verdict(only(tiny)).headline


def test_the_gate_shows_the_client_of_an_auc_below_one_half() -> None:
    low = {"method": "DeLong 95%", "significant": False, "n_members": 100, "n_nonmembers": 100}
    audit = changed(
        only(auc(0.5, 0.45, 0.55, target=NUMBER, **low), auc(0.1, 0.07, 0.14, target=1, **low)),
        config={"recording": {"names": {str(NUMBER): "hospital-a", "1": "hospital-b"}}},
    )
    checked = evaluate_policy(audit, POLICY)
    assert "a v. unseen, hospital-b: members score lower" in checked.reason


def test_clauses_prefer_fair_contrasts_for_bounds() -> None:
    """Samples of other clients hold other classes, and an AUC of .95 may be of those alone."""
    skewed = auc(0.9, 0.85, 0.95, contrast="other_client", fair=False, method="DeLong 95%")
    fair = auc(0.5, 0.45, 0.55, method="DeLong 95%", significant=False)
    assert "at most 0.550" in clauses_json(only(skewed, fair))
    assert "at most 0.950" in clauses_json(only(skewed))


def test_a_leak_against_unseen_samples_alone_is_not_about_a_client() -> None:
    unseen = auc(0.8, 0.75, 0.85, method="DeLong 95%")
    for high, is_of_federation in ((0.55, True), (0.85, False)):
        others = auc(high - 0.05, high - 0.1, high, contrast="other_client", method="DeLong 95%")
        if is_of_federation:
            others = changed(others, significant=False)
        meaning = summarise_verdict(only(unseen, others)).meaning
        assert ("but not at which client" in meaning) is is_of_federation
    assert "but not at which client" not in summarise_verdict(only(unseen)).meaning


def test_source_inference_decides_whether_a_client_can_be_named() -> None:
    unseen = auc(0.8, 0.75, 0.85, method="DeLong 95%")
    others = auc(0.5, 0.45, 0.55, contrast="other_client", method="DeLong 95%", significant=False)
    plain = only(unseen, others)
    with_source = with_sources(source(clients=10))
    with_source = changed(with_source, estimates=[*with_source.estimates, *plain.estimates])
    for audit, is_stated in ((plain, True), (with_source, False)):
        assert ("but not at which client" in summarise_verdict(audit).meaning) is is_stated


@pytest.mark.parametrize("defense", ["none", "dp-sgd"])
def test_a_recording_does_not_claim_to_have_no_defense(defense: str) -> None:
    audit = record(details=False, defenses=((defense, 1.0),))
    for watched in (False, True):
        tiles = first_screen(changed(audit, watched=watched), summarise_verdict(audit)).numbers
        (tile,) = [item for item in tiles if item.label == "Test accuracy"]
        assert ("no defense" in tile.detail) is (defense == "none" and not watched)


@pytest.mark.parametrize("watched", [True, False])
def test_the_defense_of_a_recording_is_unknown(watched: bool) -> None:
    audit = changed(record(details=False, defenses=(("none", 1.0),)), watched=watched)
    side_by_side = comparison_html(compare_records([audit, audit]), [audit, audit])
    for page in (report_html(audit), side_by_side, clauses_json(audit)):
        assert ("defense unknown" in page) is watched
        assert ("no defense" in page) is not watched


def test_a_known_defense_of_a_recording_is_shown() -> None:
    audit = changed(record(details=False, defenses=(("dp-sgd", 1.0),)), watched=True)
    assert "defense unknown: largest AUC" not in clauses_json(audit)
    assert "dp-sgd: largest AUC" in clauses_json(audit)


def test_a_headline_counts_the_clients_that_a_pooled_figure_covers() -> None:
    counts = {"n_members": 30, "n_nonmembers": 30, "significant": False}
    figures = [auc(0.5, 0.4, 0.6, target=number, **counts) for number in (0, 1)]
    over_all = auc(0.5, 0.42, 0.58, target=None, within="client", significant=False)
    audit = only(*figures, over_all)
    absent = ClientCoverage(client=2, answered=0, measured=0)
    part = covered(clients=[absent]).coverage
    assert "over all 2 audited clients, each" in summarise_verdict(audit).headline
    seen = summarise_verdict(changed(audit, coverage=part)).headline
    assert "over 2 of 3 audited clients, each" in seen


def covered(**missing: object) -> Record:
    clients = [ClientCoverage(client=0, answered=30, measured=30)]
    fields = {"rounds": 30, "measured": 30, "last_measured": 30, "clients": clients}
    return changed(none_found(), coverage=Coverage.model_validate({**fields, **missing}))


@pytest.mark.parametrize(
    ("missing", "answer"),
    [
        (
            {"missing_rounds": [MissingRounds(first=7, last=9, reason="NaN")]}
            | {"n_missing_rounds": 3},
            "Not measured: 3 rounds (7–9)",
        ),
        (
            {"missing_uploads": [MissingUpload(client=0, round=7, reason="NaN")]}
            | {"n_missing_uploads": 1},
            "Not measured: 1 upload of client 0",
        ),
    ],
)
def test_missing_measurements_make_the_verdict_inconclusive(
    missing: dict[str, object], answer: str
) -> None:
    assert summarise_verdict(covered()).status == "no leak shown"
    audit = covered(**missing)
    assert summarise_verdict(audit).status == "inconclusive"
    for text in (printed(audit), report_html(audit), clauses_json(audit)):
        assert answer in " ".join(text.split())


def test_a_control_that_was_not_run_gives_no_check_mark() -> None:
    audit = record()
    assert controls_line([audit]) == "3 of 4 controls passed, 1 without a result"
    text = printed(audit)
    assert "? 3 of 4 controls passed, 1 without a result" in text
    assert "✓" not in text


def test_the_headline_excludes_unfair_contrasts_if_fair_ones_exist() -> None:
    fair = auc(0.5, 0.48, 0.52, significant=False)
    unfair = auc(0.8, 0.78, 0.82, contrast="other_client", significant=True, fair=False)
    caveat = "may include differences between clients"
    with_unfair, alone = only(fair, unfair), only(unfair)
    assert main_estimates(with_unfair) == [fair]
    assert caveat not in summarise_verdict(with_unfair).headline
    assert caveat in summarise_verdict(alone).headline


def test_the_ladder_gives_no_advice_outside_of_its_fitted_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audit = record(defenses=(("none", 1.0),))
    gaps = [rung.gap for rung in read_ladder().rungs]
    for gap, answer in ((max(gaps), True), (max(gaps) + 0.1, False), (min(gaps) - 0.1, False)):
        monkeypatch.setattr("fedaudit.results.ladder.loss_gap", lambda record, gap=gap: gap)
        assert (advice(audit) is not None) is answer


def deleted(word: str, *failing: str) -> Record:
    """A record of unlearning in which the named controls failed."""
    audit = record(details=False, defenses=(("none", 1.0),))
    controls = [changed(item, passed=item.control not in failing) for item in audit.controls]
    return changed(audit, estimates=[*audit.estimates, *unlearned(word)], controls=controls)


def texts(audit: Record) -> dict[str, str]:
    """Return each output of a record after deletion."""
    return {
        "headline": summarise_verdict(audit).headline,
        "tile": str(unlearning_tile(audit)),
        "table": str(unlearning_section(audit)),
        "terminal": printed(audit),
        "page": words(report_html(audit)).partition("Settings")[0],
        "clauses": clauses_json(audit),
    }


def test_every_output_says_forgotten_if_all_controls_pass() -> None:
    audit = deleted("forgotten")
    assert must(deletion_result(audit)).verdict == "forgotten"
    answer = texts(audit)
    assert all(WITHHELD not in text for text in answer.values())
    assert "verdict after deletion: forgotten" in answer["headline"]


@pytest.mark.parametrize("verdict", [INCONCLUSIVE, NO_LEAK_BEFORE])
def test_an_open_verdict_after_deletion_is_called_inconclusive(verdict: str) -> None:
    audit = deleted(describe_verdict(verdict, 0.05))
    assert must(deletion_result(audit)).verdict == verdict
    for surface, text in texts(audit).items():
        assert "inconclusive" in text.lower(), surface


@pytest.mark.parametrize("control", ["permuted members", "untrained model", "blind classifier"])
@pytest.mark.parametrize("word", ["forgotten", "not forgotten"])
def test_a_failed_control_withholds_the_deletion_verdict_everywhere(
    word: str, control: str
) -> None:
    audit = deleted(word, control)
    assert must(deletion_result(audit)).verdict == WITHHELD
    for surface, text in texts(audit).items():
        assert "withheld" in text, surface
        if surface in ("headline", "tile"):
            assert f"{word} " not in f"{text} ", surface


def test_a_missing_control_does_not_withhold_the_deletion_verdict() -> None:
    audit = deleted("forgotten")
    untold = [changed(item, passed=None) for item in audit.controls]
    assert must(deletion_result(changed(audit, controls=untold))).verdict == "forgotten"


def test_the_rule_for_a_final_model_gives_no_advice_outside_of_its_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audit = record(defenses=(("none", 1.0),))
    audit = changed(audit, view=changed(audit.view, name="final"))
    line = read_ladder().final
    gaps = (
        (line.largest_gap, True),
        (line.largest_gap + 0.1, False),
        (line.smallest_gap - 0.1, False),
    )
    for gap, covered in gaps:
        monkeypatch.setattr(
            "fedaudit.results.ladder.generalisation_gap", lambda record, gap=gap: gap
        )
        assert (advice(audit) is not None) is covered
    assert read_ladder().uploads.smallest_gap == min(rung.gap for rung in read_ladder().rungs)
    assert read_ladder().uploads.largest_gap == max(rung.gap for rung in read_ladder().rungs)


def test_the_gate_does_not_dismiss_estimates_if_an_attack_succeeds() -> None:
    quiet = barely_trained(none_found(), 0.1)
    assert "low figures show nothing" in evaluate_policy(quiet, POLICY).model_dump_json()
    leak = auc(0.95, 0.94, 0.96, target=0, significant=True)
    loud = changed(quiet, estimates=[*quiet.estimates, leak])
    assert "low figures show nothing" not in evaluate_policy(loud, POLICY).model_dump_json()
    assert "low figures show nothing" not in printed(loud) + words(report_html(loud))
    assert "barely learned its training data leaks little" in words(report_html(quiet))


def test_the_gate_keeps_estimates_if_source_inference_succeeds() -> None:
    quiet = barely_trained(none_found(), 0.1)
    success = estimate(
        topic="source", metric="success", value=0.5, low=0.4, high=0.6, significant=True
    )
    loud = changed(quiet, estimates=[*quiet.estimates, success])
    assert "low figures show nothing" not in evaluate_policy(loud, POLICY).model_dump_json()


def test_a_leak_without_a_fair_draw_does_not_show_that_a_model_learned() -> None:
    quiet = barely_trained(none_found(), 0.1)
    unfair = auc(0.95, 0.94, 0.96, target=0, significant=True, fair=False, contrast="other_client")
    loud = changed(quiet, estimates=[*quiet.estimates, unfair])
    assert "low figures show nothing" in evaluate_policy(loud, POLICY).model_dump_json()


def test_an_undefended_leak_does_not_show_that_a_defended_model_learned() -> None:
    quiet = barely_trained(none_found(), 0.1)
    rows = [changed(item, defense="dp-sgd") for item in quiet.estimates]
    leak = auc(0.95, 0.94, 0.96, target=0, significant=True)
    with_undefended_leak = changed(quiet, estimates=[leak, *rows])
    answer = evaluate_policy(with_undefended_leak, POLICY).model_dump_json()
    assert "the training accuracy with dp-sgd" in answer
    first = first_screen(with_undefended_leak, summarise_verdict(with_undefended_leak))
    assert first.status == "strong leak"
    assert "dp-sgd" in first.warning
    assert "Train the model until" not in " ".join(first.next)


def pooled_with(value: float, low: float, high: float, *, significant: bool) -> Record:
    """Return a record with pooled clients below the ceiling, and one client above it."""
    figures = [
        auc(0.5, 0.47, 0.53, target=None, within="client", significant=False),
        auc(value, low, high, target=0, significant=significant),
        auc(0.5, 0.46, 0.54, target=1, significant=False),
    ]
    return only(*(changed(item, method="DeLong 95%") for item in figures))


POOLED = Policy.model_validate(
    {"name": "p", "membership": {**CEILINGS, "clients": "pooled"}, "controls": {"required": []}}
)


def test_a_passing_pooled_estimate_does_not_excuse_a_leaking_client() -> None:
    checked = evaluate_policy(pooled_with(0.9, 0.58, 0.99, significant=True), POOLED)
    assert checked.outcome is Outcome.INCONCLUSIVE
    assert "client 0" in checked.reason
    assert not any("judged together" in item for item in checked.unjudged)


def test_a_client_that_is_too_small_alone_is_listed_as_not_judged() -> None:
    checked = evaluate_policy(pooled_with(0.8, 0.3, 0.99, significant=False), POOLED)
    assert checked.outcome is Outcome.PASS
    assert any(
        "client 0 individually: too few audited samples" in item for item in checked.unjudged
    )
    assert not any("client 1" in item for item in checked.unjudged)


def test_advice_on_a_wrong_sign_is_to_check_the_sign_first() -> None:
    wrong = only(auc(0.13, 0.1, 0.17, target=0, significant=False))
    assert (
        first_screen(wrong, summarise_verdict(wrong))
        .next[0]
        .startswith("Check the sign of the scores")
    )
    unsure = only(auc(0.5, 0.3, 0.7, target=0, significant=False))
    assert "sign of the scores" not in " ".join(
        first_screen(unsure, summarise_verdict(unsure)).next
    )


def two_attacks(control: str, *, first: tuple[float, float, float], **about: Any) -> Record:
    """Attacks "a" and "b", of which the control of one failed."""
    delong: dict[str, Any] = {"method": "DeLong 95%", "target": 0}
    figures = [
        auc(*first, significant=first[1] > 0.5, **delong),
        auc(0.9, 0.85, 0.95, attack="b", significant=True, **delong),
    ]
    failed = ControlResult(
        control=control, seed=1, expected="it holds", value=None, passed=False, **about
    )
    return changed(only(*figures), controls=[failed])


def test_a_failed_control_of_one_attack_keeps_leaks_of_others() -> None:
    audit = two_attacks("peer updates", first=(0.65, 0.61, 0.69), attack="b", clients=[2])
    answer = summarise_verdict(audit)
    assert answer.status == "clear leak", "by attack a: figures of b are not relied on"
    assert "Some figures cannot be relied on, because a control failed: b" in answer.headline
    terminal = printed(audit)
    assert "✗" in terminal
    assert "peer updates (b; client 2)" in terminal
    assert "▲ 0.900" not in terminal
    assert "▲ 0.650" in terminal
    checked = evaluate_policy(audit, Policy.model_validate(ATTACKS_AB))
    assert checked.outcome is Outcome.FAIL
    assert any(
        "“peer updates” of b on client 2 in seed 1 failed" in item.reason for item in checked.checks
    )


def test_a_leak_found_only_with_a_failed_control_gives_no_verdict() -> None:
    audit = two_attacks("peer updates", first=(0.5, 0.45, 0.55), attack="b")
    answer = summarise_verdict(audit)
    assert answer.status == "control failed"
    for surface in (printed(audit), words(report_html(audit))):
        assert "▲ 0.900" not in surface
        assert "strong leak" not in surface.partition("Settings")[0].replace("a strong leak is", "")
    assert evaluate_policy(audit, Policy.model_validate(ATTACKS_AB)).outcome is Outcome.INCONCLUSIVE


def test_a_failed_control_of_the_audit_invalidates_leaks() -> None:
    audit = two_attacks("blind classifier", first=(0.65, 0.61, 0.69))
    assert summarise_verdict(audit).status == "control failed"
    assert "▲" not in printed(audit)
    assert "not relied on: a control failed" in printed(audit)


@pytest.mark.parametrize("control", ["reported training metrics", "planted leak"])
def test_a_failed_control_that_can_only_hide_leaks_keeps_them(control: str) -> None:
    audit = two_attacks(control, first=(0.65, 0.61, 0.69), target=0)
    answer = summarise_verdict(audit)
    assert answer.status == "strong leak"
    assert "Some figures may be too low, because a control failed: client 0" in answer.headline
    assert evaluate_policy(audit, Policy.model_validate(ATTACKS_AB)).outcome is Outcome.FAIL


@pytest.mark.parametrize("control", ["reported training metrics", "planted leak"])
def test_without_a_leak_a_control_that_can_hide_leaks_gives_no_verdict(
    control: str,
) -> None:
    audit = two_attacks(control, first=(0.5, 0.45, 0.55), target=0)
    quiet = changed(audit, estimates=audit.estimates[:1])
    assert summarise_verdict(quiet).status == "control failed"


def blind(passed: bool, target: int | None) -> ControlResult:
    return ControlResult(
        control="blind classifier", target=target, seed=1, expected="it", value=0.7, passed=passed
    )


def test_a_failed_control_of_a_client_marks_its_and_pooled_estimates() -> None:
    audit = pooled_with(0.8, 0.75, 0.85, significant=True)
    clients = sorted({f.target for f in audit.findings if f.target is not None})
    first, *others = clients
    controls = [blind(False, None), blind(False, first), *(blind(True, c) for c in others)]
    with_doubt = {
        f.target for f in clean_texts(changed(audit, controls=controls)).findings if f.doubt
    }
    assert with_doubt == {None, first}
    # Without a separate control, a client is in doubt if the control of all clients fails.
    controls = [blind(False, None), *(blind(True, c) for c in others)]
    with_doubt = {
        f.target for f in clean_texts(changed(audit, controls=controls)).findings if f.doubt
    }
    assert with_doubt == {None, first}
    with_doubt = {
        f.target
        for f in clean_texts(changed(audit, controls=[blind(False, None)])).findings
        if f.doubt
    }
    assert with_doubt == {None, *clients}


def test_source_inference_below_chance_is_inconclusive() -> None:
    audit = with_sources(source(right=1, clients=10, each=100))
    assert summarise_verdict(audit).status == "inconclusive"
    policy = Policy.model_validate(
        {
            "name": "p",
            "sources": {"above_label_distributions": 0.1},
            "controls": {"required": []},
        }
    )
    checks = {item.name: item for item in evaluate_policy(audit, policy).checks}
    sign = checks["no attack below chance"]
    assert sign.outcome is Outcome.INCONCLUSIVE
    assert "correct less often than guessing" in sign.reason


def test_controls_that_only_hide_leaks_keep_a_leak_after_deletion() -> None:
    audit = deleted("not forgotten", "planted leak")
    assert must(deletion_result(audit)).verdict == "not forgotten"
    assert must(deletion_result(deleted("forgotten", "planted leak"))).verdict == WITHHELD
    assert must(deletion_result(deleted("not forgotten", "untrained model"))).verdict == WITHHELD


def test_a_withheld_pooled_estimate_keeps_the_leak_of_a_client() -> None:
    audit = pooled_with(0.9, 0.8, 0.95, significant=True)
    answer = summarise_verdict(
        changed(audit, controls=[blind(False, None), blind(True, 0), blind(False, 1)])
    )
    assert answer.status == "strong leak"
    assert "The leak is shown for client 0 (1 of 2 audited clients)" in answer.headline
    assert "figures of all clients together are not relied on" in answer.headline
    assert "Not shown" not in answer.headline


def test_estimates_with_a_failed_control_need_no_more_samples() -> None:
    audit = two_attacks("blind classifier", first=(0.8, 0.75, 0.85))
    (check,) = [
        item
        for item in evaluate_policy(audit, Policy.model_validate(ATTACKS_AB)).checks
        if item.metric == "auc"
    ]
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.needs == ""


def test_removing_a_failed_control_removes_its_doubts() -> None:
    doubtful = clean_texts(two_attacks("blind classifier", first=(0.65, 0.61, 0.69)))
    assert all(figure.doubt for figure in doubtful.findings)
    cleared = clean_texts(changed(doubtful, controls=[]))
    assert not any(figure.doubt for figure in cleared.findings)
