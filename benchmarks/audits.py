"""CPU time of a whole audit, compared with a plain training loop of the same federation.

    python -m benchmarks.audits [--turns 3]
    python -m benchmarks.audits --where [--turns 3]

Prints a table in Markdown. The plain loop is typical code: a shuffling ``DataLoader``,
``torch.optim.SGD`` and the mean of state dicts, for ten clients with 1,000 samples of MNIST's
shape and ten rounds of two epochs. The audit trains the same federation, measures every round, runs
the default attacks with all controls, and writes record and report. Each variant runs in a separate
process with one thread, including imports. Variants alternate. The first turn is dropped, and the
table has medians of CPU seconds.

``--where`` profiles these two audits and the smallest study (digits, three clients, ten rounds,
FedMIA-II, a report). After every 2 ms of CPU time, the process looks up which part of the program
is running. The time since the last look is attributed to the outermost part. Importing code is a
separate part.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time
from types import FrameType

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CLIENTS, EACH, TESTED, ROUNDS, EPOCHS, BATCH, CLASSES = 10, 1000, 2000, 10, 2, 32, 10
MODELS = ("mlp", "cnn")


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 28, 28, generator=rng), torch.arange(count) % CLASSES


def network(name: str) -> nn.Module:
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 200),
            nn.ReLU(),
            nn.Linear(200, 100),
            nn.ReLU(),
            nn.Linear(100, CLASSES),
        )
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def loop(name: str) -> None:
    """Train by federated averaging without fedaudit."""
    clients = [TensorDataset(*data(EACH, client)) for client in range(CLIENTS)]
    server = network(name)
    for _ in range(ROUNDS):
        states = []
        for samples in clients:
            model = network(name)
            model.load_state_dict(server.state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for _ in range(EPOCHS):
                for x, y in DataLoader(samples, batch_size=BATCH, shuffle=True):
                    optimizer.zero_grad()
                    torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
                    optimizer.step()
            states.append(model.state_dict())
        mean = {n: torch.stack([s[n] for s in states]).mean(0) for n in states[0]}
        server.load_state_dict(mean)


def audit(name: str, folder: Path) -> None:
    """Train and audit the same federation, and write its report."""
    import fedaudit as fa

    federation = fa.Federation(
        fa.datasets.samples(*data(CLIENTS * EACH + TESTED, 1), *data(TESTED, 2)),
        clients=fa.partitions.IID(CLIENTS, samples_per_client=EACH),
        model=fa.models.MLP(hidden="200,100")
        if name == "mlp"
        else fa.models.CNN(channels="16,32", kernel=5, hidden="128"),
        algorithm=fa.algorithms.FedAvg(rounds=ROUNDS, epochs=EPOCHS, batch_size=BATCH, lr=0.05),
    )
    fa.audit(federation, audit=fa.Audit(every=1), workers=1, out=folder).save_report()


def smallest(folder: Path) -> None:
    """Run the smallest useful study: digits, three clients, one attack."""
    import fedaudit as fa

    federation = fa.Federation(
        fa.datasets.digits(),
        clients=fa.partitions.IID(3),
        model=fa.models.MLP(hidden="64"),
        algorithm=fa.algorithms.FedAvg(rounds=10, epochs=2, batch_size=32, lr=0.1),
    )
    plan = fa.Audit(samples=450, background=0, every=1)
    fa.audit(federation, attacks=["fedmia-2"], audit=plan, workers=1, out=folder).save_report()


PARTS = {
    "fedaudit/report/": "report",
    "fedaudit/evaluation/controls.py": "controls",
    "fedaudit/evaluation/accuracy.py": "accuracy of the models",
    "fedaudit/evaluation/": "attacks and figures",
    "fedaudit/signals/": "measuring",
    "fedaudit/fl/": "training",
}
"""Names of the program's parts, by file path. The outermost frame decides."""


class Profile:
    """Sampling profiler of the CPU seconds of each part while a ``with`` block runs."""

    def __init__(self) -> None:
        # Python and torch were imported before.
        self.seconds = {"loading Python and torch": process_time()}
        self._last = process_time()

    def __enter__(self) -> "Profile":
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)
        return self

    def __exit__(self, *ended: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._look(0, None)

    def _look(self, number: int, frame: FrameType | None) -> None:
        # Python handles the signal after a call into a library, so all of its time is attributed.
        now, part = process_time(), "everything else"
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith("<frozen importlib"):
                part = "loading other code"
                break
            part = next((PARTS[key] for key in PARTS if key in path), part)
            frame = frame.f_back
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


def parts(name: str, folder: Path) -> dict[str, float]:
    """Return the CPU seconds of each part of an audit in a separate process."""
    command = [sys.executable, "-m", "benchmarks.audits", "--one", "parts", name, str(folder)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    by_part: dict[str, float] = json.loads(output.splitlines()[-1])
    return by_part


def profile(turns: int) -> None:
    print("| audit | CPU | largest part | second | third |")
    print("|---|---|---|---|---|")
    for name in ("smallest", *MODELS):
        runs = []
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(parts(name, Path(folder)))
        by_part = {part: median(run.get(part, 0.0) for run in runs) for part in set().union(*runs)}
        total = median(sum(run.values()) for run in runs)
        largest = sorted(by_part.items(), key=lambda item: -item[1])[:3]
        cells = [f"{part}: {spent:.1f} s ({spent / total:.0%})" for part, spent in largest]
        print(f"| {name} | {total:.1f} s | {' | '.join(cells)} |", flush=True)


def seconds(kind: str, name: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.audits", "--one", kind, name, folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{kind} of {name} failed")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--where", action="store_true")
    parser.add_argument("--one", nargs=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.one:
        kind, name, folder = args.one
        if kind == "loop":
            loop(name)
        elif kind == "parts":
            with Profile() as profiled:
                smallest(Path(folder)) if name == "smallest" else audit(name, Path(folder))
            print(json.dumps(profiled.seconds))
        else:
            audit(name, Path(folder))
        return
    print(f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}\n")
    if args.where:
        profile(args.turns)
        return
    print("| model | plain loop | whole audit | ratio |")
    print("|---|---|---|---|")
    for name in MODELS:
        turns = [(seconds("loop", name), seconds("audit", name)) for _ in range(args.turns)]
        plain, audited = (median(column) for column in zip(*turns[1:], strict=True))
        print(f"| {name} | {plain:.1f} s | {audited:.1f} s | {audited / plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
