"""Tables of the papers with our figures in the same cells, from `claims/tables/*.toml`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

from docs.claims.comparing import Figure, figure_of, gap_of
from docs.claims.data import CLAIMS, Paper, Part, Term, Test, read_toml, regimes

Agreement = Literal["agrees", "lower", "higher", "unclear", "not run", "not stated"]
Best = Literal["", "largest", "smallest"]
Unit = Literal["", "%"]
Side = Literal["theirs", "ours"]

SIDES: tuple[Side, ...] = ("theirs", "ours")
"""Source of a value: the paper, or our runs."""

WIDE = 4
"""Width of an interval, in tolerances, above which a value inside it does not count as agreeing."""


class Selector(Part):
    """Settings of a table, a row or a column that select our figure.

    A row takes precedence over a column, and a column over the table. "{}" in the attack or the
    variant of a row is replaced by that of the column.
    """

    # Regime of `claims/regimes.toml`; empty if we did not run it.
    regime: str = ""
    # Folder of records; that of the regime if empty.
    study: str = ""
    # Figure, as in the tests of claims.
    figure: str = "auc"
    # Whether the figure is the difference from the runs without a defense.
    change: bool = False
    # Non-members of membership figures.
    contrast: str = "mixed"
    attack: str = ""
    attacks: tuple[str, ...] = ()
    variant: str | None = None
    group: str = "everybody"
    target: int | None = None
    # Whether the paper states only that its values are at least these.
    at_least: bool = False


class Column(Selector):
    """Column of a table of a paper."""

    title: str
    # Overrides of the settings of the table.
    unit: Unit | None = None
    digits: int | None = None
    tolerance: float | None = None
    best: Best | None = None


class Row(Selector):
    """Row of a table of a paper."""

    title: str
    # Heading above this row and the next ones. Only rows below the same heading compete.
    block: str = ""
    # Values of the paper, one per column; nan if the paper states none.
    theirs: list[float]
    # Reason why we did not run this row.
    not_run: str = ""


class PaperTable(Selector):
    """Table of a paper, and where our results have the same figures."""

    id: str
    title: str
    # Table from which this one inherits columns, rows and other settings.
    like: str = ""
    # Differences of our runs, and other remarks.
    notes: tuple[str, ...] = ()
    # Claims about this table.
    claims: tuple[str, ...] = ()
    # Unit of the paper's values.
    unit: Unit = ""
    # Digits after the decimal point.
    digits: int = 2
    # Half width of the range in which values agree, in the unit of the paper.
    tolerance: float = 0.02
    # Whether the largest or the smallest value is the best; empty if values do not compete.
    best: Best = ""
    along: Literal["row", "column"] = "row"
    # Word for the competing methods, such as "attack" or "defense".
    competing: str = "method"
    columns: tuple[Column, ...] = ()
    row: tuple[Row, ...] = ()
    # Reason why the page has no cells for this table or figure.
    no_cells: str = ""


class TablesOfPaper(Part):
    """All tables of one paper."""

    # Name of the paper in its claims.
    paper: str
    # Main finding, with a link to it, as Markdown.
    main_finding: str = ""
    # Claims about the paper's main table.
    main_claims: tuple[str, ...]
    table: list[PaperTable]


class Cell(NamedTuple):
    """The paper's value and our figure."""

    # The paper's value, in its unit; nan if it states none.
    theirs: float
    # Our figure in the paper's unit; None if it was not run.
    ours: Figure | None
    agreement: Agreement
    # Whether the paper states only that its value is at least this.
    at_least: bool = False


class Format(NamedTuple):
    """How the values of a column are written and compared."""

    unit: Unit
    digits: int
    tolerance: float
    best: Best


def format_of(table: PaperTable, column: Column) -> Format:
    """Return the format of a column, which is that of its table if it states none."""
    stated = (getattr(column, name) for name in Format._fields)
    usual = (getattr(table, name) for name in Format._fields)
    return Format._make(u if s is None else s for s, u in zip(stated, usual, strict=True))


def tables_of(paper: Paper) -> list[PaperTable]:
    """Return the tables of a paper in their order; empty if there is no file."""
    return _files()[paper.name].table if paper.name in _files() else []


def main_finding_of(paper: Paper) -> str:
    """Return the main finding for the top of a paper's page, as Markdown."""
    return _files()[paper.name].main_finding


def main_claims_of(paper: Paper) -> tuple[str, ...]:
    """Return the claims about the main table of a paper."""
    return _files()[paper.name].main_claims


@cache
def _files() -> dict[str, TablesOfPaper]:
    """Return the files by the name of the paper, with complete tables."""
    files = [read_toml(path, TablesOfPaper) for path in sorted((CLAIMS / "tables").glob("*.toml"))]
    return {file.paper: file.model_copy(update={"table": _complete(file.table)}) for file in files}


def _complete(tables: Sequence[PaperTable]) -> list[PaperTable]:
    by_id = {table.id: table for table in tables}
    return [_completed(table, by_id) for table in tables]


def _completed(table: PaperTable, by_id: Mapping[str, PaperTable]) -> PaperTable:
    if not table.like:
        return table
    other = _completed(by_id[table.like], by_id)
    usual, stated = (side.model_dump(exclude_unset=True) for side in (other, table))
    return PaperTable.model_validate(usual | stated)


def cells_of(table: PaperTable) -> list[list[Cell]]:
    """Return the cells of a table, by row.

    Raises:
        ValueError: A row has another number of values than the table has columns.
    """
    return [
        [
            _cell(table, row, column, theirs)
            for column, theirs in zip(table.columns, row.theirs, strict=True)
        ]
        for row in table.row
    ]


def _cell(table: PaperTable, row: Row, column: Column, theirs: float) -> Cell:
    unit, _, tolerance, _ = format_of(table, column)
    at_least = selector_of(table, column, row).at_least
    figure = None if row.not_run else _our_figure(table, row, column)
    ours = None if figure is None else _scaled(figure, 100 if unit == "%" else 1)
    if math.isnan(theirs) or ours is None:
        return Cell(theirs, ours, "not stated" if math.isnan(theirs) else "not run", at_least)
    low, high = (ours.value if limit is None else limit for limit in (ours.low, ours.high))
    agreement: Agreement = "unclear" if high - low > WIDE * tolerance else "agrees"
    if high + tolerance < theirs:
        agreement = "lower"
    elif at_least and low >= theirs:
        agreement = "agrees"
    elif low - tolerance > theirs:
        agreement = "higher"
    return Cell(theirs, ours, agreement, at_least)


def _our_figure(table: PaperTable, row: Row, column: Column) -> Figure | None:
    chosen = selector_of(table, column, row)
    if not chosen.regime or (chosen.change and chosen.variant is None):
        return None
    regime = regimes()[chosen.regime]
    if chosen.study:
        regime = regime.model_copy(update={"study": chosen.study})
    term = Term(
        attack=chosen.attack.format(column.attack),
        attacks=list(chosen.attacks),
        variant=None if chosen.variant is None else chosen.variant.format(column.variant or ""),
        target=chosen.target,
        group=chosen.group,
    )
    undefended = term.model_copy(update={"variant": None})
    test = Test(figure=chosen.figure, contrast=chosen.contrast, one=term, others=[undefended])
    return gap_of(regime, test, undefended) if chosen.change else figure_of(regime, test, term)


def selector_of(*parts: Selector) -> Selector:
    """Combine settings; later parts take precedence."""
    merged: dict[str, object] = {}
    for part in parts:
        merged |= part.model_dump(include=set(Selector.model_fields), exclude_unset=True)
    return Selector.model_validate(merged)


def _scaled(figure: Figure, factor: float) -> Figure:
    low, high = (None if limit is None else factor * limit for limit in (figure.low, figure.high))
    return figure._replace(value=factor * figure.value, low=low, high=high)


class Place(NamedTuple):
    """Place of a value: its source, row and column."""

    side: Side
    row: int
    column: int


def best_cells(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> set[Place]:
    """Return the places of the best values of each row or column, in the paper and in our runs."""
    return {
        place
        for best, line in _lines(table, cells)
        for side in SIDES
        for place in _best_of(best, cells, line, side)
    }


def _best_of(
    best: Best, cells: Sequence[Sequence[Cell]], line: Sequence[tuple[int, int]], side: Side
) -> set[Place]:
    """Return the places of the best values; none if most values are equally good."""
    values = {Place(side, r, c): value_of(cells[r][c], side) for r, c in line}
    known = {place: value for place, value in values.items() if not math.isnan(value)}
    if not best or not known:
        return set()
    limit = (max if best == "largest" else min)(known.values())
    places = {place for place, value in known.items() if value == limit}
    return places if len(places) <= len(known) / 2 else set()


def value_of(cell: Cell, side: Side) -> float:
    """Return the value of one side in a cell; nan if the cell has no such value."""
    if side == "theirs":
        return cell.theirs
    return math.nan if cell.ours is None else cell.ours.value


def _lines(
    table: PaperTable, cells: Sequence[Sequence[Cell]]
) -> Iterator[tuple[Best, list[tuple[int, int]]]]:
    """Yield the places of values that compete with each other, and which of them is the best."""
    rows, by_column = range(len(cells)), [format_of(table, column).best for column in table.columns]
    if table.along == "row":
        yield from (
            (table.best, [(r, c) for c, best in enumerate(by_column) if best]) for r in rows
        )
        return
    for block in dict.fromkeys(row.block for row in table.row):
        inside = [r for r in rows if table.row[r].block == block]
        yield from ((best, [(r, c) for r in inside]) for c, best in enumerate(by_column))


def same_best(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> tuple[int, int]:
    """Count the rows or columns in which the same value is best in the paper and in our runs.

    Returns:
        Their number, and the number of rows or columns in which we ran the paper's best and
        another one.
    """
    same = among = 0
    for best, line in _lines(table, cells):
        theirs, ours = (
            {place[1:] for place in _best_of(best, cells, line, side)} for side in SIDES
        )
        if ours and any(cells[r][c].ours for r, c in theirs):
            among += 1
            same += bool(theirs & ours)
    return same, among
