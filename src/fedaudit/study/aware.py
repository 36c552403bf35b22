"""Side information of an adversary that knows the defense: its target's classes by round."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId
from fedaudit.defenses.base import Visit
from fedaudit.observe.measurements import Measurements
from fedaudit.study.guided import class_guided
from fedaudit.study.parts import Setup


def used_when(
    setup: Setup, target: ClientId, m: Measurements, labels: Int[Tensor, " samples"]
) -> dict[int, Bool[Tensor, " samples"]]:
    """By measured round, whether the target's training can have included a sample, by its class.

    Samples that a defense brings back against the assignment are not foreseen. Of clients that
    are attacked as one, any may have trained on a sample.

    Args:
        setup: The run.
        target: The client under audit.
        m: Any of the run's measurements.
        labels: Classes of the samples.
    """
    merged = setup.study.audit.merge
    clients = merged if target in merged else (target,)
    return {
        index: torch.stack(
            [_trains_on(setup, client, index, _cohort(m, row), labels) for client in clients]
        ).any(0)
        for row, index in enumerate(m.rounds)
    }


def _cohort(m: Measurements, row: int) -> tuple[ClientId, ...]:
    """The clients that were there in a round, as far as the adversary can tell them apart."""
    there = [c for c, base in zip(m.clients, m.bases[row].tolist(), strict=True) if base >= 0]
    groups: Mapping[ClientId, ClientId] = m.stands_for[row] if m.stands_for else {}
    return tuple(sorted({*there, *groups}))


def _trains_on(
    setup: Setup,
    client: ClientId,
    index: int,
    cohort: tuple[ClientId, ...],
    labels: Int[Tensor, " samples"],
) -> Bool[Tensor, " samples"]:
    defense = setup.defenses.get(client)
    if defense is None or not class_guided(defense):
        return torch.ones(len(labels), dtype=torch.bool)
    if client not in cohort:
        return torch.zeros(len(labels), dtype=torch.bool)
    visit = Visit(
        round=index,
        rounds=setup.study.training.rounds,
        client=client,
        cohort=cohort,
        weights={},
        seed=seed_for(setup.seed, "federation"),
    )
    return defense.dealt(visit, classes=setup.dataset.classes)[labels]
