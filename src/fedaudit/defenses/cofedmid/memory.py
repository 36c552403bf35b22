"""What a client that brings samples back keeps: for the whole run, and within a round."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core import Batch, Params, Samples
from fedaudit.defenses.cofedmid.exp3 import normalised, rewarded

EXPLORATION = 0.1
"""Share of intervals that are drawn regardless of what was learned."""


@dataclass(frozen=True)
class Learned:
    """What a client knows of its intervals after some rounds.

    Attributes:
        weights: Of each interval; one with more weight is drawn more often.
        rewards: Of all rounds so far, as they were.
        edges: Between the intervals; none before the first round with samples brought back.
        position: At which rank of losses "sequential" goes on.
    """

    weights: Float[Tensor, " intervals"]
    rewards: Float[Tensor, " _"]
    edges: Float[Tensor, " _"]
    position: int = 0

    @staticmethod
    def nothing(intervals: int) -> "Learned":
        """What is known before the first round: all intervals are alike."""
        weights = torch.full((intervals,), 1 / intervals, dtype=torch.float64)
        return Learned(weights, torch.zeros(0, dtype=torch.float64), torch.zeros(0))

    def rewarded(self, arm: int, gain: Float[Tensor, ""]) -> "Learned":
        """This and what an interval has just gained.

        Args:
            arm: The interval.
            gain: By how much the loss of validation samples fell.
        """
        rewards = torch.cat([self.rewards, gain[None]])
        weights = rewarded(self.weights, arm, normalised(rewards), EXPLORATION)
        return replace(self, weights=weights, rewards=rewards)

    def tensors(self) -> Params:
        """As tensors by name."""
        return {**vars(self), "position": torch.tensor(self.position)}

    @staticmethod
    def of(tensors: Params) -> "Learned":
        """What :meth:`tensors` gave."""
        named = {name: tensors[name] for name in ("weights", "rewards", "edges")}
        return Learned(**named, position=int(tensors["position"]))


@dataclass
class Memory:
    """What one client keeps from one hook to the next; a new round begins with its selection.

    Attributes:
        learned: All of it that outlives a round.
        validation: The samples held out for good; None where there are none.
        back: Ids of the samples that came back in this round; None before any selection.
        arm: The interval that they are of; None where none was drawn.
    """

    learned: Learned
    validation: Samples | None = None
    back: Int[Tensor, " _"] | None = None
    arm: int | None = None
    _marked: tuple[Tensor, Bool[Tensor, " _"]] | None = None

    def begin(self, back: Int[Tensor, " _"], arm: int | None = None) -> None:
        """A new round, with these ids back, of that interval."""
        self.back, self.arm, self._marked = back, arm, None

    def among(self, batch: Batch) -> Bool[Tensor, " samples"]:
        """Which samples of a batch came back; kept, as every step asks twice."""
        if self._marked is None or self._marked[0] is not batch.ids:
            back = torch.zeros(0) if self.back is None else self.back
            self._marked = batch.ids, torch.isin(batch.ids, back)
        return self._marked[1]
