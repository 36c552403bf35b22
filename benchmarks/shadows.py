"""What it costs to train many models of one kind: one after another, side by side, as one batch.

    python -m benchmarks.shadows [--turns 5]

Prints a table in Markdown and the cost of one refresh of risks, in some two minutes. The models are
shadows of two clusters, three each and long to train, or clients of a federation, many and short to
train. The *usual loop* is torch's own modules and optimizer; *bare steps* are those that fedaudit
has written out, without the hooks around them. *One batch* stacks the models' parameters and takes
a step of all of them at once, through `torch.func.vmap` or written out: grouped convolutions for a
CNN, batched products for an MLP. Variants run in one process and in turn, from the same start, each
model on its own samples in the same order; the first turn is dropped, and the median of the others
is shown. Data are random.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from benchmarks.training import medians
from fedaudit.core.modules import loaded
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model, Params, Samples, chunks
from fedaudit.engines.local import one_thread
from fedaudit.fl.algorithms.base import Cluster
from fedaudit.fl.hooks import UNDEFENDED, ClientContext
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.fl.training.manual_backprop import cross_entropy_slope, manual_steps
from fedaudit.fl.training.parallel import run_in_parallel
from fedaudit.models import architecture
from fedaudit.risk.server import ServerRisk, ShadowTraining

SHAPE, CLASSES = (1, 28, 28), 10
HOW = LocalTraining(epochs=1, batch_size=50, lr=0.05)
CNN = architecture(
    "cnn", shape=SHAPE, classes=CLASSES, channels="32,64", kernel=3, padding=1, hidden=""
)
MLP = architecture("mlp", shape=SHAPE, classes=CLASSES, hidden="200")


class Stack(NamedTuple):
    """The samples of all models, in the order in which they are trained on."""

    x: Tensor  # models, samples, ...
    y: Tensor  # models, samples


@dataclass(frozen=True)
class Case:
    """So many models of a kind, each with as many samples of its own."""

    name: str
    architecture: Architecture
    models: int
    samples: int

    def data(self, model: int) -> Samples:
        rng = seeded(1, "benchmark", model)
        x = torch.rand(self.samples, *SHAPE, generator=rng)
        y = torch.randint(CLASSES, (self.samples,), generator=rng)
        return Samples(x, y, torch.arange(self.samples))


CASES = (
    Case("6 shadows, CNN 32,64", CNN, 6, 500),
    Case("6 shadows, MLP 784-200", MLP, 6, 1000),
    Case("10 clients, CNN 32,64", CNN, 10, 250),
    Case("20 clients, MLP 784-200", MLP, 20, 250),
    Case("100 clients, MLP 784-200", MLP, 100, 250),
)


def client_context(model: int) -> ClientContext:
    return ClientContext(round=1, rounds=1, client=model, cohort=(model,), weights={}, seed=1)


def ours(start: Model, given: tuple[int, Samples]) -> Model:
    model, data = given
    return train(start, data, HOW, UNDEFENDED, client_context(model).at(start))


def one_after_another(start: Model, data: Sequence[Samples]) -> list[Params]:
    with one_thread():
        return [ours(start, given).params for given in enumerate(data)]


def on_all_cores(start: Model, data: Sequence[Samples]) -> list[Params]:
    return [model.params for model in run_in_parallel(partial(ours, start), enumerate(data))]


def shuffled(data: Sequence[Samples]) -> list[Samples]:
    """As :func:`ours` shuffles them."""
    return [
        one.take(torch.randperm(len(one), generator=client_context(model).rng("batches")))
        for model, one in enumerate(data)
    ]


def usual(start: Model, data: Sequence[Samples]) -> list[Params]:
    found = []
    for one in shuffled(data):
        module = start.module().train()
        optimizer = torch.optim.SGD(module.parameters(), lr=HOW.lr)
        for part in chunks(len(one), HOW.batch_size):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(one.features[part]), one.labels[part])
            torch.autograd.backward(loss)
            optimizer.step()
        found.append({name: value.detach() for name, value in module.named_parameters()})
    return found


def bare_steps(start: Model, data: Sequence[Samples]) -> list[Params]:
    found = []
    for one in shuffled(data):
        module = loaded(start, "bare steps").train()
        written = manual_steps(module)
        assert written is not None
        for part in chunks(len(one), HOW.batch_size):
            slope = partial(cross_entropy_slope, y=one.labels[part])
            written.descend(one.features[part], slope, lr=HOW.lr)
        found.append(Model.of(start.architecture, module).params)
    return found


Step = Callable[[Params, Tensor, Tensor], None]


def as_one_batch(
    kind: Callable[[Model], Step], start: Model, data: Sequence[Samples]
) -> list[Params]:
    """All models together, by steps that change stacked parameters in place."""
    orders = shuffled(data)
    stack = Stack(
        torch.stack([one.features for one in orders]), torch.stack([one.labels for one in orders])
    )
    params = {
        name: value.expand(len(data), *value.shape).clone() for name, value in start.params.items()
    }
    step = kind(start)
    for part in chunks(stack.y.shape[1], HOW.batch_size):
        step(params, stack.x[:, part], stack.y[:, part])
    return [{name: value[model] for name, value in params.items()} for model in range(len(data))]


def by_vmap(start: Model) -> Step:
    module = start.module().train()

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, params, (x,))
        return functional.cross_entropy(outputs, y)

    gradients = vmap(grad(loss))

    def step(params: Params, x: Tensor, y: Tensor) -> None:
        found = gradients(params, x, y)
        torch._foreach_add_(list(params.values()), [found[n] for n in params], alpha=-HOW.lr)

    return step


def by_groups(start: Model) -> Step:
    """Convolutions of all models as one with groups, their linear layers as one batched product."""

    def step(params: Params, x: Tensor, y: Tensor) -> None:
        leaves = [value.requires_grad_() for value in params.values()]
        *filters, weight, bias = leaves
        models, samples = y.shape
        # In this order of memory they take 60 % of the time that they take in the usual one.
        order = torch.channels_last
        hidden = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=order)
        for kernel, offset in zip(filters[::2], filters[1::2], strict=True):
            together = kernel.flatten(0, 1).contiguous(memory_format=order)
            hidden = functional.conv2d(hidden, together, offset.flatten(), padding=1, groups=models)
            hidden = functional.max_pool2d(hidden, 2).relu()
        rows = hidden.reshape(samples, models, -1).transpose(0, 1)
        outputs = torch.baddbmm(bias[:, None], rows, weight.mT)
        loss = functional.cross_entropy(outputs.flatten(0, 1), y.flatten()) * models
        found = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            torch._foreach_add_(leaves, list(found), alpha=-HOW.lr)

    return step


def by_products(start: Model) -> Step:
    """The steps that are written out for an MLP, with batched products for plain ones."""

    @torch.no_grad()
    def step(params: Params, x: Tensor, y: Tensor) -> None:
        first, first_bias, last, last_bias = params.values()
        rows = x.flatten(2)
        hidden = torch.baddbmm(first_bias[:, None], rows, first.mT).relu_()
        outputs = torch.baddbmm(last_bias[:, None], hidden, last.mT)
        error = cross_entropy_slope(outputs.flatten(0, 1), y.flatten()).view_as(outputs)
        earlier = torch.ops.aten.threshold_backward(error @ last, hidden, 0)
        rate = -HOW.lr / y.shape[1]
        for weight, bias, wrong, inputs in (
            (last, last_bias, error, hidden),
            (first, first_bias, earlier, rows),
        ):
            weight.baddbmm_(wrong.mT, inputs, alpha=rate)
            bias.add_(wrong.sum(1), alpha=rate)

    return step


def apart(found: list[Params], expected: list[Params]) -> float:
    """The largest difference of a parameter."""
    return max(
        float((one[name] - other[name]).detach().abs().max())
        for one, other in zip(found, expected, strict=True)
        for name in other
    )


def row(case: Case, turns: int) -> str:
    start = case.architecture.initial(1)
    data = [case.data(model) for model in range(case.models)]
    written = by_products if case.architecture is MLP else by_groups
    run: dict[str, Callable[[], list[Params]]] = {
        "usual": partial(usual, start, data),
        "ours": partial(one_after_another, start, data),
        "bare": partial(bare_steps, start, data),
        "vmap": partial(as_one_batch, by_vmap, start, data),
        "batch": partial(as_one_batch, written, start, data),
    }
    expected = run["ours"]()
    off = max(apart(run[name](), expected) for name in ("bare", "vmap", "batch"))
    seconds = medians(run, process_time, turns)
    rate = case.models * case.samples / seconds["ours"]
    times = [
        f"{seconds[name] / seconds['ours']:.2f}" for name in ("usual", "bare", "vmap", "batch")
    ]
    several = on_cores(partial(on_all_cores, start, data), run["ours"], turns)
    return (
        f"| {case.name} | {rate:,.0f}/s | {' | '.join(times)} | {several.work:.2f} | "
        f"{several.wait:.2f} | {off:.0e} |"
    )


class Shared(NamedTuple):
    """Training side by side, in units of one after another."""

    work: float  # processor time
    wait: float  # wall-clock time


def on_cores(several: Callable[[], object], single: Callable[[], object], turns: int) -> Shared:
    ratios = []
    for _ in range(turns):
        spent = []
        for run in (several, single):
            work, wait = process_time(), perf_counter()
            run()
            spent.append((process_time() - work, perf_counter() - wait))
        (work, wait), (usual_work, usual_wait) = spent
        ratios.append(Shared(work / usual_work, wait / usual_wait))
    return Shared(*(median(column) for column in zip(*ratios[1:], strict=True)))


def refresh(size: int) -> float:
    """Processor time of the risks of two models, with shadows of this size."""
    server = ServerRisk(
        Case("server", CNN, 1, 2 * size).data(0), ShadowTraining(HOW, 3, "continued", 1)
    )
    clusters = [Cluster(CNN.initial(number), size) for number in range(2)]
    start = process_time()
    server(clusters, seed=1)
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--size", type=int, default=1000, help="samples of a shadow, last figure")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cores = os.cpu_count() or 1
    print(f"torch {torch.__version__}, {cores} cores, load {os.getloadavg()[0]:.1f}\n")
    print(
        "| models | fedaudit, one after another | usual loop | bare steps | one batch, vmap | "
        "one batch, written out | side by side | its wall time | largest difference |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for case in CASES:
        print(row(case, given.turns), flush=True)
    print(f"\nTwo models, three shadows of {given.size} samples, one epoch: ", end="", flush=True)
    print(f"{refresh(given.size):.1f} s of processor time")


if __name__ == "__main__":
    main()
