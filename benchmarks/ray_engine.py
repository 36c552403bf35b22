"""Time of training and measuring on Ray and in one process, and the job size from which Ray pays.

    python -m benchmarks.ray_engine [--workers 2] [--turns 5]

Prints tables in Markdown. All variants alternate, the first turn is dropped, and the tables have
medians. Wall time means little if other programs use the machine. The tables therefore also have
the CPU time of the main process and of the processes that it started. They determine how much
faster Ray can be on idle cores: *bound* is local / (main + workers / number of workers). Data are
random. Linux only.
"""

import argparse
import operator
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import torch

from benchmarks.training import CASES, HOW, Case
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL
from fedaudit.engines.ray_cluster import RayCluster
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_on_engine, measure_round
from fedaudit.signals.outputs import Loss
from fedaudit.signals.updates import GradientCosine, GradientDifference, GradientNorm

JOBS = (replace(CASES[2], clients=10), CASES[3])
AUDITED = 2048
SIGNALS: tuple[Signal, ...] = (Loss(), GradientCosine(), GradientNorm(), GradientDifference())


def started(cluster: RayCluster) -> float:
    """Return the seconds until a cluster on this machine has started and run its first tasks."""
    start = perf_counter()
    with cluster.session(operator.mul, 1) as run:
        list(run(range(cluster.count)))
    return perf_counter() - start


def an_item(cluster: RayCluster) -> float:
    """Return the seconds per item of a task without any work."""
    seconds = []
    with cluster.session(operator.mul, 1) as run:
        for _ in range(5):
            start = perf_counter()
            list(run(range(200)))
            seconds.append((perf_counter() - start) / 200)
    return median(seconds[1:])


class Cost(NamedTuple):
    """Median wall seconds, and CPU seconds of the main process and of its descendants."""

    wall: float
    main: float
    others: float


def costs(variants: Mapping[str, Callable[[], object]], turns: int) -> dict[str, Cost]:
    """Return the cost of each variant; variants alternate, and the first turn is dropped."""
    by_variant: dict[str, list[Cost]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, run in variants.items():
            before = Cost(perf_counter(), process_time(), started_seconds())
            run()
            after = Cost(perf_counter(), process_time(), started_seconds())
            by_variant[name].append(Cost(*(b - a for a, b in zip(before, after, strict=True))))
    return {
        name: Cost(*(median(column) for column in zip(*values[1:], strict=True)))
        for name, values in by_variant.items()
    }


def started_seconds() -> float:
    """Return the CPU time of all running descendants of this process."""
    parent, seconds = dict[int, int](), dict[int, float]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name of the program, in brackets, may contain any characters.
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parent[pid] = int(fields[1])
            seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    this_process, total = os.getpid(), 0.0
    for pid, spent in seconds.items():
        ancestor = parent[pid]
        while ancestor not in (0, this_process):
            ancestor = parent.get(ancestor, 0)
        total += spent if ancestor == this_process else 0.0
    return total


def training(case: Case, engines: Mapping[str, Engine], turns: int) -> dict[str, Cost]:
    """Return the cost of a whole round on each engine."""
    clients = {client: case.data(case.samples, client) for client in range(case.clients)}
    streams = {
        name: simulate(FedAvg(case.architecture, HOW), clients, rounds=turns, seed=0, engine=engine)
        for name, engine in engines.items()
    }
    by_engine = costs({name: partial(next, stream) for name, stream in streams.items()}, turns)
    for stream in streams.values():
        list(stream)  # ends the stream, which releases the workers
    return by_engine


def measurement(case: Case, cluster: RayCluster, turns: int) -> dict[str, Cost]:
    """Return the cost of measuring one round, on one thread here and on the cluster."""
    clients = {client: case.data(64, client) for client in range(case.clients)}
    (round,) = simulate(FedAvg(case.architecture, HOW), clients, rounds=1, seed=0)
    samples = case.data(AUDITED, case.clients)
    with measure_on_engine(cluster, SIGNALS, samples, count=cluster.count) as measuring:
        variants: dict[str, Callable[[], object]] = {
            "local": partial(measure_round, round, SIGNALS, samples),
            "ray": partial(measuring, round),
        }
        return costs(variants, turns)


def row(what: str, cost: Mapping[str, Cost], workers: int) -> str:
    local, ray = cost["local"], cost["ray"]
    bound = local.main / (ray.main + ray.others / workers)
    return (
        f"| {what} | {local.wall:.2f} | {ray.wall:.2f} | {local.wall / ray.wall:.2f} | "
        f"{local.main:.2f} | {ray.main:.2f} + {ray.others:.2f} | {bound:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cluster = RayCluster(workers=args.workers)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    start = started(cluster)
    print("| seconds | wall, 1 thread | wall, Ray | x | CPU, 1 thread | CPU, Ray | bound |")
    print("|---|---|---|---|---|---|---|")
    gains = []
    for case in JOBS:
        cost = training(case, {"local": LOCAL, "ray": cluster}, args.turns)
        gains.append(cost["local"].wall / cost["ray"].wall)
        what = f"a round of {case.name}, {case.clients} x {case.samples}"
        print(row(what, cost, args.workers), flush=True)
    for case in JOBS:
        cost = measurement(case, cluster, args.turns)
        what = f"{AUDITED} samples, {case.name}, {case.clients} clients"
        print(row(what, cost, args.workers), flush=True)
    saved = 1 - 1 / max(gains)
    pays = f"{start / saved:.0f} s" if saved > 0 else "never"
    print("\n| start, s | an item without work, ms | pays from a job of, on one thread |")
    print("|---|---|---|")
    print(f"| {start:.1f} | {1000 * an_item(cluster):.1f} | {pays} |")
    cluster.close()


if __name__ == "__main__":
    main()
