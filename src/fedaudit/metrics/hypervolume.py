"""What can be had of privacy and utility together: fronts, and the area that they leave good.

A point is one way to train: how much leaks and how wrong the model is, both shares in [0, 1]
and both better when smaller.
"""

from functools import cache
from itertools import combinations_with_replacement
from math import comb, factorial, prod
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from moocore import hypervolume as _hypervolume
from moocore import is_nondominated

from fedaudit.errors import BadInput
from fedaudit.metrics.intervals import percent, require_confidence

WORST = 1.0
"""The reference point in both directions: everything leaks, and nothing is classified rightly."""

ENOUGH_SEEDS = 10
_MOST_DRAWS = 1_000


class FrontArea(NamedTuple):
    """The hypervolume of a front with its interval over seeds.

    Attributes:
        value: Share of the unit square that the front's points are at least as good as.
        low: Lower limit; None with one seed.
        high: Upper limit; None with one seed.
        method: How the interval was made.
        seeds: Number of runs of each point.
    """

    value: float
    low: float | None
    high: float | None
    method: str
    seeds: int


def advantage(auc: float) -> float:
    """Membership advantage of an AUC, 2 AUC - 1 cut at 0, in [0, 1]."""
    return min(max(2 * auc - 1, 0.0), 1.0)


def on_front(points: Float[np.ndarray, "points 2"]) -> Bool[np.ndarray, " points"]:
    """Which points no other point beats: better in one respect and no worse in the other.

    Args:
        points: Leakage and error of each, in [0, 1]. Equal points are on the front together.

    Raises:
        BadInput: No points, or a value outside of [0, 1].
    """
    _require_shares(points)
    kept: Bool[np.ndarray, " points"] = np.asarray(is_nondominated(points, keep_weakly=True))
    return kept


def hypervolume(points: Float[np.ndarray, "points 2"]) -> float:
    """Area of the unit square in which some point is at least as good, in [0, 1].

    1 stands for no leak and no error; 0 where every point leaks everything or is always wrong.

    Args:
        points: Leakage and error of each, in [0, 1].

    Raises:
        BadInput: No points, or a value outside of [0, 1].

    Source: FedMIA, appendix A, Definition 1, with the reference point (1, 1).
    """
    _require_shares(points)
    return float(_hypervolume(points, ref=[WORST, WORST]))


def hypervolume_over_seeds(
    runs: Float[np.ndarray, "seeds points 2"],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    beyond: int = 0,
) -> FrontArea:
    """The hypervolume of the points' means over seeds, with a bootstrap that draws whole seeds.

    A draw takes the same seeds for every point, since the points of one seed share their data.
    Up to six seeds, every possible draw is counted instead of some.

    Args:
        runs: For each seed, leakage and error of each point, in [0, 1].
        rng: Draws the resamples.
        confidence: Two-sided confidence, in (0, 1).
        beyond: How many of the first points are there anyway, such as that of no defense: only
            the area that the others add to theirs is counted. 0 counts all.

    Raises:
        BadInput: No seeds or points, or a value outside of [0, 1].
    """
    require_confidence(confidence)
    _require_shares(runs.reshape(-1, 2))
    seeds = len(runs)

    def areas_of(means: Float[np.ndarray, "draws points 2"]) -> Float[np.ndarray, " draws"]:
        return _areas(means) - (_areas(means[:, :beyond]) if beyond else 0.0)

    value = float(areas_of(runs.mean(axis=0)[None])[0])
    if seeds < 2:
        return FrontArea(value, None, None, "one seed, no interval", seeds)
    weights, chances = _draws(seeds, rng)
    areas = areas_of(np.einsum("ds,spc->dpc", weights, runs))
    order = np.argsort(areas)
    below = np.cumsum(chances[order])
    side = (1 - confidence) / 2
    low, high = (
        float(areas[order][min(int(np.searchsorted(below, at)), len(areas) - 1)])
        for at in (side, 1 - side)
    )
    method = f"bootstrap over {seeds} seeds {percent(confidence)}"
    if seeds < ENOUGH_SEEDS:
        # The percentiles of so few draws are too narrow, and no formula makes up for it.
        method += f" (too narrow below {ENOUGH_SEEDS} seeds)"
    return FrontArea(value, low, high, method, seeds)


def _areas(fronts: Float[np.ndarray, "draws points 2"]) -> Float[np.ndarray, " draws"]:
    """Hypervolumes of many fronts at once, in strips from each leakage to the next larger one."""
    order = np.argsort(fronts[:, :, :1], axis=1)
    leakage, error = np.moveaxis(np.take_along_axis(fronts, order, axis=1), 2, 0)
    widths = np.diff(leakage, axis=1, append=WORST)
    heights = WORST - np.minimum.accumulate(error, axis=1)
    areas: Float[np.ndarray, " draws"] = (widths * heights).sum(axis=1)
    return areas


class _Draws(NamedTuple):
    """Resamples of seeds: the weight of each seed, and each resample's probability."""

    weights: Float[np.ndarray, "draws seeds"]
    chances: Float[np.ndarray, " draws"]


def _draws(seeds: int, rng: np.random.Generator) -> _Draws:
    if comb(2 * seeds - 1, seeds) <= _MOST_DRAWS:
        return _every_draw(seeds)
    times = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=_MOST_DRAWS)
    return _Draws(times / seeds, np.full(_MOST_DRAWS, 1 / _MOST_DRAWS))


@cache
def _every_draw(seeds: int) -> _Draws:
    drawn = list(combinations_with_replacement(range(seeds), seeds))
    times = np.array([np.bincount(chosen, minlength=seeds) for chosen in drawn])
    ways = [factorial(seeds) // prod(map(factorial, of_each)) for of_each in times.tolist()]
    return _Draws(times / seeds, np.array(ways) / seeds**seeds)


def _require_shares(points: Float[np.ndarray, "points 2"]) -> None:
    if points.size == 0:
        raise BadInput("a front needs at least one point, got none; give leakage and error of one")
    if not ((points >= 0) & (points <= 1)).all():
        raise BadInput(
            f"leakage and error are shares in [0, 1], got {points.min():g} to {points.max():g}; "
            "turn an AUC into an advantage first"
        )
