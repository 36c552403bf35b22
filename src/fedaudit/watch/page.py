"""HTML of the pages on running audits."""

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.report.page import package_file, page_css, templates
from fedaudit.watch.text import View

_SCRIPTS = {"guard": "guard.js", "watch": "watch.js"}


class Page(NamedTuple):
    """A page, with the content security policy with which it is sent."""

    html: str
    content_security_policy: str


def watch_page(view: View, *, is_in_index: bool = False) -> Page:
    """Return the page on an audit.

    Args:
        view: Contents of the page.
        is_in_index: Whether the page links to an index one folder above.
    """
    scripts = {name: package_file(file) for name, file in _SCRIPTS.items()}
    html = (
        templates()
        .get_template("watch.html.j2")
        .render(
            **_values(view),
            css=Markup(page_css() + package_file("watch.css")),
            scripts={name: Markup(text) for name, text in scripts.items()},
            index=is_in_index,
        )
    )
    return Page(html, content_security_policy(scripts))


def state_event(view: View) -> str:
    """Return a server-sent event that updates the page on an audit."""
    html = templates().get_template("watch_state.html.j2").render(**_values(view))
    data = {"html": html, "title": f"{view.badge}: {view.name}", "sentence": view.spoken}
    # JSON has no line break, which would end the event.
    return f"event: state\ndata: {json.dumps(data)}\n\n"


def content_security_policy(scripts: Mapping[str, str]) -> str:
    """Return the content security policy of a page: only these scripts, and no other server."""
    digests = (hashlib.sha256(text.encode()).digest() for text in scripts.values())
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _values(view: View) -> dict[str, object]:
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.last_change))
    return {"view": view, "clock": clock}
