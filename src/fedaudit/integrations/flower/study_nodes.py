"""The engine of a study whose clients train on Flower's nodes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TypeVar, cast

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedaudit.engines.base import Counted, Engine
from fedaudit.engines.local import LOCAL
from fedaudit.errors import BadInput
from fedaudit.fl.visits import Done, Federation, Job, visited
from fedaudit.fl.wire.packets import pack_jobs
from fedaudit.integrations.flower.study_messages import MADE, Question, asking
from fedaudit.integrations.flower.study_turns import Nodes, Round
from fedaudit.study.config import Study
from fedaudit.study.federations import data_key, federation_seeds
from fedaudit.study.identity import study_key, with_code

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class FlowerNodes:
    """Clients train on the nodes of a Flower grid; all else is done by the server.

    A node is sent the turns of several clients at once, whoever these are: it deals the study's
    data as the server does. So it changes no result how many nodes there are, which of them come
    late, and which are lost in mid-round: what they were doing is done again by another.

    Federations that are not the study's own, such as a control's, are trained by the server.

    Attributes:
        grid: What ``main`` of a ServerApp is given.
        study: Which is carried out.
        nodes: How many to wait for before the first round, at least 1.
        patience: Seconds to wait for them; then the study goes on with those that are there.
            Also how long it goes on without any.
        here: Where the server works.

    Raises:
        BadInput: No nodes, or less than no patience.
    """

    grid: Grid
    study: Study
    nodes: int = 1
    patience: float = 60.0
    here: Engine = LOCAL

    def __post_init__(self) -> None:
        if self.nodes < 1 or not self.patience >= 0:
            raise BadInput(
                f"a study takes at least 1 node and 0 seconds of patience, got {self.nodes} and "
                f"{self.patience}"
            )

    @property
    def count(self) -> int:
        """Items that the server works on at once; see :class:`fedaudit.engines.base.Counted`."""
        return self.here.count if isinstance(self.here, Counted) else 1

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """See :class:`fedaudit.engines.base.Engine`.

        Raises:
            Unsupported: A part of a client's turn cannot be carried; it is named.
            BadInput: No node is there, or a turn comes to nothing wherever it is taken.
        """
        seeds = federation_seeds(self.study)
        # Nodes have the study's parts from their own copy of the app.
        key = study_key(with_code(self.study))
        nodes = Nodes(self.grid, wanted=self.nodes, patience=self.patience)
        with ExitStack() as opened:

            @cache
            def here() -> Callable[[Iterable[Item]], Iterator[Result]]:
                return opened.enter_context(self.here.session(work, shared))

            @cache
            def data() -> str:
                return data_key(cast(Federation, shared))

            def taken(jobs: Sequence[Job]) -> list[Done]:
                algorithm = cast(Federation, shared).algorithm

                def content(some: list[Job]) -> RecordDict:
                    seed, packet = some[0].visit.seed, pack_jobs(some, algorithm)
                    return asking(Question(MADE, key, seed, data(), packet))

                return Round(nodes, jobs, algorithm, content).taken()

            def run(items: Iterable[Item]) -> Iterator[Result]:
                given = list(items)
                jobs = [one for one in given if isinstance(one, Job) and one.visit.seed in seeds]
                if work is not visited or len(jobs) < len(given):
                    yield from here()(given)
                elif jobs:
                    yield from cast(Iterator[Result], iter(taken(jobs)))

            yield run
