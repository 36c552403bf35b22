"""A study as the server of a Flower run carries it out, with clients' turns on Flower's nodes."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic
from typing import TypeVar, cast

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedaudit.core.errors import BadInput, Refusal
from fedaudit.core.progress import Progress
from fedaudit.core.values import Params
from fedaudit.engines.base import Counted, Engine
from fedaudit.engines.local import LOCAL, local_engine
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.visits import Done, Job, TurnContext, refuse_unfit, visited
from fedaudit.fl.wire.packets import pack_jobs, unpack_done
from fedaudit.integrations.flower.study_messages import (
    MADE,
    Question,
    answer_in,
    asking,
    refusal_in,
    studies_of,
)
from fedaudit.report.page import write_report_beside
from fedaudit.report.terminal import print_record
from fedaudit.results.text import indented, plain, without_commands
from fedaudit.study.running.identity import study_key, with_code
from fedaudit.study.running.run import run_study
from fedaudit.study.settings.file import chosen_studies
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.build import data_key, federation_seeds

_TRIES = 3
"""So often turns are begun before the cause is taken to be the turns."""

_LARGEST = 256 * 2**20
"""Bytes of what clients start from in one message, if it is about several clients."""

_SHORTEST, _LONGEST = 0.05, 1.0
"""Seconds between two looks for replies: more and more while nothing comes."""

_log = logging.getLogger("fedaudit")

Content = Callable[[list[Job]], RecordDict]
"""Of a message that asks a node to take some turns."""


@dataclass
class _Block:
    """Turns that travel together.

    Attributes:
        places: Theirs among all of the round.
        failed: Nodes that they came to nothing on.
        node: Where they are.
    """

    places: list[int]
    failed: list[int] = field(default_factory=list)
    node: int = 0


class Nodes:
    """The nodes that are there, waited for once.

    Flower begins a simulation before its nodes have registered, and a node may be started late.
    """

    def __init__(self, grid: Grid, *, wanted: int, patience: float) -> None:
        self.grid, self.patience = grid, patience
        self._wanted, self._waited = wanted, False

    def there(self) -> list[int]:
        """Their numbers."""
        return list(self.grid.get_node_ids())

    def expected(self) -> int:
        """Number of nodes to share a round's turns among; waits for them before the first."""
        end = time.monotonic() + (0 if self._waited else self.patience)
        found = len(self.there())
        while found < self._wanted and time.monotonic() < end:
            time.sleep(_LONGEST / 2)
            found = len(self.there())
        if found < self._wanted and not self._waited:
            _log.warning(
                "%d of %d nodes are there after %g seconds; the study goes on with them, to the "
                "same result",
                found,
                self._wanted,
                self.patience,
            )
        self._waited = True
        return max(found, 1)


class RoundTurns:
    """The turns of one round, until all are taken."""

    def __init__(
        self, nodes: Nodes, jobs: Sequence[Job], algorithm: Algorithm, content: Content
    ) -> None:
        """Shares the turns among the nodes.

        Args:
            nodes: That take them.
            jobs: The turns, at least one.
            algorithm: Of the federation.
            content: Of the messages.
        """
        self._nodes, self._jobs = nodes, jobs
        self._algorithm, self._content = algorithm, content
        self._waiting = deque(_blocks(jobs, nodes.expected()))
        self._sent: dict[str, _Block] = {}
        self._done: dict[int, Done] = {}

    def taken(self) -> list[Done]:
        """Results of the turns, in their order.

        Raises:
            BadInput: No node is there; one refuses; or turns come to nothing three times over.
        """
        pause, alone_since = _SHORTEST, time.monotonic()
        while self._waiting or self._sent:
            self._give_out()
            if self._sent:
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since >= self._nodes.patience:
                raise BadInput(
                    f"no node is there for {self._named(self._waiting)} after "
                    f"{self._nodes.patience:g} seconds; start nodes and run the study again: it "
                    "goes on where it was"
                )
            replies = list(self._nodes.grid.pull_messages(list(self._sent))) if self._sent else []
            for reply in replies:
                self._take_in(reply)
            pause = _SHORTEST if replies else min(2 * pause, _LONGEST)
            if not replies:
                time.sleep(pause)
        return [self._done[place] for place in range(len(self._jobs))]

    def _give_out(self) -> None:
        """Sends turns to nodes that have none, if possible to others than they failed on."""
        if not self._waiting:
            return
        there = self._nodes.there()
        for node in set(there) - {block.node for block in self._sent.values()}:
            fresh = [one for one in self._waiting if node not in one.failed]
            stuck = [one for one in self._waiting if set(there) <= set(one.failed)]
            block = next(iter(fresh or stuck), None)
            if block is None:
                continue
            self._waiting.remove(block)
            block.node = node
            jobs = [self._jobs[place] for place in block.places]
            message = Message(
                self._content(jobs), node, MessageType.TRAIN, group_id=str(jobs[0].visit.round)
            )
            number = next(iter(self._nodes.grid.push_messages([message])), None)
            if number:
                self._sent[number] = block
            else:
                self._fail(block, "the message could not be sent")

    def _take_in(self, reply: Message) -> None:
        block = self._sent.pop(reply.metadata.reply_to_message_id, None)
        if block is None:
            return
        if reply.has_error():
            # Of a node that is gone, the reply comes from the SuperLink.
            self._fail(block, reply.error.reason or f"error {reply.error.code}")
            return
        refusal = refusal_in(reply)
        if refusal:
            raise BadInput(f"node {block.node} refuses {self._named([block])}: {refusal}")
        try:
            found = unpack_done(answer_in(reply))
            if len(found) != len(block.places):
                raise BadInput(f"{len(found)} answers came to {len(block.places)} turns")
            for place, done in zip(block.places, found, strict=True):
                refuse_unfit(self._jobs[place], done, self._algorithm)
        except BadInput as error:
            self._fail(block, str(error))
            return
        self._done |= zip(block.places, found, strict=True)

    def _fail(self, block: _Block, why: str) -> None:
        block.failed.append(block.node)
        # Much of it may be a node's own text, which goes to a log.
        said = plain(" ".join(why.split())[-500:])
        if len(block.failed) >= _TRIES:
            raise BadInput(
                f"{self._named([block])} came to nothing {_TRIES} times, on the nodes "
                f"{block.failed}; the last time: {said}. See what these nodes write, and run the "
                "study again: it goes on where it was"
            )
        _log.warning(
            "%s came to nothing on node %d (%s); it is done again",
            self._named([block]),
            block.node,
            said,
        )
        self._waiting.appendleft(block)

    def _named(self, blocks: Iterable[_Block]) -> str:
        visits = [self._jobs[place].visit for block in blocks for place in block.places]
        clients = ", ".join(str(visit.client) for visit in visits[:10])
        more = ", ..." if len(visits) > 10 else ""
        return f"round {visits[0].round} of clients {clients}{more}"


def _blocks(jobs: Sequence[Job], nodes: int) -> Iterator[_Block]:
    """A block for each node, none of them too large to travel unless it is of one client."""
    for node in range(nodes):
        places: list[int] = []
        total = 0
        for place in range(len(jobs) * node // nodes, len(jobs) * (node + 1) // nodes):
            size = _size(jobs[place])
            if places and total + size > _LARGEST:
                yield _Block(places)
                places, total = [], 0
            places.append(place)
            total += size
        if places:
            yield _Block(places)


def _size(job: Job) -> int:
    """About as many bytes as come back of a turn."""
    models: list[Params] = [model.tensors() for model in job.sent.models[:1]]
    return sum(t.nbytes for part in (*models, job.memory, job.sent.extra) for t in part.values())


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
                return data_key(cast(TurnContext, shared))

            def taken(jobs: Sequence[Job]) -> list[Done]:
                algorithm = cast(TurnContext, shared).algorithm

                def content(some: list[Job]) -> RecordDict:
                    seed, packet = some[0].visit.seed, pack_jobs(some, algorithm)
                    return asking(Question(MADE, key, seed, data(), packet))

                return RoundTurns(nodes, jobs, algorithm, content).taken()

            def run(items: Iterable[Item]) -> Iterator[Result]:
                given = list(items)
                jobs = [one for one in given if isinstance(one, Job) and one.visit.seed in seeds]
                if work is not visited or len(jobs) < len(given):
                    yield from here()(given)
                elif jobs:
                    yield from cast(Iterator[Result], iter(taken(jobs)))

            yield run


_EVERY = 5.0
"""Seconds between two lines on how far a study is."""


def study_server(study: Path) -> ServerApp:
    """The ServerApp of a study, whose clients train on nodes that run :func:`study_client`.

    What the run configuration may say:

    * ``out``: folder of the record; ``runs/`` and the study's name by default. With ``variant =
      "all"`` each study has a folder in it.
    * ``pool``: folder of runs that several studies share.
    * ``variant``: a variant that the file names, or ``all``.
    * ``nodes``: how many nodes to wait for, ``patience``: for how many seconds.
    * ``workers``: processes in which the server measures.
    * ``training.rounds`` and the like: settings of the study, by dotted name.

    Args:
        study: The TOML file, which is part of the app.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            carry_out(study, grid, context.run_config)
        except Refusal as refusal:
            # Flower shows no more than a trace of it, and "flwr run" ends as if all were well.
            _print(f"fedaudit: {refusal}")
            raise

    return app


def carry_out(file: Path, grid: Grid, config: Mapping[str, object]) -> None:
    """Carries out what :func:`study_server` describes.

    Raises:
        Refusal: As :func:`fedaudit.study.running.run.run_study`, and what keeps nodes from their
            work.
    """
    variant = str(config.get("variant", ""))
    studies = chosen_studies(studies_of(file, config), variant)
    folder = Path(str(config.get("out", "") or Path("runs") / studies[0].name))
    pool = Path(str(config["pool"])) if config.get("pool") else None
    several = len(studies) > 1
    for study in studies:
        out = folder / study.name if several else folder
        nodes = FlowerNodes(
            grid,
            study,
            nodes=_whole(config, "nodes", 1),
            patience=float(str(config.get("patience", 60))),
            here=local_engine(_whole(config, "workers", 1)),
        )
        record = run_study(
            study,
            out,
            pool=pool or (folder / "pool" if several else None),
            engine=nodes,
            progress=_lines(),
            log=_print,
        )
        write_report_beside(record, out)
        print_record(record)
        _print(f"content hash: {record.content_hash}")
        _print(f"record: {out / 'record.json'}")


def _whole(config: Mapping[str, object], name: str, default: int) -> int:
    return int(str(config.get(name, default)))


def _print(text: str) -> None:
    print(without_commands(indented(text)), flush=True)


def _lines() -> Progress:
    """Progress of the study, as lines for a log."""
    last: dict[str, tuple[float, int]] = {}

    def progress(phase: str, done: int, total: int) -> None:
        when, what = last.get(phase, (0.0, -1))
        if total and done != what and (done == total or monotonic() - when >= _EVERY):
            last[phase] = monotonic(), done
            _print(f"{phase}: {done} of {total}")

    return progress
