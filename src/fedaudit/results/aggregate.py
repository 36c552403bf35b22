"""Averages of estimates over seeds and clients, and differences between rows of a comparison."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedaudit.core.metric_names import rate_of
from fedaudit.metrics import (
    EstimateWithLimits,
    fisher_p_value,
    holm,
    mean_limits_by_p_values,
    mean_limits_if_dependent,
    mean_limits_if_independent,
    student_t_over_seeds,
)
from fedaudit.metrics.intervals import (
    FEWEST_RUNS,
    ConfidenceLimits,
    IntervalEstimate,
    LimitsAt,
    SeedMean,
    too_few_runs,
)
from fedaudit.results.estimate import (
    COUNTS,
    Coordinates,
    Difference,
    Estimate,
    Interval,
    Test,
    errors_cancel,
)


@dataclass(frozen=True)
class Value(IntervalEstimate[float | None]):
    """Estimate for one run and client, possibly without confidence limits.

    Attributes:
        cancels: True if random errors of several runs cancel in their mean, because each run has
            its own samples and its estimate is unbiased. False for accuracies on shared test
            samples and for rates at a threshold that each run chooses.
    """

    cancels: bool = False

    @classmethod
    def without_limits(cls, value: float, *, cancels: bool = False) -> "Value":
        """Return an estimate that has no confidence limits."""
        return cls(value, None, None, "", cancels)


Values = Mapping[int | None, Mapping[int | None, Value]]
"""Estimates by seed and target client. The key None instead of a seed is for estimates over all
runs of the record."""


@dataclass(frozen=True)
class OverSeeds(SeedMean):
    """Mean over seeds and clients, with one interval for these runs and one for further runs."""

    further: Interval | None = None


NO_NARROWER = "no narrower than these runs"
"""Ends the method of an interval for further runs that was widened to contain the interval for the
completed runs."""


def further_runs_interval(
    values: Sequence[float],
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
    limits_of_runs: tuple[float | None, float | None] | None = None,
) -> Interval:
    """Return Student-t limits of the mean over all possible seeds.

    With fewer than five runs there are no limits, and the method says so. The uncertainty about the
    completed runs also applies to the mean over all possible seeds. The interval is therefore
    widened to contain the interval for the completed runs. For rates, that interval is often the
    wider one, because its limits hold at every threshold.

    Args:
        values: The estimate in each run.
        within: Range of the estimate.
        limits_of_runs: Limits for the completed runs, or None if they have no interval. A limit
            that is None means the end of the range.
    """
    if len(values) < FEWEST_RUNS:
        return Interval(method=too_few_runs(len(values)))
    interval = student_t_over_seeds(values, within=within)
    low, high, method = interval.low, interval.high, interval.method
    if limits_of_runs is not None and low is not None and high is not None:
        ends = zip(limits_of_runs, within, strict=True)
        lower, upper = (end if limit is None else limit for limit, end in ends)
        if lower < low or upper > high:
            low, high, method = min(lower, low), max(upper, high), f"{method}, {NO_NARROWER}"
    return Interval(low=low, high=high, method=method)


def describe_runs(runs: int) -> str:
    """Return a phrase for the completed runs, such as "these 3 runs", for an interval's method."""
    return f"these {runs} runs" if runs > 1 else "the one run"


def average_each(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Average estimates over runs, and return the averages in the order of the estimates.

    Args:
        estimates: Estimates of single runs. Estimates that differ only in the seed are averaged.
            The average over one run is the estimate of that run.
    """
    groups: dict[tuple[object, ...], list[Estimate]] = {}
    for estimate in estimates:
        groups.setdefault(without_seed(estimate), []).append(estimate)
    runs: dict[tuple[str, ...], set[int | None]] = {}
    for estimate in estimates:
        runs.setdefault(_study_of(estimate), set()).add(estimate.seed)
    return [
        average_runs(group).model_copy(
            update={"note": _notes_of(group, len(runs[_study_of(group[0])]))}
        )
        for group in groups.values()
    ]


def _study_of(estimate: Estimate) -> tuple[str, ...]:
    return estimate.topic, estimate.algorithm, estimate.attack, estimate.defense, estimate.view


def without_seed(estimate: Estimate) -> tuple[object, ...]:
    """Return a key that is equal for estimates that differ only in the seed."""
    names = [name for name in Coordinates.model_fields if name != "seed"]
    return estimate.metric, estimate.against, *(getattr(estimate, name) for name in names)


def _notes_of(estimates: Sequence[Estimate], runs: int) -> str:
    counts = Counter(estimate.note for estimate in estimates if estimate.note)
    notes = [f"in {times} of {runs} runs {note}" for note, times in counts.items()]
    if len(estimates) < runs:
        notes.append(f"{runs - len(estimates)} of {runs} runs do not have this figure")
    return "; ".join(notes)


def average_runs(estimates: Sequence[Estimate], limits: Sequence[LimitsAt] = ()) -> Estimate:
    """Average an estimate over several runs, with limits for these and for further runs.

    Runs that have no value because of too few samples are left out, and the note mentions them. The
    one-sided tests of the runs are combined into one test.

    Args:
        estimates: The same estimate of each run.
        limits: Limits of each run that has a value, as a function of the confidence. They are
            needed for rates, because each run chooses its own threshold. Without them, a rate over
            several runs has no limits.

    Source: Fisher 1925, section 21.1 (tests of several runs).
    """
    valued = [estimate for estimate in estimates if estimate.value is not None]
    missing = [estimate for estimate in estimates if estimate.value is None]
    reason = f": {missing[0].note}" if missing and missing[0].note else ""
    if not valued:
        note = f"0 of {len(estimates)} seeds gave this figure{reason}"
        return estimates[0].model_copy(update={"seed": None, "note": note})
    if len(estimates) == 1:
        return valued[0].model_copy(update={"seed": None, "tests": _tests_over_runs(valued)})
    values = [estimate.value or 0.0 for estimate in valued]
    is_rate = rate_of(valued[0].metric) is not None
    over_these = _limits_of(valued, limits)
    # For rates, also limits of the fraction of members above the thresholds that the runs used.
    fixed = [(estimate, estimate.at_threshold or Interval()) for estimate in valued if is_rate]
    limited = _limited([(estimate.value, part.low, part.high) for estimate, part in fixed])
    at_threshold = mean_limits_if_independent(limited) if limited else None
    method = f"{_methods(valued)}, over {describe_runs(len(valued))}"
    left_out = f" of {len(estimates)}" if missing else ""
    minimum, maximum = valued[0].range
    if valued[0].metric in COUNTS:
        maximum = max(estimate.ceiling or 0.0 for estimate in valued)
    # Limits from summed variances may leave the range of the estimate.
    these = None
    if over_these is not None:
        these = _lower_limit(over_these.low, valued), min(over_these.high, maximum)
    return valued[0].model_copy(
        update={
            "seed": None,
            "value": fmean(values),
            "low": None if these is None else these[0],
            "high": None if these is None else these[1],
            "method": "" if over_these is None and at_threshold is None else method,
            "tests": _tests_over_runs(valued),
            "n_members": sum(estimate.n_members for estimate in estimates),
            "n_nonmembers": sum(estimate.n_nonmembers for estimate in estimates),
            "samples": sum(estimate.samples for estimate in estimates),
            "labels_alone": _mean_of_known([estimate.labels_alone for estimate in valued]),
            "realised_fpr": None,
            "at_threshold": None
            if at_threshold is None
            else Interval(low=max(at_threshold.low, 0.0), high=min(at_threshold.high, 1.0)),
            "note": f"mean over {len(valued)}{left_out} seeds{reason}",
            "further": further_runs_interval(
                values, within=(minimum, maximum), limits_of_runs=these
            )
            if len(valued) > 1
            else None,
        }
    )


def _tests_over_runs(estimates: Sequence[Estimate]) -> list[Test]:
    """Combine the tests of each null hypothesis that was tested in all runs."""
    combined_tests = []
    for null in dict.fromkeys(test.null for test in estimates[0].tests):
        tested = [
            (estimate, test) for estimate in estimates if (test := estimate.test(null)) is not None
        ]
        p_values = [_one_sided(estimate, test) for estimate, test in tested]
        valid = [p for p in p_values if p is not None]
        if len(tested) == len(estimates):
            combined_tests.append(
                Test(
                    null=null,
                    level=_mean_of_known([test.level for _, test in tested]),
                    high=_mean_of_known([test.high for _, test in tested]),
                    p_value=fisher_p_value(valid) if len(valid) == len(estimates) else None,
                )
            )
    return combined_tests


def _one_sided(estimate: Estimate, test: Test) -> float | None:
    """Return a one-sided p-value of a test, or 1 if the estimate is not above 0."""
    if test.p_value is None or not test.two_sided:
        return test.p_value
    # The exact test is symmetric.
    return test.p_value / 2 if (estimate.value or 0.0) > 0 else 1.0


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return fmean(known_values) if len(known_values) == len(values) else None


def correct_tests(estimates: Sequence[Estimate], alpha: float) -> list[Estimate]:
    """Return the estimates with tests that are corrected for multiple testing.

    Args:
        estimates: All estimates among which a reader could pick the largest. Their tests of one
            null hypothesis form a family.
        alpha: Significance level of each family, in (0, 1).

    Source: Holm 1979.
    """
    changed = {index: dict[str, Test]() for index in range(len(estimates))}
    for null in dict.fromkeys(test.null for estimate in estimates for test in estimate.tests):
        family = [
            (index, test)
            for index, estimate in enumerate(estimates)
            if (test := estimate.test(null)) is not None and test.p_value is not None
        ]
        correction = holm([test.p_value for _, test in family], alpha=alpha)
        outcomes = zip(family, correction.adjusted, correction.significant, strict=True)
        for (index, test), adjusted, significant in outcomes:
            outcome = {"adjusted": adjusted, "significant": bool(significant)}
            changed[index][null] = test.model_copy(update=outcome)
    return [
        estimate.model_copy(
            update={"tests": [changed[index].get(test.null, test) for test in estimate.tests]}
        )
        for index, estimate in enumerate(estimates)
    ]


def _lower_limit(low: float, estimates: Sequence[Estimate]) -> float | None:
    """Return a lower confidence limit within the estimate's range.

    It is None if no run has a lower limit and ``low`` does not exceed the end of the range.
    """
    minimum = estimates[0].range.minimum
    if low <= minimum and all(estimate.low is None for estimate in estimates):
        return None
    return max(low, minimum)


def _limits_of(
    estimates: Sequence[Estimate], limits: Sequence[LimitsAt]
) -> ConfidenceLimits | None:
    if rate_of(estimates[0].metric) is not None:
        return mean_limits_by_p_values(limits) if len(limits) == len(estimates) else None
    limited = _limited([(estimate.value, estimate.low, estimate.high) for estimate in estimates])
    combine = (
        mean_limits_if_independent
        if errors_cancel(estimates[0].metric)
        else mean_limits_if_dependent
    )
    return None if limited is None else combine(limited)


def _limited(
    estimates: Sequence[tuple[float | None, float | None, float | None]],
) -> list[EstimateWithLimits[float]] | None:
    """Return values with their limits; None if a value or a limit is missing."""
    limited = [
        EstimateWithLimits(value, low, high)
        for value, low, high in estimates
        if value is not None and low is not None and high is not None
    ]
    return limited if len(limited) == len(estimates) else None


def restrict_targets(values: Values, targets: Collection[int | None]) -> Values:
    """Return the values of the given targets, without seeds that have none of them."""
    by_seed = {
        seed: {target: value for target, value in by_target.items() if target in targets}
        for seed, by_target in values.items()
    }
    return {seed: by_target for seed, by_target in by_seed.items() if by_target}


def average_estimates(parts: Sequence[Values]) -> Values:
    """Return the mean of several estimates, for each seed and target that all of them have.

    Estimates of one run are computed on the same samples, so their limits are averaged. A record's
    estimates over its runs are averaged only if they all cover the same runs.
    """
    return {
        seed: {target: _mean(values, "figures") for target, values in by_target.items()}
        for seed, by_target in _shared(parts).items()
    }


def _shared(parts: Sequence[Values]) -> dict[int | None, dict[int | None, list[Value]]]:
    """Return the values of all parts at the seeds and targets that all of them have."""
    if not parts:
        return {}
    shared = {
        seed: {
            target: [part[seed][target] for part in parts]
            for target in by_target
            if all(target in part.get(seed, {}) for part in parts)
            if seed is not None or len({seeds_of(part, target) for part in parts}) == 1
        }
        for seed, by_target in parts[0].items()
    }
    return {seed: by_target for seed, by_target in shared.items() if by_target}


def seeds_of(values: Values, target: int | None) -> frozenset[int]:
    """Return the seeds of the runs that have a value at a target."""
    return frozenset(s for s, by_target in values.items() if s is not None and target in by_target)


def mean_over_seeds(values: Values) -> OverSeeds | None:
    """Return the mean over seeds of the mean over clients; None if there are no values.

    Clients of one run share a model, so their limits are averaged. If the record has limits over
    its seeds for every client, these are used. Otherwise the limits of its runs are combined.
    """
    means = {s: _mean(list(row.values())) for s, row in values.items() if row and s is not None}
    of_record = values.get(None, {})
    if not means and not of_record:
        return None
    runs = list(means.values()) or [_mean(list(of_record.values()))]
    if len(runs) == 1:
        (run,) = runs
        return OverSeeds(run.value, run.low, run.high, run.method, 1)
    targets = {target for by_target in values.values() for target in by_target}
    mean = _mean(list(of_record.values())) if targets == set(of_record) else _over_seeds(runs)
    these = None if mean.low is None and mean.high is None else (mean.low, mean.high)
    further = further_runs_interval(
        [run.value for run in runs], within=(0.0, 1.0), limits_of_runs=these
    )
    value = fmean(run.value for run in runs)
    return OverSeeds(value, mean.low, mean.high, mean.method, len(runs), further)


def difference(values: Values, base: Values) -> Difference | None:
    """Return the mean difference between two estimates, at the clients and seeds that both have.

    Two studies with one seed have the same client data and audited samples. Seeds are therefore
    paired, so that effects on both studies cancel. The two intervals of a seed are combined as if
    they were independent, which makes the result conservative.

    Returns:
        Difference ``values`` - ``base``; None if they have no seed and client in common.

    Source: Zou and Donner, Construction of confidence limits about effect measures, 2008, Eq. (4).
    """
    gaps = []
    for seed in [seed for seed in values if seed in base and seed is not None]:
        shared = [target for target in values[seed] if target in base[seed]]
        if shared:
            means = (_mean([side[seed][target] for target in shared]) for side in (values, base))
            gaps.append(subtract_estimates(*means))
    return mean_difference(gaps)


def mean_difference(gaps: Sequence[Value]) -> Difference | None:
    """Return the mean of the differences of several seeds; None if no seed has a difference."""
    if not gaps:
        return None
    if len(gaps) == 1:
        (single,) = gaps
        method = "one seed, not paired: limits combined" if single.low is not None else "one seed"
        return Difference(value=single.value, low=single.low, high=single.high, method=method)
    mean = _over_seeds(gaps)
    low = None if mean.low is None else max(-1.0, mean.low)
    high = None if mean.high is None else min(1.0, mean.high)
    these = None if low is None or high is None else (low, high)
    return Difference(
        value=mean.value,
        low=low,
        high=high,
        method=f"paired by seed, over {describe_runs(len(gaps))}",
        runs=len(gaps),
        further=further_runs_interval([gap.value for gap in gaps], limits_of_runs=these),
    )


def subtract_estimates(estimate: Value, other: Value) -> Value:
    """Return the difference of two estimates, with limits combined as if they were independent."""
    gap = estimate.value - other.value
    if estimate.low is None or estimate.high is None or other.low is None or other.high is None:
        return Value.without_limits(gap)
    return Value(
        gap,
        max(-1.0, gap - math.hypot(estimate.value - estimate.low, other.high - other.value)),
        min(1.0, gap + math.hypot(estimate.high - estimate.value, other.value - other.low)),
        estimate.method,
        estimate.cancels and other.cancels,
    )


def _over_seeds(runs: Sequence[Value]) -> Value:
    """Return the mean over independent runs, with limits if all runs have them."""
    value = fmean(run.value for run in runs)
    limited = _limited([(run.value, run.low, run.high) for run in runs])
    if limited is None:
        return Value.without_limits(value)
    limits = (
        mean_limits_if_independent(limited)
        if all(run.cancels for run in runs)
        else mean_limits_if_dependent(limited)
    )
    return Value(value, *limits, f"{_methods(runs)}, over {describe_runs(len(runs))}")


def _mean(parts: Sequence[Value], what: str = "clients") -> Value:
    """Return the mean of estimates of the same runs, with limits if all estimates have them."""
    if len(parts) == 1:
        return parts[0]
    value = fmean(part.value for part in parts)
    limited = _limited([(part.value, part.low, part.high) for part in parts])
    if limited is None:
        return Value.without_limits(value)
    method = f"{_methods(parts)}, limits of {len(parts)} {what} averaged"
    return Value(
        value, *mean_limits_if_dependent(limited), method, all(part.cancels for part in parts)
    )


def _methods(parts: Sequence[Value] | Sequence[Estimate]) -> str:
    return " / ".join(dict.fromkeys(part.method for part in parts))
