"""Digests that identify the global models of a recording, and the base model of adapters.

A digest is computed from named tensors, so that the file of a model has the same digest as the
model in the training loop.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping

from torch import Tensor

from fedaudit.core.values import ClientId, Model
from fedaudit.live.recording import GlobalModel
from fedaudit.live.weights import ModelLayout, hash_of_tensor
from fedaudit.observe.tensors import digest_of

_PEFT_PARTS = re.compile(r"(^|\.)base_model\.model\.|\.(base_layer|original_module)(?=\.)")
"""Parts of names that PEFT adds to the parameters of a base model."""


def digests_of_globals(
    layout: ModelLayout, sent: Collection[Model], after: Model | None = None
) -> dict[GlobalModel, str]:
    """Return digests of the model that all clients were sent, and of the model after the round.

    A digest is the SHA-256 over the model's floating-point tensors by name. If the network has
    frozen parameters, it covers only the tensors that clients train, and the digest of the other
    tensors is that of the base model. There is none for networks whose state dict has other
    tensors, and for models with untrained running statistics, which may be those of fedaudit's
    network.
    """
    unique_models = [*{id(model): model for model in sent}.values()]
    models: dict[GlobalModel, Model] = {"sent": unique_models[0]} if len(unique_models) == 1 else {}
    models |= {} if after is None else {"after": after}
    models = {
        role: model
        for role, model in models.items()
        if not layout.unsent.are_statistics_initial(model.buffers)
    }
    if layout.equals_state_dict:
        return {
            role: digest_of({**model.params, **model.buffers}, {}) for role, model in models.items()
        }
    if not layout.adapter_names:
        return {}
    digests: dict[GlobalModel, str] = {
        role: digest_of(layout.adapter_of(model), {}) for role, model in models.items()
    }
    bases = {_base_of(layout, model) for model in models.values()} - {""}
    return digests | ({"base": bases.pop()} if len(bases) == 1 else {})


def _base_of(layout: ModelLayout, model: Model) -> str:
    # Large frozen tensors that the loop never sends are hashed only once.
    return _digest_of_hashes(
        {
            name: layout.frozen_hashes[name]
            if value is layout.frozen.get(name)
            else hash_of_tensor(value)
            for name, value in layout.base_tensors(model).items()
        }
    )


def digest_of_base(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a base model; empty without tensors.

    PEFT's parts of names are removed, so that a model has the same digest with and without
    adapters.
    """
    return _digest_of_hashes({name: hash_of_tensor(value) for name, value in tensors.items()})


def _digest_of_hashes(hashes: Mapping[str, str]) -> str:
    plain_names = {_PEFT_PARTS.sub(r"\1", name): value for name, value in hashes.items()}
    return digest_of({}, plain_names) if hashes else ""


def digest_of_models(models: Mapping[ClientId, Model]) -> str:
    """Return the SHA-256 of the clients' models, or of their model if all have the same."""
    digests = {id(model): digest_of(model.tensors(), {}) for model in models.values()}
    if len(digests) == 1:
        return next(iter(digests.values()))
    by_client = [(client, digests[id(model)]) for client, model in sorted(models.items())]
    return hashlib.sha256(json.dumps(by_client).encode()).hexdigest()
