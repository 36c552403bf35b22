"""Utility-aware compensation: a few of the samples left out come back, with less confidence."""

from dataclasses import dataclass, field, replace
from math import floor
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import AtLeastZero, Decay, Fraction, Positive
from fedaudit.core.errors import BadInput
from fedaudit.core.modules import outputs_of
from fedaudit.core.seeds import held_out
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Batch, Model, Params, Samples
from fedaudit.defenses.cofedmid.partition import ClassGuided
from fedaudit.defenses.soft_labels import (
    divergence_per_class,
    entropy,
    hard_labels,
    slope_of_doubt,
    soft_target,
    true_probability,
)
from fedaudit.fl.hooks import Turn, Visit
from fedaudit.fl.training.manual_backprop import cross_entropy_slope


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


def on_one_scale(losses: Float[Tensor, " samples"]) -> Float[Tensor, " samples"]:
    """Losses from 0 for the smallest to 1 for the largest; 0 for all where they are equal.

    Source: CoFedMID, section 4.2.1, step 1.
    """
    low, high = losses.min(), losses.max()
    return (losses - low) / (high - low) if high > low else torch.zeros_like(losses)


def edges_of(scaled: Float[Tensor, " samples"], count: int) -> Float[Tensor, " edges"]:
    """The inner edges of intervals that hold equally many of these samples, up to rounding.

    Args:
        scaled: Losses in [0, 1].
        count: How many intervals; there is one edge fewer.

    Source: CoFedMID, section 4.2.1, step 1: interval j goes from rank floor((j - 1) n / M) to
        floor(j n / M), without the latter.
    """
    ranked = scaled.sort().values
    ranks = torch.arange(1, count, device=scaled.device) * len(ranked) // count
    return ranked[ranks]


def interval_of(
    scaled: Float[Tensor, " samples"], edges: Float[Tensor, " edges"]
) -> Int[Tensor, " samples"]:
    """The interval of each sample; edges belong to the interval above, 1 to the last."""
    return torch.searchsorted(edges.contiguous(), scaled.contiguous(), right=True)


def unconfident(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"], *, mu: float
) -> Float[Tensor, " samples"]:
    """Penalty on the loss of each sample that came back.

    The prediction is drawn towards a label that has its own probability of the true class and is
    uniform elsewhere, and towards a larger entropy.

    Args:
        outputs: Before the softmax.
        labels: True classes.
        mu: Weight of the entropy.

    Source: CoFedMID, section 4.2.2.
    Differs: No gradient flows through the label; the divergence is divided by the number of
        classes (HAMP's published reduction, beside which mu was chosen).
    """
    return divergence_per_class(outputs, _doubtful(outputs, labels)) - mu * entropy(outputs)


def unconfident_slope(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"], *, mu: float
) -> Float[Tensor, "samples classes"]:
    """The derivative of each sample's :func:`unconfident` by its outputs.

    Args:
        outputs: Before the softmax.
        labels: True classes.
        mu: Weight of the entropy.
    """
    return slope_of_doubt(outputs, _doubtful(outputs, labels), entropy_weight=mu)


def _doubtful(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"]
) -> Float[Tensor, "samples classes"]:
    sure = true_probability(outputs.detach(), labels)
    return soft_target(sure, labels, classes=outputs.shape[1])


EXPLORATION = 0.1
"""Share of intervals that are drawn regardless of what was learned."""


@dataclass(frozen=True)
class Learned:
    """A client's knowledge of its intervals after some rounds.

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
        """The knowledge before the first round: all intervals are alike."""
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
        """Inverse of :meth:`tensors`."""
        named = {name: tensors[name] for name in ("weights", "rewards", "edges")}
        return Learned(**named, position=int(tensors["position"]))


@dataclass
class Memory:
    """State of one client from one hook to the next; a new round begins with its selection.

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


class _Back(NamedTuple):
    """Positions of the samples that come back, and the interval that they are of, if any."""

    positions: Int[Tensor, " _"]
    arm: int | None = None


@arguments.dataclass(frozen=True)
class Compensation(ClassGuided):
    """CoFedMID without its noise: few classes each, and some of the samples left out come back.

    From round ``start`` on, every client sorts its samples by loss into intervals, fixed in that
    round; in each round it brings back samples of one interval that are not of its classes. Which
    interval, it learns from how much validation samples gain. These are held out of the client's
    own data for good, each sample with the same chance: they are not trained on, and so are no
    members. The client's weight in the average stays that of all its data.

    Attributes:
        start: First round with samples brought back, from 1; after the last round, nothing is held
            out or brought back.
        intervals: Number of intervals of the loss, at least 1.
        recycle: Largest share of the client's samples that comes back in a round, in [0, 1];
            0 for none.
        recycling: "exp3" to learn which interval helps; "random" for a fixed number of samples
            regardless of loss, "sequential" for as many in the order of their losses, going on
            where the round before ended.
        regularise: Whether the loss of samples brought back penalises confident predictions.
        mu: Weight of the prediction's entropy in that penalty, at least 0; 0 leaves it out.
        validation: About which share of the client's samples is held out, in [0, 1), to learn
            which interval helps; these samples are no members.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.Compensation(members=[0, 1], recycle=0.1).coalition
        (0, 1)

    Source: CoFedMID, section 4.2 and algorithm 2; Auer et al. 2002 (EXP3).
    Differs: Intervals are fixed once, as in algorithm 2 and not in the text; the divergence is
        per class, as in HAMP's code; both sums over a batch are divided by the batch's size.
        Validation samples, which the paper does not define, are the client's own. Samples come back
        from round ``start`` on, as its text says, where algorithm 2 begins in the round after it
        has made the intervals; and ``recycle`` is a share of the samples that are left once
        validation samples are held out, where the paper's is one of all.
    """

    start: Positive = 10
    intervals: Positive = 10
    recycle: Fraction = 0.1
    recycling: Literal["exp3", "random", "sequential"] = "exp3"
    regularise: bool = True
    mu: AtLeastZero = 0.005
    validation: Decay = 0.1

    memory: Memory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recycling == "exp3" and self.recycle > 0 and self.validation == 0:
            raise BadInput(
                "recycling 'exp3' learns from validation samples: give validation above 0, or "
                "recycling 'random' or 'sequential'"
            )
        # Frozen are the settings; a field that depends on one cannot have a default.
        object.__setattr__(self, "memory", Memory(Learned.nothing(self.intervals)))

    def acts_in(self, hook: str) -> bool:
        """As its class, but the loss is its own only where samples have come back."""
        if hook != "loss":
            return super().acts_in(hook)
        nobody = self.memory.back is not None and len(self.memory.back) == 0
        return self.regularise and self.recycle > 0 and not nobody

    @property
    def needs_classes(self) -> bool:
        """True if samples that come back are kept from confident predictions."""
        return self.regularise and self.recycle > 0

    def prepare(self, data: Samples, visit: Visit) -> Samples:
        """Once: validation samples are taken out, unless nothing will ever be brought back.

        Raises:
            BadInput: Nothing would be left to train on.
        """
        if self.recycle == 0 or self.start > visit.rounds:
            return data
        held = held_out(data.ids, self.validation, seed=visit.seed)
        if bool(held.all()):
            raise BadInput(
                f"client {visit.client} has {len(data)} samples, and all would be held out for "
                "validation; give it more, or set validation to 0 with another recycling"
            )
        self.memory.validation = data.take(held)
        return data.take(~held) if bool(held.any()) else data

    def select(self, data: Samples, turn: Turn) -> Samples:
        """Each round: samples of the client's classes, and those that come back, as they lay."""
        own = self.own(data, turn)
        most = floor(self.recycle * len(data))
        if turn.round < self.start or most == 0 or bool(own.all()):
            self.memory.begin(data.ids[:0])
            return data.take(own)
        back = self._back(data, (~own).nonzero()[:, 0], most, turn)
        self.memory.begin(data.ids[back.positions], back.arm)
        own[back.positions] = True
        return data.take(own)

    def _back(self, data: Samples, candidates: Int[Tensor, " _"], most: int, turn: Turn) -> _Back:
        """At most so many of the samples left out, by the chosen strategy."""
        if self.recycling == "random":
            return _Back(_some(candidates, most, turn))
        choose = self._next_in_order if self.recycling == "sequential" else self._of_one_interval
        return choose(data, candidates, most, turn)

    def _next_in_order(
        self, data: Samples, candidates: Int[Tensor, " _"], most: int, turn: Turn
    ) -> _Back:
        """The next ones by loss, from where the round before ended."""
        learned = self.memory.learned
        ranked = candidates[turn.evaluate(data)[candidates].argsort(stable=True)]
        places = torch.arange(learned.position, learned.position + min(most, len(ranked)))
        self.memory.learned = replace(learned, position=learned.position + most)
        return _Back(ranked[(places % len(ranked)).to(ranked.device)])

    def _of_one_interval(
        self, data: Samples, candidates: Int[Tensor, " _"], most: int, turn: Turn
    ) -> _Back:
        """Some of an interval that is drawn by what was learned of all."""
        scaled = on_one_scale(turn.evaluate(data))
        learned = self.memory.learned
        if len(learned.edges) == 0:
            learned = replace(learned, edges=edges_of(scaled, self.intervals).cpu())
            self.memory.learned = learned
        arm = drawn(learned.weights, EXPLORATION, turn.rng("interval"))
        interval = interval_of(scaled, learned.edges.to(scaled.device))
        return _Back(_some(candidates[interval[candidates] == arm], most, turn), arm)

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: nothing changes; samples that came back are noted."""
        if self.memory.back is not None and len(self.memory.back):
            turn.note("recycled", batch.ids[self.memory.among(batch)])
        return batch

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: the usual loss, and less confidence on samples that came back."""
        plain = super().loss(outputs, batch, turn)
        if self.memory.back is None or not self.regularise:
            return plain
        again = self.memory.among(batch)
        if not bool(again.any()):
            return plain
        labels = hard_labels(batch, "compensation")[again]
        return plain + unconfident(outputs[again], labels, mu=self.mu).sum() / len(batch)

    def slope(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor | None:
        """Each step: the derivative of the loss, times the number of samples."""
        if turn.received.architecture.loss is not cross_entropy or batch.y.is_floating_point():
            return None
        slope = cross_entropy_slope(outputs, batch.y)
        again = self.memory.among(batch)
        if self.regularise and bool(again.any()):
            # Of all rows, and most are dropped: to pick rows and put them back takes longer.
            doubt = unconfident_slope(outputs, batch.y, mu=self.mu)
            slope.addcmul_(doubt, again[:, None].to(doubt))
        return slope

    def after(self, start: Model, end: Model, turn: Turn) -> None:
        """Each round: what validation samples gained is the interval's reward."""
        held, arm = self.memory.validation, self.memory.arm
        if arm is None or held is None or len(held) == 0:
            return
        outputs = outputs_of(end, held.features, turn.device)
        gains = turn.evaluate(held) - start.architecture.loss(outputs, held.targets)
        self.memory.learned = self.memory.learned.rewarded(arm, gains.double().mean())

    def state(self) -> Params:
        """The learned values of intervals, and their edges."""
        return self.memory.learned.tensors()

    def restore(self, state: Params) -> None:
        """Takes up what :meth:`state` gave."""
        self.memory.learned = Learned.of(state)


def _some(positions: Int[Tensor, " _"], most: int, turn: Turn) -> Int[Tensor, " _"]:
    order = torch.randperm(len(positions), generator=turn.rng("recycling"))[:most]
    return positions[order.sort().values.to(positions.device)]
