"""Reports on the detector of planted models."""

from fedaudit.report.page import report_html
from fedaudit.report.tables.games import detector_table, detector_words
from tests.report.games import NONE, detector, indicator, played


def test_detector_rows_are_indicators_and_columns_servers() -> None:
    grid = detector_table(detector())
    assert [row[0].text for row in grid.rows] == ["Twins", "Rewritten unit"]
    assert [(heading.text, heading.detail) for heading in grid.headings] == [
        ("", ""),
        ("As published", "right in 98.6%"),
        ("One row changed", "right in 99.80%"),
    ]
    assert sum(heading.span for heading in grid.headings) == len(grid.columns) == 6
    assert [column.text for column in grid.columns[1:4]] == ["False alarms", "AUC", "Found"]
    twins, rewritten = grid.rows
    assert (twins[1].text, twins[1].detail) == ("1 of 10", "1.0–45.0%")
    assert (twins[2].text, twins[2].detail) == ("0.990", "0.970–1.000")
    assert rewritten[2].detail == ""
    assert (twins[3].text, twins[3].detail) == ("4 of 10", "12.0–74.0%")
    assert "40 honest models and 80 models of each server" in grid.remark


def test_an_indicator_that_one_server_lacks_leaves_a_dash() -> None:
    grid = detector_table(
        detector(indicator("twins", "planted", 0.5), indicator("new", "other", 0.5))
    )
    assert [[cell.text for cell in row] for row in grid.rows] == [
        ["Twins", "1 of 10", "0.500", "4 of 10", "–", "–"],
        ["new", "1 of 10", "–", "–", "0.500", "4 of 10"],
    ]


def test_the_lower_limit_decides_which_indicators_find_nearly_every_model() -> None:
    assert detector_words(detector()) == [
        "As published: 2 of 2 indicators identify nearly every planted model (AUC of 0.950 or "
        "more): twins and rewritten unit.",
        "One row changed: 0 of 2 indicators identify nearly every planted model (AUC of 0.950 or "
        "more).",
    ]
    close = detector(
        indicator("twins", "planted", 0.96, low=0.94), indicator("odd-row", "planted", 0.94)
    )
    assert "0 of 2 indicators" in detector_words(close)[0]


def test_many_indicators_are_counted_and_not_all_named() -> None:
    many = detector(*(indicator(f"s{place}", "planted", 1.0) for place in range(7)))
    assert detector_words(many)[0].endswith(": s0, s1, s2, s3, s4 and 2 more.")


def test_the_detector_section_needs_a_detector() -> None:
    page = report_html(played(NONE, detected=detector()))
    assert 'id="detector"' in page
    assert 'id="detector"' not in report_html(played(NONE))
