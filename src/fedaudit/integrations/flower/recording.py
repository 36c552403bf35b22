"""Recording in a ServerApp of Flower: a strategy, a grid, and the audit set of its clients."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedaudit.core.errors import BadInput
from fedaudit.core.values import NOBODY, ClientId
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.integrations.common import NO_COMMON_MODEL, warn, warn_of_errors
from fedaudit.integrations.flower.ledger import ExpectedNodes, FlowerLedger, client_of, there_of
from fedaudit.integrations.flower.messages import (
    ACTION,
    DECLINED,
    PART,
    arrays_of,
    is_training,
    record_of,
    round_of,
    without_identity,
)
from fedaudit.live.audited import features_by_name, join_audits
from fedaudit.live.clients import number_of
from fedaudit.live.recorder import Recorder
from fedaudit.results.text import plain

if TYPE_CHECKING:
    from flwr.supercore.run import Run


_NOT_RECORDED = "the training goes on, and something of it is not recorded"


class _Wrapper:
    """What a recording strategy and a recording grid share: the inner one, and its attributes."""

    recorder: Recorder

    def __getattr__(self, name: str) -> object:
        if name == "inner":  # not there yet while an instance is copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _guarded(self) -> AbstractContextManager[None]:
        return warn_of_errors(_NOT_RECORDED, strict=self.recorder.strict)


class RecordingStrategy(_Wrapper, Strategy):
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


def _answers_query_with_arrays(reply: Message) -> bool:
    kind = reply.metadata.message_type
    if not kind.startswith("query") or kind == f"query.{ACTION}" or not reply.has_content():
        return False
    return any(len(record) for record in reply.content.array_records.values())


def _refuse_older(inner: object) -> None:
    if isinstance(inner, Strategy):
        return
    older = "a strategy of Flower's older interface" if hasattr(inner, "configure_fit") else "none"
    raise BadInput(
        f"RecordingStrategy goes around a strategy of flwr.serverapp.strategy, and "
        f"{type(inner).__name__} is {older}; record it through the grid: run its workflow or its "
        "ServerApp with RecordingGrid(grid, recorder) in place of the grid, or behind SecAgg+ with "
        "SumRecordingStrategy"
    )


class RecordingGrid(_Wrapper, Grid):
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
        with self._guarded():
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
        with self._guarded():
            self._note(sent)
        replies = list(self.inner.send_and_receive(sent, timeout=timeout))
        self._hear(replies)
        return replies

    def _hear(self, replies: list[Message]) -> None:
        with self._guarded():
            self._ledger.hear(one for one in replies if is_training(one))
            if not self._rounds_seen and any(map(_answers_query_with_arrays, replies)):
                self._tell(NO_COMMON_MODEL)
        # Older strategies may add up every metric, and a client's name is none.
        for one in replies:
            without_identity(one)

    def _tell(self, text: str) -> None:
        if text in self._told:
            return
        self._told.add(text)
        if self.recorder.strict:
            raise BadInput(text)
        warn(text, stacklevel=5)

    def _note(self, messages: list[Message]) -> None:
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


_HOW = (
    f'a ClientApp needs @app.query("{ACTION}"), which returns audit_reply(message, split), or, if '
    "it has a client_fn, audit_mod(split) among its mods"
)


def gathered_audit(
    grid: Grid,
    *,
    nodes: int,
    quorum: int = 1,
    patience: float = 60.0,
    timeout: float = 600.0,
    seed: int = 1,
) -> AuditSet:
    """Ask every client for its part of the audit, before anybody trains, and join the parts.

    A client may decline (:func:`audit_decline`), be absent, or answer with something that is no
    part. It trains as before and is not audited; a warning, the recording and the report name it
    with the reason.

    Args:
        grid: What ``main`` of a ServerApp is given.
        nodes: Number of clients that are expected.
        quorum: Fewest parts that make an audit.
        patience: Seconds to wait for nodes.
        timeout: Seconds in which they have to answer.
        seed: With which clients split; see :func:`fedaudit.join_audits`.

    Returns:
        The joined audit set; its ``unaudited`` holds the clients without a part, and why.

    Raises:
        BadInput: Fewer parts than the quorum have come.
    """
    if not 1 <= quorum <= nodes:
        raise BadInput(f"quorum is a number of parts from 1 to nodes={nodes}, got {quorum}")
    there = there_of(grid, nodes, patience)
    asked = [Message(RecordDict(), node, f"query.{ACTION}") for node in there]
    read: list[_Part] = []
    unaudited: dict[str, str] = {}
    answered, names = 0, set[str]()
    for reply in grid.send_and_receive(asked, timeout=timeout) if asked else ():
        answered += 1
        name = _name_of(reply)
        # Two nodes may say that they are one client.
        name = f"{name} (node {reply.metadata.src_node_id})" if name in names else name
        names.add(name)
        try:
            read.append(_read(name, reply, seed))
        # Whatever it is: one client's answer ends nobody's training.
        except Exception as error:
            unaudited[name] = plain(str(error))[:500]
    parts = [one.arrays for one in _fitting(read, unaudited)]
    silent = len(there) - answered
    if silent > 0:
        unaudited[_counted(silent)] = f"no answer within {timeout:g} seconds"
    if len(there) < nodes:
        unaudited[_counted(nodes - len(there))] = f"not there after {patience:g} seconds"
    text = "; ".join(f"{name}: {why}" for name, why in unaudited.items())
    if len(parts) < quorum:
        raise BadInput(
            f"{len(parts)} of {nodes} clients handed over their part of the audit, and the quorum "
            f"is {quorum} ({text[:1000]}); {_HOW}"
        )
    if unaudited:
        warn(f"{nodes - len(parts)} of {nodes} clients are not audited: {text}", stacklevel=2)
    return replace(join_audits(parts, seed=seed), unaudited=unaudited)


def _counted(number: int) -> str:
    return f"{number} node{'s' * (number > 1)}"


def _name_of(reply: Message) -> str:
    client = client_of(reply)
    return f"node {reply.metadata.src_node_id}" if client is None else f"client {client}"


class _Part(NamedTuple):
    name: str
    arrays: Mapping[str, np.ndarray]
    clients: frozenset[ClientId]
    form: str


def _read(name: str, reply: Message, seed: int) -> _Part:
    if not reply.has_content():
        lines = (reply.error.reason or "").strip().splitlines() if reply.has_error() else []
        raise BadInput(f"it answers with an error{f' ({lines[-1][:300]})' if lines else ''}")
    declined = reply.content.config_records.get(PART)
    if declined is not None:
        why = str(declined.get(DECLINED) or "")
        raise BadInput(f"declined{f': {why}' if why else ''}")
    record = reply.content.array_records.get(PART)
    arrays = arrays_of(record) if record is not None else None
    if not isinstance(arrays, dict):
        raise BadInput("it answers without a part of the audit")
    alone = join_audits([arrays], seed=seed)
    clients = frozenset({*alone.owner.tolist(), *alone.panel.tolist()} - {NOBODY})
    sender = client_of(reply)
    if sender is not None and clients != {number_of(sender)}:
        raise BadInput("its part is of another client than the one that its identity_mod names")
    tensors = [*features_by_name(alone.samples).items(), ("targets", alone.samples.targets)]
    form = ", ".join(f"{key} {tuple(one.shape[1:])} {one.dtype}" for key, one in sorted(tensors))
    return _Part(name, arrays, clients, form)


def _fitting(read: Sequence[_Part], unaudited: dict[str, str]) -> list[_Part]:
    """Return the parts that can be joined, and note of the others why not."""
    counts = Counter(client for one in read for client in one.clients)
    single: list[_Part] = []
    for one in read:
        if all(counts[client] == 1 for client in one.clients):
            single.append(one)
        else:
            unaudited[one.name] = "another node has handed over a part of the same client"
    # Of forms equally frequent the first in order of the alphabet, whatever came first.
    forms = Counter(one.form for one in single)
    usual = max(sorted(forms), key=forms.__getitem__, default="")
    for one in single:
        if one.form != usual:
            unaudited[one.name] = f"its samples are {one.form}, and those of most are {usual}"
    return [one for one in single if one.form == usual]
