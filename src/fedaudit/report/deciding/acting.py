"""Decisions about defenses and risks that changed nothing in a run."""

from fedaudit.report import words
from fedaudit.report.evidence import grouped
from fedaudit.report.grid import shortened
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.record import Record


def idle_parts(record: Record) -> tuple[str, ...]:
    """Return a sentence for each defense that never acted, and for risks that decided nothing.

    A record without these counts gives none: most defenses always act.
    """
    found = []
    defended = [row for row in record.usage if row.defended and row.defense != NO_DEFENSE]
    for defense, rows in grouped(defended, lambda row: row.defense).items():
        counts = [row.rounds_acted for row in rows if row.rounds_acted is not None]
        if counts and len(counts) == len(rows) and not any(counts):
            found.append(
                f"The defense {shortened(defense, 60)} changed nothing: its condition was met "
                f"in no round of {words.plural(len(rows), 'client')}, so that these figures are "
                "those of no defense."
            )
    decided = [
        row.rounds_decided_by_risk for row in record.usage if row.rounds_decided_by_risk is not None
    ]
    if decided and not any(decided):
        found.append(
            "The models' risks changed no client's choice in any round: clients chose as they "
            "would by loss alone."
        )
    return tuple(found)
