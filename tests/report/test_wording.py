import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core import metric_names
from fedaudit.report.fixed import fixed_texts
from fedaudit.report.grid import Footnotes, clean, shortened
from fedaudit.report.wording import (
    interval,
    listed,
    metric_name,
    number,
    percent,
    shown,
    with_interval,
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
def test_a_share_is_shown_in_per_cent_with_the_digits_it_needs(share: float, text: str) -> None:
    assert percent(share) == text


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_share_short_of_all_or_nothing_never_reads_as_all_or_nothing(share: float) -> None:
    assert percent(share) not in ("0%", "100%", "0.00%", "100.00%", "100.0%")


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
def test_a_metric_is_named_as_the_field_names_it(metric: str, name: str) -> None:
    assert metric_name(metric) == name


def test_names_in_the_file_of_texts_are_those_of_metrics() -> None:
    assert {*fixed_texts("metrics")} <= {
        value for value in vars(metric_names).values() if isinstance(value, str)
    }


def test_limits_share_one_per_cent_sign_and_may_stand_alone() -> None:
    assert interval(0.38, 0.445, "tpr@0.01") == "38.0–44.5%"
    assert interval(0.918, 0.944, "auc") == "0.918–0.944"
    assert interval(1.42, None, "epsilon") == "≥ 1.420"
    assert interval(-0.5, 0.5, "cosine") == "−0.500 to 0.500"
    assert interval(None, None, "auc") == ""


def test_a_figure_in_text_names_the_level_of_its_interval() -> None:
    figure = estimate(metric="auc", value=0.9314, low=0.918, high=0.944, method="DeLong 95%")
    assert with_interval(figure) == "0.931 (95% interval 0.918–0.944)"
    bare = estimate(metric="auc", value=0.9314)
    assert with_interval(bare) == "0.931 (no interval)"


def test_numbers_keep_their_size_in_view() -> None:
    assert (number(0.5), number(12.345), number(1234.5)) == ("0.500", "12.3", "1,234.5")
    assert number(-0.25) == "−0.250"
    assert shown(None, "auc") == "–"


def test_words_are_listed_as_one_says_them() -> None:
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b and c"]


def test_control_and_direction_characters_become_visible() -> None:
    assert clean("a\u202eb\x00c\ud800d\ne\u2028f") == "a\ufffdb\ufffdc\ufffdd e f"


@given(st.text(), st.integers(2, 60))
def test_shortened_text_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(shortened(text, limit)) <= limit


def test_the_same_note_keeps_its_letter_and_letters_go_on_after_z() -> None:
    notes = Footnotes()
    marks = [notes.mark(f"note {i}") for i in range(28)]
    assert (marks[0], marks[25], marks[26], marks[27]) == ("a", "z", "aa", "ab")
    assert notes.mark("note 3") == "d"
    assert notes.mark("") == ""
