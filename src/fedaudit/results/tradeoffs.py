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
from fedaudit.metrics import advantage, hypervolume_over_seeds, on_front
from fedaudit.results.aggregate import Value, Values, estimated, mean_of, restricted, runs_of
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
"""1 for an attack that is above chance undefended, -1 for one whose AUC is below, 0 for neither."""

ERROR = 0.05
"""Error level, over all attacks together, of calling an undefended AUC lower than chance."""
_DELONG_WIDTH = -NormalDist().inv_cdf(0.025)
"""Standard errors from an AUC to its 95% limit."""


class AttackKey(NamedTuple):
    """The coordinates of an attack's figure within one row or record."""

    attack: str
    contrast: str
    metric: str


Directions = Mapping[AttackKey, Mapping[int | None, Direction]]
"""Each attack's direction by target client."""


def directions_of(undefended: Sequence[Estimate]) -> Directions:
    """Decide for each attack and client whether it counts in averages, and in which direction.

    The undefended figure alone decides. Averages of defended rows use the same attacks in the
    same direction, so that a defense gains nothing by pushing an AUC further below .5, and no
    row's noise is folded upwards. An attack that finds nothing undefended says nothing about a
    defense and is left out.

    Args:
        undefended: Attack figures of an undefended record. Figures over its runs decide where it
            has any; else those of its runs, which must not contradict each other.

    Returns:
        1 where the figure is above chance by its corrected test and its limit
        (:func:`fedaudit.results.guessing.above_chance`). -1 where an AUC is below .5 at an error
        of 5 % over all attacks on this client (Bonferroni); its figures are then read as 1 - AUC.
        0 for all others, also for figures that a failed control takes back.
    """
    groups: dict[AttackKey, dict[int | None, list[Estimate]]] = {}
    for figure in undefended:
        if figure.attack and figure.value is not None:
            key = AttackKey(figure.attack, figure.contrast, figure.metric)
            groups.setdefault(key, {}).setdefault(figure.target, []).append(figure)
    tested = Counter(
        (key.contrast, key.metric, target) for key, by in groups.items() for target in by
    )
    return {
        key: {
            target: _direction(figures, tested[key.contrast, key.metric, target])
            for target, figures in by_target.items()
        }
        for key, by_target in groups.items()
    }


def _direction(figures: Sequence[Estimate], tested: int) -> Direction:
    over_runs = [figure for figure in figures if figure.seed is None] or figures
    above = any(above_chance(figure) for figure in over_runs)
    below = any(_below_chance(figure, tested) for figure in over_runs)
    return 0 if above == below else 1 if above else -1


def _below_chance(figure: Estimate, tested: int) -> bool:
    """Return True if an AUC is below .5, corrected for the number of attacks."""
    if figure.metric != AUC or figure.value is None or figure.high is None or figure.doubt:
        return False
    standard_error = (figure.high - figure.value) / _DELONG_WIDTH
    return figure.value - standard_error * NormalDist().inv_cdf(ERROR / 2 / tested) < 0.5


class Average(NamedTuple):
    """A figure made of several attacks' figures.

    Attributes:
        values: By seed and target client.
        attacks: Attacks that went into it, for each target; one that is read as 1 - AUC is called
            "NAME, mirrored".
    """

    values: Values
    attacks: Mapping[int | None, tuple[str, ...]]


def average(
    figures: Mapping[str, Values], directions: Mapping[str, Mapping[int | None, Direction]]
) -> Average:
    """Average the attacks that count, client by client.

    Args:
        figures: Figures of one row by attack.
        directions: Each attack's direction at each client, from the undefended row.

    Returns:
        No value for a client on which no attack counts, nor for a seed that one of them lacks.
    """
    made = Average({}, {})
    for target in _targets(figures.values()):
        signs = {attack: directions.get(attack, {}).get(target, 0) for attack in figures}
        counted = {attack: sign for attack, sign in signs.items() if sign}
        if counted:
            own = [_read(restricted(figures[a], {target}), sign) for a, sign in counted.items()]
            made = _added(made, target, mean_of(own), counted)
    return made


def strongest(
    figures: Mapping[str, Values], directions: Mapping[str, Mapping[int | None, Direction]]
) -> Average:
    """Choose the attack with the largest figure on each client, the same one in all runs.

    All attacks of the row take part, whether or not they count undefended: an attack may be made
    for a defense. The largest of several figures errs upwards.

    Attacks are compared over the same runs: those that have every run of the row on the client
    take part. Without such an attack those with the most runs do, by the runs that they share.

    Args:
        figures: Figures of one row by attack.
        directions: Each attack's direction at each client, from the undefended row. An attack
            that is mirrored there is mirrored here.

    Returns:
        The chosen attack's figures. The upper limit is the largest of all attacks', since the
        truly strongest one may be another.
    """
    made = Average({}, {})
    for target in _targets(figures.values()):
        signs = {a: directions.get(a, {}).get(target, 0) or 1 for a in figures}
        here = {a: _read(restricted(v, {target}), signs[a]) for a, v in figures.items()}
        here = {attack: values for attack, values in here.items() if values}
        chosen = _largest(here, target)
        values = _with_largest_limit(here[chosen], list(here.values()), target)
        made = _added(made, target, values, {chosen: signs[chosen]})
    return made


def _added(
    made: Average, target: int | None, values: Values, signs: Mapping[str, Direction]
) -> Average:
    """Add the figure of one client, and the attacks that went into it."""
    names = tuple(f"{a}, {MIRRORED}" if sign < 0 else a for a, sign in signs.items())
    every = {seed: dict(by) for seed, by in made.values.items()}
    for seed, by_target in values.items():
        every.setdefault(seed, {}).update(by_target)
    return Average(every, {**made.attacks, target: names})


def _with_largest_limit(chosen: Values, every: Sequence[Values], target: int | None) -> Values:
    found: dict[int | None, dict[int | None, Value]] = {}
    for seed, by_target in chosen.items():
        highs = [one[seed][target].high for one in every if seed in one]
        known = [high for high in highs if high is not None]
        high = max(known) if known and len(known) == len(highs) else None
        value = by_target[target]
        low = None if high is None else value.low
        found[seed] = {target: replace(value, low=low, high=high)}
    return found


def mirrored(value: Value) -> Value:
    """Return the AUC of the opposite scores, 1 - AUC, with its limits."""
    return replace(
        value,
        value=1 - value.value,
        low=None if value.high is None else 1 - value.high,
        high=None if value.low is None else 1 - value.low,
    )


def _read(values: Values, direction: Direction) -> Values:
    if direction >= 0:
        return values
    return {
        seed: {target: mirrored(value) for target, value in by_target.items()}
        for seed, by_target in values.items()
    }


def _targets(figures: Collection[Values]) -> list[int | None]:
    found = {target for values in figures for by in values.values() for target in by}
    return sorted(found, key=lambda target: (target is None, target or 0))


def _largest(figures: Mapping[str, Values], target: int | None) -> str:
    """Return the attack with the largest mean on a client, of those with the most runs."""
    runs = {attack: runs_of(values, target) for attack, values in figures.items()}
    most = max(map(len, runs.values()))
    fullest = [attack for attack in figures if len(runs[attack]) == most]
    shared = frozenset.intersection(*(runs[attack] for attack in fullest))

    def mean(attack: str) -> float:
        # Without a run, or one of all, each is taken over what it has.
        seeds: Collection[int | None] = shared or runs[attack] or {None}
        return fmean(figures[attack][seed][target].value for seed in seeds)

    return max(fullest, key=mean)


Leaks = Mapping[tuple[str, str, str], Values]
"""Figures of a row by attack, contrast and metric."""

_BySeed = Mapping[int | None, float]
_Axis = Callable[[float], float]
"""From a figure to its place on an axis of a front."""


class _Family(NamedTuple):
    """Rows of one defense, coalition and setting, with the undefended row in front."""

    rows: tuple[int, ...]
    targets: frozenset[int | None]


class _Shared(NamedTuple):
    """Rows of a family with both figures, the seeds that all of them have, and leakage and error.

    Attributes:
        places: Positions of the rows in the family.
        seeds: Runs that all of them have.
        runs: Leakage and error of each, seed by seed.
    """

    places: list[int]
    seeds: list[int | None]
    runs: Float[np.ndarray, "seeds places 2"]


def fronts(
    rows: Sequence[Row],
    leaks: Sequence[Leaks],
    accuracies: Sequence[Values],
    inside: Sequence[Collection[int | None]],
) -> list[Front]:
    """Return a front for each defense and coalition, attack, contrast and metric.

    A front's points are its rows and the undefended one, measured on the clients that use the
    defense. Leakage is an AUC's advantage over guessing, or a true-positive rate; the strongest
    attack is chosen once for each row and client (:func:`fedaudit.results.tradeoffs.strongest`).

    Args:
        rows: Of the comparison.
        leaks: Figures of each row's attacks, the strongest attack's among them.
        accuracies: And of test accuracy.
        inside: Audited clients that each row's defense is of.

    Returns:
        None of them where nothing is defended.
    """
    if all(row.family == NO_DEFENSE for row in rows):
        return []
    found = []
    for family in _families(rows, inside):
        keys = dict.fromkeys(key for row in family.rows for key in leaks[row])
        for contrast, metric in dict.fromkeys((key[1], key[2]) for key in keys):
            attacks = [a for a, c, m in keys if (c, m) == (contrast, metric) and a != EVERY_ATTACK]
            for attack in sorted(attacks, key=lambda name: name != STRONGEST_ATTACK):
                drawn = [
                    restricted(leaks[row].get((attack, contrast, metric), {}), family.targets)
                    for row in family.rows
                ]
                front = _front(rows, family, drawn, accuracies, (attack, contrast, metric))
                if front is not None:
                    found.append(front)
    return found


def _families(rows: Sequence[Row], inside: Sequence[Collection[int | None]]) -> list[_Family]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, row in enumerate(rows):
        key = (row.family, str(row.coalition), str(row.clients), str(row.settings))
        groups.setdefault(key, []).append(place)
    found = []
    for members in groups.values():
        first = rows[members[0]]
        bare = None if first.family == NO_DEFENSE else undefended_base(rows, members[0])
        with_base = members if bare is None else (bare, *members)
        targets = frozenset(target for row in members for target in inside[row])
        found.append(_Family(tuple(with_base), targets))
    return found


def undefended_base(rows: Sequence[Row], at: int) -> int | None:
    """Return the row's base if it is undefended and has the row's other settings; else None.

    A row without an undefended one of its settings has the first row as its base, which shows
    neither what the defense costs nor what it lowers.
    """
    base = rows[at].base
    if base is None or rows[base].family != NO_DEFENSE:
        return None
    return base if rows[base].settings == rows[at].settings else None


def _same(value: float) -> float:
    return value


def _error(accuracy: float) -> float:
    return 1 - accuracy


def _by_seed(values: Values, axis: _Axis) -> _BySeed:
    """Return the mean over clients for each run, or over all runs where no run is known."""
    runs = {s: by for s, by in values.items() if by and (s is not None or len(values) == 1)}
    return {seed: axis(fmean(v.value for v in by.values())) for seed, by in runs.items()}


def _front(
    rows: Sequence[Row],
    family: _Family,
    leaks: Sequence[Values],
    accuracies: Sequence[Values],
    what: tuple[str, str, str],
) -> Front | None:
    attack, contrast, metric = what
    axis: _Axis = advantage if metric == AUC else _same
    right = [accuracies[row] for row in family.rows]
    errors = [{s: _error(by[None].value) for s, by in values.items()} for values in right]
    shared = _shared([_by_seed(values, axis) for values in leaks], errors)
    if shared is None:
        return None
    area, gain = (
        hypervolume_over_seeds(
            shared.runs, rng=seeded_numpy(0, "hypervolume", *what), beyond=beyond
        )
        for beyond in (0, 1)
    )
    bare, row = rows[family.rows[0]], rows[family.rows[-1]]
    undefended = bare.family == NO_DEFENSE and shared.places[0] == 0
    gained = undefended and len(shared.places) > 1
    means, points = shared.runs.mean(axis=0), []
    for place, (leak, error), kept in zip(shared.places, means, on_front(means), strict=True):
        lost = lost_share(float(means[0][1]), float(error), bare.guess) if undefended else None
        points.append(
            FrontPoint(
                row=family.rows[place],
                leakage=float(leak),
                error=float(error),
                on_front=bool(kept),
                leakage_limits=_limits(leaks[place], shared.seeds, axis),
                error_limits=_limits(right[place], shared.seeds, _error),
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
        gain=gain.value if gained else None,
        gain_low=gain.low if gained else None,
        gain_high=gain.high if gained else None,
        method=area.method,
        seeds=area.seeds,
    )


def _shared(leakage: Sequence[_BySeed], errors: Sequence[_BySeed]) -> _Shared | None:
    """Return the rows with both figures and their common seeds; None where there are none."""
    both = [leaks.keys() & wrong.keys() for leaks, wrong in zip(leakage, errors, strict=True)]
    places = [place for place, seeds in enumerate(both) if seeds]
    # In the order of the first row: a bootstrap over seeds draws by their places.
    first = leakage[places[0]] if places else ()
    seeds = [seed for seed in first if all(seed in both[place] for place in places)]
    if not seeds:
        return None
    runs = [[(leakage[place][seed], errors[place][seed]) for place in places] for seed in seeds]
    return _Shared(places, seeds, np.array(runs))


def _limits(values: Values, seeds: Sequence[int | None], axis: _Axis) -> Interval | None:
    """Return limits over some seeds; the record's own limits hold for all of its seeds alone."""
    runs = {seed for seed in values if seed is not None}
    kept = {s: by for s, by in values.items() if s in seeds or (s is None and runs <= {*seeds})}
    found = estimated(kept)
    if found is None or found.low is None or found.high is None:
        return None
    low, high = sorted((axis(found.low), axis(found.high)))
    return Interval(low=low, high=high, method=found.method)


def lost_share(undefended: float, error: float, guess: float | None) -> float | None:
    """Return the share of what a model had learned above guessing that another one lacks.

    Args:
        undefended: Test error of the undefended model, in [0, 1].
        error: Test error of the other, in [0, 1].
        guess: Accuracy of guessing, in [0, 1]; 0 is taken where it is not known.

    Returns:
        At most 1, which is a model no better than guessing; negative for one that has learned
        more. None where the undefended model is no better than guessing.
    """
    learned = 1 - undefended - (guess or 0.0)
    # Less is rounding: no test set has a billion samples.
    return min((error - undefended) / learned, 1.0) if learned > 1e-9 else None
