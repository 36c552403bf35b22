"""Client: training and evaluation when a message arrives."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from fedaudit.integrations.flower import audit_reply, client_id_mod  # fedaudit
from texts_app.task import audit_split, load_data, network  # fedaudit
from texts_app.task import train as train_fn

app = ClientApp(mods=[client_id_mod])  # fedaudit


@app.train()
def train(msg: Message, context: Context) -> Message:
    net = network()
    set_peft_model_state_dict(net, msg.content["arrays"].to_torch_state_dict())
    node, config = context.node_config, context.run_config
    trainloader = load_data(
        config["texts"], node["partition-id"], node["num-partitions"], config["batch-size"]
    )
    loss = train_fn(net, trainloader, config["local-epochs"], msg.content["config"]["lr"])
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    arrays = ArrayRecord(get_peft_model_state_dict(net))
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=msg)


@app.query("audit")  # fedaudit
def audit(msg: Message, context: Context) -> Message:  # fedaudit
    node, file = context.node_config, context.run_config["texts"]  # fedaudit
    part = audit_split(file, node["partition-id"], node["num-partitions"])  # fedaudit
    return audit_reply(msg, part)  # fedaudit
