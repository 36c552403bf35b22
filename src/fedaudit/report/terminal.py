"""What the terminal prints at the end of a command: the conclusion first, at most 40 lines."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedaudit.report.figures.rounds import short_rounds_table
from fedaudit.report.grid import split, to_rich
from fedaudit.report.reading import GameRecord, Record, cleaned
from fedaudit.report.tables.clusters import short_cluster_tables
from fedaudit.report.tables.games import games_table
from fedaudit.report.tables.membership import attack_tables, other_figures_table
from fedaudit.report.tables.run import controls_summary, utility_table
from fedaudit.report.tables.sources import short_source_table
from fedaudit.report.text.games import game_verdict, poor_fits, shown_points
from fedaudit.report.text.verdict import verdict

MOST_ROWS_PRINTED = 12
"""Longer tables beside the main one are left to the report."""


def terminal_tables(record: Record) -> list[Table]:
    """What a study prints at its end: attacks, sources, clusters, a few others, controls."""
    record = cleaned(record)
    grids = [part for grid in attack_tables(record) for part in split(grid)]
    grids += [short_source_table(record)] if record.sources else []
    grids += short_cluster_tables(record)
    other = other_figures_table(record)
    grids += [other] if other and len(other.rows) <= MOST_ROWS_PRINTED else []
    grids += [utility_table(record)] if record.utility else []
    grids += [controls_summary(record)] if record.controls else []
    return [to_rich(grid) for grid in grids]


def print_record(record: Record, console: Console | None = None) -> None:
    """Prints the tables of a record and its verdict in a sentence; to standard output by default.

    Args:
        record: What a study found.
        console: Where to print.
    """
    console = console or Console()
    for table in terminal_tables(record):
        console.print(table)
        console.print()
    other = other_figures_table(record)
    if other and len(other.rows) > MOST_ROWS_PRINTED:
        console.print(f"{len(other.rows)} other figures are in the report.\n")
    said = verdict(record)
    if said.warning:
        console.print(Text(f"Warning: {said.warning}\n", style="bold"))
    console.print(Text(f"{said.headline}. {said.controls}", style="bold"))


def print_games(record: GameRecord, console: Console | None = None) -> None:
    """Prints how games ended, and what is wrong with claims; to standard output by default.

    Args:
        record: Of a study of games.
        console: Where to print.
    """
    record = cleaned(record)
    console = console or Console()
    for table in (games_table(record), short_rounds_table(record)):
        if table is not None and table.rows:
            console.print(to_rich(table))
    said = game_verdict(record)
    console.print(Text(f"\n{said.headline}", style="bold"))
    for text in said.contradictions:
        console.print(Text(f"! {text}", style="bold red"))
    for text in (*said.claims, *poor_fits(shown_points(record.points))):
        console.print(Text(f"! {text}"))
