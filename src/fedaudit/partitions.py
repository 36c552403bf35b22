"""Clients and how data are dealt to them, for :class:`fedaudit.Federation`.

``Dirichlet(10, beta=1.0)``: ten clients with label distributions of one Dirichlet draw. There are
all of ``fedaudit list partitions``; :func:`own` takes a :class:`Partition` of one's own.
"""

from collections.abc import Callable
from inspect import signature

from fedaudit.core.errors import unknown_name
from fedaudit.core.naming import Clients

NAMES = {
    "IID": "iid",
    "Dirichlet": "dirichlet",
    "Shards": "shards",
    "WholeClasses": "whole-classes",
    "SIAClass0Size": "sia_class0_size",
}
"""Every partition of the catalogue by its name here."""

__all__ = [*NAMES, "own"]


def own(clients: int, what: object, /, **options: object) -> Clients:
    """A partition of one's own: an object or class with ``quotas``, or its name.

    Args:
        clients: How many.
        what: See :class:`fedaudit.datasets.partitions.schemes.Partition`.
        options: Settings, where it is a class or a name.
    """
    return Clients(what, options, clients)


def __getattr__(name: str) -> Callable[..., Clients]:
    if name not in NAMES:
        raise AttributeError(f"module 'fedaudit.partitions' has no attribute {name!r}")

    def make(clients: int, /, **options: object) -> Clients:
        from fedaudit.datasets.partitions.schemes import PARTITIONS

        known = [*signature(PARTITIONS[NAMES[name]]).parameters]
        for one in options:
            if one not in known:
                raise unknown_name(f"setting of fedaudit.partitions.{name}", one, known)
        return own(clients, NAMES[name], **options)

    make.__name__ = make.__qualname__ = name
    return make


def __dir__() -> list[str]:
    return __all__
