"""How many classes a client trains on, round by round."""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, cos, floor, pi

from fedaudit.errors import BadInput, unknown_name

Decay = Callable[[float, int, int], float]


def linear(progress: float, most: int, least: int) -> float:
    """The same step down in every round.

    Source: CoFedMID, section 4.1.
    """
    return most - (most - least) * progress


def cosine(progress: float, most: int, least: int) -> float:
    """Along half a cosine: slow, fast, slow."""
    return least + (most - least) * (1 + cos(pi * progress)) / 2


def exponential(progress: float, most: int, least: int) -> float:
    """The same share of what is left in every round."""
    return float(most * (least / most) ** progress)


def polynomial(progress: float, most: int, least: int) -> float:
    """Along a square: fast, then slow."""
    return least + (most - least) * (1 - progress) ** 2


DECAYS: dict[str, Decay] = {
    "linear": linear,
    "cosine": cosine,
    "exponential": exponential,
    "polynomial": polynomial,
}


def size_at(round: int, rounds: int, *, most: int, least: int, decay: str) -> int:
    """How many classes each client is given in a round, rounded to the nearest (halves up).

    Args:
        round: Counted from 1.
        rounds: How many the run has; with one, it has the largest size.
        most: In the first round, at least 1.
        least: In the last.
        decay: A key of ``DECAYS``.

    Source: CoFedMID, section 4.1 (linear) and table 13 (the others by name; formulas ours).
    """
    if decay not in DECAYS:
        raise unknown_name("decay", decay, DECAYS)
    progress = (round - 1) / (rounds - 1) if rounds > 1 else 0.0
    return max(least, floor(DECAYS[decay](progress, most, least) + 0.5))


# Asked in every round, by every member of one process.
@lru_cache(maxsize=256)
def sizes(
    classes: int, members: int, rounds: int, *, most: int, least: int, decay: str
) -> tuple[int, ...]:
    """How many classes each client is given in each round of a run.

    Args:
        classes: Of the data set.
        members: Of the coalition.
        rounds: Of the run.
        most: In the first round; 0 to choose from the coalition's size.
        least: In the last; 0 for a fifth of all.
        decay: A key of ``DECAYS``.

    Raises:
        BadInput: More than there are classes, or fewer in the first round than in the last.
    """
    smallest = least_of(classes, least)
    largest = most_of(classes, members, rounds, given=most, least=smallest, decay=decay)
    return tuple(
        size_at(t, rounds, most=largest, least=smallest, decay=decay) for t in range(1, rounds + 1)
    )


def least_of(classes: int, given: int) -> int:
    """The size of the last round: as given, or a fifth of the classes for 0.

    A fifth is what the paper uses on all of its data sets (2 of 10, 20 of 100, 40 of 200).
    """
    least = given or ceil(classes / 5)
    _check("m_min", least, classes)
    return least


def most_of(classes: int, members: int, rounds: int, *, given: int, least: int, decay: str) -> int:
    """The size of the first round: as given, or for 0 chosen from the coalition's size.

    Chosen is the smallest size with which the coalition can cover every class once a round on
    average over the run: its sets have at least ``classes * rounds`` places in all. Early rounds
    cover every class, and as sets shrink the uncovered classes take turns. A larger coalition
    thus gets smaller sets, down to ``least``.

    Args:
        classes: Of the data set.
        members: Of the coalition.
        rounds: Of the run.
        given: The study's setting; 0 to choose.
        least: The size of the last round.
        decay: A key of ``DECAYS``.

    Differs: The paper leaves the choice to future work (section 6).
    """
    if given:
        _check("m_max", given, classes)
        if given < least:
            raise BadInput(f"m_max is at least m_min, got m_max {given} and m_min {least}")
        return given
    for most in range(least, classes):
        sizes = (
            size_at(t, rounds, most=most, least=least, decay=decay) for t in range(1, rounds + 1)
        )
        if members * sum(sizes) >= classes * rounds:
            return most
    return classes


def _check(name: str, size: int, classes: int) -> None:
    if not 1 <= size <= classes:
        raise BadInput(
            f"{name} is a number of classes from 1 to {classes} here (0 to have it chosen), "
            f"got {size}"
        )
