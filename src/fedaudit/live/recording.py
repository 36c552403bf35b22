"""What a live recording says of itself: one short JSON file, and a line for each round."""

import errno
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from fedaudit.errors import BadInput, Damaged
from fedaudit.files import TooLarge, parsed_json, read_object, read_text, write_whole
from fedaudit.observe.store import MAX_ROUND, Keep
from fedaudit.study.fields import Part, Whole

RECORDING_FILE = "recording.json"
LOG_FILE = "rounds.jsonl"
_LONGEST_LOG = 256 * 2**20
_MOST_CLIENTS = 100_000

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
        keep: See :mod:`fedaudit.observe.store`.
        attacks: Those whose signals are measured.
        refused: Others that cannot be made of what is recorded, with the reason.
        targets: Clients under audit.
        classes: Number of outputs of the model.
        sizes: Training samples of each client, as far as they are told.
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
    model: Annotated[str, Field(max_length=500)] = ""
    started: Annotated[str, Field(max_length=40)] = ""


class Heard(Part):
    """One round, measured or not.

    Attributes:
        round: Its number.
        asked: Clients that were sent something.
        answered: Clients whose upload came back.
        measured: Whether it was measured.
        unnamed: How many more were sent something, did not answer, and never said who they are.
        note: What went wrong; empty for nothing.
    """

    round: Annotated[int, Field(ge=1, le=MAX_ROUND)]
    asked: Clients
    answered: Clients
    measured: bool
    unnamed: Whole = 0
    note: Text = ""

    @property
    def complete(self) -> bool:
        """Whether all who were asked have answered."""
        return set(self.asked) == set(self.answered) and self.unnamed == 0


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


def heard(folder: Path) -> list[Heard]:
    """All rounds that a recording heard of, in the order they came.

    A last line that is cut off, as a power failure leaves it, is left out.

    Raises:
        Damaged: Another line cannot be read.
    """
    lines = _log(folder).split("\n")[:-1]
    try:
        return [Heard.model_validate(parsed_json(line)) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{folder / LOG_FILE} is no log of rounds ({error}); restore it from a copy"
        ) from error


def heard_to_go_on(folder: Path) -> list[Heard]:
    """The same, with a line that was cut off taken out of the file, so that others can follow.

    Raises:
        Damaged: Another line cannot be read.
    """
    found, text = heard(folder), _log(folder)
    if text and not text.endswith("\n"):
        write_whole(folder / LOG_FILE, text[: text.rfind("\n") + 1])
    return found


def add_heard(one: Heard, folder: Path) -> None:
    """Adds a line for one round; whole, or not at all.

    Raises:
        OSError: It cannot be written.
    """
    line = (one.model_dump_json() + "\n").encode()
    with (folder / LOG_FILE).open("ab", buffering=0) as file:
        before = file.tell()
        if file.write(line) != len(line):
            # Or the next line would go on in this one, and neither could be read.
            file.truncate(before)
            raise OSError(errno.ENOSPC, "No space left on device")


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _log(folder: Path) -> str:
    """The log's text; empty where there is none yet."""
    path = folder / LOG_FILE
    if not path.is_file():
        return ""
    try:
        return read_text(path, max_bytes=_LONGEST_LOG)
    except TooLarge as error:
        raise Damaged(f"{error}; it is no recording's") from error
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
