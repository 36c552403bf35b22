"""Guards of two Flower nodes in a deployment: a SuperLink and two SuperNodes, as processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
import torch

from fedaudit.live.decisions import read_decisions
from tests.guard.client import State, honest, memorising, noisy
from tests.guard.test_site import POLICY, site

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "guarded-app"
version = "1.0.0"
description = "Clients that train honestly and then memorise"
license = { file = "LICENSE.md" }
dependencies = ["flwr>=1.40,<2"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedaudit"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "guarded_app.server_app:app"
clientapp = "guarded_app.client_app:app"

[tool.flwr.app.config]
result = ""
# Settings of the run's owner, which no guard reads.
fedaudit-guard = "elsewhere.toml"
limit = 0.99
"""
CLIENT = """
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict, Message
from flwr.clientapp import ClientApp

from fedaudit.integrations.flower import guard_mod, client_id_mod
from tests.guard.client import honest, memorising

app = ClientApp(mods=[guard_mod, client_id_mod])


@app.train()
def train(message, context):
    torch.set_num_threads(1)
    first = message.content.config_records["config"]["server-round"] == 1
    metrics = MetricRecord({"num-examples": 10, "secret": 0.25})
    content = {"arrays": ArrayRecord(honest() if first else memorising()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)
"""
SERVER = """
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from tests.guard.client import initial

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(initial()), num_rounds=2, timeout=240
    )
    metrics = {number: dict(values) for number, values in result.train_metrics_clientapp.items()}
    torch.save([result.arrays.to_torch_state_dict(), metrics], context.run_config["result"])
"""
ROOT = Path(__file__).parents[2]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def of_home(home: Path) -> list[int]:
    """Processes with this folder of Flower, which those that a SuperNode starts inherit."""
    line, processes = f"FLWR_HOME={home}".encode(), list[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if line in path.read_bytes().split(b"\0"):
                processes.append(int(path.parent.name))
    return processes


@contextmanager
def deployment(home: Path, policies: list[Path]) -> Iterator[None]:
    """A SuperLink, and a SuperNode for each policy, in processes that are ended afterwards."""
    link, *nodes = free_ports(1 + len(policies))
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n'
        f'[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    commands = [
        [
            "flower-superlink",
            "--insecure",
            "--disable-runtime-dependency-installation",
            "--port",
            str(link),
        ]
    ]
    for number, (port, policy) in enumerate(zip(nodes, policies, strict=True)):
        config = f'fedaudit-guard="{policy}" partition-id={number} num-partitions=2'
        commands.append(
            [
                "flower-supernode",
                "--insecure",
                "--superlink",
                f"127.0.0.1:{link}",
                "--port",
                str(port),
                "--node-config",
                config,
            ]
        )
    started = list[subprocess.Popen[bytes]]()
    try:
        for number, command in enumerate(commands):
            with (home / f"{number}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(command, env=environment(home), stdout=log, stderr=log)
                )
            if not number:
                wait_for(link, home / "0.log")
        yield
    finally:
        end(home)
        for process in started:
            process.wait(timeout=30)


def wait_for(port: int, log: Path) -> None:
    for _ in range(240):
        try:
            urlopen(f"http://127.0.0.1:{port}", timeout=5).close()
        except HTTPError:
            return
        except (URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise AssertionError(log.read_text()[-3000:])


def end(home: Path) -> None:
    """End the processes of a deployment: ask them for ten seconds, then kill them."""
    for attempt in range(40):
        # Those that have ended have no environment any more.
        processes = of_home(home)
        if not processes:
            return
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM if attempt < 20 else signal.SIGKILL)
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found as Linux shows them"
)
def test_nodes_of_a_deployment_send_filter_and_withhold(tmp_path: Path) -> None:
    if shutil.which("flower-superlink", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("Flower's commands are not beside this Python")
    app, policies = tmp_path / "app", list[Path]()
    for number, policy in enumerate((POLICY, f'{POLICY}filter = "site.py:noisy"\n')):
        (tmp_path / str(number)).mkdir()
        policies.append(site(tmp_path / str(number), policy))
    (app / "guarded_app").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "LICENSE.md").write_text("MIT\n")
    files = {"__init__": "", "client_app": CLIENT, "server_app": SERVER}
    for name, text in files.items():
        (app / "guarded_app" / f"{name}.py").write_text(text)
    home, result = tmp_path / "flwr", tmp_path / "result.pt"
    with deployment(home, policies):
        done = subprocess.run(
            ["flwr", "run", str(app), "here", "--stream", "--run-config", f'result="{result}"'],
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    logs = "".join(path.read_text() for path in sorted(home.glob("*.log")))
    output = (done.stdout + done.stderr + logs)[-8000:]
    assert done.returncode == 0, output
    assert result.exists(), output
    outcomes = [
        [
            d.outcome
            for path in (tmp_path / str(n) / "guards").iterdir()
            for d in read_decisions(path)
        ]
        for n in range(2)
    ]
    assert outcomes == [["sent", "withheld"], ["sent", "filtered"]]
    arrays, metrics = torch.load(result, weights_only=True)
    expected: State = noisy({name: memorising()[name] - value for name, value in honest().items()})
    for name, value in honest().items():
        # The node that withholds is left out of the average.
        torch.testing.assert_close(arrays[name], value + expected[name], rtol=1e-4, atol=1e-4)
    assert not any("secret" in values for values in metrics.values())
