"""Who a reply is from: node numbers are drawn anew in every run, partitions stay."""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fedaudit.core import ClientId

IDENTITY = "fedaudit"
PARTITION = "partition-id"
_LARGEST = 10**15
"""Of the numbers that a recording takes for clients."""
_OLDER = "fitres.metrics"
"""Where replies of the older interface hold what they say beside parameters."""


def identity_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod that adds to each reply which client it is from: its ``partition-id``.

    The number is that of the node's configuration, which simulations set and which is given to a
    SuperNode as ``--node-config "partition-id=0 ..."``. A client that has none adds nothing.
    """
    reply = call_next(message, context)
    partition = context.node_config.get(PARTITION)
    if partition is None or not reply.has_content():
        return reply
    reply.content[IDENTITY] = ConfigRecord({PARTITION: int(partition)})
    if _OLDER in reply.content.config_records:
        reply.content.config_records[_OLDER][PARTITION] = int(partition)
    return reply


def client_of(reply: Message) -> ClientId | None:
    """Which client says that it sent a reply; None where none does."""
    if not reply.has_content():
        return None
    said = (record.get(PARTITION) for record in reply.content.config_records.values())
    return next((client for one in said if (client := client_in(one)) is not None), None)


def client_in(said: object) -> ClientId | None:
    """The client that is meant by what a node says of itself; None for no number of a client."""
    if isinstance(said, bool) or not isinstance(said, int):
        return None
    return said if 0 <= said <= _LARGEST else None


Node = TypeVar("Node", int, str)


class _Claim(NamedTuple):
    """Which client a node has said it is, and in which round first."""

    client: ClientId
    round: int


class Claims(Generic[Node]):
    """Which client each node has said it is.

    All of a client's rounds are measured as one client's. A node that is another client than
    before would mix two clients' data in that, as would two nodes that are one client by turns; a
    new node may take the place of one that is gone.
    """

    def __init__(self) -> None:
        self._claims: dict[Node, _Claim] = {}
        self._holders: dict[ClientId, Node] = {}
        self._replaced: set[Node] = set()

    @property
    def clients(self) -> Mapping[Node, ClientId]:
        """For each node the client that it said first that it is."""
        return {node: claim.client for node, claim in self._claims.items()}

    def hear(self, node: Node, client: ClientId, index: int) -> str:
        """A node says which client it is.

        Args:
            node: Its number, by which the server knows it.
            client: That it says it is.
            index: The round.

        Returns:
            Why that cannot be; empty if it can.
        """
        first = self._claims.setdefault(node, _Claim(client, index))
        if first.client != client:
            return (
                f"node {node} says that it is client {client}, and in round {first.round} it said "
                f"client {first.client}; leave a node its partition-id for as long as it runs"
            )
        holder = self._holders.setdefault(client, node)
        if node in self._replaced:
            return (
                f"nodes {node} and {holder} say by turns that they are client {client}; give each "
                "a partition-id"
            )
        if holder != node:
            self._replaced.add(holder)
            self._holders[client] = node
        return ""
