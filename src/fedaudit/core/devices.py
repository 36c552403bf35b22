"""Devices for computing: the only part that knows about GPUs.

Data, models and measurements rest on the CPU. Training, outputs and gradients move what they
need to a device for the length of a call, and bring results back.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Model, Params, Samples

CPU = torch.device("cpu")

Choice = TypeVar("Choice")


def device_named(name: str) -> torch.device:
    """The device of that name.

    Args:
        name: "cpu", "cuda" for the first GPU, or "cuda:1" for another.

    Raises:
        BadInput: There is no such device, or this machine has none.
    """
    known = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name)
    if known is None or name.startswith("cpu:"):
        why = (
            "mps has no double precision, in which gradients are added up"
            if name.partition(":")[0] == "mps"
            else 'a device is "cpu", "cuda" or "cuda:1"'
        )
        raise BadInput(f"{name!r} cannot be computed on: {why}; this machine has {_here()}")
    kind, index = known[1], int(known[2] or 0)
    if kind == "cpu":
        return CPU
    if index >= _gpus():
        raise BadInput(
            f"this machine, with torch {torch.__version__}, has no device {name!r}; "
            f"it has {_here()}"
        )
    return torch.device(kind, index)


def described(device: torch.device) -> str:
    """The device's make, for records; empty for the CPU."""
    return "" if device.type == "cpu" else f"{torch.cuda.get_device_name(device)} ({device.type})"


def by_kind(device: torch.device, *, cpu: Choice, gpu: Choice) -> Choice:
    """One constant for CPUs, another for everything else."""
    return cpu if device.type == "cpu" else gpu


def refuse_several_workers(device: torch.device, workers: int) -> None:
    """A GPU is kept busy by one process; several would share its memory and wait for each other.

    Raises:
        Unsupported: More than one worker on anything but the CPU.
    """
    if device.type != "cpu" and workers > 1:
        raise Unsupported(
            f"one worker computes on {device}, got {workers}; use one worker, or the CPU"
        )


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Inside, a GPU calculates in full 32 bits and by repeatable algorithms; a CPU as always.

    Raises:
        Unsupported: The device has run out of memory.
    """
    if device.type == "cpu":
        yield
        return
    try:
        with _repeatable(), _full_precision():
            yield
    except torch.OutOfMemoryError as error:
        raise Unsupported(
            f"{device} has run out of memory; make batches or the model smaller, free memory "
            "there, or use another device"
        ) from error


def forked(device: torch.device) -> AbstractContextManager[None]:
    """Inside, the global generators of CPU and device may be used; they are put back after."""
    return torch.random.fork_rng(devices=[] if device.type == "cpu" else [device])


def params_on(params: Params, device: torch.device) -> Params:
    """The tensors on the device; those that are there already are not copied."""
    return {name: value.to(device) for name, value in params.items()}


def model_on(model: Model, device: torch.device) -> Model:
    """The model with parameters and buffers on the device."""
    return Model(
        model.architecture, params_on(model.params, device), params_on(model.buffers, device)
    )


def samples_on(samples: Samples, device: torch.device) -> Samples:
    """The samples on the device."""
    return samples.each(lambda part: part.to(device))


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _here() -> str:
    return ", ".join(["cpu", *(f"cuda:{index}" for index in range(_gpus()))])


@contextmanager
def _repeatable() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


@contextmanager
def _full_precision() -> Iterator[None]:
    """No TF32: its 10 bits would show in every cosine. torch allows it in convolutions."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    newer = _newer_switches()
    precisions = [switch.fp32_precision for switch in newer]
    # The older switches may only be read where nobody has used the newer ones.
    older = (
        _Older(precisions[0] == "tf32", precisions[-1] == "tf32")
        if newer
        else _Older(cudnn.allow_tf32, matmul.allow_tf32)
    )
    _switch(_Older(False, False), ["ieee"] * len(newer))
    try:
        yield
    finally:
        _switch(older, precisions)


class _Older(NamedTuple):
    """True if TF32 is allowed, as torch before 2.9 has it."""

    convolutions: bool
    products: bool


@runtime_checkable
class _Switch(Protocol):
    """A kind of operation, as torch from 2.9 on has it."""

    fp32_precision: str


def _newer_switches() -> list[_Switch]:
    cudnn = torch.backends.cudnn
    matmul: _Switch | None = getattr(torch.backends.cuda, "matmul", None)
    found = [getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), matmul]
    return [] if None in found else [switch for switch in found if switch is not None]


def _switch(older: _Older, precisions: Sequence[str]) -> None:
    # The older ones first: torch refuses to go on where the two sorts disagree.
    torch.backends.cudnn.allow_tf32 = older.convolutions
    torch.backends.cuda.matmul.allow_tf32 = older.products
    for switch, precision in zip(_newer_switches(), precisions, strict=True):
        switch.fp32_precision = precision
