"""CPU time of training planted neurons, compared with the usual loop, and of playing games.

    python -m benchmarks.games [--turns 3] [--games 200]

Prints tables in Markdown, in about three minutes. Training uses 64 rows, of which 8 are noisy
copies of the target, 1,000 hidden units and 300 epochs. The usual loop is autograd with torch's
Adam (or SGD with momentum), one neuron at a time. The *floor* has only the unavoidable matrix
products: rows times weights at the beginning and at the end, and M x M times M x r in each epoch.
Playing uses batches of 100 samples with 512 features of 10 bits each, which every game randomises
again (BitRand), and one trained neuron. Times are CPU seconds on one thread. Variants alternate,
the first turn is dropped, and the tables have medians.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from time import process_time

import torch
from torch import Tensor, nn

from benchmarks.training import medians
from fedaudit.attacks.ami import GameRules, NeuronTraining
from fedaudit.attacks.ami.game import Contest, Randomisers, SampleSources
from fedaudit.attacks.ami.train import LabelledRows, Standardisation, train_neurons
from fedaudit.core.seeds import seeded
from fedaudit.defenses.ldp.bit_mechanisms import BitRandPublished

ROWS, COPIES = 64, 8
HOW = NeuronTraining(hidden=1000, epochs=300)


def rows(features: int) -> Tensor:
    """Return the training rows of a game: noisy copies of a target, and other samples."""
    rng = seeded(1, "rows", features)
    target = torch.randn(1, features, generator=rng)
    noise = torch.randn(COPIES, features, generator=rng)
    others = torch.randn(ROWS - COPIES, features, generator=rng)
    return torch.cat([target + noise, others])[None]


def ours(data: Tensor) -> None:
    is_target = (torch.arange(ROWS) < COPIES)[None]
    standard = Standardisation.of(data[0])
    train_neurons(
        LabelledRows(data, is_target), HOW, standardise=standard, rng=seeded(1, "weights")
    )


def usual(data: Tensor, optimizer: Callable[..., torch.optim.Optimizer], epochs: int) -> None:
    """Train one neuron as in the published code: both layers by autograd, all rows in each step."""
    net = nn.Sequential(nn.Linear(data.shape[2], HOW.hidden), nn.ReLU(), nn.Linear(HOW.hidden, 1))
    step = optimizer(net.parameters())
    truth = (torch.arange(ROWS) < COPIES).float()
    for _ in range(epochs):
        step.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(net(data[0])[:, 0], truth)
        torch.autograd.backward(loss)
        step.step()


def floor(data: Tensor) -> None:
    """Compute only the matrix products that exact training needs."""
    first, inner = torch.rand(HOW.hidden, data.shape[2]), torch.rand(ROWS, HOW.hidden)
    gram = data[0] @ data[0].T
    data[0] @ first.T
    for _ in range(HOW.epochs):
        gram @ inner
    inner.T @ data[0]


def training(turns: int) -> None:
    print("| features | Adam | fused Adam | SGD | fedaudit | games/s | x Adam | floor | / floor |")
    print("|---|---|---|---|---|---|---|---|---|")
    timed_epochs = 30  # the usual loops are timed over a tenth of the epochs
    adam, sgd = partial(torch.optim.Adam, lr=1e-4), partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    for features in (512, 5120):
        data = rows(features)
        seconds = medians(
            {
                "adam": partial(usual, data, adam, timed_epochs),
                "fused": partial(usual, data, partial(adam, fused=True), timed_epochs),
                "sgd": partial(usual, data, sgd, timed_epochs),
                "ours": partial(ours, data),
                "floor": partial(floor, data),
            },
            process_time,
            turns,
        )
        factor = HOW.epochs / timed_epochs
        by_adam, by_fused, by_sgd = (seconds[name] * factor for name in ("adam", "fused", "sgd"))
        by_us, least = seconds["ours"], seconds["floor"]
        print(
            f"| {features} | {by_adam:.2f} s | {by_fused:.2f} s | {by_sgd:.2f} s | {by_us:.3f} s | "
            f"{1 / by_us:.1f} | {by_adam / by_us:.1f} | {least:.3f} s | {by_us / least:.2f} |",
            flush=True,
        )


def playing(turns: int, games: int) -> None:
    rng = seeded(1, "pools")
    pools = SampleSources(*(torch.randn(2000, 512, generator=rng).abs() for _ in range(2)))
    noise = BitRandPublished(5.0)
    rules = GameRules(background=56, training=NeuronTraining(hidden=1000, epochs=50))
    contest = Contest(pools, rules, seed=1, randomisers=Randomisers(noise, noise))
    contest.play_some({0: 1})  # warm-up: computes the standardisation of samples once
    seconds = medians(
        {
            "play": lambda: contest.play_some({0: games}),
            "train": lambda: contest.play_some({0: 1}),
            "noise": lambda: [noise(pools.clients[:100], rng) for _ in range(games)],
        },
        process_time,
        turns,
    )
    each = (seconds["play"] - seconds["train"]) / games
    print("\n| games/s | 10,000 games | of which noise |")
    print("|---|---|---|")
    of_noise = seconds["noise"] / games / each
    print(f"| {1 / each:.0f} | {10_000 * each:.0f} s | {of_noise:.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--games", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}\n")
    training(args.turns)
    playing(args.turns, args.games)


if __name__ == "__main__":
    main()
