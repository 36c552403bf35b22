"""Memory and time of an audit, by the number of clients.

    python -m benchmarks.scale [--clients 10 100 1000 10000] [--model mlp cnn] [--samples 60000]
    python -m benchmarks.scale --everyone [--clients 10 100 1000] [--rounds 1] [--workers 1]

Prints a table in Markdown. Random samples of MNIST's shape are divided among all clients. In each
of five measured rounds of one epoch, ten clients (or one per cent of a large federation) take part.
The client that takes part most often is attacked by four attacks, with all controls and the report.
With ``--everyone``, all clients take part in every round. Every row is measured in a separate
process: its peak memory, its CPU seconds, and the size of its record.
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


def participation(clients: int, args: argparse.Namespace) -> float:
    return 1.0 if args.everyone or clients <= 10 else max(0.01, 10 / clients)


def audit(clients: int, args: argparse.Namespace) -> None:
    model, samples, rounds = args.model[0], args.samples, args.rounds
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(samples) % CLASSES
    x = torch.randn(samples, 1, 28, 28, generator=rng)
    fraction = participation(clients, args)
    seed = seed_for(1, "federation")
    rounds_of = Counter(
        client
        for index in range(1, rounds + 1)
        for client in draw_cohort(list(range(clients)), fraction, seed, index)
    )
    target = rounds_of.most_common(1)[0][0]
    nets = {
        "mlp": fa.models.MLP(hidden="200,100"),
        "cnn": fa.models.CNN(channels="16,32", kernel=5, hidden="128"),
    }
    federation = fa.Federation(
        fa.datasets.samples(x, y, test_share=0.02),
        clients=clients,
        model=nets[model],
        algorithm=fa.algorithms.FedAvg(rounds=rounds, participation=fraction, lr=0.1),
    )
    plan = fa.Audit(targets=(target,), samples=max(4, min(300, samples // clients)), every=1)
    fa.audit(federation, attacks=ATTACKS, audit=plan, workers=args.workers, out=args.out)


def row(clients: int, model: str, args: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = ["--one", str(clients), "--model", model, "--samples", str(args.samples)]
        command += ["--rounds", str(args.rounds), "--workers", str(args.workers)]
        command += ["--everyone"] * args.everyone
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale", *command, "--out", folder],
            stdout=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            return f"| {model} | {clients:,} | failed ({status}) | | | |"
        record = next(Path(folder).rglob("record.json")).stat().st_size
    seconds = usage.ru_utime + usage.ru_stime
    fraction = participation(clients, args)
    return (
        f"| {model} | {clients:,} | {round(fraction * clients)} | "
        f"{usage.ru_maxrss / 2**20:.2f} GB | {seconds:.0f} s | {record / 1e3:.0f} kB |"
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
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.one:
        audit(args.one, args)
        return
    print(f"torch {torch.__version__}, one thread, {args.samples:,} samples\n")
    print("| model | clients | a round | peak memory | CPU | record |")
    print("|---|---|---|---|---|---|")
    for model in args.model:
        for clients in args.clients:
            print(row(clients, model, args), flush=True)


if __name__ == "__main__":
    main()
