"""The verdict of a gate: figures held against ceilings, and the checks of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from fedaudit.gate.outcome import Outcome, against, bound_against, gravest, gravity, level
from fedaudit.gate.sample_size import MOST_TIMES, RequiredSamples, more_of
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.fields import Part, Whole

VERDICT_FORMAT = "fedaudit-verdict"
RULES = 2
"""Of how a record is judged; a verdict under other rules is not comparable."""

Section = Literal["membership", "sources", "clusters", "games", "controls", "evidence"]

EXACT = "Clopper-Pearson 95%"
"""How limits were made that a record states no method of."""
_SLACK = 1e-9


_DOUBTED = "above the ceiling, but"


class Held(Interval):
    """One figure held against its ceiling.

    Attributes:
        what: Which one, in words: "fedmia-2 on client 0 in seed 1".
        value: The figure; None where it was refused or is absent.
        outcome: What comes of it.
        reason: Why, where that does not follow from limits and ceiling.
        more: What would settle it; None where it is settled.
    """

    what: str
    value: float | None
    outcome: Outcome
    reason: str = ""
    more: RequiredSamples | None = None


class Check(Part):
    """One line of a policy: a ceiling and all figures under it, or a demand on the evidence.

    Attributes:
        section: Of the policy.
        name: What is judged: "AUC against unseen samples".
        metric: What kind of figure; empty for a demand.
        ceiling: None for a demand.
        outcome: The gravest of the figures'.
        reason: In words.
        figures: How many were held against the ceiling.
        outcomes: How many of each outcome.
        worst: The gravest figure, and of these that with the largest upper limit.
        needs: What would settle all of its figures, where several are not settled.
        open: Every figure that does not pass, the gravest first.
    """

    section: Section
    name: str
    metric: str = ""
    ceiling: float | None = None
    outcome: Outcome
    reason: str
    figures: Whole = 0
    outcomes: dict[str, Whole] = Field(default_factory=dict)
    worst: Held | None = None
    needs: str = ""
    open: list[Held] = Field(default_factory=list)


class Verdict(Part):
    """The answer of a policy for a record.

    Attributes:
        rules: Of this version's judging.
        record: Name of the record.
        kind: "study" or "games".
        content_hash: That of the record.
        policy: Name of the policy.
        policy_hash: SHA-256 over all of its settings.
        outcome: Of the gate: pass, fail or inconclusive.
        reason: One paragraph in plain words.
        limits: What the limits are corrected for, and what not.
        checks: One for each line of the policy.
        unjudged: What the record has and the policy does not ask about.
    """

    format: Literal["fedaudit-verdict"] = "fedaudit-verdict"
    version: Literal[1] = 1
    rules: Whole = RULES
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
    """A check that no figure is needed for.

    Args:
        section: Of the policy.
        name: What is asked.
        faults: What is wrong, in words; none passes.
        otherwise: What a fault makes of it.
    """
    return Check(
        section=section,
        name=name,
        outcome=otherwise if faults else Outcome.PASS,
        reason="; ".join(faults) if faults else "as asked",
    )


def ceiling_check(
    section: Section, name: str, metric: str, ceiling: float, held: Sequence[Held]
) -> Check:
    """A ceiling and the figures under it; without any figure nothing is concluded.

    Args:
        section: Of the policy.
        name: What is judged, in words.
        metric: What kind of figure.
        ceiling: The most that is allowed.
        held: Figures held against it.
    """
    ranked = sorted(held, key=_rank, reverse=True)
    worst = ranked[0] if ranked else None
    return Check(
        section=section,
        name=name,
        metric=metric,
        ceiling=ceiling,
        outcome=gravest(one.outcome for one in held),
        reason=(worst.reason or "") if worst else "the record has no such figure",
        figures=len(held),
        outcomes=dict(sorted(Counter(str(one.outcome) for one in held).items())),
        worst=worst,
        needs=_needs(held),
        open=[one for one in ranked if one.outcome is not Outcome.PASS],
    )


def concluded(checks: Sequence[Check]) -> Outcome:
    """The outcome of all checks: everything must pass, and a ceiling must have been kept.

    Demands on the evidence that are met make no pass by themselves, and neither do lower bounds.
    """
    found = gravest(check.outcome for check in checks)
    kept = any(c.outcome is Outcome.PASS and c.ceiling is not None for c in checks)
    if found in (Outcome.PASS, Outcome.NOT_REFUTED):
        return Outcome.PASS if kept else Outcome.INCONCLUSIVE
    return found


def _needs(held: Sequence[Held]) -> str:
    """Evidence that would settle the hardest of several figures, where that can be said."""
    # What a control takes back is settled by no number of samples.
    unsettled = [
        one
        for one in held
        if one.outcome is Outcome.INCONCLUSIVE and not one.reason.startswith(_DOUBTED)
    ]
    wants = [one.more for one in unsettled if one.more is not None and one.more.count]
    if len(unsettled) < 2:
        return ""
    if len(wants) < len(unsettled):
        rest = len(unsettled) - len(wants)
        return f"{rest} of these would not be settled even by {MOST_TIMES} times as many samples"
    hardest = max(wants, key=lambda want: want.count)
    those = "both" if len(unsettled) == 2 else f"all {len(unsettled)}"
    return (
        f"{more_of(hardest.count, hardest.what)} would settle {those} of these if the figures stay "
        "as they are"
    )


def _rank(one: Held) -> tuple[int, float]:
    limits = [number for number in (one.high, one.value, one.low) if number is not None]
    # A figure that is absent is worse than one that is merely too wide.
    return gravity(one.outcome), limits[0] if limits else float("inf")


class Judged(NamedTuple):
    """A figure under a ceiling, or the place of one that is missing.

    Attributes:
        what: Which figure, in words.
        figure: None where the record has none.
        why: Why nothing follows from it, or why it is missing; empty where it can be held.
        doubt: Why a figure above the ceiling cannot be believed; empty where it can.
        more: Says what would settle the figure; asked only where it is not settled.
    """

    what: str
    figure: Estimate | None
    why: str = ""
    doubt: str = ""
    more: Callable[[], RequiredSamples | None] = lambda: None


def by_interval(one: Judged, ceiling: float, confidence: float) -> Held:
    """A figure by its limits; a refused or absent one never passes.

    Args:
        one: The figure.
        ceiling: The most that is allowed.
        confidence: That the limits must have.
    """
    figure = one.figure
    if figure is None or one.why:
        return _open(one)
    outcome, reason = _outcome(figure, ceiling, confidence, one.doubt)
    # Where the limits decide and something else stands against it, no sample would settle it.
    open_still = outcome is Outcome.INCONCLUSIVE and _undecided(figure, ceiling, confidence)
    return Held(
        what=one.what,
        value=figure.value,
        low=figure.low,
        high=figure.high,
        method=figure.method if figure.value is not None else "",
        outcome=outcome,
        reason=reason,
        more=one.more() if open_still else None,
    )


def by_lower_bound(one: Judged, ceiling: float, confidence: float) -> Held:
    """A lower bound: it can fail, or say nothing; see :func:`by_interval`."""
    figure = one.figure
    if figure is None or figure.low is None:
        return _open(one._replace(figure=None, why=one.why or (figure.note if figure else "")))
    outcome, reason = bound_against(figure.low, ceiling), figure.note
    if outcome is Outcome.FAIL and one.doubt:
        outcome, reason = Outcome.INCONCLUSIVE, f"{_DOUBTED} {one.doubt}"
    elif figure.ceiling is not None and figure.ceiling <= ceiling:
        reason = f"even a perfect attack could not have shown more than {figure.ceiling:.3g}"
    return Held(
        what=one.what,
        value=figure.value,
        low=figure.low,
        method=figure.method,
        outcome=outcome,
        reason=reason,
    )


def as_known(one: Judged, ceiling: float, confidence: float) -> Held:
    """A figure that holds for sure and needs no interval; see :func:`by_interval`."""
    figure = one.figure
    if figure is None or figure.value is None:
        why = one.why or (figure.note if figure else "") or "there is no guarantee"
        return _open(one._replace(figure=None, why=why))
    return Held(
        what=one.what,
        value=figure.value,
        high=figure.value,
        method=figure.method,
        outcome=Outcome.PASS if figure.value <= ceiling else Outcome.FAIL,
        reason=figure.note,
    )


def as_known_or_failed(one: Judged, ceiling: float, confidence: float) -> Held:
    """The same, where a figure without a bound is above any ceiling."""
    held = as_known(one, ceiling, confidence)
    return held if held.value is not None else held.model_copy(update={"outcome": Outcome.FAIL})


def _open(one: Judged) -> Held:
    """A figure from which nothing follows."""
    figure = one.figure
    return Held(
        what=one.what,
        value=figure.value if figure else None,
        method=figure.method if figure else "",
        outcome=Outcome.INCONCLUSIVE,
        reason=one.why,
    )


def _outcome(
    figure: Estimate, ceiling: float, confidence: float, doubt: str
) -> tuple[Outcome, str]:
    if figure.value is None:
        return Outcome.INCONCLUSIVE, figure.note or "the record refuses this figure"
    if figure.low is None and figure.high is None:
        why = figure.method or figure.note or "none was made"
        return Outcome.INCONCLUSIVE, f"no interval: {why}"
    stated = level(figure.method)
    if stated is None or stated < confidence - _SLACK:
        said = "no confidence" if stated is None else f"{stated:.6g}"
        return Outcome.INCONCLUSIVE, (
            f"its limits state {said}, and the policy asks for {confidence:g}"
        )
    outcome = against(figure.low, figure.high, ceiling)
    if outcome is Outcome.FAIL and doubt:
        return Outcome.INCONCLUSIVE, f"{_DOUBTED} {doubt}"
    return outcome, ""


def _undecided(figure: Estimate, ceiling: float, confidence: float) -> bool:
    if figure.value is None:
        return True  # a sample that is too small may be why
    stated = level(figure.method)
    enough = stated is not None and stated >= confidence - _SLACK
    return enough and against(figure.low, figure.high, ceiling) is Outcome.INCONCLUSIVE
