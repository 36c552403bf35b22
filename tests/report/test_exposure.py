"""Evidence about the most exposed sample or person."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import norm

from fedaudit.core.metric_names import FORMAL_EPSILON
from fedaudit.pack.suppressing import suppress_small_groups
from fedaudit.report.clauses import most_exposed
from fedaudit.report.exposure import (
    ProvenPrivacy,
    exposed_class_sentence,
    exposure,
    exposure_sentence,
    largest_tpr,
    proven_for_samples,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ControlResult, Record
from fedaudit.summary.page import summary_markdown, summary_of
from tests.estimates import changed, estimate
from tests.gate.parts import KINDS, auc, bound, control, record_of, tpr
from tests.report.games import played
from tests.report.records import record, source, with_sources

HOLDING = [control(kind) for kind in KINDS]
UNKNOWN = (
    "the upper limits are averages over samples; a single sample has no upper limit and may be "
    "much more exposed"
)


UNKNOWN_PERSON = UNKNOWN.replace("samples", "people").replace("sample", "person")


def proven(epsilon: float, **changes: object) -> Estimate:
    return estimate(
        {
            "metric": FORMAL_EPSILON,
            "value": epsilon,
            "contrast": "unseen",
            "method": "Renyi accountant, delta 1e-05",
            "note": "unit: one sample, in 20 steps that each draw it with probability 0.1",
            **changes,
        }
    )


def exposed(*figures: Estimate, controls: Sequence[ControlResult] = HOLDING) -> Record:
    return record_of(auc(0.7, 0.8), *figures, controls=list(controls))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomised_response_reaches_the_largest_rate(epsilon: float) -> None:
    lie = 1 / (1 + math.exp(epsilon))
    assert largest_tpr(epsilon, 0.0, lie) == pytest.approx(1 - lie)


@pytest.mark.parametrize("separation", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("fpr", [0.001, 0.01, 0.3])
def test_the_largest_rate_bounds_the_best_test_of_gaussian_noise(
    separation: float, fpr: float
) -> None:
    best = norm.cdf(norm.ppf(fpr) + separation)
    limits = []
    for epsilon in np.linspace(0, 12, 400):
        # The smallest delta of the Gaussian mechanism for this epsilon.
        delta = norm.cdf(separation / 2 - epsilon / separation) - math.exp(epsilon) * norm.cdf(
            -separation / 2 - epsilon / separation
        )
        limits.append(largest_tpr(float(epsilon), max(float(delta), 0.0), fpr))
    assert min(limits) >= best - 1e-9
    assert min(limits) == pytest.approx(best, abs=0.01)


def test_the_largest_rate_is_a_probability() -> None:
    assert largest_tpr(0.0, 0.0, 0.01) == pytest.approx(0.01)
    assert largest_tpr(1e15, 0.5, 0.01) == 1
    assert largest_tpr(0.0, 1.0, 0.01) == 1


def test_members_of_one_run_are_counted() -> None:
    figure = tpr(100, nonmembers=1000)
    assert figure.low is not None
    found = exposure(exposed(figure)).found
    count = math.ceil(figure.low * 500)
    assert 50 < count < 100
    assert found == (
        f"at 1% false alarms, an attack finds at least {math.floor(figure.low * 1000) / 10}% of "
        f"members, {count} of 500 (fedmia-2; 95% confidence)"
    )


def test_a_mean_over_runs_has_no_count() -> None:
    runs = [tpr(100, nonmembers=1000, seed=seed) for seed in (1, 2)]
    mean = changed(runs[0], seed=None, n_members=1000)
    found = exposure(exposed(*runs, mean)).found
    assert "of 1,000" not in found
    assert found.endswith("(fedmia-2; mean over seeds; 95% confidence)")


@pytest.mark.parametrize(
    "figure",
    [
        tpr(100, nonmembers=50),
        changed(tpr(100, nonmembers=1000), low=0.009),
        changed(tpr(100, nonmembers=1000), method="Clopper-Pearson 95% at the threshold used"),
        tpr(100, nonmembers=1000, significant=False, value=0.005, low=None),
    ],
    ids=["too few non-members", "below guessing", "threshold taken as fixed", "not above guessing"],
)
def test_rates_without_a_lower_limit_above_guessing_are_left_out(figure: Estimate) -> None:
    assert exposure(exposed(figure)).found == ""


def test_a_proven_epsilon_limits_every_sample() -> None:
    limited = exposed(proven(1.0))
    assert proven_for_samples(limited) == ProvenPrivacy(1.0, 1e-5)
    assert exposure(limited).limit == (
        "by the proven epsilon of 1.000, an attack on a defended client’s uploads finds any single "
        "sample with a probability of at most 2.8% at 1% false alarms"
    )
    assert most_exposed(limited).kind == "figure"
    assert most_exposed(limited).text.startswith("By the proven epsilon")


def test_a_large_epsilon_gives_no_useful_limit() -> None:
    evidence = exposure(exposed(proven(10.9)))
    assert not evidence.is_limited
    assert evidence.limit == "the proven epsilon of 10.9 gives no useful limit for a single sample"


@pytest.mark.parametrize(
    "record",
    [
        exposed(),
        exposed(proven(1.0, note="unit: a client's whole contribution to each of 5 uploads")),
        exposed(proven(1.0, method="BitRand")),
        exposed(proven(1.0, method="Renyi accountant, delta nan")),
        exposed(proven(1.0, method="Renyi accountant, delta 7")),
        exposed(proven(1.0, defense="dp-sgd")),
        exposed(proven(1.0), bound(1.5)),
        exposed(changed(auc(0.7, 0.8), unit="person"), proven(1.0)),
        exposed(proven(1.0), controls=[control("untrained model", passed=False)]),
    ],
    ids=[
        *("nothing proven", "clients", "features", "no delta", "delta above 1", "other defense"),
        *("refuted", "people", "failed control"),
    ],
)
def test_no_limit_is_stated_without_a_valid_proof(record: Record) -> None:
    evidence = exposure(record)
    assert not evidence.is_limited
    assert evidence.limit == UNKNOWN if record.unit == "sample" else UNKNOWN_PERSON


def test_the_clause_gives_the_fraction_that_is_found() -> None:
    answer = most_exposed(exposed(tpr(100, nonmembers=1000)))
    assert answer.kind == "figure"
    assert answer.text.startswith("At 1% false alarms, an attack finds at least ")
    assert answer.text.endswith(f"; {UNKNOWN}")
    assert answer.more.endswith("use fedaudit ask.")


def test_without_a_limit_the_clause_is_open() -> None:
    plain = most_exposed(record_of(auc(0.45, 0.55)))
    assert plain.kind == "not tested"
    assert plain.more.startswith(f"No lower limit of a TPR is above guessing, and {UNKNOWN}.")
    failed = exposed(tpr(100), controls=[control("untrained model", passed=False)])
    assert most_exposed(failed).kind == "inconclusive"
    for other in (played(), with_sources(source())):
        assert most_exposed(other).more == "The record has no figure of an attack on membership."
    flawed = record(details=False, evaluation="redraw")
    assert most_exposed(flawed).kind == "not tested"


def test_a_summary_has_one_sentence_on_the_most_exposed_sample() -> None:
    leaking = exposed(tpr(100, nonmembers=1000))
    (answer,) = [part for part in summary_of(leaking).sections if part.title == "The answer"]
    (text,) = [text for text in answer.paragraphs if "most exposed sample" in text]
    assert text.startswith("The most exposed sample: at 1% false alarms, an attack finds at least")
    assert text.endswith(f"{UNKNOWN}.")
    for other in (played(), with_sources(source())):
        assert "most exposed" not in summary_markdown(other)


def test_a_pack_has_the_same_sentence_without_single_samples() -> None:
    full = record(seeds=(1,), defenses=(("none", 1.0),))
    packed, hidden = suppress_small_groups(full)
    assert hidden["exposed"] > 0
    assert exposure(packed).found
    assert exposure_sentence(packed) == exposure_sentence(full)


def of_class(label: str, value: float | None, n_members: int = 50) -> Estimate:
    fields = {"group": label, "by": "class", "contrast": "mixed", "value": value}
    limits = {"low": None, "high": None} if value is None else {}
    return changed(auc(0.5, 0.9), n_members=n_members, **fields, **limits)


def test_the_class_with_the_largest_auc_is_named_with_the_number_of_figures() -> None:
    record = record_of(auc(0.5, 0.6), of_class("3", 0.7), of_class("7", 0.8), of_class("9", None))
    sentence = exposed_class_sentence(record)
    assert sentence.startswith(
        "The most exposed class (predicted category) is class 7: AUC 0.800 (0.500–0.900; 50 members"
    )
    assert sentence.endswith("the largest of 2 figures and so probably too large")
    leaking = exposed(tpr(100, nonmembers=1000), *record.groups)
    page = summary_markdown(leaking)
    assert "The most exposed class (predicted category) is class 7: AUC 0.800" in page


def test_a_single_figure_for_a_class_is_not_called_the_largest() -> None:
    sentence = exposed_class_sentence(record_of(auc(0.5, 0.6), of_class("3", 0.7)))
    assert sentence.endswith("the only figure for a class")


def test_a_pack_does_not_name_a_class_that_is_too_small() -> None:
    small = of_class("7", 0.8, n_members=9)
    record = record_of(auc(0.5, 0.6), of_class("3", 0.7), of_class("4", 0.6), small)
    assert "is class 7:" in exposed_class_sentence(record)
    assert "class: 7" not in exposed_class_sentence(suppress_small_groups(record)[0])


def test_a_missing_most_exposed_class_is_stated() -> None:
    assert "no figure for a single class" in exposed_class_sentence(record_of(auc(0.5, 0.6)))
    assert exposed_class_sentence(played()) == ""
