"""What the report's section on clustered learning is filled with."""

from dataclasses import dataclass

from fedaudit.report.cluster_tables import (
    cluster_rounds_table,
    cluster_seeds_table,
    cluster_table,
    models_table,
    risk_sizes_table,
)
from fedaudit.report.cluster_words import RISK, cluster_bullets
from fedaudit.report.found import Bullet
from fedaudit.report.grid import Grid, shortened
from fedaudit.report.reading import Record
from fedaudit.report.words import sentence


@dataclass(frozen=True)
class ClusterSection:
    """Sentences and tables of the section.

    Attributes:
        seeds: None where each study has one run.
        notes: Why figures are missing.
    """

    found: tuple[Bullet, ...]
    risk: str
    figures: tuple[Grid, ...]
    models: Grid
    rounds: Grid
    seeds: Grid | None
    notes: tuple[str, ...]
    sizes: Grid


def cluster_section(record: Record) -> ClusterSection | None:
    """The section of a record; None where no clients choose between models."""
    if not record.clusters:
        return None
    notes = dict.fromkeys(run.fairness_note for run in record.clusters if run.fairness_note)
    return ClusterSection(
        found=cluster_bullets(record),
        risk=RISK,
        figures=tuple(cluster_table(record)),
        models=models_table(record),
        rounds=cluster_rounds_table(record),
        seeds=cluster_seeds_table(record),
        notes=tuple(f"No fairness gaps: {sentence(shortened(note, 300))}" for note in notes),
        sizes=risk_sizes_table(),
    )
