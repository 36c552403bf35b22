"""Coalitions: their members, and values they derive together without the server."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedaudit.core.errors import BadInput
from fedaudit.core.naming import members_of
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId
from fedaudit.fl.hooks import ConfiguredDefense, Visit


@dataclass(frozen=True)
class CoalitionDefense(ConfiguredDefense):
    """Defense that its members apply together, with values drawn from a seed that they share.

    Attributes:
        members: Clients of the coalition, each once.
    """

    members: Sequence[ClientId] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", members_of(self.members))
        if not self.members or len(set(self.members)) != len(self.members):
            raise BadInput(
                f"a coalition names at least one client, each once, got {self.members}; "
                "name its clients when the defense is made: members=[0, 1]"
            )

    @property
    def coalition(self) -> tuple[ClientId, ...]:
        """Clients of the coalition, in the order given."""
        return tuple(self.members)


def circle(
    coalition: tuple[ClientId, ...], visit: Visit, *, independent: bool
) -> tuple[ClientId, ...]:
    """With whom a client works something out: its coalition, or nobody but itself.

    Raises:
        BadInput: The visiting client is no member.
    """
    present(coalition, visit)
    return (visit.client,) if independent else coalition


def present(coalition: tuple[ClientId, ...], visit: Visit) -> tuple[ClientId, ...]:
    """The members that train in this round, ascending: who is absent is neither waited for nor
    covered up for.

    Raises:
        BadInput: The visiting client is no member.
    """
    if visit.client not in coalition:
        raise BadInput(
            f"client {visit.client} uses the defense of the coalition {coalition} and is not in "
            "it; give it a coalition of its own, or name it as a member"
        )
    return tuple(sorted(set(coalition) & {*visit.cohort, visit.client}))


def shared_seed(coalition: tuple[ClientId, ...], visit: Visit) -> int:
    """A seed that the members know and nobody else; another coalition's is another."""
    return seed_for(visit.seed, "coalition", *sorted(coalition))
