"""Layout of a network's tensors in files: trained and frozen tensors, and names of shared ones."""

import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedaudit.core.files import MAX_NAMED_TENSORS, MAX_TENSOR_NAME
from fedaudit.core.values import Model, Params
from fedaudit.observe.tensors import digest_of, hash_of_tensor


class NetworkLayout:
    """Names of a network's tensors in its state dict, and which of them clients train.

    Attributes:
        frozen: Frozen parameters by name.
        peft_names: Names under which PEFT saves trained parameters; see :func:`peft_names_of`.
        tied: Maps every further name of a parameter or buffer to its first name.
    """

    def __init__(self, model: Model, module: nn.Module, statistics: Collection[str]) -> None:
        """Describe a network.

        Args:
            model: A model of the network.
            module: A module of the network, whose values are not used.
            statistics: Running statistics that clients train; see :func:`trained_statistics`.
        """
        parameters = model.architecture.build_module().named_parameters()
        self.frozen = {n: value.detach() for n, value in parameters if not value.requires_grad}
        self.peft_names = peft_names_of(module)
        self.tied = _tied_names(module)
        self._params, self._statistics = tuple(model.params), frozenset(statistics)
        buffers = tuple(model.buffers)
        # Digests leave out whole numbers, such as the number of batches of BatchNorm.
        self._names = {
            name
            for name, value in module.state_dict().items()
            if isinstance(value, Tensor) and value.is_floating_point() and name not in self.tied
        }
        self._known = {*self._params, *buffers, *self.frozen}
        self._trained_buffers = tuple(name for name in buffers if name in self._statistics)

    @property
    def is_identifiable(self) -> bool:
        """True if the state dict has only parameters and buffers, and a record can name them."""
        has_adapter = not self.frozen or bool(self.adapter_names)
        return self._names <= self._known and has_adapter and _fit_into_a_record(self.tied_names)

    @cached_property
    def adapter_names(self) -> dict[str, str]:
        """Names of all tensors that clients train, each with its name in the file of an adapter.

        Empty without frozen parameters, or if the names are too many or too long for a record.
        """
        names = [*self._params, *self._trained_buffers]
        if not self.frozen:
            return {}
        # In a larger network, PEFT's names have a form with the path of the adapted part, and one
        # without. The file of an adapter has the latter.
        file_names = dict[str, str]()
        for file_name, name in self.peft_names.items():
            file_names.setdefault(name, file_name)
        adapter = {name: file_names.get(name, name) for name in names}
        return adapter if _fit_into_a_record(adapter) else {}

    @property
    def tied_names(self) -> dict[str, str]:
        """Further names of tensors in the state dict, each with the first name."""
        return {name: first for name, first in self.tied.items() if first in self._names}

    def trained_tensors(self, model: Model) -> Params:
        """Return the tensors of a model that its digest covers.

        If the network has frozen parameters, these are the tensors that clients train; otherwise,
        all tensors of the state dict.
        """
        tensors = {**model.params, **model.buffers}
        names = self.adapter_names if self.frozen else self._names
        return {name: tensors[name] for name in names if name in tensors}

    def base_tensors(self, model: Model) -> Params:
        """Return the tensors of a model's state dict that no client trains.

        The result is empty if a frozen parameter is quantized: files may store it in another form.
        """
        if not self.frozen or not all(v.is_floating_point() for v in self.frozen.values()):
            return {}
        tensors = {**self.frozen, **model.buffers}
        return {name: tensors[name] for name in sorted(self._names - self.adapter_names.keys())}

    @cached_property
    def frozen_hashes(self) -> dict[str, str]:
        """SHA-256 of each frozen parameter."""
        return {name: hash_of_tensor(value) for name, value in self.frozen.items()}


def _fit_into_a_record(names: Mapping[str, str]) -> bool:
    longest = max(map(len, chain(names, names.values())), default=0)
    return len(names) <= MAX_NAMED_TENSORS and longest <= MAX_TENSOR_NAME


def _tied_names(module: nn.Module) -> dict[str, str]:
    pairs = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    first = dict[int, str]()
    names = {name: first.setdefault(id(value), name) for name, value in pairs}
    return {name: first_name for name, first_name in names.items() if name != first_name}


def trained_statistics(module: nn.Module) -> frozenset[str]:
    """Return the names of running means and variances of layers that are not frozen."""
    return frozenset(
        f"{path}.{name}".lstrip(".")
        for path, layer in normalisation_layers(module).items()
        if not is_frozen(layer)
        for name in ("running_mean", "running_var")
    )


def normalisation_layers(module: nn.Module) -> dict[str, _NormBase]:
    """Return the layers with running statistics by path; a momentum of 0 never changes them."""
    return {
        path: layer
        for path, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.running_mean is not None and layer.momentum != 0
    }


def is_frozen(layer: nn.Module) -> bool:
    """Return True if a layer (without its sublayers) has parameters, but none is trainable."""
    parameters = [*layer.parameters(recurse=False)]
    return bool(parameters) and not any(value.requires_grad for value in parameters)


def peft_names_of(module: nn.Module) -> dict[str, str]:
    """Map the names under which PEFT sends trained parameters to the network's names.

    ``get_peft_model_state_dict`` omits the name of an adapter (``lora_A.weight`` for
    ``lora_A.default.weight``), and the path of the adapted part in a larger network. The result is
    in PEFT's order, without names that two trained adapters share. It is empty for a network
    without adapters.
    """
    adapted_modules = (item for item in module.named_modules() if hasattr(item[1], "peft_config"))
    path, adapted = next(adapted_modules, ("", None))
    # A network with adapters exists only if peft was imported.
    if adapted is None or "peft" not in sys.modules:
        return {}
    from peft import get_peft_model_state_dict

    names_by_address = {
        p.data_ptr(): name for name, p in module.named_parameters() if p.requires_grad
    }
    pairs = [
        (name, names_by_address[value.data_ptr()])
        for adapter in adapted.peft_config
        # With the default, the function would search for the network on the internet.
        for name, value in get_peft_model_state_dict(
            adapted, adapter_name=adapter, save_embedding_layers=False
        ).items()
        if value.data_ptr() in names_by_address
    ]
    counts = Counter(name for name, _ in pairs)
    unique = {name: network_name for name, network_name in pairs if counts[name] == 1}
    return unique | {
        f"{path}.{name}": network_name for name, network_name in unique.items() if path
    }


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
