"""A whole audit beside the plain loop that it watches.

    python -m benchmarks.audits [--turns 3]
    python -m benchmarks.audits --where [--turns 3]

Prints a table in Markdown. The loop is what people write: a shuffling ``DataLoader``,
``torch.optim.SGD`` and the mean of state dicts, for ten clients with 1,000 samples of MNIST's
shape, ten rounds of two epochs. The audit trains the same federation, measures every round, runs
the default attacks with all controls and writes record and report. Each is a process of its own
with one thread, imports and all; CPU seconds, both in turn, the first turn dropped, medians.

``--where`` says where an audit's CPU seconds go: of these two, and of the smallest study (digits,
three clients, ten rounds, FedMIA-II, a report). Every 2 ms of CPU time the process looks at what it
is doing, and gives the time since the last look to the outermost part that it is in; loading code
is a part of its own, wherever it happens.
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
    """Federated averaging as it is written without fedaudit."""
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
    """The same federation, audited."""
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
    """The smallest study that says anything: digits, three clients, one attack."""
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
"""By where code stands; the outermost that is running counts."""


class Watch:
    """CPU seconds by part, looked up again and again while a block runs."""

    def __init__(self) -> None:
        # Python itself and torch, which were loaded before.
        self.seconds = {"loading Python and torch": process_time()}
        self._last = process_time()

    def __enter__(self) -> "Watch":
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)
        return self

    def __exit__(self, *ended: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._look(0, None)

    def _look(self, number: int, frame: FrameType | None) -> None:
        # A call into a library is looked at once it is over, with all the time that it took.
        now, part = process_time(), "everything else"
        while frame is not None:
            place = frame.f_code.co_filename
            if place.startswith("<frozen importlib"):
                part = "loading other code"
                break
            part = next((PARTS[key] for key in PARTS if key in place), part)
            frame = frame.f_back
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


def parts(name: str, folder: Path) -> dict[str, float]:
    """CPU seconds of an audit in a process of its own, by part."""
    command = [sys.executable, "-m", "benchmarks.audits", "--one", "parts", name, str(folder)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def where(turns: int) -> None:
    print("| audit | CPU | most of it | then | then |")
    print("|---|---|---|---|---|")
    for name in ("smallest", *MODELS):
        found = []
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as folder:
                found.append(parts(name, Path(folder)))
        middle = {
            part: median(each.get(part, 0.0) for each in found) for part in set().union(*found)
        }
        whole = median(sum(each.values()) for each in found)
        largest = sorted(middle.items(), key=lambda one: -one[1])[:3]
        cells = [f"{part}: {spent:.1f} s ({spent / whole:.0%})" for part, spent in largest]
        print(f"| {name} | {whole:.1f} s | {' | '.join(cells)} |", flush=True)


def seconds(kind: str, name: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.audits", "--one", kind, name, folder]
        started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(started.pid, 0)
    if status:
        raise SystemExit(f"{kind} of {name} failed")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--where", action="store_true")
    parser.add_argument("--one", nargs=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.one:
        kind, name, folder = given.one
        if kind == "loop":
            loop(name)
        elif kind == "parts":
            with Watch() as watch:
                smallest(Path(folder)) if name == "smallest" else audit(name, Path(folder))
            print(json.dumps(watch.seconds))
        else:
            audit(name, Path(folder))
        return
    print(f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}\n")
    if given.where:
        where(given.turns)
        return
    print("| model | plain loop | whole audit | ratio |")
    print("|---|---|---|---|")
    for name in MODELS:
        turns = [(seconds("loop", name), seconds("audit", name)) for _ in range(given.turns)]
        plain, whole = (median(one) for one in zip(*turns[1:], strict=True))
        print(f"| {name} | {plain:.1f} s | {whole:.1f} s | {whole / plain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
