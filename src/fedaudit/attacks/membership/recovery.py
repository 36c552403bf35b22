"""Rule of an adversary that poisons some rounds, on how far the loss falls afterwards."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.base import measured_rounds
from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements


@dataclass(frozen=True)
class Recovery:
    """Mean fall of the log loss from each poisoned round to the round before the next one.

    The owner of a sample trains on it in the rounds between. No client trains on a held-out sample.

    Attributes:
        first: The first poisoned round; 0 treats each measured round but the last as poisoned. A
            study with a malicious client sets it.
        every: Number of rounds from one poisoned round to the next; the loss recovers for one round
            less.
        floor: Added to every loss, so that the logarithm of a loss near 0 is finite; above 0.

    Source: Nasr et al. 2019, active attacks: training on a sample undoes the ascent on it.
    Differs: The original trains a network on gradients, losses and outputs of several rounds with
    samples of known membership. This rule uses the loss alone, and learns nothing.
    """

    over_clients = "target only"
    over_rounds = "mean fall after poisoned rounds"
    needs = Sees.ROUNDS | Sees.CHOOSES_UPLOAD

    first: int = 0
    every: int = 2
    floor: float = 0.01

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Return the score of every sample.

        Raises:
            BadInput: No round was measured right after the poison and before the next.
        """
        (m,) = measurements
        values = m.of(target)
        was_measured = measured_rounds(values, target)
        rounds = torch.tensor(m.rounds)[was_measured].tolist()
        # The signal is the negative loss.
        losses = -values[was_measured].double().clamp(max=0)
        steps = self._steps(rounds)
        if not steps or not self.floor > 0:
            raise BadInput(
                f"no poisoned round is followed by a measured one (first {self.first}, every "
                f"{self.every}, floor {self.floor:g}; measured: {rounds}); omit the attack's "
                "settings, so that the study's [attacker] sets them"
            )
        logs = (losses + self.floor).log()
        return torch.stack([logs[start] - logs[end] for start, end in steps]).mean(0)

    def _steps(self, rounds: list[int]) -> list[tuple[int, int]]:
        """Return the rows of each poisoned round and of the last one before the next."""
        if not self.first:
            return [(row, row + 1) for row in range(len(rounds) - 1)]
        rows = {index: row for row, index in enumerate(rounds)}
        later = self.every - 1
        return [
            (row, rows[index + later])
            for index, row in rows.items()
            if index >= self.first
            and (index - self.first) % self.every == 0
            and index + later in rows
        ]
