"""Parts of the verdict benchmark; `python -m benchmarks.verdicts` runs it."""

import numpy as np
import pytest

from benchmarks import verdicts
from fedaudit.core.metric_names import Origin
from fedaudit.report.evidence import LEAKS

SMALL = {Origin.MEMBER: 150, Origin.OTHER_CLIENT: 300, Origin.UNSEEN: 300}
STUDIES, SEEDS = 4, 3


def shares(auc: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[int]]:
    """Return the mean width of the AUC's interval and the number of leaks found, by seeds."""
    monkeypatch.setattr(verdicts, "SIZES", SMALL)
    monkeypatch.setattr(verdicts, "ATTACKS", ("a",))
    rng = np.random.default_rng(5)
    outcomes = [verdicts.outcomes_of(verdicts.runs(rng, auc, SEEDS)) for _ in range(STUDIES)]
    by_seeds = list(zip(*outcomes, strict=True))
    widths = [float(np.mean([outcome.width for outcome in group])) for group in by_seeds]
    return widths, [
        sum(outcome.status in LEAKS.values() for outcome in group) for group in by_seeds
    ]


def test_more_seeds_narrow_the_interval_and_keep_the_power(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    widths, leaks = shares(0.6, monkeypatch)
    assert widths == sorted(widths, reverse=True)
    assert widths[1] == pytest.approx(widths[0] / 2**0.5, rel=0.1)
    assert leaks == sorted(leaks)
    assert leaks[-1] == STUDIES


def test_more_seeds_find_no_leak_without_a_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shares(0.5, monkeypatch)[1] == [0, 0, 0]
