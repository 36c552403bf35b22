"""Privacy loss of single releases, and its composition over rounds.

A release is the noisy sum of one round, or of one step of DP-SGD. Its privacy loss distribution is
computed on a grid. Distributions are composed by convolution, which gives epsilon after any number
of rounds.
"""

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
"""Number of standard deviations of noise that is exceeded with probability 1e-23 only."""

_LARGEST_LOSS = 1e4
"""Largest loss of a release for which a grid is computed. With larger losses, amplification by
random sampling is ignored, which is an upper bound."""

_MAX_REMOVAL_EPSILON = 100.0
"""Largest epsilon of a removal that is searched for. Beyond it, delta cannot be represented."""

_POINTS = 2e5
"""Approximate number of grid points for the losses of one release."""

_MAX_SHIFTS = 64
"""Largest number of different shifts in a mixture of Gaussians."""

_NEGLIGIBLE = 1e-12
"""Fraction of delta for the event that more samples of a person are drawn than are considered."""


class Release(NamedTuple):
    """Distributions of one noisy sum for two neighbouring data sets, which differ in one unit.

    A unit has one or several contributions to the sum, such as the gradients of a person's samples.

    Attributes:
        mechanism: Sampling of the unit's contributions. "gaussian": all of them are always in the
            sum. "poisson": each is in the sum with probability ``rate``, and the unit is missing
            from the other data set. "replaced": the same for a single contribution, which is
            replaced in the other data set. "subset": an upper bound, by which the sums differ by
            up to ``distance`` with probability ``rate``.
        noise: Standard deviation of the noise, in units of one contribution.
        distance: Largest distance between the sums of two neighbouring data sets.
        rate: Probability that a contribution is in the sum; for "subset", that at least one is.
        contributions: Number of contributions of the unit.
    """

    mechanism: Literal["gaussian", "poisson", "replaced", "subset"]
    noise: float
    distance: int
    rate: float = 1.0
    contributions: int = 1

    @property
    def largest_loss(self) -> float:
        """Privacy loss that is exceeded with negligible probability only."""
        shift = self.distance / self.noise
        return shift**2 / 2 + _DEVIATIONS * shift


def release_of(
    setup: PrivacySetup, phase: Phase, unit: Unit, *, only_removal: bool = False
) -> Release:
    """Return a release of a phase for two data sets that differ in one unit.

    Args:
        setup: The set-up.
        phase: The phase.
        unit: The unit of privacy.
        only_removal: Whether to return the removal of a unit even if the unit is replaced. A
            replacement is a removal, followed by the addition of another unit.
    """
    noise, rate = phase.total_noise_multiplier, setup.rate(phase)
    if phase.protects == "client":
        # A change of a sample or person changes the update of its client and does not remove it.
        is_replaced = unit != "client" or setup.adjacency == "replace"
        contributions = setup.person_clients if unit == "person" else 1
        population, n_drawn = setup.clients, phase.clients_per_round
    else:
        is_replaced = setup.adjacency == "replace"
        sizes = {"sample": 1, "person": setup.person_samples, "client": setup.largest_client}
        contributions = sizes[unit]
        population, n_drawn = setup.samples or 1, phase.batch_size
    # The sum can change by the removed contribution and by the added one.
    distance_per_contribution = 2 if is_replaced and not only_removal else 1
    any_drawn = float(-np.expm1(contributions * np.log1p(-rate))) if rate < 1 else 1.0
    if phase.sampling == "fixed" and rate < 1:
        n_drawn = n_drawn or population
        contributions = min(contributions, population)
        any_drawn = float(sp.stats.hypergeom.sf(0, population, contributions, n_drawn))
        # A person may have samples in the batches of several clients.
        batches = setup.person_clients if unit == "person" else 1
        contributions = min(contributions, n_drawn * batches)
    distance = distance_per_contribution * contributions
    without_sampling = Release("gaussian", noise, distance)
    if rate == 1 or without_sampling.largest_loss > _LARGEST_LOSS:
        return without_sampling
    if phase.sampling != "fixed" and distance_per_contribution == 1:
        return Release("poisson", noise, distance, rate, contributions)
    if phase.sampling != "fixed" and contributions == 1:
        return Release("replaced", noise, distance, rate)
    return Release("subset", noise, distance, any_drawn)


class Losses:
    """Privacy losses for a unit over the rounds of a set-up.

    Args:
        setup: The set-up.
        unit: The unit of privacy.
    """

    def __init__(self, setup: PrivacySetup, unit: Unit) -> None:
        self._setup = setup
        self._releases = tuple(release_of(setup, phase, unit) for phase in setup.phase)
        # If a release is only bounded, a second bound by group privacy may be smaller.
        self._removals: list[Release] | None = None
        is_bounded = any(release.mechanism == "subset" for release in self._releases)
        if is_bounded and all(phase.sampling != "fixed" for phase in setup.phase):
            self._removals = [
                release_of(setup, phase, unit, only_removal=True) for phase in setup.phase
            ]

    def epsilon(self, rounds: int) -> float:
        """Compute the epsilon after some rounds; the last phase may continue longer than planned.

        Source: Balle and Wang 2018 for Gaussian releases, whose composition is Gaussian; Koskela et
            al. 2020 and Doroshenko et al. 2022 for the others (dp-accounting).
        """
        counts = tuple(self._counts(rounds))
        delta = self._setup.delta
        epsilon = _epsilon(self._releases, counts, delta)
        if self._removals is not None:
            removal = _curve(self._removals, counts, delta)
            epsilon = min(epsilon, removal.replacement_epsilon(delta))
        return epsilon

    def _counts(self, rounds: int) -> list[int]:
        """Return the number of releases of each phase in the first rounds.

        After the last phase, the unit takes part in every round.
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
    """Privacy curve of composed releases: epsilon as a function of delta.

    Attributes:
        shift: Distance of the means of all "gaussian" releases together, in units of the noise.
        composed: Privacy loss distribution of all releases; None if all are "gaussian".
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

    def replacement_epsilon(self, delta: float) -> float:
        """Compute the epsilon of replacing a unit, if this is the curve of removing it.

        Source: Vadhan 2017, Lemma 2.2 (group privacy), for two steps with a common epsilon.
        """
        if self._allows(0.0, delta):
            return 0.0
        high = 1.0
        while not self._allows(high, delta):
            high *= 2
            if high > _MAX_REMOVAL_EPSILON:
                return inf

        def sign_change(removal_epsilon: float) -> float:
            return 0.5 - self._allows(removal_epsilon, delta)

        return 2 * float(sp.optimize.bisect(sign_change, 0.0, high, rtol=1e-6))

    def _allows(self, removal_epsilon: float, delta: float) -> bool:
        """Return whether a removal and an addition with this epsilon have at most this delta."""
        return self.epsilon(delta / (1 + exp(removal_epsilon))) <= removal_epsilon


@lru_cache(maxsize=1024)
def _epsilon(releases: tuple[Release, ...], counts: tuple[int, ...], delta: float) -> float:
    # Cached, because units may have equal releases, such as a sample and a person with one sample.
    return _curve(releases, counts, delta).epsilon(delta)


def _curve(releases: Sequence[Release], counts: Sequence[int], delta: float) -> _Curve:
    """Compose releases, each of which is repeated ``counts`` times."""
    squared_shift = 0.0
    sampled: list[tuple[Release, int]] = []
    for release, count in zip(releases, counts, strict=True):
        if release.mechanism == "gaussian":
            squared_shift += count * (release.distance / release.noise) ** 2
        elif count:
            sampled.append((release, count))
    shift = sqrt(squared_shift)
    if not sampled:
        return _Curve(shift)
    interval = _interval(shift, sampled, delta)
    distributions = [
        _distribution(release, interval, delta).self_compose(count) for release, count in sampled
    ]
    if shift:
        gaussian = _library().from_gaussian_mechanism
        distributions.append(gaussian(1 / shift, value_discretization_interval=interval))
    composed = reduce(lambda first, second: first.compose(second), distributions)
    failure = sum(count * _tail(release, delta).probability for release, count in sampled)
    return _Curve(shift, composed, failure)


def _interval(shift: float, sampled: Sequence[tuple[Release, int]], delta: float) -> float:
    """Choose the distance between the points of the grid of losses.

    A fixed distance would need gigabytes of memory for little noise, and be inaccurate for much
    noise. The distance is therefore adapted to an estimate of epsilon by Renyi accounting, which is
    faster. The number of releases is rounded up to a power of 4, so that many rounds use the same
    cached estimate.
    """
    estimate = gaussian_budget(shift, delta)
    for release, count in sampled:
        estimate += _estimate(release, 4 ** ceil(log2(count) / 2), delta)
    largest = max(release.largest_loss for release, _ in sampled)
    interval = max(largest / _POINTS, estimate / (2 * _POINTS), min(1e-4, estimate / 1000), 1e-6)
    # Powers of 2 let most rounds use the same cached distributions.
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
    if release.mechanism == "subset":
        lowest, deltas = _subset_curve(release, interval)
        return library.PrivacyLossDistribution(_pmf(lowest, deltas, interval))
    if release.mechanism == "poisson" and release.contributions > 1:
        return library.PrivacyLossDistribution(*_group_pmfs(release, interval, delta))
    if release.mechanism == "replaced":
        return library.PrivacyLossDistribution(_replacement_pmf(release, interval))
    return library.PrivacyLossDistribution(*_single_pmfs(release, interval))


def _pmf(lowest: int, deltas: Float[np.ndarray, " losses"], interval: float) -> Any:
    """Return a privacy loss distribution that is at least as pessimistic as a privacy curve.

    Args:
        lowest: Smallest epsilon of the curve, in units of the interval.
        deltas: Delta at each epsilon of the grid.
        interval: Distance between the points of the grid.
    """
    from dp_accounting.pld import pld_pmf

    falling = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    highest = lowest + len(falling) - 1
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lowest, highest, falling)


def _subset_curve(release: Release, interval: float) -> tuple[int, Float[np.ndarray, " losses"]]:
    """Return the privacy curve of a "subset" release: the smallest epsilon, and all deltas.

    The curve does not depend on the order of the two data sets. This determines delta for negative
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


def _single_pmfs(release: Release, interval: float) -> tuple[Any, Any]:
    """Return the distributions of losses of removing and of adding a single contribution.

    With the unit, the output is a mixture of two Gaussian distributions; without it, a single one.
    The library computes the same losses one by one, which takes ten times as long.

    Source: Mironov, Talwar and Zhang 2019 (sampled Gaussian mechanism); Doroshenko et al. 2022 for
        the grid.
    """
    shift, rate = 1 / release.noise, release.rate
    # Outputs are in units of the noise.
    lowest = _amplified(-_DEVIATIONS * shift - shift**2 / 2, rate)
    highest = _amplified(release.largest_loss, rate)

    def output_of(epsilons: np.ndarray) -> np.ndarray:
        """Return the outputs at which the loss of a removal has these values, or -inf."""
        without = np.minimum(np.log1p(-rate) - epsilons, 0.0)
        with np.errstate(divide="ignore"):
            likelihood_ratio = epsilons + np.log1p(-np.exp(without)) - np.log(rate)
        return np.asarray(likelihood_ratio / shift + shift / 2)

    removals = _grid(lowest, highest, interval)
    output = output_of(removals)
    removed = (1 - rate) * sp.special.ndtr(-output) + rate * sp.special.ndtr(shift - output)
    removed -= np.exp(removals + sp.special.log_ndtr(-output))
    additions = _grid(-highest, -lowest, interval)
    output = output_of(-additions)
    added = sp.special.ndtr(output) - np.exp(additions) * (
        (1 - rate) * sp.special.ndtr(output) + rate * sp.special.ndtr(output - shift)
    )
    return (
        _pmf(floor(lowest / interval), removed, interval),
        _pmf(floor(-highest / interval), added, interval),
    )


def _replacement_pmf(release: Release, interval: float) -> Any:
    """Return the distribution of losses of replacing a single contribution by its opposite.

    Both outputs are mixtures of two Gaussian distributions, and each other's mirror image.
    """
    shift, rate = 1 / release.noise, release.rate
    highest = _amplified(_DEVIATIONS * shift + shift**2 / 2, rate)
    highest -= _amplified(-_DEVIATIONS * shift - 3 * shift**2 / 2, rate)
    epsilons = _grid(-highest, highest, interval)
    # At a loss of epsilon, sinh(shift * output - epsilon / 2) is a multiple of sinh(epsilon / 2).
    half = np.abs(epsilons) / 2
    with np.errstate(divide="ignore"):
        log_sinh = half + np.log(-np.expm1(-2 * half)) - np.log(2)
    log_multiple = np.log1p(-rate) - np.log(rate) + shift**2 / 2 + log_sinh
    # Beyond 20, the inverse of sinh is a logarithm.
    inverse = np.where(
        log_multiple > 20,
        log_multiple + np.log(2),
        np.arcsinh(np.exp(np.minimum(log_multiple, 20))),
    )
    output = (epsilons / 2 + np.sign(epsilons) * inverse) / shift
    deltas = (1 - rate) * sp.special.ndtr(-output) + rate * sp.special.ndtr(shift - output)
    deltas -= (1 - rate) * np.exp(epsilons + sp.special.log_ndtr(-output))
    deltas -= rate * np.exp(epsilons + sp.special.log_ndtr(-shift - output))
    return _pmf(floor(-highest / interval), deltas, interval)


def _grid(lowest: float, highest: float, interval: float) -> Float[np.ndarray, " losses"]:
    """Return the multiples of the interval between which losses are.

    The first multiple is at most the lowest loss, which has nearly all of the probability if a unit
    is rarely drawn: no loss may be rounded up to it.
    """
    return interval * np.arange(floor(lowest / interval), ceil(highest / interval) + 1)


def _group_pmfs(release: Release, interval: float, delta: float) -> tuple[Any, Any]:
    """Return the distributions of losses for a unit with several contributions.

    The number of its contributions in the sum is binomial, and the sum is shifted by this number.
    With the unit, the output has a mixture of Gaussian distributions; without it, a single one. The
    first distribution is that of removing the unit, the second that of adding it.

    Source: Ganesh 2024 ("Tight group-level DP guarantees for DP-SGD with sampling via mixture of
        Gaussians mechanisms").
    Differs: With more than 64 contributions in the sum, their number is rounded up to a multiple.
    """
    largest = _tail(release, delta).largest
    numbers = np.arange(largest + 1)
    weights = sp.stats.binom.pmf(numbers, release.contributions, release.rate)
    step = max(1, ceil(largest / _MAX_SHIFTS))
    multiples = -(-numbers // step)
    probabilities = np.bincount(multiples, weights) / weights.sum()
    is_possible = probabilities > 0
    shifts = step * np.flatnonzero(is_possible) / release.noise
    probabilities = probabilities[is_possible]
    # Outputs are in units of the noise.
    outputs = np.linspace(-_DEVIATIONS, shifts[-1] + _DEVIATIONS, 2**16)
    losses = sp.special.logsumexp(
        np.log(probabilities)[:, None] + shifts[:, None] * outputs - shifts[:, None] ** 2 / 2,
        axis=0,
    )

    def distribution(
        lowest: float, highest: float, delta_at: Callable[[np.ndarray], np.ndarray]
    ) -> Any:
        first, last = ceil(lowest / interval), ceil(highest / interval)
        return _pmf(first, delta_at(interval * np.arange(first, last + 1)), interval)

    def removal_delta(epsilons: np.ndarray) -> np.ndarray:
        output = np.interp(epsilons, losses, outputs)
        mixed = sum(
            p * sp.special.ndtr(shift - output)
            for p, shift in zip(probabilities, shifts, strict=True)
        )
        return np.asarray(mixed - np.exp(epsilons + sp.special.log_ndtr(-output)))

    def addition_delta(epsilons: np.ndarray) -> np.ndarray:
        output = np.interp(-epsilons, losses, outputs)
        mixed = sum(
            p * np.exp(epsilons + sp.special.log_ndtr(output - shift))
            for p, shift in zip(probabilities, shifts, strict=True)
        )
        return np.asarray(sp.special.ndtr(output) - mixed)

    return (
        distribution(losses[0], losses[-1], removal_delta),
        distribution(-losses[-1], -losses[0], addition_delta),
    )


class _Tail(NamedTuple):
    """Number of contributions in a sum, and the negligible probability that it is exceeded."""

    largest: int
    probability: float


def _tail(release: Release, delta: float) -> _Tail:
    if release.mechanism != "poisson" or release.contributions == 1:
        return _Tail(release.contributions, 0.0)
    binomial = sp.stats.binom(release.contributions, release.rate)
    largest = max(1, int(binomial.isf(_NEGLIGIBLE * delta)))
    return _Tail(largest, float(binomial.sf(largest)))
