"""Turns of a round on nodes that come, go and fail: all of them are taken, or the study ends."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedaudit.core import Params
from fedaudit.errors import BadInput
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.visits import Done, Job
from fedaudit.fl.wire.checks import refuse_unfit
from fedaudit.fl.wire.packets import unpack_done
from fedaudit.integrations.flower.study_messages import answer_in, refusal_in
from fedaudit.results.text import plain

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
        """How many to share the turns of a round among; waits for them before the first."""
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


class Round:
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
        """What came of the turns, in their order.

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
