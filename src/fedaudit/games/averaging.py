"""Rounds that averaging needs against noise: by AMI's appendix E, and under a clip."""

import math

import torch
from jaxtyping import Float
from scipy.stats import chi2, ncx2
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.metrics.games import gaussian_mechanism, rounds_needed

_MOST_ROUNDS = 10**9


def rounds_as_published(epsilon: float, delta: float, *, neurons: int, success: float) -> int:
    """Rounds if every neuron's row had a length of 1 and noise of the classic mechanism.

    Copies are then as good as rounds, since each brings a whole row of its own: the appendix's
    "K-fold". No clip of whole gradients lets it be so; see :func:`rounds_under_a_clip`.

    Args:
        epsilon: Of one round, as the paper names it; the noise is sqrt(2 ln(1.25 / delta)) / eps.
        delta: Failure probability.
        neurons: Copies of the neuron (K).
        success: Wanted Adv, in (0.5, 1), of a server that knows what the row looks like.

    Raises:
        BadInput: A number is out of range.

    Source: AMI, appendix E, Fig. 13.
    Differs: the paper does not say when noise counts as eliminated.
    """
    _refuse_none(neurons)
    return rounds_needed(success, math.sqrt(neurons) / gaussian_mechanism(epsilon, delta))


def rounds_under_a_clip(epsilon: float, delta: float, *, share: float = 1.0, success: float) -> int:
    """Rounds behind DP-SGD with the same noise on a sum of clipped gradients.

    How many copies of the neuron there are is not asked: all their rows together have ``share``
    of one clip.

    Args:
        epsilon: As above; of a record that is there or not.
        delta: Failure probability.
        share: How much of the target's gradient, by length, lies in the planted rows.
        success: Wanted Adv of a server whose neurons are silent for all other records.

    Raises:
        BadInput: A number is out of range.
    """
    if not 0 < share <= 1:
        raise BadInput(f"a share of a gradient lies in (0, 1], got {share}")
    return rounds_needed(success, share / gaussian_mechanism(epsilon, delta))


def rounds_by_length(
    epsilon: float, delta: float, *, neurons: int, entries: int, success: float
) -> int:
    """The published rounds for a server that looks at the averaged row's length alone.

    It asks whether the row is zero, as in Fig. 2, and not where it points: copies' rows are
    averaged, and their mean's length has to stand out of the noise of all entries.

    Args:
        epsilon: As in :func:`rounds_as_published`.
        delta: Failure probability.
        neurons: Copies of the neuron (K).
        entries: Of a row: hidden units, and the bias.
        success: Wanted Adv.

    Raises:
        BadInput: A number is out of range.
    """
    _refuse_none(neurons, entries)
    noise = gaussian_mechanism(epsilon, delta)
    low, high = 0, 1
    while _by_length(neurons * high / noise**2, entries) < success:
        low, high = high, 2 * high
        if high > _MOST_ROUNDS:
            raise BadInput(f"no number of rounds up to {_MOST_ROUNDS} gives a success of {success}")
    while high - low > 1:
        middle = (low + high) // 2
        enough = _by_length(neurons * middle / noise**2, entries) >= success
        low, high = (low, middle) if enough else (middle, high)
    return high


def averaged_scores(
    row: Float[Tensor, " entries"],
    noise: float,
    *,
    rounds: int,
    neurons: int,
    games: int,
    rng: torch.Generator,
) -> Float[Tensor, " games"]:
    """Scores of the published setting, drawn round by round: every copy's row with its own noise.

    Args:
        row: Of the neuron's gradient, or zeros where it did not fire; along its first entry.
        noise: Standard deviation on every entry.
        rounds: Averaged.
        neurons: Copies, averaged as well.
        games: How many scores.
        rng: Draws the noise.

    Source: AMI, appendix E.
    """
    mean = torch.zeros(games, len(row), dtype=torch.float64)
    for _ in range(rounds * neurons):
        drawn = torch.randn(games, len(row), generator=rng, dtype=torch.float64)
        mean += row + noise * drawn
    return mean[:, 0] / (rounds * neurons)


def _by_length(squared: float, entries: int) -> float:
    """Best Adv between a noncentral chi-square and a central one, near where they cross."""
    spread = math.sqrt(2 * entries)
    places = [entries + squared * i / 40 + spread * j / 2 for i in range(41) for j in (-1, 0, 1)]
    right = (chi2.cdf(places, entries) + ncx2.sf(places, entries, squared)) / 2
    return float(right.max())


def _refuse_none(*counts: int) -> None:
    if min(counts) < 1:
        raise BadInput(f"averaging needs at least one neuron and one entry, got {counts}")
