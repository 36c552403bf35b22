"""Time that a guard adds to a round of its client.

    python -m benchmarks.guarding [--turns 5] [--smaller 1] [--epochs 1]

Prints a table in Markdown. A round is local training of a CNN with 2.2 million parameters on 3,000
random 32 x 32 pictures, in batches of 32 on one thread, followed by the check of the upload with
540 audited samples. The variant "prepared" calls ``Guard.prepare`` before training, as the guards
of Flower and NVFlare do; the other variants measure everything after training. With one site, this
site can use both cores. With two sites, both train at the same time in separate processes, and the
round ends with the slower one. Variants alternate, the first turn is dropped, and the table has
medians of wall and CPU seconds; CPU seconds include those of the guard's second process. The ratio
is the median over turns of the time divided by that without a guard. ``--smaller 10`` takes a tenth
of the samples.
"""

import argparse
import os
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.recording import pictures, train
from fedaudit.guard.guard import Guard
from fedaudit.guard.policy import ATTACKS
from fedaudit.live.audited import fair_split
from fedaudit.models import CNN

SAMPLES, AUDITED = 3000, 540
LOSSES = ("blackbox-loss", "loss-series", "fta-l")


class Variant(NamedTuple):
    """Settings of a site's guard; without attacks, there is no guard.

    Attributes:
        name: Name in the table.
        attacks: Attacks of the guard.
        workers: Threads for gradients.
        prepares: Whether a second process measures during training.
    """

    name: str
    attacks: tuple[str, ...] = ()
    workers: int = 1
    prepares: bool = False


class Seconds(NamedTuple):
    """Wall and CPU seconds of a round."""

    wall: float
    cpu: float


ONE_SITE = (
    Variant("one site, no guard"),
    Variant("one site, prepared", ATTACKS, prepares=True),
    Variant("one site, one worker", ATTACKS),
    Variant("one site, two workers", ATTACKS, 2),
    Variant("one site, losses alone", LOSSES),
)
TWO_SITES = (
    Variant("two sites, no guard"),
    Variant("two sites, prepared", ATTACKS, prepares=True),
    Variant("two sites, one worker", ATTACKS),
    Variant("two sites, losses alone", LOSSES),
)


def network() -> nn.Module:
    return CNN().build((3, 32, 32), 10)


class Site:
    """A client with a guard for each variant."""

    def __init__(self, folder: Path, number: int, smaller: int, epochs: int) -> None:
        torch.set_num_threads(1)
        x, y = pictures(SAMPLES // smaller, f"client {number}")
        split = fair_split({number: (x, y)}, audited=AUDITED // smaller)
        kept = torch.from_numpy(split.train[number])
        self._data, self._epochs = (x[kept], y[kept]), epochs
        self._rounds = 0
        self._guards = {
            variant: Guard(
                folder / f"{number}-{index}",
                network,
                split.audit,
                # Without a filter, each upload is measured once, whatever the decision.
                limit=0.99,
                decide_by="estimate",
                smallest_audit=10,
                attacks=variant.attacks,
                workers=variant.workers,
                log=lambda line: None,
            )
            for index, variant in enumerate((*ONE_SITE, *TWO_SITES))
            if variant.attacks
        }

    def round(self, variant: Variant) -> Seconds:
        """Train, check the upload, and return the time."""
        self._rounds += 1
        module = network()
        sent = {name: value.clone() for name, value in module.state_dict().items()}
        start, cpu_start = perf_counter(), self._cpu(variant)
        if variant.prepares:
            self._guards[variant].prepare(sent=sent)
        for _ in range(self._epochs):
            train(module, *self._data)
        if variant.attacks:
            guard = self._guards[variant]
            guard.check(self._rounds, sent=sent, upload=module)
            assert not guard.decisions[-1].is_error, guard.decisions[-1]
        return Seconds(perf_counter() - start, self._cpu(variant) - cpu_start)

    def _cpu(self, variant: Variant) -> float:
        """Return the CPU seconds so far of this process and of the guard's second process."""
        guard = self._guards.get(variant)
        second = guard._recorder._measuring._ahead if guard is not None else None
        if second is None or not second._pid:
            return process_time()
        fields = Path(f"/proc/{second._pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return process_time() + ticks / os.sysconf("SC_CLK_TCK")


def serve(pipe: Connection, folder: Path, number: int, smaller: int, epochs: int) -> None:
    """Run rounds of a site in a separate process until the pipe delivers None."""
    site = Site(folder, number, smaller, epochs)
    pipe.send(None)
    while (variant := pipe.recv()) is not None:
        pipe.send(site.round(variant))


def together(sites: list[Connection], variant: Variant) -> Seconds:
    """Run a round of all sites at the same time."""
    for site in sites:
        site.send(variant)
    spent: list[Seconds] = [site.recv() for site in sites]
    return Seconds(max(s.wall for s in spent), sum(s.cpu for s in spent))


def rows(turns: list[dict[Variant, Seconds]], variants: tuple[Variant, ...]) -> None:
    """Print a line for each variant. The first variant has no guard."""
    for variant in variants:
        wall, cpu = (median(turn[variant][i] for turn in turns) for i in (0, 1))
        ratios = (median(turn[variant][i] / turn[variants[0]][i] for turn in turns) for i in (0, 1))
        print(
            f"| {variant.name} | {wall:.2f} s | {cpu:.2f} s | "
            + " | ".join(f"{ratio:.2f}" for ratio in ratios)
            + " |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--smaller", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    if args.turns < 2:
        parser.error("the first turn warms up and is dropped; give at least 2")
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n")
    print("| round | wall | CPU | wall, ratio to no guard | CPU, ratio |")
    print("|---|---|---|---|---|")
    context = get_context("spawn")
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder, sites = Path(name), list[Connection]()
        for number in range(2):
            here, there = context.Pipe()
            settings = (there, folder, number, args.smaller, args.epochs)
            process = context.Process(target=serve, args=settings)
            process.start()
            stack.callback(process.join)
            stack.callback(here.send, None)
            sites.append(here)
        for site in sites:
            site.recv()
        turns = [
            {variant: together(sites[:1], variant) for variant in ONE_SITE}
            | {variant: together(sites, variant) for variant in TWO_SITES}
            for _ in range(args.turns)
        ][1:]
        rows(turns, ONE_SITE)
        rows(turns, TWO_SITES)
        print(f"\nload {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
