"""What the server does: federated averaging, clipped and with noise; the canaries say how much of
one client's update is hidden.
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
    # Every canary is asked in every round; where rounds draw their nodes, say every_round=False.
    found = canaries(context).bounds(
        first.to_torch_state_dict(), result.arrays.to_torch_state_dict()
    )
    print("one client's update, epsilon at least:")
    print(f"  from coins alone    {found.one_run.value:.3f}")
    print(f"  if noise is normal  {found.mean_only.value:.3f}")
