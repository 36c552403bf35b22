"""A strategy of Flower's, or the grid of a loop without strategy, with a recorder beside it."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedaudit.core.errors import BadInput
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.integrations.flower.contents import arrays_of, is_training, record_of, round_of
from fedaudit.integrations.flower.ledger import ExpectedNodes, FlowerLedger, there_of
from fedaudit.integrations.flower.replies import ACTION, PART
from fedaudit.live.audited import join_audits
from fedaudit.live.recorder import Recorder
from fedaudit.results.text import plain

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
    ) -> None:
        """Wraps a strategy.

        Args:
            inner: The strategy.
            recorder: Of :func:`fedaudit.record`; it is closed when :meth:`start` ends.
            nodes: How many nodes there are to be, which are waited for; as many as clients are
                audited by default.
            patience: Seconds for which nodes are waited for. Then it is warned of, and goes on
                with those that are there; a strict recording stops.

        Raises:
            BadInput: Fewer nodes than audited clients, or a strategy of another interface.
        """
        _refuse_older(inner)
        self.inner, self.recorder = inner, recorder
        self._configure, self._aggregate = inner.configure_train, inner.aggregate_train
        self._nodes = ExpectedNodes(recorder, nodes, patience)
        key = getattr(inner, "weighted_by_key", "num-examples")
        self._ledger = FlowerLedger(recorder, weighted_by=key)

    def __getattr__(self, name: str) -> object:
        if name == "inner":  # not there yet while an instance is copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy, once all nodes are there; notes who is sent what."""
        self._nodes.await_all(grid)
        messages = list(self._configure(server_round, arrays, config, grid))
        self._ledger.ask(server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the inner strategy; notes who answered what, and what became of it."""
        heard = list(replies)
        # Before the inner strategy, which may clip replies where they are.
        self._ledger.hear(heard)
        arrays, metrics = self._aggregate(server_round, heard)
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
            if self._ledger.heard:  # the inner strategy could make nothing of the replies
                self._ledger.close()
            self.recorder.close()


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
        self._nodes = ExpectedNodes(recorder, nodes, patience)
        self._ledger = FlowerLedger(recorder, weighted_by=weighted_by)
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


def gathered_audit(
    grid: Grid, *, nodes: int, patience: float = 60.0, timeout: float = 600.0, seed: int = 1
) -> AuditSet:
    """The audit set of all clients, each of which is asked for its part before anybody trains.

    Args:
        grid: What ``main`` of a ServerApp is given.
        nodes: How many clients there are, which are waited for.
        patience: Seconds for which nodes are waited for.
        timeout: Seconds in which they have to answer.
        seed: With which clients split; see :func:`fedaudit.join_audits`.

    Raises:
        BadInput: Fewer nodes have come, one does not answer with a part, or parts do not fit
            together.
    """
    found = there_of(grid, nodes, patience)
    if len(found) < nodes:
        raise BadInput(
            f"{len(found)} of {nodes} nodes are there after {patience:g} seconds, and all of them "
            f"have a part of the audit; start the others, give more patience, or say "
            f"nodes={len(found)}"
        )
    asked = [Message(RecordDict(), node, f"query.{ACTION}") for node in found]
    replies = list(grid.send_and_receive(asked, timeout=timeout))
    _refuse_lost(replies, len(asked))
    return join_audits([_part(one) for one in replies], seed=seed)


def _part(reply: Message) -> dict[str, np.ndarray]:
    record = reply.content.array_records.get(PART)
    if record is None:
        raise BadInput(
            f"node {reply.metadata.src_node_id} answers without a part of the audit; return "
            f'audit_reply(message, split) from @app.query("{ACTION}")'
        )
    found = arrays_of(record)
    return found if isinstance(found, dict) else {}


def _refuse_lost(replies: Iterable[Message], asked: int) -> None:
    """All parts are needed, and nothing has been trained yet that could be lost."""
    answered = [one for one in replies if one.has_content()]
    if len(answered) == asked:
        return
    reasons = [one.error.reason or "" for one in replies if one.has_error()]
    why = next((plain(reason.strip().splitlines()[-1]) for reason in reasons if reason.strip()), "")
    raise BadInput(
        f"{len(answered)} of {asked} nodes answered when asked for their part of the audit"
        f"{f' ({why[:300]})' if why else ''}; every ClientApp needs "
        f'@app.query("{ACTION}"), which returns audit_reply(message, split)'
    )
