"""Conversion of the modules, state dicts and arrays of a training loop to models."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.values import Model, Params
from fedaudit.live.unsent import UnsentTensors
from fedaudit.observe.layout import NetworkLayout

NOT_FINITE = "values that are not finite numbers"

_MAX_LISTED = 5

_WRAPPERS = {"module", "_module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Attributes in which DataParallel, Opacus, the compiler, FSDP and checkpointing wrap a module."""

_NOT_IN_NETWORK = {"n_averaged"}
"""Counter that torch's AveragedModel adds to a state dict."""

_EXTRA_CHARACTERS = 1000
_KEYS_PER_NAME, _EXTRA_KEYS = 4, 1000
"""Limits of the number and length of names in an upload, which is untrusted. They are checked
before names are matched, since matching takes time for each name."""

Array: TypeAlias = Tensor | np.ndarray
Weights: TypeAlias = nn.Module | Model | Mapping[str, Array] | Sequence[Array]
"""A module, a state dict, or a list of a state dict's values (as Flower's clients send it)."""


def list_some(names: Collection[str]) -> str:
    """Join the first names in alphabetical order, and count the remaining names."""
    first = sorted(names)[:_MAX_LISTED]
    n_more = len(names) - len(first)
    return ", ".join(name[:100] for name in first) + (f" and {n_more} more" if n_more else "")


def read_array(read: Callable[[], object]) -> np.ndarray:
    """Read an untrusted array by a function that executes no code of the array."""
    try:
        array = read()
    # Parsing headers and opening archives can raise many kinds of errors.
    except Exception as error:
        raise BadInput(f"an array cannot be read ({_one_line(error)})") from error
    if not isinstance(array, np.ndarray):
        raise BadInput(f"an array is {type_of(array)}")
    return array


def as_cpu_tensor(value: object, subject: str) -> Tensor:
    """Return an array's numbers as a tensor on the CPU, sharing its memory where possible."""
    if not isinstance(value, Tensor | np.ndarray):
        raise BadInput(f"{subject} is {type_of(value)}, not an array")
    if np.ma.is_masked(value):
        raise BadInput(f"{subject} has masked entries, which have no value; fill them")
    dtype = str(value.dtype)[:80]
    try:
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(_native(value))
        is_dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
        tensor = tensor.cpu()
    # These errors are raised for NumPy's texts, dates and records, and for meta tensors.
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"{subject} holds no numbers that torch knows, but {dtype} ({_one_line(error)})"
        ) from error
    if not is_dense:
        raise BadInput(f"{subject} is not a plain tensor, but {tensor.layout} of {dtype}")
    if tensor.is_complex():
        raise BadInput(f"{subject} holds complex numbers, and the model real numbers")
    return tensor


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _native(array: np.ndarray) -> np.ndarray:
    """Return the array as torch needs it: native byte order, writable, no negative strides."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.require(native, requirements=["C", "W", "E"])


class NameTable:
    """Names of a network's parameters and buffers, matched with names in uploads.

    Wrappers change names. Opacus adds the prefix "_module.", Lightning the attribute that contains
    the network. FSDP also adds "_fsdp_wrapped_module." in the middle of names.
    """

    def __init__(self, names: Iterable[str], trained: Iterable[str]) -> None:
        """Index every name that an upload may use; messages list some of ``trained``."""
        self._known, self._trained = frozenset(names), tuple(trained)
        self._max_characters = _EXTRA_CHARACTERS + max(map(len, self._known), default=0)
        self._max_keys = _KEYS_PER_NAME * len(self._known) + _EXTRA_KEYS
        # Names that differ only in wrappers are ambiguous, so keys must match them exactly.
        self._unwrapped = dict[str, str]()
        self._ambiguous = set[str]()
        for name in sorted(self._known):
            short = _without_wrappers(name)
            if self._unwrapped.setdefault(short, name) != name:
                self._ambiguous.add(short)

    def raise_if_too_many(self, keys: Collection[object], subject: str) -> None:
        """Raise if an upload has more or longer keys than any wrapper produces."""
        if len(keys) > self._max_keys:
            raise BadInput(
                f"{subject} has {len(keys):,} names, and the model given to the recorder "
                f"{len(self._known)}; send the model's state dict"
            )
        for key in keys:
            if not isinstance(key, str):
                raise BadInput(
                    f"{subject} has {str(key)[:80]!r} ({type_of(key)}) as a name; name parameters "
                    "as the model's state dict does"
                )
            if len(key) > self._max_characters:
                raise BadInput(
                    f"{subject} has a name of {len(key):,} characters, {key[:40]!r} ...; name "
                    "parameters as the model's state dict does"
                )

    def matched(self, keys: Collection[str], subject: str) -> Mapping[str, str]:
        """Return the network's name for each key; raise if no name or several names match.

        Wrappers are ignored. If all keys have an additional prefix, or all lack one, it is removed
        or added.
        """
        if self._known.issuperset(keys):
            return {key: key for key in keys}
        names = {key: _without_wrappers(key) for key in keys if key not in _NOT_IN_NETWORK}
        if not self._unwrapped.keys() >= {*names.values()}:
            names = self._with_prefix(names, subject)
        if ambiguous := [key for key, name in names.items() if name in self._ambiguous]:
            raise BadInput(
                f"{subject} has {ambiguous[0]!r}, which matches several names of the model given "
                "to the recorder; name parameters as the model's state dict does"
            )
        return {key: self._unwrapped[name] for key, name in names.items()}

    def _with_prefix(self, names: Mapping[str, str], subject: str) -> dict[str, str]:
        """Remove a prefix that all names share, or add a prefix that all names lack."""
        known = self._unwrapped.keys()
        # Any name determines the possible prefixes. The fewest known names end the shortest one.
        first = min(names.values(), key=len, default="")
        candidates = list[dict[str, str]]()
        for known_name in known:
            if known_name and first.endswith(f".{known_name}"):
                prefix = first[: -len(known_name)]
                if all(name.startswith(prefix) for name in names.values()):
                    candidates.append({k: name.removeprefix(prefix) for k, name in names.items()})
            if first and known_name.endswith(f".{first}"):
                prefix = known_name[: -len(first)]
                candidates.append({k: prefix + name for k, name in names.items()})
        matches = [candidate for candidate in candidates if known >= {*candidate.values()}]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise BadInput(
                f"{subject} has {first[:200]!r}, which matches {len(matches)} parts of the model "
                "given to the recorder; name parameters as the model's state dict does"
            )
        unknown = next(key for key, name in names.items() if name not in known)
        raise BadInput(
            f"{subject} has {unknown[:200]!r}, which the model given to the recorder lacks; it has "
            f"{', '.join(self._trained[:6])} ..., and no prefix makes all names match"
        )


def _without_wrappers(name: str) -> str:
    *path, last = name.split(".")
    return ".".join([part for part in path if part not in _WRAPPERS] + [last])


_NOTHING_UNSENT = UnsentTensors()


class ModelLayout:
    """Names, shapes and order of the parameters and buffers in uploads."""

    def __init__(
        self, model: Model, module: nn.Module, unsent: UnsentTensors = _NOTHING_UNSENT
    ) -> None:
        self.model, self.unsent = model, unsent
        state = module.state_dict()
        self._order = tuple(state)
        self.network = NetworkLayout(model, module, unsent.statistics)
        self._peft_names, self._tied = self.network.peft_names, self.network.tied
        buffers = [name for name, _ in module.named_buffers()]
        self._names = NameTable(
            {*self._order, *buffers, *model.params, *self._peft_names}, model.params
        )

    @property
    def n_values(self) -> int:
        """Number of values in all parameters and buffers."""
        return sum(v.numel() for v in (*self.model.params.values(), *self.model.buffers.values()))

    def model_of(self, weights: Weights, *, subject: str, sent: Model | None = None) -> Model:
        """Return a model with the given weights; error messages begin with ``subject``.

        A sequence has the arrays of all parameters and buffers, or only of trainable parameters.
        For an upload, ``sent`` is the model that was sent, from which missing values are taken.
        Missing frozen parameters are taken from the model given to the recorder.
        """
        arrays, base = self._arrays(weights, subject), sent or self.model
        if sent is not None:
            self._raise_if_unsent(arrays, subject)
        optional = self.unsent.declared | self.unsent.untrainable
        if missing := [n for n in self.model.params if n not in arrays.keys() | optional]:
            raise BadInput(
                f"{subject} lacks {list_some(missing)}, which the model given to the recorder has; "
                "name them in record(not_uploaded=[...]) if they stay at the clients, as with "
                "FedBN and personal heads, or freeze them in the model given to record if no "
                "client trains them, as with adapters"
            )
        params = {
            name: _converted(arrays, name, value, subject) if name in arrays else base.params[name]
            for name, value in self.model.params.items()
        }
        buffers = self._buffers(arrays, base, subject)
        for name, value in self.network.frozen.items():
            if name in arrays:
                tensor = _converted(arrays, name, value, subject)
                # A value that equals the recorder's is not stored again for each client.
                if name in base.buffers or not torch.equal(tensor, value):
                    buffers[name] = tensor
            elif name in base.buffers:
                buffers[name] = base.buffers[name]
            else:
                self._raise_if_random(name, subject)
        return Model(self.model.architecture, params, buffers)

    def _buffers(self, arrays: Mapping[str, Array], base: Model, subject: str) -> Params:
        """Return buffers, without running statistics that were not sent."""
        buffers: Params = {}
        for name, value in self.model.buffers.items():
            if name in arrays:
                buffers[name] = _converted(arrays, name, value, subject)
            elif name in self.unsent.declared:
                buffers[name] = base.buffers.get(name, value).clone()
            elif name in self.unsent.changing:
                raise _unsent_refusal(subject, [name], "which training changes")
            elif name not in self.unsent.statistics:
                if base is self.model:
                    self._raise_if_random(name, subject)
                buffers[name] = base.buffers[name].clone()
        missing = (self.unsent.declared & self.unsent.statistics) - arrays.keys()
        if missing and self.unsent.are_statistics_initial(buffers):
            # A layer that is not uploaded has only initial statistics. They are left out here, and
            # estimated when the round is measured.
            buffers = {n: v for n, v in buffers.items() if n not in self.unsent.statistics}
        return buffers

    def _raise_if_unsent(self, arrays: Mapping[str, Array], subject: str) -> None:
        """Raise if an upload lacks parameters that clients train."""
        if not arrays.keys() & self.model.params.keys():
            raise BadInput(f"{subject} has none of the parameters that clients train")
        allowed = arrays.keys() | self.unsent.declared | self.unsent.untrainable
        if missing := [name for name in self.model.params if name not in allowed]:
            raise _unsent_refusal(subject, missing, "which clients train")

    @cached_property
    def _random_names(self) -> frozenset[str]:
        """Frozen parameters and constant buffers that are drawn at random at each build."""
        first, second = (self.model.architecture.build_module(seed) for seed in (0, 1))
        second_values = dict(second.named_parameters()) | dict(second.named_buffers())
        constant = {*self.network.frozen, *self.model.buffers} - self.unsent.statistics
        return frozenset(
            name
            for name, value in (*first.named_parameters(), *first.named_buffers())
            if name in constant and not torch.equal(value, second_values[name])
        )

    def _raise_if_random(self, name: str, subject: str) -> None:
        """Raise if an unsent parameter or buffer is drawn at random at each build."""
        if name in self._random_names and name not in self.unsent.declared:
            raise BadInput(
                f"{subject} lacks {name!r}, which is drawn at random whenever the network is "
                "built, so the clients' values are unknown; pass the clients' module to record"
            )

    def change_of(self, weights: Weights, *, subject: str) -> Params:
        """Return an update or gradient of trainable parameters; unsent parameters have zeros."""
        arrays = self._arrays(weights, subject)
        self._raise_if_unsent(arrays, subject)
        return {
            name: _converted(arrays, name, value, subject)
            if name in arrays
            else torch.zeros_like(value)
            for name, value in self.model.params.items()
        }

    def trainable_names(self, weights: Weights, *, subject: str) -> tuple[str, ...]:
        """Return the names of the trainable parameters in an upload."""
        arrays = self._arrays(weights, subject)
        return tuple(name for name in self.model.params if name in arrays)

    def _arrays(self, weights: Weights, subject: str) -> dict[str, Array]:
        """Return arrays by the network's names, and check tied parameters."""
        arrays = self._named_arrays(weights, subject)
        for name, first_name in self._tied.items():
            if name not in arrays:
                continue
            if first_name not in arrays:
                arrays[first_name] = arrays[name]
            elif not _are_equal(arrays[name], arrays[first_name], f"{subject} has {name!r}, which"):
                raise BadInput(
                    f"{subject} has other values for {first_name!r} than for {name!r}, which are "
                    "one parameter in the model given to the recorder; send one of them, or both "
                    "with the same values"
                )
        return arrays

    def _named_arrays(self, weights: Weights, subject: str) -> dict[str, Array]:
        if isinstance(weights, Model):
            return {**weights.params, **weights.buffers}
        if isinstance(weights, nn.Module):
            # A module also has the buffers that its state dict omits.
            return self._rename(dict(weights.named_buffers()) | weights.state_dict(), subject)
        if isinstance(weights, Mapping):
            return self._rename(weights, subject)
        if not _is_listed(weights):
            raise BadInput(
                f"{subject} is {type_of(weights)}; give a module, a state dict, or a list of "
                "its values in their order"
            )
        params, declared = tuple(self.model.params), self.unsent.declared
        if len(weights) == len(params):
            self._raise_if_peft_order(subject)
        # Lists may omit the values that are declared as not uploaded.
        for full_order in (params, self._order):
            for omitted in (frozenset[str](), declared):
                names = [name for name in full_order if name not in omitted]
                if len(weights) == len(names):
                    return dict(zip(names, weights, strict=True))
        raise BadInput(
            f"{subject} has {len(weights)} arrays, and the model's state dict "
            f"{len(self._order)}: {', '.join(self._order[:6])} ...; if clients send only a part of "
            "the network (adapters such as LoRA), give it by name, or freeze the rest in the "
            "model given to the recorder"
        )

    def _rename(self, weights: Mapping[str, Array], subject: str) -> dict[str, Array]:
        """Replace names of wrappers and PEFT by the network's names."""
        self._names.raise_if_too_many(weights.keys(), subject)
        arrays: dict[str, Array] = {}
        for key, name in self._names.matched(weights.keys(), subject).items():
            network_name = self._peft_names.get(name, name)
            if network_name in arrays:
                raise BadInput(
                    f"{subject} has {network_name[:200]!r} under two names; send only the "
                    "adapters, or the whole state dict"
                )
            arrays[network_name] = weights[key]
        return arrays

    def _raise_if_peft_order(self, subject: str) -> None:
        """Raise if a list may have the order of PEFT, which differs from that of the network."""
        peft_order, order = [*dict.fromkeys(self._peft_names.values())], [*self.model.params]
        if peft_order != order and {*peft_order} == {*order}:
            raise BadInput(
                f"{subject} is a list, and PEFT sends this model's adapters in another order than "
                "that of its parameters; send them by name"
            )


def _unsent_refusal(subject: str, names: Collection[str], why: str) -> BadInput:
    return BadInput(
        f"{subject} lacks {list_some(names)}, {why}, so the clients' values are unknown; freeze "
        "them in the model given to record if clients do not train them, or name them in "
        "record(not_uploaded=[...]) if they stay at the clients"
    )


def _are_equal(value: Array, other: Array, subject: str) -> bool:
    first, second = as_cpu_tensor(value, subject), as_cpu_tensor(other, subject)
    if first.data_ptr() == second.data_ptr() and first.stride() == second.stride():
        return first.shape == second.shape
    # NaN counts as equal, since values that are not finite are refused with another message.
    return first.shape == second.shape and torch.allclose(
        first.to(second.dtype), second, rtol=0, atol=0, equal_nan=True
    )


def is_array(value: object) -> bool:
    """Return True for a single array, and False for a model of several arrays."""
    return isinstance(value, Tensor | np.ndarray | np.generic)


def _is_listed(weights: Weights) -> TypeGuard[Sequence[Array]]:
    return isinstance(weights, Sequence) and not isinstance(weights, str | bytes)


def _converted(arrays: Mapping[str, Array], name: str, template: Tensor, subject: str) -> Tensor:
    """Return a copy of an array in the dtype of ``template``; raise if it does not fit."""
    tensor = as_cpu_tensor(arrays[name], f"{subject} has {name!r}, which")
    if tensor.shape != template.shape:
        raise BadInput(
            f"{subject} has {name!r} of shape {tuple(tensor.shape)}, and the model given to the "
            f"recorder {tuple(template.shape)}"
        )
    if template.is_floating_point() and not tensor.is_floating_point():
        raise BadInput(
            f"{subject} has {name!r} in {tensor.dtype}, and the model given to the recorder in "
            f"{template.dtype}; send numbers with a fractional part"
        )
    try:
        # A copy, since the loop may change the original in place.
        return tensor.to(template.dtype, copy=True).contiguous()
    except RuntimeError as error:
        raise BadInput(
            f"{subject} has {name!r} in {tensor.dtype}, which torch cannot turn into "
            f"{template.dtype}"
        ) from error
