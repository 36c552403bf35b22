"""Output of a verdict: on the terminal, as JSON, as JUnit XML and for summaries."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from rich.console import Console
from rich.text import Text

from fedaudit.core.errors import BadInput
from fedaudit.core.files import open_regular, write_whole
from fedaudit.gate.evaluate import evaluate_policy, figure_text
from fedaudit.gate.outcome import Outcome, gravity
from fedaudit.gate.policy import Policy, read_policy
from fedaudit.gate.verdict import VERDICT_FORMAT, Check, FigureCheck, Verdict, is_doubted
from fedaudit.report.evidence import distinct
from fedaudit.report.fixed import fixed_texts
from fedaudit.report.grid import shortened
from fedaudit.report.summary import MOST_LISTED, POLICY_TITLE, WITHDRAWN, Section, Table
from fedaudit.report.terminal import WIDTH, width_of
from fedaudit.report.text.verdict import verdict as conclusion
from fedaudit.report.wording import MISSING, capital, format_value, join_and, plural, sentence
from fedaudit.results.record import Record
from fedaudit.results.text import one_line, without_commands
from fedaudit.study.running.outputs import refuse_missing_folder

_XML = b'<testsuites name="fedaudit"'
_JSON = f'"format":"{VERDICT_FORMAT}"'.encode()
MOST_LINES = 40
"""Largest number of printed lines of 80 columns; a file of the verdict is complete."""
_LEAST_ROWS = 4
_FIGURE, _WIDEST_FIGURE = 21, 34
"""Columns of a figure with both limits, such as "0.582 (0.516–0.645)"."""
_COMPLETE = "a verdict written with --json or --junit is complete"


def verdict_json(verdict: Verdict) -> str:
    """Return the verdict as one line of JSON."""
    return verdict.model_dump_json() + "\n"


def refuse_taken(
    target: Path,
    inputs: Sequence[Path],
    *,
    what: str = "verdict",
    marks: Sequence[bytes] = (_XML, _JSON),
) -> None:
    """Raise if a file would replace an input, or a file that lacks the marks of its kind."""
    refuse_missing_folder(target)
    if not target.exists():
        return
    if any(path.exists() and target.samefile(path) for path in inputs):
        raise BadInput(f"{target} is an input of this command; write to another file")
    start = b""
    if target.is_file():
        with open_regular(target) as file:
            start = file.read(200)
    if not any(mark in start for mark in marks):
        raise BadInput(
            f"{target} exists and is not a {what}, so it is not replaced; write to another file, "
            "or delete it"
        )


def write_verdict(verdict: Verdict, *, junit: Path | None, json: Path | None) -> None:
    """Write a verdict as JUnit XML, as JSON, or both."""
    if junit is not None:
        write_whole(junit, junit_xml(verdict))
    if json is not None:
        write_whole(json, verdict_json(verdict))


def print_verdict(verdict: Verdict, console: Console | None = None) -> None:
    """Print the reason, a row for each check, and what is not judged."""
    console = console or Console()
    head, body = _lines(verdict, width_of(console))
    for line in head:
        console.print(Text(one_line(line), style="bold"), soft_wrap=True)
    for line in body:
        console.print(Text(one_line(line)), soft_wrap=True)


def _lines(verdict: Verdict, width: int) -> tuple[list[str], list[str]]:
    """Return the conclusion and the lines below; rows are cut to leave room for the rest."""
    n_lines = MOST_LINES * WIDTH // width
    head = textwrap.wrap(verdict.reason, width, subsequent_indent="  ")
    if len(head) > n_lines * 2 // 5:
        head = [*head[: n_lines * 2 // 5 - 1], *textwrap.wrap(f"... ({_COMPLETE})", width)]
    unjudged = [f"Not judged: {text}." for text in verdict.unjudged]
    below = [
        line for text in unjudged for line in textwrap.wrap(text, width, subsequent_indent="  ")
    ]
    ranked = sorted(verdict.checks, key=lambda check: gravity(check.outcome), reverse=True)
    rows = [_check_lines(check, width) for check in ranked]
    room_for_rows = n_lines - len(head) - len(below) - 3
    fit = len(rows)
    if sum(map(len, rows)) > room_for_rows:
        lengths = accumulate(map(len, rows))
        fit = max(sum(length < room_for_rows for length in lengths), _LEAST_ROWS)
    lines = _row("Outcome", "Check", "At most", "Worst figure") if width >= WIDTH else []
    lines += [line for row in rows[:fit] for line in row]
    if fit < len(rows):
        remark = f"and {plural(len(rows) - fit, 'more check')}; {_COMPLETE}"
        lines += textwrap.wrap(remark, width, subsequent_indent="  ")
    limits = textwrap.wrap(verdict.limits, width)
    room = n_lines - len(head) - len(lines) - len(below) - 2
    return head, ["", *lines, *below, *(["", *limits] if len(limits) <= room else [])]


def _check_lines(check: Check, width: int) -> list[str]:
    outcome, name = str(check.outcome), capital(check.name)
    if check.ceiling is None:
        ceiling, figure = "", check.reason
    else:
        ceiling = format_value(check.ceiling, check.metric)
        figure = figure_text(check.worst, check.metric) if check.worst else check.reason
    if width < WIDTH:
        below = f"at most {ceiling}: {figure}" if ceiling else figure
        return [
            *textwrap.wrap(f"{outcome}: {name}", width, subsequent_indent="  "),
            shortened(f"  {below}", width),
        ]
    return _row(outcome, name, ceiling, figure) if ceiling else _row(outcome, f"{name}: {figure}")


def _row(outcome: str, name: str, ceiling: str = "", figure: str = "") -> list[str]:
    if not ceiling:
        return [f"{outcome:<13}{shortened(name, WIDTH - 13)}".rstrip()]
    # The deciding limit comes last and must be whole, so that the check's name is shortened.
    room = WIDTH - 13 - 7 - 2 - max(_FIGURE, min(len(figure), _WIDEST_FIGURE))
    lines = textwrap.wrap(shortened(name, 2 * room - 4), room - 1) or [""]
    shared = f"{outcome:<13}{lines[0]:<{room}}{ceiling:>7}"
    first = f"{shared}  {shortened(figure, WIDTH - room - 22)}"
    return [first, *(f"{'':<13}{line}" for line in lines[1:])]


MOST_CASE_LINES = 50
"""Largest number of figures that a test case lists; the verdict lists all."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(verdict: Verdict) -> str:
    """Return the verdict as one test suite with a test case for each check.

    A failed check is a failure. An inconclusive one is an error, as it must not look like a pass. A
    lower bound that refutes nothing is skipped.
    """
    outcomes = [check.outcome for check in verdict.checks]
    counts = {
        "tests": len(outcomes),
        "failures": outcomes.count(Outcome.FAIL),
        "errors": outcomes.count(Outcome.INCONCLUSIVE),
        "skipped": outcomes.count(Outcome.NOT_REFUTED),
    }
    # A gate may be inconclusive without an inconclusive check, such as with lower bounds only.
    lone = verdict.outcome is Outcome.INCONCLUSIVE and not counts["errors"]
    if lone:
        counts |= {"tests": counts["tests"] + 1, "errors": 1}
    numbers = " ".join(f'{name}="{number}"' for name, number in counts.items())
    name = f"fedaudit gate: {verdict.policy}"
    cases = [_case(check, verdict) for check in verdict.checks]
    if lone:
        cases.append(_inconclusive_case(verdict))
    properties = {
        "record": verdict.record,
        "content_hash": verdict.content_hash,
        "policy_hash": verdict.policy_hash,
        "outcome": str(verdict.outcome),
    }
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<testsuites name="fedaudit" {numbers} time="0">',
            f'<testsuite name={_quote(name)} {numbers} time="0">',
            "<properties>",
            *(f"<property name={_quote(k)} value={_quote(v)}/>" for k, v in properties.items()),
            "</properties>",
            *cases,
            f"<system-out>{_text(one_line(f'{verdict.reason} {verdict.limits}'))}</system-out>",
            "</testsuite>",
            "</testsuites>",
            "",
        ]
    )


def _case(check: Check, verdict: Verdict) -> str:
    limit = "" if check.ceiling is None else f" at most {format_value(check.ceiling, check.metric)}"
    classname = f"fedaudit.gate.{check.section}.{verdict.record}"
    opening = f"<testcase classname={_quote(classname)} "
    opening += f'name={_quote(capital(check.name) + limit)} time="0"'
    if check.outcome is Outcome.PASS:
        return f"{opening}/>"
    listed = [_line(figure, check) for figure in check.open[:MOST_CASE_LINES]]
    n_more = len(check.open) - MOST_CASE_LINES
    body = "\n".join([*listed, f"and {n_more:,} more"] if n_more > 0 else listed) or one_line(
        check.reason
    )
    message = f"{check.name}: {body.splitlines()[0]}"
    if check.outcome is Outcome.NOT_REFUTED:
        return f"{opening}><skipped message={_quote(message)}/></testcase>"
    kind = "failure" if check.outcome is Outcome.FAIL else "error"
    return (
        f"{opening}><{kind} type={_quote(str(check.outcome))} message={_quote(message)}>"
        f"{_text(body)}</{kind}></testcase>"
    )


def _inconclusive_case(verdict: Verdict) -> str:
    return (
        f'<testcase classname="fedaudit.gate" name="Something passes" time="0">'
        f'<error type="inconclusive" message={_quote(verdict.reason)}/></testcase>'
    )


def _line(figure: FigureCheck, check: Check) -> str:
    parts = [f"{figure.what}: {figure_text(figure, check.metric)}, {figure.outcome}", figure.reason]
    parts += [figure.more.text] if figure.more else []
    return one_line("; ".join(part for part in parts if part))


def _text(text: str) -> str:
    """Escape text as lines of XML, without terminal commands."""
    return escape(_FORBIDDEN.sub("\ufffd", without_commands(text)))


def _quote(text: str) -> str:
    return quoteattr(_FORBIDDEN.sub("\ufffd", without_commands(one_line(text))))


_TEXTS = fixed_texts("policy")
_LONG = 240
_HEAD = ("Outcome", "Rule", "Allowed at most", "Measured (range)", "Which figure, and why")


def judged(record: Record, policy: Path) -> Section:
    """Apply a policy to a record; return the outcome as a section of a summary."""
    read = read_policy(policy)
    return policy_section(record, evaluate_policy(record, read), read, policy.name)


def policy_section(record: Record, verdict: Verdict, policy: Policy, file: str) -> Section:
    """Return the outcome of a policy as a section of a summary, the worst outcome first."""
    is_void = record.kind != "games" and conclusion(record).status in WITHDRAWN
    ranked = sorted(verdict.checks, key=lambda check: gravity(check.outcome), reverse=True)
    met = [item for item in ranked if item.ceiling is None and item.outcome is Outcome.PASS]
    rules = [_rule(check, is_void=is_void) for check in ranked if check not in met]
    counts = Counter([*(outcome for outcome, _ in rules), *("pass" for _ in met)])
    counted = [
        f"{counts[key]} {text['count']}" for key, text in _TEXTS["rules"].items() if counts[key]
    ]
    words, n_more = _TEXTS["outcomes"][str(verdict.outcome)], len(rules) - MOST_LISTED
    others = f"And {plural(n_more, 'more rule')}; the verdict has all." if n_more > 0 else ""
    satisfied = (
        f"Also kept: {'; '.join(shortened(check.name, 80) for check in met)}." if met else ""
    )
    return Section(
        POLICY_TITLE,
        badge=words["badge"],
        tone=words["tone"],
        lead=f"By the policy “{shortened(verdict.policy, 80)}” {words['meaning']}.",
        paragraphs=(f"Of {plural(counts.total(), 'rule')}: {'; '.join(counted)}.",),
        facts=(
            ("Policy set by", shortened(policy.owner, 80) or _TEXTS["no_owner"]),
            ("File of the policy", shortened(file, 80)),
            ("Digest of the policy", verdict.policy_hash),
        ),
        table=Table(_HEAD, tuple(cells for _, cells in rules[:MOST_LISTED])),
        items=tuple(
            f"Not judged: {sentence(shortened(item, _LONG))}" for item in verdict.unjudged[:6]
        ),
        remarks=tuple(filter(None, (others, shortened(satisfied, 600), _TEXTS["differs"]))),
    )


def _rule(check: Check, *, is_void: bool) -> tuple[str, tuple[str, ...]]:
    """Return the outcome of a rule, and its row."""
    worst, outcome, allowed, measured = check.worst, str(check.outcome), "", ""
    is_open = check.outcome is Outcome.INCONCLUSIVE
    why = check.reason
    if check.ceiling is not None:
        allowed = format_value(check.ceiling, check.metric)
        if worst is None or (is_open and all(figure.value is None for figure in check.open)):
            outcome = "not judged"
            counted = f"{plural(check.figures, 'figure')} asked for: " * bool(check.figures)
            why = counted + (
                join_and(distinct(figure.reason for figure in check.open)) or check.reason
            )
        elif is_void:
            outcome, why = "taken back", _TEXTS["taken_back"]
        else:
            measured = (
                "not relied on" if is_doubted(worst.reason) else figure_text(worst, check.metric)
            )
            number = check.outcomes.get(outcome, 0)
            share = f"{number} of {check.figures} figures {_TEXTS['rules'][outcome]['figures']}"
            parts = (worst.what, share * (check.figures > 1), worst.reason, _needed_samples(check))
            why = "; ".join(filter(None, parts))
    name, row = shortened(capital(check.name), 120), _TEXTS["rules"][outcome]["row"]
    cells = (row, name, allowed, measured, shortened(why, _LONG))
    return outcome, tuple(cell or MISSING for cell in cells)


def _needed_samples(check: Check) -> str:
    """Return the samples or seeds that would settle a rule; empty for a settled one."""
    if check.outcome is not Outcome.INCONCLUSIVE:
        return ""
    more = check.worst.more if check.worst else None
    return check.needs or (more.text if more else "")
