"""The pages of results say what the records say."""

import runpy
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.results.read import read_record
from fedaudit.results.record import Environment, own_hash
from tests.report.records import record

ROOT = Path(__file__).parents[1]


class Results(NamedTuple):
    """What the script makes of the records, the pages as they are, and the studies told of."""

    made: dict[Path, str]
    pages: dict[Path, str]
    told: frozenset[str]


@cache
def results() -> Results:
    script = runpy.run_path(str(ROOT / "docs" / "results.py"))
    studies = script["studies"]()
    return Results(
        script["pages"](studies),
        {
            path: path.read_text(encoding="utf-8")
            for path in (script["PAGE"], *script["FOLDER"].glob("*.md"))
        },
        frozenset(study.name for study in studies),
    )


def test_the_pages_of_results_are_what_the_records_give() -> None:
    assert results().made == results().pages, "run `python docs/results.py`"


def test_every_record_is_of_a_study_that_is_told_how_to_make() -> None:
    kept = {path.parent.name for path in (ROOT / "records").rglob("*.json")}
    assert kept == results().told


@pytest.mark.parametrize(
    ("commit", "said"),
    [
        ("", "no known commit.*uncommitted changes"),
        ("0123456789abcdef+", "uncommitted changes"),
        ("0123456789abcdef", "not in this history"),
    ],
)
def test_no_record_is_kept_that_nobody_could_make_again(
    commit: str, said: str, tmp_path: Path
) -> None:
    keep = runpy.run_path(str(ROOT / "records" / "keep.py"))["refuse_without_commit"]
    head = subprocess.run(
        ["git", "rev-parse", "--short=16", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if head.returncode:
        pytest.skip("not a checkout of a repository")
    keep(Environment(commit=head.stdout.strip()), tmp_path)
    with pytest.raises(BadInput, match=said):
        keep(Environment(commit=commit), tmp_path)


def test_records_of_games_have_their_own_content_hash() -> None:
    played = [
        path for path in (ROOT / "records").glob("ami-*/*.json") if path.stem == path.parent.name
    ]
    games = [record for record in map(read_record, played) if record.kind == "games"]
    assert len(games) == 8
    assert all(record.content_hash == own_hash(record) for record in games)


def test_a_study_says_how_many_records_nobody_could_make_again() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "results.py"))
    made = [
        record().model_copy(update={"environment": Environment(commit=commit)})
        for commit in ("", "0123456789abcdef+", "0123456789abcdef")
    ]
    study = script["Study"]("name", "command", "", dict(zip("abc", made, strict=True)))
    said = script["_unknown_commits"](study)
    assert "1 of them do not say by which commit" in said
    assert "1 were made with uncommitted changes" in said
