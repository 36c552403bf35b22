"""Verdict of a gate: figures compared with ceilings, and the checks of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from fedaudit.gate.outcome import (
    Outcome,
    compare_bound,
    compare_limits,
    gravity,
    level,
    worst_outcome,
)
from fedaudit.gate.sample_size import MOST_TIMES, RequiredSamples, more_of
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.fields import Count, Part

VERDICT_FORMAT = "fedaudit-verdict"
RULES = 2
"""Version of the rules of judging. Verdicts under different rules are not comparable."""

Section = Literal["membership", "sources", "clusters", "games", "controls", "evidence"]

EXACT = "Clopper-Pearson 95%"
"""Method of limits for which a record states no method."""
_SLACK = 1e-9


_ABOVE = "above the ceiling, but"
_AROUND = "on both sides of the ceiling, and"


class FigureCheck(Interval):
    """One figure compared with its ceiling.

    Attributes:
        what: Name of the figure: "fedmia-2 on client 0 in seed 1".
        value: The figure; None if it was refused or is absent.
        outcome: Outcome of the comparison.
        reason: The reason, if it does not follow from limits and ceiling.
        more: Samples or seeds that would settle the comparison; None if it is settled.
    """

    what: str
    value: float | None
    outcome: Outcome
    reason: str = ""
    more: RequiredSamples | None = None


class Check(Part):
    """One line of a policy: a ceiling and its figures, or a requirement on the evidence.

    Attributes:
        section: Section of the policy.
        name: Name of what is judged, such as "AUC against unseen samples".
        metric: Metric of the figures; empty for a requirement.
        ceiling: Largest value that is allowed; None for a requirement.
        outcome: Worst outcome of the figures.
        reason: Reason for the outcome.
        figures: Number of figures compared with the ceiling.
        outcomes: Number of figures by outcome.
        worst: The figure with the worst outcome, and of these the one with the largest upper limit.
        needs: Samples or seeds that would settle all figures, if several are not settled.
        open: Every figure that does not pass, the worst first.
    """

    section: Section
    name: str
    metric: str = ""
    ceiling: float | None = None
    outcome: Outcome
    reason: str
    figures: Count = 0
    outcomes: dict[str, Count] = Field(default_factory=dict)
    worst: FigureCheck | None = None
    needs: str = ""
    open: list[FigureCheck] = Field(default_factory=list)


class Verdict(Part):
    """Verdict of a policy on a record.

    Attributes:
        rules: Version of the rules of judging.
        record: Name of the record.
        kind: "study" or "games".
        content_hash: Content hash of the record.
        policy: Name of the policy.
        policy_hash: SHA-256 over all of its settings.
        outcome: Outcome of the gate: pass, fail or inconclusive.
        reason: The reason, in one paragraph.
        limits: Statement of the corrections that the confidence limits have and lack.
        checks: One check for each line of the policy.
        unjudged: Results in the record that the policy has no rule for.
    """

    format: Literal["fedaudit-verdict"] = "fedaudit-verdict"
    version: Literal[1] = 1
    rules: Count = RULES
    record: str
    kind: Literal["study", "games"]
    content_hash: str
    policy: str
    policy_hash: str
    outcome: Outcome
    reason: str
    limits: str
    checks: list[Check]
    unjudged: list[str] = Field(default_factory=list)


def demand(section: Section, name: str, faults: Sequence[str], otherwise: Outcome) -> Check:
    """Return a check without figures."""
    return Check(
        section=section,
        name=name,
        outcome=otherwise if faults else Outcome.PASS,
        reason="; ".join(faults) if faults else "as asked",
    )


def ceiling_check(
    section: Section, name: str, metric: str, ceiling: float, results: Sequence[FigureCheck]
) -> Check:
    """Return the check of a ceiling; inconclusive without any figure."""
    ranked = sorted(results, key=_rank, reverse=True)
    worst = ranked[0] if ranked else None
    return Check(
        section=section,
        name=name,
        metric=metric,
        ceiling=ceiling,
        outcome=worst_outcome(result.outcome for result in results),
        reason=(worst.reason or "") if worst else "the record has no such figure",
        figures=len(results),
        outcomes=dict(sorted(Counter(str(result.outcome) for result in results).items())),
        worst=worst,
        needs=_needs(results),
        open=[result for result in ranked if result.outcome is not Outcome.PASS],
    )


def concluded(checks: Sequence[Check]) -> Outcome:
    """Return the outcome of all checks: all must pass, at least one of them a ceiling.

    Met requirements and lower bounds alone do not make a pass.
    """
    outcome = worst_outcome(check.outcome for check in checks)
    has_kept = any(c.outcome is Outcome.PASS and c.ceiling is not None for c in checks)
    if outcome in (Outcome.PASS, Outcome.NOT_REFUTED):
        return Outcome.PASS if has_kept else Outcome.INCONCLUSIVE
    return outcome


def _needs(results: Sequence[FigureCheck]) -> str:
    """Return the evidence that would settle the hardest of several figures; empty if unknown."""
    # More samples never settle a figure that a failed control invalidates.
    unsettled = [
        result
        for result in results
        if result.outcome is Outcome.INCONCLUSIVE and not is_doubted(result.reason)
    ]
    wants = [result.more for result in unsettled if result.more is not None and result.more.count]
    if len(unsettled) < 2:
        return ""
    if len(wants) < len(unsettled):
        n_others = len(unsettled) - len(wants)
        return (
            f"{n_others} of these would not be settled even by {MOST_TIMES} times as many samples"
        )
    hardest = max(wants, key=lambda want: want.count)
    those = "both" if len(unsettled) == 2 else f"all {len(unsettled)}"
    return (
        f"{more_of(hardest.count, hardest.what)} would settle {those} of these if the figures stay "
        "as they are"
    )


def _rank(result: FigureCheck) -> tuple[int, float]:
    limits = [number for number in (result.high, result.value, result.low) if number is not None]
    # A missing figure is worse than one whose limits are too wide.
    return gravity(result.outcome), limits[0] if limits else float("inf")


def is_doubted(reason: str) -> bool:
    """Return True if a reason states that a figure is not reliable."""
    return reason.startswith((_ABOVE, _AROUND))


class Judged(NamedTuple):
    """Figure to compare with a ceiling; it may be missing from the record.

    Attributes:
        what: Name of the figure.
        figure: The figure; None if the record lacks it.
        why: Reason why the figure is missing or inconclusive, if any.
        doubt: Reason why a figure above the ceiling is not reliable, if any.
        more: Function that returns the samples or seeds that would settle the figure; called only
            if it is not settled.
    """

    what: str
    figure: Estimate | None
    why: str = ""
    doubt: str = ""
    more: Callable[[], RequiredSamples | None] = lambda: None


def by_interval(judged: Judged, ceiling: float, confidence: float) -> FigureCheck:
    """Compare a figure's limits with a ceiling; a missing one never passes."""
    figure = judged.figure
    if figure is None or judged.why:
        return _open(judged)
    outcome, reason, is_open = _outcome(figure, ceiling, confidence, judged.doubt)
    more = judged.more() if is_open else None
    result = _held(judged, outcome, reason, low=figure.low, high=figure.high, more=more)
    return result if figure.value is not None else result.model_copy(update={"method": ""})


def by_lower_bound(judged: Judged, ceiling: float, confidence: float) -> FigureCheck:
    """Compare a lower bound with a ceiling; it can fail, and never pass."""
    figure = judged.figure
    if figure is None or figure.low is None:
        why = judged.why or (figure.note if figure else "")
        return _open(judged._replace(figure=None, why=why))
    outcome, reason = compare_bound(figure.low, ceiling), figure.note
    if outcome is Outcome.FAIL and judged.doubt:
        outcome, reason = Outcome.INCONCLUSIVE, f"{_ABOVE} {judged.doubt}"
    elif figure.ceiling is not None and figure.ceiling <= ceiling:
        reason = f"even a perfect attack could not have shown more than {figure.ceiling:.3g}"
    return _held(judged, outcome, reason, low=figure.low)


def as_known(judged: Judged, ceiling: float, confidence: float) -> FigureCheck:
    """Compare an exact figure with a ceiling."""
    figure = judged.figure
    if figure is None or figure.value is None:
        why = judged.why or (figure.note if figure else "") or "there is no guarantee"
        return _open(judged._replace(figure=None, why=why))
    outcome = Outcome.PASS if figure.value <= ceiling else Outcome.FAIL
    return _held(judged, outcome, figure.note, high=figure.value)


def as_known_or_failed(judged: Judged, ceiling: float, confidence: float) -> FigureCheck:
    """Compare an exact figure with a ceiling; one without a bound fails."""
    result = as_known(judged, ceiling, confidence)
    is_bounded = result.value is not None
    return result if is_bounded else result.model_copy(update={"outcome": Outcome.FAIL})


def _open(judged: Judged) -> FigureCheck:
    return _held(judged, Outcome.INCONCLUSIVE, judged.why)


def _held(
    judged: Judged,
    outcome: Outcome,
    reason: str,
    *,
    low: float | None = None,
    high: float | None = None,
    more: RequiredSamples | None = None,
) -> FigureCheck:
    value = judged.figure.value if judged.figure else None
    method = judged.figure.method if judged.figure else ""
    return FigureCheck(
        what=judged.what,
        value=value,
        low=low,
        high=high,
        method=method,
        outcome=outcome,
        reason=reason,
        more=more,
    )


def _outcome(
    figure: Estimate, ceiling: float, confidence: float, doubt: str
) -> tuple[Outcome, str, bool]:
    """Return outcome and reason, and whether more samples could settle the figure."""
    if figure.value is None:
        # The sample may be too small.
        return Outcome.INCONCLUSIVE, figure.note or "the record refuses this figure", True
    stated = level(figure.method)
    is_sure = stated is not None and stated >= confidence - _SLACK
    if figure.low is None and figure.high is None:
        why = figure.method or figure.note or "none was computed"
        return Outcome.INCONCLUSIVE, f"no interval: {why}", is_sure
    if not is_sure:
        stating = "no confidence" if stated is None else f"{stated:.6g}"
        reason = f"its limits state {stating}, and the policy requires {confidence:g}"
        return Outcome.INCONCLUSIVE, reason, False
    outcome = compare_limits(figure.low, figure.high, ceiling)
    if outcome is Outcome.FAIL and doubt:
        return Outcome.INCONCLUSIVE, f"{_ABOVE} {doubt}", False
    # More samples may resolve other doubts, but not that of a failed control.
    if outcome is Outcome.INCONCLUSIVE and figure.doubt:
        return outcome, f"{_AROUND} {doubt}", False
    return outcome, "", outcome is Outcome.INCONCLUSIVE
