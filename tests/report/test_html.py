import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.report.page import (
    comparison_html,
    embedded,
    report_html,
    write_comparison,
    write_report,
)
from fedaudit.report.words import interval_of, shown
from fedaudit.results.record import Record, ViewRow
from fedaudit.study.comparing import compared
from tests.estimates import changed
from tests.report.clustered import hostile_clusters
from tests.report.games import hostile_games, played
from tests.report.records import HOSTILE, HOSTILE_LINK, HOSTILE_TAG, hostile, record

LOADING = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class Page(HTMLParser):
    """What a page is made of: its elements, its scripts, and the text a reader sees."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._inside = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._inside != "style":
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


PLAIN = record()
PLAIN_DOCUMENT = report_html(PLAIN)
PLAIN_PAGE = Page(PLAIN_DOCUMENT)
HOSTILE_RECORD = hostile()
HOSTILE_DOCUMENT = report_html(HOSTILE_RECORD)
SMALL = record(strengths=(2.6, 1.9), details=False)
HOSTILE_PAGE = Page(HOSTILE_DOCUMENT)
GAMES = played()
GAMES_PAGE = Page(report_html(GAMES))
HOSTILE_GAMES_PAGE = Page(report_html(hostile_games()))
PAGES = [PLAIN_PAGE, HOSTILE_PAGE, GAMES_PAGE, HOSTILE_GAMES_PAGE]
NAMES = ["plain", "hostile", "games", "hostile games"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_element_loads_or_links_anything_outside_the_page(page: Page) -> None:
    for _, attributes in page.elements:
        for name in LOADING & set(attributes):
            assert (attributes[name] or "").startswith("#")
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {t for t, _ in page.elements}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_policy_allows_the_page_s_own_scripts_by_hash_and_nothing_else(page: Page) -> None:
    (policy,) = [
        meta["content"] or ""
        for meta in page.named("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    run = [text for attributes, text in page.scripts if "type" not in attributes]
    assert len(run) == 2
    for text in run:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert "unsafe-eval" not in policy


@pytest.mark.parametrize(
    ("bad", "good"), [(HOSTILE_PAGE, PLAIN_PAGE), (HOSTILE_GAMES_PAGE, GAMES_PAGE)]
)
def test_hostile_names_add_no_element_attribute_or_script(bad: Page, good: Page) -> None:
    # Maps of source inference alone have fields with numbers.
    drawn = {"rect", "text"}
    assert {tag for tag, _ in bad.elements} <= {tag for tag, _ in good.elements} | drawn
    assert len(bad.scripts) == len(good.scripts)
    for _, attributes in bad.elements:
        assert not any(name.startswith("on") for name in attributes)
    assert HOSTILE[:40] in bad.text


def test_direction_and_surrogate_characters_do_not_reach_the_page() -> None:
    HOSTILE_DOCUMENT.encode("utf-8")
    outside = re.sub(r"(?s)<script>.*?</script>", "", HOSTILE_DOCUMENT)
    assert not set("\u202e\u2028\u2029\x00") & set(outside)


def test_the_data_of_figures_cannot_end_its_script_element() -> None:
    text = embedded({"</script><!--": "\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script><!--": "\u2028&"}


def test_numbers_that_json_lacks_are_refused_in_the_data() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embedded(float("nan"))


def test_every_figure_of_the_record_stands_in_the_page_with_its_interval() -> None:
    for figure in PLAIN.findings:
        if figure.value is None:
            assert figure.note in PLAIN_PAGE.text
        else:
            assert shown(figure.value, figure.metric) in PLAIN_PAGE.text
            assert interval_of(figure) in PLAIN_PAGE.text
    every = f"{len(PLAIN.findings)} figures, with method and counts"
    assert every in PLAIN_PAGE.text


def test_the_header_counts_the_attacks_that_were_tried() -> None:
    tried = sum(row.status == "run" for row in PLAIN.attacks)
    assert 0 < tried < len(PLAIN.attacks)
    assert f"<span>{tried} attacks</span>" in PLAIN_DOCUMENT


def test_a_very_long_name_is_never_printed_whole() -> None:
    endless = "n" * 5_000
    plain = record(size=200, strengths=(2.6,), defenses=(("none", 1.0), ("dp-sgd", 0.5)))
    update: dict[str, object] = {
        "name": endless,
        "content_hash": endless,
        "environment": changed(
            plain.environment, commit=endless, device=endless, versions={endless: endless}
        ),
        "view": ViewRow(name=endless, sees=[endless], description="All."),
        "attacks": [
            changed(row, name=endless, signals=[endless], needs=[endless]) for row in plain.attacks
        ],
        "trajectories": [changed(t, signal=endless) for t in plain.trajectories],
    }
    for field in ("estimates", "curves", "histograms", "exposed"):
        update[field] = [
            changed(part, attack=endless, defense=endless * (place > 2) or "none")
            for place, part in enumerate(getattr(plain, field))
        ]
    long = changed(plain, **update)
    page = Page(report_html(long))
    assert not re.search("n{130}", page.text)
    texts = [value or "" for _, attributes in page.elements for value in attributes.values()]
    assert not any(re.search("n{401}", text) for text in texts)
    both = Page(comparison_html(compared([long, plain]), [long, plain]))
    assert not re.search("n{130}", both.text)


def test_refused_figures_say_why() -> None:
    assert "inconclusive: needs 970 more non-members" in report_html(record(size=30))


@pytest.mark.parametrize(
    "heading",
    [
        "Threat model and view",
        "Attacks",
        "ROC curves",
        "Signals over rounds",
        "Risk by class",
        "Against whose samples",
        "Most exposed samples",
        "Controls",
        "Utility",
        "Clients",
        "What was not tested",
        "Reproduce",
    ],
)
def test_the_report_has_its_parts(heading: str) -> None:
    assert heading in PLAIN_PAGE.text


def test_a_reader_without_scripts_or_sight_finds_names_for_everything() -> None:
    assert len(PLAIN_PAGE.named("h1")) == 1
    assert len(PLAIN_PAGE.named("caption")) == len(PLAIN_PAGE.named("table"))
    plots = [div for div in PLAIN_PAGE.named("div") if div.get("class") == "plot"]
    assert plots
    assert all(plot.get("role") == "img" and plot.get("aria-label") for plot in plots)
    assert any(link.get("href") == "#main" for link in PLAIN_PAGE.named("a"))
    assert PLAIN_PAGE.named("noscript")
    assert PLAIN_PAGE.named("html") == [{"lang": "en"}]


def test_links_of_the_contents_lead_to_parts_that_exist() -> None:
    ids = {attributes.get("id") for _, attributes in PLAIN_PAGE.elements}
    links = [link["href"] or "" for link in PLAIN_PAGE.named("a")]
    assert {link[1:] for link in links} <= ids
    assert len([i for _, a in PLAIN_PAGE.elements if (i := a.get("id"))]) == len(ids - {None})


def test_the_flawed_redraw_has_a_banner_and_sound_evaluation_has_none() -> None:
    warning = "These figures mean nothing about leakage."
    assert warning in report_html(record(evaluation="redraw", details=False))
    assert warning not in PLAIN_PAGE.text


def test_a_record_with_next_to_nothing_still_makes_a_report() -> None:
    bare = changed(
        record(details=False, controls=()),
        estimates=[],
        attacks=[],
        clients=[],
        accuracies=[],
        untested=[],
    )
    document = report_html(bare)
    assert "This record holds no figures of attacks." in document
    assert "No controls were run." in document


@pytest.mark.parametrize("of", [PLAIN, GAMES], ids=["members", "games"])
def test_the_same_record_makes_the_same_bytes(of: Record, tmp_path: Path) -> None:
    first, second = tmp_path / "1.html", tmp_path / "2.html"
    write_report(of, first)
    write_report(of, second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.html", "2.html"]


def _side_by_side(record: Record) -> str:
    return comparison_html(compared([record, record]), [record, record])


@pytest.mark.parametrize(
    "page",
    [
        lambda: report_html(hostile_clusters()),
        lambda: _side_by_side(hostile_clusters()),
        lambda: report_html(hostile_games()),
    ],
    ids=["clusters", "clusters side by side", "games"],
)
def test_hostile_names_are_escaped_and_shortened(page: Callable[[], str]) -> None:
    document = page()
    for part in (HOSTILE, HOSTILE_TAG, HOSTILE_LINK[:30], "x" * 1000, "\u202e"):
        assert part not in document


def test_a_comparison_shows_both_values_and_their_difference(tmp_path: Path) -> None:
    defended = record(name="defended", strengths=(0.5,), defenses=(("dp-sgd", 1.0),))
    plain = record(name="plain", strengths=(2.6,), defenses=(("none", 1.0),))
    path = tmp_path / "comparison.html"
    write_comparison(compared([plain, defended]), [plain, defended], path)
    page = Page(path.read_text(encoding="utf-8"))
    base, other = plain.findings[0].number, defended.findings[0].number
    assert f"{base:.3f}" in page.text
    assert f"Δ −{base - other:.3f} *" in page.text
    assert "dp-sgd" in page.text


def test_a_comparison_needs_two_records_and_warns_of_a_flawed_one() -> None:
    with pytest.raises(BadInput, match="at least 2 records, got 1"):
        compared([PLAIN])
    flawed = [SMALL, changed(SMALL, evaluation="redraw")]
    assert "flawed redraw" in comparison_html(compared(flawed), flawed)
    both = [SMALL, HOSTILE_RECORD]
    assert HOSTILE not in comparison_html(compared(both), both)
