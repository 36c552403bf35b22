"""Tables of the papers with our figures in the same cells, from `claims/tables/*.toml`."""

import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from docs.claims.comparing import Figure, figure_of, leaks
from docs.claims.data import CLAIMS, Paper, Part, Term, Test, papers, read_toml, regimes
from docs.claims.judging import ClaimResult, judge_paper
from docs.claims.titles import scale_of, title_of

Agreement = Literal["agrees", "lower", "higher", "not run", "not stated"]

MARKS: Mapping[Agreement, str] = {
    "agrees": "=",
    "lower": "↓",
    "higher": "↑",
    "not run": "–",
    "not stated": "",
}
"""Sign of each agreement in a cell, so that a reader does not need the colour."""


class Selector(Part):
    """What a row or a column says about a cell; a row takes precedence over a column.

    "{}" in the attack or the variant of a row stands for that of the column.
    """

    # Regime of `claims/regimes.toml`; empty if we did not run it.
    regime: str = ""
    # Figure, as in the tests of claims; empty for that of the table.
    figure: str = ""
    # Non-members of membership figures.
    contrast: str = ""
    attack: str = ""
    attacks: tuple[str, ...] = ()
    variant: str | None = None
    group: str = ""
    target: int | None = None
    # Whether the paper states only that its values are at least these.
    at_least: bool = False


class Column(Selector):
    """Column of a table of a paper."""

    title: str


class Row(Selector):
    """Row of a table of a paper."""

    title: str
    # Values of the paper, one per column; nan if the paper states none.
    theirs: list[float]
    # Reason why we did not run this row.
    not_run: str = ""


class PaperTable(Part):
    """Table of a paper, and where our results have the same figures."""

    id: str
    title: str
    # What differs in our runs, and other remarks.
    notes: tuple[str, ...] = ()
    # Claims about this table.
    claims: list[str]
    figure: str = "auc"
    # Unit of all values of the paper.
    unit: Literal["", "%"] = ""
    # Digits after the decimal point.
    digits: int = 2
    # Half width of the range in which values agree, in the unit of the paper.
    tolerance: float
    # Which value of a row (or a column) is the best for its method; empty if values do not compete.
    best: Literal["", "largest", "smallest"] = ""
    along: Literal["row", "column"] = "row"
    columns: list[Column]
    row: list[Row]


class TablesOfPaper(Part):
    """All tables of one paper."""

    # Name of the paper in its claims.
    paper: str
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


def tables_of(paper: Paper) -> list[PaperTable]:
    """Return the tables of a paper in their order; empty if there is no file."""
    for path in sorted((CLAIMS / "tables").glob("*.toml")):
        stated = read_toml(path, TablesOfPaper)
        if stated.paper == paper.name:
            return stated.table
    return []


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
    at_least = row.at_least or column.at_least
    figure = None if row.not_run else _our_figure(table, row, column)
    ours = None if figure is None else _scaled(figure, 100 if table.unit == "%" else 1)
    if math.isnan(theirs) or ours is None:
        return Cell(theirs, ours, "not stated" if math.isnan(theirs) else "not run", at_least)
    low, high = (ours.value if limit is None else limit for limit in (ours.low, ours.high))
    agreement: Agreement = "agrees"
    if high + table.tolerance < theirs:
        agreement = "lower"
    elif low - table.tolerance > theirs and not at_least:
        agreement = "higher"
    return Cell(theirs, ours, agreement, at_least)


def _our_figure(table: PaperTable, row: Row, column: Column) -> Figure | None:
    regime = row.regime or column.regime
    if not regime:
        return None
    target = column.target if row.target is None else row.target
    variant = column.variant if row.variant is None else row.variant
    term = Term(
        attack=(row.attack or column.attack).format(column.attack),
        attacks=list(row.attacks or column.attacks),
        variant=None if variant is None else variant.format(column.variant or ""),
        target=target,
        group=row.group or column.group or "everybody",
    )
    test = Test(
        figure=row.figure or column.figure or table.figure,
        contrast=row.contrast or column.contrast or "mixed",
        one=term,
        others=[],
    )
    return figure_of(regimes()[regime], test, term)


def _scaled(figure: Figure, factor: float) -> Figure:
    low, high = (None if limit is None else factor * limit for limit in (figure.low, figure.high))
    return figure._replace(value=factor * figure.value, low=low, high=high)


class Place(NamedTuple):
    """Place of a value: whose it is, and the positions of its row and column."""

    side: Literal["theirs", "ours"]
    row: int
    column: int


def best_cells(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> set[Place]:
    """Return the places of the best values of each row or column, of the paper and of ours."""
    if not table.best:
        return set()
    choose = max if table.best == "largest" else min
    sides: tuple[Literal["theirs", "ours"], ...] = ("theirs", "ours")
    best = set()
    for line in _lines(table, cells):
        for side in sides:
            values = {Place(side, r, c): _value(cells[r][c], side) for r, c in line}
            known = {place: value for place, value in values.items() if not math.isnan(value)}
            if known:
                best.add(choose(known, key=known.__getitem__))
    return best


def _value(cell: Cell, side: Literal["theirs", "ours"]) -> float:
    if side == "theirs":
        return cell.theirs
    return math.nan if cell.ours is None else cell.ours.value


def _lines(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> Iterator[list[tuple[int, int]]]:
    """Yield the places of the values that compete with each other."""
    rows, columns = range(len(cells)), range(len(table.columns))
    if table.along == "row":
        yield from ([(r, c) for c in columns] for r in rows)
    else:
        # Rows of one regime compete; those of another regime have other data.
        regimes_of_rows = dict.fromkeys(row.regime or row.not_run for row in table.row)
        for name in regimes_of_rows:
            inside = [r for r in rows if (table.row[r].regime or table.row[r].not_run) == name]
            yield from ([(r, c) for r in inside] for c in columns)


def same_best(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> tuple[int, int]:
    """Return in how many rows or columns the paper's best is ours too, and how many we ran."""
    theirs, ours = (
        {place[1:] for place in best_cells(table, cells) if place.side == side}
        for side in ("theirs", "ours")
    )
    return len(theirs & ours), len(ours)


def verdict_word(table: PaperTable, results: Sequence[ClaimResult]) -> str:
    """Return the verdict of all claims about a table, or "mixed"."""
    found = {result.verdict for result in results if result.claim.id in table.claims}
    return next(iter(found)) if len(found) == 1 else "mixed" if found else "no claim"


def paper_page(paper: Paper) -> str:
    """Return the Markdown page of a paper."""
    results = judge_paper(paper)
    tables = [(table, cells_of(table)) for table in tables_of(paper)]
    summary = [
        "| table of the paper | verdict | in our runs |",
        "| --- | --- | --- |",
        *(
            f"| [{table.title}](#{table.id}) | **{verdict_word(table, results)}** | "
            f"{outcome(table, cells)} |"
            for table, cells in tables
        ),
    ]
    parts = [
        f"# {paper.name}: the paper's tables and our figures",
        f"*{paper.title}*",
        INTRODUCTION.format(link=f"../claims.md#{paper.name.lower()}"),
        "\n".join(summary),
        *(_section(paper, table, cells, results) for table, cells in tables),
    ]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """Each cell has the paper's value, and below it our figure with its 95 % interval.
Most of our federations are smaller than the paper's, so compare the order of the methods first:
**bold** is the best value of the paper, and the best of our figures. The verdicts are those of the
[claims]({link}), which account for the intervals.

<span class="agrees">= agrees</span> <span class="lower">↓ our figure is lower</span>
<span class="higher">↑ our figure is higher</span> <span class="not-run">– not run</span>"""


def outcome(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> str:
    """Describe how many values agree, how often the best is the same, and what was not run."""
    counts = Counter(cell.agreement for row in cells for cell in row)
    not_run = counts["not run"]
    compared = counts.total() - not_run - counts["not stated"]
    if not compared:
        return "not run"
    parts = [f"{counts['agrees']} of {compared} values agree"]
    if table.best:
        same, among = same_best(table, cells)
        parts.append(f"the same best in {same} of {among} {table.along}s")
    return "; ".join(parts) + (f"; {not_run} not run" if not_run else "")


def _section(
    paper: Paper,
    table: PaperTable,
    cells: Sequence[Sequence[Cell]],
    results: Sequence[ClaimResult],
) -> str:
    used = dict.fromkeys(
        name
        for row in table.row
        for name in [row.regime, *(column.regime for column in table.columns if not row.regime)]
        if name and not row.not_run
    )
    notes = [f"- {_regime_words(paper, name)}" for name in used]
    notes += [f"- {row.title}: not run. {row.not_run}" for row in table.row if row.not_run]
    notes += [f"- {note}" for note in table.notes]
    verdicts = [
        f"[{result.claim.says}](../claims.md#{result.claim.id}): **{result.verdict}**"
        for result in results
        if result.claim.id in table.claims
    ]
    return "\n\n".join(
        [
            f"({table.id})=\n## {table.title}",
            f"Verdict: **{verdict_word(table, results)}**. In our runs: {outcome(table, cells)}.",
            "\n".join(notes),
            _html_table(table, cells),
            "\n".join(f"- {verdict}" for verdict in verdicts),
        ]
    )


def _regime_words(paper: Paper, name: str) -> str:
    ours, theirs = scale_of(name), paper.scale
    scale = f" The paper: {theirs.words(ours)}." if theirs.words(ours) else ""
    leak = "leaks" if leaks(name) else "does not leak"
    return f"[`{name}`](../results/{regimes()[name].study}.md) {leak}: {title_of(name)}.{scale}"


def _html_table(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> str:
    best = best_cells(table, cells)
    lines = ['<div class="table-wrapper"><table class="docutils paper">', "<thead><tr><th></th>"]
    lines += [f"<th>{html.escape(column.title)}</th>" for column in table.columns]
    lines.append("</tr></thead><tbody>")
    for r, row in enumerate(table.row):
        regime = f"<br><small>here: {row.regime}</small>" if row.regime else ""
        lines.append(f"<tr><th>{html.escape(row.title)}{regime}</th>")
        for c, cell in enumerate(cells[r]):
            theirs = "" if math.isnan(cell.theirs) else _number(cell.theirs, table)
            theirs = f"≥ {theirs}" if cell.at_least and theirs else theirs
            theirs = f"<b>{theirs}</b>" if Place("theirs", r, c) in best else theirs
            ours = _figure_words(cell, table)
            ours = f"<b>{ours}</b>" if Place("ours", r, c) in best else ours
            name = cell.agreement.replace(" ", "-")
            mark = MARKS[cell.agreement]
            lines.append(f'<td class="{name}">{theirs}<br>{mark} {ours}</td>')
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _figure_words(cell: Cell, table: PaperTable) -> str:
    if cell.ours is None:
        return ""
    value = _number(cell.ours.value, table)
    if cell.ours.low is None or cell.ours.high is None:
        return value
    low, high = (_number(limit, table) for limit in (cell.ours.low, cell.ours.high))
    return f"{value}<br><small>{low} to {high}</small>"


def _number(value: float, table: PaperTable) -> str:
    return f"{value:.{table.digits}f}{table.unit}"


def paper_pages() -> dict[str, str]:
    """Return the pages of all papers that have tables, by the name of their file."""
    return {f"{paper.name.lower()}.md": paper_page(paper) for paper in papers() if tables_of(paper)}


def index_page() -> str:
    """Return the page that lists all tables of all papers."""
    lines = ["| paper | table | verdict | in our runs |", "| --- | --- | --- | --- |"]
    for paper in papers():
        results = judge_paper(paper)
        for table in tables_of(paper):
            lines.append(
                f"| {paper.name} | [{table.title}](papers/{paper.name.lower()}.md#{table.id}) | "
                f"**{verdict_word(table, results)}** | {outcome(table, cells_of(table))} |"
            )
    return INDEX + "\n".join(lines) + "\n"


INDEX = """# Tables of the papers

See how the tables of the five papers came out in our runs. The verdict on a table is that of all
[claims](claims.md) about it; *mixed* means that they have different verdicts.

```{toctree}
:hidden:
:glob:

papers/*
```

"""
