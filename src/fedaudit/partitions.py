"""Numbers of clients and how data are dealt to them, for :class:`fedaudit.Federation`.

>>> import fedaudit as fa
>>> clients = fa.partitions.Dirichlet(10, beta=1.0)

:func:`own` takes a partition of your own.
"""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fedaudit.core.naming import Clients, changed_fields

__all__ = ["IID", "Dirichlet", "PartitionScheme", "SIAClass0Size", "Shards", "WholeClasses", "own"]


@dataclass(frozen=True)
class PartitionScheme:
    """Clients whose data are dealt by a scheme of the catalogue.

    Attributes:
        clients: Number of clients, at least 1.
    """

    catalogue_name: ClassVar[str]

    clients: int

    def part(self) -> Clients:
        """Return name and settings as a study file has them, without settings at their defaults."""
        settings = changed_fields(self)
        del settings["clients"]
        return Clients(self.catalogue_name, settings, self.clients)


@dataclass(frozen=True)
class IID(PartitionScheme):
    """Deals samples at random in equal shares, whatever their class.

    Attributes:
        clients: Number of clients, at least 1.
        samples_per_client: Samples of each client; 0 deals all of them.

    Examples:
        >>> IID(10, samples_per_client=300).clients
        10
    """

    catalogue_name: ClassVar[str] = "iid"
    _: KW_ONLY
    samples_per_client: int = 0


@dataclass(frozen=True)
class Dirichlet(PartitionScheme):
    """Deals each class in random unequal shares: the smaller ``beta``, the more unequal.

    Attributes:
        clients: Number of clients, at least 1.
        beta: Concentration of the Dirichlet distribution, above 0.
        minimum: Fewest samples of a client; the draw is repeated until all have them.
        samples_per_client: Samples of each client, drawn by a label distribution of its own; 0
            deals all samples by one draw for each class.

    Examples:
        >>> Dirichlet(10, beta=0.5).beta
        0.5

    Source: FedMIA, section 4.3; SIA, section 4.3 (its alpha is our beta).
    """

    catalogue_name: ClassVar[str] = "dirichlet"
    _: KW_ONLY
    beta: float
    minimum: int = 1
    samples_per_client: int = 0


@dataclass(frozen=True)
class Shards(PartitionScheme):
    """Sorts samples by class, cuts them into equal shards and gives each client some of them.

    Attributes:
        clients: Number of clients, at least 1.
        per_client: Shards of each client; with 2 most clients have two classes.
        samples_per_client: Samples of each client; 0 deals all of them.

    Examples:
        >>> Shards(100, per_client=2).per_client
        2

    Source: McMahan et al. 2017, section 3 (the "pathological" partition).
    """

    catalogue_name: ClassVar[str] = "shards"
    _: KW_ONLY
    per_client: int = 2
    samples_per_client: int = 0


@dataclass(frozen=True)
class WholeClasses(PartitionScheme):
    """Gives every class to one client, for clients that are books, authors or hospitals.

    Attributes:
        clients: Number of clients, at least 1.
        samples_per_client: Samples of each client, drawn from its classes; 0 deals all of them.

    Examples:
        >>> WholeClasses(5).samples_per_client
        0
    """

    catalogue_name: ClassVar[str] = "whole-classes"
    _: KW_ONLY
    samples_per_client: int = 0


@dataclass(frozen=True)
class SIAClass0Size(PartitionScheme):
    """The split of SIA's published code, for comparison only: it drops most samples.

    Attributes:
        clients: Number of clients, at least 1.
        beta: Concentration of the Dirichlet distribution, above 0.
        minimum: Fewest samples of a client; the published code has no such limit.

    Examples:
        >>> SIAClass0Size(10, beta=1.0).minimum
        1

    Source: SIA, published code (its alpha is our beta).
    Differs: Every class is dealt as if it were as large as class 0, on purpose.
    """

    catalogue_name: ClassVar[str] = "sia_class0_size"
    _: KW_ONLY
    beta: float
    minimum: int = 1


def own(clients: int, partition: object, /, **options: bool | int | float | str) -> Clients:
    """Return clients whose data are dealt by a partition of your own.

    Args:
        clients: Number of clients.
        partition: An object or class with ``quotas``
            (:class:`fedaudit.datasets.partitions.schemes.Partition`), or its name.
        options: Settings, if it is a class or a name.
    """
    return Clients(partition, options, clients)
