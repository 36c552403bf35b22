"""Training on this machine: in this process, or in several with one thread each."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from fedaudit.engines.workers import Workers

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside, as many as before afterwards.

    Training bits change with the number of intra-op threads, and two threads on small batches
    are slower than one; so results are made on one thread everywhere.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Sequential:
    """One client after another, in this process."""

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """See :class:`fedaudit.engines.base.Engine`."""

        def run(items: Iterable[Item]) -> Iterator[Result]:
            with one_thread():
                results = [work(shared, item) for item in items]
            yield from results

        yield run


LOCAL = Sequential()


def local_engine(workers: int) -> Sequential | Workers:
    """The engine for a number of workers: this process for one, more processes otherwise."""
    return LOCAL if workers == 1 else Workers(workers)
