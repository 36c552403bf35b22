"""Claims in words: the rows of the claims page."""

import re

import pytest

from docs.claims import data, judging, names, page, routes, words
from docs.claims.comparing import Figure
from docs.claims.data import Claim, Term
from docs.claims.judging import ClaimResult, PartResult, RegimeResult
from fedaudit.core.errors import BadInput

ALL = [
    (claim.id, regime, test, other)
    for paper in data.papers()
    for claim in paper.claim
    for regime in claim.regimes
    for test in claim.tests
    for other in test.others
]
"""All comparisons of all claims."""


def test_every_comparison_has_different_words_for_its_sides() -> None:
    for claim, regime, test, other in ALL:
        head, labels = words.common_and_own_words(regime, test, other)
        if other.value is None:
            assert all(labels), claim
            assert labels[0] != labels[1], claim
        else:
            assert head, claim
        assert not re.search("[=_]", " ".join([head, *labels])), claim


def test_all_words_belong_to_names_in_claims() -> None:
    used = {
        name
        for _, _, test, other in ALL
        for term in (test.one, other)
        for label in (term.variant or "", term.attack)
        for setting in label.split(",")
        for name in (setting, setting.partition("=")[0])
    }
    used |= {attack for _, _, test, other in ALL for attack in (*test.one.attacks, *other.attacks)}
    assert set(names.words().settings) <= used
    leaks = {regime.leak for regime in data.regimes().values()}
    assert set(names.words().attacks) <= used | leaks


def test_settings_of_points_and_variants_become_words() -> None:
    point = "bitrand,nominal_epsilon=5.0,shared_mask=true,games=1000"
    assert names.setting_words(point) == ("BitRand", "epsilon 5", "one mask for a batch")
    assert names.setting_words("hidden=2000,lr=0.001") == ("2,000 units",)
    assert names.setting_words("hamp-half") == ("HAMP", "half")
    with pytest.raises(BadInput, match=r"'nothing' has no words; add it to \[settings\]"):
        names.setting_words("nothing")


def comparison(
    direction: str = "above", *, value: float | None = None, gap: float = 0.05
) -> PartResult:
    """Return a comparison of two attacks in a regime, or of one with a number."""
    one = {"attack": "fedmia-2", "variant": "redraw"}
    other = {"attack": "avg-cosine", "variant": "redraw"} if value is None else {"value": value}
    test = data.Test.model_validate(
        {"direction": direction, "margin": 0.02, "one": one, "others": [other]}
    )
    first, second, difference = (
        Figure(x, x - 0.01, x + 0.01, "", 3) for x in (0.75, 0.7 if value is None else value, gap)
    )
    verdict = judging.verdict_of(test, difference)
    return PartResult("location30", test, test.others[0], verdict, first, second, difference)


def test_a_comparison_names_metric_sides_and_need() -> None:
    assert words.comparison_words(comparison()) == (
        "AUC (redrawn non-members); needed difference: above 0.02",
        "",
        "FedMIA-II: 0.750; Avg-Cosine: 0.700; difference: 0.050 (0.040 to 0.060)",
    )
    assert words.comparison_words(comparison(value=0.7)) == (
        "AUC of FedMIA-II (redrawn non-members); needed: above 0.72",
        "",
        "0.750 (0.740 to 0.760)",
    )


def test_a_difference_that_is_not_that_of_its_figures_is_over_common_samples() -> None:
    marked = comparison(gap=0.04)
    assert marked.is_over_common_samples
    assert "difference over common samples: 0.040" in words.comparison_words(marked).values
    plain = comparison()
    assert not plain.is_over_common_samples
    assert "common" not in words.comparison_words(plain).values


@pytest.mark.parametrize(
    ("direction", "margin", "value", "expected"),
    [
        ("above", 0.02, None, "above 0.02"),
        ("below", 0.02, None, "below -0.02"),
        ("below", 0.0, None, "below 0"),
        ("near", 0.05, None, "within 0.05 of 0"),
        ("above", 0.02, 0.1, "above 0.12"),
        ("near", 0.02, 1.0, "within 0.02 of 1"),
    ],
)
def test_the_need_follows_from_direction_margin_and_number(
    direction: str, margin: float, value: float | None, expected: str
) -> None:
    test = data.Test.model_validate(
        {"direction": direction, "margin": margin, "one": {}, "others": []}
    )
    assert words.needed(test, Term(value=value)) == expected


def test_a_regime_shows_its_deciding_comparison_and_counts_all() -> None:
    holds, barely, fails = comparison(gap=0.09), comparison(gap=0.04), comparison(gap=-0.05)
    confirmed = judging.combine_parts([holds, barely], leaking=True)
    assert judging.deciding_part(confirmed) is barely
    contradicted = judging.combine_parts([holds, fails, barely], leaking=True)
    assert judging.deciding_part(contradicted) is fails
    undecided = comparison(gap=0.015)
    open_ = judging.combine_parts([holds, undecided], leaking=True)
    assert judging.deciding_part(open_) is undecided
    unlimited = undecided._replace(gap=Figure(0.5, None, None, "", 3))
    unknown = judging.combine_parts([undecided, unlimited], leaking=True)
    assert judging.deciding_part(unknown) is unlimited
    heads_and_lines = words.regimes_words([confirmed, contradicted, open_])
    assert len(heads_and_lines) == 4
    assert heads_and_lines[1].endswith("; both comparisons hold")
    assert heads_and_lines[2].startswith("`location30` does not hold: FedMIA-II")
    assert heads_and_lines[2].endswith("; of 3 comparisons, 2 hold and 1 does not hold")
    assert heads_and_lines[3].endswith("; of 2 comparisons, 1 holds and 1 is open")


def test_an_open_line_states_the_smallest_margin() -> None:
    undecided = comparison(gap=0.015)
    open_ = judging.combine_parts([undecided], leaking=True)
    # The limits of two one-sided tests are 0.0084 away.
    (_, line) = words.regimes_words([open_])
    assert line.endswith("0.015 (0.005 to 0.025), within 0.024")
    number = comparison(value=0.7, gap=0.015)
    (_, line) = words.regimes_words([judging.combine_parts([number], leaking=True)])
    assert line.endswith(", within 0.024 of 0.7")
    holds = judging.combine_parts([comparison()], leaking=True)
    assert "within" not in words.regimes_words([holds])[1]


def judged(*regime_results: RegimeResult) -> ClaimResult:
    claim = Claim.model_validate(
        {"id": "x", "says": "", "where": "", "theirs": "", "regimes": ["location30"]}
    )
    return judging.judge_claim(claim, regime_results)


def test_figures_are_those_of_regimes_that_count() -> None:
    counted = judging.combine_parts([comparison()], leaking=True)
    without_leak = judging.combine_parts([comparison()], leaking=False)
    cell = page.figures_cell(judged(counted, without_leak))
    assert cell.count("FedMIA-II") == 1
    assert cell.endswith("Not counted: `location30` (no leak)")
    # If no regime counts, the figures are shown without a verdict.
    alone = page.figures_cell(judged(without_leak))
    assert "`location30` no leak: FedMIA-II: 0.750" in alone
    assert "Not counted" not in alone


def test_a_verdict_that_is_not_significant_is_no_verdict_before_correction() -> None:
    differing = judged(
        judging.combine_parts([comparison()], leaking=True),
        judging.combine_parts([comparison(gap=-0.05)], leaking=True),
    )
    weak = differing._replace(verdict="open", by_itself="depends on the regime", p_value=0.13)
    assert routes.before_correction(weak, 3) == ("regimes differ, but not significantly (p = 0.13)")
    assert routes.before_correction(differing, 3) == ""
