"""Wall time of distilling a student of each FedMD client, compared with a loop over the clients.

    python -m benchmarks.students [--clients 10] [--turns 3]

Prints a table in Markdown, in about two minutes. The usual loop goes over the clients with autograd
and torch's Adam, on one thread and on all threads. fedaudit trains students in parallel, one per
core. Variants run alternately in one process. The first turn is dropped, and the table has medians.
Since times are wall time, no other program should run. Outputs are random.
"""

import argparse
import os
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.training import CASES, medians
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Model, chunks
from fedaudit.fl.algorithms.fedmd import Distillation, distill

SAMPLES = 1024
HOW = Distillation(epochs=1, batch_size=64, lr=1e-3)


def one_after_another(start: Model, x: Tensor, outputs: dict[int, Tensor], threads: int) -> None:
    """Distil the students with the usual loop, as in the published code."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for targets in outputs.values():
        module = start.module().train()
        adam = torch.optim.Adam(module.parameters(), lr=HOW.lr)
        for part in chunks(len(x), HOW.batch_size):
            adam.zero_grad()
            loss = functional.l1_loss(module(x[part]), targets[part])
            torch.autograd.backward(loss)
            adam.step()
    torch.set_num_threads(before)


def side_by_side(start: Model, x: Tensor, outputs: dict[int, Tensor]) -> None:
    distill(start, x, outputs, HOW, rng=seeded(1, "order"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    cores = os.cpu_count() or 1
    print(f"torch {torch.__version__}, {cores} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| student | usual, one thread | all threads | fedaudit | x one thread | x all threads |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        start = case.architecture.initial(1)
        rng = seeded(1, "benchmark")
        x = torch.randn(SAMPLES, *case.shape, generator=rng)
        outputs = {
            client: torch.randn(SAMPLES, case.classes, generator=rng)
            for client in range(args.clients)
        }
        seconds = medians(
            {
                "one": partial(one_after_another, start, x, outputs, 1),
                "all": partial(one_after_another, start, x, outputs, cores),
                "ours": partial(side_by_side, start, x, outputs),
            },
            perf_counter,
            args.turns,
        )
        on_one, on_all, ours = (seconds[name] for name in ("one", "all", "ours"))
        print(
            f"| {case.name} | {on_one:.2f} s | {on_all:.2f} s | {ours:.2f} s | "
            f"{on_one / ours:.2f} | {on_all / ours:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
