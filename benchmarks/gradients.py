"""CPU time of gradient signals, compared with a floor, a plain loop and the published structure.

    python -m benchmarks.gradients [--model mlp cnn28 ... transformer minilm] [--clients 10 30]

Prints tables in Markdown. With ``--json``, writes the same numbers to a file. All variants run
alternately in one process on one thread. The first turn is dropped, and the tables have medians.
Times are CPU time, which other programs on the machine disturb least. Only the last two tables are
wall time and memory. Data are random.

The *floor* is one plain batched forward and backward pass over the same samples, with the best of
two memory layouts and five batch sizes.
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

from fedaudit.core.next_token import next_token
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import CLASSIFICATION, Task, cross_entropy
from fedaudit.core.values import Architecture, Model, Params, Setting, chunks, flat
from fedaudit.models import architecture
from fedaudit.signals.gradients import gradient_products
from fedaudit.signals.kernels.plan import plan_for

BATCHES = (8, 32, 64, 128, 256)
PUBLISHED_BATCH = 10


@dataclass(frozen=True)
class Case:
    """A model, and the number of samples on which each variant is timed.

    Attributes:
        samples: Number of samples for the floor and for ours.
        one_by_one: Number of samples for the plain loop and the published structure; 0 to omit
            these two.
        tokens: Size of the vocabulary; 0 if samples are not token sequences.
    """

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
        # Both have six layers of width 384. The first is trained as a whole. Of the second, LoRA
        # adapters and a head are trained.
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


# --- variants: each processes all samples once ---------------------------------------------------


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
    """Compute a backward pass for each sample, then a cosine for each client."""
    module = data.base.module()
    params = list(module.parameters())
    targets = [flat(update) for update in data.updates]
    for x, y in zip(data.features, data.labels, strict=True):
        grads = torch.autograd.grad(cross_entropy(module(x[None]), y[None]).sum(), params)
        gradient = torch.cat([value.flatten() for value in grads])
        gradient.square().sum()
        for target in targets:
            functional.cosine_similarity(target, gradient, dim=0)


def published_for_one_client(data: Data) -> None:
    """Compute per-sample gradients in batches of ten, then cosine and two norms in a loop."""
    module = data.base.module().requires_grad_(False)
    params: Params = dict(module.named_parameters())

    def loss(values: Params, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(module, values, (x[None],)), y[None]).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    target = flat(data.updates[0])
    for piece in chunks(len(data.labels), PUBLISHED_BATCH):
        grads = gradients(params, data.features[piece], data.labels[piece])
        for gradient in torch.cat([value.flatten(1) for value in grads.values()], 1):
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
    """Return the median seconds of each variant; they alternate, and the first turn is dropped."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns + 1):
        for name, run in runs.items():
            times[name].append(seconds(run, clock))
    return {name: median(each[1:]) for name, each in times.items()}


class Row(NamedTuple):
    """CPU milliseconds per sample of each variant."""

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


def measured(case: Case, clients: int, turns: int, with_peers: bool) -> Row:
    data = data_for(case, clients, case.samples)
    few, with_peers = data.first(case.one_by_one), with_peers and case.one_by_one > 0
    runs: dict[str, Callable[[], None]] = {
        "floor": best_floor(case, data),
        "ours": partial(ours, data),
    }
    if with_peers:
        runs |= {
            "loop": partial(one_by_one, few),
            "published": partial(published_for_one_client, few),
        }
    times = in_turn(runs, turns)
    per_sample = 1000 / case.samples
    per_sample_of_few = 1000 / max(1, case.one_by_one)
    return Row(
        case.name,
        clients,
        times["floor"] * per_sample,
        times["ours"] * per_sample,
        times.get("loop", float("nan")) * per_sample_of_few,
        times.get("published", float("nan")) * per_sample_of_few * clients,
    )


def two_workers(case: Case, clients: int, turns: int) -> float:
    """Return the wall time with one worker, divided by that with two."""
    data = data_for(case, clients, case.samples)
    runs = {str(n): partial(ours, data, n) for n in (1, 2)}
    times = in_turn(runs, turns, perf_counter)
    return times["1"] / times["2"]


# --- memory: each variant runs in a separate process ---------------------------------------------


def resident() -> int:
    """Return the number of bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Peak:
    """Largest increase of the process's memory within a ``with`` block."""

    def __enter__(self) -> "Peak":
        self.before = self.peak = resident()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()
        return self

    def _poll(self) -> None:
        while not self._is_over.is_set():
            self.peak = max(self.peak, resident())
            sleep(0.0005)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def megabytes(self) -> float:
        return (self.peak - self.before) / 2**20


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
    """Return the number of samples that fedaudit processes together."""
    data = data_for(case, 0, 2)
    module = data.base.module()
    return plan_for(module, data.base, data.updates, data.features, data.labels).chunk


def peak_in_process(case: Case, clients: int, what: str) -> float:
    command = [sys.executable, "-m", "benchmarks.gradients", "--model", case.name]
    command += ["--clients", str(clients), "--peak", what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# --- output --------------------------------------------------------------------------------------


def memory_table(cases: Sequence[Case], clients: int) -> Iterator[str]:
    rows = []
    for case in cases:
        batch = chunk_of(case)
        packed = clients * sum(p.numel() for p in case.architecture.build().parameters()) / 2**18
        of_plain = peak_in_process(case, clients, str(batch))
        of_ours = peak_in_process(case, clients, "ours")
        cells = (
            f"{packed:.0f}",
            f"{of_plain:.0f}",
            f"{of_ours:.0f}",
            f"{of_ours - packed:.0f}",
        )
        rows.append((case.name, str(batch), *cells))
    head = (
        "model",
        "batch",
        "packed updates, MB",
        "plain, MB",
        "fedaudit, MB",
        "fedaudit without packed, MB",
    )
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def speed_table(rows: Sequence[Row]) -> Iterator[str]:
    head = (
        "model",
        "K",
        "floor, ms",
        "fedaudit, ms",
        "x floor",
        "x faster than loop",
        "x published",
    )
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
    args = arguments()
    cases = [CASES[name] for name in args.model]
    if args.peak:
        print(peak_of(cases[0], args.clients[0], args.peak))
        return
    torch.set_num_threads(1)
    rows = [
        measured(case, clients, args.turns, not args.no_peers)
        for case in cases
        for clients in args.clients
    ]
    print("\n".join(speed_table(rows)))
    results: dict[str, object] = {"speed": [row._asdict() for row in rows]}
    if not args.no_wall:
        wall = {case.name: two_workers(case, args.clients[0], args.turns) for case in cases}
        print(
            "\n".join(
                table(("model", "two workers / one"), [(n, f"{v:.2f}") for n, v in wall.items()])
            )
        )
        results["two_workers"] = wall
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
