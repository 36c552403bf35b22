"""What a live recording heard of each round: a line of JSON, measured or not."""

import errno
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedaudit.core import ClientId
from fedaudit.errors import BadInput, Damaged
from fedaudit.files import TooLarge, opened_to_append, parsed_json, read_text, write_whole
from fedaudit.live.recording import Clients, Text
from fedaudit.observe.layout import MAX_ROUND
from fedaudit.results.fields import Part, Whole

LOG_FILE = "rounds.jsonl"
_LONGEST_LOG = 96 * 2**20
_MOST_ROUNDS = 300_000
"""A line of sixty characters takes a kilobyte of memory."""
_MOST_NAMED = 5


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


def heard_of(
    index: int, asked: Collection[ClientId], answered: Collection[ClientId], unnamed: int
) -> Heard:
    """What is heard of a round that is not measured, or not yet.

    Args:
        index: Its number.
        asked: Clients that were sent something, besides those that answered.
        answered: Clients whose upload came back.
        unnamed: See :class:`Heard`.

    Raises:
        BadInput: No rounds or clients have such numbers.
    """
    try:
        return Heard(
            round=index,
            asked=tuple(sorted({*asked, *answered})),
            answered=tuple(sorted(answered)),
            measured=False,
            unnamed=unnamed,
        )
    except (TypeError, ValueError) as error:
        clients = ", ".join(repr(client) for client in [*asked, *answered][:_MOST_NAMED])
        raise BadInput(
            f"rounds have whole numbers from 1 to {MAX_ROUND} and clients from 0, got round "
            f"{index!r} of the clients {clients}; number them so"
        ) from error


def heard(folder: Path) -> list[Heard]:
    """All rounds that a recording heard of, in the order they came.

    A last line that is cut off, as a power failure leaves it, is left out.

    Raises:
        BadInput: The log is a link or no regular file.
        Damaged: Another line cannot be read.
    """
    text = _log(folder)
    if text.count("\n") > _MOST_ROUNDS:
        raise Damaged(f"{folder / LOG_FILE} has over {_MOST_ROUNDS:,} rounds; it is no recording's")
    lines = text.split("\n")[:-1]
    try:
        return [Heard.model_validate(parsed_json(line)) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{folder / LOG_FILE} is no log of rounds ({error}); restore it from a copy"
        ) from error


def heard_to_go_on(folder: Path) -> list[Heard]:
    """The same, with a line that was cut off taken out of the file, so that others can follow.

    Raises:
        BadInput: The log is a link or no regular file.
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
    with opened_to_append(folder / LOG_FILE) as file:
        before = file.tell()
        if file.write(line) != len(line):
            # Or the next line would go on in this one, and neither could be read.
            file.truncate(before)
            raise OSError(errno.ENOSPC, "No space left on device")


def _log(folder: Path) -> str:
    """The log's text; empty where there is none yet."""
    path = folder / LOG_FILE
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise BadInput(
            f"{path} is a link or no regular file, so that no round would be kept; remove it, or "
            "choose another folder"
        )
    if not path.exists():
        return ""
    try:
        return read_text(path, max_bytes=_LONGEST_LOG)
    except TooLarge as error:
        raise Damaged(f"{error}; it is no recording's") from error
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
