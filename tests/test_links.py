"""Links between documentation pages, and to the source, lead to existing files and anchors."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
GENERATED = ("results", "papers")
"""Lists of pages, and the folders of these pages."""
PAGES = [path for path in PAGES if not {path.parent.name, path.stem} & set(GENERATED)]
ARCHIVES = tomllib.loads((ROOT / "results" / "made.toml").read_text(encoding="utf-8"))
BUILT = {DOCS / f"{name}.md" for name in GENERATED}
BUILT |= {DOCS / "results" / f"{name}.md" for name in (*ARCHIVES, "leaderboard")}
"""Pages that are built from the archives of results and are not committed."""
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#([\w-]+))?\)")


def anchors(page: str) -> set[str]:
    """Return the anchors of a page: explicit ones and those of its headings."""
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}
    return slugs | set(re.findall(r"id=['\"]([\w-]+)['\"]", page))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_links_to_other_pages_exist(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert path.exists() or path in BUILT, f"{page.name} links to {target}"
        if anchor and path not in BUILT:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


PLACE = re.compile(
    r"`((?:src|studies|docs(?!/_build)|tests|examples|benchmarks|claims)/[\w./-]*\w)/?`"
)
"""A path of the repository in backticks that is not a pattern, part of a command or built."""


@pytest.mark.parametrize(
    "page", [*PAGES, README, CONTRIBUTING], ids=lambda path: str(path.relative_to(ROOT))
)
def test_paths_of_the_repository_on_a_page_exist(page: Path) -> None:
    paths = set(PLACE.findall(page.read_text(encoding="utf-8")))
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]
