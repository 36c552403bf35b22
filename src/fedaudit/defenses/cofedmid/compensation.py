"""Utility-aware compensation: a few of the samples left out come back, with less confidence."""

from dataclasses import dataclass, field
from math import floor

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core import Batch, Model, Params, Samples, cross_entropy
from fedaudit.defenses.base import Defense, Turn, Visit
from fedaudit.defenses.cofedmid.exp3 import drawn, normalised, rewarded
from fedaudit.defenses.cofedmid.intervals import edges_of, interval_of, on_one_scale
from fedaudit.defenses.cofedmid.partition import ClassGuided
from fedaudit.defenses.cofedmid.validation import held_out
from fedaudit.defenses.soft_labels import (
    divergence_per_class,
    entropy,
    hard_labels,
    slope_of_doubt,
    soft_target,
    true_probability,
)
from fedaudit.errors import BadInput, unknown_name
from fedaudit.fl.dense import cross_entropy_slope
from fedaudit.modules import outputs_of

RECYCLINGS = ("exp3", "random", "sequential")
EXPLORATION = 0.1
"""Share of intervals that are drawn regardless of what was learned."""


@dataclass
class Compensation(Defense):
    """Class-guided partition, and part of the samples that it leaves out back in again.

    From round ``start`` on, every client sorts its samples by loss into intervals, fixed in that
    round; in each round it brings back samples of one interval that are not of its classes. Which
    interval, it learns from how much validation samples gain. These are held out of the client's
    own data for good, each sample with the same chance: they are not trained on, and so are no
    members. The client's weight in the average stays that of all its data.

    Attributes:
        partition: Which classes are the client's own.
        start: First round with samples brought back; after the last round, nothing is held out
            or brought back.
        intervals: How many there are, at least 1.
        recycle: Largest share of the client's samples that comes back in a round, in [0, 1];
            0 for none.
        recycling: "exp3" to learn which interval helps; "random" for a fixed number of samples
            regardless of loss, "sequential" for as many in the order of their losses, going on
            where the round before ended.
        regularise: Whether samples brought back are kept from being predicted with confidence.
        mu: Weight of the prediction's entropy in that.
        validation: About which share of the client's samples is held out, in [0, 1).

    Source: CoFedMID, section 4.2 and algorithm 2; Auer et al. 2002 (EXP3).
    Differs: Intervals are fixed once, as in algorithm 2 and not in the text; the divergence is
        per class, as in HAMP's code; both sums over a batch are divided by the batch's size.
        Validation samples, which the paper does not define, are the client's own.
    """

    partition: ClassGuided
    start: int = 10
    intervals: int = 10
    recycle: float = 0.1
    recycling: str = "exp3"
    regularise: bool = True
    mu: float = 0.005
    validation: float = 0.1

    _weights: Float[Tensor, " intervals"] = field(init=False, repr=False)
    _rewards: Float[Tensor, " _"] = field(init=False, repr=False)
    _edges: Float[Tensor, " _"] = field(init=False, repr=False)
    _position: int = field(default=0, init=False, repr=False)
    _validation: Samples | None = field(default=None, init=False, repr=False)
    _recycled: Int[Tensor, " _"] | None = field(default=None, init=False, repr=False)
    _arm: int | None = field(default=None, init=False, repr=False)
    _step: tuple[Tensor, Bool[Tensor, " _"]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.start < 1 or self.intervals < 1:
            raise BadInput(
                f"start is a round from 1 on and intervals at least 1, got {self.start} and "
                f"{self.intervals}"
            )
        mu = 0 <= self.mu < float("inf")
        if not (0 <= self.recycle <= 1 and 0 <= self.validation < 1 and mu):
            raise BadInput(
                "recycle lies in [0, 1], validation in [0, 1) and mu is finite and at least 0, got "
                f"{self.recycle}, {self.validation} and {self.mu}"
            )
        if self.recycling not in RECYCLINGS:
            raise unknown_name("recycling", self.recycling, RECYCLINGS)
        if self.recycling == "exp3" and self.recycle > 0 and self.validation == 0:
            raise BadInput(
                "recycling 'exp3' learns from validation samples: give validation above 0, or "
                "recycling 'random' or 'sequential'"
            )
        self._weights = torch.full((self.intervals,), 1 / self.intervals, dtype=torch.float64)
        self._rewards = torch.zeros(0, dtype=torch.float64)
        self._edges = torch.zeros(0)

    def acts_in(self, hook: str) -> bool:
        """As its class, but the loss is its own only where samples have come back."""
        if hook != "loss":
            return super().acts_in(hook)
        nobody = self._recycled is not None and len(self._recycled) == 0
        return self.regularise and self.recycle > 0 and not nobody

    @property
    def needs_classes(self) -> bool:
        """Where samples that come back are kept from being predicted with confidence."""
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
        self._validation = data.take(held)
        return data.take(~held) if bool(held.any()) else data

    def select(self, data: Samples, turn: Turn) -> Samples:
        """Each round: samples of the client's classes, and those that come back, as they lay."""
        own = self.partition.own(data, turn)
        self._arm = self._step = None
        most = floor(self.recycle * len(data))
        if turn.round < self.start or most == 0 or bool(own.all()):
            self._recycled = data.ids[:0]
            return data.take(own)
        back = self._back(data, ~own, most, turn)
        self._recycled = data.ids[back]
        own[back] = True
        return data.take(own)

    def _back(
        self, data: Samples, left_out: Bool[Tensor, " samples"], most: int, turn: Turn
    ) -> Int[Tensor, " _"]:
        """Positions of at most so many of the samples left out, by the chosen strategy."""
        candidates = left_out.nonzero()[:, 0]
        if self.recycling == "random":
            return _some(candidates, most, turn)
        losses = turn.evaluate(data)
        if self.recycling == "sequential":
            ranked = candidates[losses[candidates].argsort(stable=True)]
            places = torch.arange(self._position, self._position + min(most, len(ranked)))
            self._position += most
            return ranked[(places % len(ranked)).to(ranked.device)]
        scaled = on_one_scale(losses)
        if len(self._edges) == 0:
            self._edges = edges_of(scaled, self.intervals).cpu()
        self._arm = drawn(self._weights, EXPLORATION, turn.rng("interval"))
        interval = interval_of(scaled, self._edges.to(scaled.device))
        return _some(candidates[interval[candidates] == self._arm], most, turn)

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: nothing changes; samples that came back are noted."""
        if self._recycled is not None and len(self._recycled):
            turn.note("recycled", batch.ids[self._again(batch)])
        return batch

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: the usual loss, and less confidence on samples that came back."""
        plain = super().loss(outputs, batch, turn)
        if self._recycled is None or not self.regularise:
            return plain
        again = self._again(batch)
        if not bool(again.any()):
            return plain
        labels = hard_labels(batch, "compensation")[again]
        return plain + unconfident(outputs[again], labels, mu=self.mu).sum() / len(batch)

    def slope(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor | None:
        """Each step: the derivative of the loss, times the number of samples."""
        if turn.received.architecture.loss is not cross_entropy or batch.y.is_floating_point():
            return None
        slope = cross_entropy_slope(outputs, batch.y)
        again = self._again(batch)
        if self.regularise and bool(again.any()):
            # Of all rows, and most are dropped: to pick rows and put them back takes longer.
            doubt = unconfident_slope(outputs, batch.y, mu=self.mu)
            slope.addcmul_(doubt, again[:, None].to(doubt))
        return slope

    def _again(self, batch: Batch) -> Bool[Tensor, " samples"]:
        """Which samples of a batch came back; kept, as every step asks twice."""
        if self._step is None or self._step[0] is not batch.ids:
            ids = torch.zeros(0) if self._recycled is None else self._recycled
            self._step = batch.ids, torch.isin(batch.ids, ids)
        return self._step[1]

    def after(self, start: Model, end: Model, turn: Turn) -> None:
        """Each round: what validation samples gained is the interval's reward."""
        if self._arm is None or self._validation is None or len(self._validation) == 0:
            return
        held = self._validation
        outputs = outputs_of(end, held.features, turn.device)
        gains = turn.evaluate(held) - start.architecture.loss(outputs, held.labels)
        self._rewards = torch.cat([self._rewards, gains.double().mean()[None]])
        reward = normalised(self._rewards)
        self._weights = rewarded(self._weights, self._arm, reward, EXPLORATION)

    def state(self) -> Params:
        """What was learned of intervals, and where they lie."""
        return {
            "weights": self._weights,
            "rewards": self._rewards,
            "edges": self._edges,
            "position": torch.tensor(self._position),
        }

    def restore(self, state: Params) -> None:
        """Takes up what :meth:`state` gave."""
        self._weights, self._rewards = state["weights"], state["rewards"]
        self._edges, self._position = state["edges"], int(state["position"])


def _some(positions: Int[Tensor, " _"], most: int, turn: Turn) -> Int[Tensor, " _"]:
    """At most so many of the positions, at random and ascending."""
    order = torch.randperm(len(positions), generator=turn.rng("recycling"))[:most]
    return positions[order.sort().values.to(positions.device)]


def unconfident(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"], *, mu: float
) -> Float[Tensor, " samples"]:
    """What is added to the loss of each sample that came back.

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
