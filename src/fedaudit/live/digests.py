"""Digests that identify the global models of a recording."""

import hashlib
import json
from collections.abc import Collection, Mapping

from fedaudit.core.values import ClientId, Model
from fedaudit.live.recording import GlobalModel
from fedaudit.live.weights import ModelLayout
from fedaudit.observe.layout import digest_of_model
from fedaudit.observe.tensors import digest_of


def digests_of_globals(
    layout: ModelLayout, sent: Collection[Model], after: Model | None = None
) -> dict[GlobalModel, str]:
    """Return digests of the model that all clients were sent, and of the model after the round.

    There is none for networks whose state dict has other tensors than parameters and buffers, and
    for models with untrained running statistics, which may be those of fedaudit's network.
    """
    unique_models = [*{id(model): model for model in sent}.values()]
    models: dict[GlobalModel, Model] = {"sent": unique_models[0]} if len(unique_models) == 1 else {}
    models |= {} if after is None else {"after": after}
    by_role = {
        role: digest
        for role, model in models.items()
        if not layout.unsent.are_statistics_initial(model.buffers)
        and (digest := digest_of_model(layout.network, model)) is not None
    }
    digests: dict[GlobalModel, str] = {role: digest.trained for role, digest in by_role.items()}
    bases = {digest.base for digest in by_role.values()} - {""}
    return digests | ({"base": bases.pop()} if len(bases) == 1 else {})


def digest_of_models(models: Mapping[ClientId, Model]) -> str:
    """Return the SHA-256 of the clients' models, or of their model if all have the same."""
    digests = {id(model): digest_of(model.tensors(), {}) for model in models.values()}
    if len(digests) == 1:
        return next(iter(digests.values()))
    by_client = [(client, digests[id(model)]) for client, model in sorted(models.items())]
    return hashlib.sha256(json.dumps(by_client).encode()).hexdigest()
