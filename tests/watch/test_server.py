"""The server answers this computer and its token only."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedaudit.cli import watch
from fedaudit.core.errors import BadInput
from fedaudit.watch.server import Response, WatchServer


class Pages:
    """A site with one page, and a stream of what a test sets."""

    def __init__(self) -> None:
        self.event = "event: state\ndata: 1\n\n"
        self.asked: list[tuple[str, str]] = []

    def answer(self, path: str, query: str) -> Response | None:
        self.asked.append((path, query))
        if path == "events":
            return Response(events=lambda: self.event)
        return Response("<p>page</p>", "default-src 'none'; policy") if path == "" else None


@contextmanager
def serving(pages: Pages) -> Iterator[WatchServer]:
    server = WatchServer(pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.stop()
        thread.join(10)


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def server(pages: Pages) -> Iterator[WatchServer]:
    with serving(pages) as running:
        yield running


def ask(
    server: WatchServer, path: str, host: str = "", method: str = "GET"
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text, {name.lower(): value for name, value in response.getheaders()}


def test_the_page_is_behind_the_token(server: WatchServer, pages: Pages) -> None:
    status, text, headers = ask(server, f"/{server.token}/")
    assert (status, text) == (200, "<p>page</p>")
    assert headers["content-security-policy"] == "default-src 'none'; policy"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert pages.asked == [("", "")]


@pytest.mark.parametrize(
    "path",
    ["/", "/wrong/", "//", "/{token}x/", "/{half}/", "/x/{token}/", "/?{token}", "/{token}"],
)
def test_a_wrong_token_gets_nothing(server: WatchServer, pages: Pages, path: str) -> None:
    path = path.format(token=server.token, half=server.token[:16])
    status, text, _ = ask(server, path)
    assert status == 404
    assert server.token not in text
    assert pages.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "../",
        "../../etc/passwd",
        "%2e%2e/record.json",
        "..%2f",
        "/etc/passwd",
        "report/../x",
        "a\\b",
    ],
)
def test_other_paths_reach_no_file(server: WatchServer, pages: Pages, path: str) -> None:
    status, text, _ = ask(server, f"/{server.token}/{path}")
    assert status == 404
    assert "root:" not in text
    assert all(asked not in ("", "events") for asked, _ in pages.asked)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example:80", "localhost", "[::1]:80", " "],
)
def test_other_host_names_are_refused(server: WatchServer, pages: Pages, host: str) -> None:
    status, _, _ = ask(server, f"/{server.token}/", host)
    assert status == 421
    assert pages.asked == []


def test_a_tunnel_may_use_another_port(server: WatchServer) -> None:
    assert ask(server, f"/{server.token}/", "localhost:9999")[0] == 200


def test_two_host_names_are_refused(server: WatchServer) -> None:
    request = f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\nHost: evil.example:1\r\n\r\n"
    assert b" 421 " in raw(server, request.encode())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "FOO"])
def test_other_methods_are_refused(server: WatchServer, pages: Pages, method: str) -> None:
    status, _, _ = ask(server, f"/{server.token}/", method=method)
    assert status == 501
    assert pages.asked == []


def raw(server: WatchServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        "GET /é/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n".encode(),
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    ],
)
def test_malformed_requests_get_no_page(
    server: WatchServer, pages: Pages, request_bytes: bytes
) -> None:
    assert b"page" not in raw(server, request_bytes)
    assert pages.asked == []
    assert ask(server, f"/{server.token}/")[0] == 200, "the server goes on"


def test_an_error_quotes_nothing(server: WatchServer) -> None:
    _, text, headers = ask(server, "/<script>alert(1)</script>/")
    assert text == "404 Not Found\n"
    assert headers["content-type"].startswith("text/plain")


def test_the_stream_sends_each_change_once(server: WatchServer, pages: Pages) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("GET", f"/{server.token}/events")
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/event-stream"
    assert [response.readline() for _ in range(3)] == [b"event: state\n", b"data: 1\n", b"\n"]
    pages.event = f"data: {json.dumps({'two': 2})}\n\n"
    assert response.readline() == b'data: {"two": 2}\n'
    connection.close()


def test_stopping_ends_open_streams(pages: Pages) -> None:
    with serving(pages) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("GET", f"/{server.token}/events")
        response = connection.getresponse()
        response.readline()
    assert response.read().endswith(b"\n"), "the stream ends instead of hanging"


def test_the_number_of_streams_is_limited(
    server: WatchServer, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaudit.watch.server._MAX_STREAMS", 0)
    assert ask(server, f"/{server.token}/events")[0] == 503


def test_the_server_listens_on_the_loopback_address_only(server: WatchServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32


def test_the_command_refuses_a_port_in_use_and_a_missing_folder(
    server: WatchServer, tmp_path: Path
) -> None:
    (tmp_path / "study.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match="cannot be used"):
        watch(tmp_path, port=server.server_port, browser=False)
    with pytest.raises(BadInput, match="--port is from 0"):
        watch(tmp_path, port=70_000, browser=False)
    with pytest.raises(BadInput, match="does not exist"):
        watch(tmp_path / "missing", browser=False)


def test_each_server_has_another_token(pages: Pages) -> None:
    with serving(pages) as one, serving(pages) as two:
        assert one.token != two.token
        assert ask(one, f"/{two.token}/")[0] == 404
