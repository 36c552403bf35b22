"""Class-guided partition: in each round, members of a coalition train on classes of their own."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core import ClientId, Samples
from fedaudit.defenses.base import Defense, Plan, Turn, Visit
from fedaudit.defenses.cofedmid.assignment import Assigned, at_random, bounded
from fedaudit.defenses.cofedmid.coalition import check_coalition, circle, present, shared_seed
from fedaudit.defenses.cofedmid.sizes import DECAYS, sizes
from fedaudit.defenses.soft_labels import class_count
from fedaudit.errors import BadInput, unknown_name
from fedaudit.seeds import seeded_numpy

ASSIGNMENTS = ("bounded", "random")


@dataclass(frozen=True)
class ClassGuided(Defense):
    """Trains on a few classes only, fewer and fewer, shared out within a coalition.

    A round's sets are drawn afresh from a seed that the coalition shares, among the members that
    train in the round. A client without samples of its classes sends an update of zeros.

    Attributes:
        coalition: The clients that share the classes out.
        m_max: Classes a client in the first round; 0 to choose from the coalition's size.
        m_min: Classes a client in the last round; 0 for a fifth of all.
        decay: Way from the one to the other: linear, cosine, exponential or polynomial.
        assignment: "bounded" for little overlap and all classes covered where that is possible,
            "random" for neither.
        independent: Every client works for itself, as a coalition of one (the paper's independent
            mode, with which its Fig. 3 compares).

    Source: CoFedMID, section 4.1 and algorithm 1.
    Differs: Where the sets are too small to cover every class, those covered take turns.
    """

    coalition: tuple[ClientId, ...]
    m_max: int = 0
    m_min: int = 0
    decay: str = "linear"
    assignment: str = "bounded"
    independent: bool = False

    def __post_init__(self) -> None:
        check_coalition(self.coalition)
        if self.m_max < 0 or self.m_min < 0:
            raise BadInput(
                f"m_max and m_min count classes, 0 to have them chosen, got {self.m_max} and "
                f"{self.m_min}"
            )
        if self.decay not in DECAYS:
            raise unknown_name("decay", self.decay, DECAYS)
        if self.assignment not in ASSIGNMENTS:
            raise unknown_name("assignment", self.assignment, ASSIGNMENTS)

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: more classes a client than there are, or fewer at first.

        Raises:
            BadInput: m_max or m_min does not fit the number of classes.
        """
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
        """How many classes a client is given in each round."""
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
