"""Clients of a round as a loop calls them, and the clients of all rounds so far."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId
from fedaudit.live.recording import (
    LARGEST_CLIENT,
    ByClient,
    Called,
    RoundEntry,
    number_of,
    refuse_otherwise_called,
)
from fedaudit.live.weights import Weights

_MOST_NAMED = 5


class Participants(NamedTuple):
    """Clients of one round, by number.

    Attributes:
        asked: Clients that were sent something.
        uploads: What came back.
        faulty: Clients that answered with what cannot be read, with the reason.
        unnamed: How many of ``asked`` are called in a way that no audited client is.
        note: Why an upload belongs to no client that is known; empty if all do.
    """

    asked: list[ClientId]
    uploads: dict[ClientId, Weights]
    faulty: dict[ClientId, str]
    unnamed: int
    note: str


def usable_number(client: object, audited: Iterable[ClientId]) -> ClientId:
    """Return the number of a client.

    Raises:
        BadInput: It has none, or is called otherwise than audited clients are.
    """
    number = number_of(client)
    if not 0 <= number <= LARGEST_CLIENT:
        raise BadInput(
            f"clients have whole numbers from 0 to {LARGEST_CLIENT}, got {number}; number them so"
        )
    refuse_otherwise_called([client if isinstance(client, str) else number], audited)
    return number


def participants_of(
    uploads: ByClient[Weights],
    asked: Collection[Called],
    excluded: ByClient[str],
    audited: Collection[ClientId],
) -> Participants:
    """Return the clients of a round by number; one that has none costs nobody else's upload.

    Args:
        uploads: What came back of each client.
        asked: Clients that were sent something.
        excluded: Clients that answered with what cannot be read, with the reason.
        audited: Clients under audit.

    Raises:
        BadInput: No upload belongs to a client that is known.
    """
    found, faulty = dict[ClientId, Weights](), dict[ClientId, str]()
    called, strange = dict[ClientId, Called](), list[str]()
    for client, upload in uploads.items():
        try:
            number = usable_number(client, audited)
        except BadInput as error:
            strange.append(str(error))
            continue
        if number in called:
            faulty[number] = f"two uploads are of it, under {called[number]!a} and {client!a}"
            found.pop(number, None)
        else:
            called[number], found[number] = client, upload
    for client, reason in excluded.items():
        try:
            faulty[usable_number(client, audited)] = str(reason)
        except BadInput as error:
            strange.append(f"{error} ({reason})")
    if strange and not called and not faulty:
        raise BadInput(strange[0])
    numbers, unnamed = list[ClientId](), 0
    for client in asked:
        try:
            numbers.append(usable_number(client, audited))
        except BadInput:
            unnamed += 1
    found = {client: upload for client, upload in found.items() if client not in faulty}
    # Of an upload whose client is not known, its sender was asked as well.
    return Participants(numbers, found, faulty, unnamed, strange[0] if strange else "")


class Attendance:
    """Clients and outcomes of the rounds of a run.

    Attributes:
        reasons: Why each round is not recorded, by its number in digits; empty for one that is.
    """

    def __init__(
        self,
        audited: Collection[ClientId],
        before: Iterable[RoundEntry],
        called: Callable[[ClientId], str],
    ) -> None:
        """Count rounds that were recorded before, without the reasons for those that were not.

        Args:
            audited: Clients of whom samples are audited, or whose size is known.
            before: Log entries of earlier runs.
            called: Returns what a client is called.
        """
        self._called = called
        self._audited, self._others = {*audited}, set[ClientId]()
        self.reasons = dict[str, str]()
        self._met = any(self._audited & {*one.asked, *one.answered} for one in before)
        self._rounds = 0

    def fault(self, entry: RoundEntry) -> str:
        """Return a warning if no client of the first rounds is audited; empty otherwise."""
        clients = {*entry.asked, *entry.answered}
        self._met = self._met or bool(clients & self._audited)
        if self._met or not clients:
            return ""
        self._rounds += 1
        self._others |= clients
        return (
            f"no client of round {entry.round} ({self._few(clients)}) is audited: audited are "
            f"{self._few(self._audited)}; call clients as in the audited samples, or nothing is "
            "measured of them (name other clients of the federation in sizes=)"
        )

    def summary(self) -> str:
        """Return what is to be said of the run when it ends; empty if nothing is."""
        said = []
        if reasons := [*filter(None, self.reasons.values())]:
            said.append(
                f"{len(reasons)} of {len(self.reasons)} rounds are not recorded; the first, "
                f"because {reasons[0]}"
            )
        if not self._met and self._rounds:
            said.append(
                f"no audited client took part in any of {self._rounds} rounds, and "
                f"{len(self._others)} clients did that nobody audits ({self._few(self._others)}): "
                "nothing can be said of the audited ones"
            )
        return "; ".join(said)

    def _few(self, clients: Collection[ClientId]) -> str:
        named = ", ".join(self._called(client) for client in sorted(clients)[:_MOST_NAMED])
        return named + (" ..." if len(clients) > _MOST_NAMED else "")
