import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core import metric_names
from fedaudit.formatting.fixed import fixed_texts
from fedaudit.formatting.grid import Footnotes, as_one_line, shorten
from fedaudit.formatting.wording import (
    format_interval,
    format_number,
    format_percent,
    format_value,
    join_and,
    metric_name,
    with_interval,
    without_verdict,
)
from tests.estimates import estimate


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (1.0, "100%"),
        (0.412, "41.2%"),
        (0.0012, "0.12%"),
        (0.00003, "0.003%"),
        (0.99996, "99.99%"),
        (-0.03, "-3.0%"),
    ],
)
def test_shares_are_formatted_in_per_cent(share: float, text: str) -> None:
    assert format_percent(share) == text


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_shares_are_never_rounded_to_zero_or_all(share: float) -> None:
    assert format_percent(share) not in ("0%", "100%", "0.00%", "100.00%", "100.0%")


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("auc", "AUC"),
        ("tpr@0.001", "TPR at 0.1% FPR"),
        ("tpr@0.0001", "TPR at 0.01% FPR"),
        ("tpr@0.1", "TPR at 10% FPR"),
        ("balanced_accuracy", "balanced accuracy"),
    ],
)
def test_metric_names_are_those_of_the_field(metric: str, name: str) -> None:
    assert metric_name(metric) == name


def test_texts_exist_only_for_known_metrics() -> None:
    assert {*fixed_texts("metrics")} <= {
        value for value in vars(metric_names).values() if isinstance(value, str)
    }


def test_interval_format_of_rates_and_single_limits() -> None:
    assert format_interval(0.38, 0.445, "tpr@0.01") == "38.0–44.5%"
    assert format_interval(0.918, 0.944, "auc") == "0.918–0.944"
    assert format_interval(1.42, None, "epsilon") == "≥ 1.420"
    assert format_interval(-0.5, 0.5, "cosine") == "−0.500 to 0.500"
    assert format_interval(None, None, "auc") == ""


def test_estimates_in_text_state_the_confidence_level() -> None:
    figure = estimate(metric="auc", value=0.9314, low=0.918, high=0.944, method="DeLong 95%")
    assert with_interval(figure) == "0.931 (95% interval 0.918–0.944)"
    bare = estimate(metric="auc", value=0.9314)
    assert with_interval(bare) == "0.931 (no interval)"


def test_number_format_depends_on_the_size() -> None:
    assert (format_number(0.5), format_number(12.345), format_number(1234.5)) == (
        "0.500",
        "12.3",
        "1,234.5",
    )
    assert format_number(-0.25) == "−0.250"
    assert format_value(None, "auc") == "–"


def test_listed_joins_words_with_commas_and_and() -> None:
    assert [join_and([]), join_and(["a"]), join_and(["a", "b", "c"])] == [
        "",
        "a",
        "a, b and c",
    ]


def test_control_and_direction_characters_become_visible() -> None:
    assert as_one_line("a\u202eb\x00c\ud800d\ne\u2028f") == "a\ufffdb\ufffdc\ufffdd e f"


@given(st.text(), st.integers(2, 60))
def test_shortened_text_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(shorten(text, limit)) <= limit


def test_text_cut_behind_an_ellipsis_ends_with_one() -> None:
    assert shorten("avg-cosine… and others", 12) == "avg-cosine…"


def test_footnotes_keep_their_letter_and_continue_after_z() -> None:
    notes = Footnotes()
    marks = [notes.mark(f"note {i}") for i in range(28)]
    assert (marks[0], marks[25], marks[26], marks[27]) == ("a", "z", "aa", "ab")
    assert notes.mark("note 3") == "d"
    assert notes.mark("") == ""


@pytest.mark.parametrize(
    ("status", "headline", "finding"),
    [
        ("strong leak", "Strong leakage: members can be found", "Members can be found"),
        ("weak leak", "Weak source leakage: attacks identify", "Attacks identify"),
        ("strong leak", "Strong leakage from the riskiest model: 4", "From the riskiest model: 4"),
        ("trace of a leak", "A trace of leakage: members can be found", "Members can be found"),
        ("trace of a leak", "A trace of source leakage: some", "Some"),
        ("no leak shown", "No leak of sources shown: attacks fail", "Attacks fail"),
        (
            "leak shown",
            "A leak is shown; its size is between trace and strong",
            "Its size is between trace and strong",
        ),
        ("control failed", "A control failed: do not rely on it", "Do not rely on it"),
        ("strong leak", "Client 0, defended: strong leakage", "Client 0, defended: strong leakage"),
        ("best trade-off", "cofedmid: 10 points less", "cofedmid: 10 points less"),
    ],
)
def test_a_headline_next_to_a_badge_does_not_repeat_the_verdict(
    status: str, headline: str, finding: str
) -> None:
    assert without_verdict(headline, status) == finding
