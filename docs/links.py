"""Finds dead links of the built documentation: ``python docs/links.py docs/_build``.

Pages link to each other, to places within them and to files. Links to other sites are not followed.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name in ("href", "src"):
                self.links.append(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)


def dead_links(folder: Path) -> Iterator[str]:
    """Yield each dead link of the pages in a folder, with its page.

    Links to absolute paths and out of the folder are dead, whatever is there on this machine.

    Args:
        folder: The built documentation.
    """
    folder = folder.resolve()
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    for path, page in sorted(pages.items()):
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if (parts.scheme and parts.scheme != "file") or parts.netloc:
                continue
            named = unquote(parts.path)
            target = (path.parent / named).resolve() if named else path
            if target.is_dir():
                target /= "index.html"
            where = path.relative_to(folder)
            if parts.scheme or named.startswith("/") or not target.is_relative_to(folder):
                yield f"{where}: {link} leaves the documentation"
            elif not target.is_file():
                yield f"{where}: {link} is not there"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: {link} has no such place"


def main() -> int:
    """Print dead links; return 1 if there are any."""
    found = list(dead_links(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "no dead links", file=sys.stderr if found else sys.stdout)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
