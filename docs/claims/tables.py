"""Tables of the papers with our figures in the same cells, from `claims/tables/*.toml`."""

import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from docs.claims.comparing import Figure, figure_of, gap_of, leaks
from docs.claims.data import CLAIMS, Paper, Part, Term, Test, papers, read_toml, regimes
from docs.claims.judging import ClaimResult, judge_paper
from docs.claims.titles import title_of
from fedaudit.report.wording import capital, plural, sentence

Agreement = Literal["agrees", "lower", "higher", "not run", "not stated"]
Best = Literal["", "largest", "smallest"]
Unit = Literal["", "%"]
Side = Literal["theirs", "ours"]

SIDES: tuple[Side, ...] = ("theirs", "ours")
"""Whose a value is: the paper's, or ours."""

MARKS: Mapping[Agreement, str] = {
    "agrees": "=",
    "lower": "↓",
    "higher": "↑",
    "not run": "–",
    "not stated": "",
}
"""Sign of each agreement in a cell, so that a reader does not need the colour."""


class Selector(Part):
    """What a table, a row or a column says about our figure.

    A row takes precedence over a column, and a column over the table. "{}" in the attack or the
    variant of a row stands for that of the column.
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
    # Instead of those of the table.
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
    # Table whose columns, rows and other settings this one has, unless it states them.
    like: str = ""
    # What differs in our runs, and other remarks.
    notes: tuple[str, ...] = ()
    # Claims about this table.
    claims: list[str]
    # Unit of the paper's values.
    unit: Unit = ""
    # Digits after the decimal point.
    digits: int = 2
    # Half width of the range in which values agree, in the unit of the paper.
    tolerance: float = 0.02
    # Which value of a row (or a column) is the best for its method; empty if values do not compete.
    best: Best = ""
    along: Literal["row", "column"] = "row"
    # Word for what competes: "attack", "defense".
    competing: str = "method"
    columns: tuple[Column, ...] = ()
    row: tuple[Row, ...] = ()
    # Reason why the page has no cells for this table or figure.
    no_cells: str = ""


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
    for path in sorted((CLAIMS / "tables").glob("*.toml")):
        stated = read_toml(path, TablesOfPaper)
        if stated.paper == paper.name:
            by_id = {table.id: table for table in stated.table}
            return [_completed(table, by_id) for table in stated.table]
    return []


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
    at_least = _selector(table, column, row).at_least
    figure = None if row.not_run else _our_figure(table, row, column)
    ours = None if figure is None else _scaled(figure, 100 if unit == "%" else 1)
    if math.isnan(theirs) or ours is None:
        return Cell(theirs, ours, "not stated" if math.isnan(theirs) else "not run", at_least)
    low, high = (ours.value if limit is None else limit for limit in (ours.low, ours.high))
    agreement: Agreement = "agrees"
    if high + tolerance < theirs:
        agreement = "lower"
    elif low - tolerance > theirs and not at_least:
        agreement = "higher"
    return Cell(theirs, ours, agreement, at_least)


def _our_figure(table: PaperTable, row: Row, column: Column) -> Figure | None:
    chosen = _selector(table, column, row)
    if not chosen.regime:
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


def _selector(*parts: Selector) -> Selector:
    """Combine settings; later parts take precedence."""
    merged: dict[str, object] = {}
    for part in parts:
        merged |= part.model_dump(include=set(Selector.model_fields), exclude_unset=True)
    return Selector.model_validate(merged)


def _scaled(figure: Figure, factor: float) -> Figure:
    low, high = (None if limit is None else factor * limit for limit in (figure.low, figure.high))
    return figure._replace(value=factor * figure.value, low=low, high=high)


class Place(NamedTuple):
    """Place of a value: whose it is, and the positions of its row and column."""

    side: Side
    row: int
    column: int


def best_cells(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> set[Place]:
    """Return the places of the best values of each row or column, of the paper and of ours."""
    return {
        place
        for best, line in _lines(table, cells)
        for side in SIDES
        for place in _best_of(best, cells, line, side)
    }


def _best_of(
    best: Best, cells: Sequence[Sequence[Cell]], line: Sequence[tuple[int, int]], side: Side
) -> set[Place]:
    """Return the places of the best values, several if they are equal; none if one is alone."""
    values = {Place(side, r, c): _value(cells[r][c], side) for r, c in line}
    known = {place: value for place, value in values.items() if not math.isnan(value)}
    if not best or len(known) < 2:
        return set()
    limit = (max if best == "largest" else min)(known.values())
    return {place for place, value in known.items() if value == limit}


def _value(cell: Cell, side: Side) -> float:
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
    """Count the rows or columns in which the paper's best is ours too.

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


def verdict_word(table: PaperTable, results: Sequence[ClaimResult]) -> str:
    """Return the verdict of all claims about a table, or how many are confirmed if they differ."""
    verdicts = [result.verdict for result in results if result.claim.id in table.claims]
    if len(set(verdicts)) < 2:
        return verdicts[0] if verdicts else "no claim"
    return f"{verdicts.count('confirmed')} of {len(verdicts)} claims confirmed"


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
        "\n".join(_regimes(paper, [table for table, _ in tables])),
        *(_section(table, cells, results) for table, cells in tables),
    ]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """Each cell has the paper's value, and below it our figure with its 95 % interval.
Most of our runs are smaller than the paper's, so compare the order of the methods first:
**bold** is the best value of the paper, and the best of our figures. The verdicts are those of the
[claims]({link}), which account for the intervals; *open* means that our runs do not decide.

<span class="agrees">= agrees</span> <span class="lower">↓ our figure is lower</span>
<span class="higher">↑ our figure is higher</span> <span class="not-run">– not run</span>"""


def outcome(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> str:
    """Describe how many values agree, how often the best is the same, and what was not run."""
    counts = Counter(cell.agreement for row in cells for cell in row)
    compared = counts["agrees"] + counts["lower"] + counts["higher"]
    if not compared:
        return table.no_cells or "not run"
    parts = [f"{counts['agrees']} of {compared} values agree"]
    same, among = same_best(table, cells)
    if among:
        parts.append(f"the same best {table.competing} in {same} of {plural(among, table.along)}")
    return "; ".join(parts) + (f"; {counts['not run']} not run" if counts["not run"] else "")


def _section(
    table: PaperTable, cells: Sequence[Sequence[Cell]], results: Sequence[ClaimResult]
) -> str:
    verdicts = [
        f"- [{result.claim.says}](../claims.md#{result.claim.id}): **{result.verdict}**"
        for result in results
        if result.claim.id in table.claims
    ]
    reasons = dict.fromkeys(row.not_run for row in table.row if row.not_run)
    notes = [*table.notes, *(f"Not run: {_names(table, reason)}. {reason}" for reason in reasons)]
    parts = [
        f"({table.id})=\n## {table.title}",
        f"Verdict: **{verdict_word(table, results)}**. {sentence(capital(outcome(table, cells)))}",
        _html_table(table, cells) if table.row else "",
        "\n".join(f"- {note}" for note in notes),
        "The claims about it:" if verdicts else "",
        "\n".join(verdicts),
    ]
    return "\n\n".join(filter(None, parts))


def _names(table: PaperTable, reason: str) -> str:
    """Return the rows that were not run for a reason; a block's name if these are all its rows."""
    blocks: dict[str, set[str]] = {}
    for row in table.row:
        blocks.setdefault(row.block, set()).add(row.not_run)
    return ", ".join(
        dict.fromkeys(
            row.block if row.block and blocks[row.block] == {reason} else row.title
            for row in table.row
            if row.not_run == reason
        )
    )


def _regimes(paper: Paper, tables: Sequence[PaperTable]) -> Iterator[str]:
    """Yield a line for each regime of the tables, and each further study."""
    sizes = paper.scale.words(paper.scale)
    yield f"Our runs{f' (the paper: {sizes})' if sizes else ''}:\n"
    used = dict.fromkeys(
        (chosen.regime, chosen.study)
        for table in tables
        for row in table.row
        for column in table.columns
        for chosen in [_selector(table, column, row)]
        if chosen.regime and not row.not_run
    )
    for name, study in used:
        page = f"../results/{study or regimes()[name].study}.md"
        further = f", study `{study}`" if study else ""
        leak = "leaks" if leaks(name) else "does not leak"
        yield f"- [`{name}`]({page}){further} {leak}: {title_of(name)}."


def _html_table(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> str:
    best = best_cells(table, cells)
    lines = ['<div class="table-wrapper"><table class="docutils paper">', "<thead><tr><th></th>"]
    lines += [f"<th>{html.escape(column.title)}</th>" for column in table.columns]
    lines.append("</tr></thead><tbody>")
    block = ""
    for r, row in enumerate(table.row):
        if row.block != block:
            block = row.block
            lines.append(
                f'<tr><th colspan="{len(table.columns) + 1}">{_heading(table, block)}</th></tr>'
            )
        is_named = bool(row.regime) and (not block or len(_regimes_in(table, block)) > 1)
        regime = f"<br><small>here: {row.regime}</small>" if is_named else ""
        lines.append(f"<tr><th>{html.escape(row.title)}{regime}</th>")
        for c, (cell, column) in enumerate(zip(cells[r], table.columns, strict=True)):
            style = format_of(table, column)
            theirs, ours = (
                _number(_value(cell, side), style, Place(side, r, c) in best) for side in SIDES
            )
            theirs = f"≥ {theirs}" if cell.at_least and theirs else theirs
            name = cell.agreement.replace(" ", "-")
            mark, limits = MARKS[cell.agreement], _limits(cell, style)
            lines.append(f'<td class="{name}">{theirs}<br>{mark} {ours}{limits}</td>')
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _heading(table: PaperTable, block: str) -> str:
    names = _regimes_in(table, block)
    regime = f" <small>here: {names[0]}</small>" if len(names) == 1 else ""
    return f"<b>{html.escape(block)}</b>{regime}"


def _regimes_in(table: PaperTable, block: str) -> list[str]:
    return list(dict.fromkeys(row.regime for row in table.row if row.block == block and row.regime))


def _limits(cell: Cell, style: Format) -> str:
    if cell.ours is None or cell.ours.low is None or cell.ours.high is None:
        return ""
    low, high = (_rounded(limit, style) for limit in (cell.ours.low, cell.ours.high))
    return f"<br><small>{low} to {high}</small>"


def _number(value: float, style: Format, is_bold: bool = False) -> str:
    if math.isnan(value):
        return ""
    text = f"{_rounded(value, style)}{style.unit}"
    return f"<b>{text}</b>" if is_bold else text


def _rounded(value: float, style: Format) -> str:
    # Adding 0 removes the sign of a negative zero.
    return f"{round(value, style.digits) + 0.0:.{style.digits}f}"


def paper_pages() -> dict[str, str]:
    """Return the pages of all papers that have tables, by the name of their file."""
    return {f"{paper.name.lower()}.md": paper_page(paper) for paper in papers() if tables_of(paper)}


def index_page() -> str:
    """Return the page that lists all tables of all papers."""
    lines = ["| paper | table | verdict | in our runs |", "| --- | --- | --- | --- |"]
    for paper in papers():
        tables = tables_of(paper)
        results = judge_paper(paper) if tables else []
        for table in tables:
            lines.append(
                f"| {paper.name} | [{table.title}](papers/{paper.name.lower()}.md#{table.id}) | "
                f"**{verdict_word(table, results)}** | {outcome(table, cells_of(table))} |"
            )
    return INDEX + "\n".join(lines) + "\n"


INDEX = """# Tables of the papers

See how the tables of the five papers came out in our runs. The verdict on a table is that of all
[claims](claims.md) about it, or the number of confirmed claims if their verdicts differ.

```{toctree}
:hidden:
:glob:

papers/*
```

"""
