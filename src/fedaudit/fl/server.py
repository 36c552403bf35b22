"""A server that sends some clients another model than the others."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Model
from fedaudit.fl.algorithms.base import Server
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

    def refuse_misfit(self, clients: Collection[ClientId], rounds: int) -> None:
        """Before anything is trained: refuses clients that there are not, and rounds.

        Raises:
            BadInput: A client or a round that is named will never come.
        """
        strangers = sorted(set(self.change) - set(clients))
        never = sorted(round for round in self.rounds if not 1 <= round <= rounds)
        if strangers or never:
            named = f"clients {strangers}" if strangers else f"rounds {never}"
            raise BadInput(
                f"the server is to tamper with {named}, which never come: there are "
                f"{len(clients)} clients and rounds 1 to {rounds}"
            )

    def tamper(self, sent: Sent, client: ClientId, round: int) -> Sent:
        """The message that this client is really sent."""
        if client not in self.change or (self.rounds and round not in self.rounds):
            return sent
        return replace(sent, models=tuple(self.change[client](model) for model in sent.models))
