"""The leak ladder's page is what its records give, and its rule is the rising curve it says."""

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@cache
def ladder() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "ladder.py"))


def rung(gap: float, auc: float, half: float = 0.01) -> Any:
    found = {"fedmia-2": (auc, auc - half, auc + half), "loss-series": (auc - 0.05, 0.4, 0.9)}
    return ladder()["Rung"]("ladder-letters", "", 0.9, gap, 200, found)


def test_the_page_and_what_reports_use_are_what_the_records_give() -> None:
    script = ladder()
    for path, text in script["made"]().items():
        # How a picture is written is matplotlib's; that it is there is ours.
        same = path.is_file() if path == script["PICTURE"] else path.read_text("utf-8") == text
        assert same, "run `python docs/ladder.py`"


def test_the_rule_rises_and_says_from_where_on_to_worry() -> None:
    rungs = [rung(gap, auc) for gap, auc in ((0.0, 0.5), (0.1, 0.55), (0.2, 0.53), (0.3, 0.8))]
    found = ladder()["rule"](rungs)
    # The two in the middle are out of order: the nearest rising curve gives both their mean.
    assert [found.at(gap) for gap in (0.0, 0.1, 0.2, 0.3)] == pytest.approx([0.5, 0.54, 0.54, 0.8])
    assert found.worry == pytest.approx(0.3)
    assert list(np.diff(found.expected) >= 0) == [True] * (len(found.expected) - 1)


def test_a_rung_is_where_the_rule_says_or_is_not() -> None:
    found = ladder()["rule"]([rung(0.0, 0.5), rung(0.4, 0.9)])
    assert ladder()["held"](found, rung(0.2, 0.7))
    assert not ladder()["held"](found, rung(0.2, 0.85))
    assert ladder()["held"](found, rung(0.2, 0.85, half=0.2))


def test_the_strongest_attack_of_a_rung_is_the_one_with_the_largest_auc() -> None:
    assert rung(0.2, 0.7).strongest[0] == "fedmia-2"


def test_the_picture_shows_every_data_set_and_is_the_same_each_time() -> None:
    script = ladder()
    rungs = [rung(0.0, 0.5), rung(0.2, 0.62), rung(0.4, 0.9)]
    check = [rung(0.3, 0.75)._replace(study="ladder-check-fashion")]
    drawn = [script["picture"](rungs, check, script["rule"](rungs)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].lstrip().startswith("<?xml")
    assert "letters" in drawn[0]
    assert "fashion (not used for the rule)" in drawn[0]
