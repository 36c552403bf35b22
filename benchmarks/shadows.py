"""Time of training many models of one architecture: one by one, in parallel, or as one batch.

    python -m benchmarks.shadows [--turns 5]

Prints a table in Markdown, and the CPU time of measuring the risks of two models, in about two
minutes. The models are either three shadow models of each of two clusters, with many samples, or
many clients of a federation with few samples. The *usual loop* uses torch's modules and optimizer.
*Bare steps* are fedaudit's manual training steps without the hooks around them. *One batch* stacks
the models' parameters and takes a step of all models together: with `torch.func.vmap`, or manually,
by grouped convolutions for a CNN and batched products for an MLP. Variants alternate in one
process. They begin with the same parameters and use the same samples in the same order. The first
turn is dropped, and the table has medians. Data are random.
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
from fedaudit.core.modules import load_module
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
    """Samples of all models, in the order of training."""

    x: Tensor  # models, samples, ...
    y: Tensor  # models, samples


@dataclass(frozen=True)
class Case:
    """A number of models with one architecture, each with a number of samples."""

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


def ours(start: Model, client: tuple[int, Samples]) -> Model:
    model, data = client
    return train(start, data, HOW, UNDEFENDED, client_context(model).with_model(start))


def one_after_another(start: Model, data: Sequence[Samples]) -> list[Params]:
    with one_thread():
        return [ours(start, client).params for client in enumerate(data)]


def on_all_cores(start: Model, data: Sequence[Samples]) -> list[Params]:
    return [model.params for model in run_in_parallel(partial(ours, start), enumerate(data))]


def shuffled(data: Sequence[Samples]) -> list[Samples]:
    """Return each model's samples in the order in which :func:`ours` trains on them."""
    return [
        samples.take(torch.randperm(len(samples), generator=client_context(model).rng("batches")))
        for model, samples in enumerate(data)
    ]


def usual(start: Model, data: Sequence[Samples]) -> list[Params]:
    trained = []
    for samples in shuffled(data):
        module = start.module().train()
        optimizer = torch.optim.SGD(module.parameters(), lr=HOW.lr)
        for part in chunks(len(samples), HOW.batch_size):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(samples.features[part]), samples.labels[part])
            torch.autograd.backward(loss)
            optimizer.step()
        trained.append({name: value.detach() for name, value in module.named_parameters()})
    return trained


def bare_steps(start: Model, data: Sequence[Samples]) -> list[Params]:
    trained = []
    for samples in shuffled(data):
        module = load_module(start, "bare steps").train()
        steps = manual_steps(module)
        assert steps is not None
        for part in chunks(len(samples), HOW.batch_size):
            slope = partial(cross_entropy_slope, y=samples.labels[part])
            steps.descend(samples.features[part], slope, lr=HOW.lr)
        trained.append(Model.of(start.architecture, module).params)
    return trained


Step = Callable[[Params, Tensor, Tensor], None]


def as_one_batch(
    kind: Callable[[Model], Step], start: Model, data: Sequence[Samples]
) -> list[Params]:
    """Train all models together, by steps that change stacked parameters in place."""
    ordered = shuffled(data)
    stack = Stack(
        torch.stack([samples.features for samples in ordered]),
        torch.stack([samples.labels for samples in ordered]),
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
        grads = gradients(params, x, y)
        torch._foreach_add_(list(params.values()), [grads[n] for n in params], alpha=-HOW.lr)

    return step


def by_groups(start: Model) -> Step:
    """Return steps by grouped convolutions, and by batched products for linear layers."""

    def step(params: Params, x: Tensor, y: Tensor) -> None:
        leaves = [value.requires_grad_() for value in params.values()]
        *filters, weight, bias = leaves
        models, samples = y.shape
        # In this memory order, convolutions take 60 % of the time of the usual order.
        order = torch.channels_last
        hidden = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=order)
        for kernel, offset in zip(filters[::2], filters[1::2], strict=True):
            grouped = kernel.flatten(0, 1).contiguous(memory_format=order)
            hidden = functional.conv2d(hidden, grouped, offset.flatten(), padding=1, groups=models)
            hidden = functional.max_pool2d(hidden, 2).relu()
        rows = hidden.reshape(samples, models, -1).transpose(0, 1)
        outputs = torch.baddbmm(bias[:, None], rows, weight.mT)
        loss = functional.cross_entropy(outputs.flatten(0, 1), y.flatten()) * models
        grads = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            torch._foreach_add_(leaves, list(grads), alpha=-HOW.lr)

    return step


def by_products(start: Model) -> Step:
    """Return fedaudit's manual steps for an MLP, with batched instead of plain products."""

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


def largest_difference(trained: list[Params], expected: list[Params]) -> float:
    """Return the largest absolute difference of a parameter."""
    return max(
        float((first[name] - second[name]).detach().abs().max())
        for first, second in zip(trained, expected, strict=True)
        for name in second
    )


def row(case: Case, turns: int) -> str:
    start = case.architecture.initial(1)
    data = [case.data(model) for model in range(case.models)]
    manually = by_products if case.architecture is MLP else by_groups
    run: dict[str, Callable[[], list[Params]]] = {
        "usual": partial(usual, start, data),
        "ours": partial(one_after_another, start, data),
        "bare": partial(bare_steps, start, data),
        "vmap": partial(as_one_batch, by_vmap, start, data),
        "batch": partial(as_one_batch, manually, start, data),
    }
    expected = run["ours"]()
    variants = ("bare", "vmap", "batch")
    difference = max(largest_difference(run[name](), expected) for name in variants)
    seconds = medians(run, process_time, turns)
    rate = case.models * case.samples / seconds["ours"]
    times = [
        f"{seconds[name] / seconds['ours']:.2f}" for name in ("usual", "bare", "vmap", "batch")
    ]
    several = on_cores(partial(on_all_cores, start, data), run["ours"], turns)
    return (
        f"| {case.name} | {rate:,.0f}/s | {' | '.join(times)} | {several.work:.2f} | "
        f"{several.wait:.2f} | {difference:.0e} |"
    )


class Ratios(NamedTuple):
    """Time of training in parallel, divided by that of training one by one."""

    work: float  # CPU time
    wait: float  # wall time


def on_cores(several: Callable[[], object], single: Callable[[], object], turns: int) -> Ratios:
    ratios = []
    for _ in range(turns):
        spent = []
        for run in (several, single):
            work, wait = process_time(), perf_counter()
            run()
            spent.append((process_time() - work, perf_counter() - wait))
        (work, wait), (usual_work, usual_wait) = spent
        ratios.append(Ratios(work / usual_work, wait / usual_wait))
    return Ratios(*(median(column) for column in zip(*ratios[1:], strict=True)))


def seconds_of_risks(size: int) -> float:
    """Return the CPU time of the risks of two models, with shadow models of this size."""
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
    parser.add_argument(
        "--size", type=int, default=1000, help="samples of a shadow model, for the time of risks"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    cores = os.cpu_count() or 1
    print(f"torch {torch.__version__}, {cores} cores, load {os.getloadavg()[0]:.1f}\n")
    print(
        "| models | fedaudit, one by one | usual loop | bare steps | one batch, vmap | "
        "one batch, manual | in parallel | its wall time | largest difference |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for case in CASES:
        print(row(case, args.turns), flush=True)
    text = f"\nRisks of two models, three shadow models of {args.size} samples each, one epoch: "
    print(text, end="", flush=True)
    print(f"{seconds_of_risks(args.size):.1f} s of CPU time")


if __name__ == "__main__":
    main()
