"""Ways to hold a figure against a ceiling: by its interval, as a lower bound, or as it is known."""

import re
from collections.abc import Callable
from typing import NamedTuple

from fedaudit.gate.outcome import Outcome, against, bound_against
from fedaudit.gate.sample_size import RequiredSamples
from fedaudit.gate.verdict import Held
from fedaudit.results.estimate import Estimate

EXACT = "Clopper-Pearson 95%"
"""How limits were made that a record states no method of."""
_SLACK = 1e-9


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
        outcome, reason = Outcome.INCONCLUSIVE, f"above the ceiling, but {one.doubt}"
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


def level(method: str) -> float | None:
    """The confidence that a method states, as a share; None where it states none."""
    found = re.search(r"(\d{1,3}(?:\.\d{1,12})?)\s?%", method)
    return float(found[1]) / 100 if found else None


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
        return Outcome.INCONCLUSIVE, f"above the ceiling, but {doubt}"
    return outcome, ""


def _undecided(figure: Estimate, ceiling: float, confidence: float) -> bool:
    if figure.value is None:
        return True  # a sample that is too small may be why
    stated = level(figure.method)
    enough = stated is not None and stated >= confidence - _SLACK
    return enough and against(figure.low, figure.high, ceiling) is Outcome.INCONCLUSIVE
