"""The defenses of a study as its file names them: of whom, how set, one after another."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from fedaudit.core.values import ClientId
from fedaudit.study.settings.base import Count, Section, Settings
from fedaudit.study.settings.names import DefenseName

NONE = "none"


def _each_once(clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
    if len(set(clients)) < len(clients):
        raise ValueError("each client may stand once")
    return clients


Clients = Annotated[tuple[Count, ...], AfterValidator(_each_once)]


COALITION: Mapping[str, str] = dict.fromkeys(("coalition", "members"), "the clients of the defense")


class PartSection(Section):
    """One more defense in a chain, by catalogue name and with its own settings."""

    set_elsewhere = COALITION

    name: DefenseName
    options: Settings = Field(default_factory=dict)


class Group(NamedTuple):
    """Clients that use the same defenses, and which these are, in order."""

    clients: tuple[ClientId, ...]
    parts: tuple[PartSection, ...]


class GroupSection(PartSection):
    """Defenses of further clients; clients of one group are each other's coalition."""

    clients: Annotated[Clients, Field(min_length=1)]
    chain: tuple[PartSection, ...] = ()


class DefenseSection(Section):
    """The clients' defenses.

    Attributes:
        clients: Clients that use it, together where it takes a coalition; if left out, all but
            those of ``also``.
        chain: Further defenses of the same clients, applied after this one in the order given:
            a ``[[defense.chain]]`` table of ``name`` and ``options`` each.
        also: Further groups of clients with a defense of their own: a ``[[defense.also]]`` table
            of ``name``, ``clients``, ``options`` and ``chain`` each.
    """

    set_elsewhere = COALITION

    name: DefenseName = NONE
    clients: Clients | None = None
    options: Settings = Field(default_factory=dict)
    chain: tuple[PartSection, ...] = ()
    also: tuple[GroupSection, ...] = ()

    @property
    def label(self) -> str:
        """All that is used by its names, as records and reports have it; "none" for nothing."""
        groups: tuple[DefenseSection | GroupSection, ...] = (self, *self.also)
        used = [" + ".join(part.name for part in _used(group)) for group in groups]
        return ", ".join(dict.fromkeys(names for names in used if names)) or NONE

    def groups(self, clients: int) -> list[Group]:
        """Groups of clients by defense in a federation of so many, this table's own first."""
        elsewhere = {client for group in self.also for client in group.clients}
        rest = [client for client in range(clients) if client not in elsewhere]
        own = rest if self.clients is None else sorted(self.clients)
        return [
            Group(tuple(own), _used(self)),
            *(Group(tuple(sorted(one.clients)), _used(one)) for one in self.also),
        ]


def _used(group: DefenseSection | GroupSection) -> tuple[PartSection, ...]:
    """Defenses of a group's clients, in order; a variant that takes one away may leave options."""
    rest = tuple(part for part in group.chain if part.name != NONE)
    if group.name == NONE:
        return rest
    return PartSection(name=group.name, options=group.options), *rest
