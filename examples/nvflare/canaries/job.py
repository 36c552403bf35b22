"""Federated averaging with NVIDIA FLARE, and canary sites: how well is one site's update hidden?

CANARY_SEED=1 python job.py        # a simulation of five sites and twenty canaries

There is no noise here, so that hardly anything is; a privacy filter on every site, canaries among
them, is what would change that.
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

    # Given as a file, since a model that is made anew where it is used begins otherwise.
    first = Net().state_dict()
    begins = Path(mkdtemp()) / "first.pt"
    torch.save(first, begins)
    recipe = FedAvgRecipe(
        name="canaries",
        model=Net(),
        initial_ckpt=str(begins),
        min_clients=SITES + CANARIES,
        num_rounds=args.rounds,
        train_script=str(Path(__file__).with_name("client.py")),
    )
    run = recipe.execute(SimEnv(num_clients=SITES + CANARIES, num_threads=2))
    (found,) = Path(run.get_result()).rglob("FL_global_model.pt")
    last = torch.load(found, weights_only=True)
    bounds = canaries().bounds(first, last.get("model", last))
    print("one site's update, epsilon at least:")
    print(f"  from coins alone    {bounds.one_run.value:.3f}")
    print(f"  if noise is normal  {bounds.mean_only.value:.3f}")


if __name__ == "__main__":
    main()
