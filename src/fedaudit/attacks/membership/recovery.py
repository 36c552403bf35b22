"""A rule for an adversary who has poisoned some rounds: how far the loss falls afterwards."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.base import measured_rounds
from fedaudit.core.errors import BadInput, table
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements


@dataclass(frozen=True)
class Recovery:
    """The logarithm of the loss after a poisoned round less that before the next, on average.

    The owner of a sample trains on it in the rounds between. No client trains on a held-out sample.

    Attributes:
        first: The first poisoned round; 0 takes each measured round but the last for one. A study
            with a malicious client says it.
        every: Number of rounds from one poisoned round to the next; the loss recovers for one round
            less.
        floor: Added to every loss, so that one of nearly 0 has a logarithm; above 0.

    Source: Nasr et al. 2019, active attacks: training on a sample undoes the ascent on it.
    Differs: There a network is trained on gradients, losses and outputs of several rounds with
        samples of known membership; here the loss alone is looked at, and nothing is learned.
    """

    over_clients = "target only"
    over_rounds = "mean fall after poisoned rounds"
    needs = Sees.ROUNDS | Sees.CHOOSES_UPLOAD

    first: int = 0
    every: int = 2
    floor: float = 0.01

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`.

        Raises:
            BadInput: No round was measured right after the poison and before the next.
        """
        (m,) = measurements
        values = m.of(target)
        was_measured = measured_rounds(values, target)
        rounds = torch.tensor(m.rounds)[was_measured].tolist()
        # Losses are measured with a minus.
        losses = -values[was_measured].double().clamp(max=0)
        steps = self._steps(rounds)
        if not steps or not self.floor > 0:
            raise BadInput(
                f"no loss can be followed from a poisoned round on (first {self.first}, every "
                f"{self.every}, floor {self.floor:g}; measured: {rounds}); leave out the attack's "
                f"settings, which are those of {table('attacker')}"
            )
        logs = (losses + self.floor).log()
        return torch.stack([logs[start] - logs[end] for start, end in steps]).mean(0)

    def _steps(self, rounds: list[int]) -> list[tuple[int, int]]:
        """Rows of each poisoned round and of the last one before the next."""
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
