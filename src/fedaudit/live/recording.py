"""The settings of a live recording, and its log of rounds: a line of JSON each, measured or not."""

import errno
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import (
    LONGEST_LOG,
    MOST_KEYS,
    MOST_ROUNDS,
    RECORDING_FILE,
    TooLarge,
    opened_to_append,
    parsed_json,
    read_object,
    read_text,
    refuse_absent,
    refuse_unreadable,
    write_whole,
)
from fedaudit.core.tasks import TASKS, Task, of_loss, task_named
from fedaudit.core.values import ClientId
from fedaudit.evaluation.uploads import Metric
from fedaudit.observe.tensors import MAX_ROUND, Keep
from fedaudit.plan.sections import TaskSection
from fedaudit.plan.values import refusal_of
from fedaudit.results.fields import Part, Whole
from fedaudit.results.text import plain

MOST_CLIENTS = MOST_KEYS
"""Of a recording, and of a round."""
MOST_CONFLICTS = 10_000
"""Rounds that came a second time and are named, at most."""

UPLOAD_VIEWS = ("uploads", "sum")
"""Views of adversaries that see what clients send, each or in sum."""

LARGEST_CLIENT = 10**15
Client = Annotated[int, Field(ge=0, le=LARGEST_CLIENT)]
RoundNumber = Annotated[int, Field(ge=1, le=MAX_ROUND)]
Clients = Annotated[tuple[Client, ...], Field(max_length=MOST_CLIENTS)]
Text = Annotated[str, Field(max_length=2000)]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Recording(Part):
    """Settings and facts of a recording.

    Attributes:
        name: Of the federation, for people.
        key: Random; ties measured rounds to this recording.
        view: What the adversary is taken to see.
        every: Measured rounds are this far apart.
        keep: See :mod:`fedaudit.observe.tensors`.
        attacks: Those whose signals are measured.
        refused: Others that cannot be made of what is recorded, with the reason.
        targets: Clients under audit.
        classes: Number of outputs of the model.
        sizes: Training samples of each client, as far as they are told.
        not_uploaded: Parameters and buffers that the user says clients do not upload.
        names: Of clients that are called by name, by their numbers.
        unaudited: Clients that declined the audit or gave no part that fits, with the reason.
        conflicts: Rounds that came a second time with other models or uploads, which are not in the
            recording, with the reason.
        is_closed: True once the recorder was closed after its last round; None in recordings of
            older versions, which do not say.
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
    classes: Annotated[int, Field(ge=1, le=10**7)]
    task: TaskSection = TaskSection()
    sizes: Annotated[dict[Client, Whole], Field(max_length=MOST_CLIENTS)] = Field(
        default_factory=dict
    )
    not_uploaded: Annotated[tuple[Text, ...], Field(max_length=MOST_CLIENTS)] = ()
    names: Annotated[
        dict[Client, Annotated[str, Field(max_length=200)]], Field(max_length=MOST_CLIENTS)
    ] = Field(default_factory=dict)
    unaudited: Annotated[
        dict[Annotated[str, Field(max_length=300)], Text], Field(max_length=MOST_CLIENTS)
    ] = Field(default_factory=dict)
    conflicts: Annotated[dict[RoundNumber, Text], Field(max_length=MOST_CLIENTS)] = Field(
        default_factory=dict
    )
    is_closed: bool | None = None
    model: Annotated[str, Field(max_length=500)] = ""
    started: Annotated[str, Field(max_length=40)] = ""

    def measured_task(self) -> Task:
        """Return the task as far as figures need it: nothing is imported, no loss is computed."""
        if self.task.name in TASKS:
            return task_named(self.task.name, self.task.options)
        return of_loss(self.task.name, _no_loss)


def _no_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("the loss of a recording was taken when it was made")


def recording_of(**said: object) -> Recording:
    """Return a recording with these settings; see :class:`Recording`."""
    try:
        return Recording.model_validate(said)
    except ValidationError as error:
        raise refusal_of(error, Recording, "the recording", said) from error


def recording_text(recording: Recording, folder: Path) -> str:
    """Return the content of a recording's file; raise if it could not be read back."""
    text = recording.model_dump_json(indent=1) + "\n"
    refuse_unreadable(folder / RECORDING_FILE, text)
    return text


def write_recording(recording: Recording, folder: Path) -> None:
    """Write a recording's settings; what was there stays if they could not be read back."""
    write_whole(folder / RECORDING_FILE, recording_text(recording, folder))


def is_recording(folder: Path) -> bool:
    """True if a folder is a live recording, and not that of a study."""
    return (folder / RECORDING_FILE).is_file()


def read_recording(folder: Path) -> Recording:
    """Reads a recording's settings; the file may be anybody's.

    Raises:
        BadInput: The folder holds none.
        Damaged: It cannot be read or says what none does.
    """
    refuse_absent(folder, "the folder of a live recording")
    path = folder / RECORDING_FILE
    if not path.is_file():
        raise BadInput(f"{folder} is no recording: it has no {RECORDING_FILE}; check the path")
    try:
        return Recording.model_validate(read_object(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise Damaged(f"{path} is no recording's ({wrong}); restore it") from error


LOG_FILE = "rounds.jsonl"
_SHORTEST_LINE = 50
"""Bytes of a line of the log, at least."""
_MOST_NAMED = 5


class RoundEntry(Part):
    """One round, measured or not.

    Attributes:
        round: Its number.
        asked: Clients that were sent something.
        answered: Clients whose upload came back.
        measured: Whether it was measured.
        unnamed: How many more were sent something, did not answer, and never said who they are.
        note: What went wrong; empty for nothing.
        excluded: Clients that answered and whose upload was not measured, with the reason.
        kept_out: Clients whose upload the server kept out of the average.
        unknown: True if it is not known who answered, or not of all.
        sent: SHA-256 of what clients were sent; empty where it is not known.
        uploads: The same of the uploads that can be measured.
        weights: Of the uploads, until the round is measured; empty where the loop has given the
            model afterwards.
        reported: Training metrics that audited clients reported, until the round is measured.
    """

    round: RoundNumber
    asked: Clients
    answered: Clients
    measured: bool
    unnamed: Whole = 0
    note: Text = ""
    excluded: dict[Client, Text] = Field(default_factory=dict)
    kept_out: Clients = ()
    unknown: bool = False
    sent: Digest = ""
    uploads: Digest = ""
    weights: dict[Client, Finite] = Field(default_factory=dict)
    reported: dict[Client, dict[Metric, Finite]] = Field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True if the round could not be measured, for another reason than the user's choice."""
        return bool(self.note) and not self.measured

    def logged(self, **changes: object) -> "RoundEntry":
        """Return the entry without what only measuring needs, and with some changes."""
        return self.model_copy(update={"weights": {}, "reported": {}, **changes})

    @property
    def complete(self) -> bool:
        """True if all who were asked have answered."""
        return set(self.asked) == set(self.answered) and self.unnamed == 0


def round_entry(
    index: int,
    asked: Collection[ClientId],
    answered: Collection[ClientId],
    unnamed: int,
    excluded: Mapping[ClientId, str] | None = None,
    note: str = "",
) -> RoundEntry:
    """Return the log entry of a round that is not measured, or not yet; see :class:`RoundEntry`."""
    try:
        return RoundEntry(
            round=index,
            asked=tuple(sorted({*asked, *answered})),
            answered=tuple(sorted(answered)),
            measured=False,
            unnamed=unnamed,
            excluded={c: plain(why)[:2000] for c, why in (excluded or {}).items()},
            note=plain(note)[:2000],
        )
    except (TypeError, ValueError) as error:
        clients = ", ".join(repr(client) for client in [*asked, *answered][:_MOST_NAMED])
        raise BadInput(
            f"rounds have whole numbers from 1 to {MAX_ROUND} and clients from 0, got round "
            f"{index!r} of the clients {clients}; number them so"
        ) from error


def read_round_log(folder: Path) -> list[RoundEntry]:
    """All rounds that a recording heard of, in the order they came.

    A last line that is cut off, as a power failure leaves it, is left out; of a round that stands
    twice, as where a process was killed, the last line counts.

    Raises:
        BadInput: The log is a link or no regular file.
        Damaged: Another line cannot be read.
    """
    text = _log(folder)
    if text.count("\n") > MOST_ROUNDS:
        raise Damaged(f"{folder / LOG_FILE} has over {MOST_ROUNDS:,} rounds; it is no recording's")
    lines = text.split("\n")[:-1]
    try:
        found = [RoundEntry.model_validate(parsed_json(line)) for line in lines]
        return list({one.round: one for one in found}.values())
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{folder / LOG_FILE} is no log of rounds ({error}); restore it from a copy"
        ) from error


def mended_round_log(folder: Path) -> list[RoundEntry]:
    """Read the log, and remove a line that was cut off, so that others can follow."""
    found, text = read_round_log(folder), _log(folder)
    if text and not text.endswith("\n"):
        write_whole(folder / LOG_FILE, text[: text.rfind("\n") + 1])
    return found


def append_round(one: RoundEntry, folder: Path) -> None:
    """Add a line for one round, whole or not at all; raise if the log is full."""
    line = (one.model_dump_json(exclude_defaults=True) + "\n").encode()
    with opened_to_append(folder / LOG_FILE) as file:
        before = file.tell()
        _refuse_full(folder, before, before + len(line))
        if file.write(line) != len(line):
            # Or the next line would go on in this one, and neither could be read.
            file.truncate(before)
            raise OSError(errno.ENOSPC, "No space left on device")


def _refuse_full(folder: Path, before: int, after: int) -> None:
    """Raise if a log of so many bytes, or its lines, are more than are read back."""
    is_full = after > LONGEST_LOG
    if not is_full and before >= MOST_ROUNDS * _SHORTEST_LINE:
        is_full = _log(folder).count("\n") >= MOST_ROUNDS
    if is_full:
        raise BadInput(
            f"{folder / LOG_FILE} is full: at most {LONGEST_LOG:,} bytes and {MOST_ROUNDS:,} "
            "rounds are read back; give later rounds a recording in another folder"
        )


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
        return read_text(path, max_bytes=LONGEST_LOG)
    except TooLarge as error:
        raise Damaged(f"{error}; it is no recording's") from error
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
