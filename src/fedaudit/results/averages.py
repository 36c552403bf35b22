"""The attacks that count in an average, the direction each is read in, and the strongest."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist, fmean
from typing import Literal, NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.results.aggregate import Value, Values, mean_of, restricted, runs_of
from fedaudit.results.comparison import MIRRORED
from fedaudit.results.estimate import Estimate
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
