"""A server that sends some clients another model than the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fedaudit.core import ClientId, Model
from fedaudit.fl.algorithm import Server
from fedaudit.observe.round import Sent


@dataclass(frozen=True)
class Tampering(Server):
    """Changes the model that a client is sent.

    Attributes:
        change: For each client that is lied to, what becomes of an honest model.
        rounds: In which rounds; empty for all.
    """

    change: Mapping[ClientId, Callable[[Model], Model]]
    rounds: frozenset[int] = frozenset()

    def tamper(self, sent: Sent, client: ClientId, round: int) -> Sent:
        """What this client is really sent."""
        if client not in self.change or (self.rounds and round not in self.rounds):
            return sent
        return replace(sent, models=tuple(self.change[client](model) for model in sent.models))
