"""Modules that are kept and refilled, because building one costs more than a small step."""

import threading

import torch
from torch import nn

from fedaudit.core import Architecture, Model

_kept = threading.local()


def loaded(model: Model, use: str) -> nn.Module:
    """A kept module of the model's architecture, refilled with the model's parameters.

    It is valid until the next call with the same architecture and ``use`` in this thread, so
    that callers who need two at once name two uses. Its training mode is the caller's to set.

    Args:
        model: What to run.
        use: Names the purpose, such as "training" or "evaluation".
    """
    modules: dict[tuple[Architecture, str], nn.Module] = _kept.__dict__.setdefault("modules", {})
    key = (model.architecture, use)
    if key not in modules:
        with torch.random.fork_rng(devices=[]):
            modules[key] = model.architecture.build()
    module = model.load_into(modules[key])
    for name, buffer in module.named_buffers():
        if name.endswith("num_batches_tracked"):
            # Batch normalisation that averages over all batches weighs them by this count:
            # left from an earlier client, it would make results depend on the engine.
            buffer.zero_()
    return module
