"""Leakage averaged over attacks, the strongest attack, and privacy-utility fronts of defenses."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist, fmean
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from fedaudit.core.metric_names import AUC
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics import advantage, hypervolume_over_seeds, is_pareto_optimal
from fedaudit.results.aggregate import (
    Value,
    Values,
    average_estimates,
    mean_over_seeds,
    restrict_targets,
    seeds_of,
)
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    MIRRORED,
    STRONGEST_ATTACK,
    Front,
    FrontPoint,
    Row,
)
from fedaudit.results.estimate import NO_DEFENSE, Estimate, Interval
from fedaudit.results.guessing import above_chance

Direction = Literal[-1, 0, 1]
"""1 for an attack that is above chance level without a defense, -1 for an attack whose AUC is below
chance level, and 0 for all others."""

ERROR = 0.05
"""Error level, over all attacks together, of the decision that an AUC without a defense is below
chance level."""
_DELONG_WIDTH = -NormalDist().inv_cdf(0.025)
"""Distance from an AUC to its 95% limit, in standard errors."""


class AttackKey(NamedTuple):
    """Coordinates of an attack's estimates within one row or record."""

    attack: str
    contrast: str
    metric: str


Directions = Mapping[AttackKey, Mapping[int | None, Direction]]
"""Direction of each attack at each target client."""


def directions_of(undefended: Sequence[Estimate]) -> Directions:
    """Decide for each attack and client whether it counts in averages, and in which direction.

    Only the undefended estimate decides. Averages of defended rows use the same attacks in the same
    direction. For a mirrored attack, an AUC further below .5 is therefore a larger leak, and noise
    is never mirrored upwards. An attack that is at chance level without a defense provides no
    information about a defense and does not count.

    Args:
        undefended: Attack estimates of an undefended record. Estimates over several runs decide. If
            there are none, estimates of single runs decide, unless they contradict each other.

    Returns:
        1 if the estimate is above chance by its corrected test and its limit
        (:func:`fedaudit.results.guessing.above_chance`). -1 if an AUC is below .5 at an error of 5
        % over all attacks on this client (Bonferroni); its AUC is then replaced by 1 - AUC. 0 for
        all others, and for estimates that a failed control invalidates.
    """
    groups: dict[AttackKey, dict[int | None, list[Estimate]]] = {}
    for estimate in undefended:
        if estimate.is_of_attack and estimate.value is not None:
            key = AttackKey(estimate.attack, estimate.contrast, estimate.metric)
            groups.setdefault(key, {}).setdefault(estimate.target, []).append(estimate)
    tested = Counter(
        (key.contrast, key.metric, target) for key, group in groups.items() for target in group
    )
    return {
        key: {
            target: _direction(estimates, tested[key.contrast, key.metric, target])
            for target, estimates in by_target.items()
        }
        for key, by_target in groups.items()
    }


def _direction(estimates: Sequence[Estimate], tested: int) -> Direction:
    over_runs = [estimate for estimate in estimates if estimate.seed is None] or estimates
    above = any(above_chance(estimate) for estimate in over_runs)
    below = any(_below_chance(estimate, tested) for estimate in over_runs)
    return 0 if above == below else 1 if above else -1


def _below_chance(estimate: Estimate, tested: int) -> bool:
    """Return True if an AUC is significantly below .5, corrected for the number of attacks."""
    if estimate.metric != AUC or estimate.value is None or estimate.high is None or estimate.doubt:
        return False
    standard_error = (estimate.high - estimate.value) / _DELONG_WIDTH
    return estimate.value - standard_error * NormalDist().inv_cdf(ERROR / 2 / tested) < 0.5


class Average(NamedTuple):
    """Estimate that is computed from the estimates of several attacks.

    Attributes:
        values: The estimate by seed and target client.
        attacks: Attacks that are included, for each target; "NAME, mirrored" for an attack whose
            AUC is replaced by 1 - AUC.
    """

    values: Values
    attacks: Mapping[int | None, tuple[str, ...]]


def average_attacks(
    estimates: Mapping[str, Values], directions: Mapping[str, Mapping[int | None, Direction]]
) -> Average:
    """Average the attacks that count on each client.

    Returns:
        Averages, without clients on which no attack counts, and without seeds for which one of the
        attacks has no estimate.
    """
    total = Average(values={}, attacks={})
    for target in _targets(estimates.values()):
        signs = {attack: directions.get(attack, {}).get(target, 0) for attack in estimates}
        signed_attacks = {attack: sign for attack, sign in signs.items() if sign}
        if signed_attacks:
            parts = [
                _orient(restrict_targets(estimates[a], {target}), sign)
                for a, sign in signed_attacks.items()
            ]
            total = _add_target(total, target, average_estimates(parts), signed_attacks)
    return total


def strongest_attacks(
    estimates: Mapping[str, Values], directions: Mapping[str, Mapping[int | None, Direction]]
) -> Average:
    """Return the estimates of the attack that has the largest mean over runs on each client.

    All attacks of the row are candidates, even if they do not count in averages, because an attack
    may be designed for a defense. The largest of several estimates is biased upwards.

    Attacks are compared over the same runs. Only attacks with the most runs on a client are
    candidates, and they are compared over the runs that all of them have.

    Args:
        estimates: Estimates of one row by attack.
        directions: Each attack's direction at each client, from the undefended row. An attack that
            is mirrored there is also mirrored here.

    Returns:
        The chosen attack's estimates. Their upper limit is the largest upper limit of all attacks,
        since the true estimate of another attack may be larger.
    """
    total = Average(values={}, attacks={})
    for target in _targets(estimates.values()):
        signs = {a: directions.get(a, {}).get(target, 0) or 1 for a in estimates}
        candidates = {
            a: _orient(restrict_targets(v, {target}), signs[a]) for a, v in estimates.items()
        }
        candidates = {attack: values for attack, values in candidates.items() if values}
        attack_name = _largest(candidates, target)
        values = _with_largest_limit(candidates[attack_name], list(candidates.values()), target)
        total = _add_target(total, target, values, {attack_name: signs[attack_name]})
    return total


def _add_target(
    total: Average, target: int | None, values: Values, signs: Mapping[str, Direction]
) -> Average:
    """Add the estimate of one client, and the attacks that it is computed from."""
    names = tuple(f"{a}, {MIRRORED}" if sign < 0 else a for a, sign in signs.items())
    merged = {seed: dict(by_target) for seed, by_target in total.values.items()}
    for seed, by_target in values.items():
        merged.setdefault(seed, {}).update(by_target)
    return Average(merged, {**total.attacks, target: names})


def _with_largest_limit(chosen: Values, every: Sequence[Values], target: int | None) -> Values:
    limited: dict[int | None, dict[int | None, Value]] = {}
    for seed, by_target in chosen.items():
        highs = [values[seed][target].high for values in every if seed in values]
        limits = [high for high in highs if high is not None]
        high = max(limits) if limits and len(limits) == len(highs) else None
        value = by_target[target]
        low = None if high is None else value.low
        limited[seed] = {target: replace(value, low=low, high=high)}
    return limited


def mirrored_auc(value: Value) -> Value:
    """Return the AUC of the opposite scores, 1 - AUC, with its limits."""
    return replace(
        value,
        value=1 - value.value,
        low=None if value.high is None else 1 - value.high,
        high=None if value.low is None else 1 - value.low,
    )


def _orient(values: Values, direction: Direction) -> Values:
    if direction >= 0:
        return values
    return {
        seed: {target: mirrored_auc(value) for target, value in by_target.items()}
        for seed, by_target in values.items()
    }


def _targets(estimates: Collection[Values]) -> list[int | None]:
    targets = {t for values in estimates for by_target in values.values() for t in by_target}
    return sorted(targets, key=lambda target: (target is None, target or 0))


def _largest(estimates: Mapping[str, Values], target: int | None) -> str:
    """Return the attack with the largest mean on a client, among attacks with the most runs."""
    runs = {attack: seeds_of(values, target) for attack, values in estimates.items()}
    n_runs = max(map(len, runs.values()))
    candidates = [attack for attack in estimates if len(runs[attack]) == n_runs]
    shared = frozenset.intersection(*(runs[attack] for attack in candidates))

    def mean(attack: str) -> float:
        # Without shared runs, each attack is averaged over its own runs.
        seeds: Collection[int | None] = shared or runs[attack] or {None}
        return fmean(estimates[attack][seed][target].value for seed in seeds)

    return max(candidates, key=mean)


Leaks = Mapping[tuple[str, str, str], Values]
"""Estimates of a row by attack, contrast and metric."""

_BySeed = Mapping[int | None, float]
_Axis = Callable[[float], float]
"""Function from an estimate to its position on an axis of a front."""


class _Family(NamedTuple):
    """Rows of one defense, coalition and setting, after the undefended row if there is one."""

    rows: tuple[int, ...]
    targets: frozenset[int | None]


class _Shared(NamedTuple):
    """Leakage and error of the rows of a family that have both, at their common seeds.

    Attributes:
        positions: Positions of these rows in the family.
        seeds: Seeds that all of these rows have.
        runs: Leakage and error of each row at each seed.
    """

    positions: list[int]
    seeds: list[int | None]
    runs: Float[np.ndarray, "seeds rows 2"]


def tradeoff_fronts(
    rows: Sequence[Row],
    leaks: Sequence[Leaks],
    accuracies: Sequence[Values],
    inside: Sequence[Collection[int | None]],
) -> list[Front]:
    """Return a front for each defense and coalition, attack, contrast and metric.

    A front's points are its rows and the undefended one, measured on the clients that use the
    defense. Leakage is an AUC's advantage over guessing, or a true-positive rate. The strongest
    attack is chosen once for each row and client
    (:func:`fedaudit.results.tradeoffs.strongest_attacks`).

    Returns:
        An empty list if no row is defended.
    """
    if all(row.family == NO_DEFENSE for row in rows):
        return []
    computed = []
    for family in _families(rows, inside):
        keys = dict.fromkeys(key for row in family.rows for key in leaks[row])
        for contrast, metric in dict.fromkeys((key[1], key[2]) for key in keys):
            attacks = [a for a, c, m in keys if (c, m) == (contrast, metric) and a != EVERY_ATTACK]
            for attack in sorted(attacks, key=lambda name: name != STRONGEST_ATTACK):
                leakage = [
                    restrict_targets(leaks[row].get((attack, contrast, metric), {}), family.targets)
                    for row in family.rows
                ]
                front = _front(rows, family, leakage, accuracies, (attack, contrast, metric))
                if front is not None:
                    computed.append(front)
    return computed


def _families(rows: Sequence[Row], inside: Sequence[Collection[int | None]]) -> list[_Family]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for position, row in enumerate(rows):
        key = (row.family, str(row.coalition), str(row.clients), str(row.settings))
        groups.setdefault(key, []).append(position)
    families = []
    for members in groups.values():
        first = rows[members[0]]
        undefended_index = None if first.family == NO_DEFENSE else undefended_base(rows, members[0])
        with_base = members if undefended_index is None else (undefended_index, *members)
        targets = frozenset(target for row in members for target in inside[row])
        families.append(_Family(tuple(with_base), targets))
    return families


def undefended_base(rows: Sequence[Row], index: int) -> int | None:
    """Return the base of a row if it is undefended and has the same other settings; else None.

    Any other base is just the first row, which shows neither what the defense costs nor how much it
    reduces leakage.
    """
    base = rows[index].base
    if base is None or rows[base].family != NO_DEFENSE:
        return None
    return base if rows[base].settings == rows[index].settings else None


def _error(accuracy: float) -> float:
    return 1 - accuracy


def _by_seed(values: Values, axis: _Axis) -> _BySeed:
    """Return the mean over clients for each run, or the record's estimate if it has no runs."""
    return {
        seed: axis(fmean(value.value for value in by_target.values()))
        for seed, by_target in values.items()
        if by_target and (seed is not None or len(values) == 1)
    }


def _front(
    rows: Sequence[Row],
    family: _Family,
    leaks: Sequence[Values],
    accuracies: Sequence[Values],
    key: tuple[str, str, str],
) -> Front | None:
    attack, contrast, metric = key
    axis: _Axis = advantage if metric == AUC else float
    by_row = [accuracies[row] for row in family.rows]
    errors = [
        {seed: _error(by_target[None].value) for seed, by_target in values.items()}
        for values in by_row
    ]
    shared = _shared([_by_seed(values, axis) for values in leaks], errors)
    if shared is None:
        return None
    area, gain = (
        hypervolume_over_seeds(
            shared.runs, rng=seeded_numpy(0, "hypervolume", *key), n_baseline_points=beyond
        )
        for beyond in (0, 1)
    )
    first_row, row = rows[family.rows[0]], rows[family.rows[-1]]
    has_undefended = first_row.family == NO_DEFENSE and shared.positions[0] == 0
    has_gain = has_undefended and len(shared.positions) > 1
    means, points = shared.runs.mean(axis=0), []
    for position, (leak, error), is_best in zip(
        shared.positions, means, is_pareto_optimal(means), strict=True
    ):
        lost = None
        if has_undefended:
            lost = lost_share(float(means[0][1]), float(error), first_row.guess)
        points.append(
            FrontPoint(
                row=family.rows[position],
                leakage=float(leak),
                error=float(error),
                on_front=bool(is_best),
                leakage_limits=_limits(leaks[position], shared.seeds, axis),
                error_limits=_limits(by_row[position], shared.seeds, _error),
                lost=lost,
            )
        )
    return Front(
        family=row.family,
        coalition=row.coalition,
        clients=row.clients,
        settings=row.settings,
        attack=attack,
        contrast=contrast,
        metric=metric,
        points=points,
        hypervolume=area.value,
        low=area.low,
        high=area.high,
        gain=gain.value if has_gain else None,
        gain_low=gain.low if has_gain else None,
        gain_high=gain.high if has_gain else None,
        method=area.method,
        seeds=area.seeds,
    )


def _shared(leakage: Sequence[_BySeed], errors: Sequence[_BySeed]) -> _Shared | None:
    """Return the rows that have both estimates at their common seeds; None without such seeds."""
    common_attacks = [
        leaks.keys() & wrong.keys() for leaks, wrong in zip(leakage, errors, strict=True)
    ]
    positions = [position for position, seeds in enumerate(common_attacks) if seeds]
    # In the order of the first row, since a bootstrap over seeds depends on their order.
    first = leakage[positions[0]] if positions else ()
    seeds = [
        seed for seed in first if all(seed in common_attacks[position] for position in positions)
    ]
    if not seeds:
        return None
    runs = [
        [(leakage[position][seed], errors[position][seed]) for position in positions]
        for seed in seeds
    ]
    return _Shared(positions, seeds, np.array(runs))


def _limits(values: Values, seeds: Sequence[int | None], axis: _Axis) -> Interval | None:
    """Return limits of the mean over some seeds.

    The record's own limits are used only if the seeds include all of its seeds.
    """
    runs = {seed for seed in values if seed is not None}
    chosen_values = {
        s: row for s, row in values.items() if s in seeds or (s is None and runs <= {*seeds})
    }
    mean = mean_over_seeds(chosen_values)
    if mean is None or mean.low is None or mean.high is None:
        return None
    low, high = sorted((axis(mean.low), axis(mean.high)))
    return Interval(low=low, high=high, method=mean.method)


def lost_share(undefended: float, error: float, guess: float | None) -> float | None:
    """Return the fraction of the undefended accuracy above chance that another model lost.

    Args:
        undefended: Test error of the undefended model, in [0, 1].
        error: Test error of the other model, in [0, 1].
        guess: Accuracy of always predicting the most frequent class, in [0, 1]; None counts as 0.

    Returns:
        1 for a model that is no better than chance; negative for a model with a smaller error than
        the undefended model. None if the undefended model is no better than chance.
    """
    learned = 1 - undefended - (guess or 0.0)
    # Smaller differences are rounding errors: no test set has a billion samples.
    return min((error - undefended) / learned, 1.0) if learned > 1e-9 else None
