"""What becomes of targets: how their neurons were made, and what happened in their games."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami.neuron import Neurons


class Made(NamedTuple):
    """Neurons for some targets.

    Attributes:
        neurons: One for each, its zero placed.
        epochs: That each was trained for.
        told_apart: Whether training ended because it told its validation records apart.
        fit: How well each tells the rows apart that it was trained on: the share of pairs of a
            target's row and another in which it is larger for the target's, its AUC.
        held_out: The same of fresh copies of the target and of other records of the clients, that
            nothing was decided by: how much of that is more than learned by heart.
    """

    neurons: Neurons
    epochs: Int[Tensor, " targets"]
    told_apart: Bool[Tensor, " targets"]
    fit: Float[Tensor, " targets"]
    held_out: Float[Tensor, " targets"]


class Played(NamedTuple):
    """What happened in each game.

    Attributes:
        target: Number of the game's target.
        was_in: Whether the target was in the batch (the paper's b).
        by_target: Whether the neuron fired for the target, where it was in.
        by_others: For how many other records it fired.
        epochs: Of each target, in their order: see :class:`Made`.
        told_apart: Of each target.
        fit: Of each target.
        held_out: Of each target.
    """

    target: Int[Tensor, " games"]
    was_in: Bool[Tensor, " games"]
    by_target: Bool[Tensor, " games"]
    by_others: Int[Tensor, " games"]
    epochs: Int[Tensor, " targets"]
    told_apart: Bool[Tensor, " targets"]
    fit: Float[Tensor, " targets"]
    held_out: Float[Tensor, " targets"]

    @property
    def said_in(self) -> Bool[Tensor, " games"]:
        """The verdict b': the neuron's gradient is not zero."""
        return self.by_target | (self.by_others > 0)

    @staticmethod
    def joined(parts: Iterable["Played"]) -> "Played":
        """All games of several parts."""
        return Played(*(torch.cat(part) for part in zip(*parts, strict=True)))
