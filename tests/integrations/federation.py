"""A Flower federation in one process, with clients that train on digits."""

import copy
import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedaudit.core.seeds import seed_for
from tests.live.federation import data, module, network

# Flower's processes set these ids when they start, and messages read them.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

CLIENTS = 3
RUN = SimpleNamespace(run_id=1)
SUPERLINK = 1
"""Node id that errors about a lost node come from."""

Fails = Callable[[int, int], bool]
"""Whether a client's (partition, round) ends in an error."""


class StubGrid(Grid):
    """A grid of nodes with random ids that answer in any order, some of them with errors."""

    def __init__(
        self,
        app: ClientApp,
        *,
        nodes: int = CLIENTS,
        fails: Fails = lambda partition, round: False,
        seed: int = 0,
        late: int = 0,
        partitions: bool = True,
    ) -> None:
        self.app, self.fails = app, fails
        self._order = random.Random(seed)
        self._late = late
        self._replies: dict[str, Message] = {}
        numbers = [self._order.randrange(2**62, 2**63) for _ in range(nodes)]
        self.contexts = {
            number: Context(
                1,
                number,
                {"partition-id": place, "num-partitions": nodes} if partitions else {},
                RecordDict(),
                {},
            )
            for place, number in enumerate(numbers)
        }
        self.sent: list[Message] = []
        self.received: list[Message] = []

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> object:
        return RUN

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes; late nodes are missing in the first calls."""
        self._late -= 1
        return list(self.contexts)[: 1 if self._late >= 0 else None]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = f"message {len(self.sent)}"
            vars(message.metadata)["_message_id"] = number
            self.sent.append(message)
            self._replies[number] = self._answer(message)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = [self._replies.pop(number) for number in message_ids if number in self._replies]
        self._order.shuffle(replies)
        # Copies, because strategies clip and empty replies in place.
        self.received += copy.deepcopy(replies)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        place = list(self.contexts).index(message.metadata.dst_node_id)
        about = [r.get("server-round", 0) for r in message.content.config_records.values()]
        if message.metadata.message_type == "train" and self.fails(place, int(about[0])):
            error = Message(Error(1, "the process died" if place else None), reply_to=message)
            vars(error.metadata)["_src_node_id"] = SUPERLINK
            return error
        # Copies, so that neither side can change the arrays of the other.
        packed = {
            key: ArrayRecord({n: Array(a.numpy().copy()) for n, a in record.items()})
            for key, record in message.content.array_records.items()
        }
        others = {k: copy.deepcopy(v) for k, v in message.content.items() if k not in packed}
        arrived = Message(RecordDict({**packed, **others}), reply_to=message)
        vars(arrived)["_metadata"] = message.metadata
        return self.app(arrived, context)


def trained(message: Message, context: Context) -> tuple[nn.Module, int]:
    """Train one client for a few steps; the result depends only on the message and the client."""
    config = next(iter(message.content.config_records.values()))
    client, index = int(context.node_config["partition-id"]), int(config["server-round"])
    arrays = message.content.array_records["arrays"].to_torch_state_dict()
    net, mine = module(arrays), data().clients[client]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rng = torch.Generator().manual_seed(seed_for(7, client, index))
    for _ in range(2):
        for part in torch.randperm(len(mine), generator=rng).split(16):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(mine.features[part]), mine.labels[part])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return net, len(mine)


def client_app(mods: list[Mod] | None = None) -> ClientApp:
    app = ClientApp(mods=mods or [])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net, examples = trained(message, context)
        content = RecordDict(
            {
                "arrays": ArrayRecord(net.state_dict()),
                "metrics": MetricRecord({"num-examples": examples}),
            }
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 10})})
        return Message(content, reply_to=message)

    return app


def initial() -> ArrayRecord:
    torch.manual_seed(1)
    return ArrayRecord(network().state_dict())
