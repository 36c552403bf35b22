"""What the report's section on source inference is filled with."""

from dataclasses import dataclass

from fedaudit.report.choosing import about_members
from fedaudit.report.found import Bullet
from fedaudit.report.grid import Grid
from fedaudit.report.reading import Record
from fedaudit.report.source_details import (
    owners_table,
    rounds_table,
    seeds_table,
    source_classes_table,
)
from fedaudit.report.source_tables import (
    answers_table,
    chained_table,
    source_sizes_table,
    source_table,
)
from fedaudit.report.source_words import label_sentence, source_bullets
from fedaudit.report.words import capital, listed


@dataclass(frozen=True)
class SourceSection:
    """Sentences and tables of the section; None stands for a table without rows."""

    found: tuple[Bullet, ...]
    labels: str
    attacks: Grid
    answers: Grid | None
    chained: Grid | None
    seeds: Grid | None
    rounds: Grid | None
    owners: Grid
    classes: Grid | None
    sizes: Grid


def source_section(record: Record) -> SourceSection | None:
    """The section of a record; None where it says nothing of sources."""
    if not record.sources:
        return None
    return SourceSection(
        found=source_bullets(record),
        labels=label_sentence(record),
        attacks=source_table(record),
        answers=answers_table(record),
        chained=chained_table(record),
        seeds=seeds_table(record),
        rounds=rounds_table(record),
        owners=owners_table(record),
        classes=source_classes_table(record),
        sizes=source_sizes_table(),
    )


def kind_of(record: Record) -> str:
    """What kind of audit a record is of, as a heading."""
    topics = ["membership"] * about_members(record)
    topics += ["source"] * bool(record.sources) + ["cluster"] * bool(record.clusters)
    return f"{capital(listed(topics))} audit"
