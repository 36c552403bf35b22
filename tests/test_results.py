"""The page of results says what the records say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_page_of_results_is_what_the_records_give() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "results.py"))
    made = page["results_markdown"](page["studies"]())
    assert made == page["PAGE"].read_text(encoding="utf-8"), "run `python docs/results.py`"


def test_every_record_is_of_a_study_that_is_told_how_to_make() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "results.py"))
    told = {study.name for study in page["studies"]()}
    kept = {path.parent.name for path in (ROOT / "records").rglob("*.json")}
    assert kept == told
