"""Contracts of attacks, defenses, algorithms and partitions, which `fedaudit check-part` runs.

:func:`check_part` checks a part from outside the package: its kind, and all contracts of this kind.
"""

from collections.abc import Callable, Mapping

from fedaudit.algorithms import algorithm_named
from fedaudit.api.contracts.algorithms import (
    ALGORITHM_CONTRACTS,
    PARTITION_CONTRACTS,
    algorithm_case,
)
from fedaudit.api.contracts.attacks import ATTACK_CONTRACTS, attack_case
from fedaudit.api.contracts.base import ContractResult, run_contracts
from fedaudit.api.contracts.defenses import DEFENDED, DEFENSE_CONTRACTS, DefenseCase
from fedaudit.attacks import resolve_attack
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.importing import call_reporting_errors, look_up
from fedaudit.core.values import Setting
from fedaudit.datasets.partitions.schemes import PARTITIONS, Partition
from fedaudit.defenses import create_defense, defense_named


def _check_attack(name: str, options: Mapping[str, Setting]) -> list[ContractResult]:
    return run_contracts(ATTACK_CONTRACTS, attack_case(resolve_attack(name).with_settings(options)))


def _check_defense(name: str, options: Mapping[str, Setting]) -> list[ContractResult]:
    case = DefenseCase(lambda client: create_defense(name, options, coalition=DEFENDED))
    case.create(DEFENDED[0])  # Raises early if settings are missing.
    return run_contracts(DEFENSE_CONTRACTS, case)


def _check_algorithm(name: str, options: Mapping[str, Setting]) -> list[ContractResult]:
    return run_contracts(ALGORITHM_CONTRACTS, algorithm_case(algorithm_named(name), options))


def _check_partition(name: str, options: Mapping[str, Setting]) -> list[ContractResult]:
    scheme = call_reporting_errors("partition", name, _partition_named(name), **options)
    assert isinstance(scheme, Partition)
    return run_contracts(PARTITION_CONTRACTS, scheme)


def _partition_named(name: str) -> Callable[..., Partition]:
    return look_up(
        "partition",
        name,
        PARTITIONS,
        expected="a class with a method quotas",
        is_valid=lambda value: hasattr(value, "quotas"),
    )


CHECKS: Mapping[str, Callable[[str, Mapping[str, Setting]], list[ContractResult]]] = {
    "attack": _check_attack,
    "defense": _check_defense,
    "algorithm": _check_algorithm,
    "partition": _check_partition,
}
"""For each kind of part, the function that runs its contracts."""

_RESOLVERS: Mapping[str, Callable[[str], object]] = {
    "attack": resolve_attack,
    "defense": defense_named,
    "partition": _partition_named,
    "algorithm": algorithm_named,
}


def check_part(
    name: str, options: Mapping[str, Setting] | None = None, *, kind: str = ""
) -> list[ContractResult]:
    """Run the contracts of an attack, a defense, an algorithm or a partition.

    Args:
        name: Name as in a study: of the catalogue, of an installed package, or ``module:object``.
            The module is imported, which runs its code.
        options: Settings of the part.
        kind: "attack", "defense", "algorithm" or "partition"; by default, the kind is inferred
            from the object.

    Returns:
        One result for each contract.

    Raises:
        BadInput: There is no such part, it has another kind, or its settings are wrong.
    """
    if kind:
        return CHECKS[kind](name, options or {})
    reasons = []
    for candidate, resolve in _RESOLVERS.items():
        try:
            resolve(name)
        except FedauditError as error:
            reasons.append(str(error))
        else:
            return CHECKS[candidate](name, options or {})
    raise BadInput(
        f"{name!r} is no attack, defense, algorithm or partition: {reasons[0]}; to see why it is "
        "not another kind, give --kind"
    )
