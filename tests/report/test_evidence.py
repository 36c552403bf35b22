import pytest

from fedaudit.formatting.wording import interval_text
from fedaudit.report.deciding.caveats import range_headline
from fedaudit.report.evidence import marker_of, size_of, size_phrase, size_reached
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance
from tests.estimates import changed, estimate


def figure(**changes: object) -> Estimate:
    return estimate({"metric": "auc", "value": 0.65, "low": 0.61, "high": 0.7, **changes})


@pytest.mark.parametrize(
    ("value", "metric", "word"),
    [
        (0.5, "auc", None),
        (0.501, "auc", "trace"),
        (0.55, "auc", "weak"),
        (0.6, "auc", "clear"),
        (0.7, "auc", "strong"),
        (0.01, "tpr@0.01", None),
        (0.02, "tpr@0.01", "weak"),
        (0.02, "tpr@0.001", "clear"),
        (0.1, "tpr@0.01", "strong"),
        (0.9, "tpr@0.1", None),
        (3.0, "epsilon", None),
    ],
)
def test_leak_sizes_follow_their_thresholds(value: float, metric: str, word: str | None) -> None:
    assert size_reached(value, metric) == word


def test_the_marker_needs_both_the_corrected_test_and_the_interval() -> None:
    assert marker_of(figure(significant=True)) == ("▲ ", "clear", "clear")
    assert marker_of(figure(significant=False)) == ("", "", "")
    assert marker_of(figure(significant=True, low=0.49)) == ("△ ", "", "size unknown")
    assert marker_of(figure(value=None, significant=None)) == ("", "", "")


def test_test_or_interval_decides_if_the_other_is_missing() -> None:
    assert above_chance(figure())
    assert above_chance(figure(significant=True, low=None, high=None))
    assert not above_chance(figure(low=0.49))
    assert above_chance(figure(low=None, high=None)) is None


def test_a_rate_is_above_guessing_by_its_exact_test() -> None:
    rate = figure(metric="tpr@0.01", value=0.04, seed=1, low=0.005, high=0.09, significant=True)
    assert marker_of(rate) == ("▲ ", "raised", "trace")
    assert not above_chance(changed(rate, significant=False))
    assert marker_of(changed(rate, low=0.02)).word == "weak"
    # Over seeds both are about these runs.
    assert marker_of(changed(rate, seed=None)).word == "trace"


def test_a_leak_two_sizes_above_its_lower_limit_has_both_sizes() -> None:
    """A rate of 11 % does not weaken the verdict of an AUC that shows a strong leak."""
    rate = figure(metric="tpr@0.01", value=0.113, low=0.022, high=0.24, significant=True)
    assert marker_of(rate) == ("▲ ", "weak", "weak to strong")
    assert size_phrase(rate) == "a leak of a size between weak and strong"
    assert marker_of(changed(rate, low=0.06)).word == "clear"
    auc = figure(value=0.72, low=0.56, high=0.8, significant=True)
    assert marker_of(auc).word == "weak to strong"
    # The headline has the word of the lower limit, unless that is only a trace.
    assert not range_headline([rate])
    assert range_headline([changed(rate, low=0.015)])


def test_a_rate_without_a_lower_limit_is_at_most_a_trace() -> None:
    rate = figure(metric="tpr@0.001", value=0.4, seed=1, low=None, high=0.6, significant=True)
    assert size_of(rate) == "trace"
    assert interval_text(rate) == "≤ 60.0%"
    assert size_of(changed(rate, significant=False)) is None
    assert size_of(changed(rate, metric="tpr@0.1")) is None


def test_limits_at_the_threshold_used_name_no_size() -> None:
    used = {"low": None, "high": None, "low_at_threshold": 0.3, "high_at_threshold": 0.5}
    rate = figure(metric="tpr@0.001", value=0.4, seed=1, significant=True, **used)
    assert (marker_of(rate).sign, marker_of(rate).word) == ("▲ ", "")
    assert interval_text(rate) == "at the threshold used 30.0–50.0%"


def test_without_an_interval_the_value_names_the_size() -> None:
    assert size_of(figure(significant=True, low=None, high=None, value=0.99)) == "strong"
    assert size_of(figure(significant=False)) is None
