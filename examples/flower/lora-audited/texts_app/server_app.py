"""Server: federated averaging of adapters and head."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import get_peft_model_state_dict

import fedaudit  # fedaudit
from fedaudit.integrations.flower import RecordingStrategy, gathered_audit  # fedaudit
from texts_app.task import network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, net = context.run_config, network()
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    audit = gathered_audit(grid, nodes=config["num-clients"])  # fedaudit
    recorder = fedaudit.record(config["recording"], net, audit)  # fedaudit
    strategy = RecordingStrategy(strategy, recorder)  # fedaudit
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(get_peft_model_state_dict(net)),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
