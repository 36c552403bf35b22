"""Federated averaging with NVIDIA FLARE. Canary sites bound the epsilon of one site's update.

CANARY_SEED=1 python job.py        # a simulation of five sites and twenty canaries

This example adds no noise, so the lower bounds are high. To hide the update, add a privacy filter
to every site, including the canary sites.
"""

import argparse
from pathlib import Path
from tempfile import mkdtemp

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from task import CANARIES, SITES, Net, canaries


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    # The initial model is in a file, because each process would draw different weights.
    first = Net().state_dict()
    initial = Path(mkdtemp()) / "first.pt"
    torch.save(first, initial)
    recipe = FedAvgRecipe(
        name="canaries",
        model=Net(),
        initial_ckpt=str(initial),
        min_clients=SITES + CANARIES,
        num_rounds=args.rounds,
        train_script=str(Path(__file__).with_name("client.py")),
    )
    run = recipe.execute(SimEnv(num_clients=SITES + CANARIES, num_threads=2))
    (path,) = Path(run.get_result()).rglob("FL_global_model.pt")
    last = torch.load(path, weights_only=True)
    bounds = canaries().bounds(first, last.get("model", last))
    print("lower bounds of the epsilon of one site's update:")
    print(f"  without assumptions   {bounds.one_run.value:.3f}")
    print(f"  if noise is Gaussian  {bounds.mean_only.value:.3f}")


if __name__ == "__main__":
    main()
