"""Speed of local training, compared with the hardware's floor and with the usual loop.

    python -m benchmarks.training

Prints two tables in Markdown, in about three minutes. All variants run alternately in one process.
The first turn is dropped, and the tables have medians. Data are random, since the time does not
depend on their values.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter, process_time

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedaudit.core.values import Architecture, Samples, Setting, chunks, weighted_sum
from fedaudit.engines.local import Workers
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import UNDEFENDED, ClientContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.models import architecture

BATCH = 32
HOW = LocalTraining(epochs=1, batch_size=BATCH, lr=0.01)


@dataclass(frozen=True)
class Case:
    """A federation of clients with the same number of samples each."""

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    samples: int
    turns: int
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def architecture(self) -> Architecture:
        return architecture(self.model, shape=self.shape, classes=self.classes, **self.settings)

    def data(self, samples: int, seed: int = 0) -> Samples:
        rng = torch.Generator().manual_seed(seed)
        return Samples(
            torch.randn(samples, *self.shape, generator=rng),
            torch.randint(self.classes, (samples,), generator=rng),
            torch.arange(samples),
        )


SMALL: dict[str, Setting] = {"channels": "16,32", "hidden": "128", "padding": 2}
CASES = (
    Case("A: MLP 600-200-100", "mlp", (600,), 100, 10, 2000, 15),
    Case("B: CNN 16,32 + 128, 28x28", "cnn", (1, 28, 28), 10, 40, 250, 9, SMALL),
    Case("C: CNN 32,64 + 512,128, 32x32", "cnn", (3, 32, 32), 10, 4, 1000, 5, {"padding": 2}),
    Case("SIA's CNN, 28x28", "cnn", (1, 28, 28), 10, 10, 500, 7),
)


def batched(case: Case, data: Samples, size: int, order: torch.memory_format) -> Callable[[], None]:
    """Return the floor: forward and backward passes only, for one batch size and memory order."""
    module = case.architecture.build()
    x = data.features
    if x.dim() == 4:
        x = x.to(memory_format=order)
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.data = part.weight.data.to(memory_format=order)
    params = list(module.parameters())

    def run() -> None:
        for part in chunks(len(data), size):
            loss = functional.cross_entropy(module(x[part]), data.labels[part])
            torch.autograd.grad(loss, params)

    return run


def floors(case: Case, data: Samples) -> dict[str, Callable[[], None]]:
    orders = [torch.contiguous_format]
    if len(case.shape) == 3:
        orders.append(torch.channels_last)
    return {
        f"floor {order} {size}": batched(case, data, size, order)
        for order in orders
        for size in (32, 64, 128, 256)
    }


def usual(module: nn.Module, data: Samples) -> None:
    """Train an epoch with typical code: a shuffling loader and a torch optimizer."""
    loader: DataLoader[tuple[Tensor, ...]] = DataLoader(
        TensorDataset(data.features, data.labels), batch_size=BATCH, shuffle=True
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=HOW.lr)
    for x, y in loader:
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(module(x), y))
        optimizer.step()


def usual_round(case: Case, clients: Mapping[int, Samples]) -> Callable[[], None]:
    """Return a round of federated averaging with :func:`usual`."""
    module = case.architecture.build()
    start = {name: value.clone() for name, value in module.state_dict().items()}

    def run() -> None:
        locals_ = []
        for data in clients.values():
            module.load_state_dict(start)
            usual(module, data)
            locals_.append({name: value.clone() for name, value in module.state_dict().items()})
        weighted_sum(locals_, [1 / len(locals_)] * len(locals_))

    return run


def ours(case: Case, data: Samples) -> Callable[[], None]:
    model = case.architecture.initial(0)
    client_context = ClientContext(
        round=1, rounds=1, client=0, cohort=(0,), weights={0: 1.0}, seed=0
    )

    def run() -> None:
        train(model, data, HOW, UNDEFENDED, client_context.with_model(model))

    return run


def medians(
    variants: Mapping[str, Callable[[], object]], clock: Callable[[], float], turns: int
) -> dict[str, float]:
    """Return the median seconds of each variant; they alternate, and the first turn is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, run in variants.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: median(values[1:]) for name, values in seconds.items()}


def repeated(times: int, run: Callable[[], None]) -> Callable[[], None]:
    def runs() -> None:
        for _ in range(times):
            run()

    return runs


def one_core(case: Case) -> str:
    torch.set_num_threads(1)
    data = case.data(case.samples)
    # The floor per sample does not depend on the number of samples, so it uses whole batches. If
    # clients are small, several are trained in a row.
    many = case.data(512 if len(case.shape) == 3 else 2048)
    clients = max(1, round(len(many) / len(data)))
    by_floor = floors(case, many)
    by_loop = {
        "usual": repeated(clients, partial(usual, case.architecture.build(), data)),
        "ours": repeated(clients, ours(case, data)),
    }
    seconds = medians(by_floor | by_loop, process_time, case.turns)
    floor = max(len(many) / seconds[name] for name in by_floor)
    cells = [f"{floor:,.0f}/s"]
    for name in by_loop:
        rate = clients * len(data) / seconds[name]
        cells.append(f"{rate:,.0f}/s ({floor / rate:.2f}x)")
    return f"| {case.name} | " + " | ".join(cells) + " |"


def two_cores(case: Case) -> str:
    clients = {client: case.data(case.samples, client) for client in range(case.clients)}
    rounds = simulate(
        FedAvg(case.architecture, HOW), clients, rounds=case.turns, seed=0, engine=Workers(2)
    )
    torch.set_num_threads(2)
    variants = {"usual": usual_round(case, clients), "ours": lambda: next(rounds)}
    seconds = medians(variants, perf_counter, case.turns)
    list(rounds)  # ends the iterator, which releases the workers
    total = case.clients * case.samples
    rate = {name: total / value for name, value in seconds.items()}
    return (
        f"| {case.name}, {case.clients} x {case.samples} | {rate['usual']:,.0f}/s | "
        f"{rate['ours']:,.0f}/s | {rate['ours'] / rate['usual']:.2f} |"
    )


def main() -> None:
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| CPU time, one thread | floor | usual loop | fedaudit |\n|---|---|---|---|")
    for case in CASES:
        print(one_core(case), flush=True)
    print("\n| wall time of whole rounds | usual loop, 2 threads | 2 workers | ratio |")
    print("|---|---|---|---|")
    for case in CASES:
        print(two_cores(case), flush=True)


if __name__ == "__main__":
    main()
