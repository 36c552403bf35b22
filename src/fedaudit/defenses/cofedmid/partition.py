"""Class-guided partition: in each round, members of a coalition train on classes of their own."""

from collections.abc import Callable
from dataclasses import field
from functools import lru_cache
from math import ceil, cos, floor, pi
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from numpy import ndarray
from torch import Tensor

from fedaudit.core.arguments import ClientIds, Count, dataclass
from fedaudit.core.errors import BadInput, Unsupported, unknown_name
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import ClientId, Samples
from fedaudit.defenses.soft_labels import class_count
from fedaudit.fl.hooks import ConfiguredDefense, Plan, Turn, Visit


@dataclass(frozen=True)
class CoalitionDefense(ConfiguredDefense):
    """Defense that its members apply together, with values drawn from a seed that they share.

    Attributes:
        members: Numbers of the clients of the coalition, from 0, each once, such as ``[0, 1]``.
    """

    members: ClientIds = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))

    @property
    def coalition(self) -> tuple[ClientId, ...]:
        """Clients of the coalition, in the order given."""
        return tuple(self.members)


def circle(
    coalition: tuple[ClientId, ...], visit: Visit, *, independent: bool
) -> tuple[ClientId, ...]:
    """With whom a client works something out: its coalition, or nobody but itself.

    Raises:
        BadInput: The visiting client is no member.
    """
    present(coalition, visit)
    return (visit.client,) if independent else coalition


def present(coalition: tuple[ClientId, ...], visit: Visit) -> tuple[ClientId, ...]:
    """The members that train in this round, ascending: who is absent is neither waited for nor
    covered up for.

    Raises:
        BadInput: The visiting client is no member.
    """
    if visit.client not in coalition:
        raise BadInput(
            f"client {visit.client} uses the defense of the coalition {coalition} and is not in "
            "it; give it a coalition of its own, or name it as a member"
        )
    return tuple(sorted(set(coalition) & {*visit.cohort, visit.client}))


def shared_seed(coalition: tuple[ClientId, ...], visit: Visit) -> int:
    """A seed that the members know and nobody else; another coalition's is another."""
    return seed_for(visit.seed, "coalition", *sorted(coalition))


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
    """Number of classes of each client in a round, rounded to the nearest (halves up).

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
    """Number of classes of each client in each round of a run.

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
            _refuse_growth(given, least)
        return given
    for most in range(least, classes):
        sizes = (
            size_at(t, rounds, most=most, least=least, decay=decay) for t in range(1, rounds + 1)
        )
        if members * sum(sizes) >= classes * rounds:
            return most
    return classes


def _refuse_growth(m_max: int, m_min: int) -> None:
    raise BadInput(
        f"m_max is {m_max} and m_min is {m_min}, and clients may not get more classes over the "
        "rounds; give m_max of at least m_min"
    )


def _growing(m_max: int, m_min: int) -> BadInput:
    return BadInput(
        f"m_max is {m_max} and m_min is {m_min}, and clients may not get more classes over the "
        "rounds; give m_max of at least m_min"
    )


def _check(name: str, size: int, classes: int) -> None:
    if not 1 <= size <= classes:
        raise BadInput(
            f"{name} is a number of classes from 1 to {classes} here (0 to have it chosen), "
            f"got {size}"
        )


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


@dataclass(frozen=True)
class ClassGuided(CoalitionDefense):
    """Trains on a few classes only, fewer and fewer, shared out within a coalition.

    A round's sets are drawn afresh from a seed that the coalition shares, among the members that
    train in the round. A client without samples of its classes sends an update of zeros.

    Attributes:
        m_max: Classes of a client in the first round, up to the number of classes, which deals
            every client all of them; 0 to choose from the coalition's size.
        m_min: Classes of a client in the last round, up to ``m_max``; 0 for a fifth of all.
        decay: Form of the way from ``m_max`` to ``m_min`` over the rounds: "linear", "cosine",
            "exponential" or "polynomial".
        assignment: "bounded" for little overlap and all classes covered where that is possible,
            "random" for neither.
        independent: Whether every client acts alone, as a coalition of one (the paper's
            independent mode, with which its Fig. 3 compares).

    Examples:
        >>> ClassGuided(members=[0, 1], m_max=4, m_min=2).coalition
        (0, 1)

    Source: CoFedMID, section 4.1 and algorithm 1.
    Differs: Where the sets are too small to cover every class, those covered take turns.
    """

    m_max: Count = 0
    m_min: Count = 0
    decay: Literal["linear", "cosine", "exponential", "polynomial"] = "linear"
    assignment: Literal["bounded", "random"] = "bounded"
    independent: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.m_max < self.m_min:
            raise _growing(self.m_max, self.m_min)

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: more classes a client than there are, or fewer at first.

        Raises:
            BadInput: m_max or m_min does not fit the number of classes.
            Unsupported: The task tells no classes apart.
        """
        if not plan.architecture.task.classes:
            raise Unsupported(
                f"{type(self).__name__} deals classes, which the task "
                f"{plan.architecture.task.name!r} does not have; leave it out"
            )
        self.sizes(plan.classes, plan.rounds)

    def select(self, data: Samples, turn: Turn) -> Samples:
        """Each round: the samples of this client's classes, in the order that they had."""
        return data.take(self.own(data, turn))

    def own(self, data: Samples, turn: Turn) -> Bool[Tensor, " samples"]:
        """Which samples are of this client's classes in this round."""
        classes = class_count(turn, data.features)
        mine = self.dealt(turn, classes=classes)
        if not self.independent:
            # The paper counts a byte a label and sends as many as there are classes.
            turn.note("extra_bytes", torch.tensor([classes]))
        return mine.to(data.labels.device)[data.labels]

    def dealt(self, visit: Visit, *, classes: int) -> Bool[Tensor, " classes"]:
        """Each round: the client's share of the classes, which every member can work out."""
        members = present(self._circle(visit), visit)
        assigned = self.assigned(classes, len(members), visit)
        return torch.from_numpy(assigned.sets[members.index(visit.client)])

    def assigned(self, classes: int, members: int, visit: Visit) -> Assigned:
        """The sets of a round, the same for every member."""
        return _assigned(
            self.sizes(classes, visit.rounds),
            visit.round,
            classes=classes,
            coalition=len(self._circle(visit)),
            members=members,
            assignment=self.assignment,
            seed=shared_seed(self._circle(visit), visit),
        )

    def _circle(self, visit: Visit) -> tuple[ClientId, ...]:
        return circle(self.coalition, visit, independent=self.independent)

    def sizes(self, classes: int, rounds: int) -> tuple[int, ...]:
        """Number of classes of a client in each round."""
        return sizes(
            classes,
            1 if self.independent else len(self.coalition),
            rounds,
            most=self.m_max,
            least=self.m_min,
            decay=self.decay,
        )


# Members of one process would otherwise do the same work over again.
@lru_cache(maxsize=256)
def _assigned(
    sizes: tuple[int, ...],
    round: int,
    *,
    classes: int,
    coalition: int,
    members: int,
    assignment: str,
    seed: int,
) -> Assigned:
    size = sizes[round - 1]
    rng = seeded_numpy(seed, "classes", round)
    if assignment == "random":
        return at_random(members, size, classes=classes, rng=rng)
    # One order for the whole run, taken up where the rounds before have left it.
    order = seeded_numpy(seed, "rotation").permutation(classes)
    start = coalition * sum(sizes[: round - 1])
    preferred = np.zeros(classes, dtype=bool)
    preferred[order[(start + np.arange(min(classes, members * size))) % classes]] = True
    return bounded(members, size, preferred=preferred, rng=rng)
