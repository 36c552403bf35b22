"""Privacy set-ups that tests change."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from fedaudit.privacy_budget import losses

CLIENT_PHASE: Mapping[str, object] = {
    "rounds": 100,
    "protects": "client",
    "clip": 1.0,
    "noise_multiplier": 1.0,
}
SAMPLE_PHASE: Mapping[str, object] = {
    "rounds": 10,
    "protects": "sample",
    "clip": 1.0,
    "noise_multiplier": 1.0,
    "sampling": "poisson",
    "batch_size": 10,
    "epochs": 1,
}


def setup(*phases: Mapping[str, object], **settings: object) -> dict[str, object]:
    """Return the settings of a set-up with 1,000 clients of 200 samples each."""
    common = {"delta": 1e-6, "clients": 1000, "samples": 200}
    return common | settings | {"phase": [dict(phase) for phase in phases]}


def client(**settings: object) -> dict[str, object]:
    """Return a phase that protects clients."""
    return {**CLIENT_PHASE, **settings}


def sample(**settings: object) -> dict[str, object]:
    """Return a phase that protects samples."""
    return {**SAMPLE_PHASE, **settings}


@contextmanager
def coarse_grid() -> Iterator[None]:
    """Compute losses with a tenth of the grid points, for comparisons that need fewer digits."""
    losses._epsilon.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_POINTS", losses._POINTS / 10)
        yield
    losses._epsilon.cache_clear()
