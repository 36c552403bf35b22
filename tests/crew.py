"""Worker processes that are reused between tests, since each takes a second to start."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fedaudit.engines.base import Engine
from fedaudit.engines.local import Workers

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Crew:
    """An engine on a running session, in which each item contains its work."""

    run: Callable[[Iterable[object]], Iterator[object]]

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        def run(items: Iterable[Item]) -> Iterator[Result]:
            return cast(Iterator[Result], self.run((work, shared, item) for item in items))

        yield run


def _do_work(nothing: None, item: Any) -> object:
    work, shared, argument = item
    return work(shared, argument)


@contextmanager
def started(count: int = 2) -> Iterator[Engine]:
    """Yield an engine with this number of worker processes for any number of sessions."""
    with Workers(count).session(_do_work, None) as run:
        yield cast(Engine, _Crew(run))
