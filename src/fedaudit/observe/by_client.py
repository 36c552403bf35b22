"""Values by client that are made one at a time, since all of them together are large."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from fedaudit.core.values import ClientId

Value = TypeVar("Value")


class LazyByClient(Mapping[ClientId, Value]):
    """Mapping whose values are made each time that they are asked for, and not kept.

    In another process it is an ordinary dictionary.
    """

    def __init__(self, clients: Iterable[ClientId], make: Callable[[ClientId], Value]) -> None:
        """Describe the mapping; nothing is made yet.

        Args:
            clients: Keys, in their order.
            make: Makes the value of a client, the same at every call.
        """
        # A dictionary finds a key at once, and keeps the order.
        self._clients, self._make = dict.fromkeys(clients), make

    def __getitem__(self, client: ClientId) -> Value:
        """Make the value of a client."""
        if client not in self._clients:
            raise KeyError(client)
        return self._make(client)

    def __contains__(self, client: object) -> bool:
        """Return whether there is such a client; makes nothing."""
        return client in self._clients

    def __iter__(self) -> Iterator[ClientId]:
        """Iterate over clients in their order."""
        return iter(self._clients)

    def __len__(self) -> int:
        """Number of clients."""
        return len(self._clients)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[dict[ClientId, Value]]]:
        """Pickle as a dictionary of all values."""
        return dict, (dict(self),)


def chosen(
    values: Mapping[ClientId, Value], clients: Iterable[ClientId]
) -> Mapping[ClientId, Value]:
    """Return the values of some clients, in the order given.

    Args:
        values: Of more clients. Those of a dictionary are taken now, others when asked for.
        clients: Some of them.
    """
    if isinstance(values, dict):
        return {client: values[client] for client in clients}
    return LazyByClient(clients, values.__getitem__)
