"""Parts of a federation in Python with their settings.

A part is a catalogue name, or a custom class, function or object, with the settings that a study
file has next to the name. Importing this module imports neither torch nor pydantic.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedaudit.core.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Setting: TypeAlias = bool | int | float | str
"""Value of an option of a part."""


@dataclass(frozen=True)
class NamedPart:
    """A part with its settings.

    Attributes:
        what: Catalogue name, ``module:object``, or the class, function or object itself.
        options: Its settings.
    """

    what: object
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class AlgorithmPart(NamedPart):
    """A federated algorithm.

    Attributes:
        training: Settings of rounds and local training, those of :class:`fedaudit.Training`.
    """

    training: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class DataPart(NamedPart):
    """A data set.

    Attributes:
        folder: Folder of its file; None if it has no file, or one in the data directory.
    """

    folder: Path | None = None


@dataclass(frozen=True)
class Clients(NamedPart):
    """Clients, and how training samples are divided among them.

    Attributes:
        count: Number of clients.
    """

    count: int = 10


@dataclass(frozen=True)
class DefensePart(NamedPart):
    """A defense and the clients that use it.

    Attributes:
        members: Clients with an instance each, which are a coalition if the defense takes one;
            None for all clients that have no other defense.
    """

    members: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Copies:
    """Function that returns copies of an object.

    Attributes:
        value: The object, which is never changed.
        digest: Digest of all that the object is made of, by which two functions are equal.
    """

    value: object = field(compare=False, repr=False)
    digest: str

    def __call__(self) -> object:
        """Return a deep copy."""
        return deepcopy(self.value)


def named(what: object, /, **options: object) -> NamedPart:
    """Return a part by its catalogue name, or of a custom class or function, with settings.

    Args:
        what: Catalogue name, class or function; ``named(MyNet, width=64)`` is a network that is
            constructed as ``MyNet(width=64)``.
        options: Its settings.

    Examples:
        >>> named("cnn", channels="16,32").options
        {'channels': '16,32'}
    """
    return NamedPart(what, options)


def changed_fields(part: "DataclassInstance") -> dict[str, object]:
    """Return the fields of a dataclass that have no default or differ from it, by name."""
    return {
        setting.name: value
        for setting in fields(part)
        if (value := getattr(part, setting.name)) != setting.default
    }


def members_of(members: object) -> tuple[int, ...]:
    """Return client numbers as a tuple.

    Raises:
        BadInput: A member is no whole number of at least 0.
    """
    clients = tuple(members) if isinstance(members, Collection) else (None,)
    if any(type(client) is not int or client < 0 for client in clients):
        raise BadInput(f"members are clients by number, such as [0, 1], got {members!r}")
    return clients
