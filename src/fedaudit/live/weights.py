"""Conversion of the modules, state dicts and arrays of a training loop to models."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedaudit.core.devices import CPU, computing_on
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.modules import in_model_dtype, loaded
from fedaudit.core.seeds import seed_globally, seeded
from fedaudit.core.values import NO_CLIENT, ClientId, Model, Params, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.names import NameTable, sent_names
from fedaudit.observe.round import Exposed, Round

NOT_FINITE = "values that are not finite numbers"
ESTIMATED = "estimated statistics"
"""Name of the note of a measured round that lists layers with estimated running statistics."""

_N_TRAINED = 8
"""Number of samples in the training step that shows which values training changes."""

_BATCH_SIZE = 128
_MAX_SAMPLES, _MIN_SAMPLES = 2048, 8
"""Number of samples on which running statistics are estimated."""

_MOST_LISTED = 5


class Unsent(NamedTuple):
    """Names of parameters and buffers that uploads may lack.

    Attributes:
        statistics: Running means and variances of normalisation layers that clients train.
        changing: Other buffers that a training step changes.
        untrainable: Parameters without a gradient, which no client changes.
        declared: Parameters and buffers that the user declared as not uploaded.
    """

    statistics: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset()
    untrainable: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()

    def are_untrained(self, buffers: Mapping[str, Tensor]) -> bool:
        """Return True if all running statistics have their initial values."""
        values = {name: buffers[name] for name in self.statistics if name in buffers}
        return bool(values) and all(
            bool((value == (1 if name.endswith("var") else 0)).all())
            for name, value in values.items()
        )

    def without_statistics(self, model: Model) -> Model:
        """Return the model without running statistics, which are estimated later."""
        buffers = {n: value for n, value in model.buffers.items() if n not in self.statistics}
        return replace(model, buffers=buffers)

    def has_statistics(self, model: Model) -> bool:
        """Return True if the model has all running statistics."""
        return self.statistics <= model.buffers.keys()


def unsent_in(model: Model, samples: Samples, declared: Collection[str]) -> Unsent:
    """Find the parameters and buffers that uploads may lack, by one training step."""
    names = [*model.params, *model.buffers]
    for pattern in declared:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(
                f"not_uploaded has {pattern[:200]!r}, and the model has no such parameter or "
                f"buffer; it has {', '.join(names[:6])} ..."
            )
    module = model.module()
    layers = _normalisation_layers(module)
    statistics = {
        f"{path}.{name}".lstrip(".")
        for path, layer in layers.items()
        if not is_frozen(layer)
        for name in ("running_mean", "running_var")
    }
    changed, untrainable = _training_step(model, module, samples)
    of_layers = {id(value) for layer in layers.values() for value in layer.buffers()}
    return Unsent(
        frozenset(statistics),
        frozenset(n for n, v in module.named_buffers() if n in changed and id(v) not in of_layers),
        frozenset(untrainable),
        frozenset(n for n in names if any(fnmatchcase(n, pattern) for pattern in declared)),
    )


def _normalisation_layers(module: nn.Module) -> dict[str, _NormBase]:
    """Return the layers with running statistics by path; a momentum of 0 never changes them."""
    return {
        path: layer
        for path, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.running_mean is not None and layer.momentum != 0
    }


def is_frozen(layer: nn.Module) -> bool:
    """Return True if a layer has parameters of its own, and no gradient is computed for them."""
    parameters = [*layer.parameters(recurse=False)]
    return bool(parameters) and not any(value.requires_grad for value in parameters)


def _training_step(model: Model, module: nn.Module, samples: Samples) -> tuple[set[str], set[str]]:
    """Return the buffers that a training step changes, and the parameters without a gradient."""
    task, few = model.architecture.task, samples.take(slice(_N_TRAINED))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        seed_globally(0)
        module.train()
        try:
            outputs = task.extract_outputs(
                task.call_module(module, in_model_dtype(few.features, model).clone())
            )
            task.losses(outputs, few.targets.clone()).mean().backward()  # type: ignore[no-untyped-call]
        # Custom code may fail here although the clients' training works; then nothing is known.
        except Exception:
            return set(), set()
    buffers = {n: value for n, value in module.named_buffers() if n in model.buffers}
    changed = {n for n, value in buffers.items() if not torch.equal(value, model.buffers[n])}
    return changed, {
        name
        for name, value in module.named_parameters()
        if value.requires_grad and value.grad is None
    }


def list_some(names: Collection[str]) -> str:
    """Join the first names in alphabetical order, and count the others."""
    first = sorted(names)[:_MOST_LISTED]
    n_more = len(names) - len(first)
    return ", ".join(name[:100] for name in first) + (f" and {n_more} more" if n_more else "")


def estimated_layers(round: Round, unsent: Unsent) -> list[str]:
    """Return the normalisation layers whose running statistics any of a round's models lacks."""
    models = [m for e in round.exposed.values() for m in (e.base, e.local) if m is not None]
    lacking = {
        name
        for model in (*models, *round.after.values())
        for name in unsent.statistics - model.buffers.keys()
    }
    return sorted({name.rpartition(".")[0] or name for name in lacking})


def with_estimates(
    round: Round, unsent: Unsent, audit: AuditSet, device: torch.device = CPU
) -> Round:
    """Estimate running statistics that a round's models lack.

    A client's statistics are estimated on its audited samples, on members as well as on held-out
    samples, so that they do not reveal membership. Statistics of global models are estimated on all
    audited samples.
    """
    if not estimated_layers(round, unsent):
        return round
    all_samples = _drawn(audit.samples)
    bases = dict[int, Model]()
    merged = {*round.stands_for.values()}

    def with_statistics(model: Model, samples: Samples) -> Model:
        return model if unsent.has_statistics(model) else _estimated(model, unsent, samples, device)

    exposed = dict[ClientId, Exposed]()
    for client, exposed_client in round.exposed.items():
        base, local = exposed_client.base, exposed_client.local
        if base is not None:
            # Create one object per distinct model: clients are compared if they share the object.
            if id(base) not in bases:
                bases[id(base)] = with_statistics(base, all_samples)
            base = bases[id(base)]
        if local is not None:
            samples = all_samples if client in merged else _samples_of(audit, client, all_samples)
            local = with_statistics(local, samples)
        exposed[client] = replace(exposed_client, base=base, local=local)
    after = {name: with_statistics(model, all_samples) for name, model in round.after.items()}
    return replace(round, exposed=exposed, after=after)


def _samples_of(audit: AuditSet, client: ClientId, all_samples: Samples) -> Samples:
    """Return a client's audited samples, or all samples if the client has too few."""
    is_chosen = audit.fair_target == client
    if not is_chosen.any():
        # Without a draw, the client's members and all held-out samples.
        is_member = audit.owner == client
        is_chosen = (is_member | (audit.owner == NO_CLIENT)) & bool(is_member.any())
    if int(np.count_nonzero(is_chosen)) < _MIN_SAMPLES:
        return all_samples
    return _drawn(audit.samples.take(torch.from_numpy(is_chosen)))


def _drawn(samples: Samples) -> Samples:
    """Draw at most ``_MAX_SAMPLES`` samples in an order independent of membership."""
    order = torch.randperm(len(samples), generator=seeded(0, "running statistics"))
    return samples.take(order[:_MAX_SAMPLES])


def _estimated(model: Model, unsent: Unsent, samples: Samples, device: torch.device) -> Model:
    """Fill missing running statistics with means of batch statistics."""
    missing = sorted(unsent.statistics - model.buffers.keys())
    paths = {name.rpartition(".")[0] for name in missing}
    task = model.architecture.task
    with computing_on(device), torch.no_grad():
        module = loaded(model, "running statistics", device).eval()
        for path, layer in _normalisation_layers(module).items():
            if path in paths:
                layer.reset_running_stats()
                # With momentum None, torch computes an unweighted mean over batches.
                layer.momentum = None
                layer.train()
        for rows in _batches(in_model_dtype(samples.features, model)):
            task.call_module(module, rows.to(device, copy=True))
        current = dict(module.named_buffers())
        values = {name: current[name].detach().cpu().clone() for name in missing}
    buffers = model.buffers | values
    # Buffers have the order of a complete model, followed by frozen parameters.
    order = dict.fromkeys([*(name for name in current if name in buffers), *buffers])
    return replace(model, buffers={name: buffers[name] for name in order})


def _batches(features: Tensor) -> Sequence[Tensor]:
    """Return batches whose sizes differ by at most 1, since the mean over batches is unweighted."""
    return features.tensor_split(-(-len(features) // _BATCH_SIZE))


def array_from(read: Callable[[], object]) -> np.ndarray:
    """Read an untrusted array by a function that executes no code of the array."""
    try:
        array = read()
    # Parsing headers and opening archives can raise many kinds of errors.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"an array cannot be read ({reason})") from error
    if not isinstance(array, np.ndarray):
        raise BadInput(f"an array is {type_of(array)}")
    return array


def tensor_of(value: object, what: str) -> Tensor:
    """Return an array's numbers as a tensor on the CPU, sharing its memory where possible."""
    if not isinstance(value, Tensor | np.ndarray):
        raise BadInput(f"{what} is {type_of(value)}, not an array")
    if np.ma.is_masked(value):
        raise BadInput(f"{what} has masked entries, which have no value; fill them")
    kind = str(value.dtype)[:80]
    try:
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(_native(value))
        is_plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
        tensor = tensor.cpu()
    # These errors are raised for NumPy's texts, dates and records, and for tensors without memory.
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(
            f"{what} holds no numbers that torch knows, but {kind} ({reason})"
        ) from error
    if not is_plain:
        raise BadInput(f"{what} is not a plain tensor, but {tensor.layout} of {kind}")
    if tensor.is_complex():
        raise BadInput(f"{what} holds complex numbers, and the model real numbers")
    return tensor


def _native(array: np.ndarray) -> np.ndarray:
    """Return the array as torch needs it: native byte order, writable, no negative strides."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.require(native, requirements=["C", "W", "E"])


Array: TypeAlias = Tensor | np.ndarray
Weights: TypeAlias = nn.Module | Model | Mapping[str, Array] | Sequence[Array]
"""A module, a state dict, or a list of a state dict's values (as Flower's clients send it)."""

_PART_ONLY = (
    "if clients send only a part of the network (adapters such as LoRA), give it by name, or "
    "freeze the rest in the model given to the recorder"
)


_NOTHING_UNSENT = Unsent()


class Shape:
    """Names, shapes and order of a module's parameters."""

    def __init__(self, model: Model, module: nn.Module, unsent: Unsent = _NOTHING_UNSENT) -> None:
        self.model, self.unsent = model, unsent
        self._order = tuple(module.state_dict())
        parameters = model.architecture.built().named_parameters()
        self._frozen = {n: value.detach() for n, value in parameters if not value.requires_grad}
        self._sent_as = sent_names(module)
        self._tied = _tied_names(module)
        buffers = [name for name, _ in module.named_buffers()]
        self._names = NameTable(
            {*self._order, *buffers, *model.params, *self._sent_as}, model.params
        )

    @property
    def n_values(self) -> int:
        """Number of values in all parameters and buffers."""
        return sum(v.numel() for v in (*self.model.params.values(), *self.model.buffers.values()))

    def model_of(self, weights: Weights, *, whose: str, sent: Model | None = None) -> Model:
        """Return a model with the given weights; error messages begin with ``whose``.

        A sequence has the arrays of all parameters and buffers, or only of trainable parameters.
        For an upload, ``sent`` is the model that was sent, from which missing values are taken.
        Missing frozen parameters are taken from the model given to the recorder.
        """
        named, base = self._named(weights, whose), sent or self.model
        if sent is not None:
            self._refuse_unsent(named, whose)
        optional = self.unsent.declared | self.unsent.untrainable
        if lacking := [name for name in self.model.params if name not in named.keys() | optional]:
            raise BadInput(
                f"{whose} lacks {list_some(lacking)}, which the model given to the recorder has; "
                "name them in record(not_uploaded=[...]) if they stay at the clients, as with "
                "FedBN and personal heads, or freeze them in the model given to record if no "
                "client trains them, as with adapters"
            )
        params = {
            n: base.params[n] if n in optional and n not in named else _like(named, n, value, whose)
            for n, value in self.model.params.items()
        }
        buffers = self._buffers(named, base, whose)
        for name, value in self._frozen.items():
            if name in named:
                tensor = _like(named, name, value, whose)
                # A value that equals the recorder's is not stored again for each client.
                if name in base.buffers or not torch.equal(tensor, value):
                    buffers[name] = tensor
            elif name in base.buffers:
                buffers[name] = base.buffers[name]
            else:
                self._refuse_random(name, whose)
        return Model(self.model.architecture, params, buffers)

    def _buffers(self, named: Mapping[str, Array], base: Model, whose: str) -> Params:
        """Return buffers, without running statistics that were not sent."""
        buffers: Params = {}
        for name, value in self.model.buffers.items():
            if name in named:
                buffers[name] = _like(named, name, value, whose)
            elif name in self.unsent.declared:
                buffers[name] = base.buffers.get(name, value).clone()
            elif name in self.unsent.changing:
                raise _unsent_refusal(whose, [name], "which training changes")
            elif name not in self.unsent.statistics:
                if base is self.model:
                    self._refuse_random(name, whose)
                buffers[name] = base.buffers[name].clone()
        lacking = (self.unsent.declared & self.unsent.statistics) - named.keys()
        if lacking and self.unsent.are_untrained(buffers):
            # The recorder knows a declared layer only untrained, so it is estimated instead.
            buffers = {n: v for n, v in buffers.items() if n not in self.unsent.statistics}
        return buffers

    def _refuse_unsent(self, named: Mapping[str, Array], whose: str) -> None:
        """Raise if an upload lacks parameters that clients train."""
        if not named.keys() & self.model.params.keys():
            raise BadInput(f"{whose} has none of the parameters that clients train")
        provided = named.keys() | self.unsent.declared | self.unsent.untrainable
        lacking = [name for name in self.model.params if name not in provided]
        if lacking:
            raise _unsent_refusal(whose, lacking, "which clients train")

    @cached_property
    def _random(self) -> frozenset[str]:
        """Frozen parameters and constant buffers that are drawn at random at each build."""
        first, second = (self.model.architecture.built(seed) for seed in (0, 1))
        second_values = dict(second.named_parameters()) | dict(second.named_buffers())
        constant = {*self._frozen, *self.model.buffers} - self.unsent.statistics
        pairs = (*first.named_parameters(), *first.named_buffers())
        return frozenset(
            name
            for name, value in pairs
            if name in constant and not torch.equal(value, second_values[name])
        )

    def _refuse_random(self, name: str, whose: str) -> None:
        """Raise if an unsent parameter or buffer is drawn at random at each build."""
        if name in self._random and name not in self.unsent.declared:
            raise BadInput(
                f"{whose} lacks {name!r}, which is drawn at random whenever the network is built, "
                "so the clients' values are unknown; pass the clients' module to record"
            )

    def change_of(self, weights: Weights, *, whose: str) -> Params:
        """Return an update or gradient of trainable parameters; unsent parameters have zeros."""
        named = self._named(weights, whose)
        self._refuse_unsent(named, whose)
        return {
            name: _like(named, name, value, whose) if name in named else torch.zeros_like(value)
            for name, value in self.model.params.items()
        }

    def trainable_names(self, weights: Weights, *, whose: str) -> tuple[str, ...]:
        """Return the names of the trainable parameters in an upload."""
        named = self._named(weights, whose)
        return tuple(name for name in self.model.params if name in named)

    def _named(self, weights: Weights, whose: str) -> dict[str, Array]:
        """Return arrays by the network's names, and check tied parameters."""
        named = self._by_name(weights, whose)
        for name, first in self._tied.items():
            if name not in named:
                continue
            if first not in named:
                named[first] = named[name]
            elif not _are_equal(named[name], named[first], f"{whose} has {name!r}, which"):
                raise BadInput(
                    f"{whose} has other values for {first!r} than for {name!r}, which are one "
                    "parameter in the model given to the recorder; send one of them, or both with "
                    "the same values"
                )
        return named

    def _by_name(self, weights: Weights, whose: str) -> dict[str, Array]:
        if isinstance(weights, Model):
            return {**weights.params, **weights.buffers}
        if isinstance(weights, nn.Module):
            # A module also has the buffers that its state dict omits.
            arrays = dict(weights.named_buffers()) | weights.state_dict()
            return self._by_network_names(arrays, whose)
        if isinstance(weights, Mapping):
            return self._by_network_names(weights, whose)
        if not _is_listed(weights):
            raise BadInput(
                f"{whose} is {type_of(weights)}; give a module, a state dict, or a list of "
                "its values in their order"
            )
        if len(weights) == len(self.model.params):
            self._refuse_other_order(whose)
            return dict(zip(self.model.params, weights, strict=True))
        for names in self._shorter_lists:
            if len(weights) == len(names):
                return dict(zip(names, weights, strict=True))
        if len(weights) != len(self._order):
            raise BadInput(
                f"{whose} has {len(weights)} arrays, and the model's state dict "
                f"{len(self._order)}: {', '.join(self._order[:6])} ...; {_PART_ONLY}"
            )
        return dict(zip(self._order, weights, strict=True))

    @cached_property
    def _shorter_lists(self) -> tuple[tuple[str, ...], ...]:
        """Names of values in lists without those declared as not uploaded."""
        declared = self.unsent.declared
        orders = (tuple(self.model.params), self._order) if declared else ()
        return tuple(tuple(name for name in names if name not in declared) for names in orders)

    def _by_network_names(self, named: Mapping[str, Array], whose: str) -> dict[str, Array]:
        """Replace names of wrappers and PEFT by the network's names."""
        self._names.refuse_too_many(named.keys(), whose)
        arrays: dict[str, Array] = {}
        for key, name in self._names.matched(named.keys(), whose).items():
            network_name = self._sent_as.get(name, name)
            if network_name in arrays:
                raise BadInput(
                    f"{whose} has {network_name[:200]!r} under two names; send only the adapters, "
                    "or the whole state dict"
                )
            arrays[network_name] = named[key]
        return arrays

    def _refuse_other_order(self, whose: str) -> None:
        peft_order, order = [*dict.fromkeys(self._sent_as.values())], [*self.model.params]
        if peft_order != order and {*peft_order} == {*order}:
            raise BadInput(
                f"{whose} is a list, and PEFT sends this model's adapters in another order than "
                "that of its parameters; send them by name"
            )


def _unsent_refusal(whose: str, names: Collection[str], why: str) -> BadInput:
    return BadInput(
        f"{whose} lacks {list_some(names)}, {why}, so the clients' values are unknown; freeze them "
        "in the model given to record if clients do not train them, or name them in "
        "record(not_uploaded=[...]) if they stay at the clients"
    )


def _tied_names(module: nn.Module) -> dict[str, str]:
    """Map every further name of a parameter or buffer to its first name."""
    pairs = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    first = dict[int, str]()
    names = {name: first.setdefault(id(value), name) for name, value in pairs}
    return {name: first_name for name, first_name in names.items() if name != first_name}


def _are_equal(value: Array, other: Array, what: str) -> bool:
    first, second = tensor_of(value, what), tensor_of(other, what)
    if first.data_ptr() == second.data_ptr() and first.stride() == second.stride():
        return first.shape == second.shape
    # NaN counts as equal, since values that are not finite are refused with their own message.
    return first.shape == second.shape and torch.allclose(
        first.to(second.dtype), second, rtol=0, atol=0, equal_nan=True
    )


def is_array(value: object) -> bool:
    """Return True for a single array, and False for a model of several."""
    return isinstance(value, Tensor | np.ndarray | np.generic)


def _is_listed(weights: Weights) -> TypeGuard[Sequence[Array]]:
    return isinstance(weights, Sequence) and not isinstance(weights, str | bytes)


def _like(named: Mapping[str, Array], name: str, like: Tensor, whose: str) -> Tensor:
    tensor = tensor_of(named[name], f"{whose} has {name!r}, which")
    if tensor.shape != like.shape:
        raise BadInput(
            f"{whose} has {name!r} of shape {tuple(tensor.shape)}, and the model given to the "
            f"recorder {tuple(like.shape)}"
        )
    if like.is_floating_point() and not tensor.is_floating_point():
        raise BadInput(
            f"{whose} has {name!r} in {tensor.dtype}, and the model given to the recorder in "
            f"{like.dtype}; send numbers with a fractional part"
        )
    try:
        # A copy, since the loop may change the original in place.
        return tensor.to(like.dtype, copy=True).contiguous()
    except RuntimeError as error:
        raise BadInput(
            f"{whose} has {name!r} in {tensor.dtype}, which torch cannot turn into {like.dtype}"
        ) from error
