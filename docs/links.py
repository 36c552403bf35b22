"""Find dead links in the built documentation: ``python docs/links.py docs/_build``.

Links between pages, to anchors and to files are checked. Links to other sites are not followed.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links and anchors of a page."""

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
    """Yield each dead link in a folder of pages, with its page.

    Absolute paths and links out of the folder are dead even if they exist on this machine.

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
            link_path = unquote(parts.path)
            target = (path.parent / link_path).resolve() if link_path else path
            if target.is_dir():
                target /= "index.html"
            page_name = path.relative_to(folder)
            if parts.scheme or link_path.startswith("/") or not target.is_relative_to(folder):
                yield f"{page_name}: {link} leaves the documentation"
            elif not target.is_file():
                yield f"{page_name}: {link} does not exist"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{page_name}: {link} has no such anchor"


def main() -> int:
    lines = list(dead_links(Path(sys.argv[1]).resolve()))
    print("\n".join(lines) or "no dead links", file=sys.stderr if lines else sys.stdout)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
