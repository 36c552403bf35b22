"""Lower bounds on the epsilon of one client's update, from canary clients."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.metrics.epsilon import (
    EpsilonBound,
    bound_method,
    gaussian_budget,
    one_run_epsilon,
    require_error,
)
from fedaudit.metrics.truth import as_array, as_truth

FEWEST_CANARIES = 20
"""Of fewer canary clients nothing is said: guesses about ten coins bound nothing at all."""


class CanaryBounds(NamedTuple):
    """Bounds on the epsilon of one client's update in what was released.

    Adjacency: the update or zero in its place, while the client's weight and noise stay.

    Attributes:
        one_run: From guesses about the coins; rests on nothing but these.
        mean_only: From the mean statistic of the canaries that sent theirs, if the release is that
            of a Gaussian mechanism in which all clients take part; None where that was not asked.
    """

    one_run: EpsilonBound
    mean_only: EpsilonBound | None


def canary_bounds(
    statistics: npt.ArrayLike,
    sent: npt.ArrayLike,
    *,
    delta: float,
    alpha: float = 0.05,
    every_round: bool = True,
) -> CanaryBounds:
    """Two lower bounds on epsilon from how far a release moved along each canary's direction.

    Args:
        statistics: For each canary client sqrt(d) times the cosine of its direction, drawn at
            random in d dimensions, and the movement of the released model. Of one that sent
            zeros it is a standard normal number, whatever the release is.
        sent: Whether each sent its direction, as a fair coin decided; else it sent zeros.
        delta: The delta to state epsilon at, in (0, 1).
        alpha: Probability that a bound is wrong, each for itself.
        every_round: Whether they were asked in every round that the release is of. Where rounds
            draw their clients, no mean-only bound is made: what is in some rounds has no normal
            statistic.

    Raises:
        BadInput: Fewer than twenty canaries, numbers that are not finite, coins that look unfair,
            or delta or alpha out of range.

    Source: Steinke, Nasr and Jagielski 2023 (one run); Andrew et al. 2024, One-shot empirical
        privacy estimation for federated learning (canary clients and their statistic).
    Differs: Andrew et al. fit a normal distribution to the canaries and print the epsilon of its
        mean and variance, which is an estimate and exceeds the truth about every second time. The
        mean-only bound is of the mean's lower confidence limit, at the variance 1 that it has.
    """
    z = as_array(statistics).astype(float)
    inside = as_truth(sent, z.size)
    require_error(delta, alpha, least=1e-300)
    if z.ndim != 1 or not np.isfinite(z).all():
        raise BadInput(
            f"each canary has one finite statistic and one coin, got shapes {z.shape} and "
            f"{inside.shape}"
        )
    if len(z) < FEWEST_CANARIES:
        raise BadInput(
            f"bounds on a client's update take {FEWEST_CANARIES} canary clients, got {len(z)}; "
            "raise canaries.count"
        )
    one_run = one_run_epsilon(z, inside, guesses=_guesses(len(z)), delta=delta, alpha=alpha)
    if not every_round:
        return CanaryBounds(one_run, None)
    members = int(inside.sum())
    slack = float(sp.special.ndtri(1 - alpha)) / math.sqrt(members)
    shift = float(z[inside].mean()) - slack
    # No mean can be above the largest statistic that there was.
    most = float(np.abs(z[inside]).max()) - slack
    return CanaryBounds(
        one_run,
        EpsilonBound(
            gaussian_budget(shift, delta),
            max(gaussian_budget(most, delta), gaussian_budget(shift, delta)),
            bound_method("mean-only Gaussian", delta, alpha),
        ),
    )


def _guesses(canaries: int) -> int:
    """Number of guesses about so many coins: an even third, fixed before anything is seen."""
    return max(2, 2 * (canaries // 6))
