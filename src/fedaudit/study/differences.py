"""One figure over seeds and clients, and how far it is from another row's."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.metrics import mean_over_seeds
from fedaudit.study.compared import Difference


class Value(NamedTuple):
    """A figure of one run and client."""

    value: float
    low: float | None = None
    high: float | None = None
    method: str = ""


Values = Mapping[int | None, Mapping[int | None, Value]]
"""A figure by seed and target client."""


class Estimate(NamedTuple):
    """A figure over seeds and clients, with its interval."""

    value: float
    low: float | None
    high: float | None
    method: str
    seeds: int


def restricted(values: Values, targets: Collection[int | None]) -> Values:
    """The values at these targets only; seeds without any are left out."""
    kept = {
        seed: {target: value for target, value in by_target.items() if target in targets}
        for seed, by_target in values.items()
    }
    return {seed: by_target for seed, by_target in kept.items() if by_target}


def reduced(parts: Sequence[Values], how: Callable[[Sequence[float]], float]) -> Values:
    """One value a seed and target from several figures' values, where all of them have one."""
    if not parts:
        return {}
    first = parts[0]
    return {
        seed: {
            target: Value(how([part[seed][target].value for part in parts]))
            for target in by_target
            if all(target in part.get(seed, {}) for part in parts)
        }
        for seed, by_target in first.items()
    }


def estimated(values: Values) -> Estimate | None:
    """The mean over seeds of the mean over clients; None without a value.

    Over seeds, the interval is Student's t, since the samples of one run share one model. With
    one seed, the clients' own limits are combined as if they were independent.
    """
    means = {seed: _mean(by_target) for seed, by_target in values.items() if by_target}
    if not means:
        return None
    if len(means) > 1:
        mean = mean_over_seeds([one.value for one in means.values()], within=(0.0, 1.0))
        return Estimate(mean.value, mean.low, mean.high, mean.method, mean.seeds)
    (one,) = means.values()
    return Estimate(one.value, one.low, one.high, one.method, 1)


def difference(values: Values, base: Values) -> Difference | None:
    """Values minus base's, at the clients and seeds that both have; None without any.

    Seeds are paired: two studies of one seed share clients' data and audited samples, so that
    what they share falls out of the difference. One seed alone gives no spread, and the two
    intervals are combined as if they were independent, which errs on the wide side.

    Source: for one seed, Zou and Donner, Construction of confidence limits about effect
        measures, 2008, Eq. (4).
    """
    pairs = []
    for seed in [seed for seed in values if seed in base]:
        both = [target for target in values[seed] if target in base[seed]]
        if both:
            pairs.append(tuple(_mean({t: side[seed][t] for t in both}) for side in (values, base)))
    if not pairs:
        return None
    gaps = [one.value - other.value for one, other in pairs]
    if len(gaps) > 1:
        mean = mean_over_seeds(gaps, within=(-1.0, 1.0))
        method = mean.method.replace("Student t over", "paired, Student t over")
        return Difference(
            value=mean.value, low=mean.low, high=mean.high, method=method, runs=mean.seeds
        )
    one, other = pairs[0]
    low, high = _combined(one, other)
    method = "one seed, not paired: limits combined" if low is not None else "one seed"
    return Difference(value=gaps[0], low=low, high=high, method=method)


def _combined(one: Value, other: Value) -> tuple[float | None, float | None]:
    limits = (one.low, one.high, other.low, other.high)
    if None in limits:
        return None, None
    low, high, other_low, other_high = (limit or 0.0 for limit in limits)
    gap = one.value - other.value
    return (
        max(-1.0, gap - math.hypot(one.value - low, other_high - other.value)),
        min(1.0, gap + math.hypot(high - one.value, other.value - other_low)),
    )


def _mean(by_target: Mapping[int | None, Value]) -> Value:
    """The mean over clients; limits where all have them."""
    parts = list(by_target.values())
    if len(parts) == 1:
        return parts[0]
    value = fmean(part.value for part in parts)
    below = [part.value - part.low for part in parts if part.low is not None]
    above = [part.high - part.value for part in parts if part.high is not None]
    if len(below) < len(parts) or len(above) < len(parts):
        return Value(value)
    methods = list(dict.fromkeys(part.method for part in parts))
    return Value(
        value,
        value - math.hypot(*below) / len(parts),
        value + math.hypot(*above) / len(parts),
        f"{' / '.join(methods)}, {len(parts)} clients combined",
    )
