"""Memory and time of an audit by the number of clients.

    python -m benchmarks.scale [--clients 10 100 1000 10000] [--model mlp cnn] [--samples 60000]
    python -m benchmarks.scale --everyone [--clients 10 100 1000] [--rounds 1] [--workers 1]

Prints a table in Markdown. Random samples of MNIST's shape are dealt to all clients; ten of them,
or a hundredth of a large federation, take part in each of five measured rounds of one epoch. One
that is asked most often is attacked by four attacks, with all controls and the report. With
``--everyone`` all clients take part in every round. Every row is a process of its own: peak memory
and CPU seconds of all of it, and the size of its record.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

import fedaudit as fa
from fedaudit.core.seeds import seed_for
from fedaudit.fl.algorithms.base import draw_cohort

ROUNDS, CLASSES = 5, 10
ATTACKS = ("loss-series", "grad-cosine", "fedmia-1", "fedmia-2")


def participation(clients: int, given: argparse.Namespace) -> float:
    return 1.0 if given.everyone or clients <= 10 else max(0.01, 10 / clients)


def audit(clients: int, given: argparse.Namespace) -> None:
    model, samples, rounds = given.model[0], given.samples, given.rounds
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(samples) % CLASSES
    x = torch.randn(samples, 1, 28, 28, generator=rng)
    share = participation(clients, given)
    seed = seed_for(1, "federation")
    asked = Counter(
        client
        for index in range(1, rounds + 1)
        for client in draw_cohort(list(range(clients)), share, seed, index)
    )
    target = asked.most_common(1)[0][0]
    nets = {
        "mlp": fa.models.MLP(hidden="200,100"),
        "cnn": fa.models.CNN(channels="16,32", kernel=5, hidden="128"),
    }
    federation = fa.Federation(
        fa.datasets.samples(x, y, test_share=0.02),
        clients=clients,
        model=nets[model],
        algorithm=fa.algorithms.FedAvg(rounds=rounds, participation=share, lr=0.1),
    )
    how = fa.Audit(targets=(target,), samples=max(4, min(300, samples // clients)), every=1)
    fa.audit(federation, attacks=ATTACKS, audit=how, workers=given.workers, out=given.out)


def row(clients: int, model: str, given: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = ["--one", str(clients), "--model", model, "--samples", str(given.samples)]
        command += ["--rounds", str(given.rounds), "--workers", str(given.workers)]
        command += ["--everyone"] * given.everyone
        started = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale", *command, "--out", folder],
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(started.pid, 0)
        if status:
            return f"| {model} | {clients:,} | it failed ({status}) | | | |"
        record = next(Path(folder).rglob("record.json")).stat().st_size
    seconds = used.ru_utime + used.ru_stime
    share = participation(clients, given)
    return (
        f"| {model} | {clients:,} | {round(share * clients)} | {used.ru_maxrss / 2**20:.2f} GB | "
        f"{seconds:.0f} s | {record / 1e3:.0f} kB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--model", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--everyone", action="store_true")
    parser.add_argument("--one", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.one:
        audit(given.one, given)
        return
    print(f"torch {torch.__version__}, one thread, {given.samples:,} samples\n")
    print("| model | clients | a round | peak memory | CPU | record |")
    print("|---|---|---|---|---|---|")
    for model in given.model:
        for clients in given.clients:
            print(row(clients, model, given), flush=True)


if __name__ == "__main__":
    main()
