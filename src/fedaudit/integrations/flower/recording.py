"""Recording on a Flower server: a strategy, a grid, and the audit set of all clients."""

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
from fedaudit.core.values import NO_CLIENT, ClientId
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.integrations.common import NO_COMMON_MODEL, delegated, warn, warn_of_errors
from fedaudit.integrations.flower.collector import (
    ExpectedNodes,
    FlowerRoundCollector,
    client_of,
    connected_nodes,
)
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
from fedaudit.results.text import clean_text

if TYPE_CHECKING:
    from flwr.supercore.run import Run


_NOT_RECORDED = "training continues, but is not recorded in full"


class _Wrapper:
    """Wrapper that passes a read attribute on from the inner object."""

    recorder: Recorder

    def __getattr__(self, name: str) -> object:
        if name == "inner":  # missing while an instance is copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _guarded(self) -> AbstractContextManager[None]:
        return warn_of_errors(_NOT_RECORDED, strict=self.recorder.strict)


class RecordingStrategy(_Wrapper, Strategy):
    """Strategy that also passes models and uploads to a recorder.

    It wraps any strategy of the message interface (``flwr.serverapp.strategy``), including
    strategies for differential privacy. Uploads are recorded before the server clips them or adds
    noise. Attributes of the inner strategy can be read from the wrapper.
    """

    def __init__(
        self,
        inner: Strategy,
        recorder: Recorder,
        *,
        nodes: int | None = None,
        node_timeout: float = 60.0,
        reads_metrics: bool = True,
    ) -> None:
        """Wrap a strategy.

        Args:
            inner: The strategy.
            recorder: A recorder of :func:`fedaudit.record`, closed when :meth:`start` ends.
            nodes: Number of nodes to wait for; by default the number of audited clients.
            node_timeout: Seconds to wait for nodes. Afterwards, training starts with the connected
                nodes and a warning; a strict recording raises an error.
            reads_metrics: Whether training metrics in replies are compared with the recorder's
                values. Pass False if mods change the model after clients computed the metrics.

        Raises:
            BadInput: There are fewer nodes than audited clients, or the strategy is not of the
                message interface.
        """
        _raise_if_legacy(inner)
        self.inner, self.recorder = inner, recorder
        self._configure, self._aggregate = inner.configure_train, inner.aggregate_train
        self._nodes = ExpectedNodes(recorder, nodes, node_timeout)
        key = getattr(inner, "weighted_by_key", "num-examples")
        self._collector = FlowerRoundCollector(
            recorder, weighted_by=key, reads_metrics=reads_metrics
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Wait for all nodes, and store the model that each client is sent."""
        with self._guarded():
            self._nodes.await_all(grid)
        messages = list(self._configure(server_round, arrays, config, grid))
        with self._guarded():
            self._collector.add_messages(server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Record the replies, and the model after the round."""
        all_replies = list(replies)
        # Read replies before the inner strategy, which may clip them in place.
        with self._guarded():
            self._collector.add_replies(all_replies)
        arrays, metrics = self._aggregate(server_round, all_replies)
        with self._guarded():
            self._collector.close(arrays)
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
        # The inner start calls the inner hooks, so these are replaced by the recording hooks.
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
                if self._collector.has_replies:  # the inner strategy could not use the replies
                    self._collector.close()
                self.recorder.close()


def _answers_query_with_arrays(reply: Message) -> bool:
    kind = reply.metadata.message_type
    if not kind.startswith("query") or kind == f"query.{ACTION}" or not reply.has_content():
        return False
    return any(len(record) for record in reply.content.array_records.values())


def _raise_if_legacy(inner: object) -> None:
    """Raise if an object is no strategy of the message interface."""
    if isinstance(inner, Strategy):
        return
    is_older = hasattr(inner, "configure_fit")
    kind = "a strategy of Flower's older interface" if is_older else "no strategy"
    raise BadInput(
        f"RecordingStrategy wraps a strategy of flwr.serverapp.strategy, and "
        f"{type(inner).__name__} is {kind}; record through the grid: run the workflow or the "
        "ServerApp with RecordingGrid(grid, recorder) instead of the grid, or with SecAgg+ use "
        "SumRecordingStrategy"
    )


class RecordingGrid(_Wrapper, Grid):
    """Grid that also passes messages of the type "train" to a recorder.

    The number of a round is ``server-round`` in the message's configuration, or the message's
    group. Without either, a new round begins with the first message after replies. A round is
    recorded when a model is evaluated, the next round begins or the grid is closed. Overlapping
    rounds are not distinguished.

    Use ``with RecordingGrid(grid, recorder) as grid:`` to close the recorder at the end.
    """

    def __init__(
        self,
        inner: Grid,
        recorder: Recorder,
        *,
        nodes: int | None = None,
        node_timeout: float = 60.0,
        weighted_by: str = "num-examples",
        reads_metrics: bool = True,
    ) -> None:
        """Wrap a grid.

        Args:
            inner: The grid that ``main`` of a ServerApp receives.
            recorder: A recorder of :func:`fedaudit.record`.
            nodes: Number of nodes to wait for; by default the number of audited clients.
            node_timeout: Seconds to wait for nodes. Afterwards, training starts with the connected
                nodes and a warning; a strict recording raises an error.
            weighted_by: Name of the metric that is the weight of a reply in the average.
            reads_metrics: Whether training metrics in replies are compared with the recorder's
                values. Pass False if mods change the model after clients computed the metrics.

        Raises:
            BadInput: There are fewer nodes than audited clients.
        """
        self.inner, self.recorder = inner, recorder
        self._nodes = ExpectedNodes(recorder, nodes, node_timeout)
        self._collector = FlowerRoundCollector(
            recorder, weighted_by=weighted_by, reads_metrics=reads_metrics
        )
        self._has_waited, self._has_trained = False, False
        self._index, self._warned = 0, set[str]()

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
            if not self._has_trained:
                self._warn_once("no message of the type train was sent, so nothing is recorded")
            self._collector.close()
            self.recorder.close()

    set_run = delegated("set_run")
    create_message = delegated("create_message")

    @property
    def run(self) -> "Run":
        """The inner grid's run."""
        return self.inner.run

    def get_node_ids(self) -> Iterable[int]:
        """Wait for all nodes at the first call."""
        if not self._has_waited:
            self._has_waited = True
            with self._guarded():
                self._nodes.await_all(self.inner)
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Record the messages, and push them."""
        sent = list(messages)
        with self._guarded():
            self._record_messages(sent)
        return self.inner.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies, and record them."""
        replies = list(self.inner.pull_messages(message_ids))
        self._record_replies(replies)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: int | float | None = None
    ) -> Iterable[Message]:
        """Record the messages, send them, and record the replies."""
        sent = list(messages)
        with self._guarded():
            self._record_messages(sent)
        replies = list(self.inner.send_and_receive(sent, timeout=timeout))
        self._record_replies(replies)
        return replies

    def _record_replies(self, replies: list[Message]) -> None:
        with self._guarded():
            self._collector.add_replies(reply for reply in replies if is_training(reply))
            if not self._has_trained and any(map(_answers_query_with_arrays, replies)):
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

    def _record_messages(self, messages: list[Message]) -> None:
        training = [message for message in messages if is_training(message)]
        if training:
            self._has_trained = True
            number, is_open = round_of(training[0]), self._collector.index is not None
            # Without a number, a round begins with the first message after replies.
            begins_round = not is_open or self._collector.has_replies
            self._index = self._index + begins_round if number is None else number
            self._collector.add_messages(self._index, training)
            return
        for message in messages:
            is_evaluation = message.metadata.message_type.startswith("evaluate")
            is_same_round = round_of(message) in (None, self._collector.index)
            if is_evaluation and is_same_round and self._collector.has_replies:
                # The evaluated model is the model after the round.
                self._collector.close(record_of(message))
                return


_HOW_TO_REPLY = (
    f'a ClientApp needs @app.query("{ACTION}"), which returns audit_reply(message, split), or, if '
    "it has a client_fn, audit_mod(split) among its mods"
)


def gathered_audit(
    grid: Grid,
    *,
    nodes: int,
    quorum: int = 1,
    node_timeout: float = 60.0,
    timeout: float = 600.0,
    seed: int = 1,
) -> AuditSet:
    """Ask every client for its audited samples before training, and join the samples.

    A client that declines (:func:`audit_decline`), is absent or sends invalid samples trains as
    before and is not audited. A warning, the recording and the report name the client and the
    reason.

    Args:
        grid: The grid that ``main`` of a ServerApp receives.
        nodes: Number of expected clients.
        quorum: Smallest number of clients for an audit.
        node_timeout: Seconds to wait for nodes.
        timeout: Seconds to wait for answers.
        seed: The seed with which clients split their data; see :func:`fedaudit.join_audits`.

    Returns:
        The joined audit set. Its ``unaudited`` names each client that is not audited, with the
        reason.

    Raises:
        BadInput: Fewer clients than the quorum sent valid samples.
    """
    if not 1 <= quorum <= nodes:
        raise BadInput(f"quorum is {quorum}; give a number of clients from 1 to nodes={nodes}")
    connected = connected_nodes(grid, nodes, node_timeout)
    queries = [Message(RecordDict(), node, f"query.{ACTION}") for node in connected]
    valid: list[_Part] = []
    unaudited: dict[str, str] = {}
    n_replies, names = 0, set[str]()
    for reply in grid.send_and_receive(queries, timeout=timeout) if queries else ():
        n_replies += 1
        name = _sender_name(reply)
        # Two nodes may claim to be the same client.
        name = f"{name} (node {reply.metadata.src_node_id})" if name in names else name
        names.add(name)
        try:
            valid.append(_read(name, reply, seed))
        # Catch any error: one client's reply must not stop training.
        except Exception as error:
            unaudited[name] = clean_text(str(error))[:500]
    parts = [part.arrays for part in _joinable(valid, unaudited)]
    if n_replies < len(connected):
        unaudited[_nodes(len(connected) - n_replies)] = f"no answer within {timeout:g} seconds"
    if len(connected) < nodes:
        unaudited[_nodes(nodes - len(connected))] = f"not connected after {node_timeout:g} seconds"
    text = "; ".join(f"{name}: {why}" for name, why in unaudited.items())
    if len(parts) < quorum:
        raise BadInput(
            f"{len(parts)} of {nodes} clients sent their part of the audit, and the quorum is "
            f"{quorum} ({text[:1000]}); {_HOW_TO_REPLY}"
        )
    if unaudited:
        warn(f"{nodes - len(parts)} of {nodes} clients are not audited: {text}", stacklevel=2)
    return replace(join_audits(parts, seed=seed), unaudited=unaudited)


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number > 1)}"


def _sender_name(reply: Message) -> str:
    client = client_of(reply)
    return f"node {reply.metadata.src_node_id}" if client is None else f"client {client}"


class _Part(NamedTuple):
    """Audited samples of one reply; ``form`` has the shapes and types of features and targets."""

    name: str
    arrays: Mapping[str, np.ndarray]
    clients: frozenset[ClientId]
    form: str


def _read(name: str, reply: Message, seed: int) -> _Part:
    """Return the audited samples in a reply; raise if they are missing or invalid."""
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
    audit = join_audits([arrays], seed=seed)
    clients = frozenset({*audit.owner.tolist(), *audit.fair_target.tolist()} - {NO_CLIENT})
    sender = client_of(reply)
    if sender is not None and clients != {number_of(sender)}:
        raise BadInput(
            "its part of the audit belongs to another client than its client_id_mod names"
        )
    tensors = [*features_by_name(audit.samples).items(), ("targets", audit.samples.targets)]
    form = ", ".join(
        f"{key} {tuple(tensor.shape[1:])} {tensor.dtype}" for key, tensor in sorted(tensors)
    )
    return _Part(name, arrays, clients, form)


def _joinable(parts: Sequence[_Part], unaudited: dict[str, str]) -> list[_Part]:
    """Return the parts that can be joined, and add the reason for each other part."""
    counts = Counter(client for part in parts for client in part.clients)
    unique: list[_Part] = []
    for part in parts:
        if all(counts[client] == 1 for client in part.clients):
            unique.append(part)
        else:
            unaudited[part.name] = "another node sent a part of the same client"
    # Ties go to the first form in alphabetical order, so that the order of replies does not matter.
    forms = Counter(part.form for part in unique)
    most_common = max(sorted(forms), key=forms.__getitem__, default="")
    for part in unique:
        if part.form != most_common:
            unaudited[part.name] = f"its samples are {part.form}, and most others are {most_common}"
    return [part for part in unique if part.form == most_common]
