"""Figures of SCAFFOLD in the documentation equal those of the records."""

from pathlib import Path

import pytest

from fedaudit.results.aggregate import Value, Values, difference
from fedaudit.results.estimate import TEST_ACCURACY, Estimate
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from results.archives import unpacked

PAGE = (Path(__file__).parents[1] / "docs" / "findings.md").read_text(encoding="utf-8")
ROWS = {
    "scaffold-mnist": "FedAvg",
    "scaffold-mnist-scaffold": "SCAFFOLD, option II",
    "scaffold-mnist-option-1": "SCAFFOLD, option I",
    "scaffold-mnist-scaffold-client-dp": "SCAFFOLD, option II, `client-dp` of the audited client",
}


def aucs(record: Record, attack: str) -> list[Estimate]:
    return [
        figure
        for figure in record.findings
        if (figure.attack, figure.metric, figure.contrast) == (attack, "auc", "unseen")
        and not figure.by
    ]


def shown(value: float | None, low: float | None, high: float | None) -> str:
    assert value is not None
    assert low is not None
    assert high is not None
    return f"{value:.3f} ({low:.3f} to {high:.3f})".replace("0.", ".")


def mean_auc(record: Record, attack: str) -> str:
    (mean,) = (figure for figure in aucs(record, attack) if figure.seed is None)
    return shown(mean.value, mean.low, mean.high)


def by_seed(record: Record, attack: str) -> Values:
    return {
        figure.seed: {0: Value(figure.number, figure.low, figure.high, figure.method, True)}
        for figure in aucs(record, attack)
        if figure.seed is not None
    }


def paired(record: Record, attack: str, other: str) -> str:
    gap = difference(by_seed(record, attack), by_seed(record, other))
    assert gap is not None
    return shown(gap.value, gap.low, gap.high)


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_the_page_equal_their_records(name: str) -> None:
    record = read_record(unpacked() / "scaffold-mnist" / f"{name}.json")
    accuracies = [f.number for f in record.where(topic="utility", metric=TEST_ACCURACY)]
    cells = [ROWS[name], f"{100 * sum(accuracies) / len(accuracies):.1f} %"]
    cells.append(mean_auc(record, "avg-cosine"))
    if name == "scaffold-mnist":
        cells += ["", ""]
    else:
        cells.append(mean_auc(record, "avg-cosine-control"))
        cells.append(paired(record, "avg-cosine-control", "avg-cosine"))
        assert paired(record, "fedmia-2-control", "fedmia-2") in PAGE
    row = f"| {' | '.join(cells)} |".replace("|  |  |", "| | |")
    assert row in PAGE
