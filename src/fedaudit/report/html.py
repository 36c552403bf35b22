"""The report as one HTML file that loads nothing from outside and runs no foreign script."""

from collections.abc import Sequence
from pathlib import Path

from fedaudit.report.choosing import about_members, attacks_tried, says_nothing
from fedaudit.report.cluster_comparison import cluster_comparison
from fedaudit.report.cluster_section import cluster_section
from fedaudit.report.comparison import attack_tables as comparison_tables
from fedaudit.report.comparison import cautions
from fedaudit.report.comparison import utility_table as comparison_utility
from fedaudit.report.counts import counts_table
from fedaudit.report.exposed import exposed_note, exposed_table
from fedaudit.report.figures import figures_of
from fedaudit.report.fronts import front_figure, hypervolume_tables, tradeoff_figure
from fedaudit.report.grid import shortened
from fedaudit.report.groups import groups_table, targets_of, targets_table
from fedaudit.report.names import NO_DEFENSE
from fedaudit.report.page import rendered, write_page
from fedaudit.report.plain import verdict
from fedaudit.report.reading import Comparison, Record, cleaned
from fedaudit.report.reproducing import reproducing
from fedaudit.report.rows import rows_table
from fedaudit.report.source_comparison import source_comparison
from fedaudit.report.source_section import kind_of, source_section
from fedaudit.report.tables import attack_tables, every_figure_table, other_figures_table
from fedaudit.report.tables_of_run import (
    catalogue_table,
    clients_table,
    controls_summary,
    controls_table,
    sizes_table,
    utility_table,
)
from fedaudit.report.tiles import tiles
from fedaudit.report.usage import usage_figure, usage_table
from fedaudit.report.words import plural

MOST_VERDICTS = 6
"""Verdicts that get a tile each; of more, the table of rows says it."""


def write_report(record: Record, path: Path) -> None:
    """Writes the report of a record as one self-contained HTML file.

    The file opens offline, and its content policy lets it load nothing and run no script but
    its own, whatever names the record holds. It is written to a temporary name first.
    """
    write_page(path, report_html(record))


def write_comparison(comparison: Comparison, records: Sequence[Record], path: Path) -> None:
    """Writes several records side by side as one self-contained HTML file.

    Args:
        comparison: What was found by holding the records against each other.
        records: Those that it is of, in its order.
        path: Where the file goes.
    """
    write_page(path, comparison_html(comparison, records))


def comparison_html(comparison: Comparison, records: Sequence[Record]) -> str:
    """Several records side by side as an HTML document."""
    comparison, records = cleaned(comparison), [cleaned(record) for record in records]
    verdicts = [verdict(record) for record in records]
    drawn = front_figure(comparison) or tradeoff_figure(comparison)
    used = usage_figure(comparison, records)
    figures = {figure.ident: figure for figure in (drawn, used) if figure is not None}
    named_ = [(record.name, said) for record, said in zip(records, verdicts, strict=True)]
    return rendered(
        "comparison.html.j2",
        title=f"Comparison of {plural(len(records), 'audit')}",
        figures=figures,
        tradeoff=drawn,
        used=used,
        usage=usage_table(comparison, records),
        hypervolumes=hypervolume_tables(comparison),
        verdicts=named_ if len(records) <= MOST_VERDICTS else [],
        rows=rows_table(comparison, [said.status for said in verdicts]),
        tables=comparison_tables(comparison),
        outside=comparison_tables(comparison, "outside"),
        defended=any(row.family != NO_DEFENSE for row in comparison.rows),
        sources=source_comparison(comparison, records),
        clusters=cluster_comparison(comparison),
        utility=comparison_utility(comparison),
        cautions=cautions(comparison, records),
        alarming=any(
            says_nothing(r) or s.status == "control failed"
            for r, s in zip(records, verdicts, strict=True)
        ),
        records=records,
    )


def report_html(record: Record) -> str:
    """The report of a record as an HTML document."""
    record = cleaned(record)
    figures = figures_of(record)
    kind = kind_of(record)
    return rendered(
        "report.html.j2",
        title=f"{kind}: {shortened(record.name, 80)}",
        kind=kind,
        on_membership=about_members(record),
        sources=source_section(record),
        clusters=cluster_section(record),
        figures=figures,
        record=record,
        verdict=verdict(record),
        sizes=sizes_table(),
        tiles=tiles(record),
        meta=_meta(record),
        attack_tables=attack_tables(record),
        other_figures=other_figures_table(record),
        counts=counts_table(record),
        catalogue=catalogue_table(record),
        targets=targets_of(record),
        by_target=targets_table(record),
        groups={by: groups_table(record, by) for by in ("client", "class")},
        exposed=exposed_table(record),
        exposed_note=exposed_note(record),
        controls=controls_summary(record) if record.controls else None,
        every_control=controls_table(record) if record.controls else None,
        utility=utility_table(record) if record.utility else None,
        clients=clients_table(record) if record.clients else None,
        every_figure=every_figure_table(record),
        again=reproducing(record),
    )


def _meta(record: Record) -> list[str]:
    parts = [
        record.environment.started[:10],
        plural(len(record.clients), "client"),
        plural(attacks_tried(record), "attack") if record.attacks else "",
        plural(len(record.seeds), "seed"),
        f"record {shortened(record.content_hash, 13)}",
    ]
    return [part for part in parts if part]
