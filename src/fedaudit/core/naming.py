"""Parts of a federation, such as its model or its defenses, with their settings.

A part is a catalogue name, or a custom class, function or object, together with its settings. A
study file states the same settings next to the name. This module imports neither torch nor
pydantic.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedaudit.core.errors import BadInput, unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Setting: TypeAlias = bool | int | float | str
"""Value of one setting of a part."""

DataSetting: TypeAlias = Setting | Sequence[Setting] | Mapping[str, Setting | Sequence[Setting]]
"""Value of one setting of a data set: also a list, such as columns of a table, or a dictionary of
values or lists."""


@dataclass(frozen=True)
class NamedPart:
    """Part of a federation with its settings.

    Attributes:
        what: Catalogue name, ``module:object``, or the class, function or object itself.
        options: Settings of the part by name.
    """

    what: object
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class AlgorithmPart(NamedPart):
    """Federated algorithm with its settings.

    Attributes:
        training: Settings of rounds and local training, as in :class:`fedaudit.Training`.
    """

    training: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class DataPart(NamedPart):
    """Data set with its settings.

    Attributes:
        folder: Folder that contains its file; None if it has no file, or if the file is in the
            data directory.
    """

    folder: Path | None = None


@dataclass(frozen=True)
class PartitionPart(NamedPart):
    """Partition of the training samples among clients.

    Attributes:
        count: Number of clients.
    """

    count: int = 10


@dataclass(frozen=True)
class DefensePart(NamedPart):
    """Defense and the clients that use it.

    Attributes:
        clients: Clients that use the defense. Each has its own instance, or they form one coalition
            if the defense is made for coalitions. None for all clients without another defense.
    """

    clients: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CopyFactory:
    """Function without arguments that returns deep copies of a registered instance.

    Attributes:
        value: The registered instance, which is never changed.
        digest: Digest of the instance's class and state. Two factories are equal if their digests
            are equal.
    """

    value: object = field(compare=False, repr=False)
    digest: str

    def __call__(self) -> object:
        """Return a deep copy."""
        return deepcopy(self.value)


def named(what: object, /, **options: object) -> NamedPart:
    """Return a part of the catalogue, or a custom class or function, with settings.

    Args:
        what: Catalogue name, class or function. ``named(MyNet, width=64)`` stands for a network
            that each run constructs as ``MyNet(width=64)``.
        options: Settings of the part by name.

    Examples:
        >>> import fedaudit as fa
        >>> fa.named("cnn", channels="16,32").options
        {'channels': '16,32'}
    """
    return NamedPart(what, options)


def changed_fields(part: "DataclassInstance") -> dict[str, object]:
    """Return a dataclass's fields by name whose values differ from their defaults."""
    return {
        setting.name: value
        for setting in fields(part)
        if (value := getattr(part, setting.name)) != setting.default
    }


def client_numbers(clients: object) -> tuple[int, ...]:
    """Return client numbers as a tuple.

    Raises:
        BadInput: A number is not a whole number, or is negative.
    """
    numbers = tuple(clients) if isinstance(clients, Collection) else (None,)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise BadInput(f"clients must be a list of client numbers such as [0, 1], got {clients!r}")
    return numbers


_NUMBERED = re.compile(r"(?:client )?([0-9]{1,15})")


def number_of_client(
    client: int | str,
    names: Mapping[int, str],
    clients: Collection[int] | None = None,
    *,
    kind: str = "client",
) -> int:
    """Return the number of a client.

    Args:
        client: Its number; or its name, or "client 3" or "3", as reports print it.
        names: Names by number.
        clients: Numbers of the clients that may be meant; any if None.
        kind: Kind of client, for the message.

    Raises:
        BadInput: No client has the name or number.
    """
    number: int | None = None
    if isinstance(client, str):
        numbered = _NUMBERED.fullmatch(client.strip())
        by_name = {name: number for number, name in names.items()}
        number = by_name.get(client, int(numbered[1]) if numbered else None)
    else:
        number = client
    if number is None or (clients is not None and number not in clients):
        known = names if clients is None else clients
        raise unknown_name(kind, str(client), [names.get(n, f"client {n}") for n in known])
    return number
