"""The map from clause to figure: what assessments of a model ask, and what a record answers.

Questions are in words of our own. A clause is quoted only where its text could be checked.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

from fedaudit.report.grid import Cell, Grid, Tone, tabled
from fedaudit.report.text import answers, bounds, epsilons
from fedaudit.report.text.answers import Answer, out_of_scope
from fedaudit.report.words import cleaned, without_digests
from fedaudit.results.record import Record

UNCHECKED = "not quoted: the text was not at hand"
CAVEAT = (
    "The questions are in our words. But for the clauses quoted below the table no document is "
    "quoted: name and date alone are theirs. It is no legal assessment; hold each row against the "
    "text before you sign."
)
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

    @property
    def cited(self) -> str:
        """Name and date."""
        return f"{self.name} ({self.date})"


EDPB = Source("EDPB Opinion 28/2024", "17 December 2024")
EDPS = Source("EDPS TechDispatch 1/2025", "June 2025")
CNIL = Source("CNIL, status of AI models", "22 July 2025")
NIST = Source("NIST SP 800-226", "March 2025")
MITIGATION = Source(
    "OWASP AISVS 1.0, 11.2",
    "2026",
    "The ability to determine whether a specific record was in the training data must be limited, "
    "and reconstruction of private training data or sensitive attributes from model outputs "
    "prevented.",
)
OPTIMIZATION = Source(
    "OWASP AISVS 1.0, 11.2.4",
    "2026",
    "Verify that training on sensitive datasets employs differentially-private optimization.",
)
GUESSING = Source(
    "OWASP AISVS 1.0, 11.2.5",
    "2026",
    "Verify that membership-inference attack simulations demonstrate that attack accuracy does "
    "not exceed random guessing on evaluated data.",
)


class Row(NamedTuple):
    """A question, who asks it, and the function of a record that answers it."""

    question: str
    sources: tuple[Source, ...]
    answer: Callable[[Record], Answer]


ROWS = (
    Row("What does this audit conclude?", (EDPB, CNIL), answers.conclusion),
    Row(
        "How likely can somebody tell that a person’s record was in the training data?",
        (EDPB, EDPS, CNIL),
        bounds.membership,
    ),
    Row("Do attacks do better than guessing?", (GUESSING,), bounds.equivalence),
    Row("If an attack names a record, how sure is it?", (EDPB,), bounds.flagged),
    Row("Did attacks compare with reference models?", (EDPB, CNIL), bounds.references),
    Row("Who is the adversary, and whose data were audited?", (EDPS, EDPB), answers.adversary),
    Row("Was the audit itself checked?", (EDPB, CNIL), answers.controls),
    Row(
        "How large is the model beside its training data (parameters per training record)?",
        (CNIL,),
        answers.parameters,
    ),
    Row("Can a record be attributed to the client that holds it?", (EDPS,), answers.attribution),
    Row("What does a defense change, and at what cost in accuracy?", (EDPS,), answers.defenses),
    Row(
        "Which epsilon is claimed or proven, of what unit, adjacency and delta?",
        (NIST, OPTIMIZATION),
        epsilons.claimed_epsilon,
    ),
    Row("Which epsilon was measured?", (NIST,), epsilons.measured_epsilon),
    Row("How well does one round’s sum hide one client’s update?", (EDPS,), epsilons.one_sum),
    Row("What about a person with several records?", (NIST,), answers.people),
    Row("Are deleted records forgotten?", (EDPB,), answers.deletion),
    Row("What if the server tampers with the model?", (EDPS,), answers.malicious_server),
    Row("What does a client find that poisons what it sends?", (EDPS,), answers.malicious_client),
    Row(
        "Can training data be extracted or reconstructed?",
        (EDPB, CNIL, MITIGATION),
        out_of_scope("fedaudit asks whether a record was trained on, and does not rebuild it."),
    ),
    Row(
        "Can attributes of a person be inferred?",
        (EDPB, MITIGATION),
        out_of_scope("No attack here infers attributes of people or properties of a client."),
    ),
    Row(
        "Can a client spoil the model?",
        (EDPS,),
        out_of_scope("fedaudit measures what leaks, and not what a client can spoil."),
    ),
    Row("Who tested, when, and in which role?", (EDPB,), answers.tester),
    Row("What remains at risk for whoever deploys the model?", (EDPB, CNIL), bounds.residual),
)


def clause_table(record: Record) -> Grid:
    """The map as a table, of a record whose texts are safe to show."""
    found = [(row, row.answer(record)) for row in ROWS]
    quotes = [f"{one.name}: “{one.text}”" for one in (MITIGATION, OPTIMIZATION, GUESSING)]
    return tabled(
        "What the clauses ask",
        [
            {
                "The question, in our words": row.question,
                "Answer of this record": Cell(answer.text, answer.more, _tone(answer)),
                "Asked under": "; ".join(source.cited for source in row.sources),
            }
            for row, answer in found
        ],
        words=("Answer of this record", "Asked under"),
        remark=f"Quoted: {' '.join(quotes)} All others are {UNCHECKED}.",
    )


def _tone(answer: Answer) -> Tone:
    return "" if answer.kind in ("figure", "stated", "inconclusive") else "muted"


def clauses_json(record: Record) -> str:
    """The map as JSON: what a pack holds, and what is made again to check it."""
    record = cleaned(record, without_digests([record]))
    rows = [
        {
            "question": row.question,
            "sources": [source._asdict() for source in row.sources],
            **row.answer(record)._asdict(),
        }
        for row in ROWS
    ]
    document = {
        "format": "fedaudit-clauses",
        "version": 3,
        "about": CAVEAT,
        "record": record.content_hash,
        "verdict": answers.conclusion(record).text,
    }
    return json.dumps({**document, "clauses": rows}, indent=1, ensure_ascii=False) + "\n"
