"""A verdict on the terminal, and in files: over an earlier one, never over another file."""

import textwrap
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedaudit.core.errors import BadInput
from fedaudit.core.files import open_regular, write_whole
from fedaudit.gate.junit import junit_xml
from fedaudit.gate.outcome import gravity
from fedaudit.gate.reasons import figure_text
from fedaudit.gate.verdict import VERDICT_FORMAT, Check, Verdict
from fedaudit.report.grid import shortened
from fedaudit.report.terminal import WIDTH, width_of
from fedaudit.report.words import capital, plural, shown
from fedaudit.results.text import one_line
from fedaudit.study.running.outputs import refuse_missing_folder

_XML = b'<testsuites name="fedaudit"'
_JSON = f'"format":"{VERDICT_FORMAT}"'.encode()
MOST_LINES = 40
"""Lines of 80 columns that are printed at most; a file of the verdict has all of it."""
_LEAST_ROWS = 4
_FIGURE, _WIDEST_FIGURE = 21, 34
"""Columns of a figure with both limits, such as "0.582 (0.516–0.645)"."""
_WHOLE = "a verdict written with --json or --junit has all of it"


def verdict_json(verdict: Verdict) -> str:
    """The verdict as one line of JSON."""
    return verdict.model_dump_json() + "\n"


def refuse_taken(target: Path, inputs: Sequence[Path]) -> None:
    """Lets a verdict replace an earlier verdict only.

    Args:
        target: The file to write.
        inputs: Files that are read.

    Raises:
        BadInput: The file is one of these, or is there and is no verdict, or has no folder.
    """
    refuse_missing_folder(target)
    if not target.exists():
        return
    if any(one.exists() and target.samefile(one) for one in inputs):
        raise BadInput(f"{target} is what is read here; write to another file")
    start = b""
    if target.is_file():
        with open_regular(target) as file:
            start = file.read(200)
    if _XML not in start and _JSON not in start:
        raise BadInput(
            f"{target} is there and is no verdict, so that it is not replaced; write to another "
            "file, or delete it"
        )


def write_verdict(verdict: Verdict, *, junit: Path | None, json: Path | None) -> None:
    """Writes a verdict as JUnit XML, as JSON, or both; see :func:`refuse_taken`."""
    if junit is not None:
        write_whole(junit, junit_xml(verdict))
    if json is not None:
        write_whole(json, verdict_json(verdict))


def print_verdict(verdict: Verdict, console: Console | None = None) -> None:
    """Prints why, then a row for each check, the gravest first, and what is not judged.

    Args:
        verdict: Of a policy on a record.
        console: Where to print; standard output by default.
    """
    console = console or Console()
    head, rest = _lines(verdict, width_of(console))
    for line in head:
        console.print(Text(one_line(line), style="bold"), soft_wrap=True)
    for line in rest:
        console.print(Text(one_line(line)), soft_wrap=True)


def _lines(verdict: Verdict, width: int) -> tuple[list[str], list[str]]:
    """The conclusion, and the lines below it; rows give way to what is not judged."""
    most = MOST_LINES * WIDTH // width
    head = textwrap.wrap(verdict.reason, width, subsequent_indent="  ")
    if len(head) > most * 2 // 5:
        head = [*head[: most * 2 // 5 - 1], *textwrap.wrap(f"... ({_WHOLE})", width)]
    unjudged = [f"Not judged: {one}." for one in verdict.unjudged]
    below = [line for one in unjudged for line in textwrap.wrap(one, width, subsequent_indent="  ")]
    ranked = sorted(verdict.checks, key=lambda check: gravity(check.outcome), reverse=True)
    rows = [_of(check, width) for check in ranked]
    left = most - len(head) - len(below) - 3
    fit = len(rows)
    if sum(map(len, rows)) > left:
        lengths = accumulate(map(len, rows))
        fit = max(sum(length < left for length in lengths), _LEAST_ROWS)
    lines = _row("Outcome", "Check", "At most", "Worst figure") if width >= WIDTH else []
    lines += [line for row in rows[:fit] for line in row]
    if fit < len(rows):
        more = f"and {plural(len(rows) - fit, 'more check')}; {_WHOLE}"
        lines += textwrap.wrap(more, width, subsequent_indent="  ")
    limits = textwrap.wrap(verdict.limits, width)
    room = most - len(head) - len(lines) - len(below) - 2
    return head, ["", *lines, *below, *(["", *limits] if len(limits) <= room else [])]


def _of(check: Check, width: int) -> list[str]:
    """The lines of a check: one in a table, several on a narrow terminal."""
    outcome, name = str(check.outcome), capital(check.name)
    if check.ceiling is None:
        ceiling, figure = "", check.reason
    else:
        ceiling = shown(check.ceiling, check.metric)
        figure = figure_text(check.worst, check.metric) if check.worst else check.reason
    if width < WIDTH:
        below = f"at most {ceiling}: {figure}" if ceiling else figure
        return [
            *textwrap.wrap(f"{outcome}: {name}", width, subsequent_indent="  "),
            shortened(f"  {below}", width),
        ]
    return _row(outcome, name, ceiling, figure) if ceiling else _row(outcome, f"{name}: {figure}")


def _row(outcome: str, name: str, most: str = "", figure: str = "") -> list[str]:
    if not most:
        return [f"{outcome:<13}{shortened(name, WIDTH - 13)}".rstrip()]
    # The deciding limit stands last and must be whole; the check's name gives way.
    room = WIDTH - 13 - 7 - 2 - max(_FIGURE, min(len(figure), _WIDEST_FIGURE))
    lines = textwrap.wrap(shortened(name, 2 * room - 4), room - 1) or [""]
    shared = f"{outcome:<13}{lines[0]:<{room}}{most:>7}"
    first = f"{shared}  {shortened(figure, WIDTH - room - 22)}"
    return [first, *(f"{'':<13}{line}" for line in lines[1:])]
