"""What the verdict module decides, and that every reader says the same."""

from typing import Any

import pytest

from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.outputs import junit_xml
from fedaudit.gate.policy import Policy
from fedaudit.report.advice import advice
from fedaudit.report.clauses import clauses_json
from fedaudit.report.deciding.deletion import WITHHELD, deletion
from fedaudit.report.evidence import headline, look_of
from fedaudit.report.first import first_screen
from fedaudit.report.page import comparison_html, report_html
from fedaudit.report.text.verdict import verdict
from fedaudit.report.unlearning import unlearning_section, unlearning_tile
from fedaudit.report.verdict import controls_line
from fedaudit.report.wording import cleaned, client_name
from fedaudit.results.ladder import ladder
from fedaudit.results.record import ControlResult, Record
from fedaudit.results.runs import (
    ClientCoverage,
    Coverage,
    MissingRounds,
    MissingUpload,
)
from fedaudit.study.comparing import compared
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
from tests.report.test_plain import auc, hardly_learned, none_found, only, rate

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


def test_a_client_is_called_by_its_name_on_every_surface() -> None:
    whole = named()
    checked = evaluate_policy(whole, POLICY)
    surfaces = {
        "terminal": printed(whole),
        "page": words(report_html(whole)).partition("Settings")[0],
        "gate": checked.reason,
        "junit": junit_xml(checked),
        "clauses": clauses_json(whole),
    }
    for surface, text in surfaces.items():
        assert "hospital-a" in text, surface
        assert f"client {NUMBER}" not in text, surface


@pytest.mark.parametrize("named_as", ["hospital-a", "3", "Client A"])
def test_no_table_or_picture_calls_a_client_by_a_number_that_stands_for_its_name(
    named_as: str,
) -> None:
    """Pictures and tables of single clients, groups, sources and sizes once had numbers."""
    numbers = {number: NUMBER + number for number in range(10)}
    names = {str(NUMBER + n): named_as if n == 0 else f"clinic-{n}" for n in range(10)}
    whole = with_sources(source(clients=10), membership=True, details=True, defenses=NONE)
    figures = [
        changed(
            one,
            **({} if one.target is None else {"target": NUMBER + one.target}),
            **({"group": str(NUMBER + int(one.group))} if one.by == "client" else {}),
        )
        for one in whole.estimates
    ]
    (run,) = whole.sources
    recorded = changed(
        whole,
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
    whole = named(name)
    page = report_html(whole)
    assert "<img src=x" not in page
    assert '<a href="https://evil' not in page
    assert "\n::error::" not in printed(whole) + evaluate_policy(whole, POLICY).reason
    assert len(client_name(cleaned(whole).findings[0].target or 0)) <= 41


def test_names_of_the_wrong_kind_leave_clients_with_their_numbers() -> None:
    for names in (["a"], {"x": "a", "\u0665": "b", "9" * 5000: "c"}, "a", None):
        whole = changed(named(), config={"recording": {"names": names}})
        assert f"client {NUMBER}" in printed(whole)


def test_canary_samples_are_never_called_people_and_their_epsilon_is_on_the_first_screen() -> None:
    bound = auc(1.4, 1.4, None, metric="epsilon", ceiling=2.9)
    whole = changed(
        only(auc(0.8, 0.77, 0.83, significant=True), bound),
        config={"audit": {"draw": "canaries"}},
    )
    said = verdict(whole)
    first = first_screen(whole, said)
    assert "canary samples" in first.headline
    assert "epsilon at least 1.400" in first.headline
    assert any(tile.label == "One canary sample, epsilon at least" for tile in first.numbers)
    assert "whose data" not in said.meaning
    assert "Of canary samples, not of people" in clauses_json(whole)


def test_a_leak_whose_lower_limit_was_refused_is_given_as_a_range() -> None:
    whole = only(
        auc(0.55, 0.5, 0.6, significant=False),
        rate(0.106, None, 0.197, significant=True, method="exact 95%"),
    )
    first = first_screen(whole, verdict(whole))
    assert first.status == "leak shown"
    start = "Leak shown; size between trace and strong; best estimate 10.6%"
    assert first.headline.startswith(start)
    assert "slightly better" not in words(report_html(whole))
    assert look_of(headline(whole)[1]).word == "trace to strong"


def test_a_small_leak_with_a_low_estimate_stays_a_trace() -> None:
    whole = only(auc(0.53, 0.51, 0.55, significant=True), rate(0.01, 0.005, 0.02))
    assert verdict(whole).headline.startswith("A trace of leakage")


def test_sources_above_guessing_take_the_warning_of_a_model_that_hardly_learned_away() -> None:
    whole = hardly_learned(none_found(), 0.1)
    assert verdict(whole).warning
    success = estimate(
        topic="source", metric="success", value=0.5, low=0.4, high=0.6, significant=True
    )
    more = changed(whole, estimates=[*whole.estimates, success])
    assert not verdict(more).warning


def test_advice_on_a_defended_record_does_not_ask_for_a_defense() -> None:
    plain = record(details=False, defenses=(("none", 1.0),))
    defended = record(details=False, defenses=(("dp-sgd", 1.0),))
    steps = [" ".join(first_screen(one, verdict(one)).next) for one in (plain, defended)]
    assert "Run the same study with a defense" in steps[0]
    assert "Run the same study with a defense" not in steps[1]
    assert "Strengthen the defense" in steps[1]


@pytest.mark.parametrize("defense", ["none", "dp-sgd"])
@pytest.mark.parametrize("case", ["leak", "no figures", "hardly learned"])
def test_advice_on_a_recording_never_asks_to_run_a_study(case: str, defense: str) -> None:
    whole = {
        "leak": record(details=False, defenses=((defense, 1.0),)),
        "no figures": only(auc(0.5, 0.4, 0.6)),
        "hardly learned": hardly_learned(none_found(), 0.1),
    }[case]
    recorded = changed(whole, watched=True)
    steps = " ".join(first_screen(recorded, verdict(recorded)).next)
    assert steps
    assert "study" not in steps
    assert "seeds" not in steps


def test_a_view_of_sums_is_not_said_to_reveal_whose_data_took_part() -> None:
    whole = only(auc(0.8, 0.77, 0.83, significant=True))
    sums = changed(whole, view=changed(whole.view, sees=["predictions", "global_model"]))
    assert "whose data" not in verdict(sums).meaning


def partly(defended: float, undefended: float) -> Record:
    where = {"defense": "cofedmid", "significant": True}
    return changed(
        only(
            auc(defended, defended - 0.02, defended + 0.02, target=0, **where),
            auc(undefended, undefended - 0.02, undefended + 0.02, target=9, **where),
        ),
        usage=[used(client, defense="cofedmid", defended=client == 0) for client in (0, 9)],
    )


def test_a_partly_defended_run_is_judged_by_its_worst_clients_and_names_defended_ones() -> None:
    whole = partly(0.64, 0.85)
    first = first_screen(whole, verdict(whole))
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
    assert report_html(whole).count('class="panels n1 printed"') == 2
    assert first.next[0].startswith("Strengthen the defense")
    hidden = partly(0.5, 0.85)
    assert verdict(hidden).badge == "strong leak"
    assert first_screen(hidden, verdict(hidden)).next[0].startswith("Have every client use the")


def test_an_auc_below_one_half_never_passes_a_gate() -> None:
    good = only(auc(0.5, 0.45, 0.55, method="DeLong 95%", significant=False))
    flipped = only(auc(0.13, 0.098, 0.171, method="DeLong 95%", significant=False))
    assert evaluate_policy(good, POLICY).outcome is Outcome.PASS
    checked = evaluate_policy(flipped, POLICY)
    assert checked.outcome is Outcome.INCONCLUSIVE
    assert "wrong sign" in checked.reason


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("found", ["too small", "none", "not asked"])
def test_label_distributions_that_explain_owners_are_no_reason_to_advise_a_defense(
    found: str, watched: bool
) -> None:
    explained = source(right=60, baseline_p=0.5, class_p_value=0.5, mixes=0.5)
    whole = with_sources(explained, membership=found != "not asked", strengths=(0.0,))
    if found == "too small":
        wide = auc(0.5, 0.3, 0.7, n_members=30, n_nonmembers=30, significant=False)
        whole = changed(whole, estimates=[*whole.where(topic="source"), wide])
    whole = changed(whole, watched=watched)
    said = verdict(whole)
    assert said.status == "above guessing"
    steps = first_screen(whole, said).next
    assert steps
    assert "defense" not in " ".join(steps)


def test_a_failed_control_is_named_with_its_client_on_the_first_screen() -> None:
    failed = ControlResult(
        control="reported training metrics",
        expected="within ten points",
        value=0.46,
        passed=False,
        target=NUMBER,
    )
    whole = changed(named(), controls=[failed])
    for text in (printed(whole), words(report_html(whole))):
        assert "failed: reported training metrics (hospital-a)" in " ".join(text.split())
    more = [changed(failed, control=f"control {n}", attack="a", target=None) for n in range(5)]
    assert "control 2 (a) and 2 more" in " ".join(printed(changed(named(), controls=more)).split())


def test_an_auc_of_next_to_nothing_is_below_one_half() -> None:
    tiny = auc(5e-324, 0.0, 5e-324, method="DeLong 95%", significant=False)
    assert "wrong sign" in verdict(only(tiny)).headline


def test_an_auc_below_one_half_names_its_client_at_the_gate() -> None:
    low = {"method": "DeLong 95%", "significant": False, "n_members": 100, "n_nonmembers": 100}
    whole = changed(
        only(auc(0.5, 0.45, 0.55, target=NUMBER, **low), auc(0.1, 0.07, 0.14, target=1, **low)),
        config={"recording": {"names": {str(NUMBER): "hospital-a", "1": "hospital-b"}}},
    )
    checked = evaluate_policy(whole, POLICY)
    assert "a v. unseen, hospital-b: members score lower" in checked.reason


def test_the_clause_map_bounds_leakage_by_fair_comparisons_if_there_are_any() -> None:
    """Samples of other clients hold other classes, and an AUC of .95 may be of those alone."""
    skewed = auc(0.9, 0.85, 0.95, contrast="other_client", fair=False, method="DeLong 95%")
    fair = auc(0.5, 0.45, 0.55, method="DeLong 95%", significant=False)
    assert "at most 0.550" in clauses_json(only(skewed, fair))
    assert "at most 0.950" in clauses_json(only(skewed))


@pytest.mark.parametrize("defense", ["none", "dp-sgd"])
def test_a_recording_is_not_said_to_have_no_defense(defense: str) -> None:
    whole = record(details=False, defenses=((defense, 1.0),))
    for watched in (False, True):
        tiles = first_screen(changed(whole, watched=watched), verdict(whole)).numbers
        (tile,) = [one for one in tiles if one.label == "Test accuracy"]
        assert ("no defense" in tile.detail) is (defense == "none" and not watched)


@pytest.mark.parametrize("watched", [True, False])
def test_the_defense_of_a_recording_is_unknown(watched: bool) -> None:
    made = changed(record(details=False, defenses=(("none", 1.0),)), watched=watched)
    side_by_side = comparison_html(compared([made, made]), [made, made])
    for page in (report_html(made), side_by_side, clauses_json(made)):
        assert ("defense unknown" in page) is watched
        assert ("no defense" in page) is not watched


def test_the_defense_of_a_recording_is_named_where_it_is_known() -> None:
    made = changed(record(details=False, defenses=(("dp-sgd", 1.0),)), watched=True)
    assert "defense unknown: largest AUC" not in clauses_json(made)
    assert "dp-sgd: largest AUC" in clauses_json(made)


def test_a_headline_counts_the_clients_that_a_pooled_figure_covers() -> None:
    counts = {"n_members": 30, "n_nonmembers": 30, "significant": False}
    figures = [auc(0.5, 0.4, 0.6, target=number, **counts) for number in (0, 1)]
    over_all = auc(0.5, 0.42, 0.58, target=None, within="client", significant=False)
    whole = only(*figures, over_all)
    absent = ClientCoverage(client=2, answered=0, measured=0)
    part = covered(clients=[absent]).coverage
    assert "over all 2 audited clients, each" in verdict(whole).headline
    seen = verdict(changed(whole, coverage=part)).headline
    assert "over 2 of 3 audited clients, each" in seen


def covered(**missing: object) -> Record:
    clients = [ClientCoverage(client=0, answered=30, measured=30)]
    given = {"rounds": 30, "measured": 30, "last_measured": 30, "clients": clients}
    return changed(none_found(), coverage=Coverage.model_validate({**given, **missing}))


@pytest.mark.parametrize(
    ("missing", "said"),
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
def test_what_was_not_measured_is_named_and_no_leak_shown_is_not_said(
    missing: dict[str, object], said: str
) -> None:
    assert verdict(covered()).status == "no leak shown"
    whole = covered(**missing)
    assert verdict(whole).status == "inconclusive"
    for text in (printed(whole), report_html(whole), clauses_json(whole)):
        assert said in " ".join(text.split())


def test_a_control_that_cannot_tell_is_no_check_mark() -> None:
    whole = record()
    assert controls_line([whole]) == "3 of 4 controls hold, 1 cannot tell"
    text = printed(whole)
    assert "? 3 of 4 controls hold, 1 cannot tell" in text
    assert "✓" not in text


def test_unfair_figures_stay_out_of_the_headline_if_there_are_fair_ones() -> None:
    fair = auc(0.5, 0.48, 0.52, significant=False)
    unfair = auc(0.8, 0.78, 0.82, contrast="other_client", significant=True, fair=False)
    caveat = "Differences between clients"
    both, alone = only(fair, unfair), only(unfair)
    assert headline(both) == [fair]
    assert caveat not in verdict(both).headline
    assert caveat in verdict(alone).headline


def test_the_ladder_says_nothing_beyond_the_gaps_it_was_fitted_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = record(defenses=(("none", 1.0),))
    gaps = [rung.gap for rung in ladder().rungs]
    for gap, said in ((max(gaps), True), (max(gaps) + 0.1, False), (min(gaps) - 0.1, False)):
        monkeypatch.setattr("fedaudit.report.advice.loss_gap", lambda record, gap=gap: gap)
        assert (advice(whole) is not None) is said


def deleted(word: str, *failing: str) -> Record:
    """A record of unlearning in which the named controls failed."""
    whole = record(details=False, defenses=(("none", 1.0),))
    controls = [changed(one, passed=one.control not in failing) for one in whole.controls]
    return changed(whole, estimates=[*whole.estimates, *unlearned(word)], controls=controls)


def texts(whole: Record) -> dict[str, str]:
    """What each reader of a record says after deletion."""
    return {
        "headline": verdict(whole).headline,
        "tile": str(unlearning_tile(whole)),
        "table": str(unlearning_section(whole)),
        "terminal": printed(whole),
        "page": words(report_html(whole)).partition("Settings")[0],
        "clauses": clauses_json(whole),
    }


def test_forgotten_is_said_on_every_surface_where_all_controls_hold() -> None:
    whole = deleted("forgotten")
    assert must(deletion(whole)).verdict == "forgotten"
    said = texts(whole)
    assert all(WITHHELD not in text for text in said.values())
    assert "after it: forgotten" in said["headline"]


@pytest.mark.parametrize("control", ["permuted members", "untrained model", "blind classifier"])
@pytest.mark.parametrize("word", ["forgotten", "not forgotten"])
def test_a_verdict_after_deletion_is_withheld_on_every_surface_if_a_control_failed(
    word: str, control: str
) -> None:
    whole = deleted(word, control)
    assert must(deletion(whole)).verdict == WITHHELD
    for surface, text in texts(whole).items():
        assert "withheld" in text, surface
        if surface in ("headline", "tile"):
            assert f"{word} " not in f"{text} ", surface


def test_a_control_that_cannot_tell_does_not_withhold_the_verdict_after_deletion() -> None:
    whole = deleted("forgotten")
    untold = [changed(one, passed=None) for one in whole.controls]
    assert must(deletion(changed(whole, controls=untold))).verdict == "forgotten"


def test_the_rule_for_a_final_model_says_nothing_beyond_its_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = record(defenses=(("none", 1.0),))
    whole = changed(whole, view=changed(whole.view, name="final"))
    line = ladder().final
    gaps = ((line.most, True), (line.most + 0.1, False), (line.least - 0.1, False))
    for gap, covered in gaps:
        monkeypatch.setattr(
            "fedaudit.report.advice.generalisation_gap", lambda record, gap=gap: gap
        )
        assert (advice(whole) is not None) is covered
    assert ladder().uploads.least == min(rung.gap for rung in ladder().rungs)
    assert ladder().uploads.most == max(rung.gap for rung in ladder().rungs)


def test_the_gate_does_not_say_that_figures_show_nothing_where_an_attack_succeeds() -> None:
    quiet = hardly_learned(none_found(), 0.1)
    assert "figures near guessing show nothing" in evaluate_policy(quiet, POLICY).model_dump_json()
    leak = auc(0.95, 0.94, 0.96, target=0, significant=True)
    loud = changed(quiet, estimates=[*quiet.estimates, leak])
    assert (
        "figures near guessing show nothing" not in evaluate_policy(loud, POLICY).model_dump_json()
    )
    assert "figures near guessing show nothing" not in printed(loud) + words(report_html(loud))
    assert "barely learned its training data leaks little" in words(report_html(quiet))


def test_the_gate_does_not_say_it_where_sources_are_named_above_guessing() -> None:
    quiet = hardly_learned(none_found(), 0.1)
    success = estimate(
        topic="source", metric="success", value=0.5, low=0.4, high=0.6, significant=True
    )
    loud = changed(quiet, estimates=[*quiet.estimates, success])
    assert (
        "figures near guessing show nothing" not in evaluate_policy(loud, POLICY).model_dump_json()
    )


def test_a_leak_without_a_fair_draw_does_not_show_that_a_model_learned() -> None:
    quiet = hardly_learned(none_found(), 0.1)
    unfair = auc(0.95, 0.94, 0.96, target=0, significant=True, fair=False, contrast="other_client")
    loud = changed(quiet, estimates=[*quiet.estimates, unfair])
    assert "figures near guessing show nothing" in evaluate_policy(loud, POLICY).model_dump_json()


def test_a_leak_without_a_defense_does_not_show_that_a_defended_model_learned() -> None:
    quiet = hardly_learned(none_found(), 0.1)
    rows = [changed(one, defense="dp-sgd") for one in quiet.estimates]
    leak = auc(0.95, 0.94, 0.96, target=0, significant=True)
    both = changed(quiet, estimates=[leak, *rows])
    said = evaluate_policy(both, POLICY).model_dump_json()
    assert "the training accuracy with dp-sgd" in said
    first = first_screen(both, verdict(both))
    assert first.status == "strong leak"
    assert "dp-sgd" in first.warning
    assert "Train the model until" not in " ".join(first.next)


def pooled_with(value: float, low: float, high: float, *, significant: bool) -> Record:
    """All clients together below the ceiling, and one client by itself."""
    figures = [
        auc(0.5, 0.47, 0.53, target=None, within="client", significant=False),
        auc(value, low, high, target=0, significant=significant),
        auc(0.5, 0.46, 0.54, target=1, significant=False),
    ]
    return only(*(changed(one, method="DeLong 95%") for one in figures))


POOLED = Policy.model_validate(
    {"name": "p", "membership": {**CEILINGS, "clients": "pooled"}, "controls": {"required": []}}
)


def test_a_client_whose_leak_is_shown_does_not_pass_among_others() -> None:
    checked = evaluate_policy(pooled_with(0.9, 0.58, 0.99, significant=True), POOLED)
    assert checked.outcome is Outcome.INCONCLUSIVE
    assert "client 0" in checked.reason
    assert not any("judged together" in one for one in checked.unjudged)


def test_a_client_that_is_too_small_alone_is_listed_as_not_judged() -> None:
    checked = evaluate_policy(pooled_with(0.8, 0.3, 0.99, significant=False), POOLED)
    assert checked.outcome is Outcome.PASS
    assert any("client 0 individually: too few audited samples" in one for one in checked.unjudged)
    assert not any("client 1" in one for one in checked.unjudged)


def test_advice_on_a_score_with_the_wrong_sign_is_to_check_the_sign_first() -> None:
    wrong = only(auc(0.13, 0.1, 0.17, target=0, significant=False))
    assert first_screen(wrong, verdict(wrong)).next[0].startswith("Check the sign of the scores")
    unsure = only(auc(0.5, 0.3, 0.7, target=0, significant=False))
    assert "sign of the scores" not in " ".join(first_screen(unsure, verdict(unsure)).next)


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


def test_a_leak_that_other_attacks_show_stands_beside_a_failed_control_of_one() -> None:
    whole = two_attacks("peer updates", first=(0.65, 0.61, 0.69), attack="b", clients=[2])
    said = verdict(whole)
    assert said.status == "clear leak", "by attack a: figures of b are not relied on"
    assert "Not relied on, because a control failed: b" in said.headline
    shown = printed(whole)
    assert "✗" in shown
    assert "peer updates (b; client 2)" in shown
    assert "▲ 0.900" not in shown
    assert "▲ 0.650" in shown
    checked = evaluate_policy(whole, Policy.model_validate(ATTACKS_AB))
    assert checked.outcome is Outcome.FAIL
    assert any(
        "“peer updates” of b on client 2 in seed 1 failed" in one.reason for one in checked.checks
    )


def test_nothing_is_concluded_where_only_the_doubtful_attack_finds_a_leak() -> None:
    whole = two_attacks("peer updates", first=(0.5, 0.45, 0.55), attack="b")
    said = verdict(whole)
    assert said.status == "control failed"
    for surface in (printed(whole), words(report_html(whole))):
        assert "▲ 0.900" not in surface
        assert "strong leak" not in surface.partition("Settings")[0].replace("a strong leak is", "")
    assert evaluate_policy(whole, Policy.model_validate(ATTACKS_AB)).outcome is Outcome.INCONCLUSIVE


def test_a_failed_control_of_the_whole_audit_takes_every_leak_back() -> None:
    whole = two_attacks("blind classifier", first=(0.65, 0.61, 0.69))
    assert verdict(whole).status == "control failed"
    assert "▲" not in printed(whole)
    assert "not relied on: a control failed" in printed(whole)


@pytest.mark.parametrize("control", ["reported training metrics", "planted leak"])
def test_a_control_that_can_only_hide_leaks_takes_none_back(control: str) -> None:
    whole = two_attacks(control, first=(0.65, 0.61, 0.69), target=0)
    said = verdict(whole)
    assert said.status == "strong leak"
    assert "Perhaps too low, because a control failed: client 0" in said.headline
    assert evaluate_policy(whole, Policy.model_validate(ATTACKS_AB)).outcome is Outcome.FAIL


@pytest.mark.parametrize("control", ["reported training metrics", "planted leak"])
def test_a_control_that_can_hide_leaks_leaves_no_verdict_without_one(control: str) -> None:
    whole = two_attacks(control, first=(0.5, 0.45, 0.55), target=0)
    quiet = changed(whole, estimates=whole.estimates[:1])
    assert verdict(quiet).status == "control failed"


def blind(passed: bool, target: int | None) -> ControlResult:
    return ControlResult(
        control="blind classifier", target=target, seed=1, expected="it", value=0.7, passed=passed
    )


def test_one_clients_failed_control_takes_back_its_figures_and_the_pooled_ones_alone() -> None:
    whole = pooled_with(0.8, 0.75, 0.85, significant=True)
    clients = sorted({f.target for f in whole.findings if f.target is not None})
    first, *others = clients
    controls = [blind(False, None), blind(False, first), *(blind(True, c) for c in others)]
    doubted = {f.target for f in cleaned(changed(whole, controls=controls)).findings if f.doubt}
    assert doubted == {None, first}
    # A client without the control of its own is taken back with all clients together.
    controls = [blind(False, None), *(blind(True, c) for c in others)]
    doubted = {f.target for f in cleaned(changed(whole, controls=controls)).findings if f.doubt}
    assert doubted == {None, first}
    doubted = {
        f.target for f in cleaned(changed(whole, controls=[blind(False, None)])).findings if f.doubt
    }
    assert doubted == {None, *clients}


def test_owners_named_less_often_than_by_guessing_are_no_sign_of_none() -> None:
    whole = with_sources(source(right=1, clients=10, each=100))
    assert verdict(whole).status == "inconclusive"
    policy = Policy.model_validate(
        {
            "name": "p",
            "sources": {"above_label_distributions": 0.1},
            "controls": {"required": []},
        }
    )
    checks = {one.name: one for one in evaluate_policy(whole, policy).checks}
    sign = checks["scores with the right sign"]
    assert sign.outcome is Outcome.INCONCLUSIVE
    assert "right less often than guessing" in sign.reason


def test_a_leak_that_is_left_after_deletion_stands_where_attacks_may_find_too_little() -> None:
    whole = deleted("not forgotten", "planted leak")
    assert must(deletion(whole)).verdict == "not forgotten"
    assert must(deletion(deleted("forgotten", "planted leak"))).verdict == WITHHELD
    assert must(deletion(deleted("not forgotten", "untrained model"))).verdict == WITHHELD


def test_a_leak_of_one_client_is_not_said_to_be_missing_over_all_where_that_is_withheld() -> None:
    whole = pooled_with(0.9, 0.8, 0.95, significant=True)
    said = verdict(changed(whole, controls=[blind(False, None), blind(True, 0), blind(False, 1)]))
    assert said.status == "strong leak"
    assert "Shown for client 0 (1 of 2 audited clients)" in said.headline
    assert "figures of all clients together are not relied on" in said.headline
    assert "Not shown" not in said.headline


def test_no_number_of_samples_is_named_for_figures_that_a_control_takes_back() -> None:
    whole = two_attacks("blind classifier", first=(0.8, 0.75, 0.85))
    (check,) = [
        one
        for one in evaluate_policy(whole, Policy.model_validate(ATTACKS_AB)).checks
        if one.metric == "auc"
    ]
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.needs == ""


def test_a_doubt_is_gone_with_the_control_that_raised_it() -> None:
    doubtful = cleaned(two_attacks("blind classifier", first=(0.65, 0.61, 0.69)))
    assert all(figure.doubt for figure in doubtful.findings)
    again = cleaned(changed(doubtful, controls=[]))
    assert not any(figure.doubt for figure in again.findings)
