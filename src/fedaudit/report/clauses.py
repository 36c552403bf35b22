"""The map from clause to figure: what assessments of a model ask, and what a record answers.

Questions are in words of our own. A clause is quoted only where its text could be checked.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from fedaudit.report.evidence import distinct, grouped
from fedaudit.report.text import answers
from fedaudit.report.text.answers import Answering, by_tiles, out_of_scope
from fedaudit.report.words import cleaned, listed, without_digests
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
    """A question in short and in full, its sources, and the function that answers it."""

    topic: str
    question: str
    sources: tuple[Source, ...]
    answer: Answering


_MEMBERSHIP = by_tiles(
    "membership", "clusters", without="The record has no figure of an attack on membership."
)
_ATTRIBUTION = by_tiles("sources", without="No attack here names the client that a sample is from.")
_DELETION = by_tiles("deletion", without="Nothing was unlearned in this record.")
_PEOPLE = by_tiles(
    "membership",
    when=lambda record: record.unit == "person",
    without="Members are single samples. Small hints on each of a person’s samples add up: figures "
    "for people are larger.",
    more="A proven epsilon is of one sample: none is stated for a person.",
)
_SERVER = by_tiles(
    "games",
    "membership",
    when=answers.tampers,
    without="The server sends out the model as it is.",
)
_CLIENT = by_tiles(
    "membership",
    when=answers.poisons,
    without="No client poisons what it sends.",
    more="By a client that poisons what it sends. Compare with a record of the same client that "
    "trains as it should (attacker.kind = 'none').",
)

ROWS = (
    Row("verdict", "What does this audit conclude?", (EDPB, CNIL), answers.conclusion),
    Row(
        "membership of a record",
        "How likely can somebody tell that a person’s record was in the training data?",
        (EDPB, EDPS, CNIL),
        _MEMBERSHIP,
    ),
    Row(
        "bound on attack success",
        "Do attacks do better than guessing?",
        (GUESSING,),
        answers.bound_on_success,
    ),
    Row(
        "certainty of a flagged record",
        "If an attack names a record, how sure is it?",
        (EDPB,),
        answers.flagged,
    ),
    Row(
        "reference models",
        "Did attacks compare with reference models?",
        (EDPB, CNIL),
        answers.references,
    ),
    Row(
        "adversary and data",
        "Who is the adversary, and whose data were audited?",
        (EDPS, EDPB),
        answers.adversary,
    ),
    Row("checks of the audit", "Was the audit itself checked?", (EDPB, CNIL), answers.controls),
    Row(
        "parameters per record",
        "How large is the model beside its training data (parameters per training record)?",
        (CNIL,),
        answers.parameters,
    ),
    Row(
        "client of a record",
        "Can a record be attributed to the client that holds it?",
        (EDPS,),
        _ATTRIBUTION,
    ),
    Row(
        "effect of a defense",
        "What does a defense change, and at what cost in accuracy?",
        (EDPS,),
        answers.defenses,
    ),
    Row(
        "claimed epsilon",
        "Which epsilon is claimed or proven, of what unit, adjacency and delta?",
        (NIST, OPTIMIZATION),
        answers.claimed_epsilon,
    ),
    Row("measured epsilon", "Which epsilon was measured?", (NIST,), answers.measured_epsilon),
    Row(
        "one round’s sum",
        "How well does one round’s sum hide one client’s update?",
        (EDPS,),
        answers.one_sum,
    ),
    Row(
        "people with several records",
        "What about a person with several records?",
        (NIST,),
        _PEOPLE,
    ),
    Row("deletion", "Are deleted records forgotten?", (EDPB,), _DELETION),
    Row(
        "malicious server",
        "What if the server tampers with the model?",
        (EDPS,),
        _SERVER,
    ),
    Row(
        "malicious client",
        "What does a client find that poisons what it sends?",
        (EDPS,),
        _CLIENT,
    ),
    Row(
        "extraction and reconstruction",
        "Can training data be extracted or reconstructed?",
        (EDPB, CNIL, MITIGATION),
        out_of_scope("fedaudit asks whether a record was trained on, and does not rebuild it."),
    ),
    Row(
        "attribute inference",
        "Can attributes of a person be inferred?",
        (EDPB, MITIGATION),
        out_of_scope("No attack here infers attributes of people or properties of a client."),
    ),
    Row(
        "poisoning",
        "Can a client spoil the model?",
        (EDPS,),
        out_of_scope("fedaudit measures what leaks, and not what a client can spoil."),
    ),
    Row("tester", "Who tested, when, and in which role?", (EDPB,), answers.tester),
    Row(
        "residual risk",
        "What remains at risk for whoever deploys the model?",
        (EDPB, CNIL),
        answers.residual,
    ),
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
            for kind, name in _KINDS.items()
            if kind in by_kind
        ],
    )


_KINDS: Mapping[answers.Kind, str] = {
    "inconclusive": "Inconclusive",
    "not tested": "Not tested here",
    "not stated": "Not in a record",
    "out of scope": "Out of scope",
}


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
