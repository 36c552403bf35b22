"""Output of a verdict on the terminal, as JSON, as JUnit XML and in summaries."""

import hashlib
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
from fedaudit.core.files import MAX_USER_FILE_BYTES, open_regular, read_text, write_atomically
from fedaudit.formatting.fixed import fixed_texts
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import (
    MISSING,
    capitalise,
    format_count,
    format_value,
    join_and,
    with_full_stop,
)
from fedaudit.gate.evaluate import evaluate_policy, figure_text
from fedaudit.gate.outcome import Outcome, severity
from fedaudit.gate.policy import Policy, read_policy
from fedaudit.gate.verdict import VERDICT_FORMAT, Check, FigureCheck, Verdict, is_doubted
from fedaudit.report.evidence import unique_items
from fedaudit.report.terminal import WIDTH, width_of
from fedaudit.report.text.verdict import summarise_verdict as conclusion
from fedaudit.results.record import Record
from fedaudit.results.text import one_line, without_commands
from fedaudit.study.running.outputs import raise_if_missing_folder
from fedaudit.summary.page import MAX_LISTED, POLICY_TITLE, WITHDRAWN, SummarySection, SummaryTable

_XML = b'<testsuites name="fedaudit"'
_JSON = f'"format":"{VERDICT_FORMAT}"'.encode()
MAX_LINES = 40
"""Maximum number of printed lines of 80 columns; verdict files are always complete."""
_MIN_ROWS = 4
_FIGURE_WIDTH, _MAX_FIGURE_WIDTH = 21, 34
"""Width of the column of an estimate with its limits, such as "0.582 (0.516–0.645)"."""
_COMPLETE = "write the complete verdict with --json or --junit"


def verdict_json(verdict: Verdict) -> str:
    """Return the verdict as one line of JSON."""
    return verdict.model_dump_json() + "\n"


def raise_if_overwriting(
    target: Path,
    inputs: Sequence[Path],
    *,
    what: str = "verdict",
    marks: Sequence[bytes] = (_XML, _JSON),
) -> None:
    """Raise if an output file would replace an input of the command, or a file of another kind.

    Args:
        target: File to be written.
        inputs: Files that the command reads.
        what: Kind of the output, for the message.
        marks: Byte strings; a file of this kind has one of them near its start.
    """
    raise_if_missing_folder(target)
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
        write_atomically(junit, junit_xml(verdict))
    if json is not None:
        write_atomically(json, verdict_json(verdict))


def print_verdict(verdict: Verdict, console: Console | None = None) -> None:
    """Print the reason, a row for each check, and the results that are not judged."""
    console = console or Console()
    head, body = _lines(verdict, width_of(console))
    for line in head:
        console.print(Text(one_line(line), style="bold"), soft_wrap=True)
    for line in body:
        console.print(Text(one_line(line)), soft_wrap=True)


def _lines(verdict: Verdict, width: int) -> tuple[list[str], list[str]]:
    """Return the lines of the conclusion and of the table, shortened to the size of the screen."""
    max_lines = MAX_LINES * WIDTH // width
    head = textwrap.wrap(verdict.reason, width, subsequent_indent="  ")
    if len(head) > max_lines * 2 // 5:
        head = [*head[: max_lines * 2 // 5 - 1], *textwrap.wrap(f"... ({_COMPLETE})", width)]
    unjudged = [f"Not judged: {text}." for text in verdict.unjudged]
    unjudged_lines = [
        line for text in unjudged for line in textwrap.wrap(text, width, subsequent_indent="  ")
    ]
    ranked = sorted(verdict.checks, key=lambda check: severity(check.outcome), reverse=True)
    rows = [_check_lines(check, width) for check in ranked]
    max_row_lines = max_lines - len(head) - len(unjudged_lines) - 3
    n_shown = len(rows)
    if sum(map(len, rows)) > max_row_lines:
        lengths = accumulate(map(len, rows))
        n_shown = max(sum(length < max_row_lines for length in lengths), _MIN_ROWS)
    lines = _row("Outcome", "Check", "At most", "Worst figure") if width >= WIDTH else []
    lines += [line for row in rows[:n_shown] for line in row]
    if n_shown < len(rows):
        remark = f"and {format_count(len(rows) - n_shown, 'more check')}; {_COMPLETE}"
        lines += textwrap.wrap(remark, width, subsequent_indent="  ")
    limits = textwrap.wrap(verdict.limits, width)
    n_free = max_lines - len(head) - len(lines) - len(unjudged_lines) - 2
    return head, ["", *lines, *unjudged_lines, *(["", *limits] if len(limits) <= n_free else [])]


def _check_lines(check: Check, width: int) -> list[str]:
    outcome, name = str(check.outcome), capitalise(check.name)
    if check.ceiling is None:
        ceiling, figure = "", check.reason
    else:
        ceiling = format_value(check.ceiling, check.metric)
        figure = figure_text(check.worst, check.metric) if check.worst else check.reason
    if width < WIDTH:
        comparison = f"at most {ceiling}: {figure}" if ceiling else figure
        return [
            *textwrap.wrap(f"{outcome}: {name}", width, subsequent_indent="  "),
            shorten(f"  {comparison}", width),
        ]
    return _row(outcome, name, ceiling, figure) if ceiling else _row(outcome, f"{name}: {figure}")


def _row(outcome: str, name: str, ceiling: str = "", figure: str = "") -> list[str]:
    if not ceiling:
        return [f"{outcome:<13}{shorten(name, WIDTH - 13)}".rstrip()]
    # Shorten the name and not the estimate, since the estimate ends with the deciding limit. The
    # columns of outcome and ceiling have widths of 13 and 7.
    name_width = WIDTH - 13 - 7 - 2 - max(_FIGURE_WIDTH, min(len(figure), _MAX_FIGURE_WIDTH))
    lines = textwrap.wrap(shorten(name, 2 * name_width - 4), name_width - 1) or [""]
    first_columns = f"{outcome:<13}{lines[0]:<{name_width}}{ceiling:>7}"
    first_line = f"{first_columns}  {shorten(figure, WIDTH - name_width - 22)}"
    return [first_line, *(f"{'':<13}{line}" for line in lines[1:])]


MAX_CASE_LINES = 50
"""Maximum number of estimates in a JUnit test case; the verdict lists all."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(verdict: Verdict) -> str:
    """Return the verdict as one test suite with a test case for each check.

    A failed check becomes a failure. An inconclusive check becomes an error, since it must not look
    like a pass. Skipped tests are lower bounds that are not above their ceiling, results that are
    not judged, and ceilings for records of another kind.
    """
    outcomes = [check.outcome for check in verdict.checks]
    skipped = [*verdict.unjudged, *verdict.inapplicable]
    counts = {
        "tests": len(outcomes) + len(skipped),
        "failures": outcomes.count(Outcome.FAIL),
        "errors": outcomes.count(Outcome.INCONCLUSIVE),
        "skipped": outcomes.count(Outcome.NOT_REFUTED) + len(skipped),
    }
    # The gate is also inconclusive if no estimate passes a ceiling, even if no check is
    # inconclusive. In this case, an additional test case reports the outcome.
    needs_extra_case = verdict.outcome is Outcome.INCONCLUSIVE and not counts["errors"]
    if needs_extra_case:
        counts |= {"tests": counts["tests"] + 1, "errors": 1}
    numbers = " ".join(f'{name}="{number}"' for name, number in counts.items())
    name = f"fedaudit gate: {verdict.policy}"
    cases = [_case(check, verdict) for check in verdict.checks]
    cases += [_skipped_case(text, verdict) for text in skipped]
    if needs_extra_case:
        cases.append(_inconclusive_case(verdict))
    properties = {
        "record": verdict.record,
        "content_hash": verdict.content_hash,
        "policy": verdict.policy,
        "policy_hash": verdict.policy_hash,
        "policy_owner": verdict.policy_owner,
        "policy_example": verdict.policy_example,
        "baseline": verdict.baseline,
        "baseline_outcome": str(verdict.baseline_outcome or ""),
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
    opening += f'name={_quote(capitalise(check.name) + limit)} time="0"'
    if check.outcome is Outcome.PASS:
        return f"{opening}/>"
    lines = [_line(figure, check) for figure in check.open[:MAX_CASE_LINES]]
    n_more = len(check.open) - MAX_CASE_LINES
    body = "\n".join([*lines, f"and {n_more:,} more"] if n_more > 0 else lines) or one_line(
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


def _skipped_case(text: str, verdict: Verdict) -> str:
    """Return the case of a result that is not judged.

    The reason comes after the last colon, or in parentheses at the end.
    """
    in_parentheses = re.fullmatch(r"([^:]{1,200}) \((.*)\)", text)
    if in_parentheses:
        subject, reason = in_parentheses.groups()
    else:
        subject, _, reason = text.rpartition(": ")
    classname = _quote(f"fedaudit.gate.not judged.{verdict.record}")
    return (
        f'<testcase classname={classname} name={_quote(capitalise(subject or reason))} time="0">'
        f"<skipped message={_quote(f'not judged: {reason}')}/></testcase>"
    )


def _inconclusive_case(verdict: Verdict) -> str:
    return (
        f'<testcase classname="fedaudit.gate" name="A figure passes its ceiling" time="0">'
        f'<error type="inconclusive" message={_quote(verdict.reason)}/></testcase>'
    )


def _line(figure: FigureCheck, check: Check) -> str:
    parts = [f"{figure.what}: {figure_text(figure, check.metric)}, {figure.outcome}", figure.reason]
    parts += [figure.more.text] if figure.more else []
    return one_line("; ".join(part for part in parts if part))


def _text(text: str) -> str:
    """Escape a text of several lines for XML, and remove commands that a CI system would run."""
    return escape(_FORBIDDEN.sub("\ufffd", without_commands(text)))


def _quote(text: str) -> str:
    return quoteattr(_FORBIDDEN.sub("\ufffd", without_commands(one_line(text))))


_TEXTS = fixed_texts("policy")
_MAX_TEXT = 240
_HEAD = ("Outcome", "Rule", "At most", "Measured (interval)", "Which figure, and why")


def evaluated_policy_section(
    record: Record, policy_file: Path, baseline: Record | None = None
) -> SummarySection:
    """Evaluate a policy on a record, and return the outcome as a section of a summary."""
    policy = read_policy(policy_file)
    verdict = evaluate_policy(record, policy, baseline)
    return policy_section(record, verdict, policy, policy_file)


def policy_section(
    record: Record, verdict: Verdict, policy: Policy, file: Path, content: str | None = None
) -> SummarySection:
    """Return the outcome of a policy as a section of a summary, with the worst outcome first.

    Args:
        record: The record.
        verdict: Verdict of the policy on the record.
        policy: The policy.
        file: File of the policy, which is read unless ``content`` is given.
        content: Text of the file.
    """
    if content is None:
        content = read_text(file, max_bytes=MAX_USER_FILE_BYTES)
    sha256 = hashlib.sha256(content.encode("utf-8")).hexdigest()
    is_withdrawn = record.kind != "games" and conclusion(record).status in WITHDRAWN
    ranked = sorted(verdict.checks, key=lambda check: severity(check.outcome), reverse=True)
    met = [check for check in ranked if check.ceiling is None and check.outcome is Outcome.PASS]
    rules = [_rule(check, is_withdrawn=is_withdrawn) for check in ranked if check not in met]
    # The numbers of outcomes are those of the verdict's file.
    counts = Counter(str(check.outcome) for check in verdict.checks)
    labels = Counter(label for label, _ in rules)
    count_texts = [
        f"{counts[key]} {text['count']}" for key, text in _TEXTS["rules"].items() if counts[key]
    ]
    count_texts += [
        text.format(count=labels[key], total=len(verdict.checks))
        for key, text in _TEXTS["of_these"].items()
        if labels[key]
    ]
    texts, n_more = _TEXTS["outcomes"][str(verdict.outcome)], len(rules) - MAX_LISTED
    others = (
        f"And {format_count(n_more, 'more rule')}, listed in the verdict." if n_more > 0 else ""
    )
    also_met = f"Also met: {'; '.join(_joined_controls(met))}." if met else ""
    remark = f"{shorten(also_met, 600)} {_TEXTS['differs']}".strip()
    return SummarySection(
        POLICY_TITLE,
        badge=texts["badge"],
        tone=texts["tone"],
        lead=f"By the policy “{shorten(verdict.policy, 80)}” {texts['meaning']}.",
        paragraphs=(f"Of {format_count(counts.total(), 'rule')}: {'; '.join(count_texts)}.",),
        facts=(
            ("Policy set by", shorten(policy.owner, 80) or _TEXTS["no_owner"]),
            ("Origin of its settings", _origin(verdict)),
            ("File of the policy", f"{shorten(file.name, 80)} (SHA-256 {sha256})"),
            ("Digest of its settings", f"{verdict.policy_hash} ({_TEXTS['settings']})"),
            *_last_release(verdict),
        ),
        table=SummaryTable(_HEAD, tuple(cells for _, cells in rules[:MAX_LISTED])),
        items=tuple(
            f"Not judged: {with_full_stop(shorten(text, _MAX_TEXT))}"
            for text in _by_reason(verdict.unjudged)[:6]
        ),
        remarks=tuple(filter(None, (others, remark))),
    )


def _last_release(verdict: Verdict) -> list[tuple[str, str]]:
    if verdict.baseline_outcome is None:
        return []
    name, digest = shorten(verdict.baseline_record, 80), shorten(verdict.baseline, 80)
    outcome = verdict.baseline_outcome.upper()
    return [("Last release", f"{name} (digest {digest}): {outcome}")]


def _origin(verdict: Verdict) -> str:
    kind = "example" if verdict.policy_example else "own"
    text: str = _TEXTS["origin"][kind]
    return text.format(command=verdict.policy_example)


def _joined_controls(checks: Sequence[Check]) -> list[str]:
    """Return the names of checks, with the names of controls joined into one text."""
    names = [shorten(check.name, 80) for check in checks]
    controls = [name.removeprefix("control: ") for name in names if name.startswith("control: ")]
    others = [name for name in names if not name.startswith("control: ")]
    return [f"controls {join_and(controls)}"] * bool(controls) + others


def _by_reason(texts: Sequence[str]) -> list[str]:
    """Join texts with the same reason, which is the part after the last colon."""
    subjects: dict[str, list[str]] = {}
    for text in texts:
        subject, _, reason = text.rpartition(": ")
        subjects.setdefault(reason if subject else "", []).append(subject or reason)
    joined = [f"{join_and(names)}: {reason}" for reason, names in subjects.items() if reason]
    return [*joined, *subjects.get("", ())]


def _rule(check: Check, *, is_withdrawn: bool) -> tuple[str, tuple[str, ...]]:
    """Return the outcome of a rule, and its row of the table."""
    worst, outcome, allowed, measured = check.worst, str(check.outcome), "", ""
    is_open = check.outcome is Outcome.INCONCLUSIVE
    explanation = check.reason
    if check.ceiling is not None:
        allowed = format_value(check.ceiling, check.metric)
        if worst is None or (is_open and all(figure.value is None for figure in check.open)):
            outcome = "not judged"
            required = f"{format_count(check.figures, 'figure')} missing: " * bool(check.figures)
            explanation = required + (
                join_and(unique_items(figure.reason for figure in check.open)) or check.reason
            )
        elif is_withdrawn:
            outcome, explanation = "withdrawn", _TEXTS["withdrawn"]
        else:
            measured = (
                "not relied on" if is_doubted(worst.reason) else figure_text(worst, check.metric)
            )
            number = check.outcomes.get(outcome, 0)
            counts = f"{number} of {check.figures} figures {_TEXTS['rules'][outcome]['figures']}"
            parts = (worst.what, counts * (check.figures > 1), worst.reason, _needed_samples(check))
            explanation = "; ".join(filter(None, parts))
    name = shorten(capitalise(check.name), 120)
    outcome_text = _TEXTS["rules"].get(outcome, {}).get("row") or f"– {outcome} ({check.outcome})"
    cells = (outcome_text, name, allowed, measured, shorten(explanation, _MAX_TEXT))
    return outcome, tuple(cell or MISSING for cell in cells)


def _needed_samples(check: Check) -> str:
    """Return the samples or seeds that would decide a rule; empty if it is decided."""
    if check.outcome is not Outcome.INCONCLUSIVE:
        return ""
    more = check.worst.more if check.worst else None
    return check.needs or (more.text if more else "")
