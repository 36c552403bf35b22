"""Pages of the papers: their tables with our figures in the same cells."""

import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from docs.claims.comparing import leaks
from docs.claims.data import Paper, papers, regimes
from docs.claims.judging import VERDICTS, ClaimResult, judge_paper, tested_in
from docs.claims.page import figures_cell, verdict_cell
from docs.claims.routes import decided_in
from docs.claims.tables import (
    SIDES,
    Agreement,
    Cell,
    Format,
    PaperTable,
    Place,
    best_cells,
    cells_of,
    format_of,
    main_claims_of,
    main_finding_of,
    same_best,
    selector_of,
    tables_of,
    value_of,
)
from docs.claims.titles import title_of
from fedaudit.formatting.wording import capitalise, format_count, with_full_stop

MARKS: Mapping[Agreement, str] = {
    "agrees": "=",
    "lower": "↓",
    "higher": "↑",
    "unclear": "?",
    "not run": "–",
    "not stated": "",
}
"""Sign for each kind of agreement in a cell, for readers who cannot see the colour."""


def verdict_words(table: PaperTable, results: Sequence[ClaimResult]) -> str:
    """Return the verdict of all claims about a table, or how many claims have each verdict."""
    counts = Counter(result.verdict for result in results if result.claim.id in table.claims)
    if len(counts) == 1:
        return f"**{next(iter(counts))}**"
    return ", ".join(f"{n} **{verdict}**" for verdict, n in counts.most_common()) or "no claim"


class JudgedPaper(NamedTuple):
    """Paper with the verdicts on its claims, and its tables with the cells of each row."""

    paper: Paper
    results: list[ClaimResult]
    tables: list[tuple[PaperTable, list[list[Cell]]]]

    @property
    def page(self) -> str:
        """Name of the file of the paper's page."""
        return f"{self.paper.name.lower()}.md"


def judged_papers() -> list[JudgedPaper]:
    """Judge the claims of all papers that have tables, and compare the cells of the tables."""
    return [
        JudgedPaper(paper, judge_paper(paper), [(table, cells_of(table)) for table in tables])
        for paper in papers()
        if (tables := tables_of(paper))
    ]


def paper_page(judged: JudgedPaper) -> str:
    """Return the Markdown page of a paper."""
    paper, results, tables = judged
    summary = [
        "| table of the paper | verdicts on its claims | in our runs |",
        "| --- | --- | --- |",
        *(
            f"| [{table.title}](#{table.id}) | {verdict_words(table, results)} | "
            f"{outcome(table, cells)} |"
            for table, cells in tables
        ),
    ]
    parts = [
        f"# {paper.name}: the paper's tables and our figures",
        f"*{paper.title}*",
        main_finding_of(paper),
        counts_of_verdicts(results, "../claims.md", paper),
        _main_table(paper, results, "../claims.md"),
        INTRODUCTION.format(link=f"../claims.md#{paper.name.lower()}"),
        "\n".join(summary),
        "\n".join(_regimes(paper, [table for table, _ in tables], results)),
        *(_section(table, cells, results) for table, cells in tables),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def counts_of_verdicts(results: Sequence[ClaimResult], claims_page: str, paper: Paper) -> str:
    """Return a sentence with the number of the paper's claims for each verdict."""
    theirs = [result for result in results if not result.claim.ours]
    counts = Counter(result.verdict for result in theirs)
    words = ", ".join(f"{counts[name]} **{name}**" for name in VERDICTS if counts[name])
    return (
        f"All [{len(theirs)} claims of the paper]({claims_page}#{paper.name.lower()}) that we "
        f"judge: {words}."
    )


def _main_table(paper: Paper, results: Sequence[ClaimResult], claims_page: str) -> str:
    """Return the claims about the main table, with the figures of the runs that decide them."""
    lines = [
        "| main claims of the paper | verdict | our figures in each regime that counts |",
        "| --- | --- | --- |",
    ]
    by_id = {result.claim.id: result for result in results}
    for name in main_claims_of(paper):
        result = by_id[name]
        claim = result.claim
        cells = (
            f"[{claim.says}]({claims_page}#{name})<br>{claim.where}: {claim.theirs}",
            verdict_cell(result, tested_in(results, claim)),
            figures_cell(result) or "–",
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


INTRODUCTION = """A *regime* is a data set, a network and training settings with which we tested a
claim. It counts if it has two seeds; for claims about attacks and defenses, models must also leak
without a defense. The verdicts are those of the [claims]({link}), which account for the intervals:

- *confirmed*: the difference is beyond the claim's margin in two regimes (or one, for a claim about
  one data set or one component), and no regime decides otherwise.
- *no difference*: the difference is within the margin.
- *not found at this scale*: our runs show the opposite, but are smaller than the paper's.
- *depends on the regime*: the claim holds in one regime and fails in another.
- *open*: our runs do not decide; the claims page states what would.

*These runs only* means that the verdict is about the models that we trained; with other seeds it
may differ. *Further runs too* means that it also holds for the mean over all seeds. A difference is
*within* x if two one-sided tests of 5 % exclude a larger one.

Each cell of the tables has the paper's value, and below it our figure with its 95 % interval. Most
of our runs are smaller than the paper's, so compare the order of the methods first: **bold** is the
best value of the paper, and the best of our figures. A value agrees if it lies in our interval,
widened by 0.02 (two points for percentages) unless a note states another tolerance.

<span class="agrees">= agrees</span> <span class="lower">↓ our figure is lower</span>
<span class="higher">↑ our figure is higher</span>
<span class="unclear">? unclear: the interval is too wide</span>
<span class="not-run">– not run</span>"""


def outcome(table: PaperTable, cells: Sequence[Sequence[Cell]]) -> str:
    """Describe how many values agree, how often the same method is best, and what was not run."""
    counts = Counter(cell.agreement for row in cells for cell in row)
    compared = counts.total() - counts["not run"] - counts["not stated"]
    if not compared:
        return table.no_cells or "not run"
    parts = [f"{counts['agrees']} of {compared} values agree"]
    same, among = same_best(table, cells)
    if among:
        parts.append(
            f"the same best {table.competing} in {same} of {format_count(among, table.along)}"
        )
    others: tuple[Agreement, ...] = ("unclear", "not run")
    parts += [f"{counts[name]} {name}" for name in others if counts[name]]
    return "; ".join(parts)


def _section(
    table: PaperTable, cells: Sequence[Sequence[Cell]], results: Sequence[ClaimResult]
) -> str:
    verdicts = [
        f"- [{result.claim.says}](../claims.md#{result.claim.id}): **{result.verdict}**"
        f"{_deciding_runs(result)}"
        for result in results
        if result.claim.id in table.claims
    ]
    reasons = dict.fromkeys(row.not_run for row in table.row if row.not_run)
    notes = [*table.notes, *(f"Not run: {_names(table, reason)}. {reason}" for reason in reasons)]
    parts = [
        f"({table.id})=\n## {table.title}",
        f"Verdict: {verdict_words(table, results)}. "
        f"{with_full_stop(capitalise(outcome(table, cells)))}"
        + (f" Our runs: `{table.regime}`." if table.regime else ""),
        _html_table(table, cells) if table.row else "",
        "\n".join(f"- {note}" for note in notes),
        "The claims about it:" if verdicts else "",
        "\n".join(verdicts),
    ]
    return "\n\n".join(filter(None, parts))


def _deciding_runs(result: ClaimResult) -> str:
    """Return where a verdict was decided, and the runs that count."""
    where = decided_in(result)
    runs = ", ".join(f"`{regime.regime}`" for regime in result.counted)
    parts = [where, f"runs that count: {runs}" if runs else "no run counts"]
    return f" ({'; '.join(filter(None, parts))})"


def _names(table: PaperTable, reason: str) -> str:
    """Return the rows that were not run for a reason; a block's name if these are all its rows."""
    blocks: dict[str, set[str]] = {}
    for row in table.row:
        blocks.setdefault(row.block, set()).add(row.not_run)
    return "; ".join(
        dict.fromkeys(
            row.block if row.block and blocks[row.block] == {reason} else row.title
            for row in table.row
            if row.not_run == reason
        )
    )


def _regimes(
    paper: Paper, tables: Sequence[PaperTable], results: Sequence[ClaimResult]
) -> Iterator[str]:
    """Yield a line for each regime of the tables and of the claims, and each further study."""
    sizes = paper.scale.words(paper.scale)
    yield f"Our runs{f' (the paper: {sizes})' if sizes else ''}:\n"
    used = dict.fromkeys(
        (chosen.regime, chosen.study)
        for table in tables
        for row in table.row
        for column in table.columns
        for chosen in [selector_of(table, column, row)]
        if chosen.regime and not row.not_run
    )
    named = {name for name, _ in used}
    counted = (regime.regime for result in results for regime in result.counted)
    used |= dict.fromkeys((name, "") for name in counted if name not in named)
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
        leak = "" if not row.regime or leaks(row.regime) else ", no leak"
        is_named = bool(row.regime) and (not block or len(_regimes_in(table, block)) > 1)
        regime = f"<br><small>here: {row.regime}{leak}</small>" if is_named else ""
        lines.append(f"<tr><th>{html.escape(row.title)}{regime}</th>")
        for c, (cell, column) in enumerate(zip(cells[r], table.columns, strict=True)):
            style = format_of(table, column)
            theirs, ours = (
                _number(value_of(cell, side), style, Place(side, r, c) in best) for side in SIDES
            )
            theirs = f"≥ {theirs}" if cell.at_least and theirs else theirs
            name = cell.agreement.replace(" ", "-")
            mark, limits = MARKS[cell.agreement], _limits(cell, style)
            lines.append(f'<td class="{name}">{theirs}<br>{mark} {ours}{limits}</td>')
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _heading(table: PaperTable, block: str) -> str:
    names = _regimes_in(table, block)
    leak = "" if not names or leaks(names[0]) else ", no leak"
    regime = f" <small>here: {names[0]}{leak}</small>" if len(names) == 1 else ""
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


def index_page(judged_papers: Sequence[JudgedPaper]) -> str:
    """Return the page with the main claims of each paper, and the list of all tables."""
    parts = [INDEX]
    for judged in judged_papers:
        paper, results, tables = judged
        page = f"papers/{judged.page}"
        parts += [
            f"## {paper.name}",
            f"*{paper.title}*",
            main_finding_of(paper).replace("(../", "("),
            _main_table(paper, results, "claims.md"),
            f"[All tables of {paper.name}]({page}):",
            "\n".join(
                f"- [{table.title}]({page}#{table.id}): {verdict_words(table, results)}; "
                f"{outcome(table, cells)}"
                for table, cells in tables
            ),
        ]
    return "\n\n".join(filter(None, parts)) + "\n"


INDEX = """# Tables of the papers

See how the tables of the five papers came out in our runs. The verdicts on a table are those of the
[claims](claims.md) about it; *open* means that our runs do not decide.

```{toctree}
:hidden:
:glob:

papers/*
```

"""
