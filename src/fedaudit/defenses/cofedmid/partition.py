"""Class-guided partition: in each round, clients of a coalition train on different classes."""

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
from fedaudit.fl.hooks import ClientContext, ConfiguredDefense, Plan, TrainingContext


@dataclass(frozen=True)
class CoalitionDefense(ConfiguredDefense):
    """Base class of defenses that clients of a coalition use together, with a shared random seed.

    Attributes:
        clients: Numbers of the coalition's clients, from 0, without repetition, such as ``[0, 1]``.
    """

    clients: ClientIds = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))

    @property
    def coalition(self) -> tuple[ClientId, ...]:
        """Clients of the coalition, in the order of the setting."""
        return tuple(self.clients)


def cooperating_clients(
    coalition: tuple[ClientId, ...], client_context: ClientContext, *, independent: bool
) -> tuple[ClientId, ...]:
    """Return the client's coalition, or only the client itself if it acts independently.

    Raises:
        BadInput: The client is not in the coalition.
    """
    _raise_if_not_in_coalition(coalition, client_context)
    return (client_context.client,) if independent else coalition


def present_clients(
    coalition: tuple[ClientId, ...], client_context: ClientContext
) -> tuple[ClientId, ...]:
    """Return the clients of the coalition that take part in this round, ascending.

    Raises:
        BadInput: The client is not in the coalition.
    """
    _raise_if_not_in_coalition(coalition, client_context)
    return tuple(sorted(set(coalition) & {*client_context.cohort, client_context.client}))


def _raise_if_not_in_coalition(
    coalition: tuple[ClientId, ...], client_context: ClientContext
) -> None:
    if client_context.client not in coalition:
        raise BadInput(
            f"client {client_context.client} uses the defense of the coalition {coalition} and is "
            "not in it; give it a separate coalition, or add it to its clients"
        )


def shared_seed(coalition: tuple[ClientId, ...], client_context: ClientContext) -> int:
    """Return the secret seed of a coalition, which differs between coalitions."""
    return seed_for(client_context.seed, "coalition", *sorted(coalition))


Decay = Callable[[float, int, int], float]


def linear(progress: float, largest: int, smallest: int) -> float:
    """Decrease linearly.

    Source: Bai et al. 2026 (CoFedMID), section 4.1.
    """
    return largest - (largest - smallest) * progress


def cosine(progress: float, largest: int, smallest: int) -> float:
    """Decrease along half a cosine."""
    return smallest + (largest - smallest) * (1 + cos(pi * progress)) / 2


def exponential(progress: float, largest: int, smallest: int) -> float:
    """Decrease by the same factor in every round."""
    return float(largest * (smallest / largest) ** progress)


def polynomial(progress: float, largest: int, smallest: int) -> float:
    """Decrease quadratically, first fast and then slowly."""
    return smallest + (largest - smallest) * (1 - progress) ** 2


DECAYS: dict[str, Decay] = {
    "linear": linear,
    "cosine": cosine,
    "exponential": exponential,
    "polynomial": polynomial,
}


def size_in_round(round: int, rounds: int, *, largest: int, smallest: int, decay: str) -> int:
    """Return the number of classes of each client in a round.

    Args:
        round: Number of the round, from 1.
        rounds: Number of rounds of the run; a single round has the largest size.
        largest: Size in the first round, at least 1.
        smallest: Size in the last round.
        decay: A key of ``DECAYS``.

    Source: Bai et al. 2026 (CoFedMID), section 4.1 (linear). Table 13 names the other decays
        without formulas, which are therefore from this toolkit.
    """
    if decay not in DECAYS:
        raise unknown_name("decay", decay, DECAYS)
    progress = (round - 1) / (rounds - 1) if rounds > 1 else 0.0
    # Adding 0.5 before floor rounds halves up.
    return max(smallest, floor(DECAYS[decay](progress, largest, smallest) + 0.5))


# Cached, because every client calls this in every round.
@lru_cache(maxsize=256)
def sizes(
    classes: int, clients: int, rounds: int, *, m_max: int, m_min: int, decay: str
) -> tuple[int, ...]:
    """Return the number of classes of each client in each round of a run.

    The settings are those of :class:`ClassGuided`.

    Raises:
        BadInput: A size is above the number of classes, or the first one below the last one.
    """
    smallest = smallest_size(classes, m_min)
    largest = largest_size(classes, clients, rounds, m_max=m_max, smallest=smallest, decay=decay)
    return tuple(
        size_in_round(t, rounds, largest=largest, smallest=smallest, decay=decay)
        for t in range(1, rounds + 1)
    )


def smallest_size(classes: int, m_min: int) -> int:
    """Return the size in the last round: ``m_min``, or a fifth of the classes if it is 0.

    The paper uses a fifth on all of its data sets (2 of 10, 20 of 100, 40 of 200).
    """
    size = m_min or ceil(classes / 5)
    _raise_if_size_invalid("m_min", size, classes)
    return size


def largest_size(
    classes: int, clients: int, rounds: int, *, m_max: int, smallest: int, decay: str
) -> int:
    """Return the size in the first round: ``m_max``, or a suitable size if it is 0.

    The suitable size is the smallest one with which the coalition can cover every class once per
    round on average: over all rounds, its sets have at least ``classes * rounds`` elements. The
    size therefore decreases with the size of the coalition, down to ``smallest``. Early rounds then
    cover every class; in later rounds, the uncovered classes rotate.

    Differs: The paper leaves the choice to future work (section 6).
    """
    if m_max:
        _raise_if_size_invalid("m_max", m_max, classes)
        if m_max < smallest:
            raise _order_error(m_max, smallest)
        return m_max
    for size in range(smallest, classes):
        total = sum(
            size_in_round(t, rounds, largest=size, smallest=smallest, decay=decay)
            for t in range(1, rounds + 1)
        )
        if clients * total >= classes * rounds:
            return size
    return classes


def _order_error(m_max: int, m_min: int) -> BadInput:
    return BadInput(
        f"m_max is {m_max} and m_min is {m_min}, and clients may not get more classes over the "
        "rounds; give m_max of at least m_min"
    )


def _raise_if_size_invalid(name: str, size: int, classes: int) -> None:
    if not 1 <= size <= classes:
        raise BadInput(
            f"{name} is a number of classes from 1 to {classes} here (0 to choose it "
            f"automatically), got {size}"
        )


class ClassAssignment(NamedTuple):
    """Classes of each client of a coalition in a round.

    Attributes:
        sets: Whether each client (row) has each class (column).
        bound: Largest number of classes that two clients may have in common.
    """

    sets: Bool[ndarray, "clients classes"]
    bound: int


def overlap_bound(classes: int, clients: int, size: int) -> int:
    """Return the smallest number of common classes of two clients that may be achievable.

    In every assignment, some two clients have at least this many classes in common. The search for
    an assignment starts with this limit.

    Source: Bai et al. 2026 (CoFedMID), section 4.1 (a Johnson-type bound).
    Differs: The bound is clipped at 0, since the formula can be negative. It is 0 for a single
        client, for which the formula divides by 0.
    """
    if clients < 2:
        return 0
    return max(0, ceil(size * (clients * size - classes) / (classes * (clients - 1))))


def assign_with_bound(
    clients: int,
    size: int,
    *,
    preferred: Bool[ndarray, " classes"],
    rng: np.random.Generator,
) -> ClassAssignment:
    """Assign sets of classes with small overlaps that together cover as many classes as possible.

    The algorithm is greedy. One client after another gets the least used classes, as long as the
    overlap with each earlier client is at most the bound; ties are broken at random. If a set
    cannot be filled, the algorithm starts again with a bound larger by one. Since unused classes
    cause no overlap, the sets cover every class if ``clients * size`` is at least the number of
    classes.

    Args:
        clients: Number of sets.
        size: Number of classes in each set, at most the number of all classes.
        preferred: Mask of classes that precede other classes with the same number of uses. If not
            all classes can be covered, these are.
        rng: Random generator for ties.

    Source: Bai et al. 2026 (CoFedMID), algorithm 1.
    Differs: The paper does not specify its function ClassAssign; this algorithm is from this
        toolkit.
    """
    bound = overlap_bound(len(preferred), clients, size)
    while True:
        sets = _try_bound(clients, size, bound, preferred, rng)
        if sets is not None:
            return ClassAssignment(sets, bound)
        bound += 1


def _try_bound(
    clients: int,
    size: int,
    bound: int,
    preferred: Bool[ndarray, " classes"],
    rng: np.random.Generator,
) -> Bool[ndarray, "clients classes"] | None:
    """Assign sets with overlaps up to a bound; return None if a set cannot be filled."""
    classes = len(preferred)
    sets = np.zeros((clients, classes), dtype=bool)
    for client in range(clients):
        # Sort by number of uses, then by preference, then at random (lexsort's last key is first).
        order = np.lexsort((rng.permutation(classes), ~preferred, sets.sum(0)))
        overlaps = np.zeros(clients, dtype=np.int64)
        missing = size
        for label in order:
            if missing == 0:
                break
            earlier = np.flatnonzero(sets[:, label])
            if (overlaps[earlier] < bound).all():
                sets[client, label] = True
                overlaps[earlier] += 1
                missing -= 1
        if missing:
            return None
    return sets


def assign_at_random(
    clients: int, size: int, *, classes: int, rng: np.random.Generator
) -> ClassAssignment:
    """Draw each client's classes independently, as in the paper's ablation.

    Source: Bai et al. 2026 (CoFedMID), table 6 (random).
    """
    sets = np.zeros((clients, classes), dtype=bool)
    for row in sets:
        row[rng.permutation(classes)[:size]] = True
    return ClassAssignment(sets, size)


@dataclass(frozen=True)
class ClassGuided(CoalitionDefense):
    """Training of each client of a coalition on a few classes, with fewer classes in later rounds.

    In every round, sets of classes are drawn from the coalition's shared seed, for the clients that
    take part. A client without samples of its classes sends an update of zeros.

    Attributes:
        m_max: Number of classes of a client in the first round, up to the number of all classes; 0
            to choose it by the size of the coalition.
        m_min: Number of classes of a client in the last round, up to ``m_max``; 0 for a fifth of
            all classes.
        decay: Decrease from ``m_max`` to ``m_min`` over the rounds: "linear", "cosine",
            "exponential" or "polynomial".
        assignment: "bounded" assigns classes with small overlaps between clients, so that all
            classes are covered if possible. "random" draws the classes of each client.
        independent: Whether every client is a coalition of one (the paper's independent mode, in
            its Fig. 3).

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.ClassGuided(clients=[0, 1], m_max=4, m_min=2).coalition
        (0, 1)

    Source: Bai et al. 2026 (CoFedMID), section 4.1 and algorithm 1.
    Differs: If the sets are too small to cover every class, the covered classes rotate.
    """

    m_max: Count = 0
    m_min: Count = 0
    decay: Literal["linear", "cosine", "exponential", "polynomial"] = "linear"
    assignment: Literal["bounded", "random"] = "bounded"
    independent: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.m_max < self.m_min:
            raise _order_error(self.m_max, self.m_min)

    def raise_if_misfit(self, plan: Plan) -> None:
        if not plan.architecture.task.classes:
            raise Unsupported(
                f"{type(self).__name__} assigns classes, which the task "
                f"{plan.architecture.task.name!r} does not have; leave it out"
            )
        self.sizes(plan.classes, plan.rounds)

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        return data.take(self.has_class(data, context))

    def has_class(self, data: Samples, context: TrainingContext) -> Bool[Tensor, " samples"]:
        """Return a mask of the samples whose class the client has in this round."""
        classes = class_count(context, data.features)
        is_assigned = self.assigned_classes(context, classes=classes)
        if not self.independent:
            # Clients of a coalition exchange one byte per class (CoFedMID).
            context.note("extra_bytes", torch.tensor([classes]))
        return is_assigned.to(data.labels.device)[data.labels]

    def assigned_classes(
        self, client_context: ClientContext, *, classes: int
    ) -> Bool[Tensor, " classes"]:
        """Return a mask of the client's classes in a round, which its coalition can compute."""
        clients = present_clients(self._group(client_context), client_context)
        assignment = self.assignment_in(classes, client_context, n_present=len(clients))
        return torch.from_numpy(assignment.sets[clients.index(client_context.client)])

    def assignment_in(
        self, classes: int, client_context: ClientContext, *, n_present: int
    ) -> ClassAssignment:
        """Return the assignment of classes in a round to the coalition's ``n_present`` clients."""
        group = self._group(client_context)
        return _assignment(
            self.sizes(classes, client_context.rounds),
            client_context.round,
            classes=classes,
            coalition_size=len(group),
            n_present=n_present,
            assignment=self.assignment,
            seed=shared_seed(group, client_context),
        )

    def _group(self, client_context: ClientContext) -> tuple[ClientId, ...]:
        return cooperating_clients(self.coalition, client_context, independent=self.independent)

    def sizes(self, classes: int, rounds: int) -> tuple[int, ...]:
        """Return the number of classes of a client in each round."""
        return sizes(
            classes,
            1 if self.independent else len(self.coalition),
            rounds,
            m_max=self.m_max,
            m_min=self.m_min,
            decay=self.decay,
        )


# Cached, because all clients of a coalition compute the same assignment.
@lru_cache(maxsize=256)
def _assignment(
    sizes: tuple[int, ...],
    round: int,
    *,
    classes: int,
    coalition_size: int,
    n_present: int,
    assignment: str,
    seed: int,
) -> ClassAssignment:
    size = sizes[round - 1]
    rng = seeded_numpy(seed, "classes", round)
    if assignment == "random":
        return assign_at_random(n_present, size, classes=classes, rng=rng)
    # Preferred classes rotate: a round continues in this order where the previous round ended.
    order = seeded_numpy(seed, "rotation").permutation(classes)
    start = coalition_size * sum(sizes[: round - 1])
    preferred = np.zeros(classes, dtype=bool)
    preferred[order[(start + np.arange(min(classes, n_present * size))) % classes]] = True
    return assign_with_bound(n_present, size, preferred=preferred, rng=rng)
