"""Reports and comparisons as self-contained HTML files."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedaudit.core import files
from fedaudit.core.errors import BadInput
from fedaudit.core.files import read_bytes
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import shorten
from fedaudit.report.advice import advice
from fedaudit.report.clauses import clause_summary
from fedaudit.report.clusters import cluster_sentence, cluster_table
from fedaudit.report.deciding.caveats import untested
from fedaudit.report.evidence import attacks_tried, is_uninformative
from fedaudit.report.figures.charts import css_percent
from fedaudit.report.first import FirstScreen, first_screen
from fedaudit.report.reproducing import reproduction_steps
from fedaudit.report.sources import kind_of, source_sentence, source_table
from fedaudit.report.tables.cells import Section, table_section
from fedaudit.report.tables.membership import membership_section
from fedaudit.report.tables.run import run_sections
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.report.unlearning import unlearning_section
from fedaudit.results.estimate import LABEL_INFERENCE
from fedaudit.results.record import Record

if TYPE_CHECKING:
    from fedaudit.results.comparison import Comparison


MOST_VERDICTS = 6  # largest number of compared records that get tiles; a table has all verdicts
_MOST_PICTURE_BYTES, _MOST_PICTURE_PIXELS = 2**20, 2**22
"""Largest file of pictures that is included. Ten images of 32x32 need a twentieth of it."""
_PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


def write_report(record: Record, path: Path) -> None:
    """Write the report of a record as one self-contained HTML file.

    If a file of sample pictures lies next to the path, it is included. The report opens offline.
    Its content security policy forbids loading other files and running other scripts.

    Raises:
        BadInput: The path does not end in an HTML suffix, or is a folder.
    """
    write_page(path, report_html(record, _pictures(path.with_name(files.PICTURES_FILE))))


def write_comparison(comparison: "Comparison", records: Sequence[Record], path: Path) -> None:
    """Write a comparison and its records as one self-contained HTML file.

    Raises:
        BadInput: The path does not end in an HTML suffix, or is a folder.
    """
    write_page(path, comparison_html(comparison, records))


def write_page(path: Path, document: str) -> None:
    """Write a page atomically; only the file's owner can read it, since it may name samples."""
    files.raise_if_other_suffix(path, *files.PAGE_SUFFIXES, format_name="an HTML page")
    if path.exists() and not path.is_file():
        raise BadInput(
            f"{shorten(str(path), 80)} exists but is not a file; choose another name for the page"
        )
    files.write_atomically(path, document, owner_only=True)


def report_html(record: Record, pictures: str = "") -> str:
    """Return the report of a record as an HTML document; ``pictures`` is a ``data:`` URL."""
    record = wording.printable_record(record)
    if record.kind == "games":
        # Not at the top of the module, since few records are of games or comparisons.
        from fedaudit.report.text.games import game_verdict

        conclusion = game_verdict(record)
        return _report(
            "games.html.j2",
            record,
            conclusion.first,
            wording.format_count(len(record.points), "point"),
            wording.format_count(sum(game.success.total for game in record.games), "game"),
            verdict=conclusion,
        )
    study_verdict, attacks = (
        summarise_verdict(record),
        wording.format_count(attacks_tried(record), "attack"),
    )
    return _report(
        "report.html.j2",
        record,
        first_screen(record, study_verdict),
        wording.format_count(record.federation_size, "client"),
        attacks if record.attacks else "",
        wording.format_count(len(record.seeds), "seed"),
        verdict=study_verdict,
        pictures=pictures,
    )


def _report(
    template: str, record: Record, first: FirstScreen, *counts: str, **values: object
) -> str:
    name, digest, kind = shorten(record.name, 80), record.content_hash, kind_of(record)
    meta = (record.environment.started[:10], *counts, f"record {shorten(digest, 13)}")
    sections = sections_of(record)
    return render_page(
        template,
        f"{kind}: {name}",
        sections,
        kind=kind,
        name=name,
        running=(shorten(record.name, 60), f"record {shorten(digest, 21)}"),
        record=record,
        meta=[part for part in meta if part],
        first=first,
        clauses=clause_summary(record),
        untested=untested(record),
        words=wording.glossary_entries(f"{first}{sections}"),
        again=reproduction_steps(record),
        **values,
    )


def sections_of(record: Record) -> list[Section]:
    """Return the sections of a record's report, one for each topic that has estimates."""
    if record.kind == "games":
        from fedaudit.report.tables.games import game_sections

        return game_sections(record)
    parts = [membership_section(record), unlearning_section(record)]
    if record.where(topic=LABEL_INFERENCE):
        from fedaudit.report.labels import label_section

        parts.append(label_section(record))
    if suggestion := advice(record):
        texts = [suggestion.place, fixed_text("ladder.lowered") if suggestion.changes else ""]
        parts.append(
            Section("ladder", "Compared with other federations", texts, suggestion.changes)
        )
    if record.sources:
        text, table = source_sentence(record), source_table(record)
        parts.append(table_section("sources", "Source inference", table, text))
    if record.clusters:
        text, table = cluster_sentence(record), cluster_table(record)
        parts.append(table_section("clusters", "Clustered learning", table, text))
    return [part for part in (*parts, *run_sections(record)) if part is not None]


def comparison_html(comparison: "Comparison", records: Sequence[Record]) -> str:
    """Return a comparison and its records as an HTML document."""
    from fedaudit.report.comparison.screen import (
        first_of_comparison,
        front_figure,
        printable_comparison,
    )
    from fedaudit.report.comparison.tables import comparison_sections
    from fedaudit.report.comparison.tradeoffs import cautions

    comparison, records = printable_comparison(comparison, records)
    verdicts = [summarise_verdict(record) for record in records]
    pairs = list(zip(records, verdicts, strict=True))
    first = first_of_comparison(comparison, records, verdicts)
    front = front_figure(comparison, records, ranked=first.look != "control failed")
    title = f"Comparison of {wording.format_count(len(records), 'audit')}"
    return render_page(
        "comparison.html.j2",
        title,
        comparison_sections(comparison, records, [conclusion.status for conclusion in verdicts]),
        front=front,
        running=(title, ""),
        first=first,
        verdicts=pairs if len(records) <= MOST_VERDICTS else [],
        cautions=cautions(comparison, records),
        alarming=any(is_uninformative(r) or v.status == "control failed" for r, v in pairs),
        records=records,
    )


def _pictures(path: Path) -> str:
    if path.is_symlink():
        return ""
    try:
        content = read_bytes(path, max_bytes=_MOST_PICTURE_BYTES)
    except (OSError, files.TooLarge):
        return ""
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    if not content.startswith(_PNG) or not 0 < width * height <= _MOST_PICTURE_PIXELS:
        return ""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def render_page(template: str, title: str, sections: Sequence[Section], **values: object) -> str:
    """Return a page from a template, with styles, scripts and a policy that forbids all others."""
    scripts = {"guard": package_file("guard.js"), "page": package_file("page.js")}
    digests = (hashlib.sha256(text.encode()).digest() for text in scripts.values())
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = templates().get_template(template)
    return page.render(
        title=title,
        css=Markup(page_css()),
        policy=policy,
        scripts={name: Markup(text) for name, text in scripts.items()},
        sections=sections,
        **values,
    )


@cache
def templates() -> Environment:
    """Return the templates of pages, which escape all texts."""
    environment = Environment(
        loader=PackageLoader("fedaudit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shortened": shorten,
        "percent": css_percent,
        "client": wording.client_name,
        "without_verdict": wording.without_verdict,
        "sight": wording.sight_name,
        "sign_tone": {"✓": "good", "✗": "alarm"}.get,
        "css_string": css_string,
    }
    return environment


def css_string(text: str) -> Markup:
    """Return a text as a CSS string that cannot end the string or the style element early."""
    escaped = (c if c.isascii() and c.isalnum() else f"\\{ord(c):06x}" for c in text)
    return Markup('"{}"').format(Markup("").join(escaped))


RESULT_CLASS = "fedaudit-result"
"""Class of the element around a result in a notebook."""

_DARK_HOSTS = '[data-jp-theme-light="false"], [data-theme="dark"], [theme="dark"], .vscode-dark'
_LIGHT_HOSTS = '[data-jp-theme-light="true"], [data-theme="light"], .vscode-light'
"""Pages that choose a theme: JupyterLab, Sphinx themes, Colab and Visual Studio Code."""


@cache
def package_file(name: str) -> str:
    """Return the text of a file in the folder of templates."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@cache
def page_css() -> str:
    """Return the style sheet of reports and comparisons."""
    light, dark = package_file("light.css"), package_file("dark.css")
    return (
        f":root {{\n{light}}}\n"
        f"@media (prefers-color-scheme: dark) {{\n:root:not(.paper) {{\n{dark}}}\n}}\n"
        f"{package_file('screen.css')}{package_file('report.css')}"
    )


@cache
def embedded_css() -> str:
    """Return the style sheet of one result, which applies only within the result.

    Widths are those of the cell's output instead of the window. Colors follow the theme of the
    notebook, or that of the system if the notebook has none.
    """
    light, dark = package_file("light.css"), package_file("dark.css")
    rules = f"{package_file('screen.css')}{package_file('embedded.css')}"
    for bound in ("min", "max"):
        rules = rules.replace(f"@media ({bound}-width", f"@container ({bound}-width")
    on_light = ", ".join(f"{host} *" for host in _LIGHT_HOSTS.split(", "))
    return (
        f".{RESULT_CLASS} {{\n{light}{rules}}}\n"
        "@media (prefers-color-scheme: dark) {\n"
        f".{RESULT_CLASS}:not({on_light}) {{\n{dark}}}\n}}\n"
        f":is({_DARK_HOSTS}) .{RESULT_CLASS} {{\n{dark}}}\n"
    )
