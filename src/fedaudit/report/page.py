"""The machinery of a page: templates, scripts named by their hashes, data that cannot break out."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedaudit.errors import BadInput
from fedaudit.files import write_whole
from fedaudit.report.drawing import Figures
from fedaudit.report.grid import shortened
from fedaudit.report.names import sight_name
from fedaudit.report.words import capital, sentence


def rendered(template: str, *, figures: Mapping[str, Figures], **values: object) -> str:
    """A template filled in, with plotly, the page's script and the figures' data inside."""
    scripts = {"guard": _file("guard.js"), "page": _file("page.js")}
    if figures:
        scripts["plotly"] = _plotly()
    data = {
        name: [[panel.spec for panel in choice.panels] for choice in figure.choices]
        for name, figure in figures.items()
    }
    return (
        _environment_of_templates()
        .get_template(template)
        .render(
            css=Markup(_file("report.css")),
            policy=_policy(list(scripts.values())),
            scripts={name: Markup(text) for name, text in scripts.items()},
            data=Markup(embedded(data)),
            figures=figures,
            **values,
        )
    )


def embedded(value: object) -> str:
    """JSON that can stand inside a script element: no character there can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _policy(scripts: list[str]) -> str:
    """A content policy that names the scripts by their hashes and allows nothing else."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _plotly() -> str:
    text: str = get_plotlyjs()
    # HTML reads every line end as one line feed, and the policy's hash is over what it reads.
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment_of_templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedaudit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shortened"] = shortened
    environment.filters["sight"] = sight_name
    environment.filters["paragraph"] = lambda text: capital(sentence(text))
    return environment


def write_page(path: Path, document: str) -> None:
    """Writes a page whole or not at all, over a file only."""
    if path.exists() and not path.is_file():
        raise BadInput(
            f"{shortened(str(path), 80)} is not a file, so no report is written there; name a new "
            "file"
        )
    write_whole(path, document)
