"""Parts of a federation of objects as a study names them: names with plain settings."""

import functools
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import nn

from fedaudit import attacks
from fedaudit.algorithms import ALGORITHMS, FederatedAlgorithm
from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, an, type_of
from fedaudit.core.importing import GivenObject
from fedaudit.core.lazy import Catalogue
from fedaudit.core.naming import Clients, Copies, DefensePart, NamedPart, members_of
from fedaudit.core.objects import (
    PartReference,
    part_reference,
    plain_options,
    plain_settings,
    snapshot_reference,
)
from fedaudit.core.tasks import TASKS, Task
from fedaudit.core.values import Samples
from fedaudit.datasets.arrays import InMemory, of_samples, samples
from fedaudit.datasets.catalog import SOURCES
from fedaudit.datasets.dataset import Dataset, DataSource
from fedaudit.datasets.partitions.schemes import PARTITIONS, Partition
from fedaudit.defenses import DEFENSES
from fedaudit.fl.algorithms.base import Server
from fedaudit.fl.hooks import Defense
from fedaudit.metrics.table import METRICS, Metric
from fedaudit.models import MODELS, ConfiguredModel
from fedaudit.observe.views import VIEWS, View
from fedaudit.partitions import PartitionScheme

_ATTACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")

Register = Callable[[PartReference], dict[str, object]]
"""Keeps the object that a name stands for, and returns name and options as a study has them."""


def registering(objects: dict[str, GivenObject]) -> Register:
    """Return what keeps objects that names stand for in a dictionary."""

    def register(part: PartReference) -> dict[str, object]:
        if part.given is not None:
            objects[part.name] = part.given
        return {"name": part.name, "options": part.options}

    return register


def listed(given: object) -> list[object]:
    """Return the entries of a list, or the one object that is no list."""
    return list(given) if isinstance(given, list | tuple | set | frozenset) else [given]


class _Kind(NamedTuple):
    """What a part may be.

    Attributes:
        wanted: All of it, for refusals.
        catalogue: Classes, functions and objects that have names.
        base: Class of its objects; none if only names, classes and functions are taken.
        make: Returns what the name of an object stands for; the object itself if None.
    """

    wanted: str
    catalogue: Mapping[str, object] = {}
    base: type | tuple[()] = ()
    make: Callable[[object, str], object] | None = Copies


_KINDS = {
    "model": _Kind(
        "a torch.nn.Module, a class or function that makes one, or a catalogue's name",
        MODELS,
        nn.Module,
    ),
    "task": _Kind(
        "a catalogue's name, what fedaudit.tasks makes, or a loss of outputs and targets",
        TASKS,
        Task,
        None,
    ),
    "algorithm": _Kind(
        "what fedaudit.algorithms makes, a function from a task to an algorithm, or a "
        "catalogue's name",
        ALGORITHMS,
    ),
    "data set": _Kind(
        "samples, what fedaudit.datasets makes, a function that makes a Dataset, or a name",
        SOURCES,
    ),
    "partition": _Kind("an object or class with a method quotas", PARTITIONS, Partition),
    "defense": _Kind(
        "derived from fedaudit.fl.hooks.Defense, or a catalogue's name", DEFENSES, Defense
    ),
    "server": _Kind("derived from fedaudit.fl.algorithms.base.Server, or a name", {}, Server),
    "extractor": _Kind("a name, or a function from samples to features"),
    "metric": _Kind(
        "a name, a function of scores and membership, or a fedaudit.metrics.Metric",
        METRICS,
        Metric,
        None,
    ),
    "view": _Kind("a name or a fedaudit.views.View", VIEWS, View, None),
}


def reference(kind: str, given: object) -> PartReference:
    """Return a part by its name and plain settings.

    Args:
        kind: What it is wanted as.
        given: Name, class, function or object, or what :func:`fedaudit.named` returns.

    Raises:
        BadInput: It is something else, or a setting is not plain.
    """
    known = _KINDS[kind]
    # The source of a class would be digested for long before it is refused.
    if isinstance(given, type) and issubclass(given, FederatedAlgorithm | PartitionScheme):
        raise BadInput(f"{given.__name__} is a class; construct it: {given.__name__}()")
    if isinstance(given, ConfiguredModel | FederatedAlgorithm | DataSource | PartitionScheme):
        given = given.part()
    part = given if isinstance(given, NamedPart) else NamedPart(given)
    what, options = part.what, dict(part.options)
    while isinstance(what, functools.partial):
        if what.args:
            raise BadInput(
                f"the {kind} is a partial with arguments by place ("
                f"{', '.join(map(repr, what.args))[:80]}); give all of them by name"
            )
        options = {**what.keywords, **options}
        what = what.func
    name = what if isinstance(what, str) else _named_in(known.catalogue, what)
    if name is not None:
        return PartReference(name, plain_options(kind, name, options))
    if isinstance(what, type | types.FunctionType) and kind != "view":
        return part_reference(what, options, kind=kind)
    if not isinstance(what, known.base):
        raise BadInput(f"{an(kind)} is {known.wanted}; got {type_of(what)}")
    if isinstance(what, Task) and what.name in TASKS:
        return PartReference(what.name, dict(what.settings))
    # Clients of a defense are those of its group, and values of a network are no settings.
    elsewhere = ("coalition", "members") if kind == "defense" else ()
    settings = None if kind == "model" else plain_settings(what, besides=elsewhere)
    if settings is None:
        label = getattr(what.of, "__name__", "metric") if isinstance(what, Metric) else ""
        return snapshot_reference(what, make=known.make, label=label)
    return reference(kind, NamedPart(type(what), settings))


def _named_in(catalogue: Mapping[str, object], value: object) -> str | None:
    """Return the catalogue's name of one of its own classes, functions or objects."""
    if isinstance(catalogue, Catalogue):
        return catalogue.name_of(value)
    return next((name for name, one in catalogue.items() if one is value), None)


def data_reference(given: object) -> tuple[PartReference, Path | None]:
    """Return a data set, and the folder of its file."""
    if isinstance(given, tuple) and len(given) == 2:
        given = samples(*given)
    if isinstance(given, Samples):
        given = of_samples(given)
    if isinstance(given, InMemory):
        return snapshot_reference(given, label=given.name), None
    if isinstance(given, Dataset):
        return snapshot_reference(given, make=_constant, label=given.name), None
    part = given.part() if isinstance(given, DataSource) else given
    return reference("data set", part), getattr(part, "folder", None)


def _constant(value: object, digest: str) -> Callable[[], object]:
    return lambda: value


def partition_settings(given: object, register: Register) -> dict[str, object]:
    """Return the section of clients and of how data are divided among them.

    Raises:
        BadInput: Neither a number of clients nor a partition.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        given = Clients("iid", {}, given)
    if isinstance(given, PartitionScheme):
        given = given.part()
    if not isinstance(given, Clients):
        raise BadInput(
            "clients are a number of them, or what fedaudit.partitions makes, such as "
            f"Dirichlet(10, beta=1.0); got {type_of(given)}"
        )
    scheme = reference("partition", given)
    options = dict(scheme.options)
    size = options.pop("samples_per_client", 0) if scheme.given is None else 0
    name = register(scheme)["name"]
    return {
        "scheme": name,
        "clients": given.count,
        "samples_per_client": size,
        "options": options,
    }


def mechanism_reference(given: object) -> PartReference:
    """Return a defense that all clients use, alone.

    Raises:
        BadInput: It is none, or of some clients only.
    """
    members = _members(given)
    part = reference("defense", given)
    if members is not None:
        raise BadInput(f"games are against one client, so that {part.name!r} has no members")
    return part


def defense_settings(given: object, register: Register) -> dict[str, object]:
    """Return the section of defenses: groups of clients, and what each group uses in order."""
    groups: dict[tuple[int, ...] | None, list[dict[str, object]]] = {}
    # The section's own group is that of all clients that have no other.
    for defense in sorted(listed(given), key=lambda defense: _members(defense) is not None):
        groups.setdefault(_members(defense), []).append(register(reference("defense", defense)))
    if not groups:
        return {}
    first, *others = [
        {**parts[0], "chain": parts[1:], "clients": members} for members, parts in groups.items()
    ]
    return {**first, "also": others}


def _members(given: object) -> tuple[int, ...] | None:
    """Return the clients that use a defense; None for all that have no other."""
    if isinstance(given, DefensePart):
        return given.members
    if not isinstance(given, Defense):
        return None
    together = getattr(given, "members", None) or getattr(given, "coalition", None)
    return None if together is None else members_of(together)


def attack_settings(given: object, register: Register) -> dict[str, object]:
    """Return attacks as a study has them.

    Args:
        given: Name or object, several of them, or a mapping from names to settings or objects.
        register: Keeps objects.

    Raises:
        BadInput: Something that is no attack.
    """
    if isinstance(given, Mapping):
        parts = [_attack_called(str(name), attack) for name, attack in given.items()]
    else:
        parts = [_attack(attack) for attack in listed(given)]
    settings: dict[str, object] = {}
    for part in parts:
        if settings.setdefault(part.name, part.options) != part.options:
            raise BadInput(
                f"attacks has {part.name!r} twice, with other settings; give a dictionary that "
                f'names each, such as {{"{part.name}-1": ..., "{part.name}-2": ...}}'
            )
    return {part.name: register(part)["options"] for part in parts}


def _attack_called(name: str, given: object) -> PartReference:
    if isinstance(given, Mapping):
        return PartReference(name, plain_options("attack", name, given))
    if not isinstance(given, Attack) or not _ATTACK_NAME.fullmatch(name):
        raise BadInput(
            f"attacks[{name!r}] is a dictionary of settings, or a fedaudit.attacks.Attack "
            f"under a name of letters and digits; got {type_of(given)}"
        )
    return _attack(given) if name == given.name else snapshot_reference(given, label=name)


def _attack(given: object) -> PartReference:
    if isinstance(given, str):
        return PartReference(given, {})
    if isinstance(given, NamedPart) and isinstance(given.what, str):
        return PartReference(given.what, plain_options("attack", given.what, given.options))
    if isinstance(given, type) and issubclass(given, Attack):
        return part_reference(given, {}, kind="attack")
    if not isinstance(given, Attack):
        name = getattr(given, "__name__", "")
        hint = f"; construct it: {name}()" if name in attacks.__all__ else ""
        raise BadInput(
            "an attack is a catalogue's name, or what fedaudit.attacks makes, such as FedMIA2(); "
            f"got {type_of(given)}{hint}"
        )
    known = {**ATTACKS, **SOURCE_ATTACKS}.get(given.name)
    if known is not None:
        settings, usual = given.settings(), known.settings()
        changed = {name: value for name, value in settings.items() if value != usual.get(name)}
        # A custom rule or signal keeps the name of the attack that it was put into.
        if settings.keys() == usual.keys() and given == known.with_settings(changed):
            return PartReference(given.name, changed)
    kind = type(given)
    if kind is Attack:
        signals = [signal.name for signal in given.signals]
        return snapshot_reference(given, label="+".join([*signals, type(given.rule).__name__]))
    try:
        is_made_alone = kind() == given  # type: ignore[call-arg]
    except TypeError:
        is_made_alone = False
    return part_reference(kind, {}, kind="attack") if is_made_alone else snapshot_reference(given)
