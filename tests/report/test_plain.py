import pytest

from fedaudit.formatting.wording import format_interval, limits_of_change
from fedaudit.report.first import first_screen, tiles_of
from fedaudit.report.page import report_html
from fedaudit.report.pictures import first_picture
from fedaudit.report.text.verdict import PlainVerdict, summarise_verdict
from fedaudit.results import estimate as estimates
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ClientRow, Record
from fedaudit.results.runs import Coverage
from tests.estimates import changed, estimate
from tests.gate.parts import control
from tests.report.records import CONTROLS, record
from tests.report.seen import tiles, words

NOTHING = (0.02, 0.03, 0.0)
ATTACK_ROWS = record(details=False).attacks[:3]
UNDEFENDED = (("none", 1.0),)


def none_found(**changes: object) -> Record:
    return record(strengths=NOTHING, defenses=UNDEFENDED, details=False, **changes)  # type: ignore[arg-type]


def auc(value: float, low: float | None, high: float | None, **changes: object) -> Estimate:
    where = {"attack": "a", "contrast": "unseen", "metric": "auc", "target": 0, "seed": 1}
    return estimate({**where, "value": value, "low": low, "high": high, **changes})


def rate(value: float, low: float | None, high: float | None, **changes: object) -> Estimate:
    counts = {"n_members": 1000, "n_nonmembers": 1000, "realised_fpr": 0.01}
    return auc(value, low, high, **{"metric": "tpr@0.01", **counts, **changes})


def only(*figures: Estimate) -> Record:
    return changed(none_found(), estimates=list(figures))


def verdict_of(*figures: Estimate) -> PlainVerdict:
    return summarise_verdict(only(*figures))


def test_a_strong_leak_is_reported_with_its_tpr_and_limits() -> None:
    plain_verdict = summarise_verdict(record(details=False))
    assert plain_verdict.status == "strong leak"
    tile = next(tile for tile in tiles(record(details=False)) if "TPR" in tile.label)
    assert (tile.value, tile.tone) == ("56.8%", "strong")
    assert tile.detail.startswith("a strong leak · ")
    assert "fedmia-2" in tile.detail
    assert "10 clients with 400 to 625 samples each" in plain_verdict.audited
    assert "client 0" in plain_verdict.audited
    assert any("ami was refused" in point for point in plain_verdict.open)


def test_the_verdict_lists_effective_defenses() -> None:
    plain_verdict = summarise_verdict(
        record(defenses=(("none", 1.0), ("dp-sgd", 0.0)), details=False)
    )
    assert "The leak is shown with no defense, but not with dp-sgd." in plain_verdict.meaning


def test_no_leak_shown_is_never_called_a_proof() -> None:
    plain_verdict = summarise_verdict(none_found())
    assert plain_verdict.status == "no leak shown"
    assert "not a proof" in plain_verdict.meaning
    assert "No leak was planted" in plain_verdict.meaning


def test_a_detected_planted_leak_is_evidence_that_attacks_work() -> None:
    assert (
        "so they work" in summarise_verdict(none_found(controls=(control("planted leak"),))).meaning
    )


def test_wide_intervals_are_inconclusive_and_no_sign_of_safety() -> None:
    plain_verdict = summarise_verdict(none_found(size=30))
    assert plain_verdict.status == "inconclusive"
    assert "not a sign of safety" in plain_verdict.meaning
    assert (
        "TPR at 0.1% FPR: 9 figures could not be computed. More non-members are needed."
        in plain_verdict.open
    )
    assert "needs 970 more" in words(report_html(none_found(size=30)))


def test_a_record_without_figures_is_inconclusive() -> None:
    assert verdict_of().status == "inconclusive"


def test_a_failed_control_takes_precedence_in_the_verdict() -> None:
    failed = changed(CONTROLS[2], value=0.71, passed=False)
    for strengths in (NOTHING, (2.6, 1.0)):
        plain_verdict = summarise_verdict(
            record(strengths=strengths, controls=(failed,), details=False)
        )
        assert plain_verdict.status == "control failed"
        assert "do not rely on the figures that it checks" in plain_verdict.headline


def test_a_redraw_evaluation_has_a_void_verdict() -> None:
    plain_verdict = summarise_verdict(record(evaluation="redraw", details=False))
    assert plain_verdict.status == "void"
    assert "no figure here describes the model" in plain_verdict.meaning


def test_an_auc_below_one_half_is_not_mirrored() -> None:
    plain_verdict = verdict_of(auc(0.3, 0.25, 0.35), rate(0.0, 0.0, 0.02))
    assert plain_verdict.status == "inconclusive", "a score with the wrong sign hides a leak"
    assert "wrong sign" in plain_verdict.headline
    assert any("reverse a score after seeing" in point for point in plain_verdict.open)


def test_aucs_below_one_half_are_reported_once_with_their_number() -> None:
    plain_verdict = verdict_of(
        *(
            auc(0.3, 0.25, 0.35, attack="sly", contrast=contrast, target=target)
            for target in (0, 4)
            for contrast in ("unseen", "mixed", "other_client")
        )
    )
    (point,) = [point for point in plain_verdict.open if "reverse a score after seeing" in point]
    assert point.startswith(
        "In 6 figures (sly v. unseen, sly v. mixed and sly v. other clients' samples), members "
        "score below non-members. An adversary who reverses the score may find a leak."
    )


def test_the_strongest_estimate_is_reported_with_its_client() -> None:
    plain_verdict = verdict_of(
        *(auc(0.6 + i / 100, 0.55, 0.75, attack="fedmia-1", target=i) for i in range(10))
    )
    (forest,) = first_picture(
        only(*(auc(0.6 + i / 100, 0.55, 0.75, attack="fedmia-1", target=i) for i in range(10)))
    )
    assert forest.lines[0].label == "client 9 · fedmia-1"
    assert "in the training data of 10 clients?" in plain_verdict.audited


@pytest.mark.parametrize(
    ("low", "status"),
    [
        (0.51, "trace of a leak"),
        (0.55, "weak leak"),
        (0.6, "clear leak"),
        (0.7, "strong leak"),
    ],
)
def test_the_lower_limit_of_the_strongest_figure_names_the_leak(low: float, status: str) -> None:
    plain_verdict = verdict_of(auc(0.9, low, 0.95, significant=True), rate(0.01, 0.005, 0.02))
    assert plain_verdict.status == status
    assert "strong leak" in plain_verdict.meaning or status == "strong leak"


def test_a_significant_tpr_without_lower_limit_is_a_trace() -> None:
    plain_verdict = verdict_of(
        auc(0.55, 0.5, 0.6, significant=False),
        rate(0.3, None, 0.5, significant=True, metric="tpr@0.001", method="exact 95%"),
    )
    assert plain_verdict.status == "trace of a leak"
    assert "size is between trace and strong; best estimate 30.0%" in plain_verdict.headline


def test_limits_at_the_used_threshold_are_not_relied_on() -> None:
    used = {"low_at_threshold": 0.25, "high_at_threshold": 0.35}
    chance = auc(0.5, 0.48, 0.52, significant=False)
    leak = verdict_of(chance, rate(0.3, None, None, significant=True, **used))
    assert leak.status == "trace of a leak"
    bounded = rate(0.01, 0.0, 0.02, significant=False)
    assert verdict_of(chance, bounded).status == "no leak shown"
    only_used = rate(
        0.01, None, None, significant=False, low_at_threshold=0, high_at_threshold=0.02
    )
    assert verdict_of(chance, only_used).status == "inconclusive"


def test_an_interval_that_includes_chance_is_inconclusive() -> None:
    plain_verdict = verdict_of(auc(0.55, 0.49, 0.59, significant=True), rate(0.01, 0.005, 0.02))
    assert plain_verdict.status == "inconclusive"
    assert any("1 figure marked △" in point for point in plain_verdict.open)


def test_no_leak_shown_requires_low_upper_limits() -> None:
    chance = auc(0.5, 0.48, 0.52, significant=False)
    assert verdict_of(chance, rate(0.01, 0.005, 0.02, significant=False)).status == "no leak shown"
    assert verdict_of(chance, rate(0.03, 0.005, 0.05, significant=False)).status == "inconclusive"
    assert verdict_of(chance).status == "inconclusive"


def test_no_leak_shown_states_the_upper_limits() -> None:
    chance = auc(0.5, 0.48, 0.52, significant=False)
    plain_verdict = verdict_of(chance, rate(0.01, 0.005, 0.02, significant=False))
    assert (
        "limits is still possible: AUC up to 0.520 and TPR at 1% FPR up to 2.0%"
        in plain_verdict.meaning
    )
    assert "This audit did not measure TPR below 1% FPR." in plain_verdict.meaning


def test_a_mean_without_interval_uses_the_limits_of_its_runs() -> None:
    runs = [rate(0.0, 0.0, 0.004, seed=seed, significant=False) for seed in (1, 2)]
    mean = changed(runs[0], seed=None, low=None, high=None)
    chance = auc(0.5, 0.48, 0.52, seed=None, significant=False)
    assert verdict_of(chance, mean, *runs).status == "no leak shown"
    assert verdict_of(chance, mean).status == "inconclusive"


def test_refused_estimates_of_one_metric_are_summarised() -> None:
    def refused(contrast: str, missing: int) -> Estimate:
        note = f"inconclusive: needs {missing:,} more non-members"
        return estimate(attack="a", contrast=contrast, metric="tpr@0.001", value=None, note=note)

    estimates = [refused("unseen", 852), refused("mixed", 1701), refused("other_client", 849)]
    points = verdict_of(*estimates, *estimates).open
    assert points[0] == (
        "TPR at 0.1% FPR: 6 figures could not be computed. More non-members are needed."
    )
    present = estimate(attack="b", contrast="unseen", metric="tpr@0.001", value=0.1)
    part = verdict_of(*estimates, present).open[0]
    assert part.startswith("TPR at 0.1% FPR: 3 of 4 figures could not be computed.")
    page = words(report_html(only(*estimates)))
    assert all(f"needs {missing} more" in page for missing in ("852", "1,701", "849"))


def test_refused_means_are_summarised_with_a_range() -> None:
    def refused(target: int, missing: int) -> Estimate:
        note = "0 of 2 seeds gave this figure: inconclusive: needs "
        where = {"attack": "a", "contrast": "unseen", "metric": "tpr@0.001", "target": target}
        return estimate(where, value=None, note=f"{note}{missing} more non-members")

    points = verdict_of(refused(0, 746), refused(1, 637)).open
    assert points[0] == (
        "TPR at 0.1% FPR: 2 figures could not be computed. More non-members are needed."
    )
    page = words(report_html(only(refused(0, 746), refused(1, 637))))
    assert "needs 746 more" in page
    assert "needs 637 more" in page


def barely_trained(estimates: Record, train: float) -> Record:
    figures = [
        changed(estimate, value=train) if estimate.metric == "train_accuracy" else estimate
        for estimate in estimates.estimates
    ]
    clients = [
        ClientRow(client=place, samples=500, audited=0, class_counts=[50] * 10)
        for place in range(4)
    ]
    return changed(estimates, estimates=figures, clients=clients)


@pytest.mark.parametrize(("train", "warned"), [(0.056, True), (0.185, True), (0.195, False)])
def test_a_training_accuracy_near_chance_warns(train: float, warned: bool) -> None:
    """With ten equal classes, 19% is a tenth of the way from chance level to 100%."""
    warning = barely_trained(none_found(), train)
    assert bool(summarise_verdict(warning).warning) is warned
    assert ("Training accuracy near guessing" in report_html(warning)) is warned


def test_no_leak_in_a_barely_trained_model_is_inconclusive() -> None:
    assert summarise_verdict(none_found()).status == "no leak shown"
    plain_verdict = summarise_verdict(barely_trained(none_found(), 0.1))
    assert plain_verdict.status == "inconclusive"
    assert "barely learned" in plain_verdict.headline
    assert "intervals are too wide" not in plain_verdict.meaning


def test_a_leak_in_a_barely_trained_model_is_reported() -> None:
    plain_verdict = summarise_verdict(barely_trained(record(details=False), 0.1))
    assert (plain_verdict.status, plain_verdict.warning) == ("strong leak", "")
    page = words(report_html(barely_trained(record(details=False), 0.1)))
    assert "barely learned" not in page


def test_tile_badge_and_text_agree_on_the_largest_leak() -> None:
    few = only(auc(0.58, 0.52, 0.64, significant=True), rate(0.106, 0.062, 0.166, significant=True))
    plain_verdict, first = summarise_verdict(few), tiles(few)[0]
    assert (plain_verdict.status, first.value, first.tone) == ("clear leak", "10.6%", "clear")


def test_missing_controls_are_neither_passed_nor_failed() -> None:
    bare = none_found(controls=())
    first = first_screen(bare, summarise_verdict(bare))
    assert (first.sign, first.controls) == ("?", "No control was run")


def test_an_estimate_insignificant_after_correction_is_labelled() -> None:
    details = [
        tiles_of(only(figure))["membership"][0].detail
        for figure in (
            auc(0.58, 0.51, 0.65, tests=estimates.tests_of(significant=False)),
            auc(0.52, 0.45, 0.60, tests=estimates.tests_of(significant=False)),
        )
    ]
    assert details[0].startswith(
        "not shown to be above guessing after correction for multiple testing"
    )
    assert details[1].startswith("not shown to be above guessing · ")


def test_missing_rounds_are_the_reason_of_an_inconclusive_verdict() -> None:
    coverage = Coverage(rounds=4, measured=2, last_measured=4, n_missing_rounds=2)
    missing = changed(none_found(), coverage=coverage)
    plain_verdict = summarise_verdict(missing)
    assert plain_verdict.headline.startswith(
        "Inconclusive: not every round and upload was measured."
    )
    assert "Not measured: 2 rounds" in plain_verdict.headline
    assert "too wide" not in plain_verdict.meaning
    assert first_screen(missing, plain_verdict).next[0].startswith("Measure the rounds and uploads")


def test_attacks_are_listed_by_name_and_identifier() -> None:
    rows = [changed(row, status="refused", note="needs REFERENCE_MODELS") for row in ATTACK_ROWS]
    page = words(report_html(changed(record(details=False), attacks=rows)))
    assert "FedMIA, gradients (fedmia-2)" in page
    assert page.count("needs reference models") == 1


def test_limits_are_rounded_outwards() -> None:
    assert format_interval(0.9184, 0.9441, "auc") == "0.918–0.945"
    assert format_interval(0.3812, 0.4441, "tpr@0.01") == "38.1–44.5%"
    assert limits_of_change(-0.0123, 0.0101, "auc") == "−0.013 to +0.011"
