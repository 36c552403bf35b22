"""A strategy of Flower's, or the grid of a loop without strategy, with a recorder beside it."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedaudit.core.errors import BadInput
from fedaudit.integrations.common_model import NO_COMMON_MODEL
from fedaudit.integrations.flower.contents import is_training, record_of, round_of
from fedaudit.integrations.flower.ledger import ExpectedNodes, FlowerLedger
from fedaudit.integrations.flower.replies import ACTION, without_identity
from fedaudit.integrations.guard import warn, warn_of_errors
from fedaudit.live.recorder import Recorder

if TYPE_CHECKING:
    from flwr.supercore.run import Run


class RecordingStrategy(Strategy):
    """Does what a strategy does, and tells a recorder what clients were sent and sent back.

    It goes around any strategy of the message interface (``flwr.serverapp.strategy``), Flower's or
    your own, and around wrappers such as those for differential privacy: what is recorded is what
    came from the clients, before the server clips or adds noise, and the model that the round
    ended with. Attributes of the inner strategy can be read as if it were not wrapped.
    """

    def __init__(
        self,
        inner: Strategy,
        recorder: Recorder,
        *,
        nodes: int | None = None,
        patience: float = 60.0,
        reads_metrics: bool = True,
    ) -> None:
        """Wraps a strategy.

        Args:
            inner: The strategy.
            recorder: Of :func:`fedaudit.record`; it is closed when :meth:`start` ends.
            nodes: How many nodes there are to be, which are waited for; as many as clients are
                audited by default.
            patience: Seconds for which nodes are waited for. Then it is warned of, and goes on
                with those that are there; a strict recording stops.
            reads_metrics: Whether training metrics in replies are compared with the recorder's own
                figures. Turn it off where mods add noise or clip after clients computed them.

        Raises:
            BadInput: Fewer nodes than audited clients, or a strategy of another interface.
        """
        _refuse_older(inner)
        self.inner, self.recorder = inner, recorder
        self._configure, self._aggregate = inner.configure_train, inner.aggregate_train
        self._nodes = ExpectedNodes(recorder, nodes, patience)
        key = getattr(inner, "weighted_by_key", "num-examples")
        self._ledger = FlowerLedger(recorder, weighted_by=key, reads_metrics=reads_metrics)

    def __getattr__(self, name: str) -> object:
        if name == "inner":  # not there yet while an instance is copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy, once all nodes are there; notes who is sent what."""
        with self._guarded():
            self._nodes.await_all(grid)
        messages = list(self._configure(server_round, arrays, config, grid))
        with self._guarded():
            self._ledger.ask(server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the inner strategy; notes who answered what, and what became of it."""
        heard = list(replies)
        # Before the inner strategy, which may clip replies where they are.
        with self._guarded():
            self._ledger.hear(heard)
        arrays, metrics = self._aggregate(server_round, heard)
        with self._guarded():
            self._ledger.close(arrays)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy."""
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the inner strategy."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the inner strategy."""
        self.inner.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: int | float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """As the inner strategy, whose own way of running rounds is kept where it has one."""
        inner = self.inner
        # Its start calls its own hooks; for as long as it runs, these are the recording ones.
        vars(inner).update(
            configure_train=self.configure_train, aggregate_train=self.aggregate_train
        )
        try:
            return inner.start(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )
        finally:
            for hook in ("configure_train", "aggregate_train"):
                vars(inner).pop(hook, None)
            with self._guarded():
                if self._ledger.heard:  # the inner strategy could make nothing of the replies
                    self._ledger.close()
                self.recorder.close()

    def _guarded(self) -> AbstractContextManager[None]:
        return warn_of_errors(_NOT_RECORDED, strict=self.recorder.strict)


_NOT_RECORDED = "the training goes on, and something of it is not recorded"


def _answers_query_with_arrays(reply: Message) -> bool:
    kind = reply.metadata.message_type
    if not kind.startswith("query") or kind == f"query.{ACTION}" or not reply.has_content():
        return False
    return any(len(record) for record in reply.content.array_records.values())


def _refuse_older(inner: object) -> None:
    """Refuses what is no strategy of the message interface, such as one of ``flwr.server``."""
    if isinstance(inner, Strategy):
        return
    older = "a strategy of Flower's older interface" if hasattr(inner, "configure_fit") else "none"
    raise BadInput(
        f"RecordingStrategy goes around a strategy of flwr.serverapp.strategy, and "
        f"{type(inner).__name__} is {older}; record it through the grid: run its workflow or its "
        "ServerApp with RecordingGrid(grid, recorder) in place of the grid, or behind SecAgg+ with "
        "SumRecordingStrategy"
    )


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
        reads_metrics: bool = True,
    ) -> None:
        """Wraps a grid.

        Args:
            inner: What ``main`` of a ServerApp is given.
            recorder: Of :func:`fedaudit.record`.
            nodes: As for :class:`fedaudit.integrations.flower.RecordingStrategy`.
            patience: As there.
            weighted_by: The metric of a reply that says what it weighs in the average.
            reads_metrics: As there.

        Raises:
            BadInput: Fewer nodes than audited clients.
        """
        self.inner, self.recorder = inner, recorder
        self._nodes = ExpectedNodes(recorder, nodes, patience)
        self._ledger = FlowerLedger(recorder, weighted_by=weighted_by, reads_metrics=reads_metrics)
        self._waited, self._rounds = False, 0
        self._rounds_seen, self._told = False, set[str]()

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
        """Record the last round, and end the recording."""
        with self._guarded():
            if not self._rounds_seen:
                self._tell("no message of the type train was sent, so nothing is recorded")
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
            with self._guarded():
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
        self._hear(replies)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: int | float | None = None
    ) -> Iterable[Message]:
        """As the inner grid; notes who is sent what and who answers what."""
        sent = list(messages)
        self._note(sent)
        replies = list(self.inner.send_and_receive(sent, timeout=timeout))
        self._hear(replies)
        return replies

    def _guarded(self) -> AbstractContextManager[None]:
        return warn_of_errors(_NOT_RECORDED, strict=self.recorder.strict)

    def _hear(self, replies: list[Message]) -> None:
        with self._guarded():
            self._ledger.hear(one for one in replies if is_training(one))
            if not self._rounds_seen and any(map(_answers_query_with_arrays, replies)):
                self._tell(NO_COMMON_MODEL)
        # Older strategies may add up every metric, and a client's name is none.
        for one in replies:
            without_identity(one)

    def _tell(self, text: str) -> None:
        """Warn once, or raise if the recording is strict."""
        if text in self._told:
            return
        self._told.add(text)
        if self.recorder.strict:
            raise BadInput(text)
        warn(text, stacklevel=5)

    def _note(self, messages: list[Message]) -> None:
        with self._guarded():
            self._note_sent(messages)

    def _note_sent(self, messages: list[Message]) -> None:
        training = [one for one in messages if is_training(one)]
        if training:
            self._rounds_seen = True
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
