"""Scores on their two sides: samples the target trained on, and samples it did not."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Shaped

from fedaudit.errors import BadInput


class Sides(NamedTuple):
    """Scores apart by truth.

    Attributes:
        members: Scores of samples that the target trained on.
        nonmembers: Scores of all others.
    """

    members: Float[np.ndarray, " members"]
    nonmembers: Float[np.ndarray, " nonmembers"]


class Halves(NamedTuple):
    """Two disjoint parts of the same samples.

    Attributes:
        calibration: For choosing a threshold.
        evaluation: For the figure at that threshold.
    """

    calibration: Sides
    evaluation: Sides


def as_scores(scores: npt.ArrayLike) -> Float[np.ndarray, " samples"]:
    """The scores as a one-dimensional float64 array; infinities are fine, NaNs are not.

    Raises:
        BadInput: Another number of dimensions, not numbers, or NaNs (with their count).
    """
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as problem:
        raise BadInput(
            f"scores must be numbers, one a sample, got {type(scores).__name__}: {problem}"
        ) from problem
    if values.ndim != 1:
        raise BadInput(f"scores must have one axis, the samples, got shape {values.shape}")
    missing = int(np.isnan(values).sum())
    if missing:
        raise BadInput(
            f"{missing} of {len(values)} scores are NaN; a sample without a score cannot be "
            "ranked: leave it out on both sides, or find out why the attack gave none"
        )
    return values


def as_truth(is_member: npt.ArrayLike, samples: int) -> Bool[np.ndarray, " samples"]:
    """The truth as booleans, one for each of so many samples.

    Raises:
        BadInput: Another length, or values other than true and false (or 1 and 0).
    """
    values: Shaped[np.ndarray, ...] = np.asarray(is_member)
    if values.shape != (samples,):
        raise BadInput(
            f"scores and membership must have one entry a sample, got {samples} scores and "
            f"membership of shape {values.shape}"
        )
    if values.dtype != bool and not np.isin(values, (0, 1)).all():
        raise BadInput("membership must be true or false (or 1 and 0) for every sample")
    return values.astype(bool)


def sides(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> Sides:
    """Splits scores by truth.

    Raises:
        BadInput: Lengths differ, a score is NaN, or one of the sides is empty.
    """
    values = as_scores(scores)
    truth = as_truth(is_member, len(values))
    split = Sides(values[truth], values[~truth])
    if not len(split.members) or not len(split.nonmembers):
        raise BadInput(
            f"both members and non-members are needed, got {len(split.members)} members and "
            f"{len(split.nonmembers)} non-members"
        )
    return split


def halves(split: Sides, *, rng: np.random.Generator) -> Halves:
    """A random half of each side for calibration, the other for evaluation.

    An odd sample out goes to the evaluation.

    Raises:
        BadInput: A side has fewer than two samples.
    """
    if min(map(len, split)) < 2:
        raise BadInput(
            f"a calibration split needs at least 2 members and 2 non-members, got "
            f"{len(split.members)} and {len(split.nonmembers)}"
        )
    shuffled = [rng.permutation(side) for side in split]
    return Halves(
        Sides(*(side[: len(side) // 2] for side in shuffled)),
        Sides(*(side[len(side) // 2 :] for side in shuffled)),
    )
