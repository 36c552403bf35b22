"""Trainings that have nothing to do with each other, side by side: one a processor core."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import nn

from fedaudit.core.devices import CPU, by_kind, computing_on, fork_generators
from fedaudit.core.modules import runs_custom_code
from fedaudit.core.values import Model
from fedaudit.engines.local import one_thread

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    device: torch.device = CPU,
    alone: bool = False,
) -> list[Result]:
    """Return the results of the work on each item, in order, whatever the number of cores.

    Threads rather than processes: torch releases the interpreter lock while it calculates, and
    neither data nor models are copied.

    Args:
        work: Function that calculates on one thread and draws from its own generators.
        items: What to work on.
        device: Where the work calculates; a GPU takes one item after another.
        alone: One after another on CPUs too: for work that uses torch's global generator.
    """
    tasks = list(items)
    most_threads = 1 if alone else by_kind(device, cpu=_cores(), gpu=1)
    count = max(1, min(len(tasks), most_threads))
    # Building a module draws from the global generator and puts it back, which several threads
    # at once cannot do: it is put back once more, when all are done.
    with (
        computing_on(device),
        fork_generators(device),
        one_thread(),
        ThreadPoolExecutor(count, initializer=_worker) as pool,
    ):
        return list(pool.map(work, tasks))


def draws_as_it_trains(model: Model) -> bool:
    """True if training a model may draw from torch's global generator, as dropout does.

    So may any code of somebody else's.
    """
    module = model.module()
    return runs_custom_code(module) or any(map(_draws, module.modules()))


def _draws(part: nn.Module) -> bool:
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, nn.RNNBase | nn.MultiheadAttention):
        return part.dropout > 0
    return isinstance(part, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _worker() -> None:
    torch.set_num_threads(1)
