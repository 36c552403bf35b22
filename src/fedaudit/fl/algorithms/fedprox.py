"""FedProx: federated averaging whose clients are held near the model they were sent."""

from dataclasses import dataclass

from fedaudit.core import Model, Samples
from fedaudit.defenses.base import Defense, Turn
from fedaudit.errors import BadInput
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.training.local import train


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Adds mu / 2 times the squared distance from the received model to every client's loss.

    Attributes:
        architecture: Of the one global model.
        training: Each client's local training.
        mu: How hard clients are held, at least 0; at 0 it is FedAvg, bit for bit.

    Source: Li et al. 2020 ("Federated Optimization in Heterogeneous Networks"), Algorithm 2.
    Differs: Every client trains the number of epochs asked for, rather than to an inexactness.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.mu < float("inf"):
            raise BadInput(f"mu is at least 0 and finite, got {self.mu}")

    def trained(self, data: Samples, defense: Defense, turn: Turn) -> Model:
        """The client's model after local training that is pulled back."""
        return train(turn.received, data, self.training, defense, turn, pull=self.mu)
