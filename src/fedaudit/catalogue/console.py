"""The catalogue on the command line: tables, and all about one entry."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedaudit.catalogue.docstrings import Doc
from fedaudit.catalogue.entries import CATALOGUES, CatalogueEntry, Option
from fedaudit.core.errors import LISTED, folded_name, unknown_name
from fedaudit.core.importing import installed, package_of, stray_groups

_WIDTH = 88
_WIDE = 120
"""Columns of a terminal from which on every fact of an entry has a column of its own."""
_MORE = "All about one of them: fedaudit explain NAME"
_LEFT_OUT = ("needs", "runs in view")


def listing(kind: str = "") -> RenderableType:
    """The entries of one catalogue as a table; of all of them for an empty name.

    Raises:
        BadInput: No catalogue of that name.
    """
    if not kind:
        return Group(*(_Catalogue(one) for one in CATALOGUES), *stray_groups(), _MORE)
    # One entry of it may be meant, or all.
    kind = LISTED.get(kind, kind)
    if kind not in CATALOGUES:
        raise unknown_name("catalogue", kind, CATALOGUES)
    return Group(_Catalogue(kind), _MORE)


def explanation(name: str) -> str:
    """All that is known of an entry: kind, meaning, place in its table, settings, source.

    Raises:
        BadInput: No entry of that name in any catalogue.
    """
    entries = [entry for kind in CATALOGUES for entry in (*CATALOGUES[kind](), *_brought(kind))]
    found = [entry for entry in entries if folded_name(entry.name) == folded_name(name)]
    if not found:
        known = {entry.name for entry in entries}
        raise unknown_name("entry in any catalogue", name, known, listed="fedaudit list")
    return "\n\n".join(_explained(entry) for entry in found)


@dataclass(frozen=True)
class _Catalogue:
    """A catalogue in columns; on a narrow terminal facts stand below the text."""

    kind: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        entries = [*CATALOGUES[self.kind](), *_brought(self.kind)]
        facts = [fact for fact in entries[0].facts if fact not in _LEFT_OUT]
        wide = options.max_width >= _WIDE
        table = Table(title=self.kind, title_justify="left", title_style="bold", box=None)
        table.pad_edge = False
        table.add_column("name", no_wrap=True)
        for column in (*(facts if wide else ()), "what it is"):
            table.add_column(column)
        for entry in entries:
            found = {fact: entry.facts.get(fact, "") for fact in facts}
            if wide:
                table.add_row(entry.name, *found.values(), _plain(entry.doc.first))
                continue
            said = "; ".join(f"{fact}: {text}" for fact, text in found.items() if text)
            below = Text(f"\n{said}", style="dim") if said else ""
            table.add_row(entry.name, Text.assemble(_plain(entry.doc.first), below))
        table.add_row()
        yield table


def _brought(kind: str) -> list[CatalogueEntry]:
    """Entries that installed packages bring to a catalogue, listed without importing them."""
    singular = next(one for one, plural in LISTED.items() if plural == kind)
    return [
        CatalogueEntry(singular, name, Doc(first=f"Of {package_of(one)}, as {one.value}."))
        for name, one in installed(singular).items()
    ]


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
