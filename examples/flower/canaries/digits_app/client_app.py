"""Client: training and evaluation when a message arrives, and the replies of a canary."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.canaries import answered, canary_number, clients
from digits_app.task import Net, load_data
from digits_app.task import test as test_fn
from digits_app.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    number = canary_number(context)
    if number is not None:
        return answered(msg, context, number)
    net = received(msg)
    trainloader, _ = loaders(context)
    epochs, lr = context.run_config["local-epochs"], msg.content["config"]["lr"]
    # All clients have weight 1 in the average. Otherwise noise would hide some less than others.
    metrics = {"train_loss": train_fn(net, trainloader, epochs, lr), "num-examples": 1}
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    if canary_number(context) is not None:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 0})}), reply_to=msg)
    _, testloader = loaders(context)
    loss, accuracy = test_fn(received(msg), testloader)
    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(testloader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def received(msg: Message) -> Net:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return net


def loaders(context: Context):
    node = context.node_config
    number = clients(context, node["num-partitions"])
    return load_data(node["partition-id"], number, context.run_config["batch-size"])
