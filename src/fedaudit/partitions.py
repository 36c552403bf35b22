"""Partitions for :class:`fedaudit.Federation`: the number of clients, and how samples are divided.

>>> import fedaudit as fa
>>> clients = fa.partitions.Dirichlet(10, beta=1.0)

Each class is one partition of ``fedaudit list partitions``. :func:`custom` wraps a custom one.
"""

from fedaudit.core.arguments import Positive, check_arguments
from fedaudit.core.naming import PartitionPart
from fedaudit.datasets.partitions.schemes import IID as IID
from fedaudit.datasets.partitions.schemes import Dirichlet as Dirichlet
from fedaudit.datasets.partitions.schemes import Natural as Natural
from fedaudit.datasets.partitions.schemes import Partition as Partition
from fedaudit.datasets.partitions.schemes import PartitionScheme as PartitionScheme
from fedaudit.datasets.partitions.schemes import Shards as Shards
from fedaudit.datasets.partitions.schemes import SIAClass0Size as SIAClass0Size
from fedaudit.datasets.partitions.schemes import WholeClasses as WholeClasses

__all__ = [
    "IID",
    "Dirichlet",
    "Natural",
    "Partition",
    "PartitionScheme",
    "SIAClass0Size",
    "Shards",
    "WholeClasses",
    "custom",
]


def __dir__() -> list[str]:
    return __all__


@check_arguments
def custom(
    clients: Positive,
    partition: str | Partition | type[Partition],
    /,
    **options: bool | int | float | str,
) -> PartitionPart:
    """Return a custom partition of samples among clients.

    Args:
        clients: Number of clients, at least 1.
        partition: Object or class with a method ``quotas``, or its name.
        options: Settings of the partition, if it is given as a class or a name.

    Examples:
        >>> import fedaudit as fa
        >>> fa.partitions.custom(4, "my_package:EverySecond", first=1).options
        {'first': 1}
    """
    return PartitionPart(partition, options, clients)
