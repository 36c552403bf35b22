"""Training and measuring on Ray beside this process alone, and from what size of job it pays.

    python -m benchmarks.ray_engine [--workers 2] [--turns 5]

Prints tables in Markdown. All variants run in turn, the first turn is dropped, and the median of
the others is shown. Wall time means little while the machine is busy with something else; beside it
stands the processor time of the main process and of all that it has started, from which follows how
much faster Ray can be on idle cores: *bound* is local / (main + workers / their number). Data are
random, of the right shapes. Linux only.
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
from fedaudit.signals.measure import measure_round, measuring_on
from fedaudit.signals.outputs import Loss
from fedaudit.signals.updates import GradientCosine, GradientDifference, GradientNorm

JOBS = (replace(CASES[2], clients=10), CASES[3])
AUDITED = 2048
SIGNALS: tuple[Signal, ...] = (Loss(), GradientCosine(), GradientNorm(), GradientDifference())


def started(cluster: RayCluster) -> float:
    """Seconds until a cluster of this machine has done its first work, and its workers are warm."""
    start = perf_counter()
    with cluster.session(operator.mul, 1) as run:
        list(run(range(cluster.count)))
    return perf_counter() - start


def an_item(cluster: RayCluster) -> float:
    """Seconds that an item costs which is no work."""
    seconds = []
    with cluster.session(operator.mul, 1) as run:
        for _ in range(5):
            start = perf_counter()
            list(run(range(200)))
            seconds.append((perf_counter() - start) / 200)
    return median(seconds[1:])


class Cost(NamedTuple):
    """Medians of seconds: wall time, and processor time here and in processes started here."""

    wall: float
    main: float
    others: float


def costs(variants: Mapping[str, Callable[[], object]], turns: int) -> dict[str, Cost]:
    """What each variant costs: all in turn, the first turn dropped."""
    found: dict[str, list[Cost]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, run in variants.items():
            before = Cost(perf_counter(), process_time(), started_seconds())
            run()
            after = Cost(perf_counter(), process_time(), started_seconds())
            found[name].append(Cost(*(b - a for a, b in zip(before, after, strict=True))))
    return {
        name: Cost(*(median(part) for part in zip(*values[1:], strict=True)))
        for name, values in found.items()
    }


def started_seconds() -> float:
    """Processor time so far of all living processes that this one has started, and theirs."""
    parent, seconds = dict[int, int](), dict[int, float]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in brackets, may hold anything.
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parent[pid] = int(fields[1])
            seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    ours, found = os.getpid(), 0.0
    for pid, spent in seconds.items():
        above = parent[pid]
        while above not in (0, ours):
            above = parent.get(above, 0)
        found += spent if above == ours else 0.0
    return found


def training(case: Case, engines: Mapping[str, Engine], turns: int) -> dict[str, Cost]:
    """What a whole round costs on each engine."""
    clients = {client: case.data(case.samples, client) for client in range(case.clients)}
    streams = {
        name: simulate(FedAvg(case.architecture, HOW), clients, rounds=turns, seed=0, engine=engine)
        for name, engine in engines.items()
    }
    found = costs({name: partial(next, stream) for name, stream in streams.items()}, turns)
    for stream in streams.values():
        list(stream)  # lets the workers go
    return found


def measurement(case: Case, cluster: RayCluster, turns: int) -> dict[str, Cost]:
    """What measuring one round costs, here on one thread and on the cluster."""
    clients = {client: case.data(64, client) for client in range(case.clients)}
    (round,) = simulate(FedAvg(case.architecture, HOW), clients, rounds=1, seed=0)
    samples = case.data(AUDITED, case.clients)
    with measuring_on(cluster, SIGNALS, samples, count=cluster.count) as measuring:
        variants: dict[str, Callable[[], object]] = {
            "local": partial(measure_round, round, SIGNALS, samples),
            "ray": partial(measuring, round),
        }
        return costs(variants, turns)


def row(what: str, found: Mapping[str, Cost], workers: int) -> str:
    local, ray = found["local"], found["ray"]
    bound = local.main / (ray.main + ray.others / workers)
    return (
        f"| {what} | {local.wall:.2f} | {ray.wall:.2f} | {local.wall / ray.wall:.2f} | "
        f"{local.main:.2f} | {ray.main:.2f} + {ray.others:.2f} | {bound:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cluster = RayCluster(workers=asked.workers)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    start = started(cluster)
    print("| seconds | wall, 1 thread | wall, Ray | x | CPU, 1 thread | CPU, Ray | bound |")
    print("|---|---|---|---|---|---|---|")
    gains = []
    for case in JOBS:
        found = training(case, {"local": LOCAL, "ray": cluster}, asked.turns)
        gains.append(found["local"].wall / found["ray"].wall)
        what = f"a round of {case.name}, {case.clients} x {case.samples}"
        print(row(what, found, asked.workers), flush=True)
    for case in JOBS:
        found = measurement(case, cluster, asked.turns)
        what = f"{AUDITED} samples, {case.name}, {case.clients} clients"
        print(row(what, found, asked.workers), flush=True)
    saved = 1 - 1 / max(gains)
    pays = f"{start / saved:.0f} s" if saved > 0 else "never"
    print("\n| start, s | an item without work, ms | pays from a job of, on one thread |")
    print("|---|---|---|")
    print(f"| {start:.1f} | {1000 * an_item(cluster):.1f} | {pays} |")
    cluster.close()


if __name__ == "__main__":
    main()
