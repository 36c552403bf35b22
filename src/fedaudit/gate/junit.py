"""A verdict as JUnit XML, which CI systems show beside the tests."""

import re
from xml.sax.saxutils import escape, quoteattr

from fedaudit.gate.outcome import Outcome
from fedaudit.gate.reasons import figure_text
from fedaudit.gate.verdict import Check, Held, Verdict
from fedaudit.report.words import capital, shown
from fedaudit.results.text import one_line, without_commands

MOST_TOLD = 50
"""Figures that a test case lists; the verdict has all of them."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(verdict: Verdict) -> str:
    """The verdict as one test suite with a test case for each check.

    A failed check is a failure. An inconclusive one is an error: it was not decided, and must not
    look like a pass. A lower bound that refutes nothing is skipped, as it can pass nothing.

    Args:
        verdict: Of a policy on a record; its texts may be anybody's.
    """
    outcomes = [check.outcome for check in verdict.checks]
    counts = {
        "tests": len(outcomes),
        "failures": outcomes.count(Outcome.FAIL),
        "errors": outcomes.count(Outcome.INCONCLUSIVE),
        "skipped": outcomes.count(Outcome.NOT_REFUTED),
    }
    # A gate that is held back by no check alone, such as lower bounds only, is not green either.
    lone = verdict.outcome is Outcome.INCONCLUSIVE and not counts["errors"]
    if lone:
        counts |= {"tests": counts["tests"] + 1, "errors": 1}
    numbers = " ".join(f'{name}="{number}"' for name, number in counts.items())
    name = f"fedaudit gate: {verdict.policy}"
    cases = [_case(check, verdict) for check in verdict.checks]
    if lone:
        cases.append(_whole(verdict))
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
            f'<testsuite name={_quoted(name)} {numbers} time="0">',
            "<properties>",
            *(f"<property name={_quoted(k)} value={_quoted(v)}/>" for k, v in properties.items()),
            "</properties>",
            *cases,
            f"<system-out>{_text(one_line(f'{verdict.reason} {verdict.limits}'))}</system-out>",
            "</testsuite>",
            "</testsuites>",
            "",
        ]
    )


def _case(check: Check, verdict: Verdict) -> str:
    most = "" if check.ceiling is None else f" at most {shown(check.ceiling, check.metric)}"
    opening = f"<testcase classname={_quoted(_class(check, verdict))} "
    opening += f'name={_quoted(capital(check.name) + most)} time="0"'
    if check.outcome is Outcome.PASS:
        return f"{opening}/>"
    told = [_line(one, check) for one in check.open[:MOST_TOLD]]
    more = len(check.open) - MOST_TOLD
    body = "\n".join([*told, f"and {more:,} more"] if more > 0 else told) or one_line(check.reason)
    message = f"{check.name}: {body.splitlines()[0]}"
    if check.outcome is Outcome.NOT_REFUTED:
        return f"{opening}><skipped message={_quoted(message)}/></testcase>"
    kind = "failure" if check.outcome is Outcome.FAIL else "error"
    return (
        f"{opening}><{kind} type={_quoted(str(check.outcome))} message={_quoted(message)}>"
        f"{_text(body)}</{kind}></testcase>"
    )


def _whole(verdict: Verdict) -> str:
    return (
        f'<testcase classname="fedaudit.gate" name="Something passes" time="0">'
        f'<error type="inconclusive" message={_quoted(verdict.reason)}/></testcase>'
    )


def _class(check: Check, verdict: Verdict) -> str:
    return f"fedaudit.gate.{check.section}.{verdict.record}"


def _line(one: Held, check: Check) -> str:
    parts = [f"{one.what}: {figure_text(one, check.metric)}, {one.outcome}", one.reason]
    parts += [one.more.text] if one.more else []
    return one_line("; ".join(part for part in parts if part))


def _text(text: str) -> str:
    """The text as lines of XML; a log shows them as they are, where somebody prints the file."""
    return escape(_FORBIDDEN.sub("\ufffd", without_commands(text)))


def _quoted(text: str) -> str:
    return quoteattr(_FORBIDDEN.sub("\ufffd", without_commands(one_line(text))))
