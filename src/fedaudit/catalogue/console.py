"""The catalogue on the command line: tables, and all about one entry."""

import textwrap

from rich.console import Group, RenderableType
from rich.table import Table

from fedaudit.catalogue.docstrings import Doc
from fedaudit.catalogue.entries import CATALOGUES, CatalogueEntry, Option
from fedaudit.core.errors import unknown_name
from fedaudit.core.importing import installed, package_of, stray_groups

_WIDTH = 88
_LEFT_OUT = ("needs", "runs in view")


def listing(kind: str = "") -> RenderableType:
    """The entries of one catalogue as a table; of all of them for an empty name.

    Raises:
        BadInput: No catalogue of that name.
    """
    if not kind:
        return Group(*(_table(one) for one in CATALOGUES), *stray_groups())
    if kind not in CATALOGUES:
        raise unknown_name("catalogue", kind, CATALOGUES)
    return _table(kind)


def explanation(name: str) -> str:
    """All that is known of an entry: kind, meaning, place in its table, settings, source.

    Raises:
        BadInput: No entry of that name in any catalogue.
    """
    entries = [entry for kind in CATALOGUES for entry in (*CATALOGUES[kind](), *_brought(kind))]
    found = [entry for entry in entries if entry.name == name]
    if not found:
        raise unknown_name("entry in any catalogue", name, {entry.name for entry in entries})
    return "\n\n".join(_explained(entry) for entry in found)


def _table(kind: str) -> Table:
    entries = CATALOGUES[kind]()
    table = Table(title=kind, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    facts = [fact for fact in entries[0].facts if fact not in _LEFT_OUT]
    for column in (*facts, "what it is"):
        table.add_column(column)
    for entry in (*entries, *_brought(kind)):
        shown = (entry.facts.get(fact, "") for fact in facts)
        table.add_row(entry.name, *shown, _plain(entry.doc.first))
    table.add_row()
    return table


def _brought(kind: str) -> list[CatalogueEntry]:
    """Entries that installed packages bring to a catalogue, listed without importing them."""
    singular = _BROUGHT.get(kind, "")
    return [
        CatalogueEntry(singular, name, Doc(first=f"Of {package_of(one)}, as {one.value}."))
        for name, one in installed(singular).items()
    ]


_BROUGHT = {
    "attacks": "attack",
    "views": "view",
    "algorithms": "algorithm",
    "defenses": "defense",
    "models": "model",
    "data": "data set",
    "partitions": "partition",
    "metrics": "metric",
}
"""Catalogues to which packages bring entries, and what one entry of each is."""


def _explained(entry: CatalogueEntry) -> str:
    blocks = [f"{entry.name} ({entry.kind})", _filled(entry.doc.first)]
    blocks += [_filled(text) for text in entry.doc.rest]
    if entry.facts:
        blocks.append("\n".join(_fact(label, text) for label, text in entry.facts.items() if text))
    if entry.settings:
        heading = "in Python:" if entry.kind == "draw" else "settings:"
        blocks.append("\n".join([heading, *map(_line, entry.settings)]))
    blocks += _sourced(entry.doc)
    for part in entry.parts:
        blocks.append(_filled(f"The {part.kind} {part.name}: {part.doc.first}"))
        blocks += [*(_filled(text) for text in part.doc.rest), *_sourced(part.doc)]
    return "\n\n".join(blocks)


def _plain(text: str) -> str:
    return text.replace("``", "")


def _filled(text: str) -> str:
    return textwrap.fill(_plain(text), _WIDTH)


def _fact(label: str, text: str) -> str:
    return textwrap.fill(f"{label + ':':14}{text}", _WIDTH, subsequent_indent=" " * 14)


def _line(setting: Option) -> str:
    default = f" = {setting.default}" if setting.default else " (must be given)"
    text = f"{setting.name}{default}" + (f": {setting.meaning}" if setting.meaning else "")
    return textwrap.fill(_plain(text), _WIDTH, initial_indent="  ", subsequent_indent="      ")


def _sourced(doc: Doc) -> list[str]:
    lines = {"Source": doc.source, "Differs": doc.differs}
    said = [_filled(f"{label}: {text}") for label, text in lines.items() if text]
    return ["\n".join(said)] if said else []
