"""Who was sent what in a round and who answered what, told to a recorder when it is over."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message

from fedaudit.core import ClientId
from fedaudit.errors import BadInput
from fedaudit.integrations.flower.contents import (
    Arrays,
    arrays_of,
    record_of,
    weight_of,
)
from fedaudit.integrations.flower.identity import Claims, client_of
from fedaudit.live.recorder import Recorder


@dataclass
class _Page:
    """One round, while it goes on; by node."""

    index: int
    messages: list[Message] = field(default_factory=list)
    sent: dict[int, ArrayRecord] = field(default_factory=dict)
    uploads: dict[int, Arrays] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    doubted: dict[int, str] = field(default_factory=dict)
    fault: str = ""

    def node_of(self, reply: Message) -> int:
        """The node that a reply is for: an error for a lost node comes from another's number."""
        asked = {one.metadata.message_id: one.metadata.dst_node_id for one in self.messages}
        return asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)


class Ledger:
    """Keeps one round at a time, and which client a node has said it is.

    Nothing here may end a training: what cannot be recorded is told to the recorder, which warns,
    and raises only if it is strict.
    """

    def __init__(self, recorder: Recorder, *, weighted_by: str) -> None:
        self._recorder, self._weighted_by = recorder, weighted_by
        self._claims = Claims[int]()
        self._page: _Page | None = None
        self._shift: int | None = None

    @property
    def index(self) -> int | None:
        """The round that is kept at present."""
        return self._page.index if self._page else None

    @property
    def heard(self) -> bool:
        """Whether anything has come back in it."""
        return self._page is not None and bool(self._page.answered or self._page.lost)

    def ask(self, index: int, messages: Sequence[Message]) -> None:
        """Clients are sent something; a round that is still open is ended first."""
        if self._shift is None:
            # A loop that counts from 0 is recorded from 1 on.
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
        """Replies come back, in any order; errors count as clients that were lost."""
        page = self._page
        if page is None:
            return
        for reply in replies:
            node = page.node_of(reply)
            if not reply.has_content():
                page.lost[node] = (reply.error.reason or "") if reply.has_error() else ""
                continue
            page.answered.add(node)
            client = client_of(reply)
            doubt = "" if client is None else self._claims.hear(node, client, self._number(page))
            if doubt:
                page.doubted[node] = doubt
            try:
                self._read(page, node, reply)
            # Whatever it is: no audit may end another's training.
            except Exception as error:
                page.fault = page.fault or f"a reply cannot be read: {error}"

    def _number(self, page: _Page) -> int:
        """The round as it is recorded."""
        return page.index + (self._shift or 0)

    def _read(self, page: _Page, node: int, reply: Message) -> None:
        if not self._recorder.sees_uploads:
            return
        record = record_of(reply)
        if record is not None:
            page.uploads[node] = arrays_of(record)
        weight = weight_of(reply, self._weighted_by)
        if weight is not None:
            page.weights[node] = weight

    def close(self, after: ArrayRecord | None = None) -> None:
        """The round is over; ``after`` is the model that it ended with, where that is known."""
        page, self._page = self._page, None
        if page is None or not page.messages:
            return
        index = self._number(page)
        asked = {message.metadata.dst_node_id for message in page.messages}
        names = {n: c for n, c in self._claims.clients.items() if n not in page.doubted}
        known = {names[node] for node in asked if node in names}
        unnamed = sum(node not in names for node in asked - page.answered | {*page.doubted})
        fault = page.fault or self._fault(page)
        clients = {} if fault else {node: names[node] for node in page.uploads}
        sent: Arrays | dict[ClientId, Arrays] = []
        ended: Arrays | None = None
        try:
            if not fault:
                sent = self._sent(page, clients)
                ended = arrays_of(after) if after else None
        except (ValueError, TypeError, KeyError) as error:
            fault = f"the model that was sent cannot be read: {error}"
        if fault:
            named = {names[node] for node in page.answered if node in names}
            self._recorder.missed(index, fault, asked=known, answered=named, unnamed=unnamed)
            return
        if not self._recorder.sees_uploads:
            self._recorder.round(index, sent=sent, after=ended)
            return
        weighed = page.weights.keys() >= clients.keys()
        self._recorder.round(
            index,
            sent=sent,
            uploads={client: page.uploads[node] for node, client in clients.items()},
            weights={c: page.weights[node] for node, c in clients.items()} if weighed else None,
            asked=known,
            unnamed=unnamed,
            after=ended,
        )

    def _fault(self, page: _Page) -> str:
        """Why a round cannot be recorded; empty if it can."""
        if not page.sent:
            return "no model was sent"
        if not page.answered:
            return f"no client answered{_because(page.lost)}"
        if not self._recorder.sees_uploads:
            return ""
        if page.doubted:
            return next(iter(page.doubted.values()))
        clients_of = self._claims.clients
        silent = [node for node in page.uploads if node not in clients_of]
        if silent:
            return (
                f"{len(silent)} of {len(page.uploads)} replies do not say which client they are "
                "from; add identity_mod to the mods of the ClientApp, and start a SuperNode with "
                '--node-config "partition-id=..."'
            )
        clients = [clients_of[node] for node in page.uploads]
        twice = sorted({client for client in clients if clients.count(client) > 1})
        if twice:
            return f"several nodes say that they are client {twice[0]}; give each a partition-id"
        if not page.uploads:
            return "no reply carries arrays"
        return ""

    def _sent(self, page: _Page, clients: dict[int, ClientId]) -> Arrays | dict[ClientId, Arrays]:
        if not clients or _is_one(page.sent.values()):
            return arrays_of(next(iter(page.sent.values())))
        return {client: arrays_of(page.sent[node]) for node, client in clients.items()}

    def _only_model(self, messages: Sequence[Message]) -> ArrayRecord | None:
        """The model that all are sent next, which the round before has ended with."""
        try:
            records = [record for one in messages if (record := record_of(one)) is not None]
        except BadInput:
            return None
        return records[0] if records and _is_one(records) else None


def _is_one(records: Iterable[ArrayRecord]) -> bool:
    first, *others = records
    return all(one is first or one == first for one in others)


def _because(lost: dict[int, str]) -> str:
    reasons = [reason.strip().splitlines()[-1] for reason in lost.values() if reason.strip()]
    return f" ({len(lost)} errors, such as {reasons[0][:500]!r})" if reasons else ""
