"""Dead links of the built documentation are found."""

import runpy
from pathlib import Path

import pytest

dead_links = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "links.py"))["dead_links"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "index.html").write_text(
        '<h1 id="in side">x</h1><a href="../a.html">a</a>'
    )
    (tmp_path / "picture.svg").write_text("<svg/>")
    return tmp_path


@pytest.mark.parametrize(
    "link",
    [
        "#here",
        "#",
        "",
        "inner/",
        "inner/#in%20side",
        "inner/index.html#in%20side",
        "picture.svg#part",
        "https://example.org/nowhere",
        "mailto:a@example.org",
    ],
)
def test_a_link_that_leads_somewhere_is_passed_over(link: str, site: Path) -> None:
    (site / "a.html").write_text(f'<p id="here"><a href="{link}">x</a><img src="picture.svg"></p>')
    assert list(dead_links(site)) == []


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("#../src/fedaudit", "has no such place"),
        ("inner/#nowhere", "has no such place"),
        ("b.html", "is not there"),
        ("../outside.md", "is not there"),
    ],
)
def test_a_dead_link_is_named_with_its_page(link: str, said: str, site: Path) -> None:
    (site / "a.html").write_text(f'<a href="{link}">x</a>')
    assert list(dead_links(site)) == [f"a.html: {link} {said}"]


def test_a_missing_picture_is_a_dead_link(site: Path) -> None:
    (site / "a.html").write_text('<img src="gone.png">')
    assert list(dead_links(site)) == ["a.html: gone.png is not there"]
