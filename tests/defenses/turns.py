"""A client's turn, for tests of what a defense does in it."""

from collections.abc import Mapping
from functools import cache

from fedaudit.core.values import Architecture, ClientId, Model
from fedaudit.fl.hooks import ClientContext, TrainingContext
from fedaudit.models import architecture


def context(
    round: int = 1,
    client: int = 0,
    seed: int = 0,
    *,
    weights: Mapping[ClientId, float] | None = None,
    net: Architecture | None = None,
    shape: tuple[int, ...] = (4,),
    classes: int = 3,
) -> TrainingContext:
    """Return a context with the given weights and model, by default a small dense network."""
    shares = {client: 1.0} if weights is None else weights
    client_context = ClientContext(
        round=round, rounds=10, client=client, cohort=tuple(shares), weights=shares, seed=seed
    )
    return client_context.with_model(net.initial(0) if net else _dense(shape, classes))


@cache
def _dense(shape: tuple[int, ...], classes: int) -> Model:
    return architecture("mlp", shape=shape, classes=classes, hidden="").initial(0)
