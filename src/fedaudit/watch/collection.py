"""Pages on a folder of results: the index, comparisons, and pages on single audits."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from markupsafe import Markup

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.report.page import comparison_html
from fedaudit.results.read import read_record
from fedaudit.results.text import clean_text
from fedaudit.study.comparing import compare_records
from fedaudit.watch.folder import AuditFolder
from fedaudit.watch.index import Index, ResultRow
from fedaudit.watch.index_page import index_page
from fedaudit.watch.server import Response
from fedaudit.watch.site import AuditSite

_NUMBER_LENGTH = 16


class CollectionSite:
    """Pages on the results below a folder.

    An address names an audit by a number that the index states, and never by a path.
    """

    def __init__(self, root: Path) -> None:
        """Find the results.

        Raises:
            BadInput: The folder does not exist, or contains no audit.
        """
        self._index, self._lock = Index(root), Lock()
        self._sites: dict[str, AuditSite] = {}
        if not (rows := self._index.rows()):
            raise BadInput(
                f"{root} contains no study, live recording or guard; give the folder of an audit "
                "that has started, or a folder that contains such folders"
            )
        self._rows = {_number(row): row for row in rows}

    def answer(self, path: str, query: str) -> Response | None:
        """Return the index (""), a comparison ("compare"), or a page on an audit."""
        if path == "":
            return self._index_page()
        if path == "compare":
            return self._comparison(query.split("&"))
        number, slash, remaining_path = path.partition("/")
        site = self._site(number) if slash else None
        return site.answer(remaining_path, query) if site else None

    def _index_page(self) -> Response:
        with self._lock:
            rows = self._index.rows()
            numbers = [_number(row) for row in rows]
            self._rows = dict(zip(numbers, rows, strict=True))
            page = index_page(
                self._index.root,
                rows,
                self._index.notes,
                links=[f"{number}/" for number in numbers],
                numbers=numbers,
                is_served=True,
            )
        return Response(page.html, page.content_security_policy)

    def _site(self, number: str) -> AuditSite | None:
        with self._lock:
            row = self._rows.get(number)
            if row is None:
                return None
            if number not in self._sites:
                try:
                    watched = AuditFolder(row.result.folder)
                except (FedauditError, OSError):
                    return None
                self._sites[number] = AuditSite(watched, is_in_index=True)
            return self._sites[number]

    def _comparison(self, numbers: Sequence[str]) -> Response | None:
        with self._lock:
            rows = [self._rows.get(number) for number in numbers]
        results = [row.result for row in rows if row is not None and row.result.is_finished]
        if len(results) < 2 or len(results) < len(numbers):
            return None
        try:
            records = [read_record(self._index.root / result.path) for result in results]
            comparison = compare_records(records, [result.shown_path for result in results])
            return Response(comparison_html(comparison, records), "frame-ancestors 'none'")
        except (FedauditError, OSError) as error:
            page = Markup("<!DOCTYPE html><title>No comparison</title><p>{}</p>")
            return Response(page.format(clean_text(str(error))))


def _number(row: ResultRow) -> str:
    path = row.result.path.encode("utf-8", "surrogateescape")
    return hashlib.sha256(path).hexdigest()[:_NUMBER_LENGTH]
