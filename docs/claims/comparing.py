"""What the comparisons of a claim give in a regime, and whether there is anything to find there."""

import math
from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import NamedTuple

from docs.claims.data import Regime, Term, Test, regimes, variant_of
from docs.claims.figures import Asked, counted, hypervolumes, rows
from docs.claims.pairs import Pair, pairs, sides
from fedaudit.metrics import Limited, averaged
from fedaudit.results.aggregate import Values, difference, further_runs_interval, mean_difference
from fedaudit.results.comparison import Difference
from fedaudit.results.estimate import MODEL_RISK
from fedaudit.results.tradeoffs import Direction, average

LEAST = {
    "membership": (0.7, 0.65),
    "sources": (0.1, 0.0),
    "clusters": (0.6, 0.55),
    "games": (0.7, 0.65),
}
"""From which figure and lower limit on a regime leaks, by what an adversary asks there."""
GROUPS = ("majority", "minority", "everybody")
"""Of clients; the last where there are no others."""
BY_STUDENT = "Student's t over runs"


SIGNED = ("excess", "over_label_baseline", "loss_gap", "last change", "error of")
"""How figures begin that can lie below 0."""
OVER_TARGETS = ("epochs", "uncertified", "held_out", "detector_auc")
"""Figures of games whose limits are for further targets, or further models."""


class Found(NamedTuple):
    """A figure, or a difference of two, with its interval for these runs and for further ones.

    Attributes:
        value: The figure.
        low: Lower limit for these runs; None if there is none.
        high: Upper limit for these runs.
        method: How these limits were made.
        seeds: Runs behind it; 0 for a number.
        further: Limits for further runs by Student's t, from five seeds on; of games those for
            further targets. None if not known.
    """

    value: float
    low: float | None
    high: float | None
    method: str
    seeds: int
    further: tuple[float, float] | None = None


def found_of(regime: Regime, test: Test, term: Term) -> Found | None:
    """A figure over the runs of its record; None where there is none."""
    if term.value is not None:
        return Found(term.value, term.value, term.value, "", 0)
    values = _values(regime, test, term)
    if values is None:
        return None
    found = over_runs(values)
    if regime.kind == "games" and _is_over_targets(regime, test, term):
        return found._replace(further=_both(found.low, found.high))
    return found


def _is_over_targets(regime: Regime, test: Test, term: Term) -> bool:
    """Whether limits of a figure of games hold for further targets, and not for these alone."""
    if (term.figure or test.figure) in OVER_TARGETS:
        return True
    known = rows(term.study or regime.study, "") or {}
    played, targets = (known.get(Asked(name, term.attack)) for name in ("games", "targets"))
    if played is None or targets is None:
        return False
    return targets[None][None].value >= played[None][None].value


def gap_of(regime: Regime, test: Test, other: Term) -> Found | None:
    """One less other: paired by sample where the runs were, else by seed, else by their limits."""
    found = _gap_of(regime, test, other)
    if found is None or found.low is None or found.high is None or found.further is None:
        return found
    # What is not known of these runs is not known of further ones either.
    low, high = found.further
    return found._replace(further=(min(low, found.low), max(high, found.high)))


def _gap_of(regime: Regime, test: Test, other: Term) -> Found | None:
    if other.value is not None:
        found = found_of(regime, test, test.one)
        if found is None:
            return None
        values = _values(regime, test, test.one)
        if values is not None and not _fits(test.figure, values):
            found = found._replace(further=None)
            if found.method == BY_STUDENT:
                found = found._replace(low=None, high=None)
        return _shifted(found, other.value)
    paired = _paired(regime, test, other)
    one, against = _values(regime, test, test.one), _values(regime, test, other)
    if one is None or against is None:
        return paired
    gap = None
    if all(set(side) != {None} for side in (one, against)):
        gap = difference(one, against)
    sides_ = [found_of(regime, test, term) for term in (test.one, other)]
    found = _as_found(gap) if gap is not None else None
    if found is not None and not all(_fits(test.figure, side) for side in (one, against)):
        found = found._replace(further=None)
    if paired is not None:
        # Attacks that are averaged have no limits for further runs of their own.
        wider = paired.further or (found.further if found else None)
        return paired._replace(further=wider)
    if found is not None and (found.low is not None or found.further is not None):
        return _settled(found)
    first, second = sides_
    assert first is not None
    assert second is not None
    return _settled(_apart(first, second))


def _fits(figure: str, values: Values) -> bool:
    """Whether Student's t suits a figure over seeds: its limits are ones that the figure can have.

    Of rates and counts near 0 the limits for further runs would hold in three quarters of cases
    (docs/decisions/0015-two-regimes-and-one-error.md); those that stay above 0 hold as promised.
    """
    by_seed = [by[None].value for seed, by in values.items() if seed is not None]
    limits = further_runs_interval(by_seed)
    if limits.low is None or limits.high is None:
        return True
    is_share = figure == "auc" or "@" in figure
    return (limits.low >= 0 or figure.startswith(SIGNED)) and (limits.high <= 1 or not is_share)


def over_runs(values: Values) -> Found:
    """A figure over runs, with the limits of the record itself where it has them."""
    by_seed = {seed: by[None] for seed, by in values.items() if seed is not None}
    whole = values[None][None] if None in values else None
    if len(by_seed) == 1 or (whole and (whole.low is not None or not by_seed)):
        one = whole or next(iter(by_seed.values()))
        limits = further_runs_interval([value.value for value in by_seed.values()])
        wide = _both(limits.low, limits.high)
        return Found(one.value, one.low, one.high, one.method, max(len(by_seed), 1), wide)
    mean = mean_difference(list(by_seed.values()))
    assert mean is not None
    return _settled(_as_found(mean))


def _values(regime: Regime, test: Test, term: Term) -> Values | None:
    figure, study = term.figure or test.figure, term.study or regime.study
    if figure == "hypervolume":
        undefended = rows(study, regime.base)
        target = _first_target(undefended) if undefended else None
        if target is None:
            return None
        return hypervolumes(study, term.variant or "none", term.attack, test.contrast, target)
    known = rows(study, variant_of(regime, term))
    if known is None:
        return None
    member = figure == "auc" or "@" in figure or figure == "balanced_accuracy"
    target = (term.target if term.target is not None else _first_target(known)) if member else None
    contrast = test.contrast if member else ""
    # Attacks that the undefended record does not have count as little as those that find nothing.
    signs = counts(regime, test, term) if term.attacks else {}
    parts = {
        attack: known.get(Asked(figure, attack, contrast, target, term.group))
        for attack in (signs if term.attacks else [term.attack])
    }
    there = {attack: part for attack, part in parts.items() if part is not None}
    if len(there) < len(parts):
        return None
    if not term.attacks:
        return there[term.attack]
    # A committed figure is of one target, which stands under None there.
    directions: dict[str, Mapping[int | None, Direction]] = {
        attack: {None: sign} for attack, sign in signs.items()
    }
    return average(there, directions).values or None


def counts(regime: Regime, test: Test, term: Term) -> dict[str, Direction]:
    """Return the attacks of a term that count in its average, each with its direction.

    The regime's undefended record decides, whatever the term is of.
    """
    base = rows(regime.study, regime.base)
    target = term.target if base is None or term.target is not None else _first_target(base)
    figure = term.figure or test.figure
    return counted((regime.study, regime.base), term.attacks, test.contrast, figure, target)


def _first_target(known: Mapping[Asked, Values]) -> int | None:
    targets = [asked.target for asked in known if asked.target is not None]
    return min(targets) if targets else None


def _as_found(gap: Difference) -> Found:
    wide = _both(gap.further.low, gap.further.high) if gap.further else None
    return Found(gap.value, gap.low, gap.high, gap.method, gap.runs or 1, wide)


def _both(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def _settled(found: Found) -> Found:
    """With the limits for further runs where nothing makes any for these: counts of clients."""
    if found.low is not None or found.further is None:
        return found
    low, high = found.further
    return found._replace(low=low, high=high, method=BY_STUDENT)


def _shifted(found: Found, number: float) -> Found:
    low = None if found.low is None else found.low - number
    high = None if found.high is None else found.high - number
    further = found.further and (found.further[0] - number, found.further[1] - number)
    return found._replace(value=found.value - number, low=low, high=high, further=further)


def _apart(one: Found, other: Found) -> Found:
    gap, seeds = one.value - other.value, min(one.seeds, other.seeds)
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Found(gap, None, None, "", seeds)
    low, high = _combined(gap, one.value, (one.low, one.high), other.value, (other.low, other.high))
    wide = None
    if one.further and other.further:
        wide = _combined(gap, one.value, one.further, other.value, other.further)
    return Found(gap, low, high, "separate limits combined", seeds, wide)


def _combined(
    gap: float,
    one: float,
    its: tuple[float, float],
    other: float,
    theirs: tuple[float, float],
) -> tuple[float, float]:
    """Limits of a difference of two independent figures."""
    low = gap - math.hypot(one - its[0], theirs[1] - other)
    return low, gap + math.hypot(its[1] - one, other - theirs[0])


def _paired(regime: Regime, test: Test, other: Term) -> Found | None:
    if test.figure != "auc" or test.one.study or other.study:
        return None
    asked = sides(regime, test.one, other)
    by_sides = {
        (pair.one, pair.other): pair
        # Of several targets the first of the study, where none is named.
        for pair in sorted(pairs(regime.study), key=lambda pair: -pair.target)
        if pair.contrast == test.contrast and test.one.target in (None, pair.target)
    }
    found = [by_sides[both] for both in asked if both in by_sides]
    if not found or len(found) < len(asked):
        return None
    if test.one.attacks:
        signs = counts(regime, test, test.one)
        limits = [
            _signed(pair, signs[pair.one.attack]) for pair in found if pair.one.attack in signs
        ]
        if not limits:
            return None
        # Attacks of one run rest on the same samples.
        low, high = averaged(limits)
        value = fmean(one.value for one in limits)
        method = f"{found[0].method}, limits of {len(limits)} attacks averaged"
        return Found(value, low, high, method, len(found[0].seeds))
    (pair,) = found
    wide = _both(pair.further_low, pair.further_high)
    return Found(pair.value, pair.low, pair.high, pair.method, len(pair.seeds), wide)


def _signed(pair: Pair, direction: Direction) -> Limited[float]:
    if direction > 0:
        return Limited(pair.value, pair.low, pair.high)
    return Limited(-pair.value, -pair.high, -pair.low)


@cache
def leaks(name: str) -> bool:
    """Whether an undefended attack named beforehand finds enough in a regime."""
    found, (value, low) = leak_of(name), LEAST[regimes()[name].kind]
    return found is not None and found.value >= value and (found.low or 0.0) >= low


def leak_of(name: str) -> Found | None:
    """What that attack finds; of models of clustered learning the riskiest's real risk."""
    regime = regimes()[name]
    if regime.kind == "clusters":
        test = Test(figure=MODEL_RISK, one=Term(), others=[])
        groups = [found_of(regime, test, Term(group=group)) for group in GROUPS]
        return max((one for one in groups if one), key=lambda one: one.low or 0.0, default=None)
    figure = {"sources": "over_label_baseline", "games": "adv"}.get(regime.kind, "auc")
    test = Test(figure=figure, contrast=regime.against, one=Term(), others=[])
    return found_of(regime, test, Term(attack=regime.leak))
