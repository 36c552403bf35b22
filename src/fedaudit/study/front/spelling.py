"""Parts of a federation of objects as a study spells them: names with plain settings."""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from fedaudit import attacks
from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, an, type_of
from fedaudit.core.importing import GivenObject
from fedaudit.core.lazy import Catalogue
from fedaudit.core.naming import Clients, Copies, DefensePart, NamedPart, members_of
from fedaudit.core.objects import Spelled, frozen, plain_settings, spelled
from fedaudit.core.tasks import TASKS, Task
from fedaudit.core.values import Samples, Setting
from fedaudit.datasets.catalog import SOURCES
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.in_memory import InMemory, of_samples, samples
from fedaudit.datasets.partitions.schemes import PARTITIONS
from fedaudit.datasets.source import DataSource
from fedaudit.defenses import DEFENSES
from fedaudit.fl.algorithms.base import Server
from fedaudit.fl.hooks import Defense
from fedaudit.metrics.table import METRICS, Metric
from fedaudit.models.base import ConfiguredModel
from fedaudit.observe.views import VIEWS, View
from fedaudit.partitions import PartitionScheme

_ATTACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")

Register = Callable[[Spelled], dict[str, object]]
"""Keeps the object that a name stands for, and gives name and options as a study has them."""


def registering(objects: dict[str, GivenObject]) -> Register:
    """Keeps objects that names stand for in a dictionary."""

    def register(one: Spelled) -> dict[str, object]:
        if one.given is not None:
            objects[one.name] = one.given
        return {"name": one.name, "options": one.options}

    return register


def attack_settings(given: object, register: Register) -> dict[str, object]:
    """Attacks as a study has them: names, objects, or a mapping from names to either.

    Args:
        given: One of them, several, or a mapping to settings or objects.
        register: Keeps objects.

    Raises:
        BadInput: Something that is no attack.
    """
    if isinstance(given, Mapping):
        found = [_attack_called(str(name), one) for name, one in given.items()]
    else:
        found = [_attack(one) for one in listed(given)]
    settings: dict[str, object] = {}
    for one in found:
        if settings.setdefault(one.name, one.options) != one.options:
            raise BadInput(
                f"attacks has {one.name!r} twice, with other settings; give a dictionary that "
                f'names each, such as {{"{one.name}-1": ..., "{one.name}-2": ...}}'
            )
    return {one.name: register(one)["options"] for one in found}


def listed(given: object) -> list[object]:
    """The entries of a list, or the one object that is none."""
    return list(given) if isinstance(given, list | tuple | set | frozenset) else [given]


def _named_in(catalogue: Mapping[str, object], value: object) -> str | None:
    """The catalogue's name of one of its own classes, functions or objects."""
    if isinstance(catalogue, Catalogue):
        return catalogue.name_of(value)
    return next((name for name, one in catalogue.items() if one is value), None)


def _part(kind: str, given: object, catalogue: Mapping[str, object]) -> Spelled:
    """A name, a class or a function, with options."""
    part = given if isinstance(given, NamedPart) else NamedPart(given)
    what: object = part.what
    options: dict[str, object] = dict(part.options)
    if isinstance(what, functools.partial) and _named_in(catalogue, what.func):
        options = {**what.keywords, **options}
        what = what.func
    known = what if isinstance(what, str) else _named_in(catalogue, what)
    if known is not None:
        return Spelled(known, _plain(kind, known, options))
    return spelled(what, options, kind=kind)


def _plain(kind: str, name: str, options: Mapping[str, object]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for option, given in options.items():
        value: object = given.item() if isinstance(given, np.generic) else given
        if not isinstance(value, bool | int | float | str):
            raise BadInput(
                f"{option} of the {kind} {name!r} is {type_of(value)}, and a setting is a "
                "number, a text, or true or false"
            )
        found[option] = value
    return found


_WANTED = {
    "model": "a torch.nn.Module, a class or function that makes one, or a catalogue's name",
    "task": "a catalogue's name, what fedaudit.tasks makes, or a loss of outputs and targets",
    "algorithm": "what fedaudit.algorithms makes, a function from a task to an algorithm, or a "
    "catalogue's name",
    "data": "samples, what fedaudit.datasets makes, a function that makes a Dataset, or a name",
    "defense": "derived from fedaudit.fl.hooks.Defense, or a catalogue's name",
}


def _is_not(kind: str, given: object) -> BadInput:
    subject = "data are" if kind == "data" else f"{an(kind)} is"
    return BadInput(f"{subject} {_WANTED[kind]}; got {type_of(given)}")


def part_spelled(kind: str, given: object, catalogue: Mapping[str, object]) -> Spelled:
    """A model or an algorithm."""
    if isinstance(given, nn.Module) and kind == "model":
        return _kept(frozen(given, given))
    if isinstance(given, ConfiguredModel):
        given = given.part()
    what = given.what if isinstance(given, NamedPart) else given
    if not isinstance(what, str) and (isinstance(what, nn.Module) or not callable(what)):
        raise _is_not(kind, what)
    return _part(kind, given, catalogue)


def task_spelled(given: object) -> Spelled:
    """A task by name, one that is made, or a loss of the caller's own."""
    if isinstance(given, Task):
        known = given.name in TASKS
        return Spelled(given.name, dict(given.settings)) if known else frozen(given, given)
    if not isinstance(given, str) and not callable(given):
        raise _is_not("task", given)
    return _part("task", given, TASKS)


def _kept(one: Spelled) -> Spelled:
    """An object that is made already, of which its name gives copies."""
    assert one.given is not None
    copies = Copies(one.given.value, one.given.digest)
    return one._replace(given=replace(one.given, value=copies))


def _instance(
    kind: str, value: object, catalogue: Mapping[str, object], *, besides: tuple[str, ...] = ()
) -> Spelled:
    """An object by its class and plain settings where these make it again, else as it is."""
    settings = plain_settings(value, besides=besides)
    if settings is None:
        return _kept(frozen(value, value))
    known = _named_in(catalogue, type(value))
    return Spelled(known, settings) if known else spelled(type(value), settings, kind=kind)


def data_spelled(given: object) -> tuple[Spelled, Path | None]:
    """A data set, and the folder of its file."""
    if isinstance(given, tuple) and len(given) == 2:
        given = samples(*given)
    if isinstance(given, Samples):
        given = of_samples(given)
    if isinstance(given, InMemory):
        return frozen(given, given, label=given.name), None
    if isinstance(given, Dataset):
        dataset = given
        return frozen(dataset, lambda: dataset, label=dataset.name), None
    if isinstance(given, DataSource):
        given = given.part()
    what = given.what if isinstance(given, NamedPart) else given
    if not isinstance(what, str) and not callable(what):
        raise _is_not("data", what)
    return _part("data set", given, SOURCES), getattr(given, "folder", None)


def partition_settings(given: object, register: Register) -> dict[str, object]:
    """The section of clients and how data are dealt to them.

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
    what, by_name = given.what, isinstance(given.what, str | type) or callable(given.what)
    scheme = (
        _part("partition", given, PARTITIONS)
        if by_name
        else _instance("partition", what, PARTITIONS)
    )
    options = dict(scheme.options)
    size = options.pop("samples_per_client", 0) if scheme.given is None else 0
    name = register(scheme)["name"]
    return {
        "scheme": name,
        "clients": given.count,
        "samples_per_client": size,
        "options": options,
    }


def server_spelled(given: object) -> Spelled:
    """A server by name, or of the caller's own.

    Raises:
        BadInput: It is none.
    """
    if isinstance(given, str):
        return Spelled(given, {})
    if not isinstance(given, Server):
        raise BadInput(
            "a server is derived from fedaudit.fl.algorithms.base.Server; got a "
            f"{type(given).__name__}"
        )
    return _instance("server", given, {})


def extractor_spelled(given: object) -> Spelled:
    """An extractor of features by name, or a function of the caller's own.

    Raises:
        BadInput: It is neither.
    """
    return Spelled(given, {}) if isinstance(given, str) else spelled(given, {}, kind="extractor")


def mechanism_spelled(given: object) -> Spelled:
    """A defense that all clients use, alone.

    Raises:
        BadInput: It is none, or of some clients only.
    """
    members, found = _defended(given)
    if members is not None:
        raise BadInput(f"games are against one client, so that {found.name!r} has no members")
    return found


_Members = tuple[int, ...] | None


def defense_settings(given: object, register: Register) -> dict[str, object]:
    """The section of defenses: groups of clients, and what each group uses in order."""
    plans = [_defended(one) for one in listed(given)]
    order: list[_Members] = list(dict.fromkeys(members for members, _ in plans))
    # Those of all others come first, because the section's own group is what is left over.
    order.sort(key=lambda members: members is not None)
    groups = [[register(part) for members, part in plans if members == one] for one in order]
    if not groups:
        return {}
    first, *others = [
        {**parts[0], "chain": parts[1:], "clients": members}
        for members, parts in zip(order, groups, strict=True)
    ]
    return {**first, "also": others}


def _defended(given: object) -> tuple[_Members, Spelled]:
    if isinstance(given, DefensePart):
        return given.members, _part("defense", given, DEFENSES)
    if isinstance(given, Defense):
        together = getattr(given, "members", None) or getattr(given, "coalition", None)
        members = None if together is None else members_of(together)
        return members, _instance("defense", given, DEFENSES, besides=("coalition", "members"))
    is_class = isinstance(given, type) and issubclass(given, Defense)
    if not (is_class or isinstance(given, str | NamedPart)):
        raise _is_not("defense", given)
    return None, _part("defense", given, DEFENSES)


def _attack_called(name: str, given: object) -> Spelled:
    if isinstance(given, Mapping):
        return Spelled(name, _plain("attack", name, given))
    if not isinstance(given, Attack) or not _ATTACK_NAME.fullmatch(name):
        raise BadInput(
            f"attacks[{name!r}] is a dictionary of settings, or a fedaudit.attacks.Attack "
            f"under a name of letters and digits; got {type_of(given)}"
        )
    return _attack(given) if name == given.name else frozen(given, given, label=name)


def _attack(given: object) -> Spelled:
    if isinstance(given, str):
        return Spelled(given, {})
    if isinstance(given, NamedPart) and isinstance(given.what, str):
        return Spelled(given.what, _plain("attack", given.what, given.options))
    if isinstance(given, type) and issubclass(given, Attack):
        return spelled(given, {}, kind="attack")
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
            return Spelled(given.name, changed)
    kind = type(given)
    if kind is Attack:
        rule = type(given.rule).__name__
        return frozen(given, given, label="+".join([*(s.name for s in given.signals), rule]))
    return spelled(kind, {}, kind="attack") if _is_made_alone(given) else frozen(given, given)


def _is_made_alone(given: Attack) -> bool:
    """True if the class of an attack makes the same one without any argument."""
    try:
        return type(given)() == given  # type: ignore[call-arg]
    except TypeError:
        return False


def metric_spelled(given: object) -> Spelled:
    """A metric by name, or of the caller's own.

    Raises:
        BadInput: It is none.
    """
    if isinstance(given, str):
        return Spelled(given, {})
    if isinstance(given, Metric):
        known = _named_in(METRICS, given)
        label = getattr(given.of, "__name__", "metric")
        return Spelled(known, {}) if known else frozen(given, given, label=label)
    if not callable(given):
        raise BadInput(
            "a metric is a name, a function of scores and membership, or a "
            "fedaudit.metrics.Metric; "
            f"got {type_of(given)}"
        )
    return spelled(given, {}, kind="metric")


def view_spelled(given: object) -> Spelled:
    """A view by name, or of the caller's own.

    Raises:
        BadInput: It is none.
    """
    if isinstance(given, str):
        return Spelled(given, {})
    if not isinstance(given, View):
        raise BadInput(f"a view is a name or a fedaudit.views.View; got {given!r}")
    return Spelled(given.name, {}) if given in VIEWS.values() else frozen(given, given)
