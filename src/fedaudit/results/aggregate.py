"""One figure over seeds and clients, and how far it is from another row's."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedaudit.core.metric_names import rate_of
from fedaudit.metrics import (
    Limited,
    averaged,
    combined,
    held_together,
    holm,
    over_further_runs,
    summed,
)
from fedaudit.metrics.intervals import (
    FEWEST_RUNS,
    ConfidenceLimits,
    IntervalEstimate,
    LimitsAt,
    SeedMean,
    too_few_runs,
)
from fedaudit.results.comparison import Difference
from fedaudit.results.estimate import Coordinates, Estimate, Interval, Test
from fedaudit.results.metrics import COUNTS, errors_cancel


@dataclass(frozen=True)
class Value(IntervalEstimate[float | None]):
    """A figure of one run and client; a limit is None where there is none.

    Attributes:
        cancels: Whether the errors of several runs cancel: each run has samples of its own, and its
            figure errs to neither side. Not so of accuracies on one set of test samples, nor of
            rates at a threshold that each run sets for itself.
    """

    cancels: bool = False

    @classmethod
    def without_limits(cls, value: float, *, cancels: bool = False) -> "Value":
        """A figure that has no limits."""
        return cls(value, None, None, "", cancels)


Values = Mapping[int | None, Mapping[int | None, Value]]
"""A figure by seed and target client; under the seed None what the record says over its runs."""


@dataclass(frozen=True)
class OverSeeds(SeedMean):
    """A figure over seeds and clients, with the interval of these runs and of further ones."""

    further: Interval | None = None


NO_NARROWER = "no narrower than these runs"
"""End of the method of limits for further runs that were widened to hold those of these runs."""


def further_runs(
    values: Sequence[float],
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
    these: tuple[float | None, float | None] | None = None,
) -> Interval:
    """Return the interval for further runs; below five runs the reason why there is none.

    What is not known about the runs that were made is not known about further ones either. The
    interval is therefore widened to hold that of these runs, which is the wider one for rates,
    whose limits allow for every threshold.

    Args:
        values: The figure in each run.
        within: Range of the figure.
        these: Limits for these runs; a limit that is None stands for the end of the range. None if
            these runs have no interval.
    """
    if len(values) < FEWEST_RUNS:
        return Interval(method=too_few_runs(len(values)))
    found = over_further_runs(values, within=within)
    low, high, method = found.low, found.high, found.method
    if these is not None and low is not None and high is not None:
        ends = zip(these, within, strict=True)
        lower, upper = (end if limit is None else limit for limit, end in ends)
        if lower < low or upper > high:
            low, high, method = min(lower, low), max(upper, high), f"{method}, {NO_NARROWER}"
    return Interval(low=low, high=high, method=method)


def these_runs(runs: int) -> str:
    """ "these 3 runs", for the method of an interval."""
    return f"these {runs} runs" if runs > 1 else "the one run"


def each_over_runs(figures: Sequence[Estimate]) -> list[Estimate]:
    """Every figure over its runs, in the order of the figures; of one run that figure itself.

    Args:
        figures: Of runs; those that differ in nothing but the seed are one figure.
    """
    groups: dict[tuple[object, ...], list[Estimate]] = {}
    for figure in figures:
        groups.setdefault(without_seed(figure), []).append(figure)
    runs: dict[tuple[str, ...], set[int | None]] = {}
    for figure in figures:
        runs.setdefault(_study_of(figure), set()).add(figure.seed)
    return [
        over_runs(given).model_copy(
            update={"note": _notes_of(given, len(runs[_study_of(given[0])]))}
        )
        for given in groups.values()
    ]


def _study_of(figure: Estimate) -> tuple[str, ...]:
    return figure.topic, figure.algorithm, figure.attack, figure.defense, figure.view


def without_seed(figure: Estimate) -> tuple[object, ...]:
    """Coordinates of a figure, whichever run it was found in."""
    names = [name for name in Coordinates.model_fields if name != "seed"]
    return figure.metric, figure.against, *(getattr(figure, name) for name in names)


def _notes_of(given: Sequence[Estimate], runs: int) -> str:
    said = Counter(figure.note for figure in given if figure.note)
    notes = [f"in {times} of {runs} runs {note}" for note, times in said.items()]
    if len(given) < runs:
        notes.append(f"{runs - len(given)} of {runs} runs do not have this figure")
    return "; ".join(notes)


def over_runs(figures: Sequence[Estimate], limits: Sequence[LimitsAt] = ()) -> Estimate:
    """One figure of several runs: what these runs gave, and what further ones would.

    Runs that refused it, all for want of samples, are left out and told of. Tests of the runs are
    combined, each as a one-sided one.

    Args:
        figures: The same figure of each run.
        limits: At any confidence, of each run that gave it: for rates, whose runs each set a
            threshold of their own. Without them a rate over runs has no limits.

    Source: Fisher 1925, section 21.1 (tests of several runs).
    """
    given = [figure for figure in figures if figure.value is not None]
    missing = [figure for figure in figures if figure.value is None]
    why = f": {missing[0].note}" if missing and missing[0].note else ""
    if not given:
        note = f"0 of {len(figures)} seeds gave this figure{why}"
        return figures[0].model_copy(update={"seed": None, "note": note})
    if len(figures) == 1:
        return given[0].model_copy(update={"seed": None, "tests": _tests_over_runs(given)})
    values = [figure.value or 0.0 for figure in given]
    rate = rate_of(given[0].metric) is not None
    here, used = _limits_of(given, limits), _at_thresholds(given) if rate else None
    left_out = f" of {len(figures)}" if missing else ""
    least, most = given[0].range
    if given[0].metric in COUNTS:
        most = max(figure.ceiling or 0.0 for figure in given)
    # Summed variances do not know what the figure can be.
    these = None if here is None else (_least(here.low, given), min(here.high, most))
    return given[0].model_copy(
        update={
            "seed": None,
            "value": fmean(values),
            "low": None if these is None else these[0],
            "high": None if these is None else these[1],
            "method": "" if here is None and used is None else _method(given),
            "tests": _tests_over_runs(given),
            "n_members": sum(figure.n_members for figure in figures),
            "n_nonmembers": sum(figure.n_nonmembers for figure in figures),
            "samples": sum(figure.samples for figure in figures),
            "labels_alone": _mean_of_known([figure.labels_alone for figure in given]),
            "realised_fpr": None,
            "at_threshold": None
            if used is None
            else Interval(low=max(used.low, 0.0), high=min(used.high, 1.0)),
            "note": f"mean over {len(given)}{left_out} seeds{why}",
            "further": further_runs(values, within=(least, most), these=these)
            if len(given) > 1
            else None,
        }
    )


def _tests_over_runs(given: Sequence[Estimate]) -> list[Test]:
    """The tests that all runs have, as one of each null hypothesis."""
    found = []
    for null in dict.fromkeys(test.null for test in given[0].tests):
        both = [(figure, test) for figure in given if (test := figure.test(null)) is not None]
        p_values = [_one_sided(figure, test) for figure, test in both]
        known = [p for p in p_values if p is not None]
        if len(both) == len(given):
            found.append(
                Test(
                    null=null,
                    level=_mean_of_known([test.level for _, test in both]),
                    high=_mean_of_known([test.high for _, test in both]),
                    p_value=combined(known) if len(known) == len(given) else None,
                )
            )
    return found


def _one_sided(figure: Estimate, test: Test) -> float | None:
    """Return the p-value of "no more than the other"; a bound if the figure is not above it."""
    if test.p_value is None or not test.two_sided:
        return test.p_value
    # The exact test is symmetric.
    return test.p_value / 2 if (figure.value or 0.0) > 0 else 1.0


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def corrected(figures: Sequence[Estimate], alpha: float) -> list[Estimate]:
    """The figures with every test corrected for all tests of its null hypothesis among them.

    Args:
        figures: A family for each null hypothesis: all that a reader could pick the largest from.
        alpha: Error of each family, in (0, 1).

    Source: Holm 1979.
    """
    changed = {at: dict[str, Test]() for at in range(len(figures))}
    for null in dict.fromkeys(test.null for figure in figures for test in figure.tests):
        family = [
            (at, test)
            for at, figure in enumerate(figures)
            if (test := figure.test(null)) is not None and test.p_value is not None
        ]
        found = holm([test.p_value for _, test in family], alpha=alpha)
        outcomes = zip(family, found.adjusted, found.significant, strict=True)
        for (at, test), adjusted, significant in outcomes:
            outcome = {"adjusted": adjusted, "significant": bool(significant)}
            changed[at][null] = test.model_copy(update=outcome)
    return [
        figure.model_copy(
            update={"tests": [changed[at].get(test.null, test) for test in figure.tests]}
        )
        for at, figure in enumerate(figures)
    ]


def _least(low: float, given: Sequence[Estimate]) -> float | None:
    """A lower limit; none where no run has any and the least there can be is all that is left."""
    least = given[0].range.least
    return None if low <= least and all(one.low is None for one in given) else max(low, least)


def _limits_of(given: Sequence[Estimate], limits: Sequence[LimitsAt]) -> ConfidenceLimits | None:
    if rate_of(given[0].metric) is not None:
        return held_together(limits) if len(limits) == len(given) else None
    known = [(figure.value, figure.low, figure.high) for figure in given]
    return _taken_together(known, summed if errors_cancel(given[0].metric) else averaged)


def _at_thresholds(given: Sequence[Estimate]) -> ConfidenceLimits | None:
    """Of the share of members above the thresholds that the runs used: counts of each run."""
    limits = [one.at_threshold or Interval() for one in given]
    known = [(f.value, at.low, at.high) for f, at in zip(given, limits, strict=True)]
    return _taken_together(known, summed)


def _taken_together(
    runs: Sequence[tuple[float | None, float | None, float | None]],
    how: Callable[[Sequence[Limited[float]]], ConfidenceLimits],
) -> ConfidenceLimits | None:
    known = [
        Limited(value, low, high)
        for value, low, high in runs
        if value is not None and low is not None and high is not None
    ]
    return how(known) if len(known) == len(runs) else None


def _method(given: Sequence[Estimate]) -> str:
    methods = " / ".join(dict.fromkeys(figure.method for figure in given))
    return f"{methods}, over {these_runs(len(given))}"


def restricted(values: Values, targets: Collection[int | None]) -> Values:
    """The values at these targets only; seeds without any are left out."""
    kept = {
        seed: {target: value for target, value in by_target.items() if target in targets}
        for seed, by_target in values.items()
    }
    return {seed: by_target for seed, by_target in kept.items() if by_target}


def mean_of(parts: Sequence[Values]) -> Values:
    """The mean of several figures for each seed and target where all of them have one.

    Figures of one run rest on the same samples, so that their limits are averaged. What a record
    says over its runs is averaged only if all figures are of the same runs.

    Returns:
        No seed without a value.
    """
    return {
        seed: {target: _mean(found, "figures") for target, found in by.items()}
        for seed, by in _shared(parts).items()
    }


def _shared(parts: Sequence[Values]) -> dict[int | None, dict[int | None, list[Value]]]:
    """The values of all parts at the seeds and targets that all of them have."""
    if not parts:
        return {}
    found = {
        seed: {
            target: [part[seed][target] for part in parts]
            for target in by_target
            if all(target in part.get(seed, {}) for part in parts)
            if seed is not None or len({runs_of(part, target) for part in parts}) == 1
        }
        for seed, by_target in parts[0].items()
    }
    return {seed: by_target for seed, by_target in found.items() if by_target}


def runs_of(values: Values, target: int | None) -> frozenset[int]:
    """Return the seeds of the runs that have a value at a target."""
    return frozenset(s for s, by_target in values.items() if s is not None and target in by_target)


def estimated(values: Values) -> OverSeeds | None:
    """The mean over seeds of the mean over clients; None without a value.

    Clients of one run share its model, so that their limits are averaged. Over seeds the limits
    are those of the record itself, client by client, where it has them; else those of its runs.
    """
    means = {s: _mean(list(by.values())) for s, by in values.items() if by and s is not None}
    whole = values.get(None, {})
    if not means and not whole:
        return None
    runs = list(means.values()) or [_mean(list(whole.values()))]
    if len(runs) == 1:
        (one,) = runs
        return OverSeeds(one.value, one.low, one.high, one.method, 1)
    targets = {target for by_target in values.values() for target in by_target}
    here = _mean(list(whole.values())) if targets == set(whole) else _over_seeds(runs)
    these = None if here.low is None and here.high is None else (here.low, here.high)
    further = further_runs([one.value for one in runs], within=(0.0, 1.0), these=these)
    value = fmean(one.value for one in runs)
    return OverSeeds(value, here.low, here.high, here.method, len(runs), further)


def difference(values: Values, base: Values) -> Difference | None:
    """Values minus base's, at the clients and seeds that both have; None without any.

    Seeds are paired: two studies of one seed share clients' data and audited samples, so that
    what they share falls out of the difference. The two intervals of a seed are combined as if
    they were independent, which errs on the wide side.

    Source: Zou and Donner, Construction of confidence limits about effect measures, 2008, Eq. (4).
    """
    gaps = []
    for seed in [seed for seed in values if seed in base and seed is not None]:
        both = [target for target in values[seed] if target in base[seed]]
        if both:
            sides = (_mean([side[seed][target] for target in both]) for side in (values, base))
            gaps.append(gap_between(*sides))
    return over_gaps(gaps)


def over_gaps(gaps: Sequence[Value]) -> Difference | None:
    """Differences of each seed as one of all of them; None without any."""
    if not gaps:
        return None
    if len(gaps) == 1:
        (one,) = gaps
        method = "one seed, not paired: limits combined" if one.low is not None else "one seed"
        return Difference(value=one.value, low=one.low, high=one.high, method=method)
    here = _over_seeds(gaps)
    low = None if here.low is None else max(-1.0, here.low)
    high = None if here.high is None else min(1.0, here.high)
    these = None if low is None or high is None else (low, high)
    return Difference(
        value=here.value,
        low=low,
        high=high,
        method=f"paired by seed, over {these_runs(len(gaps))}",
        runs=len(gaps),
        further=further_runs([gap.value for gap in gaps], these=these),
    )


def gap_between(one: Value, other: Value) -> Value:
    """One figure less another, with their limits combined as if they were independent."""
    gap = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Value.without_limits(gap)
    return Value(
        gap,
        max(-1.0, gap - math.hypot(one.value - one.low, other.high - other.value)),
        min(1.0, gap + math.hypot(one.high - one.value, other.value - other.low)),
        one.method,
        one.cancels and other.cancels,
    )


def _over_seeds(runs: Sequence[Value]) -> Value:
    """The mean of independent runs; limits where all have them."""
    value = fmean(run.value for run in runs)
    known = _limited(runs)
    if len(known) < len(runs):
        return Value.without_limits(value)
    limits = summed(known) if all(run.cancels for run in runs) else averaged(known)
    return Value(value, *limits, f"{_methods(runs)}, over {these_runs(len(runs))}")


def _mean(parts: Sequence[Value], what: str = "clients") -> Value:
    """The mean of figures of one run, or of the same runs; limits where all have them."""
    if len(parts) == 1:
        return parts[0]
    value, known = fmean(part.value for part in parts), _limited(parts)
    if len(known) < len(parts):
        return Value.without_limits(value)
    method = f"{_methods(parts)}, limits of {len(parts)} {what} averaged"
    return Value(value, *averaged(known), method, all(part.cancels for part in parts))


def _limited(parts: Sequence[Value]) -> list[Limited[float]]:
    return [
        Limited(part.value, part.low, part.high)
        for part in parts
        if part.low is not None and part.high is not None
    ]


def _methods(parts: Sequence[Value]) -> str:
    return " / ".join(dict.fromkeys(part.method for part in parts))
