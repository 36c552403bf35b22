"""Which classes each member of a coalition trains on in a round."""

from math import ceil
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool
from numpy import ndarray


class Assigned(NamedTuple):
    """Each member's classes.

    Attributes:
        sets: Row by member, which classes are its own in this round.
        bound: How many classes two members have in common at most.
    """

    sets: Bool[ndarray, "members classes"]
    bound: int


def overlap_bound(classes: int, members: int, size: int) -> int:
    """A number of common classes that some pair of sets of this size must reach; at least 0.

    Source: CoFedMID, section 4.1 (a Johnson-type bound).
    Differs: Clipped at 0, as it is negative where the sets need not cover all classes, and 0
        for a single member, where the formula divides by 0.
    """
    if members < 2:
        return 0
    return max(0, ceil(size * (members * size - classes) / (classes * (members - 1))))


def bounded(
    members: int,
    size: int,
    *,
    preferred: Bool[ndarray, " classes"],
    rng: np.random.Generator,
) -> Assigned:
    """Sets that have few classes in common and together cover as many as they can.

    One member after another takes, in random order, the classes that are least used so far and
    do not bring its overlap with an earlier member above the bound; where that leaves a member
    without enough classes, all begin again with a bound larger by one. Unused classes overlap
    with nobody, so that the sets cover every class wherever ``members * size`` suffices.

    Args:
        members: How many sets.
        size: Classes in each, at most all of them.
        preferred: Classes that come first among those equally used: where not all can be
            covered, these are.
        rng: For the order.

    Source: CoFedMID, algorithm 1.
    Differs: The paper does not give ClassAssign; this greedy one is ours.
    """
    bound = overlap_bound(len(preferred), members, size)
    while True:
        sets = _tried(members, size, bound, preferred, rng)
        if sets is not None:
            return Assigned(sets, bound)
        bound += 1


def _tried(
    members: int,
    size: int,
    bound: int,
    preferred: Bool[ndarray, " classes"],
    rng: np.random.Generator,
) -> Bool[ndarray, "members classes"] | None:
    classes = len(preferred)
    sets = np.zeros((members, classes), dtype=bool)
    for member in range(members):
        # The last key counts first.
        order = np.lexsort((rng.permutation(classes), ~preferred, sets.sum(0)))
        common = np.zeros(members, dtype=np.int64)
        missing = size
        for one in order:
            if missing == 0:
                break
            owners = np.flatnonzero(sets[:, one])
            if (common[owners] < bound).all():
                sets[member, one] = True
                common[owners] += 1
                missing -= 1
        if missing:
            return None
    return sets


def at_random(members: int, size: int, *, classes: int, rng: np.random.Generator) -> Assigned:
    """Each member's classes drawn without regard to the others: the paper's ablation.

    Source: CoFedMID, table 6 (random).
    """
    sets = np.zeros((members, classes), dtype=bool)
    for row in sets:
        row[rng.permutation(classes)[:size]] = True
    return Assigned(sets, size)
