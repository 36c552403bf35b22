"""Verdicts of a policy on records with given estimates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.gate.outcome import Outcome, severity
from fedaudit.gate.verdict import Check, ComparedFigure, Verdict, compare_interval, is_doubted
from fedaudit.results.estimate import FIXED_THRESHOLD_METHOD, Estimate, Interval
from fedaudit.results.record import Record
from tests.estimates import estimate
from tests.gate.parts import (
    KINDS,
    auc,
    bound,
    control,
    needed_by,
    outcome,
    ran,
    record_of,
    tpr,
    verdict,
    worst_of,
)
from tests.report.records import record, source, with_sources


def only(verdict_given: Verdict, section: str = "membership") -> Check:
    (check,) = [check for check in verdict_given.checks if check.section == section]
    return check


def asking(membership: str, rules: str = "") -> str:
    """A policy with these lines about membership."""
    return f'name = "tests"\n[membership]\ncontrasts = ["unseen"]\n{membership}\n{rules}'


def test_an_upper_limit_passes_up_to_the_ceiling() -> None:
    assert outcome(record_of(auc(0.55, 0.6))) is Outcome.PASS
    assert outcome(record_of(auc(0.55, 0.601))) is Outcome.INCONCLUSIVE


def test_a_lower_limit_fails_only_above_the_ceiling() -> None:
    assert outcome(record_of(auc(0.601, 0.65))) is Outcome.FAIL
    assert outcome(record_of(auc(0.6, 0.65))) is Outcome.INCONCLUSIVE


def test_the_worst_attack_target_and_seed_decides() -> None:
    good = auc(0.48, 0.52)
    for worse in ({"attack": "fedmia-1"}, {"target": 3}, {"seed": 2}):
        bad = auc(0.7, 0.75, **worse)
        others = [
            good.model_copy(update=worse | {"attack": name})
            for name in ("fedmia-1", "fedmia-2")
            if name != bad.attack
        ]
        audit_verdict = verdict(record_of(good, bad, *others))
        assert audit_verdict.outcome is Outcome.FAIL
        assert worst_of(only(audit_verdict)).low == 0.7


def test_only_requested_contrasts_are_judged_separately() -> None:
    two_contrasts = record_of(auc(0.48, 0.52), auc(0.7, 0.75, contrast="other_client"))
    assert outcome(two_contrasts) is Outcome.PASS
    text = 'name = "x"\n[membership]\nauc = 0.6\ncontrasts = ["unseen", "other_client"]'
    assert outcome(two_contrasts, text) is Outcome.FAIL
    assert outcome(two_contrasts, text.replace('"other_client"', '"mixed"')) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    "gone",
    [
        auc(0.48, 0.52, value=None, low=None, high=None, note="no unseen samples"),
        auc(0.48, 0.52, metric="balanced_accuracy"),
        auc(0.48, 0.52, low=None, high=None, method="no spread over 3 seeds"),
        auc(0.48, 0.52, method=""),
        auc(0.48, 0.52, method="DeLong 80%"),
    ],
    ids=["refused", "absent", "without an interval", "of no stated level", "of a lower level"],
)
def test_missing_and_unreliable_estimates_never_pass(gone: Estimate) -> None:
    audit_verdict = verdict(record_of(gone))
    assert audit_verdict.outcome is Outcome.INCONCLUSIVE
    assert only(audit_verdict).outcome is Outcome.INCONCLUSIVE


def test_a_missing_estimate_of_an_attack_client_or_seed_is_inconclusive() -> None:
    fine = auc(0.48, 0.52)
    uneven = record_of(fine, auc(0.48, 0.52, attack="fedmia-1"), auc(0.48, 0.52, seed=2))
    for audit, rules in (
        (record_of(fine), 'attacks = ["fedmia-1"]'),
        (record_of(fine), "targets = [0, 1]"),
        (uneven, ""),
        (record_of(fine, seeds=[1, 2]), ""),
        (record_of(), ""),
    ):
        assert outcome(audit, asking(f"auc = 0.6\n{rules}")) is Outcome.INCONCLUSIVE


def test_all_estimates_of_a_run_are_judged() -> None:
    assert outcome(record_of(auc(0.7, 0.8), auc(0.48, 0.52))) is Outcome.FAIL
    assert outcome(record_of(auc(0.48, 0.52), auc(0.7, 0.8))) is Outcome.FAIL


def over(runs: int, low: float, high: float, further: Interval | None = None) -> list[Estimate]:
    """A mean over runs with these limits, and runs that are each too wide for a ceiling of 0.6."""
    method = f"DeLong 95%, over these {runs} runs"
    mean = auc(low, high, seed=None, method=method).model_copy(update={"further": further})
    return [mean, *(auc(0.48, 0.62, seed=seed) for seed in range(1, runs + 1))]


def test_means_over_these_runs_are_judged_only_on_request() -> None:
    few = Interval(method="an interval over further runs needs 5 seeds, got 2")
    record = record_of(*over(2, 0.5, 0.58, few), seeds=[1, 2])
    assert outcome(record) is Outcome.INCONCLUSIVE
    assert outcome(record, asking('auc = 0.6\nseeds = "these runs"')) is Outcome.PASS


def test_a_single_run_counts_as_these_runs() -> None:
    text = asking('auc = 0.6\nseeds = "these runs"')
    assert outcome(record_of(auc(0.48, 0.58)), text) is Outcome.PASS
    assert outcome(record_of(auc(0.48, 0.62)), text) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("word", ["further runs", "mean"])
def test_further_runs_need_five_seeds(word: str) -> None:
    text = asking(f'auc = 0.6\nseeds = "{word}"')
    few = Interval(method="an interval over further runs needs 5 seeds, got 2")
    for few_runs in (record_of(*over(2, 0.5, 0.52, few), seeds=[1, 2]), record_of(auc(0.48, 0.52))):
        audit_verdict = verdict(few_runs, text)
        assert audit_verdict.outcome is Outcome.INCONCLUSIVE
        assert "an interval over further runs needs 5 seeds, got" in audit_verdict.reason
    method = "Student t over 5 seeds 95%"
    for high, expected in ((0.59, Outcome.PASS), (0.65, Outcome.INCONCLUSIVE)):
        further = Interval(low=0.48, high=high, method=method)
        five = record_of(*over(5, 0.5, 0.52, further), seeds=list(range(1, 6)))
        assert outcome(five, text) is expected


def test_the_gate_reports_how_many_seeds_would_decide() -> None:
    text = asking('auc = 0.6\nseeds = "further runs"')
    further = Interval(low=0.46, high=0.62, method="Student t over 5 seeds 95%")
    five = record_of(*over(5, 0.5, 0.58, further), seeds=list(range(1, 6)))
    required = needed_by(only(verdict(five, text)))
    assert (required.what, required.then) == ("seeds", Outcome.PASS)


def test_the_gate_reports_how_many_nonmembers_are_missing() -> None:
    small = tpr(3, n_nonmembers=60, value=None, low=None, high=None, note="inconclusive")
    required = needed_by(only(verdict(record_of(small), asking('tpr = {"0.01" = 0.05}'))))
    # At 1% one false positive in 100 non-members is allowed.
    assert (required.count, required.what, required.then) == (40, "non-members", None)


def test_the_reported_sample_size_decides_a_tpr() -> None:
    text = asking('tpr = {"0.01" = 0.05}')
    required = needed_by(only(verdict(record_of(tpr(20)), text)))
    assert required.then is Outcome.PASS
    # Its threshold rests on the non-members, so that they are asked for as well.
    assert required.what == "samples (of the smaller group, and of the other in proportion)"
    # Order statistics are whole non-members: limits shrink in steps as a sample grows.
    many = 500 + required.count
    for size, then in ((1.2 * many, Outcome.PASS), (0.8 * many, Outcome.INCONCLUSIVE)):
        hits = round(0.04 * size)
        assert outcome(record_of(tpr(hits, 25 * hits)), text) is then


def test_a_tpr_without_lower_limit_can_pass_but_not_fail() -> None:
    few = tpr(60, nonmembers=300)
    assert few.low is None
    assert outcome(record_of(few), asking('tpr = {"0.01" = 0.3}')) is Outcome.PASS
    check = only(verdict(record_of(few), asking('tpr = {"0.01" = 0.05}')))
    assert worst_of(check).outcome is Outcome.INCONCLUSIVE
    assert needed_by(check).then is Outcome.FAIL


@pytest.mark.parametrize("ceiling", [0.001, 0.9])
def test_limits_at_the_used_threshold_are_inconclusive(ceiling: float) -> None:
    limits = Interval(low=0.025, high=0.061)
    older = tpr(20, method=f"Clopper-Pearson 95% {FIXED_THRESHOLD_METHOD}", low=None, high=None)
    record = record_of(older.model_copy(update={"at_threshold": limits}), auc(0.48, 0.52))
    checks = verdict(record, asking(f'auc = 0.6\ntpr = {{"0.01" = {ceiling}}}')).checks
    rate = next(check for check in checks if check.metric == "tpr@0.01")
    assert rate.outcome is Outcome.INCONCLUSIVE
    assert rate.reason == (
        "its limits are those at the threshold used and not those of the rate, since an older "
        "version computed them; attack the recording again, or run the study again"
    )


def test_an_epsilon_lower_bound_can_fail_but_not_pass() -> None:
    text = asking("epsilon = 2.0")
    assert outcome(record_of(bound(2.1)), text) is Outcome.FAIL
    audit_verdict = verdict(record_of(bound(2.0)), text)
    assert only(audit_verdict).outcome is Outcome.NOT_REFUTED
    assert audit_verdict.outcome is Outcome.INCONCLUSIVE
    assert "never that it is kept" in audit_verdict.reason
    policy_text = asking("epsilon = 2.0\nauc = 0.6")
    assert outcome(record_of(bound(0.0), auc(0.48, 0.52)), policy_text) is Outcome.PASS
    assert outcome(record_of(auc(0.48, 0.52)), policy_text) is Outcome.INCONCLUSIVE


def test_a_ceiling_below_the_epsilon_limit_is_explained() -> None:
    worst = worst_of(only(verdict(record_of(bound(0.1)), asking("epsilon = 3.4"))))
    assert worst.reason == (
        "with so few samples, even a perfect attack could not have shown more than 3.400"
    )


def test_a_formal_epsilon_is_required_to_pass_its_ceiling() -> None:
    text = asking("formal_epsilon = 8.0")

    def proven(value: float | None) -> Record:
        formal = {"attack": "", "metric": "formal_epsilon", "low": None, "high": None}
        return record_of(auc(0.48, 0.52), auc(0, 1, **formal, value=value))

    assert outcome(proven(8.0), text) is Outcome.PASS
    assert outcome(proven(8.1), text) is Outcome.FAIL
    assert outcome(proven(None), text) is Outcome.INCONCLUSIVE
    assert outcome(record_of(auc(0.48, 0.52)), text) is Outcome.INCONCLUSIVE


def group(low: float, high: float, samples: int = 50) -> Estimate:
    where = {"contrast": "mixed", "by": "class", "group": "7", "significant": None}
    return auc(low, high, n_members=samples, n_nonmembers=400, **where)


def test_the_worst_sufficiently_large_group_is_judged() -> None:
    text, fine = asking("auc = 0.6\ngroup_auc = 0.7"), auc(0.48, 0.52)
    assert outcome(record_of(fine, groups=[group(0.5, 0.7)]), text) is Outcome.PASS
    assert (
        outcome(record_of(fine, groups=[group(0.5, 0.7), group(0.71, 0.9)]), text) is Outcome.FAIL
    )
    tiny = group(0.71, 0.9, samples=9)
    assert outcome(record_of(fine, groups=[group(0.5, 0.7), tiny]), text) is Outcome.PASS
    assert outcome(record_of(fine, groups=[tiny]), text) is Outcome.INCONCLUSIVE
    assert outcome(record_of(fine), text) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("kind", KINDS)
def test_missing_or_failed_controls_follow_the_policy(
    kind: str,
) -> None:
    strict = asking("auc = 0.6", '[controls]\notherwise = "fail"')
    others = [control(control_kind) for control_kind in KINDS if control_kind != kind]
    for rows in (others, [*others, control(kind, passed=False)], [*others, control(kind, None)]):
        leaking = record_of(auc(0.48, 0.52), controls=rows)
        assert outcome(leaking) is Outcome.INCONCLUSIVE
        assert outcome(leaking, strict) is Outcome.FAIL


def test_failed_optional_controls_are_inconclusive() -> None:
    text = asking("auc = 0.6", "[controls]\nrequired = []")
    assert outcome(record_of(auc(0.48, 0.52), controls=[]), text) is Outcome.PASS
    failed = record_of(auc(0.48, 0.52), controls=[control("blind classifier", False)])
    assert outcome(failed, text) is Outcome.INCONCLUSIVE


def test_a_failed_control_affects_only_its_attack() -> None:
    rows = [*map(control, KINDS), control("untrained model", False, attack="fedmia-2")]
    high = auc(0.7, 0.8)
    audit_verdict = verdict(record_of(high, controls=rows))
    assert audit_verdict.outcome is Outcome.INCONCLUSIVE
    assert "the control “untrained model” of fedmia-2 failed" in audit_verdict.reason
    assert "untrained model” of FedMIA, gradients (fedmia-2) failed" in audit_verdict.reason
    other = high.model_copy(update={"attack": "fedmia-1"})
    assert outcome(record_of(high, other, controls=rows)) is Outcome.FAIL


def test_a_failed_control_affects_its_client_and_run_and_their_means() -> None:
    rows = [*map(control, KINDS), control("untrained model", False, target=0, seed=2)]
    for place, failing in (({"seed": 1}, True), ({"seed": 2}, False), ({"target": 3}, True)):
        high = auc(0.7, 0.8, **place)
        others = [control(kind, attack="fedmia-2", seed=high.seed) for kind in KINDS]
        result = outcome(record_of(high, controls=[*rows, *others]))
        assert result is (Outcome.FAIL if failing else Outcome.INCONCLUSIVE)
    mean = auc(0.7, 0.8, seed=None, method="Student t over 2 seeds 95%")
    result = outcome(record_of(mean, controls=rows), asking('auc = 0.6\nseeds = "mean"'))
    assert result is Outcome.INCONCLUSIVE


def test_a_record_with_too_many_estimates_is_refused() -> None:
    many = [auc(0.4, 0.5, attack=f"a{i}", target=i, seed=i) for i in range(60)]
    with pytest.raises(BadInput, match="there are 216,000 estimates for each metric and kind"):
        verdict(record_of(*many))


def test_a_failed_planted_leak_does_not_prevent_a_failure() -> None:
    rows = [*map(control, KINDS[:3]), control("planted leak", False)]
    assert outcome(record_of(auc(0.7, 0.8), controls=rows)) is Outcome.FAIL


def test_an_insignificant_estimate_above_chance_does_not_fail() -> None:
    audit_verdict = verdict(record_of(auc(0.51, 0.6, significant=False)), asking("auc = 0.505"))
    assert audit_verdict.outcome is Outcome.INCONCLUSIVE
    assert "not significantly better than guessing" in audit_verdict.reason
    # Below guessing a ceiling is exceeded by a figure that is no leak at all.
    assert (
        outcome(record_of(auc(0.41, 0.5, significant=False)), asking("auc = 0.4")) is Outcome.FAIL
    )


def test_null_and_flawed_evaluations_are_inconclusive() -> None:
    for change in ({"evaluation": "redraw"}, {"null_members": True}):
        for figure in (auc(0.48, 0.52), auc(0.9, 0.95)):
            assert outcome(record_of(figure, **change)) is Outcome.INCONCLUSIVE


def test_failed_attacks_are_inconclusive() -> None:
    for row in (ran("seqmia", "failed", "no shadow"), ran("fedmia-2", "run", "seed 2: overflow")):
        audit_verdict = verdict(record_of(auc(0.48, 0.52), attacks=[row]))
        assert audit_verdict.outcome is Outcome.INCONCLUSIVE
        assert row.name in audit_verdict.reason
    refused = record_of(
        auc(0.48, 0.52), attacks=[ran("fedmia-2"), ran("ami", "refused", "no view")]
    )
    assert outcome(refused) is Outcome.PASS


def test_missing_seeds_or_views_are_inconclusive() -> None:
    for demanded, met in (
        ("[evidence]\nleast_seeds = 2", False),
        ("[evidence]\nleast_seeds = 1", True),
        ('[evidence]\nviews = ["sum", "final-model"]', False),
        ('[evidence]\nviews = ["uploads"]', True),
    ):
        result = outcome(record_of(auc(0.48, 0.52)), asking("auc = 0.6", demanded))
        assert (result is Outcome.PASS) == met, demanded
    assert (
        "1 more seed needed"
        in verdict(
            record_of(auc(0.48, 0.52)), asking("auc = 0.6", "[evidence]\nleast_seeds = 2")
        ).reason
    )


def test_a_policy_without_a_ceiling_for_the_record_is_refused() -> None:
    with pytest.raises(BadInput, match=r"add a table \[membership\], \[sources\] or \[clusters\]"):
        verdict(record_of(auc(0.48, 0.52)), 'name = "x"\n[games]\nsuccess = 0.6')


def test_an_empty_policy_is_inconclusive() -> None:
    assert outcome(record_of(auc(0.48, 0.52)), asking("")) is Outcome.INCONCLUSIVE


ceilings = st.floats(0, 1).map(lambda number: round(number, 3))


@pytest.mark.slow
@given(ceilings, ceilings, st.integers(0, 3), st.booleans())
def test_raising_a_ceiling_never_makes_the_gate_stricter(
    ceiling: float, other: float, failed: int, strict: bool
) -> None:
    rows = [control(kind, passed=place != failed) for place, kind in enumerate(KINDS)]
    several = record_of(
        auc(0.45, 0.5, significant=False),
        auc(0.52, 0.6, attack="fedmia-1", significant=False),
        auc(0.55, 0.63, attack="avg-cosine"),
        controls=rows,
    )
    text = asking("auc = {}", '[controls]\notherwise = "fail"' if strict else "")
    tight, loose = (outcome(several, text.format(top)) for top in sorted([ceiling, other]))
    assert severity(loose) <= severity(tight)
    assert not (tight is Outcome.PASS and loose is Outcome.FAIL)


def test_generated_records_pass_fail_or_are_inconclusive() -> None:
    drawn = record(details=False, defenses=(("none", 1.0),), strengths=(0.0,), seeds=(1, 2))
    drawn = drawn.model_copy(update={"controls": [control(kind) for kind in KINDS]})
    assert outcome(drawn, asking("auc = 0.6")) is Outcome.PASS
    assert outcome(drawn, asking("auc = 0.5")) is Outcome.INCONCLUSIVE
    leaking = record(details=False, defenses=(("none", 1.0),), strengths=(1.5,), seeds=(1, 2))
    leaking = leaking.model_copy(update={"controls": [control(kind) for kind in KINDS]})
    assert outcome(leaking, asking("auc = 0.6")) is Outcome.FAIL


def test_sample_size_searches_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedaudit.gate.sample_size.MAX_SEARCHES", 3)
    many = [auc(0.5, 0.7, attack=f"a{i}") for i in range(5)]
    for _ in range(2):
        (check,) = [
            audit for audit in verdict(record_of(*many)).checks if audit.open and audit.metric
        ]
        texts = [result.more.text for result in check.open if result.more is not None]
        assert len(texts) == 5
        assert sum("is computed only for the first" in text for text in texts) == 2


EACH = """
name = "each"
[membership]
auc = 0.6
group_auc = 0.6
contrasts = ["unseen"]
"""


def named(judged: Verdict) -> str:
    return " ".join(result.what for check in judged.checks for result in check.open)


def test_a_run_attack_without_estimates_is_listed() -> None:
    weak = auc(0.48, 0.52, attack="blackbox-loss")
    assert outcome(record_of(weak)) is Outcome.PASS
    with_further_attack = record_of(
        weak, attacks=[ran("blackbox-loss"), ran("fedmia-2"), ran("avg-cosine")]
    )
    audit_verdict = verdict(with_further_attack)
    assert audit_verdict.outcome is Outcome.INCONCLUSIVE
    assert "FedMIA, gradients (fedmia-2) on client 0 in seed 1" in named(audit_verdict)
    assert "Cosine over rounds (avg-cosine) on client 0 in seed 1" in named(audit_verdict)
    without_figures = verdict(record_of(attacks=[ran("fedmia-2")]))
    assert without_figures.outcome is Outcome.INCONCLUSIVE
    refused = record_of(weak, attacks=[ran("blackbox-loss"), ran("seqmia", "refused", "no shadow")])
    assert outcome(refused) is Outcome.PASS
    failed = record_of(weak, attacks=[ran("blackbox-loss"), ran("fedmia-2", "failed")])
    assert outcome(failed) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("section", ["audit", "recording"])
def test_an_audited_client_without_estimates_is_listed(section: str) -> None:
    audit = record_of(auc(0.48, 0.52), config={section: {"targets": [0]}})
    assert outcome(audit) is Outcome.PASS
    two = record_of(auc(0.48, 0.52), config={section: {"targets": [0, 7, "x", None, True]}})
    audit_verdict = verdict(two)
    assert audit_verdict.outcome is Outcome.INCONCLUSIVE
    assert "FedMIA, gradients (fedmia-2) on client 7 in seed 1" in named(audit_verdict)


def test_a_client_without_group_estimates_is_listed() -> None:
    figures = [auc(0.48, 0.52, target=target) for target in (0, 1)]
    groups = [group(0.45, 0.55), group(0.45, 0.55).model_copy(update={"target": 1})]
    assert outcome(record_of(*figures, groups=groups), EACH) is Outcome.PASS
    audit_verdict = verdict(record_of(*figures, groups=groups[:1]), EACH)
    assert audit_verdict.outcome is Outcome.INCONCLUSIVE
    assert "FedMIA, gradients (fedmia-2) on client 1 in seed 1" in named(audit_verdict)


def test_a_source_attack_without_results_is_listed() -> None:
    policy_text = 'name = "s"\n[sources]\nabove_label_distributions = 1.0\n'
    row = ran("sia-mean").model_copy(update={"over_clients": "arg max"})
    with_results = with_sources(source("sia"))
    alone = with_results.model_copy(
        update={
            "attacks": [ran("sia")],
            "controls": [control(k, attack="sia") for k in KINDS],
            "seeds": [with_results.sources[0].seed],
        }
    )
    assert outcome(alone, policy_text) is Outcome.PASS
    without_results = alone.model_copy(update={"attacks": [ran("sia"), row]})
    assert outcome(without_results, policy_text) is Outcome.INCONCLUSIVE
    assert "sia-mean" in named(verdict(without_results, policy_text))
    # A policy on members alone does not ask for it.
    members = record_of(auc(0.48, 0.52), attacks=[ran("fedmia-2"), row])
    assert outcome(members) is Outcome.PASS


def test_without_accuracy_a_leak_shows_that_the_model_learned() -> None:
    rows = {"topic": "utility", "seed": 1}
    loss = [
        estimate({**rows, "metric": f"{part} squared error", "value": 1.0})
        for part in ("test", "train")
    ]
    quiet, loud = auc(0.45, 0.55), auc(0.7, 0.8)
    for figure, settled in ((quiet, False), (loud, True)):
        audit_verdict = verdict(record_of(figure, estimates=[figure, *loss]), asking("auc = 0.99"))
        assert (audit_verdict.outcome is Outcome.PASS) is settled
    assert (
        "the models may have learned nothing"
        in verdict(record_of(quiet, estimates=[quiet, *loss]), asking("auc = 0.99")).reason
    )
    lax = asking("auc = 0.99", "[evidence]\nleast_learned = 0.0")
    assert outcome(record_of(quiet, estimates=[quiet, *loss]), lax) is Outcome.PASS


def test_an_impossible_control_states_its_reason() -> None:
    rows = [
        *map(control, KINDS[:3]),
        control("planted leak", None, note="this task has no classes"),
    ]
    audit_verdict = verdict(record_of(auc(0.48, 0.52), controls=rows))
    assert audit_verdict.outcome is Outcome.INCONCLUSIVE
    assert "it could not be run: this task has no classes" in audit_verdict.reason


@pytest.mark.parametrize("metric", ["client_epsilon", "secure_sum_epsilon"])
def test_client_level_bounds_are_compared_with_the_ceiling(metric: str) -> None:
    def judged(value: float) -> Check:
        client_bound = bound(0.5).model_copy(
            update={"attack": "", "metric": metric, "seed": None, "value": value, "low": None}
        )
        return only(verdict(record_of(bound(0.5), client_bound), asking("epsilon = 3.0")))

    assert judged(3.2).outcome is Outcome.FAIL
    assert "one client's " in str(judged(3.2))
    assert judged(2.9).outcome is not Outcome.FAIL


def test_an_inconclusive_estimate_mentions_its_failed_control() -> None:
    figure = estimate(metric="auc", value=0.6, low=0.4, high=0.8, method="DeLong 95%")
    doubt = "the control blind classifier failed, so that it may not be leakage"
    believed = compare_interval(ComparedFigure("AUC", figure), 0.5, 0.95)
    with_doubt = compare_interval(
        ComparedFigure("AUC", figure.with_doubt("blind classifier"), doubt=doubt), 0.5, 0.95
    )
    assert believed.outcome is with_doubt.outcome is Outcome.INCONCLUSIVE
    assert not is_doubted(believed.reason)
    assert is_doubted(with_doubt.reason)
    assert doubt in with_doubt.reason
