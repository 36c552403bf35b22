"""Server of pages on running audits, for this computer only.

The server listens on the loopback address and answers only addresses that begin with a random
token, so that other users of the computer cannot read the pages. It refuses other host names, with
which a website could reach it (DNS rebinding), and methods other than GET.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock
from typing import ClassVar, NamedTuple, Protocol

LOOPBACK = "127.0.0.1"
_HOSTS = (LOOPBACK, "localhost")
_TOKEN_BYTES = 24
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_SIGNS = 15.0
"""Interval after which an unchanged stream sends a comment, which shows that it is alive."""
_MAX_STREAMS = 32
_MAX_TARGET = 2000
_REQUEST_SECONDS = 20.0


class Response(NamedTuple):
    """An HTML page, or a stream of server-sent events."""

    html: str = ""
    policy: str = ""
    events: "Callable[[], str] | None" = None
    """Function that returns the current event; it is sent whenever it changes."""


class Site(Protocol):
    """Pages of a server."""

    def answer(self, path: str, query: str) -> Response | None:
        """Return the page at a path below the token, such as "events"; None for an unknown path."""
        ...


class WatchServer(ThreadingHTTPServer):
    """Server of a site on the loopback address.

    Attributes:
        url: Address of the first page, with the token.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, site: Site, port: int = 0) -> None:
        """Open the port.

        Args:
            site: Pages to serve.
            port: Number of the port; 0 for a free one.

        Raises:
            OSError: The port is in use.
        """
        self.site, self.token = site, secrets.token_urlsafe(_TOKEN_BYTES)
        self.is_closing = Event()
        self.n_streams, self.lock = 0, Lock()
        super().__init__((LOOPBACK, port), _Handler)
        self.url = f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def stop(self) -> None:
        """End all streams and close the port."""
        self.is_closing.set()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: WatchServer
    server_version = "fedaudit"
    sys_version = ""
    timeout: ClassVar[float] = _REQUEST_SECONDS
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        """Answer with a page, a stream or an error without details."""
        # The browser may close the connection at any time.
        with suppress(ConnectionError, TimeoutError):
            self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, since addresses contain the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error without quoting the request."""
        self._send(code, f"{code} {HTTPStatus(code).phrase}\n", "text/plain; charset=utf-8", "")

    def _answer(self) -> None:
        if not self._is_host_allowed():
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        path, _, query = self.path[:_MAX_TARGET].partition("?")
        token, slash, path = path.removeprefix("/").partition("/")
        is_known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not is_known or not slash or len(self.path) > _MAX_TARGET:
            return self.send_error(HTTPStatus.NOT_FOUND)
        answer = self.server.site.answer(path, query)
        if answer is None:
            return self.send_error(HTTPStatus.NOT_FOUND)
        if answer.events is not None:
            return self._stream(answer.events)
        return self._send(HTTPStatus.OK, answer.html, "text/html; charset=utf-8", answer.policy)

    def _is_host_allowed(self) -> bool:
        """Return True if the request names this computer, with any port, as in an SSH tunnel."""
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and hosts[0].rpartition(":")[0] in _HOSTS

    def _send(self, code: int, text: str, content_type: str, policy: str) -> None:
        content = text.encode("utf-8")
        self._send_head(code, content_type, policy)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_head(self, code: int, content_type: str, policy: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Security-Policy", policy or "default-src 'none'")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")

    def _stream(self, events: Callable[[], str]) -> None:
        with self.server.lock:
            has_room = self.server.n_streams < _MAX_STREAMS
            self.server.n_streams += has_room
        if not has_room:
            return self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            self._send_head(HTTPStatus.OK, "text/event-stream", "")
            self.end_headers()
            for text in self._changes(events):
                self.wfile.write(text.encode("utf-8"))
                self.wfile.flush()
        finally:
            with self.server.lock:
                self.server.n_streams -= 1

    def _changes(self, events: Callable[[], str]) -> Iterator[str]:
        """Yield the current event whenever it changes, and a comment if it does not for a while."""
        sent, last_sign = "", time.monotonic()
        while not self.server.is_closing.is_set():
            event, now = events(), time.monotonic()
            if event != sent:
                sent, last_sign = event, now
                yield event
            elif now - last_sign > _SECONDS_BETWEEN_SIGNS:
                last_sign = now
                yield ": no change\n\n"
            self.server.is_closing.wait(_SECONDS_BETWEEN_LOOKS)
