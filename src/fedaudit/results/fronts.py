"""Privacy-utility fronts: what the strengths of one defense offer, and how much that is."""

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedaudit.core.metric_names import AUC
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics import advantage, hypervolume_over_seeds, on_front
from fedaudit.results.aggregate import Values, estimated, restricted
from fedaudit.results.comparison import EVERY_ATTACK, STRONGEST_ATTACK, Front, FrontPoint, Row
from fedaudit.results.estimate import NO_DEFENSE, Interval

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
    attack is chosen once for each row and client (:func:`fedaudit.results.averages.strongest`).

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
