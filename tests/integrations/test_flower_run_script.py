"""examples/flower/run.sh ends all processes that it starts."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.programs import heeding

SCRIPT = Path(__file__).parents[2] / "examples" / "flower" / "run.sh"

# Replacements for Flower's commands. Each starts a process in a new session, which, like a
# SuperLink of "flwr run", cannot be traced to the command that started it.
STARTS = """#!/bin/sh
setsid sleep 300 &
echo $! >> "$PIDS"
echo $$ >> "$PIDS"
"""
STAYS = STARTS + "exec sleep 300\n"

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists() or shutil.which("bash") is None,
    reason="processes are found by their environment, which Linux shows",
)


def commands(folder: Path, scripts: dict[str, str]) -> dict[str, str]:
    """Return an environment in which Flower's commands are these scripts."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PIDS": str(folder / "pids")}


def started(env: dict[str, str], count: int) -> list[int]:
    file, end = Path(env["PIDS"]), time.monotonic() + 30
    while time.monotonic() < end:
        if file.exists() and len(file.read_text().split()) >= count:
            return [int(line) for line in file.read_text().split()]
        time.sleep(0.05)
    raise AssertionError("nothing was started")


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("way", ["simulation", "deployment"])
def test_no_process_outlives_an_interrupted_script(
    way: str, sent: signal.Signals, tmp_path: Path
) -> None:
    names = ("flwr", "flower-superlink", "flower-supernode")
    env = commands(tmp_path / "bin", dict.fromkeys(names, STAYS) | {"curl": "#!/bin/sh\nexit 7\n"})
    script = subprocess.Popen(heeding(["bash", SCRIPT, way, tmp_path / "out"]), env=env)
    try:
        # Every command and the process it starts; "flwr" waits for the SuperLink to answer.
        pids = started(env, 2 if way == "simulation" else 6)
        script.send_signal(sent)
        assert script.wait(timeout=30) == 128 + sent
        assert [pid for pid in pids if runs(pid)] == []
    finally:
        script.kill()
        script.wait()


def test_no_process_outlives_a_finished_script(tmp_path: Path) -> None:
    # The SuperLink answers requests only after it was started.
    curl_script = '#!/bin/sh\n[ -e "$PIDS" ] || exit 7\n'
    env = commands(
        tmp_path / "bin",
        {"flwr": STARTS, "flower-superlink": STAYS, "curl": curl_script, "fedaudit": "#!/bin/sh\n"},
    )
    subprocess.run(
        ["bash", SCRIPT, "simulation", tmp_path / "out"], env=env, check=True, timeout=60
    )
    assert [pid for pid in started(env, 4) if runs(pid)] == []
