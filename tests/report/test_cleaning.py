"""Texts of a record are cleaned before they are shown."""

from pydantic import BaseModel

from fedaudit.formatting.wording import clean_texts
from fedaudit.report.page import comparison_html, report_html
from fedaudit.results.record import Record
from fedaudit.study.comparing import compare_records
from tests.estimates import changed
from tests.report.records import record
from tests.report.seen import printed

FORBIDDEN = {"\u202e", "\u2066", "\x1b", "\x07", "\u200f"}
FIXED = {"format", "evaluation", "origin", "by", "status", "metric", "topic", "unit"}


def poisoned(value: object, name: str = "") -> object:
    """The value with forbidden characters in every text that the format leaves free."""
    if isinstance(value, str):
        return value if name in FIXED else "".join(sorted(FORBIDDEN)) + value
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return value.model_copy(update={n: poisoned(getattr(value, n), n) for n in fields})
    if isinstance(value, list):
        return [poisoned(part, name) for part in value]
    if isinstance(value, dict):
        return {str(poisoned(str(key))): poisoned(part) for key, part in value.items()}
    return value


SMALL = record(strengths=(2.6, 1.9))
BAD = Record.model_validate(poisoned(SMALL))


def left_in(text: str) -> set[str]:
    return FORBIDDEN & set(text)


def test_reports_contain_no_identifiers_of_the_program() -> None:
    assert set(BAD.findings[0].method) >= FORBIDDEN
    assert not left_in(report_html(BAD))


def test_comparisons_contain_no_identifiers_of_the_program() -> None:
    records = [BAD, BAD]
    assert not left_in(comparison_html(compare_records(records), records))


def test_terminal_output_contains_no_identifiers_of_the_program() -> None:
    assert not left_in(printed(BAD, width=100))


def test_a_record_without_identifiers_is_unchanged() -> None:
    plain = SMALL
    assert changed(clean_texts(plain), attacks=plain.attacks) == plain


def test_notes_replace_identifiers_of_the_program_by_words() -> None:
    figure = changed(
        SMALL.findings[0], note="no other_client samples; it needs GLOBAL_MODEL, UPDATE, MY_UPDATE"
    )
    assert clean_texts(figure).note == (
        "no other clients' samples; it needs the global model, the change of the model in "
        "training, MY_UPDATE"
    )
    page = report_html(record(details=False))
    assert "CHOOSES_MODEL" not in page
    assert "control over the model that clients receive is missing" in page
