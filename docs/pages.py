"""The pages that are made from the code: `python docs/pages.py`, or `make pages`, writes them anew.

A test holds them to the code, so that a clone has them and none of them is out of date.
"""

import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedaudit.catalogue import CATALOGUES, CatalogueEntry, Option, doc_of
from fedaudit.core.arguments import Range
from fedaudit.gate.policy import Policy
from fedaudit.plan.games import GameStudy
from fedaudit.plan.sections import Study

DOCS = Path(__file__).parent

MEANINGS = {
    "data.name": "Data set by catalogue name, by the name of a file or folder in the data folder, "
    "or as module:function.",
    "data.options": "Options of the data set; see its entry in the catalogue.",
    "partition.scheme": "Partition of training samples by catalogue name.",
    "partition.clients": "Number of clients.",
    "partition.samples_per_client": "Number of samples of each client; 0 gives out all samples.",
    "partition.options": "Further options of the partition, such as beta.",
    "task.options": "Options of the task.",
    "model.name": "Architecture by catalogue name or as module:object.",
    "model.options": "Options of the architecture.",
    "algorithm.name": "Federated algorithm by catalogue name or as module:object.",
    "algorithm.options": "Options of the algorithm.",
    "defense.name": "Defense by catalogue name or as module:object.",
    "defense.options": "Options of the defense.",
    "mechanism.name": '"none", or a defense that perturbs features, by catalogue name.',
    "mechanism.options": "Options of the mechanism.",
}
LIMITS = {
    annotated_types.Ge: (">=", "ge"),
    annotated_types.Gt: (">", "gt"),
    annotated_types.Le: ("<=", "le"),
    annotated_types.Lt: ("<", "lt"),
}


def settings_markdown(study: type[BaseModel]) -> str:
    """Return the settings of a study file as one table for each section.

    Args:
        study: The kind of study.
    """
    sections = {"": study} | {
        name: table
        for name, field in study.model_fields.items()
        if (table := _table(field, optional=True)) is not None
    }
    return "\n\n".join(_section(name, model) for name, model in sections.items()) + "\n"


def _table(field: FieldInfo, *, optional: bool) -> type[BaseModel] | None:
    """Return the section of a field, if it is one; optional sections only if these are included."""
    is_union = typing.get_origin(field.annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(field.annotation) if optional and is_union else ()
    for kind in kinds or (field.annotation,):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _section(name: str, model: type[BaseModel]) -> str:
    doc = doc_of(model)
    title = f"## `[{name}]`" if name else "## At the top"
    lines = ["| setting | type | default | meaning |", "| --- | --- | --- | --- |"]
    for key, field in model.model_fields.items():
        if _table(field, optional=model is Policy) is not None:
            continue
        dotted = f"{name}.{key}" if name else key
        meaning = doc.named.get(key) or MEANINGS[dotted]
        cells = (f"`{key}`", _kind(field), _default(field), meaning)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n\n".join([title, doc.first, "\n".join(lines)])


def _kind(field: FieldInfo) -> str:
    """The type in words, with its limits."""
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for metadata in field.metadata
        for limit in (metadata if isinstance(metadata, Range) else [metadata])
        for kind, (sign, name) in LIMITS.items()
        if isinstance(limit, kind)
    ]
    return ", ".join([_named(field.annotation), *limits])


def _named(kind: object) -> str:
    plain = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    if isinstance(kind, type) and kind in plain:
        return plain[kind]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "table"
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _named(parts[0])
    if origin is typing.Literal:
        return " or ".join(f'"{part}"' for part in parts)
    if origin is tuple:
        return f"list of {_named(parts[0])}s"
    if origin is dict:
        return "table"
    named = [_named(part) for part in parts if part is not type(None)]
    return " or ".join(named)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ({}, ""):
        return ""
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{str(shown).lower() if isinstance(value, bool) else repr(shown)}`"


def catalogue_markdown() -> str:
    """The catalogue as a page of the documentation."""
    intro = (
        "Everything that a study can ask for by name. `fedaudit list` prints these tables and "
        "`fedaudit explain NAME` an entry. This page is made from the code."
    )
    sections = [_catalogue(kind) for kind in CATALOGUES]
    return "\n\n".join(["# Catalogue", intro, *sections]) + "\n"


def _catalogue(kind: str) -> str:
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


def pages() -> dict[str, str]:
    """Each page's text by its file's name."""
    return {
        "catalogue.md": catalogue_markdown(),
        "settings.md": "# Settings of a study\n\n" + settings_markdown(Study),
        "game_settings.md": "# Settings of a study of games\n\n" + settings_markdown(GameStudy),
        "policy_settings.md": "# Settings of a policy\n\n" + settings_markdown(Policy),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
