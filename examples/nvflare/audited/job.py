"""Handwritten digits, learned by federated averaging with NVIDIA FLARE and PyTorch.

python job.py                # a simulation of five sites
python job.py --poc          # a server and five sites in separate processes on this machine
"""

import argparse
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv
from task import SITES, Net, audit_split, record  # fedaudit

from fedaudit.integrations.nvflare import RecordingFilter  # fedaudit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--poc", action="store_true")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--recording", default="runs/nvflare")  # fedaudit
    args = parser.parse_args()

    recipe = FedAvgRecipe(
        name="digits",
        model=Net(),
        min_clients=SITES,
        num_rounds=args.rounds,
        train_script=str(Path(__file__).with_name("client.py")),
    )
    for site in range(1, SITES + 1):  # each site would do this where its data are  # fedaudit
        audit_split(site).save(f"{args.recording}-parts/site-{site}")  # fedaudit
    recorder = RecordingFilter(record, args.recording)  # fedaudit
    recipe.add_server_input_filter(recorder, tasks=["train"])  # fedaudit
    where = PocEnv if args.poc else SimEnv
    run = recipe.execute(where(num_clients=SITES))
    print("Result:", run.get_result())


if __name__ == "__main__":
    main()
