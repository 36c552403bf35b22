"""The printed report: header, cells and colours with sufficient contrast."""

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from fedaudit.formatting.wording import format_value, interval_text
from fedaudit.report.figures.charts import GREY, MUTED, OKABE_ITO
from fedaudit.report.page import css_string, report_html
from tests.estimates import changed
from tests.report.games import played
from tests.report.records import HOSTILE, record, source, with_sources
from tests.report.test_browser import BROWSER, FLAGS

CAN_READ_PDF = BROWSER is not None and shutil.which("pdftotext") is not None
CARDS = {"light": "#ffffff", "dark": "#1a2027"}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colour: str, other: str) -> float:
    dark, light = sorted(map(luminance, (colour, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_lines_of_intervals_have_a_contrast_of_three_to_one(card: str) -> None:
    assert card in report_html(record(details=False))
    for colour in (*OKABE_ITO, GREY, MUTED):
        assert contrast(colour, card) >= 3, colour


def test_interval_lines_are_not_transparent() -> None:
    page = report_html(record(details=False))
    lines = re.findall(r'<line [^>]*stroke="#[^>]*>', page)
    assert lines
    assert not any("opacity" in line for line in lines)


def test_a_printed_page_has_name_hash_and_number_in_its_header() -> None:
    page = report_html(changed(record(details=False), name="mine"))
    (rule,) = re.findall(r"@page \{ @top-left.*?\} \}", page, re.DOTALL)
    assert '@top-left { content: "mine"; }' in rule
    assert "9f2c9f2c" in rule
    assert 'content: "page " counter(page) " of " counter(pages)' in rule


def test_a_name_in_the_header_cannot_end_its_string_or_element() -> None:
    text = css_string(HOSTILE + '";}\n\\')
    assert not set("<>;}\n") & set(text)
    assert text.count('"') == 2
    assert css_string("a b") == '"a\\000020b"'


def pdf_of(page: str, folder: Path) -> Path:
    """Print a page to a PDF, without a header of the browser's."""
    file, pdf = folder / "page.html", folder / "page.pdf"
    file.write_text(page, encoding="utf-8")
    flags = [*FLAGS, "--no-pdf-header-footer", f"--user-data-dir={folder / 'profile'}"]
    subprocess.run(
        [str(BROWSER), *flags, f"--print-to-pdf={pdf}", file.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    return pdf


def n_pages(pdf: Path) -> int:
    """Count the pages of a PDF."""
    return len(re.findall(rb"/Type\s*/Page[^s]", pdf.read_bytes()))


def printed_lines(pdf: Path) -> str:
    """Return a PDF's text in the order of its pages, which form feeds separate."""
    command = ["pdftotext", "-raw", str(pdf), "-"]
    return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout.decode()


def text_of(pdf: Path) -> str:
    """Return a PDF's text in the order of its pages, without spaces and breaks."""
    return re.sub(r"\s", "", printed_lines(pdf))


def cells_of(page: str) -> list[str]:
    """Return the texts of all tables, without spaces; narrow columns break anywhere."""
    cells = re.findall(r"<(t[hd]|d[td])\b[^>]*>(.*?)</\1>", page, re.DOTALL)
    parts = (part for _, cell in cells for part in re.split(r"<[^>]+>", cell))
    return [text for part in parts if (text := re.sub(r"\s", "", unescape(part)))]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(not CAN_READ_PDF, reason="there is no Chromium or no pdftotext on the PATH")
@pytest.mark.parametrize("gap", [350, 400, 450, 500])
def test_a_tables_head_keeps_its_first_rows_on_a_printed_page(gap: int, tmp_path: Path) -> None:
    lower = f"<style>#points .scroll {{ margin-top: {gap}px !important }}</style></head>"
    text = printed_lines(pdf_of(report_html(played()).replace("</head>", lower), tmp_path))
    (page,) = [page_text for page_text in text.split("\f") if "Games by sign" in page_text]
    table = page.partition("Games by sign")[2]
    assert len(re.findall(r"(?m)^(no mechanism|bitrand|ome|bitwise)", table)) >= 3


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(not CAN_READ_PDF, reason="there is no Chromium or no pdftotext on the PATH")
def test_the_text_of_every_cell_is_printed(tmp_path: Path) -> None:
    page = report_html(with_sources(source(), source(seed=2), membership=True, details=True))
    printed, cells_shown = text_of(pdf_of(page, tmp_path)), cells_of(page)
    assert len(cells_shown) > 100
    assert [part for part in cells_shown if part not in printed] == []


def test_no_estimate_is_printed_twice_below_the_summary() -> None:
    audit = with_sources(source(right=61), source(seed=2), membership=True, details=True)
    page = report_html(audit).partition('id="asked"')[2]
    cells = [
        " ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split())
        for cell in re.findall(r"<td[^>]*>(.*?)</td>", page, re.DOTALL)
    ]
    figures = [
        estimate for estimate in [*audit.findings, *audit.groups] if estimate.value is not None
    ]
    assert len(figures) > 50
    for figure in figures:
        limits = interval_text(figure)
        if figure.by == "client" or not limits:
            continue
        cells_of_estimate = [
            c for c in cells if format_value(figure.value, figure.metric) in c and limits in c
        ]
        equal_estimates = [
            estimate
            for estimate in figures
            if format_value(estimate.value, estimate.metric)
            == format_value(figure.value, figure.metric)
            and interval_text(estimate) == limits
            and estimate.by != "client"
        ]
        assert len(cells_of_estimate) == len(equal_estimates), (
            figure.attack,
            figure.metric,
            figure.contrast,
        )
