"""Training and measuring on Ray beside this process alone, and from what size of job it pays.

    python -m benchmarks.ray_engine [--workers 2] [--turns 5]

Prints two tables in Markdown. All variants run in turn, the first turn is dropped, and the median
of the others is shown. Times are wall time, since the work is done in other processes: they mean
little while the machine is busy with something else. Data are random, of the right shapes.
"""

import argparse
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter

import torch

from benchmarks.training import CASES, HOW, Case, medians
from fedaudit.core import Samples
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL, Workers
from fedaudit.engines.ray_cluster import RayCluster
from fedaudit.fl.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.observe.round import Round
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


def training(case: Case, engines: Mapping[str, Engine], turns: int) -> dict[str, float]:
    """Seconds of a whole round on each engine."""
    clients = {client: case.data(case.samples, client) for client in range(case.clients)}
    streams = {
        name: simulate(FedAvg(case.architecture, HOW), clients, rounds=turns, seed=0, engine=engine)
        for name, engine in engines.items()
    }
    variants: dict[str, Callable[[], object]] = {
        name: partial(next, stream) for name, stream in streams.items()
    }
    seconds = medians(variants, perf_counter, turns)
    for stream in streams.values():
        list(stream)  # lets the workers go
    return seconds


def measurement(case: Case, cluster: RayCluster, turns: int) -> dict[str, float]:
    """Seconds of one round's measurement, here on one thread and on the cluster."""
    clients = {client: case.data(64, client) for client in range(case.clients)}
    (round,) = simulate(FedAvg(case.architecture, HOW), clients, rounds=1, seed=0)
    samples = case.data(AUDITED, case.clients)
    return _measured(round, samples, cluster, turns)


def _measured(round: Round, samples: Samples, cluster: RayCluster, turns: int) -> dict[str, float]:
    with measuring_on(cluster, SIGNALS, samples, count=cluster.count) as measuring:
        variants: dict[str, Callable[[], object]] = {
            "local": partial(measure_round, round, SIGNALS, samples),
            "ray": partial(measuring, round),
        }
        return medians(variants, perf_counter, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cluster = RayCluster(workers=asked.workers)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    start = started(cluster)
    engines: dict[str, Engine] = {
        "local": LOCAL,
        "processes": Workers(asked.workers),
        "ray": cluster,
    }
    print(f"| seconds | 1 thread | {asked.workers} processes | Ray, {asked.workers} workers | x |")
    print("|---|---|---|---|---|")
    ratios = []
    for case in JOBS:
        found = training(case, engines, asked.turns)
        ratios.append(found["local"] / found["ray"])
        print(
            f"| a round of {case.name}, {case.clients} x {case.samples} | {found['local']:.2f} | "
            f"{found['processes']:.2f} | {found['ray']:.2f} | {ratios[-1]:.2f} |",
            flush=True,
        )
    for case in JOBS:
        found = measurement(case, cluster, asked.turns)
        print(
            f"| measuring {AUDITED} samples, {case.name}, {case.clients} clients | "
            f"{found['local']:.2f} | | {found['ray']:.2f} | {found['local'] / found['ray']:.2f} |",
            flush=True,
        )
    saved = 1 - 1 / max(ratios)
    pays = f"{start / saved:.0f} s" if saved > 0 else "never"
    print("\n| start, s | an item without work, ms | pays from a job of, on one thread |")
    print("|---|---|---|")
    print(f"| {start:.1f} | {1000 * an_item(cluster):.1f} | {pays} |")
    cluster.close()


if __name__ == "__main__":
    main()
