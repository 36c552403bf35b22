"""EXP3: a gambler's choice among arms whose rewards may change as time goes by."""

import torch
from jaxtyping import Float
from torch import Tensor


def probabilities(weights: Float[Tensor, " arms"], exploration: float) -> Float[Tensor, " arms"]:
    """Probability of each arm.

    Args:
        weights: Above 0.
        exploration: Share of draws that are uniform, in (0, 1].

    Source: Auer et al. 2002, algorithm Exp3: p = (1 - g) w / sum w + g / M.
    """
    return (1 - exploration) * weights / weights.sum() + exploration / len(weights)


def drawn(weights: Float[Tensor, " arms"], exploration: float, rng: torch.Generator) -> int:
    """An arm, drawn by :func:`probabilities`."""
    return int(torch.multinomial(probabilities(weights, exploration), 1, generator=rng))


def rewarded(
    weights: Float[Tensor, " arms"], arm: int, reward: float, exploration: float
) -> Float[Tensor, " arms"]:
    """The weights after a reward, summing to 1 again.

    Args:
        weights: Before.
        arm: That was drawn.
        reward: In [-1, 1]; 0 changes nothing.
        exploration: As in the draw.

    Source: Auer et al. 2002, algorithm Exp3: w = w exp(g (r / p) / M).
    Differs: Rewards down to -1; weights are brought back to a sum of 1, which changes no
        probability.
    """
    chance = float(probabilities(weights, exploration)[arm])
    factors = torch.ones_like(weights)
    factors[arm] = torch.tensor(exploration * reward / chance / len(weights)).exp()
    after = weights * factors
    # Probabilities are mixed with uniform ones, so a floor this low changes none of them.
    return (after / after.sum()).clamp(min=1e-300)


def normalised(history: Float[Tensor, " rewards"]) -> float:
    """The last reward on the scale of all so far: -1 at their 20th percentile, 1 at the 80th.

    Args:
        history: Raw rewards, the one in question last.

    Returns:
        In [-1, 1]; 0 before there are five, or where the percentiles are equal.

    Source: CoFedMID, section 4.2.1; Graves et al. 2017, equation 8.
    Differs: The paper does not say what a first reward is worth.
    """
    if len(history) < 5:
        return 0.0
    low, high = torch.quantile(history, torch.tensor([0.2, 0.8], dtype=history.dtype)).tolist()
    if high <= low:
        return 0.0
    return float(max(-1.0, min(1.0, 2 * (float(history[-1]) - low) / (high - low) - 1)))
