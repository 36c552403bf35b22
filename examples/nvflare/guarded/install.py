"""Install a guard into the startup kit of a site, or allow the classes of the job at the server.

python install.py site-1 WORKSPACE/example_project/prod_00/site-1
python install.py server WORKSPACE/example_project/prod_00/server
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXECUTOR = "executor.SiteTraining"
PERSISTOR = "nvflare.app_opt.pt.file_model_persistor.PTFileModelPersistor"

name, kit = sys.argv[1], Path(sys.argv[2]).absolute()
local, guard = kit / "local", kit / "guard"

# A job without code may use only these classes. The default list of a site has components that send
# messages which no filter of the site sees, also to other servers, such as MLflowReceiver.
present = [
    path for path in (local / "resources.json", local / "resources.json.default") if path.exists()
]
resources = json.loads(present[0].read_text())
if name == "server":
    resources["class_allow_list"] += [PERSISTOR, "digits.Net"]
else:
    resources["class_allow_list"] = [EXECUTOR]
    # The site's log has the AUCs that the guard measured.
    resources["allow_log_streaming"] = False
(local / "resources.json").write_text(json.dumps(resources, indent=2))
if name == "server":
    sys.exit()

# No role may submit a job with code, which could bypass the guard, or read files of the site.
rights = json.loads((local / "authorization.json.default").read_text())
rights["permissions"]["project_admin"] = dict(rights["permissions"]["lead"])
for role in rights["permissions"].values():
    role["byoc"] = role["shell_commands"] = "none"
(local / "authorization.json").write_text(json.dumps(rights, indent=2))

guard.mkdir()
shutil.copy(HERE / "digits.py", guard)
text = (HERE / "guard.toml").read_text().replace("site-1", name)
(guard / "guard.toml").write_text(text)
subprocess.run([sys.executable, HERE / "digits.py", name, guard], check=True)
filters = (HERE / "privacy.json").read_text().replace("/etc/fedaudit", str(guard))
(local / "privacy.json").write_text(filters)
