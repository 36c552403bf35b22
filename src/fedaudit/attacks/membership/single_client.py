"""Rules on the target client alone: its last round, its mean and its slope."""

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
    """Signal of the target in the last round in which it was measured."""

    over_clients = "target only"
    over_rounds = "last"
    needs = Sees.NOTHING

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)][-1].double()


@dataclass(frozen=True)
class Mean:
    """Mean of the target's signal over the rounds in which it was measured."""

    over_clients = "target only"
    over_rounds = "mean"
    needs = Sees.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)].double().mean(0)


@dataclass(frozen=True)
class Slope:
    """Least-squares slope of the target's signal over the rounds in which it was measured.

    The line is fitted against the number of the round, so that a round without the target leaves a
    gap between the others.

    Source: CoFedMID appendix D, of FTA (Chen et al. 2024): the slope of confidence (FTA-C) or loss
    (FTA-L) over rounds. The losses are measured with a minus, so both slopes are larger for
    members.
    Differs: Reconstructed from those two sentences, which leave open whose model is followed (here
    the target's own, or the global one with ``snapshot = "global"``) and how a slope is fitted.
    """

    over_clients = "target only"
    over_rounds = "slope"
    needs = Sees.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Return the score of every sample.

        Raises:
            TooFewRounds: The target was measured in one round only.
        """
        (m,) = measurements
        values = m.of(target)
        was_measured = measured_rounds(values, target)
        if int(was_measured.sum()) < 2:
            raise TooFewRounds(
                f"a slope needs at least 2 measured rounds with client {target}, got 1; lower "
                "every, the interval between measured rounds"
            )
        rounds = torch.tensor(m.rounds, dtype=torch.float64)[was_measured]
        rounds = rounds - rounds.mean()
        signal = values[was_measured].double()
        # Relative to its first round, a constant signal has a slope of exactly 0.
        rise = signal - signal[0]
        return (rounds[:, None] * rise).sum(0) / rounds.square().sum()
