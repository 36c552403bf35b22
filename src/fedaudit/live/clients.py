"""Clients of a recording: their numbers and names, and the participants of each round."""

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import index
from typing import NamedTuple, SupportsIndex, TypeAlias, TypeVar, cast

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId
from fedaudit.live.recording import MAX_CLIENT_NUMBER, RoundEntry, round_entry
from fedaudit.live.weights import Weights

_NUMBERS_OF_NAMES = range(10**8, 10**9)
"""Range of the numbers that clients with a name get."""

ClientRef: TypeAlias = ClientId | str
"""Client as a training loop identifies it: by number or by name."""
Value = TypeVar("Value")
ByClient: TypeAlias = Mapping[ClientId, Value] | Mapping[str, Value] | Mapping[ClientRef, Value]


def number_of(client: object) -> ClientId:
    """Return the number of a client.

    The number of a named client is a hash of its name. A string of digits is read as a number.
    Names that look the same have the same number; see :func:`plain_name`.
    """
    try:
        if isinstance(client, str):
            name = plain_name(client)
            return int(name) if name.isdecimal() else _number_of_name(name)
        if isinstance(client, bool):
            raise TypeError("a truth value is not a number")
        # NumPy's integers are not of the type int, but have an index.
        return index(cast("SupportsIndex", client))
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"a client is {str(client)[:80]!r} (of type {type(client).__name__}); give whole "
            "numbers from 0, or names"
        ) from error


def plain_name(name: str) -> str:
    """Normalise a name: compose accented letters, and remove invisible characters and spaces.

    Operating systems encode accented letters in different ways.
    """
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFC", visible).split())


def numbers_of(clients: Iterable[ClientRef]) -> dict[ClientRef, ClientId]:
    """Return the number of each client; raise if a client is invalid or two numbers are equal."""
    numbers, by_number = dict[ClientRef, ClientId](), dict[ClientId, ClientRef]()
    for client in clients:
        number = numbers[client] = number_of(client)
        first = by_number.setdefault(number, client)
        if first != client:
            names = {plain_name(ref) if isinstance(ref, str) else ref for ref in (first, client)}
            problem = "are the same name" if len(names) == 1 else f"have the number {number}"
            raise BadInput(f"clients {first!a} and {client!a} {problem}; rename one of them")
    return numbers


def by_number(values: ByClient[Value]) -> dict[ClientId, Value]:
    """Return values by client number; raise if a client is invalid or two numbers are equal."""
    return dict(zip(numbers_of(values).values(), values.values(), strict=True))


def is_of_name(number: ClientId) -> bool:
    """Return True if a client's number was computed from a name."""
    return number in _NUMBERS_OF_NAMES


def names_among(clients: Iterable[ClientRef]) -> tuple[str, ...]:
    """Return the names of the clients that are identified by name."""
    names = (plain_name(client) for client in clients if isinstance(client, str))
    return tuple(name for name in names if name and not name.isdecimal())


def raise_if_mixed_references(clients: Iterable[ClientRef], audited: Iterable[ClientId]) -> None:
    """Raise if clients have names but audited clients have numbers, or the reverse."""
    audited_forms = {"name" if is_of_name(number) else "number" for number in audited}
    for client in clients:
        has_named_number = is_of_name(number_of(client))
        if audited_forms == {"number"} and has_named_number and isinstance(client, str):
            form, audited_form = "name", "number"
        elif audited_forms == {"name"} and not has_named_number:
            form, audited_form = "number", "name"
        else:
            continue
        raise BadInput(
            f"client {str(client)[:80]!r} is identified by its {form}, but audited clients "
            f"by their {audited_form}; use the same form as in fair_split or audit_samples"
        )


def _number_of_name(name: str) -> ClientId:
    if not name:
        raise ValueError("a name has at least one character")
    return _NUMBERS_OF_NAMES[seed_for(0, "client", name) % len(_NUMBERS_OF_NAMES)]


_MAX_LISTED = 5


class Participants(NamedTuple):
    """Clients of one round, by number.

    Attributes:
        selected: Clients that were sent the model.
        uploads: Uploads that can be read.
        unreadable: Clients that answered without a readable upload, with the reason for each.
        unnamed: Number of selected clients without a valid number or name.
        note: The first error about an upload without a valid client; empty without error.
    """

    selected: list[ClientId]
    uploads: dict[ClientId, Weights]
    unreadable: dict[ClientId, str]
    unnamed: int
    note: str

    def entry(self, index: int, *, unnamed: int = 0, note: str = "") -> RoundEntry:
        """Return the log entry of the round.

        Args:
            index: Number of the round.
            unnamed: Number of further selected clients without a valid number or name.
            note: Replaces the note about uploads, if not empty.
        """
        return round_entry(
            index,
            self.selected,
            {*self.uploads, *self.unreadable},
            unnamed + self.unnamed,
            self.unreadable,
            note or self.note,
        )


def valid_client_number(client: object, audited: Iterable[ClientId]) -> ClientId:
    """Return the number of a client; raise if it is invalid, or names and numbers are mixed."""
    number = number_of(client)
    if not 0 <= number <= MAX_CLIENT_NUMBER:
        raise BadInput(
            f"a client has the number {number}; give whole numbers from 0 to {MAX_CLIENT_NUMBER}"
        )
    raise_if_mixed_references([client if isinstance(client, str) else number], audited)
    return number


def participants_of(
    uploads: ByClient[Weights],
    selected: Collection[ClientRef],
    unreadable: ByClient[str],
    audited: Collection[ClientId],
) -> Participants:
    """Return the clients of a round by number; clients without a valid number are only counted."""
    refs, errors = dict[ClientId, ClientRef](), list[str]()
    readable, reasons = dict[ClientId, Weights](), dict[ClientId, str]()
    for client, upload in uploads.items():
        try:
            number = valid_client_number(client, audited)
        except BadInput as error:
            errors.append(str(error))
            continue
        if number in refs:
            reasons[number] = f"it has two uploads, named {refs[number]!a} and {client!a}"
        else:
            refs[number], readable[number] = client, upload
    for client, reason in unreadable.items():
        try:
            reasons[valid_client_number(client, audited)] = str(reason)
        except BadInput as error:
            errors.append(f"{error} ({reason})")
    if errors and not refs and not reasons:
        raise BadInput(errors[0])
    numbers, unnamed = list[ClientId](), 0
    for client in selected:
        try:
            numbers.append(valid_client_number(client, audited))
        except BadInput:
            unnamed += 1
    readable = {client: upload for client, upload in readable.items() if client not in reasons}
    return Participants(numbers, readable, reasons, unnamed, errors[0] if errors else "")


class Attendance:
    """Warnings about clients that are not audited, and about rounds that are not recorded.

    Attributes:
        reasons: Reason why a round is not recorded, by round number as a string; empty for a
            recorded round.
    """

    def __init__(
        self,
        audited: Collection[ClientId],
        earlier: Iterable[RoundEntry],
        display_name: Callable[[ClientId], str],
    ) -> None:
        """Check whether an audited client took part in an earlier round."""
        self._display_name = display_name
        self._audited, self._unaudited = {*audited}, set[ClientId]()
        self.reasons = dict[str, str]()
        self._has_audited = any(self._audited & {*e.selected, *e.answered} for e in earlier)
        self._n_rounds_unaudited = 0

    def warning(self, entry: RoundEntry) -> str:
        """Return a warning if no audited client took part so far; otherwise an empty text."""
        clients = {*entry.selected, *entry.answered}
        self._has_audited = self._has_audited or bool(clients & self._audited)
        if self._has_audited or not clients:
            return ""
        self._n_rounds_unaudited += 1
        self._unaudited |= clients
        return (
            f"no client of round {entry.round} ({self._list(clients)}) is audited: audited are "
            f"{self._list(self._audited)}; name clients as in the audited samples, or they are not "
            "measured (name other clients of the federation in sizes=)"
        )

    def summary(self) -> str:
        """Return a warning for the end of the run, or an empty text."""
        sentences = []
        if reasons := [*filter(None, self.reasons.values())]:
            sentences.append(
                f"{len(reasons)} of {len(self.reasons)} rounds are not recorded; the first, "
                f"because {reasons[0]}"
            )
        if not self._has_audited and self._n_rounds_unaudited:
            sentences.append(
                f"no audited client took part in any of {self._n_rounds_unaudited} rounds, but "
                f"{len(self._unaudited)} other clients did ({self._list(self._unaudited)}): there "
                "is no result for the audited clients"
            )
        return "; ".join(sentences)

    def _list(self, clients: Collection[ClientId]) -> str:
        names = ", ".join(self._display_name(client) for client in sorted(clients)[:_MAX_LISTED])
        return names + (" ..." if len(clients) > _MAX_LISTED else "")
