"""The catalogue as a page of the documentation."""

from collections.abc import Iterable, Sequence

from fedaudit.catalogue.entries import CATALOGUES, CatalogueEntry, Option


def catalogue_markdown() -> str:
    """The catalogue as a page of the documentation."""
    intro = (
        "Everything that a study can ask for by name. `fedaudit list` prints these tables and "
        "`fedaudit explain NAME` an entry. This page is made from the code."
    )
    sections = [_section(kind) for kind in CATALOGUES]
    return "\n\n".join(["# Catalogue", intro, *sections]) + "\n"


def _section(kind: str) -> str:
    entries = CATALOGUES[kind]()
    facts = list(entries[0].facts)
    rows = [
        [f"`{entry.name}`", entry.doc.first, *(entry.facts[fact] for fact in facts)]
        for entry in entries
    ]
    blocks = [f"## {kind.capitalize()}", _grid(["name", "what it is", *facts], rows)]
    if kind == "attacks":
        rules = {part.name: part for e in entries for part in e.parts if part.kind == "rule"}
        blocks += [_details(rule, title=f"Rule: {rule.name}") for rule in rules.values()]
    else:
        blocks += [_details(entry, title=entry.name) for entry in entries if _has_more(entry)]
    return "\n\n".join(blocks)


def _has_more(entry: CatalogueEntry) -> bool:
    return bool(entry.settings or entry.doc.rest or entry.doc.source or entry.doc.differs)


def _details(entry: CatalogueEntry, *, title: str) -> str:
    doc = entry.doc
    blocks = [f"### {title}", doc.first, *doc.rest]
    settings = entry.settings or [Option(name, "", text) for name, text in doc.named.items()]
    if settings and entry.kind in ("rule", "signal"):
        # Their defaults stand with the attacks that use them.
        blocks.append(_grid(["setting", "meaning"], [[_code(s.name), s.meaning] for s in settings]))
    elif entry.settings:
        rows = [[_code(s.name), _code(s.default), s.meaning] for s in entry.settings]
        argument = "argument in Python" if entry.kind == "draw" else "setting"
        blocks.append(_grid([argument, "default", "meaning"], rows))
    blocks += [f"*Source:* {doc.source}"] if doc.source else []
    blocks += [f"*Differs:* {doc.differs}"] if doc.differs else []
    return "\n\n".join(blocks)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
