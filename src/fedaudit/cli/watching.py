"""Commands that show audits in a browser: watch, index."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedaudit.cli.application import app, log
from fedaudit.core.errors import BadInput
from fedaudit.core.files import write_atomically
from fedaudit.core.progress import progress_bars, without_garbage_collection

if TYPE_CHECKING:
    from fedaudit.watch.server import Site

_MAX_PORT = 65_535


@app.command
def watch(
    folder: Path,
    /,
    *,
    port: int = 0,
    browser: Annotated[bool, Parameter(negative="--no-browser")] = True,
) -> None:
    """Show an audit in the browser while it is running, and the report when it has finished.

    The page shows rounds, provisional AUCs with limits, the gap between members and held-out
    samples, missing clients, and the training time that is left. It is served on this computer
    only, at an address with a random token. The folder is only read. Stop with Ctrl-C.

    Parameters
    ----------
    folder
        Folder of a study, of a live recording or of a guard, which has started. For a folder that
        contains such folders, the page is an index of them.
    port
        Port on the loopback address; 0 for a free one.
    browser
        Open the page in the default browser.
    """
    if not 0 <= port <= _MAX_PORT:
        raise BadInput(f"--port is from 0 (a free port) to {_MAX_PORT}, got {port}")
    # Imported here, since these modules would slow down the help of all commands.
    from tempfile import TemporaryDirectory

    with without_garbage_collection():
        from fedaudit.watch.server import WatchServer
    try:
        server = WatchServer(_site_of(folder), port)
    except OSError as error:
        raise BadInput(
            f"port {port} cannot be used ({error.strerror}); give another --port, or 0 for a free "
            "one"
        ) from error
    log(f"watching {folder}: {server.url}", "press Ctrl-C to stop")
    sys.stdout.flush()
    with TemporaryDirectory(prefix="fedaudit-") as private_folder:
        if browser:
            _open_browser(server.url, Path(private_folder))
        # Ctrl-C is the usual end of this command, and not an error.
        with suppress(KeyboardInterrupt):
            server.serve_forever()
        server.stop()
    log("", "stopped watching; the audit itself is not affected")


def _site_of(folder: Path) -> "Site":
    """Return the pages on an audit, or on all results below a folder."""
    from fedaudit.watch.folder import AuditFolder, is_audit
    from fedaudit.watch.site import AuditSite

    if is_audit(folder):
        return AuditSite(AuditFolder(folder))
    from fedaudit.watch.collection import CollectionSite

    return CollectionSite(folder)


def _open_browser(url: str, private_folder: Path) -> None:
    """Open an address in the browser, by a private file that redirects to it.

    Other users of the computer can see the arguments of a browser's process, but not this file.
    """
    import webbrowser

    page = private_folder / "open.html"
    redirect = f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">'
    write_atomically(page, redirect, owner_only=True)
    # Without a display, some systems would start a browser in the terminal.
    has_display = os.name == "nt" or sys.platform == "darwin" or "DISPLAY" in os.environ
    if has_display or "WAYLAND_DISPLAY" in os.environ:
        with suppress(webbrowser.Error):
            webbrowser.open(page.as_uri())


@app.command
def index(folder: Path, /, *, out: Path | None = None) -> None:
    """Write a page of all results below a folder, with verdicts, main figures and trends.

    The page opens offline. It filters results by words, and shows the command that compares two of
    them. Results that cannot be read are listed with the reason.

    Parameters
    ----------
    folder
        Folder that contains the folders of results, such as runs.
    out
        HTML file to write; by default index.html in the folder. An existing file is replaced only
        if it is an HTML page.
    """
    from fedaudit.formatting.wording import format_count
    from fedaudit.report.page import write_page
    from fedaudit.study.running.outputs import (
        raise_if_missing_folder,
        raise_if_page_not_replaceable,
    )
    from fedaudit.watch.index import Index
    from fedaudit.watch.index_page import index_page, report_links

    results = Index(folder)
    target = folder / "index.html" if out is None else out
    raise_if_missing_folder(target)
    raise_if_page_not_replaceable(target)
    with progress_bars() as progress:
        rows = results.rows(progress)
    if not rows:
        raise BadInput(
            f"{folder} contains no result; give the folder in which `fedaudit run --out` or "
            "`fedaudit attack --out` wrote results"
        )
    links = report_links(folder, rows, target)
    write_page(target, index_page(folder, rows, results.notes, links=links).html)
    log(f"index of {format_count(len(rows), 'result')}: {target}")
