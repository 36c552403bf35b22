"""Ledger of a round of Flower: requests and answers, passed to a recorder at its end."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedaudit.core.errors import BadInput
from fedaudit.integrations.common import OpenRound, refuse_not_finite, warn
from fedaudit.integrations.flower.messages import (
    PARTITION,
    Arrays,
    arrays_of,
    client_in,
    metrics_of,
    record_of,
    weight_of,
)
from fedaudit.live.clients import ClientRef, refuse_mixed_references
from fedaudit.live.recorder import Recorder

_SILENT = (
    "{count} of {replies} replies do not name their client; add identity_mod to the "
    'mods of the ClientApp, and start a SuperNode with --node-config "partition-id=..."'
)
_TWICE = "several nodes claim to be client {client}; give each a partition-id"


def client_of(reply: Message) -> ClientRef | None:
    """Return the client that a reply names; None without one."""
    if not reply.has_content():
        return None
    values = (record.get(PARTITION) for record in reply.content.config_records.values())
    return next((client for value in values if (client := client_in(value)) is not None), None)


Node = TypeVar("Node", int, str)


class _Claim(NamedTuple):
    client: ClientRef
    round: int


class Claims(Generic[Node]):
    """Client that each node has named.

    A node that changes its client, or two nodes that alternate as one client, would mix the data of
    two clients. A new node may replace one that is gone.
    """

    def __init__(self) -> None:
        self._claims: dict[Node, _Claim] = {}
        self._holders: dict[ClientRef, Node] = {}
        self._replaced: set[Node] = set()

    @property
    def clients(self) -> Mapping[Node, ClientRef]:
        """For each node the client that it named first."""
        return {node: claim.client for node, claim in self._claims.items()}

    def hear(self, node: Node, client: ClientRef, index: int) -> str:
        """Note the client that a node names; return why it cannot be, or ""."""
        first = self._claims.setdefault(node, _Claim(client, index))
        if first.client != client:
            return (
                f"node {node} claims to be client {client}, and client {first.client} in round "
                f"{first.round}; keep a node's partition-id as long as it runs"
            )
        holder = self._holders.setdefault(client, node)
        if node in self._replaced:
            return (
                f"nodes {node} and {holder} alternately claim to be client {client}; give each a "
                "partition-id"
            )
        if holder != node:
            self._replaced.add(holder)
            self._holders[client] = node
        return ""


_PAUSE = 0.2


class ExpectedNodes:
    """Number of nodes to wait for.

    In a simulation, nodes register while the server is running. A strategy that trains a share of
    connected nodes might otherwise train 8 clients of 100 in the first round.
    """

    def __init__(self, recorder: Recorder, number: int | None, patience: float) -> None:
        targets = len(recorder.recording.targets)
        if number is not None and number < targets:
            raise BadInput(
                f"nodes is {number} and there are {targets} audited clients; give one node for "
                "each client"
            )
        if not patience >= 0:
            raise BadInput(f"patience is {patience}; give a number of seconds, at least 0")
        self._number = targets if number is None else number
        self._patience, self._strict = patience, recorder.strict
        self._warned = False

    def await_all(self, grid: Grid) -> None:
        """Wait for nodes before the first round; later, warn once if some have gone."""
        n_nodes = len(there_of(grid, self._number, 0.0 if self._warned else self._patience))
        if n_nodes >= self._number or self._warned:
            return
        self._warned = True
        text = (
            f"{n_nodes} of {self._number} nodes are connected after {self._patience:g} seconds; "
            "clients of the others are not audited. Start them, raise patience, or set "
            f"nodes={n_nodes}"
        )
        if self._strict:
            raise BadInput(text)
        warn(text, stacklevel=4)


def there_of(grid: Grid, number: int, patience: float) -> list[int]:
    """Return the connected nodes once ``number`` have come, or patience has ended."""
    end = time.monotonic() + patience
    nodes = list(grid.get_node_ids())
    while len(nodes) < number and time.monotonic() < end:
        time.sleep(_PAUSE)
        nodes = list(grid.get_node_ids())
    return nodes


@dataclass
class _Page(OpenRound[int]):
    messages: list[Message] = field(default_factory=list)
    sent: dict[int, ArrayRecord] = field(default_factory=dict)
    misnamed: dict[int, str] = field(default_factory=dict)
    fault: str = ""

    def node_of(self, reply: Message) -> int:
        """Return the node of a reply; an error for a lost node has another sender."""
        receivers = {
            message.metadata.message_id: message.metadata.dst_node_id for message in self.messages
        }
        return receivers.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)


class FlowerLedger:
    """Ledger of one round at a time, and of the client that each node names.

    The ledger never stops training: the recorder warns of faults, and raises only if it is strict.
    """

    def __init__(self, recorder: Recorder, *, weighted_by: str, reads_metrics: bool) -> None:
        self._recorder, self._weighted_by = recorder, weighted_by
        self._reads_metrics = reads_metrics
        self._claims = Claims[int]()
        self._page: _Page | None = None
        self._shift: int | None = None

    @property
    def index(self) -> int | None:
        """The open round."""
        return self._page.index if self._page else None

    @property
    def heard(self) -> bool:
        """True if the open round has an answer or an error."""
        return self._page is not None and bool(self._page.answered or self._page.lost)

    def ask(self, index: int, messages: Sequence[Message]) -> None:
        """Note messages to clients; another round that is still open is ended first."""
        if self._shift is None:
            # Rounds are recorded from 1 on, also those of a loop that counts from 0.
            self._shift = max(0, 1 - index)
            self._recorder.begin_at(index + self._shift, "a run of Flower")
        if self._page is not None and self._page.index != index:
            self.close(self._only_model(messages))
        page = self._page = self._page or _Page(index)
        page.messages += messages
        for message in messages:
            try:
                record = record_of(message)
            except BadInput as error:
                page.fault = page.fault or str(error)
                continue
            if record is not None:
                page.sent[message.metadata.dst_node_id] = record

    def hear(self, replies: Iterable[Message]) -> None:
        """Note replies, in any order; errors count as lost clients."""
        page = self._page
        if page is None:
            return
        for reply in replies:
            node = page.node_of(reply)
            if not reply.has_content():
                page.lost[node] = (reply.error.reason or "") if reply.has_error() else ""
                continue
            page.answered.add(node)
            try:
                self._read(page, node, reply)
            # Any error: an audit must not stop the training that it observes.
            except Exception as error:
                page.excluded.setdefault(node, f"its reply cannot be read: {error}")

    def _number(self, page: _Page) -> int:
        return page.index + (self._shift or 0)

    def _read(self, page: _Page, node: int, reply: Message) -> None:
        if not self._recorder.sees_uploads:
            return
        self._identify(page, node, reply)
        record = record_of(reply)
        if record is None or not len(record):
            raise BadInput("it carries no arrays")
        upload = page.uploads[node] = arrays_of(record)
        refuse_not_finite(upload, lambda: arrays_of(page.sent[node]) if node in page.sent else None)
        if self._reads_metrics:
            page.reported[node] = metrics_of(reply)
        weight = weight_of(reply, self._weighted_by)
        if weight is not None:
            page.weights[node] = weight

    def _identify(self, page: _Page, node: int, reply: Message) -> None:
        client = client_of(reply)
        if client is None:
            return
        try:
            refuse_mixed_references([client], self._recorder.recording.targets)
        except BadInput as error:
            is_known = node in self._claims.clients
            (page.excluded if is_known else page.misnamed)[node] = str(error)
            return
        doubt = self._claims.hear(node, client, self._number(page))
        if doubt:
            page.excluded[node] = doubt

    def close(self, after: ArrayRecord | None = None) -> None:
        """End the round; ``after`` is the model that it ended with, if known."""
        page, self._page = self._page, None
        if page is None or not page.messages:
            return
        names = self._claims.clients
        fault = page.fault or self._fault(page)
        chosen, excluded, note = self._sorted(page, names)
        if self._recorder.sees_uploads and not chosen:
            fault = fault or next(iter(excluded.values()), "") or note
        models: dict[ClientRef, Arrays] = {}
        ended: Arrays | None = None
        try:
            if not fault:
                models = self._models(page, chosen)
                ended = arrays_of(after) if after else None
        except (ValueError, TypeError, KeyError) as error:
            fault = f"the model that was sent cannot be read: {error}"
        page.tell(
            self._recorder,
            self._number(page),
            {message.metadata.dst_node_id for message in page.messages},
            names,
            chosen,
            models,
            after=ended,
            fault=fault,
            excluded=excluded,
            note=note,
        )

    def _sorted(
        self, page: _Page, names: Mapping[int, ClientRef]
    ) -> tuple[dict[ClientRef, int], dict[ClientRef, str], str]:
        """Return the node of each client to measure, why others are excluded, and a note."""
        unsent = dict.fromkeys(page.answered - page.sent.keys(), "it was sent no model")
        faults = {**_unweighted(page), **unsent, **page.excluded}
        nodes = sorted(page.answered, key=lambda node: str(names.get(node)))
        sound = [node for node in nodes if node in names and node not in faults]
        excluded = {names[node]: why for node, why in faults.items() if node in names}
        counts = Counter(names[node] for node in sound)
        excluded |= {c: _TWICE.format(client=c) for c, count in counts.items() if count > 1}
        uploads = {names[node]: node for node in sound if names[node] not in excluded}
        unknown = [node for node in nodes if node not in names]
        note = next((page.misnamed[node] for node in unknown if node in page.misnamed), "")
        if unknown and not note:
            note = _SILENT.format(count=len(unknown), replies=len(nodes))
        return uploads, excluded, note

    def _fault(self, page: _Page) -> str:
        if not page.sent:
            return "no model was sent"
        if not page.answered:
            return f"no client answered{_because(page.lost)}"
        if self._recorder.sees_uploads and not page.uploads and not page.excluded:
            return "no reply carries arrays"
        return ""

    def _models(self, page: _Page, uploads: Mapping[ClientRef, int]) -> dict[ClientRef, Arrays]:
        if not uploads or _is_one(page.sent.values()):
            return dict.fromkeys(uploads or [0], arrays_of(next(iter(page.sent.values()))))
        return {client: arrays_of(page.sent[node]) for client, node in uploads.items()}

    def _only_model(self, messages: Sequence[Message]) -> ArrayRecord | None:
        """Return the model that all are sent next, with which the last round ended."""
        try:
            records = [record for message in messages if (record := record_of(message)) is not None]
        except BadInput:
            return None
        return records[0] if records and _is_one(records) else None


def _unweighted(page: _Page) -> dict[int, str]:
    """Return why replies without a weight are excluded, if most replies of the round have one."""
    without = [node for node in page.uploads if node not in page.weights]
    # If most replies lack a weight, the server does not average by weights.
    if len(without) >= len(page.weights):
        page.weights.clear()
        return {}
    return dict.fromkeys(without, "it gives no num-examples, unlike the others")


def _is_one(records: Iterable[ArrayRecord]) -> bool:
    first, *others = records
    return all(record is first or record == first for record in others)


def _because(lost: dict[int, str]) -> str:
    reasons = [reason.strip().splitlines()[-1] for reason in lost.values() if reason.strip()]
    return f" ({len(lost)} errors, such as {reasons[0][:500]!r})" if reasons else ""
