"""Success of a test between two normal distributions of one spread, mu spreads apart.

Balanced accuracy is at most Phi(mu / 2), which the test reaches whose threshold lies half way.
"""

import math

from scipy.special import ndtr, ndtri

from fedaudit.errors import BadInput


def gaussian_success(mu: float) -> float:
    """The largest (TPR + TNR) / 2 of telling apart what lies mu spreads apart: Phi(mu / 2).

    Args:
        mu: Distance in standard deviations, at least 0; infinite without noise.

    Raises:
        BadInput: It is negative or not a number.

    Source: Dong, Roth and Su 2022: the trade-off function of mu-Gaussian DP.
    """
    if not mu >= 0:
        raise BadInput(f"a distance is at least 0, got {mu}")
    return float(ndtr(mu / 2))


def clipped_distance(
    noise_multiplier: float, *, rounds: int = 1, summed: int = 1, replaced: bool = True
) -> float:
    """How far one record moves noisy sums of clipped gradients, in standard deviations.

    Args:
        noise_multiplier: Standard deviation of each client's noise on its sum, in clips.
        rounds: How many such sums are given out, each with fresh noise.
        summed: Of how many clients' noise each is the sum.
        replaced: Whether a record stands in another one's place, as in the games: two clips at
            most. Otherwise it is there or not: one clip.

    Returns:
        The mu of Gaussian DP; infinite without noise.

    Raises:
        BadInput: Noise is negative, or there are no rounds or clients.

    Source: Dong, Roth and Su 2022: the Gaussian mechanism and its composition, sqrt(P) / sigma
        for one clip.
    """
    if not (noise_multiplier >= 0 and rounds >= 1 and summed >= 1):
        raise BadInput(
            "noise is at least 0, of at least one round and one client, got "
            f"{noise_multiplier}, {rounds} and {summed}"
        )
    if noise_multiplier == 0:
        return math.inf
    return (2 if replaced else 1) * math.sqrt(rounds / summed) / noise_multiplier


def rounds_needed(success: float, mu: float) -> int:
    """Rounds after which averaging reaches a success, where one alone tells mu spreads apart.

    Args:
        success: Wanted (TPR + TNR) / 2, in (0.5, 1).
        mu: Of one round, above 0.

    Raises:
        BadInput: Either is out of range.
    """
    if not (0.5 < success < 1 and mu > 0):
        raise BadInput(
            f"a success above 0.5 and below 1 and a distance above 0 are needed, got {success} "
            f"and {mu}"
        )
    return max(1, math.ceil((2 * float(ndtri(success)) / mu) ** 2 - 1e-9))


def gaussian_mechanism(epsilon: float, delta: float) -> float:
    """Noise of the classic Gaussian mechanism, in sensitivities: sqrt(2 ln(1.25 / delta)) / eps.

    Args:
        epsilon: In nats, above 0; the proof holds below 1.
        delta: Failure probability, in (0, 1).

    Raises:
        BadInput: Either is out of range.

    Source: AMI, appendix E; Dwork and Roth 2014, Theorem A.1.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise BadInput(f"epsilon is above 0 and delta in (0, 1), got {epsilon} and {delta}")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon
