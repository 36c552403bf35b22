"""Page, Markdown and terminal output of a leaderboard."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedaudit.attacks import ATTACKS
from fedaudit.benchmark.leaderboard import ERROR, FPRS, Entry, Figure, Leaderboard, RegimeBoard
from fedaudit.benchmark.suite import NOT_APPLICABLE
from fedaudit.formatting.grid import (
    Cell,
    Cells,
    Content,
    Header,
    Tile,
    Tone,
    grid_of,
    shorten,
    tile,
)
from fedaudit.formatting.wording import format_count, join_and
from fedaudit.report import evidence
from fedaudit.report.figures import charts
from fedaudit.report.figures.forest import (
    DEFENDED,
    MOST_LINES,
    PLAIN,
    ForestRow,
    Mark,
    Picture,
    TrackCell,
    build_forest,
)
from fedaudit.report.first import FirstScreen
from fedaudit.report.page import render_page, write_page
from fedaudit.report.tables.cells import Section
from fedaudit.results.text import escape_markdown

_TONES: dict[str, Tone] = {"better": "good", "worse": "alarm", "not separable": "muted"}
_COMPARED = "the scored attack is"
"""Column with the outcome of each comparison."""
MARKDOWN_MARK = "<!-- fedaudit leaderboard -->"
"""First line of the Markdown."""


def write_leaderboard_page(board: Leaderboard, path: Path) -> None:
    """Write a leaderboard as one self-contained HTML file.

    Raises:
        BadInput: The path does not end in an HTML suffix, or is a folder.
    """
    write_page(path, leaderboard_html(board))


def leaderboard_html(board: Leaderboard) -> str:
    """Return a leaderboard as an HTML document."""
    title = f"Score of {shorten(board.attack, 60)}" if board.attack else "Leaderboard of attacks"
    return render_page(
        "leaderboard.html.j2",
        title,
        (),
        running=(title, f"suite {board.suite[:12]}"),
        first=first_of_leaderboard(board),
        boards=[_section(board, regime) for regime in board.regimes],
        before=[(_ident(regime), regime.regime) for regime in board.regimes],
        controls=list(_control_lines(board)),
        method=list(method_lines(board)),
    )


def first_of_leaderboard(board: Leaderboard) -> FirstScreen:
    """Return the first screen of a leaderboard's page."""
    failed = [control for control in board.controls if not control.passed]
    n_passed = len(board.controls) - len(failed)
    look, status, finding = _conclusion(board)
    if failed:
        look, status = "control failed", "control failed"
    return FirstScreen(
        look,
        status,
        finding,
        "",
        _picture(board),
        tuple(_tile(board, regime) for regime in board.regimes),
        f"{n_passed} of {format_count(len(board.controls), 'control')} passed"
        if board.controls
        else "the controls of each recording passed when it was made"
        if not board.warnings
        else f"{format_count(len(board.warnings), 'control')} of the recordings failed",
        "✗" if failed else "?" if board.warnings else "✓",
        tuple(_steps(board)),
        (*(f"{control.name}: {control.result}" for control in failed), *board.warnings[:3]),
    )


def _conclusion(board: Leaderboard) -> tuple[evidence.Status, str, str]:
    n_regimes = len(board.regimes)
    if not board.attack:
        leaders = [_ranked_first(regime) for regime in board.regimes]
        always = [name for name in leaders[0] if all(name in others for others in leaders)]
        regimes = join_and([regime.regime for regime in board.regimes])
        found = f"No attack can have rank 1 on all of {regimes}"
        if always:
            found = f"No attack is significantly better than {join_and(always)} on {regimes}"
        return "inconclusive", "leaderboard", found
    best = [regime.regime for regime in board.regimes if _is_best(board, regime)]
    name = shorten(board.attack, 60)
    if best:
        found = f"{name} has a larger AUC than every attack of the catalogue on {join_and(best)}"
        return "no leak shown", f"best on {len(best)} of {n_regimes}", found
    first = [regime.regime for regime in board.regimes if regime.of(board.attack).best_rank == 1]
    if first:
        found = f"No attack of the catalogue is significantly better than {name} on "
        return "inconclusive", "among the best", found + join_and(first)
    regimes = join_and([regime.regime for regime in board.regimes])
    found = f"Attacks of the catalogue have a larger AUC than {name} on {regimes}"
    return "inconclusive", "not the best", found


def _is_best(board: Leaderboard, regime: RegimeBoard) -> bool:
    return regime.of(board.attack).worst_rank == 1


def _ranked_first(regime: RegimeBoard) -> list[str]:
    return [entry.attack for entry in regime.entries if entry.best_rank == 1]


def _tile(board: Leaderboard, regime: RegimeBoard) -> Tile:
    if not board.attack:
        top = regime.entries[0]
        return tile(regime.regime, _number(top.auc.value), top.attack, _limits(top.auc))
    own = regime.of(board.attack)
    counts = [
        f"{outcome} than {sum(entry.outcome == outcome for entry in regime.entries)}"
        for outcome in ("better", "worse")
    ]
    return tile(
        f"AUC on {regime.regime}",
        _number(own.auc.value),
        _limits(own.auc),
        f"{_rank(own)} of {len(regime.entries)}",
        ", ".join(counts),
        tone="good" if _is_best(board, regime) else "",
    )


def _steps(board: Leaderboard) -> Iterator[str]:
    if not board.attack:
        yield "Score your attack: fedaudit score my_attack.py"
        yield "Draw membership again: fedaudit benchmark --seed 101 --out runs/benchmark-101"
        return
    if any(not control.passed for control in board.controls):
        yield "Correct the attack until all controls pass; no figure counts before."
    yield (
        "If you chose the attack or its settings by these figures, report those of another draw: "
        "fedaudit benchmark --seed 101 --out runs/benchmark-101"
    )
    yield "State the ranks and the limits, and not only the value."


def _picture(board: Leaderboard) -> Picture:
    """Return a chart with the AUCs of the scored attack and of the best others, by regime."""
    forests: list[Picture] = []
    for regime in board.regimes:
        shown = [e for e in regime.entries if e.attack != board.attack][: MOST_LINES - 1]
        own = [regime.of(board.attack)] if board.attack else []
        entries = sorted([*shown, *own], key=lambda entry: -entry.auc.value)
        rows = [
            ForestRow(
                shorten(entry.attack, 40),
                (
                    TrackCell(
                        (_mark(entry, is_own=entry.attack == board.attack),),
                        _number(entry.auc.value),
                        _limits(entry.auc),
                    ),
                ),
            )
            for entry in entries
        ]
        n_hidden = len(regime.entries) - len(rows)
        caption = f"95 % confidence limits for {format_count(regime.recordings, 'recording')}."
        if n_hidden:
            caption += f" The table has {format_count(n_hidden, 'more attack')}."
        looks = {"scored attack": DEFENDED[0], "attack of the catalogue": PLAIN}
        track = charts.Axis("AUC", guess=0.5)
        forests.append(
            build_forest(f"AUC on {regime.regime}", regime.regime, caption, [track], rows, looks)
        )
    return tuple(forest for picture in forests for forest in picture)


def _mark(entry: Entry, *, is_own: bool) -> Mark:
    text = f"{entry.attack} {_number(entry.auc.value)} ({_limits(entry.auc)})"
    look = DEFENDED[0] if is_own else PLAIN
    return Mark(entry.auc.value, entry.auc.low, entry.auc.high, look, text)


def _section(board: Leaderboard, regime: RegimeBoard) -> Section:
    texts = [
        f"{regime.about} {format_count(regime.recordings, 'recording')} with {regime.members:,} "
        f"members and {regime.non_members:,} non-members in total."
    ]
    texts += [f"No TPR at {_percent(float(fpr))} FPR: {r}." for fpr, r in regime.shortage.items()]
    grid = grid_of(
        f"Attacks on {regime.regime}",
        [_cells(board, regime, entry) for entry in regime.entries],
        words=(_COMPARED,),
    )
    return Section(_ident(regime), regime.regime, texts, tables=[grid])


def _cells(board: Leaderboard, regime: RegimeBoard, entry: Entry) -> Cells:
    is_own = bool(board.attack) and entry.attack == board.attack
    cells: dict[Header, Content] = {
        "attack": Cell(shorten(entry.attack, 60), "scored attack" if is_own else ""),
        "AUC": _cell(entry.auc),
    }
    for fpr in FPRS:
        if f"{fpr:g}" not in regime.shortage:
            figure = entry.tpr[f"{fpr:g}"]
            cells[f"TPR at {_percent(fpr)} FPR"] = Cell(
                _rate(figure.value), f"{_rate(figure.low)} to {_rate(figure.high)}"
            )
    if board.attack:
        name = "difference in AUC"
        if entry.difference is None:
            cells |= {name: None, _COMPARED: Cell(_rank(entry))}
        else:
            outcome = entry.outcome or "not separable"
            value = Cell(_signed(entry.difference.value), _signed_limits(entry.difference))
            cells |= {name: value, _COMPARED: Cell(outcome, tone=_TONES[outcome])}
    else:
        cells["rank"] = Cell(_rank(entry).removeprefix("rank "))
    return cells


def _cell(figure: Figure) -> Cell:
    return Cell(_number(figure.value), _limits(figure))


def _control_lines(board: Leaderboard) -> Iterator[str]:
    for control in board.controls:
        yield f"{'✓' if control.passed else '✗'} {control.name}: {control.result}"
    if not board.warnings:
        yield "✓ the controls of all recordings passed when they were made"
    yield from (f"✗ {warning}" for warning in board.warnings)


def method_lines(board: Leaderboard) -> Iterator[str]:
    """Yield sentences on how the figures of a leaderboard are computed."""
    yield (
        "Each recording has the signals of one trained federation, of which one client is audited. "
        "Members are samples on which this client trained. Non-members are held-out samples and "
        "samples of other clients; a fair draw decided which sample is a member."
    )
    yield (
        "AUCs have DeLong's limits, and TPRs limits from order statistics. Both are means over the "
        "recordings of a federation. They hold for these recordings, and not for further ones."
    )
    yield (
        "Differences of AUCs are paired by samples (DeLong). Two attacks count as different if the "
        f"limits of their difference exclude 0 after Bonferroni's correction for "
        f"{board.comparisons:,} comparisons, with a probability of error of {100 * ERROR:g} %. All "
        "others are not separable. The limits in the table are 95 % limits without this correction."
    )
    yield (
        "The best rank is 1 plus the number of better attacks. The worst rank is the number of "
        "attacks minus the number of worse ones."
    )
    scored = {entry.attack for regime in board.regimes for entry in regime.entries}
    left_out = ", ".join(
        f"{name} ({NOT_APPLICABLE.get(name, 'does not apply, or is newer')})"
        for name in ATTACKS
        if name not in scored
    )
    yield f"Attacks of the catalogue that were not run: {left_out}."
    if board.attack:
        yield (
            "The attack ran in another process. It received the signals in a random order of "
            "samples, and no file with the membership. Code that searches the disk is not stopped."
        )
    yield (
        f"Suite with seed {board.seed}, made by fedaudit {board.fedaudit}; SHA-256 of its file "
        f"suite.json: {board.suite}."
        + (f" SHA-256 of the attack's file: {board.code}." if board.code else "")
    )


def leaderboard_markdown(board: Leaderboard, *, heading: str = "##") -> str:
    """Return the tables of a leaderboard as Markdown.

    Args:
        board: The leaderboard.
        heading: Marks of the headings of regimes.
    """
    lines = []
    for regime in board.regimes:
        section = _section(board, regime)
        lines += [f"{heading} {regime.regime}", "", *(escape_markdown(t) for t in section.texts)]
        grid = section.tables[0]
        lines += ["", _row([column.text for column in grid.columns])]
        lines.append(_row(["---", *["---:" if c.numeric else "---" for c in grid.columns[1:]]]))
        lines += [_row([_markdown(cell) for cell in row]) for row in grid.rows]
        lines.append("")
    return "\n".join(lines)


def markdown_page(board: Leaderboard) -> str:
    """Return a leaderboard as a Markdown file."""
    first = first_of_leaderboard(board)
    title = f"Score of {board.attack}" if board.attack else "Leaderboard of attacks"
    lines = [
        MARKDOWN_MARK,
        f"# {escape_markdown(title)}",
        "",
        f"**{escape_markdown(first.finding)}.**",
        "",
        leaderboard_markdown(board),
        "## Controls",
        "",
        *(f"- {escape_markdown(line)}" for line in _control_lines(board)),
        "",
        "## Method",
        "",
        *(f"- {escape_markdown(line)}" for line in method_lines(board)),
    ]
    return "\n".join(lines) + "\n"


def terminal_lines(board: Leaderboard) -> Iterator[str]:
    """Yield the lines of a leaderboard for a terminal."""
    first = first_of_leaderboard(board)
    yield f"{first.status.upper()}: {first.finding}."
    yield from (f"! {caveat}" for caveat in first.caveats)
    yield ""
    yield from (number.line for number in first.numbers)
    yield f"{first.sign} {first.controls}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(cell: Cell) -> str:
    detail = f" ({cell.detail})" if cell.detail else ""
    return escape_markdown(f"{cell.text}{detail}")


def _ident(regime: RegimeBoard) -> str:
    return f"on-{regime.regime}"


def _rank(entry: Entry) -> str:
    if entry.best_rank == entry.worst_rank:
        return f"rank {entry.best_rank}"
    return f"rank {entry.best_rank} to {entry.worst_rank}"


def _number(value: float) -> str:
    return f"{value:.3f}"


def _limits(figure: Figure) -> str:
    return f"{figure.low:.3f} to {figure.high:.3f}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _signed_limits(figure: Figure) -> str:
    return f"{_signed(figure.low)} to {_signed(figure.high)}"


def _rate(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:g} %"
