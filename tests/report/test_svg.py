"""Panels drawn as SVG: marks lie where the axes say, and invalid values are refused."""

import re
from collections.abc import Callable
from functools import cache
from xml.etree import ElementTree

import pytest

from fedaudit.report.figures.charts import GREY, OKABE_ITO, Axis, Curve, Panel, Point, Style, ticks
from fedaudit.report.page import comparison_html, package_file, report_html, templates
from fedaudit.results.estimate import Interval
from fedaudit.study.comparing import compare_records
from tests.estimates import changed
from tests.report.clustered import clustered, with_clusters
from tests.report.games import hostile_games, played
from tests.report.records import hostile, record, source, used, with_sources
from tests.report.test_print import contrast
from tests.study.compare_records import PLAIN, STRONG, WEAK

LOOK = Style(OKABE_ITO[0], "dash")
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


SQUARE = '<path d="M-3.6-3.6h7.2v7.2h-7.2z"/>'


def _compared(records: list[object]) -> str:
    return comparison_html(compare_records(records), records)  # type: ignore[arg-type]


TEN = Axis("ten", 0, 10, ticks(0, 10, 5))
MARK = Style(OKABE_ITO[0], "", "square")


def panel(*parts: Curve | Point, x: Axis = TEN, y: Axis = TEN) -> Panel:
    curves = [part for part in parts if isinstance(part, Curve)]
    points = [part for part in parts if isinstance(part, Point)]
    return Panel("a panel", "what it shows", x, y, curves, points)


def drawn(panel: Panel) -> str:
    return str(templates().get_template("charts.html.j2").module.panel(panel))  # type: ignore[attr-defined]


def places(markup: str) -> list[tuple[float, float]]:
    """Return the places of marks, in per cent from the upper left corner."""
    places = re.findall(r'<svg x="([\d.-]+)%" y="([\d.-]+)%" overflow="visible"><g', markup)
    return [(float(x), float(y)) for x, y in places]


@pytest.mark.parametrize("name", PAGES)
def test_every_drawing_is_well_formed_and_has_finite_numbers(
    name: str,
) -> None:
    drawings = re.findall(
        r'<(?:div class="area"|span class="ft" [^>]*)>(<svg.*?</svg>)(?=<span|</div>|</span>)',
        page(name),
        re.DOTALL,
    )
    assert drawings
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert not re.search(r'="[^"]*(?:nan|inf|None)[^"]*%?"', drawing)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_smaller_than_one_megabyte(name: str) -> None:
    assert len(page(name).encode()) < 1_000_000


def test_marks_and_lines_follow_a_linear_axis() -> None:
    y = Axis("two", 0, 2)
    markup = drawn(panel(Curve("a", [0, 5, 5], [0, 0.5, 0.5], LOOK), Point(5, 0.5, MARK, "b"), y=y))
    assert places(markup) == [(50, 75)]
    assert 'd="M0 1000L500 750"' in markup
    assert 'stroke-dasharray="7 4"' in markup
    assert markup.count(SQUARE) == 1


def test_marks_follow_a_logarithmic_axis() -> None:
    axis = Axis("log", -3, 0, log=True)
    points = [Point(0.001, 0.01, MARK, "a"), Point(0.1, 1.0, MARK, "b")]
    assert places(drawn(panel(*points, x=axis, y=axis))) == [(0, 66.67), (66.67, 0)]


def test_limits_reach_from_the_lower_to_the_upper_one() -> None:
    point = Point(5, 5, MARK, "a", y_limits=Interval(low=4, high=7))
    assert 'x1="50%" y1="30%" x2="50%" y2="60%"' in drawn(panel(point))


def test_ticks_have_as_many_decimals_as_their_step_needs() -> None:
    texts = [text for _, text in ticks(0.5, 0.53, 6, "%")]
    assert texts == ["50.0%", "50.5%", "51.0%", "51.5%", "52.0%", "52.5%", "53.0%"]


def test_a_name_that_is_markup_stays_text() -> None:
    name = '"><img src=x>'
    parts = (Curve(name, [0, 1], [0, 1], LOOK), Point(1, 1, MARK, name))
    markup = drawn(panel(*parts, x=TEN._replace(title="<script>")))
    assert "<img" not in markup
    assert "<script" not in markup
    assert markup.count("&lt;img") == 2


def test_a_mark_at_an_undefined_position_is_refused() -> None:
    with pytest.raises(ValueError, match="must be finite, got nan"):
        drawn(panel(Point(float("nan"), 1, MARK, "")))


@pytest.mark.parametrize("variable", ["card", "band"])
def test_marks_have_a_contrast_of_three_to_one_in_light_and_dark(variable: str) -> None:
    colors = package_file("light.css") + package_file("dark.css")
    grounds = re.findall(rf"--{variable}: (#\w+);", colors)
    assert len(grounds) == 2
    assert all(contrast(colour, ground) >= 3 for ground in grounds for colour in (*OKABE_ITO, GREY))


def test_pictures_have_text_alternatives_for_screen_readers() -> None:
    assert 'role="table" aria-label="Attacks against guessing"' in page("members")
    assert 'role="columnheader">AUC<' in page("members")
    assert "no defense: leakage 64.0%, error 9.0%; gradient-noise (sigma 0.01)" in page("fronts")
