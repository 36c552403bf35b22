"""What an audit adds to a whole run of Flower or NVFlare, and to one of its rounds.

    python -m benchmarks.guests [--only flower] [--turns 3] [--rounds 10]
    python -m benchmarks.guests --only flower --plain APP --audited APP [--clients 10]

Prints a table in Markdown. A project of ``examples`` runs without an audit, with one that measures
in the server's loop, and with one that measures beside it, in turn, three times; medians. A run is
the whole command, in wall seconds: ``flwr run`` with a SuperLink that is there already, or ``python
job.py``. A round is the server's, the mean of all but the first, in which clients' processes start.
CPU seconds are those of every process of the run, SuperLink and Ray among them, and differ
less with what else the machine does; how much that was is said below. Linux only. ``--plain`` and
``--audited`` take another pair of projects, with the settings of the examples and the call of
``fedaudit.record`` on a line that ends with ``# fedaudit``; ``--clients`` is for Flower's.
"""

import argparse
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedaudit.live.recording import read_round_log

EXAMPLES = Path(__file__).parents[1] / "examples"
GUESTS = ("flower", "nvflare")
MODULES = {"flower": "flwr", "nvflare": "nvflare"}
WAYS = ("not at all", "in the loop", "beside it")
ADDRESS = "127.0.0.1:8000"
_CHILD_SUBREAPER = 36
"""Of prctl."""
_LOOKED = 0.3
"""Seconds between two looks at what processes have used."""


class Took(NamedTuple):
    """Wall seconds of a run and of one of its rounds; CPU seconds of a run, and of all others."""

    run: float
    round: float
    used: float = 0.0
    others: float = 0.0


def projects(plain: Path, audited: Path, folder: Path) -> dict[str, Path]:
    """Copies of the projects, one for each way of measuring."""
    found = {way: folder / f"project-{place}" for place, way in enumerate(WAYS)}
    for way, target in found.items():
        source = plain if way == WAYS[0] else audited
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    changed = 0
    for path in found[WAYS[2]].rglob("*.py"):
        text = path.read_text()
        call = r"(fedaudit\.record\(.*)\)  # fedaudit"
        text, count = re.subn(call, r'\1, measure="background")  # fedaudit', text)
        path.write_text(text)
        changed += count
    if changed != 1:
        raise SystemExit(f"{audited}: {changed} calls of fedaudit.record, not one")
    return found


@contextmanager
def superlink(folder: Path) -> Iterator[None]:
    """Flower's server of simulations, for as long as this runs; nothing leaves the computer."""
    folder.mkdir(exist_ok=True)
    os.environ |= {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    text = f'[superlink.here]\naddress = "{ADDRESS}"\ninsecure = true\n'
    (folder / "config.toml").write_text(text)
    if answers():
        raise SystemExit(f"{ADDRESS} is taken")
    command = ["flower-superlink", "--insecure", "--simulation"]
    command.append("--disable-runtime-dependency-installation")
    with (folder / "superlink.log").open("w") as log:
        program = beside_python(command.pop(0))
        server = subprocess.Popen(
            [program, *command], stdout=log, stderr=log, start_new_session=True
        )
        try:
            while not answers():
                if server.poll() is not None:
                    raise SystemExit((folder / "superlink.log").read_text())
                time.sleep(0.5)
            yield
        finally:
            # With all that it has started.
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def answers() -> bool:
    try:
        urllib.request.urlopen(f"http://{ADDRESS}", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def beside_python(name: str) -> str:
    """A command of the environment that this runs in."""
    return str(Path(sys.executable).with_name(name))


def run_flower(app: Path, recording: Path | None, given: argparse.Namespace) -> Took:
    config = f"num-server-rounds={given.rounds}"
    if recording is not None:
        config += f" recording='{recording}' num-clients={given.clients}"
    nodes = f"num-supernodes={given.clients} client-resources-num-cpus=1"
    command = [beside_python("flwr"), "run", str(app), "here", "--stream"]
    settings = ["--run-config", config, "--federation-config", nodes]
    said = timed([*command, *settings], app.parent)
    return took(said, r"\[ROUND \d+/", "execution finished", given.rounds)


def run_nvflare(job: Path, recording: Path | None, given: argparse.Namespace) -> Took:
    os.environ["NVFLARE_SIMULATOR_WORKSPACE_ROOT"] = str(job.parent / "simulator")
    command = [sys.executable, str(job / "job.py"), "--rounds", str(given.rounds)]
    if recording is not None:
        command += ["--recording", str(recording)]
    return took(timed(command, job), "Sampled clients", "End persist model", given.rounds)


class Line(NamedTuple):
    """Something that a command says, and when: wall seconds since its start."""

    at: float
    text: str


def timed(command: list[str], folder: Path) -> list[Line]:
    """All that a command says; at last nothing, when it ends."""
    began, said = time.perf_counter(), list[Line]()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        said += [Line(time.perf_counter() - began, text) for text in running.stdout]
    if running.returncode:
        raise SystemExit("".join(one.text for one in said[-50:]))
    return [*said, Line(time.perf_counter() - began, "")]


def took(said: list[Line], begins: str, ends: str, rounds: int) -> Took:
    """Of a run, and of its rounds from the second one on."""
    begun = [one.at for one in said if re.search(begins, one.text)]
    ended = [one.at for one in said if re.search(ends, one.text)]
    if len(begun) != rounds or not ended:
        raise SystemExit("".join(one.text for one in said[-50:]))
    return Took(said[-1].at, (ended[-1] - begun[1]) / (rounds - 1))


def context(guest: str, app: Path, recording: Path | None, given: argparse.Namespace) -> Took:
    """One run, of which every round was measured where there is an audit."""
    meter, busy = Meter(), busy_seconds()
    meter.start()
    if guest == "flower":
        with superlink(app.with_name(f"{app.name}-home")):
            found = run_flower(app, recording, given)
    else:
        found = run_nvflare(app, recording, given)
    reap()
    used, busy = meter.seconds(), busy_seconds() - busy
    if recording is not None:
        measured = [one.round for one in read_round_log(recording) if one.measured]
        if measured != list(range(1, given.rounds + 1)):
            raise SystemExit(f"of {given.rounds} rounds only {measured} were measured")
    return found._replace(used=used, others=busy - used)


def adopt() -> None:
    """What has left its parent is a child of this process, and is found among its descendants."""
    if ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("this kernel does not say whose a process was that has left its parent")


def reap() -> None:
    """Waits for all of them."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


class Meter(threading.Thread):
    """CPU seconds of all that is started while it runs, looked up a few times a second.

    What a process tells its parent when it ends would not do: Ray's parents do not listen.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._last: dict[tuple[int, str], float] = {}
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_LOOKED):
            self._look()

    def seconds(self) -> float:
        """All so far; nothing is counted afterwards."""
        self._over.set()
        self.join()
        return sum(self._last.values())

    def _look(self) -> None:
        parents, used = dict[int, int](), dict[int, tuple[tuple[int, str], float]]()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # The name, in brackets, may hold anything.
                fields = stat.read_text().rpartition(")")[2].split()
                pid = int(stat.parent.name)
                parents[pid] = int(fields[1])
                ticks = int(fields[11]) + int(fields[12])
                # A number is given anew; with the time of its start it is one process.
                used[pid] = ((pid, fields[19]), ticks / os.sysconf("SC_CLK_TCK"))
        for pid, (process, spent) in used.items():
            above = parents[pid]
            while above not in (0, os.getpid()):
                above = parents.get(above, 0)
            if above:
                self._last[process] = spent


def busy_seconds() -> float:
    """CPU seconds of the whole machine: of users, also those of low priority, and of the system."""
    ticks = Path("/proc/stat").read_text().split()[1:4]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def row(guest: str, way: str, found: dict[str, list[Took]]) -> str:
    mine = [median(part) for part in zip(*found[way], strict=True)]
    plain = [median(part) for part in zip(*found[WAYS[0]], strict=True)]
    cells = [
        f"{a:.{digits}f} s | {a / b:.2f}"
        for a, b, digits in zip(mine, plain, (1, 2, 1), strict=False)
    ]
    return f"| {guest} | {way} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", choices=["", *GUESTS])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--plain", type=Path)
    parser.add_argument("--audited", type=Path)
    parser.add_argument("--each", action="store_true", help="every run on standard error")
    parser.add_argument("--clients", type=int, default=5)
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    adopt()
    for guest in [given.only] if given.only else GUESTS:
        if find_spec(MODULES[guest]) is None:
            print(f"{guest} is not installed: pip install 'fedaudit[{guest}]'\n")
            continue
        print("| guest | measured | a run | x | a round | x | CPU of a run | x |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        with TemporaryDirectory(ignore_cleanup_errors=True) as made:
            folder = Path(made)
            plain = (given.plain or EXAMPLES / guest / "quickstart").absolute()
            audited = (given.audited or EXAMPLES / guest / "audited").absolute()
            apps = projects(plain, audited, folder)
            found: dict[str, list[Took]] = {way: [] for way in WAYS}
            for number in range(given.turns):
                for way, app in apps.items():
                    # Not in the project, which Flower packs whole for its nodes.
                    place = folder / f"{app.name}-recording-{number}"
                    recording = None if way == WAYS[0] else place
                    found[way].append(context(guest, app, recording, given))
                    if given.each:
                        print(way, *(f"{part:.2f}" for part in found[way][-1]), file=sys.stderr)
        for way in WAYS:
            print(row(guest, way, found), flush=True)
        every = [one for each in found.values() for one in each]
        share = sum(one.others for one in every) / sum(one.run for one in every)
        print(f"\nother programs took {share:.2f} of a core while {guest} ran\n", flush=True)


if __name__ == "__main__":
    main()
