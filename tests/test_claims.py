"""The rules by which claims are judged, and the claims page."""

import math
import re
import runpy
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.claims import wrong_families
from docs.claims import (
    again,
    comparing,
    data,
    figures,
    judging,
    ledger,
    page,
    pairs,
    routes,
    titles,
)
from docs.claims.comparing import Figure
from docs.claims.data import ROOT, Claim, Term
from docs.claims.judging import ClaimResult, PartResult
from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import clopper_pearson
from fedaudit.results.aggregate import Value
from fedaudit.results.games import Spread
from fedaudit.results.read import read_record
from fedaudit.results.record import Trajectory, UsageRow, write_record
from fedaudit.results.runs import LABELS, models_of_groups
from fedaudit.results.tradeoffs import AttackKey, directions_of
from results.archives import unpacked
from tests.report.records import record

TIER_1, TIER_2 = ("location30", "tiny-cnn", "tiny-alexnet"), ("location30",)


def make_test(direction: str = "above", margin: float = 0.0, figure: str = "auc") -> data.Test:
    fields = {"direction": direction, "margin": margin, "figure": figure, "one": {}, "others": [{}]}
    return data.Test.model_validate(fields)


def part(
    low: float, high: float, *, regime: str = "location30", margin: float = 0.02
) -> PartResult:
    """Return a comparison with an interval around its middle."""
    test = make_test(margin=margin)
    gap = Figure((low + high) / 2, low, high, "", 3)
    return PartResult(regime, test, Term(), judging.verdict_of(test, gap), gap, gap, gap)


HOLDS, NOT, LEVEL, NEITHER = (0.05, 0.07), (-0.07, -0.05), (-0.01, 0.01), (0.0, 0.04)


def verdict(intervals: Sequence[tuple[float, float]], *, tier: int = 1) -> ClaimResult:
    """Return the result of a claim with one comparison per regime."""
    claim = Claim.model_validate(
        {"id": "x", "says": "", "where": "", "theirs": "", "tier": tier, "regimes": TIER_1}
    )
    results = [
        judging.combine_parts([part(low, high, regime=name)], leaking=True)
        for name, (low, high) in zip(TIER_1, intervals, strict=False)
    ]
    return judging.judge_claim(claim, results)


@pytest.mark.parametrize(
    ("direction", "margin", "low", "high", "expected"),
    [
        ("above", 0.0, 0.01, 0.05, "confirmed"),
        ("above", 0.02, 0.01, 0.05, "open"),
        ("above", 0.02, 0.021, 0.05, "confirmed"),
        ("above", 0.02, -0.02, 0.02, "no difference"),
        ("above", 0.02, -0.05, -0.01, "contradicted"),
        ("above", 0.02, -0.05, 0.01, "open"),
        ("below", 0.0, 0.01, 0.05, "contradicted"),
        ("below", 0.02, -0.05, -0.03, "confirmed"),
        ("near", 0.05, -0.02, 0.04, "confirmed"),
        ("near", 0.05, 0.06, 0.09, "contradicted"),
        ("near", 0.05, 0.01, 0.09, "open"),
    ],
)
def test_verdicts_and_p_values_follow_from_interval_and_margin(
    direction: str, margin: float, low: float, high: float, expected: str
) -> None:
    test = make_test(direction, margin)
    gap = Figure((low + high) / 2, low, high, "", 3)
    reached = judging.verdict_of(test, gap)
    judged = PartResult("r", test, Term(), reached, gap, gap, gap)
    assert reached == expected
    assert (judged.p_value < 1) == (expected != "open")
    assert expected == "open" or judged.p_value <= judging.ERROR + 1e-12


def test_p_values_are_one_sided_except_those_of_contradictions() -> None:
    # A limit on the margin is 1.96 standard errors away from it. The margin of .02 adds as much
    # for a contradiction at the same critical value.
    tail = stats.norm.sf
    assert part(0.02, 0.06).p_value == pytest.approx(tail(1.96) + tail(2 * 1.96), rel=1e-3)
    assert part(0.0, 0.04, margin=0.0).p_value == pytest.approx(0.05)
    assert part(-0.08, -1e-12).p_value == pytest.approx(0.05)
    assert part(-0.02, 0.02).p_value == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("direction", "margin", "values"),
    [
        ("above", 0.0, (0.0, 1e-9, -1e-9)),
        *(("above", m, (0.0, -1e-9, m / 2, m, m + 1e-9, -m, -m - 1e-9)) for m in (0.3, 1, 2, 4)),
        *(("near", m, (0.0, m, m + 1e-9, -m, -m - 1e-9)) for m in (0.3, 1, 2, 4)),
    ],
)
def test_a_comparison_is_wrong_in_at_most_five_percent(
    direction: str, margin: float, values: tuple[float, ...]
) -> None:
    # Estimates with a standard error of 1, in steps of .01: the error is summed exactly.
    estimates = np.arange(-9, 9, 0.01)
    test = make_test(direction, margin)
    half = stats.norm.ppf(0.975)
    gaps = [Figure(x, x - half, x + half, "", 3) for x in estimates]
    verdicts = np.array([judging.verdict_of(test, gap) for gap in gaps])
    for true in values:
        right = {"open"}
        if direction == "near":
            right |= {"confirmed" if abs(true) <= margin else "contradicted"}
        else:
            right |= {"confirmed"} if true > margin else set()
            right |= {"no difference"} if abs(true) <= margin else set()
            right |= {"contradicted"} if true < 0 else set()
        density = stats.norm.pdf(estimates - true) * 0.01
        assert density[~np.isin(verdicts, [*right])].sum() <= 0.05 + 0.002


@pytest.mark.parametrize("samples", [20, 100, 1000])
def test_shares_near_a_number_are_wrongly_confirmed_in_at_most_five_percent(samples: int) -> None:
    shares = np.arange(samples + 1) / samples
    for number, margin in ((0.5, 0.1), (0.8, 0.1), (0.95, 0.04), (1.0, 0.05)):
        test = make_test("near", margin, "adv")
        confirmed = []
        for hits, share in enumerate(shares):
            limits = clopper_pearson(hits, samples)
            gap = Figure(share - number, limits.low - number, limits.high - number, "", 1)
            confirmed.append(judging.verdict_of(test, gap) == "confirmed")
        for true in {number - margin, min(number + margin, 1.0)} - {1.0}:
            chance = stats.binom.pmf(np.arange(samples + 1), samples, true)
            # Scaled limits err in the third digit.
            assert chance[confirmed].sum() <= 0.051


@pytest.mark.parametrize("figure", ["auc", "tpr@0.001"])
def test_a_difference_is_no_difference_from_the_smallest_margin_on(figure: str) -> None:
    for gap in (
        Figure(0.013, -0.027, 0.053, "", 3),
        Figure(-0.02, -0.05, 0.01, comparing.BY_STUDENT, 5),
    ):
        smallest = judging.smallest_margin(make_test(figure=figure), gap)
        assert smallest is not None
        for margin, expected in ((smallest - 1e-6, "open"), (smallest + 1e-6, "no difference")):
            test = make_test(margin=margin, figure=figure)
            assert judging.verdict_of(test, gap) == expected
    assert judging.smallest_margin(make_test(), Figure(0.1, None, None, "", 3)) is None


def test_rates_and_asymmetric_limits_keep_two_sided_p_values() -> None:
    gap = Figure(0.05, 0.03, 0.07, "", 3)
    auc, rate = make_test(margin=0.02), make_test(margin=0.02, figure="tpr@0.001")
    assert judging.has_normal_limits(auc, gap)
    assert not judging.has_normal_limits(rate, gap)
    assert not judging.has_normal_limits(auc, gap._replace(high=0.076))
    two_sided = 2 * stats.norm.sf(1.5 * stats.norm.ppf(0.975))
    assert judging.p_value_of(rate, gap, "confirmed") == pytest.approx(two_sided)
    assert judging.p_value_of(auc, gap, "confirmed") < 0.6 * two_sided


@pytest.mark.parametrize(
    ("intervals", "tier", "expected"),
    [
        ([HOLDS, HOLDS], 1, "confirmed"),
        ([HOLDS], 1, "open"),
        ([HOLDS], 2, "confirmed"),
        ([HOLDS, NEITHER], 1, "open"),
        ([HOLDS, HOLDS, NEITHER], 1, "confirmed"),
        ([HOLDS, NEITHER, NEITHER], 1, "open"),
        ([NOT], 1, "open"),
        ([NOT], 2, "contradicted"),
        ([NOT, NEITHER], 1, "open"),
        ([NOT, NOT, NEITHER], 1, "contradicted"),
        ([NOT, NOT, HOLDS], 1, "depends on the regime"),
        ([LEVEL, LEVEL], 1, "no difference"),
        ([LEVEL, LEVEL, NEITHER], 1, "no difference"),
        ([LEVEL, HOLDS], 1, "depends on the regime"),
        ([HOLDS, HOLDS, LEVEL], 1, "depends on the regime"),
        ([LEVEL, LEVEL, NOT], 1, "open"),
    ],
)
def test_main_claims_need_two_regimes_and_ablations_one(
    intervals: list[tuple[float, float]], tier: int, expected: str
) -> None:
    assert verdict(intervals, tier=tier).verdict == expected


def test_an_additional_inconclusive_regime_keeps_the_verdict() -> None:
    for intervals in ([HOLDS, HOLDS], [NOT, NOT], [LEVEL, LEVEL]):
        before, after = verdict(intervals), verdict([*intervals, NEITHER])
        assert before.verdict == after.verdict
        # The p-value pays for the choice of two of three regimes.
        assert before.p_value is not None
        assert after.p_value == pytest.approx(2 * before.p_value)


def test_partial_conjunction_p_values_use_simes_method() -> None:
    assert judging.partial([0.01, 0.02], 2, 2) == 0.02
    assert judging.partial([0.01, 0.02], 3, 2) == pytest.approx(0.04)
    # With three p-values of .02, the combined one is .02.
    assert judging.partial([0.02, 0.02, 0.02], 3, 2) == 0.02
    assert judging.partial([0.03], 4, 1) == pytest.approx(0.12)
    assert judging.partial([0.6], 4, 1) == 1.0


def what_decides(result: ClaimResult) -> str:
    return routes.what_decides(result, judging.ERROR)


def test_a_claim_with_one_regime_states_what_would_decide_it() -> None:
    assert what_decides(verdict([HOLDS])) == (
        "A second regime that leaks (an attack with an AUC of 0.7 without a defense)"
    )
    assert what_decides(verdict([NOT, NEITHER])) == (
        "Another margin or a narrower claim, because more of the same runs would not decide it"
    )
    differing = verdict([NOT, HOLDS])
    assert what_decides(differing) == ""
    assert routes.decided_in(differing) == "does not hold in `location30`; holds in `tiny-cnn`"
    agreeing = verdict([HOLDS, HOLDS, NEITHER])
    assert routes.decided_in(agreeing) == "in 2 of 3 regimes, open in the others"


def test_single_seed_regimes_do_not_count() -> None:
    comparison = part(*HOLDS)
    assert comparison.gap is not None
    alone = comparison._replace(gap=comparison.gap._replace(seeds=1))
    regime_result = judging.combine_parts([part(*HOLDS), alone], leaking=True)
    assert (regime_result.counts, regime_result.wanting, regime_result.verdict) == (
        False,
        "seeds",
        "open",
    )
    claim = verdict([HOLDS]).claim
    judged = judging.judge_claim(
        claim, [judging.combine_parts([part(*HOLDS)], leaking=True), regime_result]
    )
    assert judged.verdict == "open"
    assert what_decides(judged) == "At least 2 seeds of `location30` (1 so far)"
    assert "Not counted: `location30` (one seed)" in page.figures_cell(judged)


def test_a_conjunction_is_refuted_by_its_cheapest_part() -> None:
    # Far from confirmed in one part, and nearly contradicted in another.
    near_none, nearly_against = part(0.0, 0.044), part(-0.05, 0.002)
    regime_result = judging.combine_parts([near_none, nearly_against], leaking=True)
    claim = verdict([HOLDS], tier=2).claim
    route = routes.cheapest(judging.judge_claim(claim, [regime_result]), judging.ERROR)
    assert route is not None
    assert route.verdict == "contradicted"
    (step,) = route.steps
    assert step.part is nearly_against
    assert 1 < step.times < 2
    # Confirmation is impossible, since one part lies on the other side.
    assert routes.step_to(regime_result, "confirmed", 0.05) is None


def test_required_samples_include_the_multiplicity_correction() -> None:
    judged = verdict([(-0.01, 0.07)], tier=2)
    alone, of_ten = (routes.cheapest(judged, judging.ERROR / n) for n in (1, 10))
    assert alone is not None
    assert of_ten is not None
    assert of_ten.times > 1.5 * alone.times


@pytest.mark.parametrize(
    ("intervals", "tier", "expected"),
    [
        ([(0.010, 0.065)], 2, "at most 3 times the runs or samples"),
        ([(-0.05, 0.15)], 2, "at most 10 times"),
        ([(-0.0798, 0.1202)], 2, "on the margin"),
        ([HOLDS], 1, "too few regimes that count"),
    ],
)
def test_the_ledger_states_why_a_claim_is_open(
    intervals: list[tuple[float, float]], tier: int, expected: str
) -> None:
    assert ledger.reason_of(verdict(intervals, tier=tier), judging.ERROR) == expected


def test_the_ledger_separates_correction_disagreement_and_regimes_that_do_not_count() -> None:
    (corrected,) = judging.correct_claims([verdict([HOLDS], tier=2)._replace(p_value=0.06)])
    assert (corrected.verdict, ledger.reason_of(corrected, judging.ERROR)) == (
        "open",
        "regimes differ, but not significantly",
    )
    claims = [verdict([(0.0183, 0.0617)], tier=2), verdict([NEITHER], tier=2)]
    first, _ = judging.correct_claims(claims)
    assert ledger.reason_of(first, judging.ERROR) == "decided without correction"
    no_leak = judging.combine_parts([part(*HOLDS)], leaking=False)
    result = judging.judge_claim(verdict([HOLDS], tier=2).claim, [no_leak])
    assert ledger.reason_of(result, judging.ERROR) == "no regime leaks"


def test_the_cheapest_route_uses_only_the_needed_regimes() -> None:
    judged = verdict([(0.010, 0.065), (0.012, 0.061), (0.0205, 0.0205001)])
    route = routes.cheapest(judged, judging.ERROR)
    assert route is not None
    assert route.verdict == "confirmed"
    assert len(route.steps) == 2


def test_a_smaller_scale_than_the_paper_does_not_contradict_it() -> None:
    against = verdict([NOT, NOT])
    assert judging.at_scale(against, data.Scale(samples=5000)) == "not found at this scale"
    assert judging.at_scale(against, data.Scale(samples=10)) == "contradicted"
    assert judging.at_scale(against, data.Scale()) == "contradicted"
    assert judging.at_scale(verdict([HOLDS, HOLDS]), data.Scale(samples=5000)) == "confirmed"
    scaled = against._replace(verdict="not found at this scale")
    assert routes.what_decides(scaled, judging.ERROR) == "Runs at the paper's scale"
    words = data.Scale(clients=10, samples=5000, rounds=300).words(data.Scale(clients=1, samples=1))
    assert words == "10 clients x 5,000 samples"
    assert routes.what_decides(scaled, judging.ERROR, words) == (
        "Runs at the paper's scale: 10 clients x 5,000 samples"
    )


def test_scales_are_read_from_records() -> None:
    assert titles.scale_of("ami-accuracy") == data.Scale(
        clients=10, samples=1000, rounds=20, total_samples=10_000
    )
    assert titles.scale_of("ami-orl") == data.Scale(copies=50, others=80)
    # All data are distributed, so the scale is that of the smallest client.
    assert titles.scale_of("sources-location30").samples == 385


def test_a_claim_may_override_the_scale_of_its_paper() -> None:
    claim = verdict([NOT, NOT]).claim.model_copy(update={"scale": data.Scale()})
    against = verdict([NOT, NOT])._replace(claim=claim)
    assert judging.at_scale(against, data.Scale(samples=5000)) == "contradicted"


def test_further_runs_use_their_own_student_t_limits() -> None:
    comparison = part(*HOLDS)
    assert comparison.gap is not None
    with_limits = comparison._replace(gap=comparison.gap._replace(further=(0.0, 0.12), seeds=5))
    wider = judging.over_further_runs(with_limits)
    assert (with_limits.verdict, wider.verdict) == ("confirmed", "open")
    assert judging.over_further_runs(comparison).verdict == "not run"
    far = comparison._replace(gap=comparison.gap._replace(further=(0.021, 0.099), seeds=5))
    judged = judging.over_further_runs(far)
    tails = [stats.t.sf(stats.t.ppf(0.975, 4) * d / 0.039, 4) for d in (0.06 - 0.02, 0.06)]
    assert judged.p_value == pytest.approx(sum(tails))


def test_a_limit_equal_to_the_estimate_gives_a_positive_p_value() -> None:
    # Both targets are identified, so the upper limit of the share is the share.
    gap = Figure(1.0, 0.158, 1.0, "Clopper-Pearson 95%", 1)
    test = make_test("near", 0.05)
    judged = PartResult("ami-tiny", test, Term(), judging.verdict_of(test, gap), gap, gap, gap)
    assert judged.verdict == "contradicted"
    assert 0.01 < judged.p_value < 0.05


def test_student_limits_outside_the_range_of_a_rate_are_dropped() -> None:
    def values(*numbers: float) -> dict[int | None, dict[int | None, Value]]:
        return {seed: {None: Value.without_limits(value)} for seed, value in enumerate(numbers)}

    assert not comparing._fits("tpr@0.001", values(0.0, 0.0, 0.01, 0.0, 0.02))
    assert comparing._fits("tpr@0.001", values(0.3, 0.32, 0.29, 0.31, 0.3))
    assert not comparing._fits("auc", values(0.999, 1.0, 0.9, 1.0, 1.0))
    assert not comparing._fits("violations", values(0.0, 0.0, 1.0, 0.0, 2.0))
    # A difference may lie on either side of 0.
    assert comparing._fits("loss_gap@1", values(-0.01, 0.02, 0.01, 0.0, 0.02))


def test_figures_cover_the_seeds_of_their_difference() -> None:
    # One of the variants has one seed, the other has three.
    five_epochs = {"variant": "alpha-0p1-epochs-5", "attack": "sia"}
    single_epoch = {"variant": "alpha-0p1-epochs-1", "attack": "sia"}
    test = data.Test.model_validate(
        {"figure": "success", "one": five_epochs, "others": [single_epoch]}
    )
    part = judging.compare("sources-mnist", test, test.others[0])
    assert part.one is not None
    assert part.reference is not None
    assert part.gap is not None
    alone = comparing.figure_of(data.regimes()["sources-mnist"], test, test.others[0])
    assert alone is not None
    assert (part.one.seeds, part.reference.seeds, alone.seeds) == (1, 1, 3)
    assert part.one.value - part.reference.value == pytest.approx(part.gap.value, abs=1e-12)
    assert not part.is_over_common_samples


def test_games_generalise_to_targets_only_with_separate_targets() -> None:
    test = make_test(figure="adv")
    regime = data.regimes()["ami-cifar10-plain"]
    separate = comparing.figure_of(regime, test, Term())
    shared = comparing.figure_of(regime, test, Term(attack="hidden=5,games=1000,targets=100"))
    epochs = comparing.figure_of(regime, make_test(figure="epochs"), Term())
    assert separate is not None
    assert shared is not None
    assert epochs is not None
    assert separate.further == (separate.low, separate.high)
    assert epochs.further is not None
    assert shared.further is None


@pytest.mark.slow
def test_intervals_for_further_runs_are_at_least_as_wide() -> None:
    compared = 0
    for claim in (claim for paper in data.papers() for claim in paper.claim):
        for name in claim.regimes:
            for test in claim.tests[:2]:
                gap = judging.compare(name, test, test.others[0]).gap
                if gap is not None and gap.further is not None and gap.low is not None:
                    compared += 1
                    assert gap.further[0] <= gap.low, claim.id
                    assert gap.high is not None
                    assert gap.further[1] >= gap.high, claim.id
    assert compared > 50


NUMBER = re.compile(r"\d|\b(two|three|four|five|six|seven|eight|nine|ten|half|third|sixth)\b")


@pytest.mark.parametrize("name", data.regimes())
def test_regime_titles_take_numbers_from_the_configuration(name: str) -> None:
    template = data.regimes()[name].title
    assert not NUMBER.search(re.sub(r"\{[^}]*\}", "", template))
    filled = titles.title_of(name)
    assert "{" not in filled
    if "{sizes}" in template:
        config = titles.config_of(data.regimes()[name].study, data.regimes()[name].base)
        training, partition = config["training"], config["partition"]
        assert f"{training['rounds']} rounds of {training['epochs']} epoch" in filled
        assert f"{partition['clients']} clients" in filled


def test_regime_titles_match_their_records() -> None:
    assert titles.title_of("tiny-cnn").endswith("24 rounds of 3 epochs")
    assert titles.title_of("cofedmid-noise").startswith("Tiny-ImageNet-32, `cnn`, 10 clients x 300")
    # For a regime that was not run, the numbers come from the file of its study.
    assert titles.title_of("tiny-cnn-epoch").startswith(
        "Tiny-ImageNet-32, `cnn`, 10 clients x 400, 25 rounds of 1 epoch"
    )


def test_a_regime_without_leak_decides_nothing() -> None:
    regime_result = judging.combine_parts([part(*HOLDS)], leaking=False)
    assert (regime_result.verdict, regime_result.counts) == ("open", False)


def test_one_significant_comparison_contradicts_after_correction() -> None:
    barely = part(-0.0399, -0.0001)
    assert judging.combine_parts([barely], leaking=True).verdict == "contradicted"
    assert judging.combine_parts([barely, part(*HOLDS)], leaking=True).verdict == "open"
    against = judging.combine_parts([part(*NOT), part(*HOLDS)], leaking=True)
    assert against.verdict == "contradicted"
    assert against.p_value == pytest.approx(2 * part(*NOT).p_value)


def test_a_regime_with_a_missing_record_can_only_contradict() -> None:
    missing = PartResult("location30", make_test(), Term(), "not run", lacking="`x` was not run")
    assert not judging.combine_parts([part(*HOLDS), missing], leaking=True).counts
    assert judging.combine_parts([part(*NOT), missing], leaking=True).verdict == "contradicted"


def test_all_tested_claims_of_a_family_share_one_error() -> None:
    barely = (0.0183, 0.0617)
    assert verdict([barely], tier=2).verdict == "confirmed"
    # Alone, the claim holds. With an open claim it does not, since both were tested.
    both = judging.correct_claims([verdict([barely], tier=2), verdict([NEITHER], tier=2)])
    assert both[0].verdict == "open"
    assert routes.before_correction(both[0], 2) == (
        "confirmed without correction (p = 0.036), open after correction over 2 details"
    )
    share = routes.share_of_error(both, both[0].claim)
    assert routes.what_decides(both[0], share) == (
        "About 4 seeds of `location30` (3 so far): then confirmed (less than 0.1 core hours)"
    )
    not_tested = ClaimResult(both[0].claim, "not run", ())
    alone = judging.correct_claims([verdict([barely], tier=2), not_tested])
    assert alone[0].verdict == "confirmed"


def test_main_claims_details_and_our_questions_have_separate_errors() -> None:
    barely, neither = verdict([(0.0183, 0.0617)], tier=2), verdict([NEITHER], tier=2)
    ours = barely.claim.model_copy(update={"ours": True})
    main = barely.claim.model_copy(update={"tier": 1})
    families = [judging.family_of(claim) for claim in (main, barely.claim, ours)]
    assert families == ["main claims", "details", "our questions"]
    for other in (ours, main):
        results = [barely, neither._replace(claim=other)]
        assert judging.correct_claims(results)[0].verdict == "confirmed"
        assert judging.tested_in(results, barely.claim) == 1
        assert routes.share_of_error(results, barely.claim) == judging.ERROR
    # Each family is corrected as if the others did not exist.
    both = [barely, verdict([(0.022, 0.062)], tier=2)]
    alone = [result.verdict for result in judging.correct_claims(both)]
    mixed = judging.correct_claims([neither._replace(claim=ours), *both])
    assert [result.verdict for result in mixed[1:]] == alone


@pytest.mark.simulation
@pytest.mark.slow
def test_the_family_wise_error_at_the_margin_is_controlled() -> None:
    share = wrong_families(300, each=2, true=4, seed=3)
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert wrong_families(300, each=2, true=4, seed=3, correct=list) > 0.2


@pytest.mark.parametrize(
    ("figure", "low", "high", "margin", "expected"),
    [
        # The half-width is twice the estimate: four times the runs.
        ("auc", -0.02, 0.06, 0.0, "about 12 seeds of `location30` (3 so far)"),
        # The estimate is 0, and the margin is .02 away: (1.645 / 1.96 * 2)² times the runs.
        ("auc", -0.04, 0.04, 0.02, "about 9 seeds of `location30` (3 so far)"),
        (
            "test_accuracy",
            -0.02,
            0.06,
            0.0,
            "about 4 times the test samples of `location30` (or accuracies paired by sample)",
        ),
        (
            "tpr@0.001",
            -0.02,
            0.06,
            0.0,
            "about 4 times the members and non-members of `location30`",
        ),
    ],
)
def test_an_open_comparison_states_the_required_sample_size(
    figure: str, low: float, high: float, margin: float, expected: str
) -> None:
    gap = Figure((low + high) / 2, low, high, "", 3)
    judged = PartResult(
        "location30", make_test("above", margin, figure), Term(), "open", gap, gap, gap
    )
    times = min(routes.times_to(judged, verdict, judging.ERROR) for verdict in routes.FIRST)
    assert routes.more_of(judged, times) == expected


@pytest.mark.parametrize(
    ("figure", "value", "other", "verdict_", "expected"),
    [
        ("auc", 0.0203, {}, "confirmed", "seeds of `location30`, because its difference of 0.0203"),
        ("auc", -0.0001, {}, "contradicted", "difference of -0.0001 is close to 0"),
        ("auc", -0.0203, {}, "no difference", "difference of -0.0203 is close to -0.02"),
        ("tpr@0.001", 0.0203, {}, "confirmed", "times the members and non-members of `location30`"),
        ("auc", 0.0203, {"value": 0.7}, "confirmed", "its figure of 0.7203 is close to 0.72"),
    ],
)
def test_a_figure_close_to_a_bound_states_that_runs_do_not_decide(
    figure: str, value: float, other: dict[str, float], verdict_: judging.Verdict, expected: str
) -> None:
    gap = Figure(value, value - 0.1, value + 0.1, "", 3)
    test, term = make_test("above", 0.02, figure), Term.model_validate(other)
    judged = PartResult("location30", test, term, "open", gap, gap, gap)
    assert routes.is_level(judged, routes.times_to(judged, verdict_, judging.ERROR))
    reason = routes.too_close(judged, verdict_)
    assert reason.startswith("more than 1,000 ")
    assert expected in reason


def test_the_table_of_verdicts_has_every_claim_in_at_most_forty_words() -> None:
    rows = re.findall(
        r"^\| \[(.+?)\]\(#([^)]+)\) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
        page.PAGE.read_text("utf-8"),
        re.MULTILINE,
    )
    claims = [claim for paper in data.papers() for claim in paper.claim]
    assert {name for _, name, *_ in rows} == {claim.id for claim in claims}
    assert len(rows) == len(claims)
    for says, name, verdict_, figure, price in rows:
        assert len(f"{says} {verdict_} {figure} {price}".split()) <= 40, name
        is_open = verdict_ in ("open", "not found at this scale", "not run")
        assert (price != "–") == is_open, name


def test_every_claim_has_regimes_and_complete_comparisons() -> None:
    regimes = data.regimes()
    for paper in data.papers():
        for claim in paper.claim:
            assert bool(claim.not_run) != bool(claim.regimes), claim.id
            assert set(claim.regimes) <= set(regimes), claim.id
            assert claim.not_run or all(test.others for test in claim.tests), claim.id


def test_every_study_lists_its_hours_once() -> None:
    with_hours = [regime.study for regime in data.regimes().values() if regime.hours is not None]
    assert sorted(with_hours) == sorted({regime.study for regime in data.regimes().values()})


ABOUT_ATTACKS = (
    "auc",
    "tpr",
    "tnr",
    "adv",
    "success",
    "excess",
    "over_label",
    "risk",
    "violations",
)
"""Parts of the names of figures about the results of attacks."""


def test_claims_about_attacks_require_a_leaking_regime() -> None:
    measured = {"ifca-noise-floor"}  # This claim is about the count of violations without a leak.
    for paper in data.papers():
        for claim in paper.claim:
            figure_names = {test.figure for test in claim.tests}
            about = [name for name in figure_names if any(word in name for word in ABOUT_ATTACKS)]
            assert claim.leaks or not about or claim.id in measured, claim.id


def test_defended_clients_are_compared_with_undefended_ones() -> None:
    rows = [
        UsageRow(
            seed=1,
            client=client,
            defended=client == 0,
            samples=200,
            distinct=[200],
            # Defended clients use every sample twice, others five times.
            times_used=[0, 0, 200] if client == 0 else [0, 0, 0, 0, 0, 200],
            times_recycled=[200],
            seconds=3.0 if client == 0 else 2.0,
        )
        for client in (0, 1, 2)
    ]
    ratios = dict(figures.of_usage(rows))
    assert ratios["seconds_ratio"].value == pytest.approx(1.5)
    assert astuple(ratios["uses_ratio"])[:3] == pytest.approx((0.4, 0.4, 0.4))
    assert dict(figures.of_usage(rows[1:])) == {}


def test_the_loss_gap_uses_late_rounds() -> None:
    lines = [
        Trajectory.model_validate(
            {
                "signal": "loss",
                "target": 0,
                "seed": 1,
                "origin": origin,
                "rounds": list(range(1, 11)),
                "mean": [-float(base * round_number) for round_number in range(1, 11)],
                "low": [-100.0] * 10,
                "high": [0.0] * 10,
            }
        )
        for origin, base in (("member", 1), ("other_client", 2), ("unseen", 4))
    ]
    gaps = {name.figure: value.value for name, value in figures.of_loss(lines)}
    assert gaps == {"loss_gap@0.6": pytest.approx(12.0), "loss_gap@1": pytest.approx(20.0)}


def test_the_excess_over_labels_keeps_its_interval_method() -> None:
    half_record = read_record(data.RECORDS / "cofedmid-mnist" / "cofedmid-mnist-cofedmid-half.json")
    run = half_record.sources[0]
    of_run = {
        estimate.against: estimate
        for estimate in half_record.source_estimates
        if (estimate.attack, estimate.seed) == (run.attack, run.seed)
    }
    beyond = of_run[LABELS].model_copy(update={"method": "both errors 95%"})
    results = dict(figures._of_sources(run, {**of_run, LABELS: beyond}))
    assert results["excess"].method == "both errors 95%"
    assert astuple(results["excess"])[:3] == (beyond.value, beyond.low, beyond.high)
    assert results["success"].method == figures.SHARES


def test_the_separation_of_a_neuron_is_the_auc_of_its_histogram() -> None:
    apart = figures.spread_auc(Spread(edges=[0, 1, 2], of_target=[0, 50], of_others=[50, 0]))
    alike = figures.spread_auc(Spread(edges=[0, 1, 2], of_target=[50, 50], of_others=[50, 50]))
    assert apart.value == 1.0
    assert alike.value == 0.5
    assert alike.low is not None
    assert alike.low < 0.5


def test_convergence_uses_the_last_model_change_of_each_group() -> None:
    record = read_record(data.RECORDS / "ifca-mir-mnist-mlp" / "ifca-mir-mnist-mlp-ifca-mir.json")
    run = record.clusters[0]
    models = models_of_groups(run)
    changes = {figure_name.group: value.value for figure_name, value in figures.of_convergence(run)}
    for group, name in enumerate(run.group_names):
        before, after = (state.models[models[group] or 0].accuracy for state in run.rounds[-2:])
        assert before is not None
        assert after is not None
        assert changes[name] == after - before
    assert not list(figures.of_convergence(run.model_copy(update={"rounds": run.rounds[-1:]})))


def test_the_hypervolume_includes_all_strengths_and_no_defense(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    auc = figures.FigureName("auc", "fedmia-2", "mixed", 0)
    points = {"": (0.8, 0.8), "weak": (0.6, 0.6), "strong": (0.5, 0.1), "another": (0.5, 1.0)}
    (tmp_path / "study").mkdir()
    for variant in points:
        (tmp_path / "study" / f"{data.named('study', variant)}.json").touch()
    monkeypatch.setattr(figures, "RECORDS", tmp_path)
    kinds = {"study": "none", "study-another": "another"}
    monkeypatch.setattr(figures, "defenses_of", lambda path: kinds.get(path.stem, "family"))
    rows_by_variant = {
        variant: {
            auc: {1: {None: Value.without_limits(area)}},
            figures.FigureName("test_accuracy"): {1: {None: Value.without_limits(right)}},
        }
        for variant, (area, right) in points.items()
    }
    monkeypatch.setattr(figures, "rows", lambda _, variant: rows_by_variant[variant])
    hypervolumes = figures.hypervolumes("study", "family", "fedmia-2", "mixed", 0)
    # Strips of the unit square between advantages 0, .2, .6 and 1, below the best error so far.
    assert hypervolumes is not None
    assert hypervolumes[1][None].value == pytest.approx(0.2 * 0.1 + 0.4 * 0.6 + 0.4 * 0.8)
    assert figures.hypervolumes("study", "nowhere", "fedmia-2", "mixed", 0) is None


def test_variants_use_the_names_of_their_study() -> None:
    regime = data.Regime(study="s", title="", base="b", called={"late": "epochs-10", "b": "c"})
    assert data.variant_of(regime, Term(variant="late")) == "epochs-10"
    assert data.variant_of(regime, Term(variant="early")) == "early"
    assert data.variant_of(regime, Term()) == "c"
    assert data.variant_of(regime, Term(variant="late", study="another")) == "late"


def test_pairs_require_scores_of_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no scores\.safetensors"):
        pairs.take_pairs(tmp_path / "nothing", "fedmia-location30")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "X"\ntitle = ""\nclaim = []\nnonsense = 1', "nonsense: Extra inputs"),
        ('name = "X"\ntitle = ""', "claim: Field required"),
        ("[[[", "is no TOML"),
    ],
)
def test_an_unreadable_claims_file_raises_with_its_name(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=rf"x\.toml.*{message}"):
        data.read_toml(path, data.Paper)


def test_a_regime_without_base_run_has_an_unknown_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    regime_result = judging.combine_parts([part(*HOLDS)], leaking=False)
    monkeypatch.setattr(page, "leak_of", lambda name: None)
    assert page._why_omitted(regime_result) == "unknown leak"
    monkeypatch.undo()
    assert page._why_omitted(regime_result) == "no leak"


def test_an_unknown_option_prints_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = runpy.run_path(str(ROOT / "docs" / "claims.py"))["main"]
    with pytest.raises(SystemExit, match="2"):
        command(["--chekc"])
    assert "--check" in capsys.readouterr().err


def test_difference_lists_the_changed_rows() -> None:
    assert page.difference("one\ntwo\n", "one\ntwo\n") == ""
    difference = page.difference("one\ntwo\n", "one\nthree\n")
    assert "- two" in difference
    assert "+ three" in difference
    assert "one" not in difference.splitlines()
    assert "and 8 more" in page.difference("\n".join("abcdefghijklmnopqrst"), "")


def unit(tmp_path: Path, name: str, does: str) -> again.Unit:
    """Write the committed record of a tiny study; its command recreates it or fails."""
    committed = tmp_path / "records" / f"{name}.json"
    committed.parent.mkdir(exist_ok=True)
    write_record(record(name=name), committed)
    return again.Unit(name, (does, name), tmp_path / "runs" / name / "record.json", committed)


@pytest.mark.slow
def test_regeneration_continues_after_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = [unit(tmp_path, name, "make") for name in ("one", "two")]
    units.insert(1, unit(tmp_path, "broken", "fail"))
    units.insert(2, unit(tmp_path, "silent", "nothing"))
    called = []

    def run(words: Sequence[str]) -> int:
        does, name = words
        called.append(name)
        if does == "make":
            path = tmp_path / "runs" / name / "record.json"
            path.parent.mkdir(parents=True)
            moved = record(name=name)
            if name == "two":
                estimates = [
                    estimate.model_copy(update={"value": estimate.number - 1e-9})
                    if estimate.metric == "train_accuracy"
                    else estimate
                    for estimate in moved.estimates
                ]
                moved = moved.model_copy(update={"estimates": estimates})
            write_record(moved, path)
        return 3 if does == "fail" else 0

    assert again.run_units(units, run) == 1
    output = capsys.readouterr().out
    assert called == ["one", "broken", "silent", "two"]
    assert output.count("  train_accuracy: 1 equal to the digit\n") == 1
    assert "  train_accuracy: 1 of 1 differ, by 1e-09 at most\n" in output
    assert "2 of 4 records were repeated" in output
    assert "failed: broken: exit code 3 of fedaudit fail broken" in output
    assert "failed: silent: exit code 0" in output
    # Finished units are skipped, and failed ones are repeated.
    called.clear()
    assert again.run_units([units[0], units[3]], run) == 0
    assert called == []
    units[1].made.parent.mkdir(parents=True)
    units[1].made.write_text("{", encoding="utf-8")
    assert again.run_units([units[1]], run) == 1


NUMBERS = {"seven": 7, "eight": 8, "nine": 9, "two": 2}


def mean_attacks() -> list[str]:
    """Return the attacks in the mean of the claim about six other defenses."""
    claims = (claim for paper in data.papers() for claim in paper.claim)
    (averaged,) = (claim for claim in claims if claim.id == "cofedmid-pair-average")
    return list(averaged.tests[0].one.attacks)


def undefended_directions(study: str) -> dict[str, set[int]]:
    """Return each attack's directions at both targets in the undefended committed record."""
    committed = read_record(unpacked() / study / f"{study}.json")
    assert {
        target for estimate in committed.estimates if (target := estimate.target) is not None
    } == {0, 9}
    directions = directions_of(committed.estimates)
    return {
        attack: set(directions[AttackKey(attack, "mixed", "auc")].values())
        for attack in mean_attacks()
    }


def test_the_page_counts_the_attacks_of_a_mean_as_the_records_do() -> None:
    page_text = " ".join((ROOT / "docs" / "findings.md").read_text("utf-8").split())
    sentence = re.search(
        r"On Location-30, and on letters with one local epoch, (\w+) of (\w+) attacks are above "
        r"chance; FTA-L(?: \([^)]*\))? on local models is omitted\. On letters with three epochs, "
        r"(\w+) are above chance\. (\w+) are below "
        r"\(FTA-C(?:, [^,]*,)? and FTA-L on local models, AUC (\.\d+) and "
        r"(\.\d+) on client 0\) and count as 1 - AUC\.",
        page_text,
    )
    assert sentence
    *words, first_auc, second_auc = sentence.groups()
    above, attacks, above_on_letters, below = (NUMBERS[word.lower()] for word in words)
    directions = {
        study: undefended_directions(study)
        for study in ("cofedmid-location30", "cofedmid-letters", "cofedmid-letters-epoch")
    }
    location30, letters, epoch = directions.values()
    # Both targets agree for every attack.
    assert all(len(signs) == 1 for each in directions.values() for signs in each.values())

    def count(each: dict[str, set[int]], direction: int) -> int:
        return sum(signs == {direction} for signs in each.values())

    assert attacks == len(mean_attacks())
    assert above == count(location30, 1) == count(epoch, 1)
    assert (above_on_letters, below) == (count(letters, 1), count(letters, -1))
    assert {name for name, signs in letters.items() if signs == {-1}} == {"fta-c", "fta-l"}
    for each in (location30, epoch):
        assert {name for name, signs in each.items() if signs != {1}} == {"fta-l"}
        assert each["fta-l"] == {0}
    record_ = read_record(unpacked() / "cofedmid-letters" / "cofedmid-letters.json")
    for attack, printed in (("fta-c", first_auc), ("fta-l", second_auc)):
        (estimate,) = record_.where(
            attack=attack, contrast="mixed", metric="auc", target=0, seed=None, against=""
        )
        assert f"{estimate.value:.3f}".lstrip("0") == printed


def test_reproduced_estimates_are_compared_where_possible() -> None:
    assert again._words([0.0, 0.0]) == "2 equal to the digit"
    assert again._words([0.0, 0.002]) == "1 of 2 differ, by 0.002 at most"
    only = "1 of 2 differ; 1 with a value or limits on one side only"
    assert again._words([0.0, math.inf]) == only
    assert "by 0.002 at most; 1 with" in again._words([0.002, math.inf])
