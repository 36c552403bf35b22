"""The page on malicious clients says what the records say."""

import re
from pathlib import Path

import pytest

from fedaudit.results.estimate import TEST_ACCURACY
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from results.archives import unpacked

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "malicious-client.md").read_text(encoding="utf-8")
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `attacker-")]


def auc(record: Record, attack: str) -> str:
    (one,) = (
        figure
        for figure in record.findings
        if (figure.attack, figure.metric, figure.contrast) == (attack, "auc", "unseen")
        and figure.seed is None
        and not figure.by
    )
    assert one.value is not None
    return f"{one.value:.3f} ({one.low:.3f}–{one.high:.3f})"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_of_the_page_is_its_records(row: list[str]) -> None:
    name = re.sub(r"[|` ]", "", row[0])
    folder = next(f for f in ("attacker-location30", "attacker-mnist") if name.startswith(f))
    record = read_record(unpacked() / folder / f"{name}.json")
    accuracies = [one.value for one in record.where(topic="utility", metric=TEST_ACCURACY)]
    known = [value for value in accuracies if value is not None]
    accuracy = f"{100 * sum(known) / len(known):.1f} %"
    assert row[2:] == [accuracy, auc(record, "blackbox-loss"), auc(record, "recovery") + " |"]


def test_every_record_has_a_row() -> None:
    kept = {path.stem for path in unpacked().glob("attacker-*/*.json")}
    assert {re.sub(r"[|` ]", "", row[0]) for row in ROWS} == kept
