"""Canary nodes, which bound from below the epsilon of one client's update."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from digits_app.task import Net
from fedaudit import CanaryClients


def canaries(context: Context) -> CanaryClients:
    """Return the same canaries on all nodes and the server; the seed determines their updates."""
    config = context.run_config
    return CanaryClients(
        Net(), count=config["canaries"], length=config["clip"], seed=config["canary-seed"]
    )


def canary_number(context: Context) -> int | None:
    """Return the number of a canary, from 0, for the last nodes, and None for a training node."""
    node = context.node_config
    number = node["partition-id"] - clients(context, node["num-partitions"])
    return number if number >= 0 else None


def clients(context: Context, nodes: int) -> int:
    """Return the number of nodes that train."""
    return nodes - context.run_config["canaries"]


def answered(msg: Message, context: Context, number: int) -> Message:
    """Reply with a canary's update instead of a trained one; it has the weight of a client."""
    sent = msg.content["arrays"].to_torch_state_dict()
    arrays = ArrayRecord(canaries(context).upload(number, sent))
    metrics = MetricRecord({"train_loss": 0.0, "num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
