"""Utility-aware compensation of CoFedMID.

Each client trains mainly on the classes that the partition assigns to it. To compensate for the
loss of accuracy, it also trains on a few samples of its remaining classes, the *returned* samples.
A bandit algorithm (EXP3) chooses them: its arms are intervals of the loss. The training loss of
returned samples penalises confident predictions.
"""

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
    require_class_indices,
    soft_label_gradient,
    soft_target,
    true_probability,
)
from fedaudit.fl.hooks import ClientContext, TrainingContext
from fedaudit.fl.training.manual_backprop import cross_entropy_slope


def probabilities(weights: Float[Tensor, " arms"], exploration: float) -> Float[Tensor, " arms"]:
    """Compute the probability of each arm.

    Args:
        weights: Weights of the arms, above 0.
        exploration: Fraction of draws that are uniform, in (0, 1].

    Source: Auer et al. 2002, algorithm Exp3: p = (1 - g) w / sum w + g / M.
    """
    return (1 - exploration) * weights / weights.sum() + exploration / len(weights)


def draw_arm(weights: Float[Tensor, " arms"], exploration: float, rng: torch.Generator) -> int:
    """Draw an arm with the probabilities of :func:`probabilities`."""
    return int(torch.multinomial(probabilities(weights, exploration), 1, generator=rng))


def update_weights(
    weights: Float[Tensor, " arms"], arm: int, reward: float, exploration: float
) -> Float[Tensor, " arms"]:
    """Return the weights after a reward, normalised to a sum of 1.

    Args:
        weights: Weights before the reward.
        arm: The arm that was drawn.
        reward: The reward, in [-1, 1]; 0 changes nothing.
        exploration: Fraction of draws that are uniform.

    Source: Auer et al. 2002, algorithm Exp3: w = w exp(g (r / p) / M).
    Differs: Rewards can be as low as -1. Weights are normalised to a sum of 1, which does not
        change probabilities.
    """
    probability = float(probabilities(weights, exploration)[arm])
    factors = torch.ones_like(weights)
    factors[arm] = torch.tensor(exploration * reward / probability / len(weights)).exp()
    updated = weights * factors
    # Probabilities are mixed with uniform ones, so this lower limit does not change them.
    return (updated / updated.sum()).clamp(min=1e-300)


def normalise_reward(history: Float[Tensor, " rewards"]) -> float:
    """Scale the last reward so that -1 is the 20th percentile of all rewards and 1 the 80th.

    Returns:
        The scaled reward, clipped to [-1, 1]; 0 for fewer than five rewards or equal percentiles.

    Source: Bai et al. 2026 (CoFedMID), section 4.2.1; Graves et al. 2017, equation 8.
    Differs: The paper does not specify the scale of the first rewards.
    """
    if len(history) < 5:
        return 0.0
    low, high = torch.quantile(history, torch.tensor([0.2, 0.8], dtype=history.dtype)).tolist()
    if high <= low:
        return 0.0
    scaled = 2 * (float(history[-1]) - low) / (high - low) - 1
    return float(max(-1.0, min(1.0, scaled)))


def scale_losses(losses: Float[Tensor, " samples"]) -> Float[Tensor, " samples"]:
    """Scale losses to [0, 1] by their minimum and maximum; equal losses become 0.

    Source: Bai et al. 2026 (CoFedMID), section 4.2.1, step 1.
    """
    low, high = losses.min(), losses.max()
    return (losses - low) / (high - low) if high > low else torch.zeros_like(losses)


def interval_edges(scaled: Float[Tensor, " samples"], count: int) -> Float[Tensor, " edges"]:
    """Return the ``count - 1`` edges between intervals that contain equally many samples.

    Args:
        scaled: Losses in [0, 1].
        count: Number of intervals.

    Source: Bai et al. 2026 (CoFedMID), section 4.2.1, step 1: interval j contains the ranks from
        floor((j - 1) n / M) to below floor(j n / M), so that sizes may differ by 1.
    """
    ranked = scaled.sort().values
    ranks = torch.arange(1, count, device=scaled.device) * len(ranked) // count
    return ranked[ranks]


def interval_of(
    scaled: Float[Tensor, " samples"], edges: Float[Tensor, " edges"]
) -> Int[Tensor, " samples"]:
    """Return the interval of each sample. An edge belongs to the interval above it."""
    return torch.searchsorted(edges.contiguous(), scaled.contiguous(), right=True)


def confidence_penalty(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"], *, mu: float
) -> Float[Tensor, " samples"]:
    """Compute the penalty on the loss of each returned sample.

    The penalty increases the prediction's entropy, and moves the prediction towards a soft label.
    The soft label keeps the predicted probability of the true class, and spreads the remaining
    probability equally over the other classes.

    Args:
        outputs: Outputs before the softmax.
        labels: True classes.
        mu: Weight of the entropy.

    Source: Bai et al. 2026 (CoFedMID), section 4.2.2.
    Differs: The gradient is not propagated through the label. The divergence is divided by the
        number of classes, as in HAMP's published code, for which mu was chosen.
    """
    return divergence_per_class(outputs, _soft_label(outputs, labels)) - mu * entropy(outputs)


def confidence_penalty_derivative(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"], *, mu: float
) -> Float[Tensor, "samples classes"]:
    """Compute the derivative of each sample's :func:`confidence_penalty` by its outputs."""
    return soft_label_gradient(outputs, _soft_label(outputs, labels), entropy_weight=mu)


def _soft_label(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"]
) -> Float[Tensor, "samples classes"]:
    probability = true_probability(outputs.detach(), labels)
    return soft_target(probability, labels, classes=outputs.shape[1])


EXPLORATION = 0.1
"""Fraction of rounds in which the interval is drawn uniformly."""


# The names of Learned, Memory and their fields must not change, because the fingerprints of
# checkpoints depend on them.
@dataclass(frozen=True)
class Learned:
    """State of a client's bandit algorithm, or of its sequential choice of samples.

    Attributes:
        weights: Weight of each interval; an interval with a higher weight is drawn more often.
        rewards: Rewards of all rounds so far, before normalisation.
        edges: Edges between the intervals; empty before the first round with returned samples.
        position: Rank in the order of losses at which the next round continues ("sequential").
    """

    weights: Float[Tensor, " intervals"]
    rewards: Float[Tensor, " _"]
    edges: Float[Tensor, " _"]
    position: int = 0

    @staticmethod
    def initial(intervals: int) -> "Learned":
        """Return the initial state, with equal weights."""
        weights = torch.full((intervals,), 1 / intervals, dtype=torch.float64)
        return Learned(weights, torch.zeros(0, dtype=torch.float64), torch.zeros(0))

    def with_reward(self, arm: int, reward: Float[Tensor, ""]) -> "Learned":
        """Return the state after a reward for an interval."""
        rewards = torch.cat([self.rewards, reward[None]])
        weights = update_weights(self.weights, arm, normalise_reward(rewards), EXPLORATION)
        return replace(self, weights=weights, rewards=rewards)

    def tensors(self) -> Params:
        """Return the state as tensors by name."""
        return {**vars(self), "position": torch.tensor(self.position)}

    @staticmethod
    def of(tensors: Params) -> "Learned":
        """Restore the state from :meth:`tensors`."""
        fields = {name: tensors[name] for name in ("weights", "rewards", "edges")}
        return Learned(**fields, position=int(tensors["position"]))


@dataclass
class Memory:
    """State of one client between hooks.

    Attributes:
        learned: State of the bandit algorithm, which is kept between rounds.
        validation: The held-out samples for validation; None if no samples are held out.
        back: Ids of the samples that were returned in this round; None before the first round.
        arm: Interval that was drawn in this round; None if no interval was drawn.
    """

    learned: Learned
    validation: Samples | None = None
    back: Int[Tensor, " _"] | None = None
    arm: int | None = None
    _marked: tuple[Tensor, Bool[Tensor, " _"]] | None = None

    def begin(self, back: Int[Tensor, " _"], arm: int | None = None) -> None:
        """Start a round, given the ids of returned samples and the drawn interval."""
        self.back, self.arm, self._marked = back, arm, None

    def is_returned(self, batch: Batch) -> Bool[Tensor, " samples"]:
        """Return a mask of the returned samples in a batch."""
        # The result is cached, as every training step calls this twice.
        if self._marked is None or self._marked[0] is not batch.ids:
            back = torch.zeros(0) if self.back is None else self.back
            self._marked = batch.ids, torch.isin(batch.ids, back)
        return self._marked[1]


class _ReturnedSamples(NamedTuple):
    """Positions of returned samples, and the drawn interval (None if no interval was drawn)."""

    positions: Int[Tensor, " _"]
    arm: int | None = None


@arguments.dataclass(frozen=True)
class Compensation(ClassGuided):
    """Class-guided partition with compensation for the classes that a client is not assigned.

    A client trains mainly on its assigned classes, and on a few samples of its remaining classes,
    the returned samples. In round ``start``, every client divides its samples into intervals by
    their loss. From then on, it draws one interval per round, and returns some samples of this
    interval to training. A bandit algorithm (EXP3) learns from the decrease of the validation loss
    which interval is most useful.

    Each sample is held out for validation with the same probability, for the whole training.
    Validation samples are therefore non-members. They still count in the client's weight in the
    average.

    Attributes:
        start: First round with returned samples, from 1. If it is above the number of rounds, no
            samples are held out or returned.
        intervals: Number of intervals of the loss, at least 1.
        recycle: Largest fraction of the client's samples that is returned in a round, in [0, 1];
            with 0, no samples are returned.
        recycling: "exp3" learns which interval is most useful. "random" returns random samples of
            all intervals. "sequential" returns samples in the order of their losses, and continues
            where the previous round ended.
        regularise: Whether the loss of returned samples penalises confident predictions.
        mu: Weight of the prediction's entropy in that penalty, at least 0.
        validation: Expected fraction of the client's samples that is held out for validation, in
            [0, 1); these samples are non-members.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.Compensation(clients=[0, 1], recycle=0.1).coalition
        (0, 1)

    Source: Bai et al. 2026 (CoFedMID), section 4.2 and algorithm 2; Auer et al. 2002 (EXP3).
    Differs: Intervals are computed once, as in algorithm 2; the paper's text differs. The
        divergence is divided by the number of classes, as in HAMP's code. The loss and the penalty
        are both divided by the batch size. The paper does not define the validation samples; here,
        they are samples of the client. Samples are returned from round ``start`` on, as in the
        text; algorithm 2 starts one round after it computes the intervals. ``recycle`` is a
        fraction of the client's samples without validation samples; in the paper, of all samples.
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
        # The field has no default, as its value depends on a setting.
        object.__setattr__(self, "memory", Memory(Learned.initial(self.intervals)))

    def acts_in(self, hook: str) -> bool:
        """Return whether the defense uses a hook; "loss" is only used if samples were returned."""
        if hook != "loss":
            return super().acts_in(hook)
        is_none_returned = self.memory.back is not None and len(self.memory.back) == 0
        return self.regularise and self.recycle > 0 and not is_none_returned

    @property
    def needs_class_labels(self) -> bool:
        return self.regularise and self.recycle > 0

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        # Validation samples are only used to choose returned samples.
        if self.recycle == 0 or self.start > client_context.rounds:
            return data
        is_held_out = held_out(data.ids, self.validation, seed=client_context.seed)
        if bool(is_held_out.all()):
            raise BadInput(
                f"client {client_context.client} has {len(data)} samples, and all would be "
                "held out for validation; give it more, or set validation to 0 with another "
                "recycling"
            )
        self.memory.validation = data.take(is_held_out)
        return data.take(~is_held_out) if bool(is_held_out.any()) else data

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        """Select the samples of the client's classes and the returned ones, in original order."""
        is_selected = self.has_class(data, context)
        limit = floor(self.recycle * len(data))
        if context.round < self.start or limit == 0 or bool(is_selected.all()):
            self.memory.begin(data.ids[:0])
            return data.take(is_selected)
        returned = self._choose_returned(data, (~is_selected).nonzero()[:, 0], limit, context)
        self.memory.begin(data.ids[returned.positions], returned.arm)
        is_selected[returned.positions] = True
        return data.take(is_selected)

    def _choose_returned(
        self, data: Samples, candidates: Int[Tensor, " _"], limit: int, context: TrainingContext
    ) -> _ReturnedSamples:
        if self.recycling == "random":
            return _ReturnedSamples(_random_subset(candidates, limit, context))
        if self.recycling == "sequential":
            return self._choose_in_order(data, candidates, limit, context)
        return self._choose_from_interval(data, candidates, limit, context)

    def _choose_in_order(
        self, data: Samples, candidates: Int[Tensor, " _"], limit: int, context: TrainingContext
    ) -> _ReturnedSamples:
        """Choose samples in the order of losses, continuing where the previous round ended."""
        learned = self.memory.learned
        ranked = candidates[context.evaluate(data)[candidates].argsort(stable=True)]
        ranks = torch.arange(learned.position, learned.position + min(limit, len(ranked)))
        self.memory.learned = replace(learned, position=learned.position + limit)
        return _ReturnedSamples(ranked[(ranks % len(ranked)).to(ranked.device)])

    def _choose_from_interval(
        self, data: Samples, candidates: Int[Tensor, " _"], limit: int, context: TrainingContext
    ) -> _ReturnedSamples:
        """Draw an interval by the learned weights, and choose random samples of this interval."""
        scaled = scale_losses(context.evaluate(data))
        learned = self.memory.learned
        if len(learned.edges) == 0:
            learned = replace(learned, edges=interval_edges(scaled, self.intervals).cpu())
            self.memory.learned = learned
        arm = draw_arm(learned.weights, EXPLORATION, context.rng("interval"))
        interval = interval_of(scaled, learned.edges.to(scaled.device))
        in_interval = candidates[interval[candidates] == arm]
        return _ReturnedSamples(_random_subset(in_interval, limit, context), arm)

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        if self.memory.back is not None and len(self.memory.back):
            context.note("recycled", batch.ids[self.memory.is_returned(batch)])
        return batch

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        """Compute the usual loss, with a confidence penalty on returned samples."""
        loss = super().loss(outputs, batch, context)
        if self.memory.back is None or not self.regularise:
            return loss
        is_returned = self.memory.is_returned(batch)
        if not bool(is_returned.any()):
            return loss
        labels = require_class_indices(batch, "compensation")[is_returned]
        penalty = confidence_penalty(outputs[is_returned], labels, mu=self.mu)
        return loss + penalty.sum() / len(batch)

    def slope(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor | None:
        if context.received.architecture.loss is not cross_entropy or batch.y.is_floating_point():
            return None
        slope = cross_entropy_slope(outputs, batch.y)
        is_returned = self.memory.is_returned(batch)
        if self.regularise and bool(is_returned.any()):
            # The penalty is computed for all rows and masked, which is faster than selecting rows.
            derivative = confidence_penalty_derivative(outputs, batch.y, mu=self.mu)
            slope.addcmul_(derivative, is_returned[:, None].to(derivative))
        return slope

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        validation, arm = self.memory.validation, self.memory.arm
        if arm is None or validation is None or len(validation) == 0:
            return
        outputs = outputs_of(end, validation.features, context.device)
        losses_after = start.architecture.loss(outputs, validation.targets)
        decreases = context.evaluate(validation) - losses_after
        self.memory.learned = self.memory.learned.with_reward(arm, decreases.double().mean())

    def state(self) -> Params:
        return self.memory.learned.tensors()

    def restore(self, state: Params) -> None:
        self.memory.learned = Learned.of(state)


def _random_subset(
    positions: Int[Tensor, " _"], limit: int, context: TrainingContext
) -> Int[Tensor, " _"]:
    order = torch.randperm(len(positions), generator=context.rng("recycling"))[:limit]
    return positions[order.sort().values.to(positions.device)]
