"""A verdict on the terminal, and in files: over an earlier one, never over another file."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedaudit.core.errors import BadInput
from fedaudit.core.files import write_whole
from fedaudit.gate.junit import junit_xml
from fedaudit.gate.outcome import gravity
from fedaudit.gate.reasons import figure_text
from fedaudit.gate.verdict import VERDICT_FORMAT, Check, Verdict
from fedaudit.report.grid import shortened
from fedaudit.report.words import capital, plural, shown
from fedaudit.study.running.outputs import refuse_missing_folder

_XML = b'<testsuites name="fedaudit"'
_JSON = f'"format":"{VERDICT_FORMAT}"'.encode()
MOST_LINES = 40
"""Lines that are printed at most; a file of the verdict has all of it."""
WIDTH = 80
_MOST_OF_REASON = 16
_LEAST_ROWS = 4
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
        with target.open("rb") as file:
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
    head, rest = _lines(verdict)
    for line in head:
        console.print(Text(line, style="bold"), soft_wrap=True)
    for line in rest:
        console.print(Text(line), soft_wrap=True)


def _lines(verdict: Verdict) -> tuple[list[str], list[str]]:
    """The conclusion, and the lines below it; rows give way to what is not judged."""
    head = _few(textwrap.wrap(verdict.reason, WIDTH), _MOST_OF_REASON)
    unjudged = [f"Not judged: {one}." for one in verdict.unjudged]
    below = [line for one in unjudged for line in textwrap.wrap(one, WIDTH)]
    left = MOST_LINES - len(head) - len(below) - 3
    rows = sorted(verdict.checks, key=lambda check: gravity(check.outcome), reverse=True)
    fit = len(rows) if len(rows) <= left else max(left - 1, _LEAST_ROWS)
    lines = [_row("Outcome", "Check", "At most", "Worst figure"), *map(_of, rows[:fit])]
    if fit < len(rows):
        lines.append(f"and {plural(len(rows) - fit, 'more check')}; {_WHOLE}")
    limits = textwrap.wrap(verdict.limits, WIDTH)
    room = MOST_LINES - len(head) - len(lines) - len(below) - 2
    return head, ["", *lines, *below, *(["", *limits] if len(limits) <= room else [])]


def _few(lines: Sequence[str], most: int) -> list[str]:
    return [*lines] if len(lines) <= most else [*lines[: most - 1], f"... ({_WHOLE})"]


def _of(check: Check) -> str:
    if check.ceiling is None:
        return _row(str(check.outcome), f"{capital(check.name)}: {check.reason}")
    figure = figure_text(check.worst, check.metric) if check.worst else check.reason
    return _row(str(check.outcome), capital(check.name), shown(check.ceiling, check.metric), figure)


def _row(outcome: str, name: str, most: str = "", figure: str = "") -> str:
    if not most:
        return f"{outcome:<13}{shortened(name, WIDTH - 13)}".rstrip()
    return f"{outcome:<13}{shortened(name, 40):<40}{most:>7}  {shortened(figure, WIDTH - 62)}"
