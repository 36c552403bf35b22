"""HTML of an index of results, as a file or as a page of a server."""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from fedaudit.core.files import REPORT_FILE
from fedaudit.formatting.grid import Tile, shorten, tile
from fedaudit.report.page import package_file, page_css, templates
from fedaudit.results.text import clean_text
from fedaudit.watch.index import ResultRow
from fedaudit.watch.page import Page, content_security_policy

_SCRIPTS = {"guard": "guard.js", "index": "index.js"}


def index_page(
    root: Path,
    rows: Sequence[ResultRow],
    notes: Sequence[str] = (),
    *,
    links: Sequence[str],
    numbers: Sequence[str] = (),
    is_served: bool = False,
) -> Page:
    """Return an index of results.

    Args:
        root: Folder of the results.
        rows: Results, newest first.
        notes: Sentences on folders that were not searched.
        links: Address of each row's page; empty for rows without a page.
        numbers: Number of each row on the server, with which two rows are compared.
        is_served: Whether the page is served; otherwise it is a file.
    """
    scripts = {name: package_file(file) for name, file in _SCRIPTS.items()}
    policy = content_security_policy(scripts)
    html = (
        templates()
        .get_template("index.html.j2")
        .render(
            root=shorten(str(root), 80),
            command_root="" if str(root) == "." else clean_text(f"{root.as_posix()}/"),
            rows=rows,
            links=links,
            numbers=numbers or [""] * len(rows),
            notes=notes,
            tiles=_tiles(rows),
            made=f"{datetime.now().astimezone():%Y-%m-%d %H:%M}",
            served=is_served,
            # A policy in a file cannot forbid frames.
            policy=policy.replace("; frame-ancestors 'none'", ""),
            css=Markup(page_css() + package_file("index.css")),
            scripts={name: Markup(text) for name, text in scripts.items()},
        )
    )
    return Page(html, policy)


def report_links(root: Path, rows: Sequence[ResultRow], page: Path) -> list[str]:
    """Return the relative address of the report next to each record; empty without a report."""
    links = []
    for row in rows:
        report = (root / row.result.path).with_name(REPORT_FILE)
        has_report = row.result.is_finished and report.is_file() and not report.is_symlink()
        links.append(_relative_url(report, page.parent) if has_report else "")
    return links


def _relative_url(path: Path, folder: Path) -> str:
    relative = Path(os.path.relpath(path, folder)).as_posix()
    # A colon in the first part would be read as a scheme.
    return quote(os.fsencode(relative if "/" in relative else f"./{relative}"))


def _tiles(rows: Sequence[ResultRow]) -> list[Tile]:
    results = [row.result for row in rows]
    finished = [result for result in results if result.is_finished]
    by_status = Counter(result.status for result in finished)
    unread = sum(result.status == "cannot be read" for result in results)
    open_audits = len(results) - len(finished) - unread
    tiles = [
        tile("Results", f"{len(finished):,}", *(f"{n} {s}" for s, n in by_status.most_common(4)))
    ]
    if open_audits:
        tiles.append(tile("Without a result yet", f"{open_audits:,}", "running, stopped or open"))
    if unread:
        tiles.append(
            tile("Damaged or foreign", f"{unread:,}", "listed with the reason", tone="alarm")
        )
    return tiles
