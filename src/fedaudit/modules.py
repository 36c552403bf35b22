"""Modules that are kept and refilled, because building one costs more than a small step."""

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fedaudit.core import Architecture, Model, chunks
from fedaudit.devices import CPU, by_kind, computing_on
from fedaudit.layout import laid_out

_kept = threading.local()
CHUNK = 128
_CHUNK_ON_GPU = 512


_Key: TypeAlias = tuple[Architecture, str, torch.device]


class _Kept(NamedTuple):
    build: Callable[[], nn.Module]
    module: nn.Module


def loaded(model: Model, use: str, device: torch.device = CPU) -> nn.Module:
    """A kept module of the model's architecture, refilled with the model's parameters.

    It is valid until the next call with the same architecture, ``use`` and device in this
    thread, so that callers who need two at once name two uses. Its training mode is the
    caller's to set.

    Args:
        model: What to run.
        use: Names the purpose, such as "training" or "evaluation".
        device: Where the module is.
    """
    modules: dict[_Key, _Kept] = _kept.__dict__.setdefault("modules", {})
    key, build = (model.architecture, use, device), model.architecture.build
    if key not in modules or not _same(modules[key].build, build):
        with torch.random.fork_rng(devices=[]):
            built = build().to(device)
            # The order in memory is chosen for CPUs.
            modules[key] = _Kept(build, laid_out(built) if device.type == "cpu" else built)
    module = model.load_into(modules[key].module)
    for name, buffer in module.named_buffers():
        if name.endswith("num_batches_tracked"):
            # Batch normalisation that averages over all batches weighs them by this count:
            # left from an earlier client, it would make results depend on the engine.
            buffer.zero_()
    return module


def _same(one: Callable[[], nn.Module], other: Callable[[], nn.Module]) -> bool:
    """Whether two functions build the same module.

    Names are not enough: in a notebook, a network is changed and keeps its name. Nor is
    identity: what arrives in another process is a copy each time.
    """
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one == other


def outputs_of(model: Model, features: Tensor, device: torch.device = CPU) -> Tensor:
    """A model's outputs on samples, in evaluation mode and without gradients.

    Args:
        model: What to run.
        features: One row a sample.
        device: Where to run it; the outputs come back to where the features are.
    """
    size = by_kind(device, cpu=CHUNK, gpu=_CHUNK_ON_GPU)
    with computing_on(device), torch.no_grad():
        module = loaded(model, "evaluation", device).eval()
        parts = [module(features[part].to(device)) for part in chunks(len(features), size)]
        return torch.cat(parts).to(features.device)
