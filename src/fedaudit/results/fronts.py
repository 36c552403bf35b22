"""Privacy-utility fronts: what the strengths of one defense offer, and how much that is."""

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedaudit.core.metric_names import AUC
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics import advantage, hypervolume_over_seeds, on_front
from fedaudit.results.aggregate import Values, reduced, restricted
from fedaudit.results.comparison import EVERY_ATTACK, STRONGEST_ATTACK, Front, FrontPoint, Row
from fedaudit.results.estimate import NO_DEFENSE

Leaks = Mapping[tuple[str, str, str], Values]
"""Figures of a row by attack, contrast and metric."""


_BySeed = Mapping[int | None, float]


class _Family(NamedTuple):
    """Rows of one defense, coalition and setting, with the undefended row in front."""

    rows: tuple[int, ...]
    targets: frozenset[int | None]


class _Shared(NamedTuple):
    """Settings that the rows of a front have in common.

    Attributes:
        places: Where those rows stand in their family.
        runs: Leakage and error of each, seed by seed.
    """

    places: list[int]
    runs: Float[np.ndarray, "seeds places 2"]


def fronts(
    rows: Sequence[Row],
    leaks: Sequence[Leaks],
    accuracies: Sequence[Values],
    inside: Sequence[Collection[int | None]],
) -> list[Front]:
    """A front for each defense and coalition, attack, contrast and metric.

    A front's points are its rows and the undefended one, measured on the clients that use the
    defense. Leakage is an AUC's advantage over guessing, or a true-positive rate; the strongest
    attack is that with the largest leakage in each run, which errs upward.

    Args:
        rows: Of the comparison.
        leaks: What each row's record says of attacks.
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
            for attack in (STRONGEST_ATTACK, *attacks):
                drawn = [
                    _leakage(leaks[row], attack, attacks, contrast, metric, family.targets)
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
        base = rows[members[0]].base
        undefended = base is not None and rows[base].family == NO_DEFENSE
        defended = rows[members[0]].family != NO_DEFENSE
        with_base = (base, *members) if defended and undefended and base is not None else members
        targets = frozenset(target for row in members for target in inside[row])
        found.append(_Family(tuple(with_base), targets))
    return found


def _leakage(
    leaks: Leaks,
    attack: str,
    attacks: Sequence[str],
    contrast: str,
    metric: str,
    targets: Collection[int | None],
) -> dict[int | None, float]:
    """Leakage of one row by seed."""
    if attack == STRONGEST_ATTACK:
        parts = [restricted(leaks.get((a, contrast, metric), {}), targets) for a in attacks]
        values = reduced([part for part in parts if part], max)
    else:
        values = restricted(leaks.get((attack, contrast, metric), {}), targets)
    runs = {s: by for s, by in values.items() if by and (s is not None or len(values) == 1)}
    means = {s: fmean(v.value for v in by.values()) for s, by in runs.items()}
    return {seed: advantage(m) if metric == AUC else m for seed, m in means.items()}


def _front(
    rows: Sequence[Row],
    family: _Family,
    leakage: Sequence[_BySeed],
    accuracies: Sequence[Values],
    what: tuple[str, str, str],
) -> Front | None:
    errors = [{s: 1 - by[None].value for s, by in accuracies[r].items()} for r in family.rows]
    shared = _shared(leakage, errors)
    if shared is None:
        return None
    attack, contrast, metric = what
    area, gain = (
        hypervolume_over_seeds(
            shared.runs, rng=seeded_numpy(0, "hypervolume", *what), beyond=beyond
        )
        for beyond in (0, 1)
    )
    undefended = rows[family.rows[0]].family == NO_DEFENSE and shared.places[0] == 0
    gained = undefended and len(shared.places) > 1
    row = rows[family.rows[-1]]
    return Front(
        family=row.family,
        coalition=row.coalition,
        clients=row.clients,
        settings=row.settings,
        attack=attack,
        contrast=contrast,
        metric=metric,
        points=_points(family, shared),
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
    """Rows with both figures, over the seeds that all of these have; None where there are none."""
    both = [leaks.keys() & wrong.keys() for leaks, wrong in zip(leakage, errors, strict=True)]
    places = [place for place, seeds in enumerate(both) if seeds]
    if not places:
        return None
    # In the order of the first row: a bootstrap over seeds draws by their places.
    seeds = [seed for seed in leakage[places[0]] if all(seed in both[place] for place in places)]
    if not seeds:
        return None
    runs = [[(leakage[place][seed], errors[place][seed]) for place in places] for seed in seeds]
    return _Shared(places, np.array(runs))


def _points(family: _Family, shared: _Shared) -> list[FrontPoint]:
    """Each row's mean over seeds, and whether no other row's beats it."""
    means = shared.runs.mean(axis=0)
    return [
        FrontPoint(
            row=family.rows[place], leakage=float(leaks), error=float(error), on_front=bool(kept)
        )
        for place, (leaks, error), kept in zip(shared.places, means, on_front(means), strict=True)
    ]
