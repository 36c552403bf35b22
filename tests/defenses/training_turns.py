"""A client's turn with a model of a few classes, for tests of what acts in training."""

from fedaudit.defenses.base import Turn, Visit
from fedaudit.models import architecture


def turn(
    *,
    shape: tuple[int, ...] = (4,),
    classes: int = 3,
    round: int = 1,
    client: int = 0,
    seed: int = 0,
) -> Turn:
    visit = Visit(
        round=round, rounds=9, client=client, cohort=(client,), weights={client: 1.0}, seed=seed
    )
    return visit.at(architecture("mlp", shape=shape, classes=classes, hidden="").initial(0))
