"""Verdict of the gate, and the comparison of estimates with ceilings."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from fedaudit.core.display import describe, repr_html
from fedaudit.gate.outcome import (
    Outcome,
    compare_bound,
    compare_limits,
    confidence_level,
    severity,
    worst_outcome,
)
from fedaudit.gate.sample_size import MAX_FACTOR, RequiredSamples, format_more
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.fields import Count, RecordPart

VERDICT_FORMAT = "fedaudit-verdict"
RULES = 2
"""Version of the gate's rules. Verdicts with different versions are not comparable."""

Section = Literal["membership", "sources", "clusters", "games", "baseline", "controls", "evidence"]

EXACT = "Clopper-Pearson 95%"
"""Method of the limits of estimates for which a record states no method."""
_TOLERANCE = 1e-9


_ABOVE = "above the ceiling, but"
_AROUND = "on both sides of the ceiling, and"


class FigureCheck(Interval):
    """Comparison of an estimate with its ceiling.

    Attributes:
        what: Name of the estimate, such as "Loss (blackbox-loss) on client 0 in seed 1".
        value: Value of the estimate; None if the record has no value or no such estimate.
        outcome: Outcome of the comparison.
        reason: Reason for the outcome; empty if limits and ceiling are sufficient to explain it.
        more: Additional samples or seeds that would decide the comparison; None if it is decided.
    """

    what: str
    value: float | None
    outcome: Outcome
    reason: str = ""
    more: RequiredSamples | None = None


class Check(RecordPart):
    """Check of one rule of a policy: a ceiling, or a requirement on the evidence.

    Attributes:
        section: Section of the policy.
        name: Name of the rule, such as "AUC against unseen samples".
        metric: Metric of the estimates; empty for a requirement.
        ceiling: Largest allowed value; None for a requirement.
        outcome: Worst outcome of the estimates.
        reason: Reason for the outcome.
        figures: Number of estimates that are compared with the ceiling.
        outcomes: Number of estimates by outcome.
        worst: The estimate with the worst outcome; if there are several, the one with the largest
            upper limit.
        needs: If several estimates are undecided, the additional samples or seeds that would decide
            all of them.
        open: All estimates that do not pass, the worst first.
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


class Verdict(RecordPart):
    """Verdict of a policy on a record.

    Attributes:
        rules: Version of the gate's rules.
        record: Name of the record.
        kind: "study" or "games".
        content_hash: Content hash of the record.
        model: SHA-256 of the only model after the last round, or of its adapter; empty if the
            record identifies no model, or several.
        models: SHA-256 of each model after the last round by seed and name, if there are several.
        base_model: SHA-256 of the base model of an adapter; empty if there is none.
        baseline: Content hash of the record of the last release; empty if none was compared.
        baseline_record: Name of that record; empty if none was compared.
        baseline_outcome: Outcome of the comparison with that record; None if none was compared.
        policy: Name of the policy.
        policy_hash: SHA-256 of the policy's settings.
        policy_owner: Person or office that set the policy, as the policy states; empty if not
            stated.
        policy_example: Command that writes an example policy of fedaudit with the same settings;
            empty if the settings are those of no example.
        outcome: Outcome of the gate: pass, fail or inconclusive.
        reason: Reason for the outcome, in one paragraph.
        limits: Statement about the confidence limits and their correction for multiple figures.
        checks: One check for each rule of the policy.
        unjudged: Results in the record that the policy does not judge, with the reason.
        inapplicable: Ceilings of the policy for records of another kind, with the reason.
    """

    format: Literal["fedaudit-verdict"] = "fedaudit-verdict"
    version: Literal[1] = 1
    rules: Count = RULES
    record: str
    kind: Literal["study", "games"]
    content_hash: str
    model: str = ""
    models: dict[str, str] = Field(default_factory=dict)
    base_model: str = ""
    baseline: str = ""
    baseline_record: str = ""
    baseline_outcome: Outcome | None = None
    policy: str
    policy_hash: str
    policy_owner: str = ""
    policy_example: str = ""
    outcome: Outcome
    reason: str
    limits: str
    checks: list[Check]
    unjudged: list[str] = Field(default_factory=list)
    inapplicable: list[str] = Field(default_factory=list)

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    def __str__(self) -> str:
        return repr(self)


MISSING_FIGURE = "the result file has no such figure"
"""Reason for an estimate that the audit did not compute."""


def requirement_check(
    section: Section, name: str, faults: Sequence[str], outcome_of_fault: Outcome
) -> Check:
    """Return the check of a requirement; it passes if ``faults`` is empty."""
    return Check(
        section=section,
        name=name,
        outcome=outcome_of_fault if faults else Outcome.PASS,
        reason="; ".join(faults) if faults else "requirement met",
    )


def ceiling_check(
    section: Section, name: str, metric: str, ceiling: float, results: Sequence[FigureCheck]
) -> Check:
    """Return the check of a ceiling; it is inconclusive if there is no estimate."""
    ranked = sorted(results, key=_rank, reverse=True)
    worst = ranked[0] if ranked else None
    return Check(
        section=section,
        name=name,
        metric=metric,
        ceiling=ceiling,
        outcome=worst_outcome(result.outcome for result in results),
        reason=(worst.reason or "") if worst else MISSING_FIGURE,
        figures=len(results),
        outcomes=dict(sorted(Counter(str(result.outcome) for result in results).items())),
        worst=worst,
        needs=_needs(results),
        open=[result for result in ranked if result.outcome is not Outcome.PASS],
    )


def overall_outcome(checks: Sequence[Check]) -> Outcome:
    """Return the outcome of the gate.

    The gate passes if all checks pass and at least one of them has a ceiling. Passed requirements
    and lower bounds that are not above a ceiling are not sufficient for a pass.
    """
    outcome = worst_outcome(check.outcome for check in checks)
    passes_ceiling = any(c.outcome is Outcome.PASS and c.ceiling is not None for c in checks)
    if outcome in (Outcome.PASS, Outcome.NOT_REFUTED):
        return Outcome.PASS if passes_ceiling else Outcome.INCONCLUSIVE
    return outcome


def _needs(results: Sequence[FigureCheck]) -> str:
    """Describe the samples or seeds that would decide all undecided estimates; empty if unknown."""
    # Estimates that a failed control invalidates are left out: more samples cannot decide them.
    undecided = [
        result
        for result in results
        if result.outcome is Outcome.INCONCLUSIVE and not is_doubted(result.reason)
    ]
    # More samples cannot decide an estimate that the audit does not compute.
    computed = [result for result in undecided if MISSING_FIGURE not in (result.reason or "")]
    if len(computed) < len(undecided):
        return "run the audit again with this figure in its settings ([figures])"
    required = [
        result.more for result in undecided if result.more is not None and result.more.count
    ]
    if len(undecided) < 2:
        return ""
    if len(required) < len(undecided):
        n_others = len(undecided) - len(required)
        return (
            f"even {MAX_FACTOR} times as many samples would not decide {n_others} of these figures"
        )
    most = max(required, key=lambda more: more.count)
    number = "both" if len(undecided) == 2 else f"all {len(undecided)}"
    return (
        f"{format_more(most.count, most.what)} would decide {number} of these figures, if their "
        "values stay the same"
    )


def _rank(result: FigureCheck) -> tuple[int, float]:
    """Return a sort key that is largest for the worst estimate."""
    numbers = [number for number in (result.high, result.value, result.low) if number is not None]
    # A missing estimate is worse than an estimate whose limits are too wide.
    return severity(result.outcome), numbers[0] if numbers else float("inf")


def is_doubted(reason: str) -> bool:
    """Return True if a reason states that an estimate is not reliable."""
    return reason.startswith((_ABOVE, _AROUND))


class ComparedFigure(NamedTuple):
    """Estimate to compare with a ceiling; it may be missing from the record.

    Attributes:
        name: Name of the estimate.
        estimate: The estimate; None if the record lacks it.
        missing: Reason why the estimate is missing or cannot be compared; empty otherwise.
        doubt: Reason why an estimate above the ceiling is not reliable; empty if it is reliable.
        more: Function that returns the additional samples or seeds that would decide the estimate.
            It is called only if the estimate is undecided.
    """

    name: str
    estimate: Estimate | None
    missing: str = ""
    doubt: str = ""
    more: Callable[[], RequiredSamples | None] = lambda: None


def compare_interval(compared: ComparedFigure, ceiling: float, confidence: float) -> FigureCheck:
    """Compare an estimate's limits with a ceiling; a missing estimate never passes."""
    figure = compared.estimate
    if figure is None or compared.missing:
        return _inconclusive(compared)
    outcome, reason, can_be_decided = _outcome(figure, ceiling, confidence, compared.doubt)
    more = compared.more() if can_be_decided else None
    result = _figure_check(compared, outcome, reason, low=figure.low, high=figure.high, more=more)
    return result if figure.value is not None else result.model_copy(update={"method": ""})


def compare_lower_bound(compared: ComparedFigure, ceiling: float, confidence: float) -> FigureCheck:
    """Compare a lower bound with a ceiling; the check can fail but never pass."""
    figure = compared.estimate
    if figure is None or figure.low is None:
        missing = compared.missing or (figure.note if figure else "")
        return _inconclusive(compared._replace(estimate=None, missing=missing))
    outcome, reason = compare_bound(figure.low, ceiling), figure.note
    if outcome is Outcome.FAIL and compared.doubt:
        outcome, reason = Outcome.INCONCLUSIVE, f"{_ABOVE} {compared.doubt}"
    elif figure.ceiling is not None and figure.ceiling <= ceiling:
        reason = (
            "with so few samples, even a perfect attack could not have shown more than "
            f"{figure.ceiling:.3f}"
        )
    return _figure_check(compared, outcome, reason, low=figure.low)


def compare_exact(compared: ComparedFigure, ceiling: float, confidence: float) -> FigureCheck:
    """Compare an exactly known estimate with a ceiling."""
    figure = compared.estimate
    if figure is None or figure.value is None:
        missing = compared.missing or (figure.note if figure else "") or "there is no guarantee"
        return _inconclusive(compared._replace(estimate=None, missing=missing))
    outcome = Outcome.PASS if figure.value <= ceiling else Outcome.FAIL
    return _figure_check(compared, outcome, figure.note, high=figure.value)


def compare_exact_or_fail(
    compared: ComparedFigure, ceiling: float, confidence: float
) -> FigureCheck:
    """Compare an exactly known estimate with a ceiling; an estimate without a value fails."""
    result = compare_exact(compared, ceiling, confidence)
    has_value = result.value is not None
    return result if has_value else result.model_copy(update={"outcome": Outcome.FAIL})


def _inconclusive(compared: ComparedFigure) -> FigureCheck:
    return _figure_check(compared, Outcome.INCONCLUSIVE, compared.missing)


def _figure_check(
    compared: ComparedFigure,
    outcome: Outcome,
    reason: str,
    *,
    low: float | None = None,
    high: float | None = None,
    more: RequiredSamples | None = None,
) -> FigureCheck:
    value = compared.estimate.value if compared.estimate else None
    method = compared.estimate.method if compared.estimate else ""
    return FigureCheck(
        what=compared.name,
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
    """Return the outcome, the reason, and whether more samples could decide the estimate."""
    if figure.value is None:
        # A missing value may be due to too few samples.
        reason = figure.note or "the result file has no value for this figure"
        return Outcome.INCONCLUSIVE, reason, True
    level = confidence_level(figure.method)
    is_confident = level is not None and level >= confidence - _TOLERANCE
    if figure.low is None and figure.high is None:
        explanation = figure.method or figure.note or "it was not computed"
        return Outcome.INCONCLUSIVE, f"no confidence interval: {explanation}", is_confident
    if not is_confident:
        stated = "state no level" if level is None else f"have a level of {level:.6g}"
        reason = f"its confidence limits {stated}, but the policy requires {confidence:g}"
        return Outcome.INCONCLUSIVE, reason, False
    outcome = compare_limits(figure.low, figure.high, ceiling)
    if outcome is Outcome.FAIL and doubt:
        return Outcome.INCONCLUSIVE, f"{_ABOVE} {doubt}", False
    # More samples cannot resolve a failed control, but they may resolve other doubts.
    if outcome is Outcome.INCONCLUSIVE and figure.doubt:
        return outcome, f"{_AROUND} {doubt}", False
    return outcome, "", outcome is Outcome.INCONCLUSIVE
