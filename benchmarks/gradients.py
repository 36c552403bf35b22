"""Gradient signals beside the hardware's floor, the plain loops and the published structure.

    python -m benchmarks.gradients [--model mlp cnn28 ... transformer minilm] [--clients 10 30]

Prints tables in Markdown and, with ``--json``, writes the same numbers to a file. All variants
run in one process on one thread and in turn; the first turn is dropped, and the median of the
others is shown. Times are processor time, which other work on the machine disturbs least; only
the last two tables are wall time and memory. Data are random, of the right shapes.

The floor is one plain batched forward and backward pass over the same samples, at the best of
two memory layouts and four batch sizes.
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import CLASSIFICATION, Task, cross_entropy, next_token
from fedaudit.core.values import Architecture, Model, Params, Setting, chunks, flat
from fedaudit.models import architecture
from fedaudit.signals.gradients import gradient_products
from fedaudit.signals.kernels.plan import plan_for

BATCHES = (8, 32, 64, 128, 256)
PUBLISHED_BATCH = 10


@dataclass(frozen=True)
class Case:
    """A model and how many samples each variant is timed on; of tokens, without peers."""

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    samples: int
    one_by_one: int
    settings: Mapping[str, Setting] = field(default_factory=dict)
    tokens: int = 0
    task: Task = CLASSIFICATION

    @property
    def architecture(self) -> Architecture:
        return architecture(
            self.model, self.task, shape=self.shape, classes=self.classes, **self.settings
        )


CASES = {
    case.name: case
    for case in (
        Case("mlp", "mlp", (600,), 100, 16384, 200, {"hidden": "200"}),
        Case(
            "cnn28",
            "cnn",
            (1, 28, 28),
            10,
            4096,
            100,
            {"channels": "16,32", "hidden": "128", "padding": 2},
        ),
        Case("cnn32", "cnn", (3, 32, 32), 10, 1024, 20, {"padding": 2}),
        Case("alexnet", "alexnet", (3, 32, 32), 100, 4096, 20),
        Case("resnet18", "resnet18", (3, 32, 32), 100, 512, 4),
        # Both are six layers of width 384: all of one is trained, LoRA and a head of the other.
        Case(
            "transformer",
            "transformer",
            (64,),
            256,
            128,
            0,
            {"layers": 6, "width": 384, "heads": 12},
            tokens=256,
            task=next_token(),
        ),
        Case("minilm", "minilm", (64,), 14, 256, 0, tokens=30_000),
    )
}


class Data(NamedTuple):
    base: Model
    updates: list[Params]
    features: Tensor
    labels: Tensor

    def first(self, samples: int) -> "Data":
        return self._replace(features=self.features[:samples], labels=self.labels[:samples])


def data_for(case: Case, clients: int, samples: int) -> Data:
    rng = seeded(0, "benchmark", case.name)
    base = case.architecture.initial(0)
    updates = [
        {
            name: 0.01 * torch.randn(value.shape, generator=rng)
            for name, value in base.params.items()
        }
        for _ in range(clients)
    ]
    if case.tokens:
        features = torch.randint(1, case.tokens, (samples, *case.shape), generator=rng)
    else:
        features = torch.randn(samples, *case.shape, generator=rng)
    labels = torch.randint(case.classes, (samples,), generator=rng)
    return Data(base, updates, features, case.task.targets(features, labels))


# --- variants: each goes over all samples once ---------------------------------------------------


def ours(data: Data, workers: int = 1) -> None:
    gradient_products(data.base, data.updates, data.features, data.labels, workers=workers)


def plain(data: Data, batch: int, layout: torch.memory_format) -> None:
    module = data.base.module()
    for value in module.parameters():
        if value.dim() == 4:
            value.data = value.data.contiguous(memory_format=layout)
    params = [param for param in module.parameters() if param.requires_grad]
    task = data.base.architecture.task
    for piece in chunks(len(data.labels), batch):
        x = data.features[piece]
        x = x.contiguous(memory_format=layout) if x.dim() == 4 else x
        losses = task.losses(task.outputs(module, x), data.labels[piece])
        torch.autograd.grad(losses.sum(), params)


def layouts(case: Case) -> list[torch.memory_format]:
    both = [torch.contiguous_format, torch.channels_last]
    return both if len(case.shape) == 3 else both[:1]


def one_by_one(data: Data) -> None:
    """A backward pass a sample, then a cosine a client."""
    module = data.base.module()
    params = list(module.parameters())
    targets = [flat(update) for update in data.updates]
    for x, y in zip(data.features, data.labels, strict=True):
        found = torch.autograd.grad(cross_entropy(module(x[None]), y[None]).sum(), params)
        gradient = torch.cat([part.flatten() for part in found])
        gradient.square().sum()
        for target in targets:
            functional.cosine_similarity(target, gradient, dim=0)


def published_for_one_client(data: Data) -> None:
    """Per-sample gradients in batches of ten, then cosine and two norms in a loop."""
    module = data.base.module().requires_grad_(False)
    params: Params = dict(module.named_parameters())

    def loss(own: Params, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(module, own, (x[None],)), y[None]).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    target = flat(data.updates[0])
    for piece in chunks(len(data.labels), PUBLISHED_BATCH):
        found = gradients(params, data.features[piece], data.labels[piece])
        for gradient in torch.cat([part.flatten(1) for part in found.values()], 1):
            functional.cosine_similarity(target, gradient, dim=0)
            (target - gradient).square().sum()
            gradient.square().sum()


# --- timing --------------------------------------------------------------------------------------


def seconds(run: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def in_turn(
    runs: Mapping[str, Callable[[], None]], turns: int, clock: Callable[[], float] = process_time
) -> dict[str, float]:
    """Median seconds of each run; all take their turns together, and the first is dropped."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns + 1):
        for name, run in runs.items():
            times[name].append(seconds(run, clock))
    return {name: median(each[1:]) for name, each in times.items()}


class Row(NamedTuple):
    """Processor milliseconds a sample, and what they say."""

    model: str
    clients: int
    floor: float
    ours: float
    one_by_one: float
    published: float

    @property
    def of_floor(self) -> float:
        return self.ours / self.floor


def best_floor(case: Case, data: Data) -> Callable[[], None]:
    runs = {
        f"{batch}/{layout}": partial(plain, data.first(max(BATCHES)), batch, layout)
        for batch in BATCHES
        for layout in layouts(case)
    }
    times = in_turn(runs, 1)
    best = min(times, key=lambda name: times[name])
    batch, layout = next(
        (batch, layout)
        for batch in BATCHES
        for layout in layouts(case)
        if f"{batch}/{layout}" == best
    )
    return partial(plain, data, batch, layout)


def measured(case: Case, clients: int, turns: int, peers: bool) -> Row:
    data = data_for(case, clients, case.samples)
    few, peers = data.first(case.one_by_one), peers and case.one_by_one > 0
    runs: dict[str, Callable[[], None]] = {
        "floor": best_floor(case, data),
        "ours": partial(ours, data),
    }
    if peers:
        runs |= {
            "loop": partial(one_by_one, few),
            "published": partial(published_for_one_client, few),
        }
    times = in_turn(runs, turns)
    per = 1000 / case.samples
    slow = 1000 / max(1, case.one_by_one)
    return Row(
        case.name,
        clients,
        times["floor"] * per,
        times["ours"] * per,
        times.get("loop", float("nan")) * slow,
        times.get("published", float("nan")) * slow * clients,
    )


def two_workers(case: Case, clients: int, turns: int) -> float:
    """Wall time of one worker over that of two."""
    data = data_for(case, clients, case.samples)
    runs = {str(n): partial(ours, data, n) for n in (1, 2)}
    times = in_turn(runs, turns, perf_counter)
    return times["1"] / times["2"]


# --- memory: each variant alone in a process -----------------------------------------------------


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Peak:
    """The most memory held within a ``with`` block beyond what was held before."""

    def __enter__(self) -> "Peak":
        self.before = self.most = resident()
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._done.is_set():
            self.most = max(self.most, resident())
            sleep(0.0005)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()

    @property
    def megabytes(self) -> float:
        return (self.most - self.before) / 2**20


def peak_of(case: Case, clients: int, what: str) -> float:
    torch.set_num_threads(1)
    data = data_for(case, clients, min(case.samples, 512))
    plain(data.first(2), 2, torch.contiguous_format)
    with Peak() as peak:
        if what == "ours":
            ours(data)
        else:
            plain(data, int(what), layouts(case)[-1])
    return peak.megabytes


def chunk_of(case: Case) -> int:
    """How many samples go through together, as ours decides it."""
    data = data_for(case, 0, 2)
    module = data.base.module()
    return plan_for(module, data.base, data.updates, data.features, data.labels).chunk


def peak_alone(case: Case, clients: int, what: str) -> float:
    command = [sys.executable, "-m", "benchmarks.gradients", "--model", case.name]
    command += ["--clients", str(clients), "--peak", what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# --- output --------------------------------------------------------------------------------------


def memory_table(cases: Sequence[Case], clients: int) -> Iterator[str]:
    rows = []
    for case in cases:
        batch = chunk_of(case)
        packed = clients * sum(p.numel() for p in case.architecture.build().parameters()) / 2**18
        alone = peak_alone(case, clients, str(batch))
        own = peak_alone(case, clients, "ours")
        cells = (f"{packed:.0f}", f"{alone:.0f}", f"{own:.0f}", f"{own - packed:.0f}")
        rows.append((case.name, str(batch), *cells))
    head = ("model", "batch", "packed updates, MB", "plain, MB", "ours, MB", "ours less packed, MB")
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def speed_table(rows: Sequence[Row]) -> Iterator[str]:
    head = ("model", "K", "floor, ms", "ours, ms", "x floor", "x faster than loop", "x published")
    cells = [
        (
            row.model,
            str(row.clients),
            f"{row.floor:.4g}",
            f"{row.ours:.4g}",
            f"{row.of_floor:.2f}",
            f"{row.one_by_one / row.ours:.1f}",
            f"{row.published / row.ours:.0f}",
        )
        for row in rows
    ]
    return table(head, cells)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed of the gradient signals.")
    parser.add_argument("--model", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--clients", nargs="+", type=int, default=[10, 30])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true", help="only the floor and ours")
    parser.add_argument("--no-wall", action="store_true", help="neither two workers nor memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    cases = [CASES[name] for name in given.model]
    if given.peak:
        print(peak_of(cases[0], given.clients[0], given.peak))
        return
    torch.set_num_threads(1)
    rows = [
        measured(case, clients, given.turns, not given.no_peers)
        for case in cases
        for clients in given.clients
    ]
    print("\n".join(speed_table(rows)))
    found: dict[str, object] = {"speed": [row._asdict() for row in rows]}
    if not given.no_wall:
        wall = {case.name: two_workers(case, given.clients[0], given.turns) for case in cases}
        print(
            "\n".join(
                table(("model", "two workers / one"), [(n, f"{v:.2f}") for n, v in wall.items()])
            )
        )
        found["two_workers"] = wall
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
