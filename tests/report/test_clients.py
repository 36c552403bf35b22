"""Reports on several audited clients: bars, limits and headline."""

from collections.abc import Sequence

import pytest

from fedaudit.formatting.wording import clean_texts
from fedaudit.report.deciding.membership import pooled_over
from fedaudit.report.evidence import main_estimates
from fedaudit.report.first import FirstScreen, first_screen
from fedaudit.report.page import comparison_html, report_html
from fedaudit.report.pictures import first_picture
from fedaudit.report.text.membership import upper_bounds
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from fedaudit.study.comparing import compare_records
from tests.estimates import changed
from tests.report.records import HOSTILE_TAG
from tests.report.seen import printed, words
from tests.report.test_plain import auc, only, rate

SIZES = {"n_members": 30, "n_nonmembers": 30, "significant": False}
NAMES = ("hospital-a", "hospital-b", "clinic-c")


def of_clients(*figures: Estimate, names: Sequence[str] = NAMES) -> Record:
    numbered = {str(number): name for number, name in enumerate(names)}
    return changed(only(*figures), config={"recording": {"names": numbered}})


def pooled(value: float, low: float, high: float, **where: object) -> Estimate:
    return auc(value, low, high, target=None, within="client", **where)


def three(first: float = 0.52, *, significant: bool = False) -> list[Estimate]:
    counts = {"n_members": 30, "n_nonmembers": 30}
    return [
        auc(first, first - 0.05, first + 0.05, target=0, significant=significant, **counts),
        auc(0.5, 0.3, 0.7, target=1, significant=False, **counts),
        auc(0.55, 0.42, 0.66, target=2, significant=False, **counts),
    ]


def screen(record: Record) -> FirstScreen:
    return first_screen(clean_texts(record), summarise_verdict(record))


def bars(record: Record) -> list[str]:
    return [line.label for forest in first_picture(clean_texts(record)) for line in forest.lines]


def test_every_bar_of_several_clients_names_its_client() -> None:
    assert bars(of_clients(*three())) == ["clinic-c · a", "hospital-a · a", "hospital-b · a"]


def test_the_pooled_bar_is_always_first() -> None:
    record = of_clients(*three(0.9, significant=True), pooled(0.51, 0.47, 0.55))
    assert bars(record)[:2] == ["pooled clients · a", "hospital-a · a"]


def test_bars_of_unnamed_clients_show_their_numbers() -> None:
    assert bars(only(*three()))[0] == "client 2 · a"


@pytest.mark.parametrize(("names", "client"), [(NAMES, "clinic-c"), (("x", "y", "z"), "client 2")])
def test_a_comparison_prints_names_that_all_records_share(
    names: Sequence[str], client: str
) -> None:
    figures = [*three(0.8, significant=True), auc(0.6, 0.5, 0.7, attack="b", target=2)]
    records = [of_clients(*figures), of_clients(*figures, names=names)]
    assert f"only on {client}" in words(comparison_html(compare_records(records), records))


def test_the_bars_of_a_single_client_need_no_name() -> None:
    assert bars(only(auc(0.7, 0.6, 0.8, target=0))) == ["a"]


def test_bars_that_are_not_drawn_are_counted() -> None:
    figures = [auc(0.5, 0.4, 0.6, target=number) for number in range(50)]
    (forest,) = first_picture(only(*figures))
    assert len(forest.lines) == 20
    assert "30 more rows are in the tables" in forest.caption


def test_a_long_client_name_leaves_room_for_the_attack_on_a_terminal() -> None:
    record = of_clients(*three(), names=("St. Mary's Hospital, Trauma Unit North", "b", "c"))
    rows = [line for line in printed(record).splitlines() if line.startswith("St. Mary")]
    assert any("…" in row and "th · a " in row for row in rows)
    assert all(len(row) <= 80 for row in rows)


def test_a_hostile_client_name_stays_text_in_bars_and_limits() -> None:
    page = report_html(of_clients(*three(), names=(HOSTILE_TAG, HOSTILE_TAG, HOSTILE_TAG)))
    assert "<img src=x" not in page


def test_the_printed_limit_is_the_largest_with_its_client() -> None:
    record = of_clients(*three())
    tile = screen(record).numbers[0]
    assert tile.value == "0.550"
    assert "up to 0.700 for hospital-b" in tile.detail
    assert "AUC up to 0.700 for hospital-b" in upper_bounds(main_estimates(clean_texts(record)))


def test_the_pooled_limit_precedes_limits_of_clients() -> None:
    record = of_clients(*three(), pooled(0.51, 0.47, 0.55, significant=False))
    tile = screen(record).numbers[0]
    assert tile.value == "0.510"
    assert "pooled clients" in tile.detail
    assert "up to 0.700 for hospital-b" in tile.detail
    assert "AUC up to 0.550 for pooled clients (0.700 for hospital-b)" in upper_bounds(
        main_estimates(clean_texts(record))
    )


def test_limits_of_rates_name_their_client_too() -> None:
    rates = [
        rate(0.01, None, 0.03, target=0, significant=False),
        rate(0.01, None, 0.09, target=1, significant=False),
    ]
    record = of_clients(*three(), *rates)
    detail = screen(record).numbers[1].detail
    assert "TPR at 1% FPR up to 9.0%" in detail
    assert detail.endswith("for hospital-b")


def test_leaks_and_limits_name_their_clients() -> None:
    record = of_clients(*three(0.65, significant=True))
    first = screen(record)
    assert "The leak is shown for hospital-a (1 of 3 audited clients)" in first.headline
    assert "hospital-a" in first.numbers[0].detail


def test_a_pooled_headline_describes_the_comparison() -> None:
    record = of_clients(*three(), pooled(0.65, 0.62, 0.68, significant=True))
    expected = (
        "The leak is shown over all 3 audited clients, each compared with its own held-out samples"
    )
    assert expected in summarise_verdict(record).headline


def test_pooled_estimates_of_fewer_clients_are_labelled() -> None:
    few = [auc(0.5, 0.4, 0.58, attack="fta-l", target=c, **SIZES) for c in (0, 1)]
    figures = [auc(0.5, 0.4, 0.56, attack="a", target=c, **SIZES) for c in (0, 1, 2)]
    over = [pooled(0.5, 0.4, 0.6, attack=name, significant=False) for name in ("a", "fta-l")]
    record = only(*figures, *few, *over)
    assert bars(record)[:2] == ["pooled clients · a", "2 of 3 clients pooled · fta-l"]
    assert pooled_over(record)("a") == "over all 3 audited clients"
    assert pooled_over(record)("fta-l") == "over 2 of 3 audited clients"
    limit = over[1].model_copy(update={"high": 0.65})
    record = only(*figures, *few, over[0], limit)
    assert "up to 0.650 for 2 of 3 clients pooled" in upper_bounds(main_estimates(record))


@pytest.mark.parametrize(
    ("over_all", "expected"),
    [
        (0.65, "The leak is shown over all 3 audited clients"),
        (0.50, "The leak is not shown over all 3 audited clients"),
    ],
)
def test_a_leaking_client_is_reported_next_to_the_pooled_estimate(
    over_all: float, expected: str
) -> None:
    is_leak_over_all = over_all > 0.6
    every = pooled(over_all, over_all - 0.03, over_all + 0.03, significant=is_leak_over_all)
    headline = summarise_verdict(of_clients(*three(0.9, significant=True), every)).headline
    assert expected in headline
    assert headline.endswith("for hospital-a separately")


def test_clients_too_small_for_a_verdict_are_mentioned() -> None:
    over_all = [
        pooled(0.51, 0.49, 0.53, significant=False),
        rate(0.01, 0.005, 0.015, target=None, within="client", significant=False),
    ]
    headline = summarise_verdict(of_clients(*three(), *over_all)).headline
    assert headline.startswith("No leak shown")
    assert "single clients have too few samples for a separate verdict" in headline


def test_only_small_clients_are_called_too_small() -> None:
    large = [
        auc(0.5, 0.48, 0.52, target=0, significant=False),
        rate(0.01, 0.005, 0.015, target=0, significant=False),
    ]
    small = auc(0.5, 0.3, 0.7, target=1, significant=False)
    every = pooled(0.5, 0.49, 0.51, significant=False)
    headline = summarise_verdict(of_clients(*large, small, every)).headline
    assert "hospital-b has too few samples for a separate verdict" in headline


def test_the_label_baseline_is_shown_with_the_estimate() -> None:
    record = only(auc(0.65, 0.62, 0.68, target=0, significant=True, labels_alone=0.503))
    assert "labels alone 0.503" in words(report_html(record))


@pytest.mark.parametrize("target", [0, None])
def test_contrasts_without_a_fair_draw_are_marked(target: int | None) -> None:
    mark = "members not chosen at random: may include differences between clients"
    unfair = auc(0.65, 0.62, 0.68, target=target, fair=False, within="class", significant=True)
    record = only(unfair)
    page = words(report_html(record))
    assert mark in page
    assert "same classes" in page


def test_unfair_contrasts_are_marked_in_the_table_of_all_figures() -> None:
    fair = auc(0.65, 0.62, 0.68, target=0, significant=True)
    unfair = auc(0.8, 0.7, 0.9, target=0, contrast="other_client", fair=False, within="class")
    page = words(report_html(only(fair, unfair)))
    assert "members not chosen at random: may include differences between clients" in page


def test_fair_contrasts_are_not_marked() -> None:
    page = words(report_html(only(auc(0.65, 0.62, 0.68, target=0, significant=True))))
    assert "members not chosen at random" not in page


def test_the_question_about_canaries_is_about_a_canary_sample() -> None:
    record = changed(only(auc(0.8, 0.7, 0.9)), config={"audit": {"draw": "canaries"}})
    assert (
        "whether a given canary sample was in the training data"
        in summarise_verdict(record).audited
    )


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("sample", "a given sample was"), ("person", "a given person's data were")],
)
def test_the_audited_question_depends_on_the_unit(unit: str, expected: str) -> None:
    record = only(auc(0.8, 0.7, 0.9, unit=unit))
    assert expected in summarise_verdict(record).audited
