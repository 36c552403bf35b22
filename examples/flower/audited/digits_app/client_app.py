"""Client: training and evaluation when a message arrives."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import Net, audit_split, load_data  # fedaudit
from digits_app.task import test as test_fn
from digits_app.task import train as train_fn
from fedaudit.integrations.flower import audit_reply, client_id_mod  # fedaudit

app = ClientApp(mods=[client_id_mod])  # fedaudit


@app.train()
def train(msg: Message, context: Context) -> Message:
    net = received(msg)
    trainloader, _ = loaders(context)
    epochs, lr = context.run_config["local-epochs"], msg.content["config"]["lr"]
    loss = train_fn(net, trainloader, epochs, lr)
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    _, testloader = loaders(context)
    loss, accuracy = test_fn(received(msg), testloader)
    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(testloader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


@app.query("audit")  # fedaudit
def audit(msg: Message, context: Context) -> Message:  # fedaudit
    node = context.node_config  # fedaudit
    return audit_reply(msg, audit_split(node["partition-id"], node["num-partitions"]))  # fedaudit


def received(msg: Message) -> Net:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return net


def loaders(context: Context):
    node = context.node_config
    return load_data(node["partition-id"], node["num-partitions"], context.run_config["batch-size"])
