"""The file ``clauses.json`` of a pack: questions of assessments, and their answers."""

import json

from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.wording import (
    join_parts,
    printable_record,
    with_full_stop,
    without_capital,
)
from fedaudit.report.clauses import CAVEAT, ROWS, Answer, Row, caveats, origin
from fedaudit.results.record import Record
from fedaudit.summary.statement import Statement

VERSION = 5
_OPEN = ("not tested", "not stated", "out of scope")
"""Kinds of answers of records that do not answer a question."""


def clauses_json(record: Record, statement: Statement | None = None) -> str:
    """Return the answers to all questions as JSON; verification recomputes them.

    A statement that a question does not apply never replaces the answer of a record.
    """
    record = printable_record(record)
    reasons = {} if statement is None else statement.not_applicable
    rows = [(row, _answer(row, record, statement)) for row in ROWS]
    answers = [
        {
            "id": row.id,
            "question": row.question,
            "sources": [source._asdict() for source in row.sources],
            **answer._asdict(),
            "not_applicable": reasons.get(row.id, ""),
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
        "statement": None if statement is None else _as_json(statement),
        "clauses": answers,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _as_json(statement: Statement) -> dict[str, str]:
    return {
        "about": fixed_text("answers.stated"),
        "role": statement.role,
        "purpose": statement.purpose,
        "valid_until": statement.last_day,
    }


def _answer(row: Row, record: Record, statement: Statement | None) -> Answer:
    answer = row.answer(record)
    if statement is None:
        return answer
    if row.id == "purpose":
        last_day = f"valid until {statement.last_day}" if statement.valid_until else ""
        text = join_parts(with_full_stop(statement.purpose).rstrip("."), last_day, by="; ")
        answer = Answer("stated", text, fixed_text("answers.stated"))
    elif row.id == "tester":
        answer = origin(record, statement.role)
    reason = statement.not_applicable.get(row.id, "")
    if not reason or answer.kind not in _OPEN:
        return answer
    why = f"Not applicable, because {without_capital(reason)}"
    return Answer(
        "not applicable", why, join_parts(fixed_text("answers.stated"), answer.more, by=" ")
    )
