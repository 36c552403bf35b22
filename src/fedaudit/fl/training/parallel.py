"""Parallel execution of independent trainings, one per processor core."""

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


def run_in_parallel(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    device: torch.device = CPU,
    alone: bool = False,
) -> list[Result]:
    """Apply a function to each item in threads; results do not depend on the number of cores.

    Threads are used because torch releases the interpreter lock while it computes, and because they
    need no copies of data and models.

    Args:
        work: Function that computes on one thread and draws from its own generators.
        items: Inputs of the function.
        device: Device of the work; a GPU processes one item after another.
        alone: Whether to process one item after another on CPUs as well, for work that uses torch's
            global generator.
    """
    tasks = list(items)
    most_threads = 1 if alone else by_kind(device, cpu=_cores(), gpu=1)
    count = max(1, min(len(tasks), most_threads))
    # Building a module draws from the global generator and restores it, which is not thread-safe.
    # ``forked`` restores it again when all threads are done.
    with (
        computing_on(device),
        fork_generators(device),
        one_thread(),
        ThreadPoolExecutor(count, initializer=lambda: torch.set_num_threads(1)) as pool,
    ):
        return list(pool.map(work, tasks))


def uses_global_rng(model: Model) -> bool:
    """Return True if training may draw from torch's global generator, by dropout or custom code."""
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
