"""Time that a guard adds to a round of its client.

    python -m benchmarks.guarding [--turns 5] [--smaller 1] [--epochs 1]

Prints a table in Markdown. A round is local training of a CNN with 2.2 million parameters on 3,000
random 32 x 32 images, in batches of 32 on one thread, and the check of the upload with 540 audited
samples. "Prepared" calls ``Guard.prepare`` before training, as the guards of Flower and NVFlare do;
the other variants measure everything after training. One site has both cores. Two sites train at
the same time, each in a separate process, and the round ends with the slower one.

Variants alternate, the first turn is dropped, and the table has medians. CPU seconds include those
of the second process. The path is the CPU seconds from the beginning to the end of a round if each
process has a core: those of the first process, and those for which it waits for the second one.
Other programs change it little, while wall seconds need two free cores. The ratio is the median of
each turn's time divided by that without a guard. ``--smaller 10`` uses a tenth of all samples.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.recording import pictures, train
from fedaudit.guard.guard import Guard
from fedaudit.guard.policy import ATTACKS
from fedaudit.live.audited import fair_split
from fedaudit.live.preparing import PreparingProcess
from fedaudit.models import CNN
from fedaudit.observe.round import Round
from fedaudit.signals.base import Signal

SAMPLES, AUDITED = 3000, 540
LOSSES = ("blackbox-loss", "loss-series", "fta-l")


class Variant(NamedTuple):
    """Settings of a site's guard. Without attacks, the site has no guard.

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


class RoundTime(NamedTuple):
    """Seconds of a round, as the docstring of this module defines them."""

    wall: float
    cpu: float
    path: float


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
    """Client with one guard for each variant."""

    def __init__(self, folder: Path, number: int, smaller: int, epochs: int) -> None:
        torch.set_num_threads(1)
        x, y = pictures(SAMPLES // smaller, f"client {number}")
        split = fair_split({number: (x, y)}, audited=AUDITED // smaller)
        rows = torch.from_numpy(split.train[number])
        self._data, self._epochs = (x[rows], y[rows]), epochs
        self._rounds = 0
        self._guards = {
            variant: Guard(
                folder / f"{number}-{index}",
                network,
                split.audit,
                # Without a filter, each upload is measured only once.
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

    def round(self, variant: Variant) -> RoundTime:
        """Train, check the upload, and return the seconds."""
        self._rounds += 1
        module, guard = network(), self._guards.get(variant)
        sent = {name: value.clone() for name, value in module.state_dict().items()}
        start, start_cpu, start_second = perf_counter(), process_time(), second_cpu(guard)
        if guard is not None and variant.prepares:
            guard.prepare(sent=sent)
        for _ in range(self._epochs):
            train(module, *self._data)
        waited = 0.0
        if guard is not None:
            with waiting_rounds(guard) as waits:
                guard.check(self._rounds, sent=sent, upload=module)
            assert not guard.decisions[-1].is_error, guard.decisions[-1]
            waited = sum(waits)
        wall, cpu = perf_counter() - start, process_time() - start_cpu
        return RoundTime(wall, cpu + second_cpu(guard) - start_second, cpu + waited)


def second_process(guard: Guard | None) -> PreparingProcess | None:
    return None if guard is None else guard._recorder._measurer._preparing


def second_cpu(guard: Guard | None) -> float:
    """Return the CPU seconds of a guard's second process until now. The process has one thread."""
    second = second_process(guard)
    if second is None or not second._process.pid:
        return 0.0
    return int(Path(f"/proc/{second._process.pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def waiting_rounds(guard: Guard) -> Iterator[list[float]]:
    """Collect the additional CPU seconds of the second process in each exchange of a check."""
    waits, second = list[float](), second_process(guard)
    if second is None:
        yield waits
        return
    send, receive, starts = second._send_update, second._receive, [0.0, 0.0]

    def send_update(round: Round) -> list[Signal]:
        starts[:] = process_time(), second_cpu(guard)
        return send(round)

    def receive_values() -> dict[str, Tensor] | None:
        own_seconds = process_time() - starts[0]
        values = receive()
        waits.append(max(0.0, second_cpu(guard) - starts[1] - own_seconds))
        return values

    with (
        patch.object(second, "_send_update", send_update),
        patch.object(second, "_receive", receive_values),
    ):
        yield waits


def serve(orders: Connection, folder: Path, number: int, smaller: int, epochs: int) -> None:
    """Run rounds of a site in this process until the order None arrives."""
    site = Site(folder, number, smaller, epochs)
    orders.send(None)
    while (variant := orders.recv()) is not None:
        orders.send(site.round(variant))


def together(sites: list[Connection], variant: Variant) -> RoundTime:
    """Run a round of all sites at the same time."""
    for site in sites:
        site.send(variant)
    times: list[RoundTime] = [site.recv() for site in sites]
    return RoundTime(
        max(time.wall for time in times),
        sum(time.cpu for time in times),
        max(time.path for time in times),
    )


def rows(turns: list[dict[Variant, RoundTime]], variants: tuple[Variant, ...]) -> None:
    """Print a line for each variant; the first variant has no guard."""
    for variant in variants:
        parts = range(len(RoundTime._fields))
        seconds = [median(turn[variant][part] for turn in turns) for part in parts]
        ratios = [
            median(turn[variant][part] / turn[variants[0]][part] for turn in turns)
            for part in parts
        ]
        cells = [*(f"{value:.2f} s" for value in seconds), *(f"{ratio:.2f}" for ratio in ratios)]
        print(f"| {variant.name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--smaller", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    if args.turns < 2:
        parser.error("the first turn warms up and is dropped; give at least 2")
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n")
    print("| round | wall | CPU | path | wall, ratio to no guard | CPU, ratio | path, ratio |")
    print("|---|---|---|---|---|---|---|")
    context = get_context("spawn")
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder, sites = Path(name), list[Connection]()
        for number in range(2):
            orders, remote_end = context.Pipe()
            settings = (remote_end, folder, number, args.smaller, args.epochs)
            process = context.Process(target=serve, args=settings)
            process.start()
            stack.callback(process.join)
            stack.callback(orders.send, None)
            sites.append(orders)
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
