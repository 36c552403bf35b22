"""What algorithms share whose server has one model and sends it to everybody."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedaudit.core import Architecture, ClientId, Model, Params
from fedaudit.observe.round import Sent
from fedaudit.params import plus, weighted_sum


@dataclass(frozen=True)
class OneModel:
    """The server's side of a federation with one global model.

    Attributes:
        architecture: Of that model.
    """

    architecture: Architecture

    @property
    def nets(self) -> tuple[Architecture, ...]:
        """Everybody trains the one global model."""
        return (self.architecture,)

    def start(self, seed: int) -> Params:
        """A freshly initialised global model."""
        return self.architecture.initial(seed).tensors()

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """Everybody gets the global model."""
        return Sent((Model.from_tensors(self.architecture, state),))

    def models(self, state: Params) -> Mapping[str, Model]:
        """The one global model."""
        return {"global": Model.from_tensors(self.architecture, state)}

    def moved(
        self, before: Model, step: Params, buffers: Sequence[Params], shares: Sequence[float]
    ) -> Params:
        """The server's state after a step of the parameters, with the clients' buffers averaged.

        Args:
            before: The global model.
            step: Added to its parameters.
            buffers: Of each client.
            shares: Of each client in the average; they sum to 1.
        """
        averaged = weighted_sum(buffers, shares) if before.buffers else {}
        return Model(self.architecture, plus(before.params, step), averaged).tensors()
