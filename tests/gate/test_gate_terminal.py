"""Terminal output of the gate."""

import re
from io import StringIO

import pytest
from rich.console import Console

from fedaudit.gate.outcome import Outcome
from fedaudit.gate.outputs import MAX_LINES, print_verdict
from fedaudit.gate.verdict import Verdict, requirement_check
from fedaudit.report.terminal import WIDTH
from tests.gate.parts import auc, record_of, verdict

FINE = verdict(record_of(auc(0.48, 0.52)))


def printed(verdict: Verdict, width: int = WIDTH) -> list[str]:
    stream = StringIO()
    print_verdict(verdict, Console(file=stream, width=width))
    return stream.getvalue().splitlines()


def test_a_short_verdict_is_printed_whole() -> None:
    lines = printed(FINE)
    assert lines[0].startswith("PASS: “of-tests” under the policy “tests”.")
    assert any("AUC against unseen samples" in line and "0.500" in line for line in lines)
    assert " ".join(FINE.limits.split()) in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [WIDTH, 70, 40])
@pytest.mark.parametrize("many", [1, 20, 30, 400])
def test_the_printed_verdict_is_short_and_counts_omitted_lines(many: int, width: int) -> None:
    failed = [
        requirement_check("evidence", f"demand {n} {'x' * 90}", ["missing"], Outcome.FAIL)
        for n in range(many)
    ]
    long_verdict = FINE.model_copy(
        update={"checks": [*FINE.checks, *failed], "reason": "FAIL: because. " + "why " * many}
    )
    lines = printed(long_verdict, width)
    assert len(lines) <= MAX_LINES * WIDTH // width
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("FAIL: because.")
    rows = [line for line in lines if re.match(r"(fail|pass|inconclusive)[ :]", line)]
    assert rows[0].startswith("fail")
    n_omitted = len(long_verdict.checks) - len(rows)
    assert (f"and {n_omitted} more check" in " ".join(lines)) == (n_omitted > 0)


@pytest.mark.parametrize(
    "name", ["AUC against unseen samples", "A check " + "with a long name " * 6]
)
@pytest.mark.parametrize("high", [0.52, 0.6449])
def test_the_deciding_limit_of_a_row_is_never_cut(name: str, high: float) -> None:
    long_verdict = verdict(record_of(auc(0.4812, high, value=0.5)))
    checks = [
        check.model_copy(update={"name": name}) for check in long_verdict.checks if check.worst
    ]
    lines = printed(long_verdict.model_copy(update={"checks": checks}))
    assert any(line.endswith(f"0.500 (0.481–{high:.3f})") for line in lines)
    assert max(map(len, lines)) <= WIDTH
