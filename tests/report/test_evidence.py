import pytest

from fedaudit.report.evidence import look_of, size_of, size_reached
from fedaudit.study.guessing import above_chance
from fedaudit.study.record import Figure


def figure(**rest: object) -> Figure:
    return Figure.model_validate({"metric": "auc", "value": 0.65, "low": 0.61, "high": 0.7, **rest})


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
def test_a_size_has_the_largest_word_whose_threshold_it_reaches(
    value: float, metric: str, word: str | None
) -> None:
    assert size_reached(value, metric) == word


def test_a_mark_takes_both_the_corrected_test_and_the_interval() -> None:
    assert look_of(figure(significant=True)) == ("▲ ", "clear", "clear")
    assert look_of(figure(significant=False)) == ("", "", "")
    assert look_of(figure(significant=True, low=0.49)) == ("△ ", "", "size open")
    assert look_of(figure(value=None, significant=None)) == ("", "", "")


def test_where_test_or_interval_is_missing_the_other_decides() -> None:
    assert above_chance(figure())
    assert above_chance(figure(significant=True, low=None, high=None))
    assert not above_chance(figure(low=0.49))
    assert above_chance(figure(low=None, high=None)) is None


def test_without_an_interval_the_value_names_the_size() -> None:
    assert size_of(figure(significant=True, low=None, high=None, value=0.99)) == "strong"
    assert size_of(figure(significant=False)) is None
