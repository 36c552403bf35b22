"""Estimates of one small study are compared with stored values.

The figures are stored with three digits, since another processor may round sums differently. After
an intended change, run ``python -m tests.golden.test_tiny_study`` and check the changed figures.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedaudit.attacks import ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.attacks.rules import Mean
from fedaudit.results.record import Record
from fedaudit.signals.outputs import Confidence
from fedaudit.study.running.run import run_study
from tests.study.studies import small_study

KEPT = Path(__file__).with_name("tiny_study.json")
TOLERANCE = 0.004


def figures(folder: Path) -> dict[str, float | None]:
    """Return every figure of the tiny study by name."""
    study = small_study(
        attack_set="2026-2",
        training={"rounds": 8, "epochs": 4},
        audit={"fair": 150, "background": 0},
    )
    record: Record = run_study(study, folder)
    return {
        f"{f.attack} {f.contrast} {f.metric}": None if f.value is None else round(f.value, 3)
        for f in record.findings
    }


@pytest.mark.slow
def test_figures_of_the_tiny_study_equal_the_stored_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Attack((Confidence(),), Mean(), "none", "A row that no earlier version had.")
    monkeypatch.setitem(ATTACKS, "avg-confidence", row)
    document = json.loads(KEPT.read_text())
    current = figures(tmp_path)
    assert current.keys() == document.keys()
    moved = {
        name: (value, current[name])
        for name, value in document.items()
        if (value is None) != (current[name] is None)
        or (value is not None and current[name] != pytest.approx(value, abs=_slack(name)))
    }
    assert not moved


def _slack(name: str) -> float:
    # A single sample above or below a threshold changes a rate by about 1 / 50, and a single
    # guess changes an epsilon by some tenths.
    return TOLERANCE if name.endswith("auc") else 0.3 if name.endswith("epsilon") else 0.05


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        KEPT.write_text(json.dumps(figures(Path(folder)), indent=1, sort_keys=True) + "\n")
