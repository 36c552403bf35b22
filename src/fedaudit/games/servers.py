"""Servers that plant a neuron for one target, each in a way of its own."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.ami.disguise import plant_disguised
from fedaudit.attacks.ami.game import Contest
from fedaudit.attacks.ami.neuron import Neurons
from fedaudit.attacks.ami.one_row import plant_one_row
from fedaudit.attacks.ami.plant import Planted, plant
from fedaudit.core import Model
from fedaudit.seeds import seeded

_RECORDS = 1000
"""The server's own records that one row is fitted to."""


class Aim(NamedTuple):
    """What a server has of its target.

    Attributes:
        target: Which of the clients' records it is.
        neuron: Trained for it.
        of_target: Copies of it, as the client might hold it.
        of_others: Records of the server's own.
        batch: Records in a client's batch.
    """

    target: int
    neuron: Neurons
    of_target: Float[Tensor, "copies features"]
    of_others: Float[Tensor, "records features"]
    batch: int


SERVERS: dict[str, Callable[[Model, Aim], Planted]] = {
    "planted": lambda model, aim: plant(model, aim.neuron),
    "disguised": lambda model, aim: plant_disguised(model, aim.neuron),
    "one-row": lambda model, aim: plant_one_row(
        model, aim.of_target, aim.of_others, batch=aim.batch
    ),
}
"""How neurons are planted, by name: as AMI does; with lengths kept and nothing set to zero; and as
one row over the first layer's units as they are."""

REPLACES_UNITS = ("planted", "disguised")
"""Servers that put units of their own into the first layer."""


def aim_at(contest: Contest, number: int) -> Aim:
    """All that a server prepares for a contest's target of that number."""
    target, rng = contest.target(number), seeded(contest.seed, "one row", number)
    copies = contest.pools.clients[target].expand(contest.rules.copies, -1)
    chosen = torch.randperm(len(contest.pools.servers), generator=rng)[:_RECORDS]
    randomise = contest.randomisers.server
    return Aim(
        target,
        contest.neurons([number]),
        randomise(copies, rng),
        randomise(contest.pools.servers[chosen], rng),
        contest.rules.batch,
    )
