"""Figures of malicious clients in the documentation equal those of the records."""

import re
from pathlib import Path

import pytest

from fedaudit.results.estimate import TEST_ACCURACY
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from results.archives import unpacked

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "threat-models.md").read_text(encoding="utf-8")
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `attacker-")]


def auc(record: Record, attack: str) -> str:
    (estimate,) = (
        figure
        for figure in record.findings
        if (figure.attack, figure.metric, figure.contrast) == (attack, "auc", "unseen")
        and figure.seed is None
        and not figure.by
    )
    assert estimate.value is not None
    return f"{estimate.value:.3f} ({estimate.low:.3f}–{estimate.high:.3f})"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_rows_of_the_page_equal_their_records(row: list[str]) -> None:
    name = re.sub(r"[|` ]", "", row[0])
    folder = next(f for f in ("attacker-location30", "attacker-mnist") if name.startswith(f))
    record = read_record(unpacked() / folder / f"{name}.json")
    estimates = record.where(topic="utility", metric=TEST_ACCURACY)
    values = [estimate.value for estimate in estimates if estimate.value is not None]
    accuracy = f"{100 * sum(values) / len(values):.1f} %"
    assert row[2:] == [accuracy, auc(record, "blackbox-loss"), auc(record, "recovery") + " |"]


def test_every_record_has_a_row() -> None:
    records = {path.stem for path in unpacked().glob("attacker-*/*.json")}
    assert {re.sub(r"[|` ]", "", row[0]) for row in ROWS} == records
