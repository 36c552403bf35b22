"""Panels drawn as SVG: marks stand where the axes say, and what is unknown is refused."""

import re
from collections.abc import Callable
from functools import cache
from xml.etree import ElementTree

import pytest

from fedaudit.report.figures.drawing import MARKS, OKABE_ITO, Panel, Scale, Series, Style
from fedaudit.report.figures.svg import drawn
from fedaudit.report.page import comparison_html, report_html
from fedaudit.results.estimate import Interval
from fedaudit.study.comparing import compared
from tests.estimates import changed
from tests.report.clustered import clustered, with_clusters
from tests.report.games import hostile_games, played
from tests.report.records import hostile, record, source, used, with_sources
from tests.study.compare_records import PLAIN, STRONG, WEAK

LOOK = Style(OKABE_ITO[0], "dash", "square")
USED = used(distinct=(10, 8), times=(0, 2, 8))
PAGES: dict[str, Callable[[], str]] = {
    "members": lambda: report_html(record(strengths=(2.6, 0.5))),
    "hostile names": lambda: report_html(hostile()),
    "sources": lambda: report_html(with_sources(source(), source(seed=2))),
    "clusters": lambda: report_html(with_clusters(clustered(clients=20, minority=4, rounds=3))),
    "games": lambda: report_html(played()),
    "hostile games": lambda: report_html(hostile_games()),
    "fronts": lambda: _compared([changed(PLAIN, usage=[USED]), WEAK, STRONG]),
    "tradeoff": lambda: _compared([record(name="one"), record(name="two", strengths=(0.5,))]),
}


@cache
def page(name: str) -> str:
    return PAGES[name]()


def _compared(records: list[object]) -> str:
    return comparison_html(compared(records), records)  # type: ignore[arg-type]


ANY = Scale()


def panel(*series: Series, x: Scale = ANY, y: Scale = ANY) -> Panel:
    return Panel("a panel", "what it shows", x, y, series)


def places(markup: str) -> list[tuple[float, float]]:
    """Where marks stand, in per cent from the upper left corner."""
    found = re.findall(r'<svg x="([\d.-]+)%" y="([\d.-]+)%" overflow="visible"><g', markup)
    return [(float(x), float(y)) for x, y in found]


@pytest.mark.parametrize("name", PAGES)
def test_every_drawing_of_a_page_is_well_formed_and_none_holds_a_number_that_is_none(
    name: str,
) -> None:
    drawings = re.findall(
        r'<(?:div class="area"|span class="ft")>(<svg.*?</svg>)(?=<span|</div>|</span>)',
        page(name),
        re.DOTALL,
    )
    assert drawings
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert not re.search(r'="[^"]*(?:nan|inf|None)[^"]*%?"', drawing)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_smaller_than_two_megabytes_by_far(name: str) -> None:
    assert len(page(name).encode()) < 1_000_000


def test_marks_stand_where_a_linear_axis_says() -> None:
    line = Series("one", [0, 5, 10], [0.0, 0.5, None], LOOK, marks=3)
    markup = drawn(panel(line, x=Scale(ends=(0, 10)), y=Scale(ends=(0, 2))))
    assert places(markup) == [(0, 100), (50, 75)]
    assert 'd="M0 1000L500 750"' in markup
    assert 'stroke-dasharray="7 4"' in markup
    assert markup.count(MARKS["square"]) == 2


def test_marks_stand_where_a_logarithmic_axis_says() -> None:
    line = Series("one", [0.001, 0.1], [0.01, 1.0], LOOK, marks=2)
    axis = Scale(ends=(-3, 0), log=True)
    markup = drawn(panel(line, x=axis, y=axis))
    assert places(markup) == [(0, 66.67), (66.67, 0)]


def test_limits_reach_from_the_lower_to_the_upper_one() -> None:
    line = Series("one", [5], [5], LOOK, marks=1, limits=[Interval(low=4, high=7)])
    axis = Scale(ends=(0, 10))
    assert 'x1="50%" x2="50%" y1="30%" y2="60%"' in drawn(panel(line, x=axis, y=axis))


def test_ticks_have_as_many_decimals_as_their_step_needs() -> None:
    line = Series("one", [0, 1], [0.5, 0.53], LOOK)
    axis = Scale(form="%", ends=(0.5, 0.53), count=6)
    texts = re.findall(r'class="ty"[^>]*>([^<]*)<', drawn(panel(line, y=axis)))
    assert texts == ["50.0%", "50.5%", "51.0%", "51.5%", "52.0%", "52.5%", "53.0%"]


def test_a_name_that_is_markup_stays_text() -> None:
    line = Series('"><img src=x>', [0, 1], [0, 1], LOOK, "{y:.1%}", marks=2)
    markup = drawn(panel(line, x=Scale("<script>")))
    assert "<img" not in markup
    assert "<script" not in markup
    assert markup.count("&lt;img") == 3, "as text of the line and of two marks"


def test_a_mark_says_its_value_under_the_pointer() -> None:
    line = Series("one", [1, 2], [0.12345678, None], LOOK, "{y:.1%} in round {x}")
    markup = drawn(panel(line))
    assert re.findall(r"<title>(.*?)</title>", markup) == ["one", "one: 12.3% in round 1"]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (Series("one", [1], [float("nan")], LOOK), "nan where a number belongs"),
        (Series("one", [1], [1], LOOK._replace(symbol="moon"), marks=1), "'moon'"),
    ],
)
def test_what_has_no_drawing_is_refused(line: Series, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        drawn(panel(line))
