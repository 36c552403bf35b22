"""The map from clause to figure: what assessments of a model ask, and what a record answers.

Questions and documents are data (``templates/clauses.toml``).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedaudit.report.evidence import distinct, grouped
from fedaudit.report.fixed import fixed_texts
from fedaudit.report.text import answers
from fedaudit.report.text.answers import Answering, by_tiles, out_of_scope
from fedaudit.report.wording import cleaned, listed, without_digests
from fedaudit.results.record import Record

_FIXED = fixed_texts("clauses")
UNCHECKED: str = _FIXED["unchecked"]
CAVEAT: str = _FIXED["caveat"]
"""Stands above the table; and first in the file of a pack."""


class Source(NamedTuple):
    """A document in whose assessment a question is asked.

    Attributes:
        name: With its number.
        date: As far as it is known.
        text: The clause in its own words, or why it is not quoted.
    """

    name: str
    date: str
    text: str = UNCHECKED


class Row(NamedTuple):
    """A question in short and in full, its sources, and the function that answers it."""

    topic: str
    question: str
    sources: tuple[Source, ...]
    answer: Answering


_WHEN: Mapping[str, Callable[[Record], bool]] = {
    "always": bool,
    "of people": lambda record: record.unit == "person",
    "tampers": answers.tampers,
    "poisons": answers.poisons,
}


def _answering(row: Mapping[str, Any]) -> Answering:
    if "out_of_scope" in row:
        return out_of_scope(row["out_of_scope"])
    if "answer" in row:
        by_name: Answering = getattr(answers, row["answer"])
        return by_name
    asks, more = _WHEN[row.get("when", "always")], row.get("more", "")
    return by_tiles(*row["tiles"], without=row["without"], more=more, when=asks)


_SOURCES = {key: Source(**source) for key, source in _FIXED["sources"].items()}
ROWS = tuple(
    Row(row["topic"], row["question"], tuple(_SOURCES[s] for s in row["sources"]), _answering(row))
    for row in _FIXED["rows"]
)


class ClauseSummary(NamedTuple):
    """The map in short.

    Attributes:
        said: What it is, and where each answer is.
        kinds: Kinds of answers with the topics that have one of that kind.
    """

    said: str
    kinds: list[tuple[str, str]]


def clause_summary(record: Record) -> ClauseSummary:
    """Return which questions a record answers, for a page whose other parts have the figures."""
    by_kind = grouped(ROWS, lambda row: row.answer(record).kind)
    sources = distinct(source.name.partition(", ")[0] for row in ROWS for source in row.sources)
    return ClauseSummary(
        f"Questions of {listed(sources)}, in our words. clauses.json in a record’s pack has the "
        "answers. No legal assessment.",
        [
            (name, listed(distinct(row.topic for row in by_kind[kind])))
            for kind, name in _FIXED["kinds"].items()
            if kind in by_kind
        ],
    )


def clauses_json(record: Record) -> str:
    """Return the map as JSON: what a pack holds, and what is computed again to check it."""
    record = cleaned(record, without_digests([record]))
    caveats = answers.caveats(record)
    rows = [(row, row.answer(record)) for row in ROWS]
    document = {
        "format": "fedaudit-clauses",
        "version": 4,
        "about": CAVEAT,
        "record": record.content_hash,
        "verdict": rows[0][1].text,
        "caveats": caveats,
        "clauses": [
            {
                "question": row.question,
                "sources": [source._asdict() for source in row.sources],
                **answer._asdict(),
            }
            for row, answer in rows
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
