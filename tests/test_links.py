"""Every link from a page of the documentation to another, or to the source, leads somewhere."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
PAGES = [path for path in PAGES if path.parent.name != "results" and path.name != "results.md"]
MADE = tomllib.loads((ROOT / "results" / "made.toml").read_text(encoding="utf-8"))
BUILT = {DOCS / "results.md", *(DOCS / "results" / f"{name}.md" for name in MADE)}
"""Pages that are built from the archives of results, and not kept."""
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#([\w-]+))?\)")


def anchors(page: str) -> set[str]:
    """Anchors of a page: those written out, and those of its headings."""
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}
    return made | set(re.findall(r"id=['\"]([\w-]+)['\"]", page))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_every_link_to_another_page_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert path.exists() or path in BUILT, f"{page.name} links to {target}"
        if anchor and path not in BUILT:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


PLACE = re.compile(
    r"`((?:src|studies|docs(?!/_build)|tests|examples|benchmarks|claims)/[\w./-]*\w)/?`"
)
"""A path of the repository in backticks: no pattern, no part of a command, and nothing built."""


@pytest.mark.parametrize(
    "page", [*PAGES, README, CONTRIBUTING], ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_path_of_the_repository_that_a_page_names_is_there(page: Path) -> None:
    named = set(PLACE.findall(page.read_text(encoding="utf-8")))
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]
