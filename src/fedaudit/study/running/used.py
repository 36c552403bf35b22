"""Samples and costs of a run's clients, as a record has them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedaudit.observe.measurements import Stored
from fedaudit.observe.usage import Usage, read_usage
from fedaudit.results.record import UsageRow
from fedaudit.study.running.identity import run_key
from fedaudit.study.running.observing import measured_on
from fedaudit.study.setup.parts import Setup

MOST_CLIENTS = 50
"""Of larger federations, only the audited clients are told of."""


def usage_rows(run: Setup, place: Path, stored: Sequence[Stored]) -> list[UsageRow]:
    """Uses of each client's samples, and the cost of its defense.

    Args:
        run: The run.
        place: Its folder; one that an older fedaudit wrote tells nothing.
        stored: Its measured rounds, for the kind of device.
    """
    usage = read_usage(place, run_key(run.study, run.seed, measured_on(stored)))
    if usage is None:
        return []
    targets = run.study.audit.targets
    told = usage.clients if len(usage.clients) <= MOST_CLIENTS else targets
    return [_row(run, usage, client) for client in usage.clients if client in told]


def _row(run: Setup, usage: Usage, client: int) -> UsageRow:
    at = usage.clients.index(client)
    return UsageRow(
        defense=run.study.defense.label,
        seed=run.seed,
        client=client,
        defended=client in run.defenses,
        samples=len(usage.ids[client]),
        distinct=usage.distinct[:, at].tolist(),
        times_used=_histogram(usage.used[client]),
        times_recycled=_histogram(usage.recycled[client]),
        extra_bytes=int(usage.extra_bytes[:, at].sum()),
        seconds=float(usage.seconds[:, at].sum()),
        filter_cosine=_mean(usage.filter_cosine[:, at]),
    )


def _mean(cosines: Tensor) -> float | None:
    """Over the rounds that have one."""
    known = cosines[~cosines.isnan()]
    # Rounding may leave a cosine just outside of what it can be.
    return float(known.mean().clamp(-1, 1)) if len(known) else None


def _histogram(times: Tensor) -> list[int]:
    """Counts of samples used 0 times, once, twice ..."""
    return np.bincount(times.numpy()).tolist() if len(times) else []
