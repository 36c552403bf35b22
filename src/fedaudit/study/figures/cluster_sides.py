"""Which samples the real risk of a model is found on: of its members, and of nobody."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core.values import Samples
from fedaudit.datasets.partitions.schemes import Iid
from fedaudit.study.setup.dealing import partition_of
from fedaudit.study.setup.parts import Setup

ASKED = 5_000
"""Real members of a model, and as many samples of nobody, that its risk is found on, at most."""


class Sides(NamedTuple):
    """Samples that a model was trained on, and others like them that it was not."""

    members: Samples
    others: Samples


def sides(
    run: Setup,
    trained: Sequence[Samples],
    like: Bool[Tensor, " samples"],
    *,
    rng: torch.Generator,
) -> Sides:
    """Members and non-members that are asked about.

    Where clients' classes are skewed, there are as many samples of each class on both sides:
    otherwise a class that the clients have much of, and that their model therefore expects, would
    pass for membership.

    Args:
        run: The run.
        trained: What each of the model's clients trains on.
        like: Test samples that are shifted as these clients' are.
        rng: Draws those that are asked about.
    """
    tests = run.dataset.test.take(like)
    if isinstance(partition_of(run.study), Iid):
        return Sides(_some(trained, rng), _some([tests], rng))
    labels, free = torch.cat([samples.labels for samples in trained]), tests.labels
    inside, outside = torch.zeros_like(labels).bool(), torch.zeros_like(free).bool()
    for number in range(run.dataset.classes):
        members, others = ((of == number).nonzero().flatten() for of in (labels, free))
        most = min(len(members), len(others))
        inside[members[torch.randperm(len(members), generator=rng)[:most]]] = True
        outside[others[torch.randperm(len(others), generator=rng)[:most]]] = True
    parts = torch.split(inside, [len(samples) for samples in trained])
    kept = [samples.take(part) for samples, part in zip(trained, parts, strict=True)]
    return Sides(_some(kept, rng), _some([tests.take(outside)], rng))


def _some(parts: Sequence[Samples], rng: torch.Generator) -> Samples:
    """At most ``ASKED`` of all parts' samples; not joined first, since that may fill the memory."""
    sizes = [len(part) for part in parts]
    chosen = torch.zeros(sum(sizes), dtype=torch.bool)
    chosen[torch.randperm(len(chosen), generator=rng)[:ASKED]] = True
    of_parts = zip(parts, torch.split(chosen, sizes), strict=True)
    return Samples.joined(*(part.take(mine) for part, mine in of_parts))
