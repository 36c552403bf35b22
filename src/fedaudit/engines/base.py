"""What an engine does: the same work for many items, results in the order of the items."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, runtime_checkable

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Key = TypeVar("Key")
Value = TypeVar("Value")


class Shards(dict[Key, Value]):
    """Parts of what is shared of which an item needs few: an engine may hand out one at a time."""


@runtime_checkable
class Engine(Protocol):
    """Where clients train. Results never depend on which engine, or on how many workers."""

    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> AbstractContextManager[Callable[[Iterable[Item]], Iterator[Result]]]:
        """A function that does the work for each item, as long as the session is open.

        Args:
            work: A module-level function of (shared, item). It changes neither in place.
            shared: What every item needs (the clients' data); handed out once.
        """
        ...


@runtime_checkable
class Counted(Engine, Protocol):
    """An engine that says how many items it works on at once."""

    @property
    def count(self) -> int:
        """At least 1."""
        ...
