"""Write a job without code, which trains with the executor of the sites.

python job.py JOBS
"""

import json
import shutil
import sys
from pathlib import Path

from digits import SITES, Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

(jobs,) = sys.argv[1:]
recipe = FedAvgRecipe(
    name="guarded",
    model=Net(),
    min_clients=len(SITES),
    num_rounds=3,
    train_script=str(Path(__file__).with_name("client.py")),
)
recipe.export(jobs)
for code in Path(jobs).glob("guarded/*/custom"):
    shutil.rmtree(code)
for path in Path(jobs).glob("guarded/*/config/config_fed_client.json"):
    config = json.loads(path.read_text())
    # The sites allow neither an executor with arguments nor components that send events.
    config["executors"] = [
        {"tasks": ["*"], "executor": {"path": "executor.SiteTraining", "args": {}}}
    ]
    config["components"] = []
    path.write_text(json.dumps(config, indent=2))
