"""The file ``clauses.json`` of a pack: questions of assessments, and the record's answers."""

import json

from fedaudit.report.clauses import CAVEAT, ROWS, caveats
from fedaudit.report.wording import printable
from fedaudit.results.record import Record

VERSION = 5


def clauses_json(record: Record) -> str:
    """Return the answers to all questions as JSON; verification recomputes them."""
    record = printable(record)
    rows = [(row, row.answer(record)) for row in ROWS]
    answers = [
        {
            "id": row.id,
            "question": row.question,
            "sources": [source._asdict() for source in row.sources],
            **answer._asdict(),
        }
        for row, answer in rows
    ]
    document = {
        "format": "fedaudit-clauses",
        "version": VERSION,
        "about": CAVEAT,
        "record": record.content_hash,
        "verdict": rows[0][1].text,
        "caveats": caveats(record),
        "clauses": answers,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
