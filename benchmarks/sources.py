"""CPU time of source inference, compared with K plain forward passes over the attacked samples.

    python -m benchmarks.sources [--rounds 20] [--each 100]

Prints a table in Markdown, in about two minutes, for SIA's CNN, ten clients, a hundred samples of
each and twenty rounds. Forward passes and signals alternate, round by round, on one thread. Times
are CPU time over all rounds. The ratio is the median over rounds. Data and models are random.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from statistics import median
from time import process_time

import torch

from benchmarks.losses import forward, in_order
from benchmarks.training import CASES, Case
from fedaudit.attacks import resolve_attack
from fedaudit.core.values import Model, Samples, add_scaled
from fedaudit.observe.measurements import MeasuredRound, stacked
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.measure import measure_round

CLIENTS = 10
ATTACKS = ("sia", "sia-mean", "sia-product", "sia-likelihood")


def timed(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return process_time() - start


def models_of(case: Case, index: int) -> list[Model]:
    """Return the clients' models of a round: close to each other, and different in every round."""
    first, *rest = (case.architecture.initial(100 * index + client) for client in range(CLIENTS))
    near = [
        Model(m.architecture, add_scaled(first.params, m.params, 0.01), m.buffers) for m in rest
    ]
    return [first, *near]


def passes(models: list[Model], data: Samples) -> None:
    for model in models:
        forward(in_order(model, torch.channels_last), data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--each", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    (case,) = (case for case in CASES if case.name.startswith("SIA"))
    data, names = case.data(CLIENTS * args.each), tuple(range(CLIENTS))
    signals = list({s.name: s for name in ATTACKS for s in resolve_attack(name).signals}.values())
    floors, ours, measured = list[float](), list[float](), list[MeasuredRound]()
    for index in range(args.rounds + 1):
        models = models_of(case, index)
        observed = {client: ObservedModels(local=model) for client, model in enumerate(models)}
        round = Round(
            index=index,
            observed=observed,
            sent={},
            uploads={},
            weights={},
            selected=names,
            answered=names,
        )
        floors.append(timed(partial(passes, models, data)))
        start = process_time()
        measured.append(measure_round(round, signals, data))
        ours.append(process_time() - start)
    # The first round warms up.
    floors, ours, cubes = floors[1:], ours[1:], stacked(measured[1:])
    sizes = dict.fromkeys(names, 1_000)
    answers = timed(lambda: [resolve_attack(name).posterior(cubes, sizes) for name in ATTACKS])
    ratio = median(spent / floor for spent, floor in zip(ours, floors, strict=True))
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| model | samples x clients x rounds | forward passes | signals | x | all attacks |")
    print("|---|---|---|---|---|---|")
    amount = f"{len(data)} x {CLIENTS} x {args.rounds}"
    print(
        f"| {case.name} | {amount} | {sum(floors):.1f} s | {sum(ours):.1f} s | {ratio:.3f} | "
        f"{answers:.2f} s |"
    )


if __name__ == "__main__":
    main()
