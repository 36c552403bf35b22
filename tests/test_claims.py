"""The page of claims says what claims and records give, by rules that hold in cases by hand."""

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedaudit.errors import BadInput

ROOT = Path(__file__).parents[1]


@cache
def claims() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "claims.py"))


def made(**given: Any) -> Any:
    return claims()["Test"](**{"one": {}, "others": [{}], **given})


def test_the_page_of_claims_is_what_claims_and_records_give() -> None:
    script = claims()
    page = script["PAGE"].read_text(encoding="utf-8")
    assert page == script["page"](), "run `python docs/claims.py`"


@pytest.mark.parametrize(
    ("direction", "margin", "low", "high", "verdict"),
    [
        ("above", 0.0, 0.01, 0.05, "confirmed"),
        ("above", 0.02, 0.01, 0.05, "open"),
        ("above", 0.02, 0.021, 0.05, "confirmed"),
        ("above", 0.02, -0.02, 0.02, "no difference"),
        ("above", 0.02, -0.05, -0.01, "contradicted"),
        ("above", 0.02, -0.05, 0.01, "open"),
        ("below", 0.0, 0.01, 0.05, "contradicted"),
        ("below", 0.02, -0.05, -0.03, "confirmed"),
        ("near", 0.05, -0.02, 0.04, "confirmed"),
        ("near", 0.05, 0.06, 0.09, "contradicted"),
        ("near", 0.05, 0.01, 0.09, "open"),
    ],
)
def test_verdicts_follow_from_interval_and_margin(
    direction: str, margin: float, low: float, high: float, verdict: str
) -> None:
    assert claims()["_verdict"](made(direction=direction, margin=margin), low, high) == verdict


def test_an_open_verdict_says_how_many_seeds_would_settle_it() -> None:
    found = claims()["Found"](0.02, -0.02, 0.06, "", 2)
    # Twice as far from nothing as the interval reaches: four times the runs.
    assert claims()["_wanting"](made(), found) == "some 8 seeds like these would settle it"


def test_of_many_comparisons_those_that_chance_explains_stay_open() -> None:
    script = claims()
    sure = script["Found"](0.1, 0.08, 0.12, "", 3)
    barely = script["Found"](0.02, 0.0001, 0.0399, "", 3)
    test = made()
    parts = [
        script["Judged"]("r", test, test.others[0], "confirmed", sure, sure, gap)
        for gap in (sure, *[barely] * 4)
    ]
    changed = script["_held"](parts)
    assert [id(part) in changed for part in parts] == [False, True, True, True, True]


def test_every_claim_names_a_regime_and_every_comparison_what_it_is_of() -> None:
    script = claims()
    known = script["regimes"]()
    for paper in script["papers"]():
        for claim in paper.claim:
            assert bool(claim.not_run) != bool(claim.regimes), claim.id
            assert set(claim.regimes) <= set(known), claim.id
            assert claim.not_run or all(test.others for test in claim.tests), claim.id


def test_what_is_open_or_was_not_run_says_why() -> None:
    script = claims()
    for paper in script["papers"]():
        for one in script["decided"](paper):
            if one.verdict in ("open", "not run"):
                assert one.why, one.claim.id


def test_pairs_are_taken_of_runs_that_were_carried_out_only(tmp_path: Path) -> None:
    script = claims()
    with pytest.raises(BadInput, match=r"no scores\.safetensors"):
        script["take_pairs"](tmp_path / "nothing", "fedmia-location30")


def test_the_figures_of_the_readme_are_those_of_the_records() -> None:
    script = claims()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shares = []
    for variant in ("redraw", ""):
        known = script["rows"]("fedmia-tiny-alexnet", variant)
        by_seed = known[script["Asked"]("tpr@0.001", "fedmia-2", "mixed", 0)]
        shares.append(100 * by_seed[None][None].value)
    drawn_anew, aligned = shares
    assert f"finds {drawn_anew:.0f} % of the members at 0.1 % false positives" in readme
    assert f"with the same non-members throughout {aligned:.0f} %" in readme
    assert f"{sum(len(paper.claim) for paper in script['papers']())} of them" in readme
