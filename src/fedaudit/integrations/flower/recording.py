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
from fedaudit.integrations.common import NO_COMMON_MODEL, delegated, warn, warn_of_errors
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


_NOT_RECORDED = "training continues, but a part of it is not recorded"


class _Wrapper:
    """Common part of recording strategies and grids: the inner object and its attributes."""

    recorder: Recorder

    def __getattr__(self, name: str) -> object:
        if name == "inner":  # missing while an instance is copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _guarded(self) -> AbstractContextManager[None]:
        return warn_of_errors(_NOT_RECORDED, strict=self.recorder.strict)


class RecordingStrategy(_Wrapper, Strategy):
    """Strategy that also passes models and uploads to a recorder.

    It wraps any strategy of the message interface (``flwr.serverapp.strategy``), also wrappers such
    as those for differential privacy: uploads are recorded before the server clips or adds noise.
    Attributes of the inner strategy are readable through the wrapper.
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
        """Wrap a strategy.

        Args:
            inner: The strategy.
            recorder: A recorder of :func:`fedaudit.record`, closed when :meth:`start` ends.
            nodes: Number of nodes to wait for; by default the number of audited clients.
            patience: Seconds to wait for nodes. Afterwards a warning is given and training
                continues with the connected nodes; a strict recording stops.
            reads_metrics: Whether training metrics in replies are compared with the recorder's
                values. Turn it off if mods change the model after clients computed the metrics.

        Raises:
            BadInput: There are fewer nodes than audited clients, or the strategy has another
                interface.
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
        """Wait for all nodes, and note which model is sent to which client."""
        with self._guarded():
            self._nodes.await_all(grid)
        messages = list(self._configure(server_round, arrays, config, grid))
        with self._guarded():
            self._ledger.ask(server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Note the replies, and the model after the round."""
        all_replies = list(replies)
        # Call this before the inner strategy, which may clip replies in place.
        with self._guarded():
            self._ledger.hear(all_replies)
        arrays, metrics = self._aggregate(server_round, all_replies)
        with self._guarded():
            self._ledger.close(arrays)
        return arrays, metrics

    configure_evaluate = delegated("configure_evaluate")
    aggregate_evaluate = delegated("aggregate_evaluate")
    summary = delegated("summary")

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
        """Run the inner strategy's rounds with the recording hooks."""
        inner = self.inner
        # Its start calls its own hooks, which are replaced by the recording ones meanwhile.
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
                if self._ledger.heard:  # the inner strategy could not use the replies
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
        f"RecordingStrategy wraps a strategy of flwr.serverapp.strategy, and "
        f"{type(inner).__name__} is {older}; record it through the grid: run its workflow or its "
        "ServerApp with RecordingGrid(grid, recorder) instead of the grid, or behind SecAgg+ with "
        "SumRecordingStrategy"
    )


class RecordingGrid(_Wrapper, Grid):
    """Grid that also passes messages about training to a recorder.

    The number of a round is ``server-round`` in the message's configuration, or the message's
    group; without either, a round begins with the first message after replies. It is recorded when
    a model is evaluated, the next round begins or the grid is closed. Overlapping rounds are not
    distinguished.

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
        """Wrap a grid.

        Args:
            inner: The grid that ``main`` of a ServerApp receives.
            recorder: A recorder of :func:`fedaudit.record`.
            nodes: See :class:`fedaudit.integrations.flower.RecordingStrategy`.
            patience: See :class:`fedaudit.integrations.flower.RecordingStrategy`.
            weighted_by: Metric of a reply with its weight in the average.
            reads_metrics: See :class:`fedaudit.integrations.flower.RecordingStrategy`.

        Raises:
            BadInput: Fewer nodes than audited clients.
        """
        self.inner, self.recorder = inner, recorder
        self._nodes = ExpectedNodes(recorder, nodes, patience)
        self._ledger = FlowerLedger(recorder, weighted_by=weighted_by, reads_metrics=reads_metrics)
        self._waited, self._rounds = False, 0
        self._rounds_seen, self._warned = False, set[str]()

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
                self._warn_once("no message of the type train was sent, so nothing is recorded")
            self._ledger.close()
            self.recorder.close()

    set_run = delegated("set_run")
    create_message = delegated("create_message")

    @property
    def run(self) -> "Run":
        """The inner grid's run."""
        return self.inner.run

    def get_node_ids(self) -> Iterable[int]:
        """Wait for all nodes at the first call."""
        if not self._waited:
            self._waited = True
            with self._guarded():
                self._nodes.await_all(self.inner)
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note which client is sent what."""
        sent = list(messages)
        with self._guarded():
            self._note(sent)
        return self.inner.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Note which client answers what."""
        replies = list(self.inner.pull_messages(message_ids))
        self._note_replies(replies)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: int | float | None = None
    ) -> Iterable[Message]:
        """Note which client is sent what and answers what."""
        sent = list(messages)
        with self._guarded():
            self._note(sent)
        replies = list(self.inner.send_and_receive(sent, timeout=timeout))
        self._note_replies(replies)
        return replies

    def _note_replies(self, replies: list[Message]) -> None:
        with self._guarded():
            self._ledger.hear(reply for reply in replies if is_training(reply))
            if not self._rounds_seen and any(map(_answers_query_with_arrays, replies)):
                self._warn_once(NO_COMMON_MODEL)
        # Older strategies may sum all metrics, so the client's name is removed.
        for reply in replies:
            without_identity(reply)

    def _warn_once(self, text: str) -> None:
        if text in self._warned:
            return
        self._warned.add(text)
        if self.recorder.strict:
            raise BadInput(text)
        warn(text, stacklevel=5)

    def _note(self, messages: list[Message]) -> None:
        training = [message for message in messages if is_training(message)]
        if training:
            self._rounds_seen = True
            number, is_open = round_of(training[0]), self._ledger.index is not None
            # Without a number, a round begins with the first message after replies.
            following = self._rounds + (not is_open or self._ledger.heard)
            self._rounds = following if number is None else number
            self._ledger.ask(self._rounds, training)
            return
        for message in messages:
            same = round_of(message) in (None, self._ledger.index)
            if message.metadata.message_type.startswith("evaluate") and same and self._ledger.heard:
                self._ledger.close(record_of(message))
                return


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
    """Ask every client for its part of the audit before training, and join the parts.

    A client that declines (:func:`audit_decline`), is absent or returns no valid part trains as
    before and is not audited. A warning, the recording and the report name it with the reason.

    Args:
        grid: The grid that ``main`` of a ServerApp receives.
        nodes: Number of expected clients.
        quorum: Smallest number of parts for an audit.
        patience: Seconds to wait for nodes.
        timeout: Seconds to wait for answers.
        seed: The seed with which clients split; see :func:`fedaudit.join_audits`.

    Returns:
        The joined audit set; its ``unaudited`` holds the clients without a part, and why.

    Raises:
        BadInput: Fewer parts than the quorum have come.
    """
    if not 1 <= quorum <= nodes:
        raise BadInput(f"quorum is {quorum}; give a number of parts from 1 to nodes={nodes}")
    present = there_of(grid, nodes, patience)
    queries = [Message(RecordDict(), node, f"query.{ACTION}") for node in present]
    read: list[_Part] = []
    unaudited: dict[str, str] = {}
    answered, names = 0, set[str]()
    for reply in grid.send_and_receive(queries, timeout=timeout) if queries else ():
        answered += 1
        name = _name_of(reply)
        # Two nodes may claim to be the same client.
        name = f"{name} (node {reply.metadata.src_node_id})" if name in names else name
        names.add(name)
        try:
            read.append(_read(name, reply, seed))
        # Any error: one client's reply must not stop training.
        except Exception as error:
            unaudited[name] = plain(str(error))[:500]
    parts = [part.arrays for part in _fitting(read, unaudited)]
    silent = len(present) - answered
    if silent > 0:
        unaudited[_counted(silent)] = f"no answer within {timeout:g} seconds"
    if len(present) < nodes:
        unaudited[_counted(nodes - len(present))] = f"not there after {patience:g} seconds"
    text = "; ".join(f"{name}: {why}" for name, why in unaudited.items())
    if len(parts) < quorum:
        raise BadInput(
            f"{len(parts)} of {nodes} clients sent their part of the audit, and the quorum is "
            f"{quorum} ({text[:1000]}); {_HOW}"
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
        raise BadInput(f"it replies with an error{f' ({lines[-1][:300]})' if lines else ''}")
    declined = reply.content.config_records.get(PART)
    if declined is not None:
        why = str(declined.get(DECLINED) or "")
        raise BadInput(f"declined{f': {why}' if why else ''}")
    record = reply.content.array_records.get(PART)
    arrays = arrays_of(record) if record is not None else None
    if not isinstance(arrays, dict):
        raise BadInput("it replies without a part of the audit")
    alone = join_audits([arrays], seed=seed)
    clients = frozenset({*alone.owner.tolist(), *alone.panel.tolist()} - {NOBODY})
    sender = client_of(reply)
    if sender is not None and clients != {number_of(sender)}:
        raise BadInput("its part is that of another client than its identity_mod names")
    tensors = [*features_by_name(alone.samples).items(), ("targets", alone.samples.targets)]
    form = ", ".join(
        f"{key} {tuple(tensor.shape[1:])} {tensor.dtype}" for key, tensor in sorted(tensors)
    )
    return _Part(name, arrays, clients, form)


def _fitting(read: Sequence[_Part], unaudited: dict[str, str]) -> list[_Part]:
    """Return the parts that can be joined, and note why others cannot."""
    counts = Counter(client for part in read for client in part.clients)
    single: list[_Part] = []
    for part in read:
        if all(counts[client] == 1 for client in part.clients):
            single.append(part)
        else:
            unaudited[part.name] = "another node sent a part of the same client"
    # Ties go to the first form in alphabetical order, independent of the order of replies.
    forms = Counter(part.form for part in single)
    usual = max(sorted(forms), key=forms.__getitem__, default="")
    for part in single:
        if part.form != usual:
            unaudited[part.name] = f"its samples are {part.form}, and most others are {usual}"
    return [part for part in single if part.form == usual]
