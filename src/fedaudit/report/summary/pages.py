"""A summary as one self-contained HTML file that prints on A4, and as Markdown."""

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedaudit.core.files import write_whole
from fedaudit.report.grid import clean, shortened
from fedaudit.report.page import write_page
from fedaudit.report.summary.content import PolicyOutcome, Section, Table, summary_of
from fedaudit.results.record import Record
from fedaudit.results.text import without_commands

SUMMARY_FILE = "summary.html"
"""Name of the page next to a record and in a pack."""
ROLES = ("Prepared by", "Reviewed by (privacy officer)", "Approved by")
"""Whoever signs, in this order."""
_SIGN = ("Role", "Name", "Date", "Signature")
MARKDOWN_SUFFIXES = (".md", ".markdown")
"""Endings of the names of Markdown files."""
RELEASED = "Released model (file name and SHA-256)"
"""Line that whoever signs fills in: no result names the file that is released."""
MARK = "<!-- fedaudit summary -->"
"""First line of the Markdown, by which an earlier summary is told from other files."""


def summary_html(record: Record, policy: PolicyOutcome | None = None, valid_until: str = "") -> str:
    """Return the summary of a record as an HTML document.

    It loads nothing, runs no script, and prints name, digest and page number on each page.

    Args:
        record: Of any kind.
        policy: Outcome of a policy for it; None without one.
        valid_until: Last day on which the page may be relied on; empty for none.

    Raises:
        BadInput: The text is not a date, or the date is before the audit.
    """
    summary = summary_of(record, policy, valid_until)
    return (
        _environment()
        .get_template("summary.html.j2")
        .render(
            summary=summary,
            running=Markup(_css_text(f"{shortened(summary.name, 60)} · {summary.kind}")),
            digest=Markup(_css_text(f"SHA-256 {summary.digest[:24]}…")),
            roles=ROLES,
            sign=_SIGN,
            released=RELEASED,
        )
    )


def write_summary(record: Record, path: Path) -> None:
    """Write the summary of a record, as Markdown if the name ends in .md, else as HTML.

    Args:
        record: Of any kind.
        path: The file; it is written whole or not at all.

    Raises:
        BadInput: The path is no place for such a file.
    """
    if path.suffix.lower() in MARKDOWN_SUFFIXES:
        write_whole(path, summary_markdown(record), private=True)
    else:
        write_page(path, summary_html(record))


def summary_markdown(
    record: Record, policy: PolicyOutcome | None = None, valid_until: str = ""
) -> str:
    """Return the summary of a record as Markdown, as for ``$GITHUB_STEP_SUMMARY``.

    Names in the record can start no markup: see :func:`summary_html` for the arguments.
    """
    summary = summary_of(record, policy, valid_until)
    blocks = [
        MARK,
        f"# Audit summary: {escaped(summary.name)}",
        escaped(summary.kind),
    ]
    for number, section in enumerate(summary.sections, 1):
        blocks += [f"## {number}. {escaped(section.title)}", *_blocks(section)]
    signed = Table(_SIGN, tuple((role, "", "", "") for role in ROLES))
    blocks += [
        "## Signatures",
        f"**{RELEASED}:**",
        _grid(signed),
        f"**Valid until:** {escaped(summary.valid_until)}",
        "## Words on this page",
        "\n".join(f"- **{escaped(term)}:** {escaped(text)}." for term, text in summary.glossary),
    ]
    return without_commands("\n\n".join(block for block in blocks if block) + "\n")


def _blocks(section: Section) -> list[str]:
    badge = f"**{escaped(section.badge.upper())}** · " if section.badge else ""
    blocks = [f"{badge}**{escaped(section.lead)}**"] if section.lead else []
    blocks += [_paragraph(text) for text in section.paragraphs]
    if section.facts:
        blocks.append(_grid(Table(("Item", "Value"), section.facts)))
    if section.table is not None:
        blocks.append(_grid(section.table))
    if section.items:
        blocks.append("\n".join(f"- {_paragraph(text)}" for text in section.items))
    if section.commands:
        blocks.append("\n".join(f"- {escaped(why)}: `{what}`" for why, what in section.commands))
    return blocks + [f"<sub>{escaped(text)}</sub>" for text in section.remarks]


def _grid(table: Table) -> str:
    rows = [table.head, ("---",) * len(table.head), *table.rows]
    return "\n".join(
        f"| {' | '.join(cell if place == 1 else escaped(cell) for cell in row)} |"
        for place, row in enumerate(rows)
    )


_BACKSLASHED = re.compile(r"([\\`*_\[\]|~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "#": "&#35;", "$": "&#36;"}
_LINKS = re.compile(r"://|(?i:\bwww)\.")
_OPENS_BLOCK = re.compile(r"^(\s*)([-+=]|\d+[.)])")


def escaped(text: str) -> str:
    """Return a text as Markdown that shows it as it is: one line, without markup or links."""
    safe = "".join(_ENTITIES.get(char, char) for char in clean(text))
    safe = _BACKSLASHED.sub(r"\\\1", safe)
    return _LINKS.sub(lambda match: match[0].replace(":", "&#58;").replace(".", "&#46;"), safe)


def _paragraph(text: str) -> str:
    """Return the same at the start of a line, where further characters start a list or heading."""
    return _OPENS_BLOCK.sub(r"\1\\\2", escaped(text))


def _css_text(text: str) -> str:
    """Return a text as a CSS string, with escapes for all but ASCII letters, digits and spaces."""
    return "".join(
        char if char.isascii() and (char.isalnum() or char == " ") else f"\\{ord(char):06x} "
        for char in clean(text)
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedaudit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe,
    )


def _safe(value: object) -> object:
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
