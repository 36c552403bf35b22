"""The grid of a ServerApp with a recorder beside it: for loops that use no strategy."""

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedaudit.integrations.flower.contents import is_training, record_of, round_of
from fedaudit.integrations.flower.ledger import Ledger
from fedaudit.integrations.flower.nodes import Nodes
from fedaudit.live.recorder import Recorder

if TYPE_CHECKING:
    from flwr.supercore.run import Run


class RecordingGrid(Grid):
    """Passes messages on, and tells a recorder of those that are about training.

    A round is what has one number: ``server-round`` in the message's configuration, or the group
    that a message is of; without either, a round begins with the first message after replies. It
    is recorded when a model is evaluated or the next round begins; the last one when the grid is
    closed. Rounds that overlap are not told apart.

    ``with RecordingGrid(grid, recorder) as grid:`` closes both.
    """

    def __init__(
        self,
        inner: Grid,
        recorder: Recorder,
        *,
        nodes: int | None = None,
        patience: float = 60.0,
        weighted_by: str = "num-examples",
    ) -> None:
        """Wraps a grid.

        Args:
            inner: What ``main`` of a ServerApp is given.
            recorder: Of :func:`fedaudit.record`.
            nodes: As for :class:`fedaudit.integrations.flower.RecordingStrategy`.
            patience: As there.
            weighted_by: The metric of a reply that says what it weighs in the average.

        Raises:
            BadInput: Fewer nodes than audited clients.
        """
        self.inner, self.recorder = inner, recorder
        self._nodes = Nodes(recorder, nodes, patience)
        self._ledger = Ledger(recorder, weighted_by=weighted_by)
        self._waited, self._rounds = False, 0

    def __enter__(self) -> "RecordingGrid":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> object:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def close(self) -> None:
        """Records the last round, and ends the recording."""
        self._ledger.close()
        self.recorder.close()

    def set_run(self, run: "Run") -> None:
        """As the inner grid."""
        self.inner.set_run(run)

    @property
    def run(self) -> "Run":
        """As the inner grid."""
        return self.inner.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As the inner grid."""
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """As the inner grid, once all nodes are there."""
        if not self._waited:
            self._waited = True
            self._nodes.await_all(self.inner)
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the inner grid; notes who is sent what."""
        sent = list(messages)
        self._note(sent)
        return self.inner.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the inner grid; notes who answers what."""
        replies = list(self.inner.pull_messages(message_ids))
        self._ledger.hear(one for one in replies if is_training(one))
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: int | float | None = None
    ) -> Iterable[Message]:
        """As the inner grid; notes who is sent what and who answers what."""
        sent = list(messages)
        self._note(sent)
        replies = list(self.inner.send_and_receive(sent, timeout=timeout))
        self._ledger.hear(one for one in replies if is_training(one))
        return replies

    def _note(self, messages: list[Message]) -> None:
        training = [one for one in messages if is_training(one)]
        if training:
            said = round_of(training[0])
            self._rounds = self._next() if said is None else said
            self._ledger.ask(self._rounds, training)
            return
        for one in messages:
            same = round_of(one) in (None, self._ledger.index)
            if one.metadata.message_type.startswith("evaluate") and same and self._ledger.heard:
                self._ledger.close(record_of(one))
                return

    def _next(self) -> int:
        goes_on = self._ledger.index is not None and not self._ledger.heard
        return self._rounds if goes_on else self._rounds + 1
