"""CPU time of the loss of K clients' models on all audited samples, compared with K forward passes.

    python -m benchmarks.losses [--clients 10] [--turns 7]

Prints a table in Markdown, in about two minutes. All variants run alternately in one process on one
thread. The first turn is dropped, and the table has medians of CPU time. Data and models are
random.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.training import CASES, Case, medians, repeated
from fedaudit.core.values import Model, Samples, add_scaled, chunks
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.measure import measure_round
from fedaudit.signals.outputs import Loss

BATCH = 128
SAMPLES = {"mlp": 8192, "alexnet": 1024, "cnn": 512}
ALEXNET = Case("AlexNet, 32x32", "alexnet", (3, 32, 32), 100, 0, 0, 0)


class Cost(NamedTuple):
    """CPU seconds for all clients' models together."""

    forward: float
    usual_order: float
    ours: float


def forward(module: nn.Module, data: Samples) -> None:
    """Compute a model's outputs on all samples."""
    with torch.no_grad():
        for part in chunks(len(data), BATCH):
            module(data.features[part])


def in_order(model: Model, order: torch.memory_format) -> nn.Module:
    module = model.module()
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.weight.data = part.weight.data.to(memory_format=order)
    return module


def cost(case: Case, clients: int, turns: int) -> Cost:
    data = case.data(SAMPLES[case.model])
    models = [case.architecture.initial(seed) for seed in range(clients)]
    # As in a round, the models are close to each other.
    models = [
        Model(m.architecture, add_scaled(models[0].params, m.params, 0.01), m.buffers)
        for m in models
    ]
    names = tuple(range(clients))
    observed = {client: ObservedModels(local=model) for client, model in enumerate(models)}
    round = Round(
        index=1, observed=observed, sent={}, uploads={}, weights={}, selected=names, answered=names
    )
    orders = {"usual order": torch.contiguous_format, "channels last": torch.channels_last}
    variants: dict[str, Callable[[], object]] = {
        name: repeated(clients, partial(forward, in_order(models[0], order), data))
        for name, order in orders.items()
    }
    variants["ours"] = partial(measure_round, round, [Loss()], data)
    if len(case.shape) != 3:
        del variants["channels last"]
    seconds = medians(variants, process_time, turns)
    ours, usual = seconds.pop("ours"), seconds["usual order"]
    return Cost(min(seconds.values()), usual, ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| model | K forward passes | usual memory order | fedaudit | x forward passes |")
    print("|---|---|---|---|---|")
    for case in (*CASES, ALEXNET):
        seconds = cost(case, args.clients, args.turns)
        total = args.clients * SAMPLES[case.model]
        rates = " | ".join(f"{total / spent:,.0f}/s" for spent in seconds)
        print(f"| {case.name} | {rates} | {seconds.ours / seconds.forward:.2f} |", flush=True)


if __name__ == "__main__":
    main()
