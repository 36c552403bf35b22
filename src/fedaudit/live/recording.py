"""What a live recording says of itself, in one short JSON file."""

from collections.abc import Iterable, Mapping
from operator import index
from pathlib import Path
from typing import Annotated, Literal, SupportsIndex, TypeAlias, TypeVar, cast

from pydantic import Field, ValidationError

from fedaudit.core import ClientId
from fedaudit.errors import BadInput, Damaged
from fedaudit.files import RECORDING_FILE, read_object, write_whole
from fedaudit.observe.layout import MAX_ROUND, Keep
from fedaudit.results.fields import Part, Whole
from fedaudit.seeds import seed_for

_MOST_CLIENTS = 100_000
_NAMED = range(10**8, 10**9)
"""Numbers of clients that have a name."""

Called: TypeAlias = ClientId | str
"""A client as other people's loops call it: by number, or by name."""
Value = TypeVar("Value")
ByClient: TypeAlias = Mapping[ClientId, Value] | Mapping[str, Value]

Client = Annotated[int, Field(ge=0, le=10**15)]
Clients = Annotated[tuple[Client, ...], Field(max_length=_MOST_CLIENTS)]
Text = Annotated[str, Field(max_length=2000)]


class Recording(Part):
    """What was recorded, and how.

    Attributes:
        name: Of the federation, for people.
        key: Random; ties measured rounds to this recording.
        view: What the adversary is taken to see.
        every: Measured rounds are this far apart.
        keep: See :mod:`fedaudit.observe.layout`.
        attacks: Those whose signals are measured.
        refused: Others that cannot be made of what is recorded, with the reason.
        targets: Clients under audit.
        classes: Number of outputs of the model.
        sizes: Training samples of each client, as far as they are told.
        names: Of clients that are called by name, by their numbers.
        model: The model in words: its class.
        started: Date and time.
    """

    format: Literal["fedaudit-recording"] = "fedaudit-recording"
    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}$")]
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    view: Annotated[str, Field(max_length=50)]
    every: Annotated[int, Field(ge=1, le=MAX_ROUND)]
    keep: Keep
    attacks: Annotated[tuple[Annotated[str, Field(max_length=100)], ...], Field(max_length=1000)]
    refused: dict[str, Text] = Field(default_factory=dict)
    targets: Clients
    classes: Annotated[int, Field(ge=2, le=10**7)]
    sizes: dict[Client, Whole] = Field(default_factory=dict)
    names: Annotated[
        dict[Client, Annotated[str, Field(max_length=200)]], Field(max_length=_MOST_CLIENTS)
    ] = Field(default_factory=dict)
    model: Annotated[str, Field(max_length=500)] = ""
    started: Annotated[str, Field(max_length=40)] = ""


def number_of(client: object) -> ClientId:
    """The number of a client; a name has one that rests on the name alone.

    Args:
        client: A whole number, a name, or a number in digits.

    Raises:
        BadInput: It is neither.
    """
    try:
        if isinstance(client, str):
            return int(client) if client.isdecimal() else _number_of_name(client)
        # NumPy's whole numbers too.
        return index(cast("SupportsIndex", client))
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"clients have whole numbers from 0, or names, got {str(client)[:80]!r} (of type "
            f"{type(client).__name__}); number or name them so"
        ) from error


def numbers_of(clients: Iterable[Called]) -> dict[Called, ClientId]:
    """The number of each client.

    Raises:
        BadInput: A client that is none, or two that have one number.
    """
    numbers, known = dict[Called, ClientId](), dict[ClientId, Called]()
    for client in clients:
        number = numbers[client] = number_of(client)
        other = known.setdefault(number, client)
        if other != client:
            raise BadInput(
                f"clients {other!r} and {client!r} have the number {number}; rename one of them"
            )
    return numbers


def refuse_otherwise_called(clients: Iterable[Called], audited: Iterable[ClientId]) -> None:
    """Refuses names where audited clients have numbers, and numbers where they have names.

    They would pass for clients of whom no sample is audited.

    Raises:
        BadInput: There are such.
    """
    named = {number in _NAMED for number in audited}
    for client in clients:
        number = number_of(client)
        by_name = isinstance(client, str) and number in _NAMED
        if (named == {False} and by_name) or (named == {True} and number not in _NAMED):
            by, other = ("name", "number") if by_name else ("number", "name")
            raise BadInput(
                f"client {str(client)[:80]!r} is called by {by}, and the clients that are audited "
                f"by {other}; call them as fair_split or audit_samples was told"
            )


def _number_of_name(name: str) -> ClientId:
    if not name:
        raise ValueError("a name has at least one character")
    return _NAMED.start + seed_for(0, "client", name) % len(_NAMED)


def recording_of(**said: object) -> Recording:
    """A recording that says this of itself.

    Args:
        said: See :class:`Recording`.

    Raises:
        BadInput: Something that none can say.
    """
    try:
        return Recording.model_validate(said)
    except ValidationError as error:
        raise BadInput(f"a recording cannot be made so ({_first(error)}); change that") from error


def write_recording(recording: Recording, folder: Path) -> None:
    """Writes what a recording says of itself."""
    write_whole(folder / RECORDING_FILE, recording.model_dump_json(indent=1) + "\n")


def is_recording(folder: Path) -> bool:
    """Whether a folder is a live recording, and not that of a study."""
    return (folder / RECORDING_FILE).is_file()


def read_recording(folder: Path) -> Recording:
    """What a recording says of itself; the file may be anybody's.

    Raises:
        BadInput: The folder holds none.
        Damaged: It cannot be read or says what none does.
    """
    path = folder / RECORDING_FILE
    if not path.is_file():
        raise BadInput(f"{folder} is no recording: it has no {RECORDING_FILE}; check the path")
    try:
        return Recording.model_validate(read_object(path))
    except ValidationError as error:
        raise Damaged(f"{path} is no recording's ({_first(error)}); restore it") from error


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
