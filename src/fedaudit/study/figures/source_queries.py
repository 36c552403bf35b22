"""Samples that a source attack is asked about, and its answers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements
from fedaudit.study.setup.parts import Setup


class SourceQueries(NamedTuple):
    """Samples whose owner is asked for, as many of each client.

    Attributes:
        kept: Their positions in the audit set.
        owner: Their clients, as positions among all clients.
        labels: Their classes.
        clients: All clients, ascending.
    """

    kept: Int[ndarray, " samples"]
    owner: Int[ndarray, " samples"]
    labels: Int[ndarray, " samples"]
    clients: tuple[ClientId, ...]


def asked(run: Setup) -> SourceQueries | None:
    """As many audited samples of every client as the one with fewest has; None if one has none."""
    audit, clients = run.deal.audit, tuple(sorted(run.deal.clients))
    rng = seeded_numpy(run.seed, "source")
    theirs = [rng.permutation(np.flatnonzero(audit.owner == client)) for client in clients]
    each = min(len(positions) for positions in theirs)
    if not each:
        return None
    kept = np.sort(np.concatenate([positions[:each] for positions in theirs]))
    owner = np.searchsorted(clients, audit.owner[kept])
    return SourceQueries(kept, owner, audit.samples.labels.numpy()[kept], clients)


def asked_alone(
    attack: Attack, measured: Mapping[str, Measurements], samples: SourceQueries
) -> dict[str, Measurements]:
    """The signals of an attack at the samples whose owner is asked for."""
    kept, names = torch.from_numpy(samples.kept), {signal.name for signal in attack.signals}
    return {
        name: replace(m, values=m.values[:, :, kept])
        for name, m in measured.items()
        if name in names
    }


def chances(
    run: Setup, attack: Attack, cubes: Mapping[str, Measurements], samples: SourceQueries
) -> Float[ndarray, "clients samples"]:
    """Chances of all clients, in their order; none for who was never measured."""
    found = attack.posterior(cubes, run.deal.sizes).numpy()
    clients = cubes[attack.signals[0].name].clients
    chances = np.zeros((len(samples.clients), len(samples.kept)))
    chances[np.searchsorted(samples.clients, clients)] = found
    return chances


def one_by_one(attack: Attack, cubes: Mapping[str, Measurements]) -> list[dict[str, Measurements]]:
    """The measurements of each round alone, for an attack that needs no more."""
    if Sees.ROUNDS in attack.needs:
        return []
    rounds = next(iter(cubes.values())).rounds
    return [{name: _only(m, row) for name, m in cubes.items()} for row in range(len(rounds))]


def _only(m: Measurements, row: int) -> Measurements:
    return replace(
        m,
        values=m.values[row : row + 1],
        rounds=m.rounds[row : row + 1],
        bases=m.bases[row : row + 1],
        stands_for=m.stands_for[row : row + 1],
    )
