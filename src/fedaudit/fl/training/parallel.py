"""Parallel execution of independent computations in threads, one per processor core."""

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
    sequential: bool = False,
) -> list[Result]:
    """Apply a function to each item in threads; results do not depend on the number of cores.

    Threads are used because torch releases the interpreter lock while it computes, and because they
    need no copies of data and models.

    Args:
        work: Function that computes on one thread and draws from its own generators.
        items: Inputs of the function.
        device: Device of the computation. On a GPU, items are processed one after another.
        sequential: Whether to process items one after another on CPUs as well. This is necessary
            if the function uses torch's global generator.
    """
    tasks = list(items)
    max_threads = 1 if sequential else by_kind(device, cpu=_cores(), gpu=1)
    count = max(1, min(len(tasks), max_threads))
    # Building a module draws from the global generator and restores it, which is not thread-safe.
    # Therefore, ``fork_generators`` restores it when all threads are done.
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
    return runs_custom_code(module) or any(map(_is_random, module.modules()))


def _is_random(layer: nn.Module) -> bool:
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
