"""Server: federated averaging."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedaudit  # fedaudit
from digits_app.task import Net
from fedaudit.integrations.flower import RecordingStrategy, gathered_audit  # fedaudit

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    audit = gathered_audit(grid, nodes=config["num-clients"])  # fedaudit
    recorder = fedaudit.record(config["recording"], Net, audit)  # fedaudit
    strategy = RecordingStrategy(strategy, recorder)  # fedaudit
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
