"""Devices for computing: the only module that knows about GPUs.

Data, models and measurements are stored on the CPU. Training, outputs and gradients are computed on
a device: each call moves its inputs to the device, and its results back.
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
    """Return the device of a name.

    Args:
        name: "cpu", "cuda" for the first GPU, or "cuda:1" for another.

    Raises:
        BadInput: There is no such device on this machine.
    """
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name)
    if match is None or name.startswith("cpu:"):
        why = (
            "mps has no double precision, in which gradients are summed"
            if name.partition(":")[0] == "mps"
            else 'a device is "cpu", "cuda" or "cuda:1"'
        )
        raise BadInput(f"{name!r} cannot be computed on: {why}; this machine has {_device_names()}")
    kind, index = match[1], int(match[2] or 0)
    if kind == "cpu":
        return CPU
    if index >= _gpus():
        raise BadInput(
            f"this machine, with torch {torch.__version__}, has no device {name!r}; "
            f"it has {_device_names()}"
        )
    return torch.device(kind, index)


def device_model(device: torch.device) -> str:
    """Return the model of a device, for records; empty for the CPU."""
    return "" if device.type == "cpu" else f"{torch.cuda.get_device_name(device)} ({device.type})"


def by_kind(device: torch.device, *, cpu: Choice, gpu: Choice) -> Choice:
    """Return one of two constants: for CPUs, or for all other devices."""
    return cpu if device.type == "cpu" else gpu


def refuse_several_workers(device: torch.device, workers: int) -> None:
    """Raise if several workers would share a GPU, where they would wait for each other."""
    if device.type != "cpu" and workers > 1:
        raise Unsupported(
            f"one worker computes on {device}, got {workers}; use one worker, or the CPU"
        )


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Inside, a GPU computes in full 32-bit precision and with deterministic algorithms.

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
            f"{device} has run out of memory; use smaller batches or a smaller model, free memory "
            "on the device, or use another one"
        ) from error


def fork_generators(device: torch.device) -> AbstractContextManager[None]:
    """Inside, the global generators of CPU and device may be used; afterwards they are restored."""
    return torch.random.fork_rng(devices=[] if device.type == "cpu" else [device])


def params_on(params: Params, device: torch.device) -> Params:
    """Move tensors to a device, without copying those that are on it already."""
    return {name: value.to(device) for name, value in params.items()}


def model_on(model: Model, device: torch.device) -> Model:
    """Move a model's parameters and buffers to a device."""
    return Model(
        model.architecture, params_on(model.params, device), params_on(model.buffers, device)
    )


def samples_on(samples: Samples, device: torch.device) -> Samples:
    """Move samples to a device."""
    return samples.each(lambda part: part.to(device))


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _device_names() -> str:
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
    """Inside, disable TF32, which torch allows in convolutions: cosines would have 10 bits."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    newer = _new_switches()
    precisions = [switch.fp32_precision for switch in newer]
    # torch raises an error if the old switches are read after the new ones were used.
    older = (
        _OldSwitches(precisions[0] == "tf32", precisions[-1] == "tf32")
        if newer
        else _OldSwitches(cudnn.allow_tf32, matmul.allow_tf32)
    )
    _switch(_OldSwitches(False, False), ["ieee"] * len(newer))
    try:
        yield
    finally:
        _switch(older, precisions)


class _OldSwitches(NamedTuple):
    """Whether TF32 is allowed, in the form of torch before 2.9."""

    convolutions: bool
    products: bool


@runtime_checkable
class _Switch(Protocol):
    """Precision of a kind of operation, in the form of torch from 2.9 on."""

    fp32_precision: str


def _new_switches() -> list[_Switch]:
    cudnn = torch.backends.cudnn
    matmul: _Switch | None = getattr(torch.backends.cuda, "matmul", None)
    switches = [getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), matmul]
    return [] if None in switches else [switch for switch in switches if switch is not None]


def _switch(older: _OldSwitches, precisions: Sequence[str]) -> None:
    # The old switches come first: torch raises an error while the two kinds disagree.
    torch.backends.cudnn.allow_tf32 = older.convolutions
    torch.backends.cuda.matmul.allow_tf32 = older.products
    for switch, precision in zip(_new_switches(), precisions, strict=True):
        switch.fp32_precision = precision
