"""What planted neurons cost to train, beside the usual loop, and what games cost to play.

    python -m benchmarks.games [--turns 3] [--games 200]

Prints tables in Markdown, in some three minutes. Training: 64 rows, 8 of them noisy copies of the
target, 1,000 hidden units, 300 epochs; the usual way is autograd with torch's Adam (or SGD with
momentum) and one neuron after another. The floor is the products alone: rows by weights twice at
either end, and M x M by M x r in each epoch. Playing: batches of 100 records of 512 features of 10
bits each, randomised anew for every game (BitRand), against one trained neuron. Times are CPU
seconds on one thread; variants run in turn, the first turn is dropped, medians are shown.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from time import process_time

import torch
from torch import Tensor, nn

from benchmarks.training import medians
from fedaudit.attacks.ami import NeuronTraining, Rules
from fedaudit.attacks.ami.game import Contest, Pools, Randomisers
from fedaudit.attacks.ami.train import Labelled, Standardisation, train_neurons
from fedaudit.core.seeds import seeded
from fedaudit.defenses.ldp.bit_mechanisms import BitRandPublished

ROWS, COPIES = 64, 8
HOW = NeuronTraining(hidden=1000, epochs=300)


def rows(features: int) -> Tensor:
    """A game's rows: noisy copies of a target, and other records."""
    rng = seeded(1, "rows", features)
    target = torch.randn(1, features, generator=rng)
    noise = torch.randn(COPIES, features, generator=rng)
    others = torch.randn(ROWS - COPIES, features, generator=rng)
    return torch.cat([target + noise, others])[None]


def ours(data: Tensor) -> None:
    is_target = (torch.arange(ROWS) < COPIES)[None]
    standard = Standardisation.of(data[0])
    train_neurons(Labelled(data, is_target), HOW, standardise=standard, rng=seeded(1, "weights"))


def usual(data: Tensor, optimizer: Callable[..., torch.optim.Optimizer], epochs: int) -> None:
    """As in the published code: both layers by autograd, all rows in each step."""
    net = nn.Sequential(nn.Linear(data.shape[2], HOW.hidden), nn.ReLU(), nn.Linear(HOW.hidden, 1))
    step = optimizer(net.parameters())
    truth = (torch.arange(ROWS) < COPIES).float()
    for _ in range(epochs):
        step.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(net(data[0])[:, 0], truth)
        torch.autograd.backward(loss)
        step.step()


def floor(data: Tensor) -> None:
    """The products that the exact form cannot do without."""
    first, inner = torch.rand(HOW.hidden, data.shape[2]), torch.rand(ROWS, HOW.hidden)
    gram = data[0] @ data[0].T
    data[0] @ first.T
    for _ in range(HOW.epochs):
        gram @ inner
    inner.T @ data[0]


def training(turns: int) -> None:
    print("| features | Adam | fused Adam | SGD | fedaudit | games/s | x Adam | floor | / floor |")
    print("|---|---|---|---|---|---|---|---|---|")
    part = 30  # the usual loops are timed over a tenth of the epochs
    adam, sgd = partial(torch.optim.Adam, lr=1e-4), partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    for features in (512, 5120):
        data = rows(features)
        seconds = medians(
            {
                "adam": partial(usual, data, adam, part),
                "fused": partial(usual, data, partial(adam, fused=True), part),
                "sgd": partial(usual, data, sgd, part),
                "ours": partial(ours, data),
                "floor": partial(floor, data),
            },
            process_time,
            turns,
        )
        whole = HOW.epochs / part
        slow = [seconds[name] * whole for name in ("adam", "fused", "sgd")]
        fast, least = seconds["ours"], seconds["floor"]
        print(
            f"| {features} | {slow[0]:.2f} s | {slow[1]:.2f} s | {slow[2]:.2f} s | {fast:.3f} s | "
            f"{1 / fast:.1f} | {slow[0] / fast:.1f} | {least:.3f} s | {fast / least:.2f} |",
            flush=True,
        )


def playing(turns: int, games: int) -> None:
    rng = seeded(1, "pools")
    pools = Pools(*(torch.randn(2000, 512, generator=rng).abs() for _ in range(2)))
    noise = BitRandPublished(5.0)
    rules = Rules(background=56, training=NeuronTraining(hidden=1000, epochs=50))
    contest = Contest(pools, rules, seed=1, randomisers=Randomisers(noise, noise))
    contest.play_some({0: 1})  # the standard of records is worked out once
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
    share = seconds["noise"] / games / each
    print(f"| {1 / each:.0f} | {10_000 * each:.0f} s | {share:.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--games", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}\n")
    training(given.turns)
    playing(given.turns, given.games)


if __name__ == "__main__":
    main()
