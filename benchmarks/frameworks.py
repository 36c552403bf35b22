"""Time that an audit adds to a whole run of Flower or NVFlare, and to one round.

    python -m benchmarks.frameworks [--only flower] [--turns 3] [--rounds 10]
    python -m benchmarks.frameworks --only flower --plain APP --audited APP [--clients 10]

Prints a table in Markdown. A project of ``examples`` runs without an audit, with an audit that
measures in the server's loop, and with one that measures in the background. These variants
alternate three times, and the table has medians. *A run* is the wall time of the whole command:
``flwr run`` with a running SuperLink, or ``python job.py``. *A round* is a round of the server: the
mean of all rounds but the first, in which the clients' processes start. *CPU of a run* is the CPU
time of all processes of the run, including SuperLink and Ray. It depends less on other programs;
their CPU usage is printed below the table. Linux only. ``--plain`` and ``--audited`` select another
pair of projects. They need the settings of the examples, and the call of ``fedaudit.record`` on a
line that ends with ``# fedaudit``. ``--clients`` is for Flower only.
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
FRAMEWORKS = ("flower", "nvflare")
MODULES = {"flower": "flwr", "nvflare": "nvflare"}
VARIANTS = ("no audit", "in the loop", "in the background")
ADDRESS = "127.0.0.1:8000"
_CHILD_SUBREAPER = 36
"""Value of PR_SET_CHILD_SUBREAPER, an option of prctl."""
_INTERVAL = 0.3
"""Seconds between two readings of the processes' CPU time."""


class Cost(NamedTuple):
    """Time of a run.

    Attributes:
        run: Wall seconds of the whole run.
        round: Mean wall seconds of a round.
        cpu: CPU seconds of all processes of the run.
        others: CPU seconds of all other programs during the run.
    """

    run: float
    round: float
    cpu: float = 0.0
    others: float = 0.0


def projects(plain: Path, audited: Path, folder: Path) -> dict[str, Path]:
    """Copy the projects, once for each variant, and return the copies."""
    copies = {variant: folder / f"project-{index}" for index, variant in enumerate(VARIANTS)}
    for variant, target in copies.items():
        source = plain if variant == VARIANTS[0] else audited
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    changed = 0
    for path in copies[VARIANTS[2]].rglob("*.py"):
        text = path.read_text()
        call = r"(fedaudit\.record\(.*)\)  # fedaudit"
        text, count = re.subn(call, r'\1, measure="background")  # fedaudit', text)
        path.write_text(text)
        changed += count
    if changed != 1:
        raise SystemExit(f"{audited} must call fedaudit.record once, got {changed} calls")
    return copies


@contextmanager
def superlink(folder: Path) -> Iterator[None]:
    """Run Flower's simulation server (SuperLink) locally for the duration of a ``with`` block."""
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
    if is_serving():
        raise SystemExit(f"another program uses {ADDRESS}; stop it first")
    command = ["flower-superlink", "--insecure", "--simulation"]
    command.append("--disable-runtime-dependency-installation")
    with (folder / "superlink.log").open("w") as log:
        program = program_path(command.pop(0))
        server = subprocess.Popen(
            [program, *command], stdout=log, stderr=log, start_new_session=True
        )
        try:
            while not is_serving():
                if server.poll() is not None:
                    raise SystemExit((folder / "superlink.log").read_text())
                time.sleep(0.5)
            yield
        finally:
            # The process group includes all processes that the server started.
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def is_serving() -> bool:
    """Return True if a server answers at the address."""
    try:
        urllib.request.urlopen(f"http://{ADDRESS}", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def program_path(name: str) -> str:
    """Return the path of a program in the environment of this Python."""
    return str(Path(sys.executable).with_name(name))


def run_flower(app: Path, recording: Path | None, args: argparse.Namespace) -> Cost:
    config = f"num-server-rounds={args.rounds}"
    if recording is not None:
        config += f" recording='{recording}' num-clients={args.clients}"
    nodes = f"num-supernodes={args.clients} client-resources-num-cpus=1"
    command = [program_path("flwr"), "run", str(app), "here", "--stream"]
    settings = ["--run-config", config, "--federation-config", nodes]
    output = timed([*command, *settings], app.parent)
    return cost_of(output, r"\[ROUND \d+/", "execution finished", args.rounds)


def run_nvflare(job: Path, recording: Path | None, args: argparse.Namespace) -> Cost:
    os.environ["NVFLARE_SIMULATOR_WORKSPACE_ROOT"] = str(job.parent / "simulator")
    command = [sys.executable, str(job / "job.py"), "--rounds", str(args.rounds)]
    if recording is not None:
        command += ["--recording", str(recording)]
    return cost_of(timed(command, job), "Sampled clients", "End persist model", args.rounds)


class Line(NamedTuple):
    """A line of a command's output, with its time in wall seconds since the start."""

    seconds: float
    text: str


def timed(command: list[str], folder: Path) -> list[Line]:
    """Run a command, and return the lines of its output; the last line is empty, at its end."""
    start, output = time.perf_counter(), list[Line]()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        output += [Line(time.perf_counter() - start, text) for text in process.stdout]
    if process.returncode:
        raise SystemExit("".join(line.text for line in output[-50:]))
    return [*output, Line(time.perf_counter() - start, "")]


def cost_of(output: list[Line], round_start: str, end: str, rounds: int) -> Cost:
    """Return the wall time of a run, and of its rounds from the second one on.

    Args:
        output: Lines of the run's output.
        round_start: Pattern of the lines at the start of each round.
        end: Pattern of the line at the end of the last round.
        rounds: Number of rounds.
    """
    starts = [line.seconds for line in output if re.search(round_start, line.text)]
    ends = [line.seconds for line in output if re.search(end, line.text)]
    if len(starts) != rounds or not ends:
        raise SystemExit("".join(line.text for line in output[-50:]))
    return Cost(output[-1].seconds, (ends[-1] - starts[1]) / (rounds - 1))


def measured_run(
    framework: str, app: Path, recording: Path | None, args: argparse.Namespace
) -> Cost:
    """Run a project, check that an audit measured every round, and return the cost."""
    meter, busy = Meter(), busy_seconds()
    meter.start()
    if framework == "flower":
        with superlink(app.with_name(f"{app.name}-home")):
            cost = run_flower(app, recording, args)
    else:
        cost = run_nvflare(app, recording, args)
    wait_for_children()
    cpu, busy = meter.seconds(), busy_seconds() - busy
    if recording is not None:
        measured = [entry.round for entry in read_round_log(recording) if entry.measured]
        if measured != list(range(1, args.rounds + 1)):
            raise SystemExit(f"of {args.rounds} rounds, only {measured} were measured")
    return cost._replace(cpu=cpu, others=busy - cpu)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that their time is counted."""
    if ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("this kernel cannot assign orphaned processes to an ancestor (prctl)")


def wait_for_children() -> None:
    """Wait until all child processes have ended."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


class Meter(threading.Thread):
    """Thread that reads the CPU seconds of all descendants of this process several times a second.

    The times that a parent gets from its ended children are insufficient, because Ray's processes
    do not wait for theirs.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._last: dict[tuple[int, str], float] = {}
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(_INTERVAL):
            self._poll()

    def seconds(self) -> float:
        """Stop the thread, and return the CPU seconds of all descendants until now."""
        self._is_over.set()
        self.join()
        return sum(self._last.values())

    def _poll(self) -> None:
        parents, used = dict[int, int](), dict[int, tuple[tuple[int, str], float]]()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # The name of the program, in brackets, may contain any characters.
                fields = stat.read_text().rpartition(")")[2].split()
                pid = int(stat.parent.name)
                parents[pid] = int(fields[1])
                ticks = int(fields[11]) + int(fields[12])
                # Process numbers are reused; number and start time identify a process.
                used[pid] = ((pid, fields[19]), ticks / os.sysconf("SC_CLK_TCK"))
        for pid, (process, spent) in used.items():
            ancestor = parents[pid]
            while ancestor not in (0, os.getpid()):
                ancestor = parents.get(ancestor, 0)
            if ancestor:
                self._last[process] = spent


def busy_seconds() -> float:
    """Return the CPU seconds of the whole machine: user (at any priority) and system time."""
    ticks = Path("/proc/stat").read_text().split()[1:4]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def row(framework: str, variant: str, costs: dict[str, list[Cost]]) -> str:
    audited = [median(column) for column in zip(*costs[variant], strict=True)]
    plain = [median(column) for column in zip(*costs[VARIANTS[0]], strict=True)]
    cells = [
        f"{a:.{digits}f} s | {a / b:.2f}"
        for a, b, digits in zip(audited, plain, (1, 2, 1), strict=False)
    ]
    return f"| {framework} | {variant} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", choices=["", *FRAMEWORKS])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--plain", type=Path)
    parser.add_argument("--audited", type=Path)
    parser.add_argument("--each", action="store_true", help="print every run to standard error")
    parser.add_argument("--clients", type=int, default=5)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    adopt_orphans()
    for framework in [args.only] if args.only else FRAMEWORKS:
        if find_spec(MODULES[framework]) is None:
            print(f"{framework} is not installed: pip install 'fedaudit[{framework}]'\n")
            continue
        print("| framework | audit | a run | x | a round | x | CPU of a run | x |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        with TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            plain = (args.plain or EXAMPLES / framework / "quickstart").absolute()
            audited = (args.audited or EXAMPLES / framework / "audited").absolute()
            apps = projects(plain, audited, folder)
            costs: dict[str, list[Cost]] = {variant: [] for variant in VARIANTS}
            for number in range(args.turns):
                for variant, app in apps.items():
                    # The recording is outside of the project, which Flower copies to its nodes.
                    path = folder / f"{app.name}-recording-{number}"
                    recording = None if variant == VARIANTS[0] else path
                    cost = measured_run(framework, app, recording, args)
                    costs[variant].append(cost)
                    if args.each:
                        print(variant, *(f"{value:.2f}" for value in cost), file=sys.stderr)
        for variant in VARIANTS:
            print(row(framework, variant, costs), flush=True)
        every = [cost for of_variant in costs.values() for cost in of_variant]
        cores = sum(cost.others for cost in every) / sum(cost.run for cost in every)
        print(f"\nother programs used {cores:.2f} cores while {framework} ran\n", flush=True)


if __name__ == "__main__":
    main()
