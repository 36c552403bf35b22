"""Adapters (LoRA) of a network, learned by federated averaging with NVIDIA FLARE, and audited.

python job.py
"""

import argparse
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from task import SITES, Net, audit_split, record

from fedaudit.integrations.nvflare import RecordingFilter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--recording", default="runs/nvflare-adapters")
    args = parser.parse_args()

    recipe = FedAvgRecipe(
        name="adapters",
        model=Net(),
        min_clients=SITES,
        num_rounds=args.rounds,
        train_script=str(Path(__file__).with_name("client.py")),
    )
    for site in range(1, SITES + 1):
        audit_split(site).save(f"{args.recording}-parts/site-{site}")
    recorder = RecordingFilter(record, args.recording)
    recipe.add_server_input_filter(recorder, tasks=["train"])
    run = recipe.execute(SimEnv(num_clients=SITES))
    print("Result:", run.get_result())


if __name__ == "__main__":
    main()
