import base64
import hashlib
import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.formatting.wording import format_value, interval_text
from fedaudit.report.page import comparison_html, report_html, write_comparison, write_report
from fedaudit.results.record import Record, ViewRow
from fedaudit.study.comparing import compare_records
from tests.estimates import changed
from tests.report.clustered import hostile_clusters
from tests.report.games import hostile_games, played
from tests.report.records import HOSTILE, HOSTILE_LINK, HOSTILE_TAG, hostile, record

LOADING = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class Page(HTMLParser):
    """The contents of a page: its elements, its scripts and its visible text."""

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


RECORDS: dict[str, Callable[[], Record]] = {
    "plain": record,
    "hostile": hostile,
    "games": played,
    "hostile games": hostile_games,
}
every_page = pytest.mark.parametrize("name", RECORDS)


@cache
def record_named(name: str) -> Record:
    return RECORDS[name]()


@cache
def document(name: str) -> str:
    return report_html(record_named(name))


@cache
def page_of(name: str) -> Page:
    return Page(document(name))


def small() -> Record:
    return record(strengths=(2.6, 1.9), details=False)


@every_page
def test_no_element_loads_or_links_anything_outside_the_page(name: str) -> None:
    page = page_of(name)
    for _, attributes in page.elements:
        for loading in LOADING & set(attributes):
            assert (attributes[loading] or "").startswith("#")
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {t for t, _ in page.elements}


@every_page
def test_the_content_security_policy_allows_only_hashed_scripts(name: str) -> None:
    page = page_of(name)
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


@pytest.mark.parametrize("name", ["plain", "games"])
def test_hostile_names_add_no_element_attribute_or_script(name: str) -> None:
    good, bad = page_of(name), page_of(f"hostile {name}" if name == "games" else "hostile")
    assert {tag for tag, _ in bad.elements} <= {tag for tag, _ in good.elements}
    assert len(bad.scripts) == len(good.scripts)
    for _, attributes in bad.elements:
        assert not any(name.startswith("on") for name in attributes)
    assert HOSTILE[:40] in bad.text


def test_direction_and_surrogate_characters_do_not_reach_the_page() -> None:
    document("hostile").encode("utf-8")
    outside = re.sub(r"(?s)<script>.*?</script>", "", document("hostile"))
    assert not set("\u202e\u2028\u2029\x00") & set(outside)


def test_the_page_contains_every_estimate_with_its_interval() -> None:
    for figure in record_named("plain").findings:
        if figure.value is None:
            assert f"needs {figure.note.split()[2]} more" in page_of("plain").text
        else:
            assert format_value(figure.value, figure.metric) in page_of("plain").text
            assert interval_text(figure) in page_of("plain").text


def test_the_header_counts_the_attacks_that_were_tried() -> None:
    tried = sum(row.status == "run" for row in record_named("plain").attacks)
    assert 0 < tried < len(record_named("plain").attacks)
    assert f"<span>{tried} attacks</span>" in document("plain")


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
    comparison_page = Page(comparison_html(compare_records([long, plain]), [long, plain]))
    assert not re.search("n{130}", comparison_page.text)


def test_refused_estimates_show_their_reason() -> None:
    assert "needs 970 more" in report_html(record(size=30))
    figures = [
        changed(estimate, value=None, low=None, high=None, note="the score is constant")
        for estimate in record_named("plain").findings[:1]
    ]
    assert "the score is constant" in report_html(changed(record(), estimates=figures))


@pytest.mark.parametrize(
    "heading",
    [
        "What was asked",
        "Attacks",
        "AUC by class",
        "Most exposed samples",
        "Controls",
        "Accuracy of the model",
        "Clients",
        "What was not tested",
        "Words on this page",
        "Reproduce",
    ],
)
def test_the_report_has_all_sections(heading: str) -> None:
    assert heading in page_of("plain").text


def test_the_report_is_accessible_without_scripts() -> None:
    assert len(page_of("plain").named("h1")) == 1
    assert len(page_of("plain").named("caption")) == len(page_of("plain").named("table"))
    plots = [div for div in page_of("plain").named("div") if div.get("class") == "plot"]
    assert plots
    assert all(plot.get("role") == "img" and plot.get("aria-label") for plot in plots)
    assert any(link.get("href") == "#main" for link in page_of("plain").named("a"))
    assert page_of("plain").named("noscript")
    assert page_of("plain").named("html") == [{"lang": "en"}]


def test_links_of_the_contents_lead_to_parts_that_exist() -> None:
    ids = {attributes.get("id") for _, attributes in page_of("plain").elements}
    links = [link["href"] or "" for link in page_of("plain").named("a")]
    assert {link[1:] for link in links} <= ids
    assert len([i for _, a in page_of("plain").elements if (i := a.get("id"))]) == len(ids - {None})


def test_only_the_redraw_evaluation_has_a_warning_banner() -> None:
    warning = "These figures mean nothing about leakage."
    assert warning in report_html(record(evaluation="redraw", details=False))
    assert warning not in page_of("plain").text


def test_an_almost_empty_record_has_a_report() -> None:
    bare = changed(
        record(details=False, controls=()),
        estimates=[],
        attacks=[],
        clients=[],
        accuracies=[],
        untested=[],
    )
    document = report_html(bare)
    assert "This audit has no figures of attacks." in document
    assert "No controls were run." in document


@pytest.mark.parametrize("name", ["plain", "games"])
def test_the_same_record_makes_the_same_bytes(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "1.html", tmp_path / "2.html"
    write_report(record_named(name), first)
    write_report(record_named(name), second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.html", "2.html"]


def _side_by_side(record: Record) -> str:
    return comparison_html(compare_records([record, record]), [record, record])


@pytest.mark.parametrize(
    "page",
    [
        lambda: report_html(hostile_clusters()),
        lambda: _side_by_side(hostile_clusters()),
        lambda: document("hostile games"),
    ],
    ids=["clusters", "clusters side by side", "games"],
)
def test_hostile_names_are_escaped_and_shortened(page: Callable[[], str]) -> None:
    shown = page()
    for part in (HOSTILE, HOSTILE_TAG, HOSTILE_LINK[:30], "x" * 1000, "\u202e"):
        assert part not in shown


def test_a_comparison_shows_both_values_and_their_difference(tmp_path: Path) -> None:
    defended = record(name="defended", strengths=(0.5,), defenses=(("dp-sgd", 1.0),))
    plain = record(name="plain", strengths=(2.6,), defenses=(("none", 1.0),))
    path = tmp_path / "comparison.html"
    write_comparison(compare_records([plain, defended]), [plain, defended], path)
    page = Page(path.read_text(encoding="utf-8"))
    base, other = plain.findings[0].number, defended.findings[0].number
    assert f"{base:.3f}" in page.text
    assert f"Δ −{base - other:.3f} *" in page.text
    assert "dp-sgd" in page.text


def test_a_comparison_needs_two_records_and_warns_of_redraw() -> None:
    with pytest.raises(BadInput, match="at least 2 records, got 1"):
        compare_records([record_named("plain")])
    flawed = [small(), changed(small(), evaluation="redraw")]
    assert "flawed redraw" in comparison_html(compare_records(flawed), flawed)
    records = [small(), record_named("hostile")]
    assert HOSTILE not in comparison_html(compare_records(records), records)
