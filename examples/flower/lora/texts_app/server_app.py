"""Server: federated averaging of adapters and head."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import get_peft_model_state_dict

from texts_app.task import network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, net = context.run_config, network()
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(get_peft_model_state_dict(net)),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
