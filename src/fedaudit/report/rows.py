"""The rows of a comparison: what each is called, who uses its defense, what else differs."""

from collections.abc import Mapping, Sequence

from fedaudit.report.grid import Cell, Grid, columns_of, named, shortened
from fedaudit.report.names import NO_DEFENSE, defense_name
from fedaudit.report.reading import Comparison, Row
from fedaudit.report.words import MISSING

MOST_SETTINGS = 4
"""Settings named in a row's heading; all of them stand in the table of rows."""


def labels_of(comparison: Comparison) -> list[str]:
    """A name for each row that no other row has, in one line."""
    return _distinct([_label(row) for row in comparison.rows], comparison)


def case_of(row: Row) -> str:
    """Who uses a row's defense: "pair: clients 0 and 1 of 10"; empty where there is no telling."""
    if row.family == NO_DEFENSE:
        return ""
    if row.coalition is None:
        return f"all {row.clients} clients" if row.clients else ""
    size = len(row.coalition)
    name = "one client" if size == 1 else "pair" if size == 2 else f"{size} clients"
    if row.clients == 2 * size and size > 2:
        name = "half"
    return f"{name}: {on_clients(row.coalition)} of {row.clients}"


def settings_text(settings: Mapping[str, str]) -> str:
    """Settings in a few words, by the last part of their names."""
    parts = [f"{name.rpartition('.')[2].replace('_', ' ')} {v}" for name, v in settings.items()]
    more = len(parts) - MOST_SETTINGS
    told = [shortened(part, 32) for part in parts[:MOST_SETTINGS]]
    return ", ".join([*told, f"and {more} more"] if more > 0 else told)


def _clients(clients: Sequence[int]) -> str:
    ordered = sorted(clients)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}–{ordered[-1]}"
    return shortened(", ".join(str(client) for client in ordered), 40)


def _label(row: Row) -> str:
    parts = [defense_name(row.defense), case_of(row), settings_text(row.settings)]
    return " · ".join(shortened(part, 80) for part in parts if part)


def _distinct(labels: list[str], comparison: Comparison) -> list[str]:
    """With the study's name where two rows say the same, and a number where that is not enough."""
    names = [
        f"{shortened(comparison.sources[row.source].name, 60)} · {label}"
        if labels.count(label) > 1
        else label
        for row, label in zip(comparison.rows, labels, strict=True)
    ]
    return [
        f"{name} ({place + 1})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def on_clients(targets: Sequence[int]) -> str:
    """Clients in a few words: "client 3", "clients 0–4"."""
    return f"client{'s' if len(targets) > 1 else ''} {_clients(targets)}"


def rows_table(comparison: Comparison, verdicts: Sequence[str]) -> Grid:
    """What is compared: each row's defense, who uses it, what else differs, and the verdict.

    Args:
        comparison: The comparison.
        verdicts: Status of each source, in order.
    """
    names = list(dict.fromkeys(name for row in comparison.rows for name in row.settings))
    rows = []
    for row in comparison.rows:
        source = comparison.sources[row.source]
        rows.append(
            (
                named(defense_name(row.defense), case_of(row), limit=120),
                *(_setting(row.settings.get(name, MISSING)) for name in names),
                Cell(verdicts[row.source]),
                named(source.name, limit=60),
            )
        )
    headings = [shortened(name, 40) for name in names]
    return Grid(
        "What is compared",
        columns_of("Defense and coalition", *headings, "Verdict", "Record"),
        tuple(rows),
    )


def _setting(value: str) -> Cell:
    return named(value, limit=32)
