"""Dead links of the built documentation are found."""

import runpy
from pathlib import Path

import pytest

dead_links = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "links.py"))["dead_links"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "outside.md").write_text("x")
    folder = tmp_path / "site"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "index.html").write_text('<h1 id="in side">x</h1><a href="../a.html">a</a>')
    (folder / "picture.svg").write_text("<svg/>")
    (folder / "link.md").symlink_to(tmp_path / "outside.md")
    return folder


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
def test_a_working_link_is_accepted(link: str, site: Path) -> None:
    (site / "a.html").write_text(f'<p id="here"><a href="{link}">x</a><img src="picture.svg"></p>')
    assert list(dead_links(site)) == []


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("#../src/fedaudit", "has no such anchor"),
        ("inner/#nowhere", "has no such anchor"),
        ("b.html", "does not exist"),
        ("inner/../../outside.md", "leaves the documentation"),
        ("%2e%2e/outside.md", "leaves the documentation"),
        ("/etc/passwd", "leaves the documentation"),
        ("file:///etc/passwd", "leaves the documentation"),
        ("link.md", "leaves the documentation"),
    ],
)
def test_dead_links_are_reported_with_their_page(link: str, message: str, site: Path) -> None:
    (site / "a.html").write_text(f'<a href="{link}">x</a>')
    assert list(dead_links(site)) == [f"a.html: {link} {message}"]


def test_a_missing_picture_is_a_dead_link(site: Path) -> None:
    (site / "a.html").write_text('<img src="gone.png">')
    assert list(dead_links(site)) == ["a.html: gone.png does not exist"]


def test_an_absolute_link_into_the_folder_itself_is_dead(site: Path) -> None:
    (site / "a.html").write_text(f'<a href="{site}/picture.svg">x</a>')
    assert [line.rpartition(" ")[2] for line in dead_links(site)] == ["documentation"]
