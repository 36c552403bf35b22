"""Server: federated averaging with clipping and noise. Canary clients bound the epsilon of one
client's update.
"""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from digits_app.canaries import canaries
from digits_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes = config["clients"] + config["canaries"]
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes),
        noise_multiplier=config["noise-multiplier"],
        clipping_norm=config["clip"],
        num_sampled_clients=nodes,
    )
    first = ArrayRecord(Net().state_dict())
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(first.to_torch_state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    # Every canary takes part in every round. If rounds sample nodes, set every_round=False.
    bounds = canaries(context).bounds(
        first.to_torch_state_dict(), result.arrays.to_torch_state_dict()
    )
    print("lower bounds of the epsilon of one client's update:")
    print(f"  without assumptions   {bounds.one_run.value:.3f}")
    print(f"  if noise is Gaussian  {bounds.mean_only.value:.3f}")
