"""Power that an audit loses if it measures fewer rounds, fewer samples or projected updates.

    python -m benchmarks.sampling --data-dir D [--data location30] [--seeds 5] [--rounds 40]

Prints tables in Markdown, in about five minutes. Ten clients with 200 samples each train an MLP.
The members of the first client and as many unseen samples are audited, 400 in all. Every round is
measured once. Subsets of these measurements show the effect of measuring less. A *projected* update
has, for every weight matrix, only its product with a random matrix of a fixed number of columns.
The tables have the resulting error of the cosines and its effect on the attacks.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from time import process_time

import numpy as np
import torch

from fedaudit.attacks import resolve_attack
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Params, Samples
from fedaudit.datasets.catalog import load
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import auc_interval
from fedaudit.models import architecture
from fedaudit.observe.measurements import MeasuredRound, stacked
from fedaudit.observe.round import Round
from fedaudit.signals.measure import measure_round

CLIENTS, EACH = 10, 200
ATTACKS = ("loss-series", "avg-cosine", "fedmia-1", "fedmia-2")
RANKS = (8, 32, 128)


def federation(data: Samples, seed: int) -> tuple[dict[int, Samples], Samples, np.ndarray]:
    """Return the clients' samples, the audited samples of the first client, and membership."""
    order = torch.randperm(len(data), generator=seeded(seed, "deal"))
    parts = order[: CLIENTS * EACH].view(CLIENTS, EACH)
    unseen = order[CLIENTS * EACH :][:EACH]
    audited = torch.cat([parts[0], unseen])
    is_member = np.arange(len(audited)) < EACH
    return {n: data.take(part) for n, part in enumerate(parts)}, data.take(audited), is_member


def projected(update: Params, rank: int, index: int) -> Params:
    """Return the update that a recorder can restore if it stores U R for every matrix U.

    The columns of the random matrix R are drawn for every round and are the same for all clients.
    <g, U R R'> is an unbiased estimate of <g, U>.
    """

    def restored(name: str, value: torch.Tensor) -> torch.Tensor:
        if value.dim() < 2 or value.flatten(1).shape[1] <= rank:
            return value
        rng = seeded(index, "projection", name, rank)
        random = torch.randn(value.flatten(1).shape[1], rank, generator=rng) / rank**0.5
        estimate: torch.Tensor = value.flatten(1) @ random @ random.T
        return estimate.view_as(value)

    return {name: restored(name, value) for name, value in update.items()}


def with_projected(round: Round, rank: int) -> Round:
    observed = {
        client: replace(observed, update=projected(observed.update, rank, round.index))
        for client, observed in round.observed.items()
        if observed.update is not None
    }
    return replace(round, observed=observed)


def figures(
    measured: list[MeasuredRound], is_member: np.ndarray, names: tuple[str, ...] = ATTACKS
) -> dict[str, tuple[float, float]]:
    """Return the AUC of each attack, and half the width of its interval."""
    cubes = stacked(measured)
    aucs = {}
    for name in names:
        auc = auc_interval(resolve_attack(name).scores(cubes, 0).numpy(), is_member)
        aucs[name] = (auc.value, (auc.high - auc.low) / 2)
    return aucs


def subsets(
    measured: list[MeasuredRound], is_member: np.ndarray
) -> Iterator[tuple[str, list[MeasuredRound], np.ndarray]]:
    """Yield subsets of the measurements with their membership, each with its name."""
    last = measured[-1].index
    for every in (1, 2, 5, 10, 20):
        yield f"every {every}", [part for part in measured if part.index % every == 0], is_member
    yield f"round {last} alone", measured[-1:], is_member
    for samples in (200, 100):
        # Samples are in random order, so every second sample belongs to a random half.
        selected = np.arange(len(is_member)) % (len(is_member) // samples) == 0
        mask = torch.from_numpy(selected)
        yield (
            f"every 1, {samples} samples",
            [
                replace(part, signals={name: v[:, mask] for name, v in part.signals.items()})
                for part in measured
            ],
            is_member[selected],
        )


def table(title: str, rows: Mapping[str, list[dict[str, tuple[float, float]]]]) -> None:
    names = list(next(iter(rows.values()))[0])
    print(f"\n| {title} | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for row, seeds in rows.items():
        cells = [
            " (± ".join(f"{fmean(aucs[name][i] for aucs in seeds):.3f}" for i in (0, 1)) + ")"
            for name in names
        ]
        print(f"| {row} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", default="location30")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load(args.data, data_dir=args.data_dir)
    data, shape = dataset.train, tuple(dataset.train.features.shape[1:])
    net = architecture("mlp", shape=shape, classes=dataset.classes, hidden="200,100")
    signals = list({s.name: s for n in ATTACKS for s in resolve_attack(n).signals}.values())
    cosine = list(resolve_attack("fedmia-2").signals)
    rows: dict[str, list[dict[str, tuple[float, float]]]] = {}
    by_rank: dict[str, list[dict[str, tuple[float, float]]]] = {}
    errors: dict[int, list[float]] = {rank: [] for rank in RANKS}
    seconds = 0.0
    for seed in range(1, args.seeds + 1):
        clients, audited, is_member = federation(data, seed)
        measured = list[MeasuredRound]()
        low: dict[int, list[MeasuredRound]] = {rank: [] for rank in RANKS}
        how = LocalTraining(epochs=5, batch_size=32, lr=0.1)
        for round in simulate(FedAvg(net, how), clients, rounds=args.rounds, seed=seed):
            start = process_time()
            measured.append(measure_round(round, signals, audited))
            seconds += process_time() - start
            for rank in RANKS:
                low[rank].append(measure_round(with_projected(round, rank), cosine, audited))
                exact = measured[-1].signals[cosine[0].name]
                error = low[rank][-1].signals[cosine[0].name] - exact
                errors[rank].append(float(error.std() / exact.std()))
        for name, subset, truth in subsets(measured, is_member):
            rows.setdefault(name, []).append(figures(subset, truth))
        exact_aucs = figures(measured, is_member, ("avg-cosine", "fedmia-2"))
        by_rank.setdefault("exact", []).append(exact_aucs)
        for rank in RANKS:
            aucs = figures(low[rank], is_member, ("avg-cosine", "fedmia-2"))
            by_rank.setdefault(f"{rank} columns", []).append(aucs)
    print(f"{args.seeds} seeds, {args.rounds} rounds; measuring took {seconds:.0f} s of CPU")
    table("measured", rows)
    table("updates", by_rank)
    for rank in RANKS:
        ratio = fmean(errors[rank])
        print(f"\n{rank} columns: the error of a cosine is {ratio:.2f} of its standard deviation")


if __name__ == "__main__":
    main()
