"""Compute devices. No other module handles GPUs.

Data, models and measurements are stored on the CPU. Training, outputs and gradients are computed on
a device: each call moves its inputs to the device, and its results back to the CPU.
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
    """Return the device with this name.

    Args:
        name: "cpu", "cuda" for the first GPU, or "cuda:1" for another.

    Raises:
        BadInput: There is no such device on this machine.
    """
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name)
    if match is None or name.startswith("cpu:"):
        reason = 'a device is "cpu", "cuda" or "cuda:1"'
        if name.partition(":")[0] == "mps":
            reason = "mps has no double precision, in which gradients are summed"
        raise BadInput(
            f"{name!r} is not a device that fedaudit supports: {reason}; this machine has "
            f"{_device_names()}"
        )
    kind, index = match[1], int(match[2] or 0)
    if kind == "cpu":
        return CPU
    if index >= _gpu_count():
        raise BadInput(
            f"this machine, with torch {torch.__version__}, has no device {name!r}; "
            f"it has {_device_names()}"
        )
    return torch.device(kind, index)


def device_model(device: torch.device) -> str:
    """Return the model of a device, for records; empty for the CPU."""
    return "" if device.type == "cpu" else f"{torch.cuda.get_device_name(device)} ({device.type})"


def by_kind(device: torch.device, *, cpu: Choice, gpu: Choice) -> Choice:
    """Return ``cpu`` if the device is a CPU, else ``gpu``."""
    return cpu if device.type == "cpu" else gpu


def raise_if_several_workers(device: torch.device, workers: int) -> None:
    """Raise if several workers would share a GPU, where they would wait for each other."""
    if device.type != "cpu" and workers > 1:
        raise Unsupported(
            f"one worker computes on {device}, got {workers}; use one worker, or the CPU"
        )


@contextmanager
def computing_on(device: torch.device) -> Iterator[None]:
    """Make a GPU compute in full 32-bit precision and deterministically within the context.

    Raises:
        Unsupported: The device has run out of memory.
    """
    if device.type == "cpu":
        yield
        return
    try:
        with _deterministic(), _full_precision():
            yield
    except torch.OutOfMemoryError as error:
        raise Unsupported(
            f"{device} has run out of memory; use smaller batches or a smaller model, free memory "
            "on the device, or use another one"
        ) from error


def fork_generators(device: torch.device) -> AbstractContextManager[None]:
    """Restore the global random generators of CPU and device at the end of the context."""
    return torch.random.fork_rng(devices=[] if device.type == "cpu" else [device])


def params_on(params: Params, device: torch.device) -> Params:
    """Move tensors to a device. Tensors that are already there are not copied."""
    return {name: value.to(device) for name, value in params.items()}


def model_on(model: Model, device: torch.device) -> Model:
    """Move a model's parameters and buffers to a device."""
    return Model(
        model.architecture, params_on(model.params, device), params_on(model.buffers, device)
    )


def samples_on(samples: Samples, device: torch.device) -> Samples:
    """Move samples to a device."""
    return samples.each(lambda part: part.to(device))


def _gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _device_names() -> str:
    return ", ".join(["cpu", *(f"cuda:{index}" for index in range(_gpu_count()))])


@contextmanager
def _deterministic() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


@contextmanager
def _full_precision() -> Iterator[None]:
    """Disable TF32 within the context.

    By default, torch uses it in convolutions, so that cosines would have a precision of 10 bits.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    new_switches = _new_switches()
    precisions = [switch.fp32_precision for switch in new_switches]
    # torch raises an error if the old switches are read after the new ones were used.
    old_switches = (
        _OldSwitches(precisions[0] == "tf32", precisions[-1] == "tf32")
        if new_switches
        else _OldSwitches(cudnn.allow_tf32, matmul.allow_tf32)
    )
    _set_switches(_OldSwitches(False, False), ["ieee"] * len(new_switches))
    try:
        yield
    finally:
        _set_switches(old_switches, precisions)


class _OldSwitches(NamedTuple):
    """Whether TF32 is allowed, as torch before 2.9 sets it."""

    convolutions: bool
    matmuls: bool


@runtime_checkable
class _Switch(Protocol):
    """Precision of a kind of operation, as torch sets it from 2.9 on."""

    fp32_precision: str


def _new_switches() -> list[_Switch]:
    cudnn = torch.backends.cudnn
    matmul: _Switch | None = getattr(torch.backends.cuda, "matmul", None)
    switches = [getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), matmul]
    return [] if None in switches else [switch for switch in switches if switch is not None]


def _set_switches(old_switches: _OldSwitches, precisions: Sequence[str]) -> None:
    # The old switches are set first: torch raises an error while old and new ones disagree.
    torch.backends.cudnn.allow_tf32 = old_switches.convolutions
    torch.backends.cuda.matmul.allow_tf32 = old_switches.matmuls
    for switch, precision in zip(_new_switches(), precisions, strict=True):
        switch.fp32_precision = precision
