"""Canary nodes: how well the released model hides what one client has sent."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from digits_app.task import Net
from fedaudit import CanaryClients


def canaries(context: Context) -> CanaryClients:
    """The same canaries on all nodes and the server: who has the seed knows what each sends."""
    config = context.run_config
    return CanaryClients(
        Net(), count=config["canaries"], length=config["clip"], seed=config["canary-seed"]
    )


def canary_number(context: Context) -> int | None:
    """The last nodes are canaries, counted from 0; None for a node that trains."""
    node = context.node_config
    number = node["partition-id"] - clients(context, node["num-partitions"])
    return number if number >= 0 else None


def clients(context: Context, nodes: int) -> int:
    """Nodes that train."""
    return nodes - context.run_config["canaries"]


def answered(msg: Message, context: Context, number: int) -> Message:
    """What a canary sends in the place of what training gives; it counts like any other client."""
    sent = msg.content["arrays"].to_torch_state_dict()
    arrays = ArrayRecord(canaries(context).upload(number, sent))
    metrics = MetricRecord({"train_loss": 0.0, "num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
