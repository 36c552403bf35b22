"""What a rule is: it makes scores, or chances of clients, of what was measured."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.core import ClientId, Sees
from fedaudit.errors import BadInput
from fedaudit.observe.measurements import Measurements


class _Described(Protocol):
    """What the catalogue tells of any rule.

    Attributes:
        over_clients: What it does over clients, in a few words, for the catalogue.
        over_rounds: What it does over rounds.
        needs: What the adversary must see beyond what the signals need.
    """

    @property
    def over_clients(self) -> str:
        """See the class."""
        ...

    @property
    def over_rounds(self) -> str:
        """See the class."""
        ...

    @property
    def needs(self) -> Sees:
        """See the class."""
        ...


@runtime_checkable
class Rule(_Described, Protocol):
    """Turns measurements into one score a sample. A frozen dataclass with its settings."""

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Scores; larger means likelier a member of the target client's data."""
        ...


@runtime_checkable
class LearnedRule(Rule, Protocol):
    """A rule that scores nothing until it is shown samples of which membership is known."""

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> Rule:
        """The rule with what it has learned; never shown a sample that is to be attacked.

        Args:
            measurements: Of a shadow run, or of samples whose membership is known.
            is_member: Who of them was a member of ``target``.
            target: A client of theirs.
            seed: Root of all random choices.
        """
        ...


@runtime_checkable
class InformedRule(Rule, Protocol):
    """A rule that scores nothing until it is told what a defense let the target train on."""

    def told(self, used: Mapping[int, Bool[Tensor, "*samples"]]) -> Rule:
        """The rule with what it was told.

        Args:
            used: By measured round, which samples the target can have trained on.
        """
        ...


@runtime_checkable
class SourceRule(_Described, Protocol):
    """Turns measurements into a chance for each client to have each sample.

    ``over_clients`` ends with "arg max", which tells it in a record from a rule on membership.
    """

    def posterior(
        self, *measurements: Measurements, sizes: Mapping[ClientId, int]
    ) -> Float[Tensor, "clients samples"]:
        """Chance of each client to have each sample; columns sum to 1.

        Clients stand in the measurements' order. Who was never measured has no chance.

        Args:
            measurements: Of samples that some client has.
            sizes: Number of training samples of each client, for a prior.
        """
        ...


def measured_rounds(
    values: Float[Tensor, "rounds samples"], target: ClientId
) -> Bool[Tensor, " rounds"]:
    """The rounds in which a client was measured.

    Raises:
        BadInput: There is none.
    """
    there = ~torch.isnan(values).any(1)
    if not bool(there.any()):
        raise BadInput(
            f"client {target} took part in none of the measured rounds; measure more rounds"
        )
    return there
