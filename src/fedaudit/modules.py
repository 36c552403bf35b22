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
"""Samples go through a model in pieces of at most so many on a CPU, always a power of two."""

_CHUNK_ON_GPU = 512
# What the widest layer makes of a piece is to stay in a cache.
_CACHE_BYTES = 12 << 20


_Key: TypeAlias = tuple[Architecture, str, torch.device]


class _Kept(NamedTuple):
    build: Callable[[], nn.Module]
    module: nn.Module
    pieces: dict[torch.Size, int]


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
    return _refilled(model, use, device).module


def _refilled(model: Model, use: str, device: torch.device) -> _Kept:
    modules: dict[_Key, _Kept] = _kept.__dict__.setdefault("modules", {})
    key, build = (model.architecture, use, device), model.architecture.build
    if key not in modules or not _same(modules[key].build, build):
        with torch.random.fork_rng(devices=[]):
            built = build().to(device)
            # The order in memory is chosen for CPUs.
            modules[key] = _Kept(build, laid_out(built) if device.type == "cpu" else built, {})
    module = model.load_into(modules[key].module)
    for name, buffer in module.named_buffers():
        if name.endswith("num_batches_tracked"):
            # Batch normalisation that averages over all batches weighs them by this count:
            # left from an earlier client, it would make results depend on the engine.
            buffer.zero_()
    return modules[key]


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
    with computing_on(device), torch.no_grad():
        kept = _refilled(model, "evaluation", device)
        module = kept.module.eval()
        on_cpu = _piece(kept, features) if device.type == "cpu" else CHUNK
        size = by_kind(device, cpu=on_cpu, gpu=_CHUNK_ON_GPU)
        parts = [module(features[part].to(device)) for part in chunks(len(features), size)]
        return torch.cat(parts).to(features.device)


def _piece(kept: _Kept, features: Tensor) -> int:
    """Samples that go through together: by shapes alone, so that no bit depends on timing."""
    shape = features.shape[1:]
    if shape not in kept.pieces:
        # Two, because there are networks that squeeze a lone sample's axis away.
        fitting = _CACHE_BYTES // max(1, _widest(kept.module, features[:2].cpu()))
        kept.pieces[shape] = min(CHUNK, 1 << max(0, fitting.bit_length() - 1))
    return kept.pieces[shape]


def _widest(module: nn.Module, samples: Tensor) -> int:
    """Bytes a sample of the largest tensor that a layer makes."""
    widths = [samples.nbytes]

    def look(part: nn.Module, inputs: object, outputs: object) -> None:
        if isinstance(outputs, Tensor):
            widths.append(outputs.nbytes)

    hooks = [part.register_forward_hook(look) for part in module.modules()]
    try:
        module(samples)
    finally:
        for hook in hooks:
            hook.remove()
    return max(widths) // len(samples)
