"""Parts of a federation in Python: what each is, and its settings, before anything is loaded.

A part is a catalogue's name, or a class, function or object of the user's own, with the settings
that a study file would have beside the name. The rooms :mod:`fedaudit.algorithms`,
:mod:`fedaudit.partitions`, :mod:`fedaudit.datasets`, :mod:`fedaudit.defenses` and
:mod:`fedaudit.models` make them. Importing this module loads neither torch nor pydantic.
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
        what: A catalogue's name, ``module:object``, or the class, function or object itself.
        options: Its own settings.
    """

    what: object
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class AlgorithmPart(NamedPart):
    """A federated algorithm.

    Attributes:
        training: Settings of rounds and local training, as :class:`fedaudit.Training` has them.
    """

    training: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class DataPart(NamedPart):
    """A data set.

    Attributes:
        folder: Where its file lies; None where it needs none, or lies in the data directory.
    """

    folder: Path | None = None


@dataclass(frozen=True)
class Clients(NamedPart):
    """Clients, and how training samples are dealt to them.

    Attributes:
        count: How many clients.
    """

    count: int = 10


@dataclass(frozen=True)
class DefensePart(NamedPart):
    """A defense and the clients that use it.

    Attributes:
        members: These clients, each with an instance of its own and together a coalition where the
            defense takes one; None for all that have no other.
    """

    members: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Copies:
    """Makes copies of an object that is made already.

    Attributes:
        value: The object; it is left as it is.
        digest: Of all that it is made of, by which two of these are the same.
    """

    value: object = field(compare=False, repr=False)
    digest: str

    def __call__(self) -> object:
        """A copy, as deep as the object."""
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
        one.name: value for one in fields(part) if (value := getattr(part, one.name)) != one.default
    }


def members_of(given: object) -> tuple[int, ...]:
    """Clients by their numbers.

    Raises:
        BadInput: Something else than whole numbers.
    """
    clients = tuple(given) if isinstance(given, Collection) else (None,)
    if any(type(client) is not int or client < 0 for client in clients):
        raise BadInput(f"members are clients by number, such as [0, 1], got {given!r}")
    return clients
