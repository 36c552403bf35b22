"""The page of results says what the records say."""

import runpy
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Results(NamedTuple):
    """What the page's script makes of the records, the page as it is, and the studies told of."""

    made: str
    page: str
    told: frozenset[str]


@cache
def results() -> Results:
    script = runpy.run_path(str(ROOT / "docs" / "results.py"))
    studies = script["studies"]()
    return Results(
        script["results_markdown"](studies),
        script["PAGE"].read_text(encoding="utf-8"),
        frozenset(study.name for study in studies),
    )


def test_the_page_of_results_is_what_the_records_give() -> None:
    assert results().made == results().page, "run `python docs/results.py`"


def test_every_record_is_of_a_study_that_is_told_how_to_make() -> None:
    kept = {path.parent.name for path in (ROOT / "records").rglob("*.json")}
    assert kept == results().told
