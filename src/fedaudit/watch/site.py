"""Pages on one audit: the current state, its stream of changes, and the report."""

import time
from threading import Lock

from fedaudit.core.errors import FedauditError
from fedaudit.report.page import report_html
from fedaudit.results.record import Record
from fedaudit.watch.folder import AuditFolder
from fedaudit.watch.page import state_event, watch_page
from fedaudit.watch.server import Response
from fedaudit.watch.state import WatchState
from fedaudit.watch.text import View, view_of

_FRESH_SECONDS = 0.9
"""Seconds for which a computed state is reused, since several pages may ask for it."""


class AuditSite:
    """Pages on one audit, whose folder is read again at most once a second.

    Args:
        watched: Folder of the audit.
        is_in_index: Whether the page links to an index of several audits.
    """

    def __init__(self, watched: AuditFolder, *, is_in_index: bool = False) -> None:
        self._watched, self._is_in_index = watched, is_in_index
        self._lock = Lock()
        self._state: WatchState | None = None
        self._view: View | None = None
        self._read_at = 0.0
        self._report: tuple[Record, str] | None = None

    def answer(self, path: str, query: str) -> Response | None:
        """Return the page at a path: "", "events" or "report"."""
        if path == "":
            page = watch_page(self.view(), is_in_index=self._is_in_index)
            return Response(page.html, page.content_security_policy)
        if path == "events":
            return Response(events=lambda: state_event(self.view()))
        if path == "report":
            return self._report_page()
        return None

    def view(self) -> View:
        """Return the current contents of the page."""
        with self._lock:
            if self._view is None or time.monotonic() - self._read_at > _FRESH_SECONDS:
                state = self._current_state()
                if self._view is None or state != self._state:
                    self._state, self._view = state, view_of(state)
                self._read_at = time.monotonic()
            return self._view

    def _current_state(self) -> WatchState:
        """Return the state; after an error, the last one with the error as a problem."""
        try:
            return self._watched.state()
        except (FedauditError, OSError) as error:
            last = self._state or WatchState(self._watched.folder.name, "study", "waiting")
            return last._replace(problems=(str(error)[:600],))

    def _report_page(self) -> Response | None:
        with self._lock:
            record = self._watched.record()
            if record is None:
                return None
            if self._report is None or self._report[0] is not record:
                self._report = (record, report_html(record))
            # The report states its own content security policy.
            return Response(self._report[1], "frame-ancestors 'none'")
