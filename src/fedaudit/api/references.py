"""Conversion of a federation's parts to names and settings of a study."""

import functools
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from torch import nn

from fedaudit import attacks
from fedaudit.algorithms import ALGORITHMS, FederatedAlgorithm
from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.core.arguments import Range, raise_if_invalid
from fedaudit.core.errors import BadInput, type_of, with_article
from fedaudit.core.importing import RegisteredObject, known_name
from fedaudit.core.lazy import Catalogue
from fedaudit.core.naming import CopyFactory, DefensePart, NamedPart, PartitionPart, client_numbers
from fedaudit.core.objects import (
    PartReference,
    part_reference,
    plain_options,
    plain_settings,
    snapshot_reference,
)
from fedaudit.core.options import missing_options
from fedaudit.core.task_catalogue import TASKS
from fedaudit.core.tasks import Task
from fedaudit.core.values import Samples
from fedaudit.datasets.arrays import InMemory, from_samples, samples
from fedaudit.datasets.catalog import SOURCES
from fedaudit.datasets.dataset import Dataset, DataSource
from fedaudit.datasets.partitions.schemes import PARTITIONS, Partition
from fedaudit.datasets.tables.dataframe import dataframe
from fedaudit.fl.algorithms.base import Server
from fedaudit.fl.hooks import Defense
from fedaudit.metrics.catalogue import METRICS, Metric
from fedaudit.models import MODELS, ConfiguredModel
from fedaudit.observe.views import VIEWS, View
from fedaudit.partitions import PartitionScheme
from fedaudit.plan.named import SERVERS

_ATTACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")

Register = Callable[[PartReference], dict[str, object]]
"""Function that stores the object of a reference, and returns its name and options."""


def registering(objects: dict[str, RegisteredObject]) -> Register:
    """Return a function that stores the objects of references in a dictionary."""

    def register(part: PartReference) -> dict[str, object]:
        if part.registered is not None:
            objects[part.name] = part.registered
        return {"name": part.name, "options": part.options}

    return register


def as_list(value: object) -> list[object]:
    """Return the entries of a collection as a list, or a list of the single object."""
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


class _PartKind(NamedTuple):
    """What is allowed as a part of one kind, such as a model.

    Attributes:
        allowed: Description of allowed parts, for messages.
        catalogue: Function that returns classes, functions and objects by catalogue name.
        base: Class of allowed objects; ``()`` if only names, classes and functions are allowed.
        make: Function of an object and its digest that returns the value for which the name of the
            object stands; None if the name stands for the object itself. Parts with state need
            copies, so that runs do not share state.
    """

    allowed: str
    catalogue: Callable[[], Mapping[str, object]]
    base: type | tuple[()] = ()
    make: Callable[[object, str], object] | None = CopyFactory


def _defenses() -> Mapping[str, object]:
    from fedaudit.defenses import DEFENSES  # Loads all defenses, and many federations have none.

    return DEFENSES


def _extractors() -> Mapping[str, object]:
    from fedaudit.games.samples import EXTRACTORS  # Loads the games.

    return EXTRACTORS


_KINDS = {
    "model": _PartKind(
        "a torch.nn.Module, a class or function that returns one, or a catalogue name",
        lambda: MODELS,
        nn.Module,
    ),
    "task": _PartKind(
        "a catalogue name, an object of fedaudit.tasks, or a function of outputs and targets that "
        "returns one loss per sample",
        lambda: TASKS,
        Task,
        None,
    ),
    "algorithm": _PartKind(
        "an object of fedaudit.algorithms, a function from a task to an algorithm, or a catalogue "
        "name",
        lambda: ALGORITHMS,
    ),
    "data set": _PartKind(
        "samples, an object of fedaudit.datasets, a function that returns a Dataset, or a name",
        lambda: SOURCES,
    ),
    "partition": _PartKind(
        "an object or class with a method quotas", lambda: PARTITIONS, Partition
    ),
    "defense": _PartKind(
        "an object of fedaudit.defenses, a subclass of fedaudit.fl.hooks.Defense, or a catalogue "
        "name",
        _defenses,
        Defense,
    ),
    "server": _PartKind(
        "a subclass of fedaudit.fl.algorithms.base.Server, or a name", lambda: SERVERS, Server
    ),
    "extractor": _PartKind("a catalogue name, or a function from samples to features", _extractors),
    "metric": _PartKind(
        "a catalogue name, a function of scores and membership, or a fedaudit.metrics.Metric",
        lambda: METRICS,
        Metric,
        None,
    ),
    "view": _PartKind("a catalogue name or a fedaudit.views.View", lambda: VIEWS, View, None),
}


def _split_options(kind: str, value: object) -> tuple[object, dict[str, object]]:
    """Return the name, class, function or object of a part without its options, and the options.

    Raises:
        BadInput: The value is not a part of this kind.
    """
    # Checked first, since computing the digest of such a class's source would take long.
    if isinstance(value, type) and issubclass(value, FederatedAlgorithm | PartitionScheme):
        raise BadInput(f"{value.__name__} is a class; construct it: {value.__name__}()")
    if isinstance(value, ConfiguredModel | FederatedAlgorithm | DataSource | PartitionScheme):
        value = value.named_part()
    part = value if isinstance(value, NamedPart) else NamedPart(value)
    part_class, options = part.what, dict(part.options)
    while isinstance(part_class, functools.partial):
        if part_class.args:
            raise BadInput(
                f"the {kind} is a functools.partial with positional arguments ("
                f"{', '.join(map(repr, part_class.args))[:80]}); give all arguments by name"
            )
        options = {**part_class.keywords, **options}
        part_class = part_class.func
    is_constructor = isinstance(part_class, type | types.FunctionType) and kind != "view"
    if not (is_constructor or isinstance(part_class, (str, _KINDS[kind].base))):
        raise BadInput(
            f"{with_article(kind)} must be {_KINDS[kind].allowed}; got {type_of(part_class)}"
        )
    return part_class, options


def check_part(kind: str, value: object) -> None:
    """Raise if a value cannot be a part of a kind. Nothing is imported or copied."""
    part_class, _ = _split_options(kind, value)
    if isinstance(part_class, str):
        known_name(kind, part_class, _KINDS[kind].catalogue())


def check_data(value: object) -> None:
    """Raise if a value cannot be a data set. Names are looked up later, when data are read."""
    is_pair = isinstance(value, tuple) and len(value) == 2
    in_memory = Samples | InMemory | dataframe | Dataset
    if not (is_pair or isinstance(value, in_memory | DataSource)):
        _split_options("data set", value)


def check_defense(value: object) -> None:
    """Raise if a value cannot be a defense.

    Raises:
        BadInput: The value has another type, is an unknown name or a class that needs arguments,
            or its ``clients`` are not client numbers.
    """
    check_part("defense", value)
    _clients(value)
    part = value if isinstance(value, NamedPart) else NamedPart(value)
    if not isinstance(part.what, type):
        return
    missing, name = missing_options("defense", part.what, part.options), part.what.__name__
    if missing:
        raise BadInput(
            f"{name} is a class that needs {', '.join(missing)}; construct it: "
            f"{name}({'=..., '.join(missing)}=...)"
        )


def reference(kind: str, value: object) -> PartReference:
    """Return the name and plain settings of a part.

    Raises:
        BadInput: The value is not a part of this kind, or a setting is not plain.
    """
    part_kind = _KINDS[kind]
    part_class, options = _split_options(kind, value)
    name = (
        part_class
        if isinstance(part_class, str)
        else _catalogue_name(part_kind.catalogue(), part_class)
    )
    if name is not None:
        return PartReference(name, plain_options(kind, name, options))
    if isinstance(part_class, type | types.FunctionType) and kind != "view":
        return part_reference(part_class, options, kind=kind)
    if isinstance(part_class, Task) and part_class.name in TASKS:
        return PartReference(part_class.name, dict(part_class.settings))
    # The clients of a defense are a setting of its group. The settings of a network do not include
    # its weights, so that its reference contains a digest.
    set_elsewhere = ("coalition", "clients") if kind == "defense" else ()
    settings = None if kind == "model" else plain_settings(part_class, exclude=set_elsewhere)
    if settings is None:
        label = (
            getattr(part_class.function, "__name__", "metric")
            if isinstance(part_class, Metric)
            else ""
        )
        return snapshot_reference(part_class, make=part_kind.make, label=label)
    return reference(kind, NamedPart(type(part_class), settings))


def _catalogue_name(catalogue: Mapping[str, object], value: object) -> str | None:
    if isinstance(catalogue, Catalogue):
        return catalogue.name_of(value)
    return next((name for name, entry in catalogue.items() if entry is value), None)


def data_reference(value: object) -> tuple[PartReference, Path | None]:
    """Return the reference to a data set, and the folder of its file."""
    if isinstance(value, tuple) and len(value) == 2:
        value = samples(*value)
    if isinstance(value, Samples):
        value = from_samples(value)
    if isinstance(value, InMemory | dataframe):
        return snapshot_reference(value, label=value.name), None
    if isinstance(value, Dataset):
        return snapshot_reference(value, make=_constant_function, label=value.name), None
    part = value.named_part() if isinstance(value, DataSource) else value
    return reference("data set", part), getattr(part, "folder", None)


def _constant_function(value: object, digest: str) -> Callable[[], object]:
    return lambda: value


def clients_of(value: object) -> PartitionPart:
    """Return the number of clients and the partition of samples among them.

    Raises:
        BadInput: The value is neither a number of clients nor a partition.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        raise_if_invalid("clients of Federation", value, _ClientCount, 10)
        return PartitionPart("iid", {}, value)
    if isinstance(value, PartitionScheme):
        value = value.named_part()
    if not isinstance(value, PartitionPart):
        hint = f"; construct it: {value.__name__}(10)" if isinstance(value, type) else ""
        raise BadInput(
            "clients must be a number of clients, or an object of fedaudit.partitions, such as "
            f"Dirichlet(10, beta=1.0); got {type_of(value)}{hint}"
        )
    return value


_ClientCount = Annotated[int, Range(ge=2, le=10**6)]


def partition_settings(value: object, register: Register) -> dict[str, object]:
    """Return the section ``partition`` of a study."""
    clients = clients_of(value)
    scheme = reference("partition", clients)
    options = dict(scheme.options)
    size = options.pop("samples_per_client", 0) if scheme.registered is None else 0
    name = register(scheme)["name"]
    return {
        "scheme": name,
        "clients": clients.count,
        "samples_per_client": size,
        "options": options,
    }


def check_mechanism(value: object) -> None:
    """Raise if a value cannot be the defense of a game, which has a single client."""
    check_defense(value)
    if _clients(value) is not None:
        raise BadInput(
            f"games have a single client, but {type_of(value)} with clients is a defense of some "
            "clients; leave out clients"
        )


def mechanism_reference(value: object) -> PartReference:
    """Return the reference to a defense of a game."""
    check_mechanism(value)
    return reference("defense", value)


def defense_settings(value: object, register: Register) -> dict[str, object]:
    """Return the section ``defense``: groups of clients, each with its defenses in order."""
    groups: dict[tuple[int, ...] | None, list[dict[str, object]]] = {}
    # The group without clients comes first: the section describes it, and ``also`` the others.
    for defense in sorted(as_list(value), key=lambda defense: _clients(defense) is not None):
        groups.setdefault(_clients(defense), []).append(register(reference("defense", defense)))
    if not groups:
        return {}
    first, *other_parts = [
        {**parts[0], "chain": parts[1:], "clients": clients} for clients, parts in groups.items()
    ]
    return {**first, "also": other_parts}


def _clients(defense: object) -> tuple[int, ...] | None:
    """Return the clients that use a defense; None for all clients without another defense."""
    if isinstance(defense, DefensePart):
        return defense.clients
    if not isinstance(defense, Defense):
        return None
    clients = getattr(defense, "clients", None) or getattr(defense, "coalition", None)
    return None if clients is None else client_numbers(clients)


def attack_settings(value: object, register: Register) -> dict[str, object]:
    """Return the section ``attacks`` of a study.

    Raises:
        BadInput: A value is not an attack.
    """
    if isinstance(value, Mapping):
        parts = [_named_attack_reference(str(name), attack) for name, attack in value.items()]
    else:
        parts = [_attack_reference(attack) for attack in as_list(value)]
    settings: dict[str, object] = {}
    for part in parts:
        if settings.setdefault(part.name, part.options) != part.options:
            raise BadInput(
                f"attacks has {part.name!r} twice, with different settings; give a dictionary that "
                f'names each, such as {{"{part.name}-1": ..., "{part.name}-2": ...}}'
            )
    return {part.name: register(part)["options"] for part in parts}


def _named_attack_reference(name: str, value: object) -> PartReference:
    if isinstance(value, Mapping):
        return PartReference(name, plain_options("attack", name, value))
    if not isinstance(value, Attack) or not _ATTACK_NAME.fullmatch(name):
        raise BadInput(
            f"attacks[{name!r}] must be a dictionary of settings, or a fedaudit.attacks.Attack "
            f"under a name of letters and digits; got {type_of(value)}"
        )
    return _attack_reference(value) if name == value.name else snapshot_reference(value, label=name)


def _attack_reference(value: object) -> PartReference:
    if isinstance(value, str):
        return PartReference(value, {})
    if isinstance(value, NamedPart) and isinstance(value.what, str):
        return PartReference(value.what, plain_options("attack", value.what, value.options))
    if isinstance(value, type) and issubclass(value, Attack):
        return part_reference(value, {}, kind="attack")
    if not isinstance(value, Attack):
        name = getattr(value, "__name__", "")
        hint = f"; construct it: {name}()" if name in attacks.__all__ else ""
        raise BadInput(
            "an attack must be a catalogue name, or an object of fedaudit.attacks, such as "
            f"FedMIA2(); got {type_of(value)}{hint}"
        )
    catalogue_attack = {**ATTACKS, **SOURCE_ATTACKS}.get(value.name)
    if catalogue_attack is not None:
        settings, defaults = value.settings(), catalogue_attack.settings()
        changed = {
            name: option for name, option in settings.items() if option != defaults.get(name)
        }
        # Equality is checked, since an attack with a custom rule or signal has the same name.
        if settings.keys() == defaults.keys() and value == catalogue_attack.with_settings(changed):
            return PartReference(value.name, changed)
    kind = type(value)
    if kind is Attack:
        signals = [signal.name for signal in value.signals]
        return snapshot_reference(value, label="+".join([*signals, type(value.rule).__name__]))
    try:
        is_default = kind() == value  # type: ignore[call-arg]
    except TypeError:
        is_default = False
    return part_reference(kind, {}, kind="attack") if is_default else snapshot_reference(value)
