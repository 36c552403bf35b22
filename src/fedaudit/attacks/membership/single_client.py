"""Rules that look at the target client alone: its last round, its mean, its slope."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.base import measured_rounds
from fedaudit.core.errors import TooFewRounds
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements


@dataclass(frozen=True)
class Last:
    """The signal at the target in the last round in which it was measured."""

    over_clients = "target only"
    over_rounds = "last"
    needs = Sees.NOTHING

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)][-1].double()


@dataclass(frozen=True)
class Mean:
    """The mean of the signal at the target over the rounds in which it was measured."""

    over_clients = "target only"
    over_rounds = "mean"
    needs = Sees.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)].double().mean(0)


@dataclass(frozen=True)
class Slope:
    """The least-squares slope of the signal at the target over the rounds it was measured in.

    The line is fitted against the index of the round, so that a round in which the target did
    not take part leaves a gap and does not move the others together.

    Source: CoFedMID appendix D, of FTA (Chen et al. 2024): the slope of confidence (FTA-C) or
        loss (FTA-L) over rounds. The losses are measured with a minus, so both slopes are
        larger for members.
    Differs: Reconstructed from those two sentences, which leave open whose model is followed
        (here the target's own, or the global one with ``snapshot = "global"``) and how a slope
        is fitted.
    """

    over_clients = "target only"
    over_rounds = "slope"
    needs = Sees.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`.

        Raises:
            TooFewRounds: The target was measured in one round only.
        """
        (m,) = measurements
        values = m.of(target)
        was_measured = measured_rounds(values, target)
        if int(was_measured.sum()) < 2:
            raise TooFewRounds(
                f"a slope needs at least 2 measured rounds with client {target}, got 1; every sets "
                "how often rounds are measured"
            )
        rounds = torch.tensor(m.rounds, dtype=torch.float64)[was_measured]
        rounds = rounds - rounds.mean()
        followed = values[was_measured].double()
        # Seen from its first round, a signal that never moves has a slope of exactly 0.
        risen = followed - followed[0]
        return (rounds[:, None] * risen).sum(0) / rounds.square().sum()
