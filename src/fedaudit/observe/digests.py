"""Digests that identify models, and the base models of adapters.

A digest is computed from named tensors, so that the file of a model has the same digest as the
model in the training loop. It depends neither on the device nor on the format of the file.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from fedaudit.core.values import Model
from fedaudit.observe.layout import NetworkLayout
from fedaudit.observe.tensors import digest_of, hash_of_tensor

_PEFT_PARTS = re.compile(r"(^|\.)base_model\.model\.|\.(base_layer|original_module)(?=\.)")
"""Parts of names that PEFT adds to the parameters of a base model."""


class ModelDigest(NamedTuple):
    """SHA-256 of a model.

    Attributes:
        trained: Digest of all floating-point tensors, or of those that clients train if the network
            has frozen parameters.
        base: Digest of the other floating-point tensors; empty without these, or if they are
            quantized.
    """

    trained: str
    base: str = ""


def digest_of_model(layout: NetworkLayout, model: Model) -> ModelDigest | None:
    """Return the digest of a model; None if files of the network may have other tensors."""
    if not layout.is_identifiable:
        return None
    # Large frozen tensors that the loop never sends are hashed only once.
    base = {
        name: layout.frozen_hashes[name]
        if value is layout.frozen.get(name)
        else hash_of_tensor(value)
        for name, value in layout.base_tensors(model).items()
    }
    return ModelDigest(digest_of(layout.trained_tensors(model), {}), _digest_of_hashes(base))


def digest_of_base(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a base model; empty without tensors.

    PEFT's parts of names are removed, so that a model has the same digest with and without
    adapters.
    """
    return _digest_of_hashes({name: hash_of_tensor(value) for name, value in tensors.items()})


def _digest_of_hashes(hashes: Mapping[str, str]) -> str:
    plain_names = {plain_name(name): value for name, value in hashes.items()}
    return digest_of({}, plain_names) if hashes else ""


def plain_name(name: str) -> str:
    """Return the name of a tensor without the parts that PEFT adds."""
    return _PEFT_PARTS.sub(r"\1", name)
