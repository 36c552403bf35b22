"""The check of a filter in words: the verdict first, then what was looked at, then what to do."""

import textwrap
from collections.abc import Iterator

from fedaudit.filters.claim import Check, FilterAudit, Result, Verdict

WIDTH = 80
MOST_LINES = 40
_MARKS = {Result.PASSED: "✓", Result.FAILED: "✗", Result.NOTED: "!", Result.UNTESTED: "?"}
_SAID = {
    Verdict.SOUND: "does what is declared, as far as was looked",
    Verdict.BROKEN: "does not do what is declared",
    Verdict.UNCHECKED: "could not be checked",
}
_COLUMNS = (29, 29, 16)


def told(audit: FilterAudit, width: int = WIDTH) -> list[str]:
    """The verdict, a table of checks and what to do, in lines of a terminal.

    Args:
        audit: What was found.
        width: Of the terminal, in columns.
    """
    verdict = audit.verdict
    first = f"{verdict.upper()}: {audit.filter} {_SAID[verdict]}."
    lines = textwrap.wrap(first, width, subsequent_indent="  ")
    graver = audit.of(Result.FAILED) or audit.of(Result.UNTESTED)
    for check in graver[:3]:
        lines += _wrapped("  ", f"{check.why[:1].upper()}{check.why[1:]}.", width)
    lines += ["", *_table(audit.checks, width)]
    advice = list(dict.fromkeys(check.advice for check in graver if check.advice))
    claim = audit.claim
    declared = (
        f"Declared: sensitivity {claim.sensitivity:g} ({claim.adjacency}), sigma {claim.sigma:g}"
        + (f", {claim.noise} noise." if claim.sigma else ", so no noise here.")
    )
    tail = _wrapped("", declared, width) + _wrapped("", f"Tried on {audit.effort}.", width)
    said = [f"To do: {one}" for one in advice]
    said += [f"Note: {check.why}. {check.advice}".strip() for check in audit.of(Result.NOTED)]
    if said:
        lines += ["", *_as_many(said, MOST_LINES - len(lines) - len(tail) - 2, width)]
    return [*lines, "", *tail]


def _as_many(said: list[str], most: int, width: int) -> Iterator[str]:
    """Paragraphs as far as they fit; the others are counted."""
    for at, one in enumerate(said):
        wrapped = _wrapped("", one, width)
        rest = len(said) - at - 1
        if len(wrapped) + bool(rest) > most:
            yield f"and {rest + 1} more, in the checks of what fedaudit.check_dp returns"
            return
        most -= len(wrapped)
        yield from wrapped


def _table(checks: tuple[Check, ...], width: int) -> Iterator[str]:
    name, measured, declared = (size * max(width, 60) // WIDTH for size in _COLUMNS)
    yield f"  {'check':{name}} {'measured':{measured}} {'declared':{declared}}".rstrip()
    for check in checks:
        yield (
            f"{_MARKS[check.result]} {_cut(check.name, name):{name}} "
            f"{_cut(check.measured, measured):{measured}} {_cut(check.declared, declared)}"
        ).rstrip()


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def _wrapped(indent: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ")
