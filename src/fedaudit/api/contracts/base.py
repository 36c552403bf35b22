"""Contracts of a part, and the run of all contracts of one part."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedaudit.core.errors import FedauditError
from fedaudit.core.importing import location_of

Case = TypeVar("Case")


class ContractResult(NamedTuple):
    """Result of one contract.

    Attributes:
        name: Statement that the part must fulfil.
        fault: What is wrong and how to mend it; empty if the part fulfils the contract.
    """

    name: str
    fault: str


def run_contracts(contracts: Iterable[Callable[[Case], str]], case: Case) -> list[ContractResult]:
    """Run all contracts on a part.

    Args:
        contracts: Functions that return a fault, or an empty text. The first line of each
            docstring is the contract.
        case: The part with the data that the contracts need.
    """
    return [ContractResult(name_of(contract), _fault(contract, case)) for contract in contracts]


def name_of(contract: Callable[..., str]) -> str:
    """Return the statement of a contract."""
    return (contract.__doc__ or contract.__name__).splitlines()[0].rstrip(".")


def _fault(contract: Callable[[Case], str], case: Case) -> str:
    try:
        return contract(case)
    except FedauditError as error:
        return str(error)
    # The part is custom code, which may raise anything. sys.exit(0) would look like success.
    except (Exception, SystemExit) as error:
        return f"it raises {type(error).__name__}: {error} ({location_of(error)})"


GLOBAL_GENERATOR_MESSAGE = (
    "it draws from torch's global generator, so results are not reproducible; draw from the "
    "generator that it is given, such as context.rng(purpose)"
)


def uses_global_generator(run: Callable[[], object]) -> bool:
    """Return True if a function draws from torch's global generator."""
    before = torch.get_rng_state()
    run()
    return not torch.equal(torch.get_rng_state(), before)


def are_equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Return True if two sets of tensors have the same names and values."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)
