"""A client's turn, for tests of what a defense does with an upload."""

from functools import partial

from torch import nn

from fedaudit.core.values import Architecture
from fedaudit.defenses.base import Turn, Visit


def turn(round: int = 1, client: int = 0, seed: int = 0) -> Turn:
    visit = Visit(
        round=round, rounds=9, client=client, cohort=(client,), weights={client: 1.0}, seed=seed
    )
    return visit.at(Architecture("net", partial(nn.Linear, 2, 1)).initial(0))
