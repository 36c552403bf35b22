"""Collects the messages and replies of a Flower round, and passes them to the recorder."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedaudit.core.errors import BadInput
from fedaudit.integrations.common import OpenRound, raise_if_not_finite, warn
from fedaudit.integrations.flower.messages import (
    PARTITION,
    Arrays,
    arrays_of,
    client_in,
    metrics_of,
    record_of,
    weight_of,
)
from fedaudit.live.clients import ClientRef, raise_if_mixed_references
from fedaudit.live.recorder import Recorder

_UNNAMED = (
    "{count} of {replies} replies do not name their client; add client_id_mod to the "
    'mods of the ClientApp, and start a SuperNode with --node-config "partition-id=..."'
)
TWO_NODES = "several nodes claim to be client {client}; give each its own partition-id"


def client_of(reply: Message) -> ClientRef | None:
    """Return the client that a reply names; None if it names none."""
    if not reply.has_content():
        return None
    values = (record.get(PARTITION) for record in reply.content.config_records.values())
    return next((client for value in values if (client := client_in(value)) is not None), None)


Node = TypeVar("Node", int, str)


class _Claim(NamedTuple):
    client: ClientRef
    round: int


class Claims(Generic[Node]):
    """Clients that nodes claim to be.

    A node must not change its client, and two nodes must not alternate as the same client, since
    the uploads of two clients would be mixed. A new node may replace a node that has stopped.
    """

    def __init__(self) -> None:
        self._claims: dict[Node, _Claim] = {}
        self._holders: dict[ClientRef, Node] = {}
        self._replaced: set[Node] = set()

    @property
    def clients(self) -> Mapping[Node, ClientRef]:
        """The first client that each node claimed to be."""
        return {node: claim.client for node, claim in self._claims.items()}

    def check(self, node: Node, client: ClientRef, index: int) -> str:
        """Store a claim, and return why it contradicts earlier claims; empty if it does not."""
        first = self._claims.setdefault(node, _Claim(client, index))
        if first.client != client:
            return (
                f"node {node} claims to be client {client}, but claimed to be client "
                f"{first.client} in round {first.round}; do not change a node's partition-id while "
                "it runs"
            )
        holder = self._holders.setdefault(client, node)
        if node in self._replaced:
            return (
                f"nodes {node} and {holder} alternately claim to be client {client}; give each its "
                "own partition-id"
            )
        if holder != node:
            self._replaced.add(holder)
            self._holders[client] = node
        return ""


_PAUSE = 0.2


class ExpectedNodes:
    """Number of nodes for which a server waits before the first round.

    In a simulation, nodes connect one after another while the server is running. Without waiting,
    a strategy that trains a fraction of the connected nodes might train only 8 of 100 clients in
    the first round.
    """

    def __init__(self, recorder: Recorder, number: int | None, node_timeout: float) -> None:
        targets = len(recorder.recording.targets)
        if number is not None and number < targets:
            raise BadInput(
                f"nodes is {number} and there are {targets} audited clients; give one node for "
                "each client"
            )
        if not node_timeout >= 0:
            raise BadInput(f"node_timeout is {node_timeout}; give a number of seconds, at least 0")
        self._number = targets if number is None else number
        self._timeout, self._strict = node_timeout, recorder.strict
        self._warned = False

    def await_all(self, grid: Grid) -> None:
        """Wait for nodes before the first round; warn or raise once if too few are connected."""
        n_nodes = len(connected_nodes(grid, self._number, 0.0 if self._warned else self._timeout))
        if n_nodes >= self._number or self._warned:
            return
        self._warned = True
        text = (
            f"{n_nodes} of {self._number} nodes are connected after {self._timeout:g} seconds; "
            "clients of the other nodes are not audited. Start these nodes, raise node_timeout, or "
            f"set nodes={n_nodes}"
        )
        if self._strict:
            raise BadInput(text)
        warn(text, stacklevel=4)


def connected_nodes(grid: Grid, number: int, node_timeout: float) -> list[int]:
    """Wait until ``number`` nodes are connected or ``node_timeout`` seconds have passed."""
    end = time.monotonic() + node_timeout
    nodes = list(grid.get_node_ids())
    while len(nodes) < number and time.monotonic() < end:
        time.sleep(_PAUSE)
        nodes = list(grid.get_node_ids())
    return nodes


@dataclass
class _OpenRound(OpenRound[int]):
    """Messages and replies of the round in progress, by node.

    ``misnamed`` contains nodes whose client has a name although the audited clients have numbers,
    or the reverse, each with an error message. ``fault`` is the reason why a message cannot be
    read.
    """

    messages: list[Message] = field(default_factory=list)
    sent: dict[int, ArrayRecord] = field(default_factory=dict)
    misnamed: dict[int, str] = field(default_factory=dict)
    fault: str = ""

    def node_of(self, reply: Message) -> int:
        """Return the node to which a reply belongs; Flower itself replies for a lost node."""
        receivers = {
            message.metadata.message_id: message.metadata.dst_node_id for message in self.messages
        }
        return receivers.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)


class FlowerRoundCollector:
    """Collector that passes Flower's rounds to a recorder, one at a time.

    It also remembers which client each node claims to be. The collector never stops training: the
    recorder warns of faults, and raises errors only if it is strict.
    """

    def __init__(self, recorder: Recorder, *, weighted_by: str, reads_metrics: bool) -> None:
        self._recorder, self._weighted_by = recorder, weighted_by
        self._reads_metrics = reads_metrics
        self._claims = Claims[int]()
        self._round: _OpenRound | None = None
        self._shift: int | None = None

    @property
    def index(self) -> int | None:
        """Number of the open round; None if no round is open."""
        return self._round.index if self._round else None

    @property
    def has_replies(self) -> bool:
        """True if the open round has a reply or an error."""
        return self._round is not None and bool(self._round.answered or self._round.lost)

    def add_messages(self, index: int, messages: Sequence[Message]) -> None:
        """Add messages to clients; another round that is still open is ended first."""
        if self._shift is None:
            # Recorded rounds are numbered from 1, also for a loop that counts from 0.
            self._shift = max(0, 1 - index)
            self._recorder.check_first_round(index + self._shift, "a run of Flower")
        if self._round is not None and self._round.index != index:
            self.close(_common_model(messages))
        round = self._round = self._round or _OpenRound(index)
        round.messages += messages
        for message in messages:
            try:
                record = record_of(message)
            except BadInput as error:
                round.fault = round.fault or str(error)
                continue
            if record is not None:
                round.sent[message.metadata.dst_node_id] = record

    def add_replies(self, replies: Iterable[Message]) -> None:
        """Add replies, in any order; a client whose reply is an error counts as lost."""
        round = self._round
        if round is None:
            return
        for reply in replies:
            node = round.node_of(reply)
            if not reply.has_content():
                round.lost[node] = (reply.error.reason or "") if reply.has_error() else ""
                continue
            round.answered.add(node)
            try:
                self._read(round, node, reply)
            # Catch any error: an audit must not stop the training that it observes.
            except Exception as error:
                round.excluded.setdefault(node, f"its reply cannot be read: {error}")

    def _recorded_index(self, round: _OpenRound) -> int:
        return round.index + (self._shift or 0)

    def _read(self, round: _OpenRound, node: int, reply: Message) -> None:
        if not self._recorder.sees_uploads:
            return
        self._identify(round, node, reply)
        record = record_of(reply)
        if record is None or not len(record):
            raise BadInput("it has no arrays")
        upload = round.uploads[node] = arrays_of(record)
        sent = round.sent.get(node)
        raise_if_not_finite(upload, lambda: None if sent is None else arrays_of(sent))
        if self._reads_metrics:
            round.reported[node] = metrics_of(reply)
        weight = weight_of(reply, self._weighted_by)
        if weight is not None:
            round.weights[node] = weight

    def _identify(self, round: _OpenRound, node: int, reply: Message) -> None:
        client = client_of(reply)
        if client is None:
            return
        try:
            raise_if_mixed_references([client], self._recorder.recording.targets)
        except BadInput as error:
            is_known = node in self._claims.clients
            (round.excluded if is_known else round.misnamed)[node] = str(error)
            return
        if fault := self._claims.check(node, client, self._recorded_index(round)):
            round.excluded[node] = fault

    def close(self, after: ArrayRecord | None = None) -> None:
        """End the round; ``after`` is the global model after the round, if it is known."""
        round, self._round = self._round, None
        if round is None or not round.messages:
            return
        names = self._claims.clients
        fault = round.fault or self._fault(round)
        chosen, unreadable, unattributed_fault = _choose(round, names)
        if self._recorder.sees_uploads and not chosen:
            fault = fault or next(iter(unreadable.values()), "") or unattributed_fault
        models: dict[ClientRef, Arrays] = {}
        model_after: Arrays | None = None
        try:
            if not fault:
                models = _sent_models(round, chosen)
                model_after = arrays_of(after) if after else None
        except (ValueError, TypeError, KeyError) as error:
            fault = f"the model that was sent cannot be read: {error}"
        round.pass_to(
            self._recorder,
            self._recorded_index(round),
            {message.metadata.dst_node_id for message in round.messages},
            names,
            chosen,
            models,
            after=model_after,
            fault=fault,
            unreadable=unreadable,
            unattributed_fault=unattributed_fault,
        )

    def _fault(self, round: _OpenRound) -> str:
        if not round.sent:
            return "no model was sent"
        if not round.answered:
            return f"no client answered{_errors(round.lost)}"
        if self._recorder.sees_uploads and not round.uploads and not round.excluded:
            return "no reply has arrays"
        return ""


def _choose(
    round: _OpenRound, names: Mapping[int, ClientRef]
) -> tuple[dict[ClientRef, int], dict[ClientRef, str], str]:
    """Choose the node of each client to measure.

    Returns:
        The chosen nodes by client, a fault for each other client, and the fault of replies of
        unidentified clients (empty if all clients are identified).
    """
    unsent = dict.fromkeys(round.answered - round.sent.keys(), "it was sent no model")
    faults = {**_faults_of_weights(round), **unsent, **round.excluded}
    nodes = sorted(round.answered, key=lambda node: str(names.get(node)))
    usable = [node for node in nodes if node in names and node not in faults]
    unreadable = {names[node]: why for node, why in faults.items() if node in names}
    counts = Counter(names[node] for node in usable)
    unreadable |= {c: TWO_NODES.format(client=c) for c, count in counts.items() if count > 1}
    chosen = {names[node]: node for node in usable if names[node] not in unreadable}
    unknown = [node for node in nodes if node not in names]
    fault = next((round.misnamed[node] for node in unknown if node in round.misnamed), "")
    if unknown and not fault:
        fault = _UNNAMED.format(count=len(unknown), replies=len(nodes))
    return chosen, unreadable, fault


def _sent_models(round: _OpenRound, chosen: Mapping[ClientRef, int]) -> dict[ClientRef, Arrays]:
    """Return the model that each client was sent; one object if all were sent the same model."""
    if not chosen or _are_equal(round.sent.values()):
        # In a view without uploads, client 0 stands for all clients.
        return dict.fromkeys(chosen or [0], arrays_of(next(iter(round.sent.values()))))
    return {client: arrays_of(round.sent[node]) for client, node in chosen.items()}


def _common_model(messages: Sequence[Message]) -> ArrayRecord | None:
    """Return the model in all messages, which is the model after the last round."""
    try:
        records = [record for message in messages if (record := record_of(message)) is not None]
    except BadInput:
        return None
    return records[0] if records and _are_equal(records) else None


def _faults_of_weights(round: _OpenRound) -> dict[int, str]:
    """Return a fault for each reply without a weight, if most replies of the round have one."""
    without = [node for node in round.uploads if node not in round.weights]
    # If most replies lack a weight, the server does not average by weights.
    if len(without) >= len(round.weights):
        round.weights.clear()
        return {}
    return dict.fromkeys(without, "it gives no num-examples, unlike the other replies")


def _are_equal(records: Iterable[ArrayRecord]) -> bool:
    first, *others = records
    return all(record is first or record == first for record in others)


def _errors(lost: dict[int, str]) -> str:
    """Return the number of errors and the last line of the first, which names the exception."""
    reasons = [reason.strip().splitlines()[-1] for reason in lost.values() if reason.strip()]
    return f" ({len(lost)} errors, such as {reasons[0][:500]!r})" if reasons else ""
