"""Write a job without code, which trains with the script of the sites.

python job.py JOBS SCRIPT     # SCRIPT: absolute path of client.py at the sites
"""

import shutil
import sys
from pathlib import Path

from digits import SITES, Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

jobs, script = sys.argv[1:]
recipe = FedAvgRecipe(
    name="guarded",
    model=Net(),
    min_clients=len(SITES),
    num_rounds=3,
    train_script=script,
)
recipe.export(jobs)
for code in Path(jobs).glob("guarded/*/custom"):
    shutil.rmtree(code)
