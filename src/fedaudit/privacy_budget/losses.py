"""Privacy loss of one release, for each unit, and its composition over rounds."""

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from math import ceil, exp, floor, inf, log2, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy as sp
from jaxtyping import Float

from fedaudit.core.errors import BadInput
from fedaudit.fl.accounting import gaussian_mechanism_epsilon
from fedaudit.metrics.epsilon import gaussian_budget
from fedaudit.privacy_budget.setup import Phase, PrivacySetup, Unit

_DEVIATIONS = 10.0
"""Standard deviations of the noise beyond which the probability (1e-23) is negligible."""

_LARGEST_LOSS = 1e4
"""Largest loss of a release that is discretised. Random sampling is ignored if it is larger."""

_LARGEST_HALF = 100.0
"""Largest epsilon of half a replacement. At larger ones, its delta is below all resolution."""

_POINTS = 2e5
"""Number of points of the grid of losses of one release, about."""

_LEVELS = 64
"""Largest number of sensitivities in a mixture."""

_NEGLIGIBLE = 1e-12
"""Part of delta for which the number of a group's members in one release may be larger."""


class Release(NamedTuple):
    """What one round (or step of DP-SGD) reveals about a unit.

    Attributes:
        kind: Pair of output distributions that dominates. "gaussian": the unit is always in the
            sum. "poisson": each of its members is in the sum at random, or is absent from the
            data. "replaced": the same for one member that is replaced. "subset": with probability
            ``rate`` the sum differs by up to ``distance``; an upper bound.
        noise: Standard deviation of the noise, in units of one contribution.
        distance: Largest distance between the sums of two adjacent data sets.
        rate: Probability that a member is in the sum; of "subset", that any member is.
        members: Number of contributions of the unit.
    """

    kind: Literal["gaussian", "poisson", "replaced", "subset"]
    noise: float
    distance: int
    rate: float = 1.0
    members: int = 1

    @property
    def largest_loss(self) -> float:
        """Privacy loss that is exceeded with a negligible probability."""
        shift = self.distance / self.noise
        return shift**2 / 2 + _DEVIATIONS * shift


def release_of(setup: PrivacySetup, phase: Phase, unit: Unit, *, half: bool = False) -> Release:
    """Return what a release of a phase reveals about a unit.

    Args:
        setup: The set-up.
        phase: The phase.
        unit: The unit.
        half: Whether to return the first half of a replacement, which sets the unit to zero.
    """
    noise, rate = phase.total_noise_multiplier, setup.rate(phase)
    if phase.protects == "client":
        # A part of a client's data changes its update, and does not remove it.
        is_replaced = unit != "client" or setup.adjacency == "replace"
        members = setup.person_clients if unit == "person" else 1
        population, drawn = setup.clients, phase.clients_per_round
    else:
        is_replaced = setup.adjacency == "replace"
        sizes = {"sample": 1, "person": setup.person_samples, "client": setup.largest_client}
        members = sizes[unit]
        population, drawn = setup.samples or 1, phase.batch_size
    factor = 2 if is_replaced and not half else 1
    present = rate
    if phase.sampling == "fixed" and rate < 1:
        drawn = drawn or population
        members = min(members, population)
        present = float(sp.stats.hypergeom.sf(0, population, members, drawn))
        # A person may have samples in the batches of several clients.
        members = min(members, drawn * (setup.person_clients if unit == "person" else 1))
    distance = factor * members
    whole = Release("gaussian", noise, distance)
    if rate == 1 or whole.largest_loss > _LARGEST_LOSS:
        return whole
    if phase.sampling == "fixed":
        return Release("subset", noise, distance, present)
    if factor == 1:
        return Release("poisson", noise, distance, rate, members)
    if members == 1:
        return Release("replaced", noise, distance, rate)
    present = float(-np.expm1(members * np.log1p(-rate)))
    return Release("subset", noise, distance, present)


class Losses:
    """Privacy loss of a unit over the rounds of a set-up.

    Args:
        setup: The set-up.
        unit: The unit.
    """

    def __init__(self, setup: PrivacySetup, unit: Unit) -> None:
        self._setup = setup
        self._releases = tuple(release_of(setup, phase, unit) for phase in setup.phase)
        self._halves: list[Release] | None = None
        if any(release.kind == "subset" for release in self._releases) and all(
            phase.sampling != "fixed" for phase in setup.phase
        ):
            self._halves = [release_of(setup, phase, unit, half=True) for phase in setup.phase]

    def epsilon(self, rounds: int) -> float:
        """Compute the epsilon after some rounds; the last phase may last longer than planned.

        Source: Balle and Wang 2018 for Gaussian releases, whose composition is Gaussian; Koskela et
            al. 2020 and Doroshenko et al. 2022 for the others (dp-accounting).
        """
        counts = tuple(self._counts(rounds))
        delta = self._setup.delta
        epsilon = _epsilon(self._releases, counts, delta)
        if self._halves is not None:
            epsilon = min(epsilon, _curve(self._halves, counts, delta).epsilon_of_both(delta))
        return epsilon

    def _counts(self, rounds: int) -> list[int]:
        """Return the number of releases of each phase in the first rounds.

        In rounds after the last phase, the unit takes part in every one.
        """
        counts = list[int]()
        for phase in self._setup.phase:
            within = min(rounds, phase.rounds)
            counts.append(self._setup.releases(phase, within))
            rounds -= within
        if rounds:
            last = self._setup.phase[-1]
            counts[-1] = self._setup.releases(last, last.rounds, further=rounds)
        return counts


class _Curve(NamedTuple):
    """Privacy curve of composed releases.

    Attributes:
        shift: Distance of the means of all Gaussian releases, in units of the noise.
        composed: Distribution of losses of all releases; None if all are Gaussian.
        failure: Probability of events that the distribution leaves out.
    """

    shift: float
    composed: Any = None
    failure: float = 0.0

    def epsilon(self, delta: float) -> float:
        """Compute the epsilon at a delta."""
        if self.composed is None:
            return gaussian_budget(self.shift, delta)
        if delta <= self.failure:
            return inf
        return float(self.composed.get_epsilon_for_delta(delta - self.failure))

    def epsilon_of_both(self, delta: float) -> float:
        """Compute the epsilon of removing a unit and adding another, from the curve of removal.

        Source: Vadhan 2017, Lemma 2.2 (group privacy), for two steps with a common epsilon.
        """
        if self._allows(0.0, delta):
            return 0.0
        high = 1.0
        while not self._allows(high, delta):
            high *= 2
            if high > _LARGEST_HALF:
                return inf
        return 2 * float(
            sp.optimize.bisect(lambda e: 0.5 - self._allows(e, delta), 0.0, high, rtol=1e-6)
        )

    def _allows(self, half: float, delta: float) -> bool:
        """Return whether two steps of this epsilon have at most this delta together."""
        return self.epsilon(delta / (1 + exp(half))) <= half


@lru_cache(maxsize=1024)
def _epsilon(releases: tuple[Release, ...], counts: tuple[int, ...], delta: float) -> float:
    # Units may have the same releases, such as a sample and a person with one sample.
    return _curve(releases, counts, delta).epsilon(delta)


def _curve(releases: Sequence[Release], counts: Sequence[int], delta: float) -> _Curve:
    """Compose releases, each with its number."""
    pairs = [pair for pair in zip(releases, counts, strict=True) if pair[1]]
    squares = [
        n * (each.distance / each.noise) ** 2 for each, n in pairs if each.kind == "gaussian"
    ]
    shift = sqrt(sum(squares))
    sampled = [pair for pair in pairs if pair[0].kind != "gaussian"]
    if not sampled:
        return _Curve(shift)
    interval = _interval(shift, sampled, delta)
    parts = [_distribution(release, interval, delta).self_compose(n) for release, n in sampled]
    if shift:
        gaussian = _library().from_gaussian_mechanism
        parts.append(gaussian(1 / shift, value_discretization_interval=interval))
    composed = reduce(lambda first, second: first.compose(second), parts)
    failure = sum(n * _tail(release, delta)[1] for release, n in sampled)
    return _Curve(shift, composed, failure)


def _interval(shift: float, sampled: Sequence[tuple[Release, int]], delta: float) -> float:
    """Choose the distance between points of the grid of losses, by the size of epsilon.

    A grid of fixed width would need gigabytes for little noise, and be coarse for much noise. Renyi
    accounting estimates epsilon faster, here for a number of releases that many rounds share.
    """
    estimate = gaussian_budget(shift, delta) + sum(
        _estimate(release, 4 ** ceil(log2(count) / 2), delta) for release, count in sampled
    )
    largest = max(release.largest_loss for release, _ in sampled)
    interval = max(largest / _POINTS, estimate / (2 * _POINTS), min(1e-4, estimate / 1000), 1e-6)
    # Powers of 2, so that most rounds use the same distributions.
    return float(2.0 ** floor(log2(interval)))


@lru_cache(maxsize=256)
def _estimate(release: Release, count: int, delta: float) -> float:
    """Estimate the epsilon of some releases by Renyi accounting."""
    noise = release.noise / release.distance
    return gaussian_mechanism_epsilon(noise, count, delta=delta, rate=release.rate)


def _library() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise BadInput(
            "the accountant is not installed; install it with: pip install 'fedaudit[dp]'"
        ) from error
    return privacy_loss_distribution


@lru_cache(maxsize=64)
def _distribution(release: Release, interval: float, delta: float) -> Any:
    """Return the privacy loss distribution of one release."""
    library = _library()
    if release.kind == "subset":
        pmf = _pmf(*_subset_curve(release, interval), interval)
        return library.PrivacyLossDistribution(pmf)
    if release.kind == "poisson" and release.members > 1:
        return library.PrivacyLossDistribution(*_group_pmfs(release, interval, delta))
    from dp_accounting import NeighboringRelation

    return library.from_gaussian_mechanism(
        release.noise,
        sampling_prob=release.rate,
        value_discretization_interval=interval,
        neighboring_relation=NeighboringRelation.REPLACE_ONE
        if release.kind == "replaced"
        else NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _pmf(lowest: int, deltas: Float[np.ndarray, " losses"], interval: float) -> Any:
    """Return the pessimistic distribution of losses with a privacy curve.

    Args:
        lowest: First epsilon of the curve, in units of the interval.
        deltas: Delta at each epsilon of a grid.
        interval: Distance of two points of the grid.
    """
    from dp_accounting.pld import pld_pmf

    falling = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    highest = lowest + len(falling) - 1
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lowest, highest, falling)


def _subset_curve(release: Release, interval: float) -> tuple[int, Float[np.ndarray, " losses"]]:
    """Return the privacy curve of a release that differs only with a probability.

    The curve is symmetric in the order of both data sets, so that it is also defined for negative
    epsilon, which composition needs.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 2; Zhu, Dong and Wang 2022, Proposition 30.
    """
    highest = ceil(_amplified(release.largest_loss, release.rate) / interval)
    epsilons = interval * np.arange(highest + 1)
    inner = np.where(
        epsilons > 30,
        epsilons - np.log(release.rate),
        np.log1p(np.expm1(np.minimum(epsilons, 30)) / release.rate),
    )
    shift = release.distance / release.noise
    near = sp.special.log_ndtr(shift / 2 - inner / shift)
    far = inner + sp.special.log_ndtr(-shift / 2 - inner / shift)
    deltas = -release.rate * np.exp(near) * np.expm1(np.minimum(0.0, far - near))
    mirrored = -np.expm1(-epsilons[1:]) + np.exp(-epsilons[1:]) * deltas[1:]
    return -highest, np.concatenate([mirrored[::-1], deltas])


def _amplified(epsilon: float, rate: float) -> float:
    """Return log(1 + rate * (exp(epsilon) - 1))."""
    if epsilon > 30:
        return float(np.logaddexp(np.log1p(-rate), np.log(rate) + epsilon)) if rate < 1 else epsilon
    return float(np.log1p(rate * np.expm1(epsilon)))


def _group_pmfs(release: Release, interval: float, delta: float) -> tuple[Any, Any]:
    """Return the distributions of losses for a group whose members are drawn independently.

    The number of members in the sum is binomial, and the sum moves by this number. With the unit,
    the output is a mixture of Gaussians; without it, one Gaussian.

    Source: Ganesh 2024 ("Tight group-level DP guarantees for DP-SGD with sampling via mixture of
        Gaussians mechanisms"). Differs: numbers above the 64th are rounded up to multiples.
    """
    largest, _ = _tail(release, delta)
    numbers = np.arange(largest + 1)
    weights = sp.stats.binom.pmf(numbers, release.members, release.rate)
    step = max(1, ceil(largest / _LEVELS))
    levels = -(-numbers // step)
    probabilities = np.bincount(levels, weights) / weights.sum()
    is_possible = probabilities > 0
    shifts = step * np.flatnonzero(is_possible) / release.noise
    probabilities = probabilities[is_possible]
    # Outputs are in units of the noise.
    outputs = np.linspace(-_DEVIATIONS, shifts[-1] + _DEVIATIONS, 2**16)
    losses = sp.special.logsumexp(
        np.log(probabilities)[:, None] + shifts[:, None] * outputs - shifts[:, None] ** 2 / 2,
        axis=0,
    )

    def curve(
        lowest: float, highest: float, delta_at: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[int, np.ndarray]:
        first, last = ceil(lowest / interval), ceil(highest / interval)
        return first, delta_at(interval * np.arange(first, last + 1))

    def removed(epsilons: np.ndarray) -> np.ndarray:
        output = np.interp(epsilons, losses, outputs)
        mixed = sum(
            p * sp.special.ndtr(shift - output)
            for p, shift in zip(probabilities, shifts, strict=True)
        )
        return np.asarray(mixed - np.exp(epsilons + sp.special.log_ndtr(-output)))

    def added(epsilons: np.ndarray) -> np.ndarray:
        output = np.interp(-epsilons, losses, outputs)
        mixed = sum(
            p * np.exp(epsilons + sp.special.log_ndtr(output - shift))
            for p, shift in zip(probabilities, shifts, strict=True)
        )
        return np.asarray(sp.special.ndtr(output) - mixed)

    return (
        _pmf(*curve(losses[0], losses[-1], removed), interval),
        _pmf(*curve(-losses[-1], -losses[0], added), interval),
    )


def _tail(release: Release, delta: float) -> tuple[int, float]:
    """Return a number of members that is exceeded with a negligible probability, and this one."""
    if release.kind != "poisson" or release.members == 1:
        return release.members, 0.0
    law = sp.stats.binom(release.members, release.rate)
    largest = max(1, int(law.isf(_NEGLIGIBLE * delta)))
    return largest, float(law.sf(largest))
