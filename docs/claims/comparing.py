"""Comparisons of a claim in a regime, and whether the regime leaks."""

import math
from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import NamedTuple

from docs.claims import accuracies
from docs.claims.data import Regime, Term, Test, regimes, variant_of
from docs.claims.figures import FigureName, counted, hypervolumes, rows
from docs.claims.pairs import Pair, pairs, sides
from fedaudit.metrics import EstimateWithLimits, mean_limits_if_dependent
from fedaudit.results.aggregate import Values, difference, further_runs_interval, mean_difference
from fedaudit.results.estimate import MODEL_RISK, Difference
from fedaudit.results.tradeoffs import Direction, average_attacks

LEAST = {
    "membership": (0.7, 0.65),
    "sources": (0.1, 0.0),
    "clusters": (0.6, 0.55),
    "games": (0.7, 0.65),
}
"""Smallest figure, and smallest lower limit, of a regime that leaks, by topic."""
GROUPS = ("majority", "minority", "everybody")
"""Groups of clients; the last one if a federation has no groups."""
BY_STUDENT = "Student's t over runs"
SEPARATE_LIMITS = "separate limits combined"
"""Methods of intervals."""

SIGNED = ("excess", "over_label_baseline", "loss_gap", "last change", "error of")
"""Prefixes of figures that can be below 0."""
OVER_TARGETS = ("epochs", "uncertified", "held_out", "detector_auc")
"""Figures of games whose limits refer to further targets or models."""


class Figure(NamedTuple):
    """Figure, or difference of two, with its intervals for these runs and for further runs."""

    # Value.
    value: float
    # Lower limit for these runs, if known.
    low: float | None
    # Upper limit for these runs, if known.
    high: float | None
    # Method of these limits.
    method: str
    # Number of runs; 0 for a constant.
    seeds: int
    # Limits for further runs by Student's t with at least five seeds; for games those for further
    # targets. None if unknown.
    further: tuple[float, float] | None = None


def figure_of(regime: Regime, test: Test, term: Term) -> Figure | None:
    """Return a figure over the runs of its record, if the record has it."""
    if term.value is not None:
        return Figure(term.value, term.value, term.value, "", 0)
    values = _values(regime, test, term)
    if values is None:
        return None
    figure = over_runs(values)
    if regime.kind == "games" and _is_over_targets(regime, test, term):
        return figure._replace(further=_both(figure.low, figure.high))
    return figure


def figures_of_gap(
    regime: Regime, test: Test, other: Term, gap: Figure | None
) -> tuple[Figure | None, Figure | None]:
    """Return the figures of two terms, over the runs that their difference covers.

    A difference that is paired by seed covers only the seeds that both terms have. Accuracies that
    are paired by test sample are those of models that were trained again.
    """
    accuracy_pair = _accuracy_pair(regime, test, other)
    if accuracy_pair is not None:
        both = (accuracy_pair.accuracy, accuracy_pair.other_accuracy)
        one, reference = (Figure(x, None, None, "", len(accuracy_pair.seeds)) for x in both)
        return one, reference
    terms = (test.one, other)
    sides_ = [_values(regime, test, term) if term.value is None else None for term in terms]
    seeds = [{seed for seed in side or {} if seed is not None} for side in sides_]
    shared = seeds[0] & seeds[1]
    is_paired = gap is not None and gap.method != SEPARATE_LIMITS
    if not is_paired or not shared or seeds[0] == seeds[1]:
        return figure_of(regime, test, test.one), figure_of(regime, test, other)
    one, reference = (
        over_runs({seed: side[seed] for seed in sorted(shared)}) for side in sides_ if side
    )
    return one, reference


def _accuracy_pair(regime: Regime, test: Test, other: Term) -> accuracies.AccuracyPair | None:
    if {test.one.figure or test.figure, other.figure or test.figure} != {"test_accuracy"}:
        return None
    variants = accuracies.variants_of(regime, test.one, other)
    return accuracies.accuracy_pairs(regime.study).get(variants) if variants else None


def _is_over_targets(regime: Regime, test: Test, term: Term) -> bool:
    if (term.figure or test.figure) in OVER_TARGETS:
        return True
    figures = rows(term.study or regime.study, "") or {}
    played, targets = (figures.get(FigureName(name, term.attack)) for name in ("games", "targets"))
    if played is None or targets is None:
        return False
    return targets[None][None].value >= played[None][None].value


def gap_of(regime: Regime, test: Test, other: Term) -> Figure | None:
    """Return the difference of two terms: paired by sample or seed, or from separate limits."""
    gap = _gap_of(regime, test, other)
    if gap is None or gap.low is None or gap.high is None or gap.further is None:
        return gap
    # Limits for further runs are at least as wide as those for these runs.
    low, high = gap.further
    return gap._replace(further=(min(low, gap.low), max(high, gap.high)))


def _gap_of(regime: Regime, test: Test, other: Term) -> Figure | None:
    if other.value is not None:
        result = figure_of(regime, test, test.one)
        if result is None:
            return None
        values = _values(regime, test, test.one)
        if values is not None and not _fits(test.figure, values):
            result = result._replace(further=None)
            if result.method == BY_STUDENT:
                result = result._replace(low=None, high=None)
        return _shifted(result, other.value)
    paired = _paired(regime, test, other) or _paired_by_test_sample(regime, test, other)
    one, against = _values(regime, test, test.one), _values(regime, test, other)
    if one is None or against is None:
        return paired
    gap = None
    if all(set(side) != {None} for side in (one, against)):
        gap = difference(one, against)
    sides_ = [figure_of(regime, test, term) for term in (test.one, other)]
    result = _from_difference(gap) if gap is not None else None
    if result is not None and not all(_fits(test.figure, side) for side in (one, against)):
        result = result._replace(further=None)
    if paired is not None:
        # Averages over attacks have no separate limits for further runs.
        wider = paired.further or (result.further if result else None)
        return paired._replace(further=wider)
    if result is not None and (result.low is not None or result.further is not None):
        return _with_limits(result)
    first, second = sides_
    assert first is not None
    assert second is not None
    return _with_limits(_from_separate_limits(first, second))


def _fits(figure: str, values: Values) -> bool:
    """Return whether Student's t limits lie within the range of the figure.

    For rates and counts near 0, limits outside the range contain the truth in only three quarters
    of cases (docs/decisions/0015-two-regimes-and-one-error.md).
    """
    by_seed = [by_target[None].value for seed, by_target in values.items() if seed is not None]
    limits = further_runs_interval(by_seed)
    if limits.low is None or limits.high is None:
        return True
    is_share = figure == "auc" or "@" in figure
    return (limits.low >= 0 or figure.startswith(SIGNED)) and (limits.high <= 1 or not is_share)


def over_runs(values: Values) -> Figure:
    """Return a figure over runs, with the limits of the record if it has them."""
    by_seed = {seed: by_target[None] for seed, by_target in values.items() if seed is not None}
    over_all = values[None][None] if None in values else None
    if len(by_seed) == 1 or (over_all and (over_all.low is not None or not by_seed)):
        overall = over_all or next(iter(by_seed.values()))
        limits = further_runs_interval([value.value for value in by_seed.values()])
        wide = _both(limits.low, limits.high)
        return Figure(
            overall.value, overall.low, overall.high, overall.method, max(len(by_seed), 1), wide
        )
    mean = mean_difference(list(by_seed.values()))
    assert mean is not None
    return _with_limits(_from_difference(mean))


def _values(regime: Regime, test: Test, term: Term) -> Values | None:
    figure, study = term.figure or test.figure, term.study or regime.study
    if figure == "hypervolume":
        undefended = rows(study, regime.base)
        target = _first_target(undefended) if undefended else None
        if target is None:
            return None
        return hypervolumes(study, term.variant or "none", term.attack, test.contrast, target)
    figures = rows(study, variant_of(regime, term))
    if figures is None:
        return None
    member = figure == "auc" or "@" in figure or figure == "balanced_accuracy"
    target = (
        (term.target if term.target is not None else _first_target(figures)) if member else None
    )
    contrast = test.contrast if member else ""
    # Attacks without a figure in the undefended record are left out, as are those at chance level.
    signs = counts(regime, test, term) if term.attacks else {}
    parts = {
        attack: figures.get(FigureName(figure, attack, contrast, target, term.group))
        for attack in (signs if term.attacks else [term.attack])
    }
    present = {attack: part for attack, part in parts.items() if part is not None}
    if len(present) < len(parts):
        return None
    if not term.attacks:
        return present[term.attack]
    # Committed figures have one target, with the key None.
    directions: dict[str, Mapping[int | None, Direction]] = {
        attack: {None: sign} for attack, sign in signs.items()
    }
    return average_attacks(present, directions).values or None


def counts(regime: Regime, test: Test, term: Term) -> dict[str, Direction]:
    """Return the attacks whose figures a term averages, with their directions.

    The undefended record of the regime decides.
    """
    base = rows(regime.study, regime.base)
    target = term.target if base is None or term.target is not None else _first_target(base)
    figure = term.figure or test.figure
    return counted((regime.study, regime.base), term.attacks, test.contrast, figure, target)


def _first_target(figures: Mapping[FigureName, Values]) -> int | None:
    targets = [key.target for key in figures if key.target is not None]
    return min(targets) if targets else None


def _from_difference(gap: Difference) -> Figure:
    wide = _both(gap.further.low, gap.further.high) if gap.further else None
    return Figure(gap.value, gap.low, gap.high, gap.method, gap.runs or 1, wide)


def _both(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def _with_limits(figure: Figure) -> Figure:
    """Replace missing limits for these runs, as for counts, by those for further runs."""
    if figure.low is not None or figure.further is None:
        return figure
    low, high = figure.further
    return figure._replace(low=low, high=high, method=BY_STUDENT)


def _shifted(figure: Figure, number: float) -> Figure:
    low = None if figure.low is None else figure.low - number
    high = None if figure.high is None else figure.high - number
    further = figure.further and (figure.further[0] - number, figure.further[1] - number)
    return figure._replace(value=figure.value - number, low=low, high=high, further=further)


def _from_separate_limits(first: Figure, other: Figure) -> Figure:
    gap, seeds = first.value - other.value, min(first.seeds, other.seeds)
    if first.low is None or first.high is None or other.low is None or other.high is None:
        return Figure(gap, None, None, SEPARATE_LIMITS, seeds)
    low, high = _combined(
        gap, first.value, (first.low, first.high), other.value, (other.low, other.high)
    )
    wide = None
    if first.further and other.further:
        wide = _combined(gap, first.value, first.further, other.value, other.further)
    return Figure(gap, low, high, SEPARATE_LIMITS, seeds, wide)


def _combined(
    gap: float,
    first: float,
    its: tuple[float, float],
    other: float,
    theirs: tuple[float, float],
) -> tuple[float, float]:
    low = gap - math.hypot(first - its[0], theirs[1] - other)
    return low, gap + math.hypot(its[1] - first, other - theirs[0])


def _paired(regime: Regime, test: Test, other: Term) -> Figure | None:
    if test.figure != "auc" or test.one.study or other.study:
        return None
    needed = sides(regime, test.one, other)
    by_sides = {
        (pair.one, pair.other): pair
        # Without a target, the first one of the study is used.
        for pair in sorted(pairs(regime.study), key=lambda pair: -pair.target)
        if pair.contrast == test.contrast and test.one.target in (None, pair.target)
    }
    matching = [by_sides[both] for both in needed if both in by_sides]
    if not matching or len(matching) < len(needed):
        return None
    if test.one.attacks:
        signs = counts(regime, test, test.one)
        limits = [
            _signed(pair, signs[pair.one.attack]) for pair in matching if pair.one.attack in signs
        ]
        if not limits:
            return None
        # Attacks of one run use the same samples.
        low, high = mean_limits_if_dependent(limits)
        value = fmean(interval.value for interval in limits)
        method = f"{matching[0].method}, limits of {len(limits)} attacks averaged"
        return Figure(value, low, high, method, len(matching[0].seeds))
    (pair,) = matching
    wide = _both(pair.further_low, pair.further_high)
    return Figure(pair.value, pair.low, pair.high, pair.method, len(pair.seeds), wide)


def _paired_by_test_sample(regime: Regime, test: Test, other: Term) -> Figure | None:
    pair = _accuracy_pair(regime, test, other)
    if pair is None:
        return None
    wide = _both(pair.further_low, pair.further_high)
    return Figure(pair.value, pair.low, pair.high, accuracies.METHOD, len(pair.seeds), wide)


def _signed(pair: Pair, direction: Direction) -> EstimateWithLimits[float]:
    if direction > 0:
        return EstimateWithLimits(pair.value, pair.low, pair.high)
    return EstimateWithLimits(-pair.value, -pair.high, -pair.low)


@cache
def leaks(name: str) -> bool:
    """Return whether the undefended attack of the regime shows a leak."""
    figure, (value, low) = leak_of(name), LEAST[regimes()[name].kind]
    return figure is not None and figure.value >= value and (figure.low or 0.0) >= low


def leak_of(name: str) -> Figure | None:
    """Return the figure that decides whether a regime leaks; None if it is unknown."""
    regime = regimes()[name]
    if regime.kind == "clusters":
        test = Test(figure=MODEL_RISK, one=Term(), others=[])
        groups = [figure_of(regime, test, Term(group=group)) for group in GROUPS]
        return max(filter(None, groups), key=lambda figure: figure.low or 0.0, default=None)
    figure = {"sources": "over_label_baseline", "games": "adv"}.get(regime.kind, "auc")
    test = Test(figure=figure, contrast=regime.against, one=Term(), others=[])
    return figure_of(regime, test, Term(attack=regime.leak))
