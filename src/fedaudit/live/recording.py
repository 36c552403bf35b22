"""Settings of a recording, and its log with one JSON line for each round."""

import re
import secrets
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, ValidationError
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import (
    MAX_KEYS,
    MAX_LOG_BYTES,
    MAX_LOG_LINES,
    RECORDING_FILE,
    TooLarge,
    append_line,
    parse_json,
    raise_if_absent,
    raise_if_unreadable,
    read_object,
    read_text,
    write_atomically,
)
from fedaudit.core.task_catalogue import TASKS, of_loss, task_named
from fedaudit.core.tasks import Task
from fedaudit.core.values import Capability, ClientId
from fedaudit.evaluation.uploads import Metric
from fedaudit.observe.tensors import MAX_ROUND, Keep
from fedaudit.observe.views import View, updates_view, view_named, with_resources
from fedaudit.plan.sections import TaskSection
from fedaudit.plan.values import refusal_of
from fedaudit.results.fields import Count, RecordPart
from fedaudit.results.runs import TensorNames
from fedaudit.results.text import clean_text

MAX_CLIENTS = MAX_KEYS
"""Largest number of clients of a recording or a round."""
MAX_REFERENCES = 10_000
"""Largest number of reference models."""
MAX_CONFLICTS = 10_000
"""Largest number of repeated rounds that are listed."""

UPLOAD_VIEWS = ("uploads", "sum")
"""Views that show uploads, individually or as a sum."""

MAX_CLIENT_NUMBER = 10**15
_MAX_NAME_LENGTH = 200
Client = Annotated[int, Field(ge=0, le=MAX_CLIENT_NUMBER)]
RoundNumber = Annotated[int, Field(ge=1, le=MAX_ROUND)]
Clients = Annotated[tuple[Client, ...], Field(max_length=MAX_CLIENTS)]
Text = Annotated[str, Field(max_length=2000)]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Recording(RecordPart):
    """Settings of a recording.

    Attributes:
        name: Name of the federation.
        key: Random key that every file of the recording contains.
        view: The adversary's view.
        every: Interval between measured rounds, in rounds.
        keep: Tensors that are stored; see :mod:`fedaudit.observe.tensors`.
        attacks: Attacks whose signals are measured.
        refused: Attacks of the default set that are impossible, with the reason.
        targets: Audited clients.
        classes: Number of outputs of the model.
        task: The clients' task.
        sizes: Number of training samples of each client; empty if unknown.
        not_uploaded: Parameters and buffers declared as not uploaded.
        adapter: Tensors that clients train, each with its name in the file of an adapter. Empty if
            clients train all parameters.
        tied: Further names of tensors that have several, each with the first name.
        names: Names of clients, by number.
        unaudited: Clients that declined the audit or sent no valid audited samples, with the
            reason.
        table: Empty for recorded models. "joint" for a table of signals, in which every client is
            measured on every sample; "separate" if each is measured only on its own samples.
        references: Number of reference models in a table of signals, for attacks such as RMIA.
        conflicts: Rounds that were passed again with different models or uploads, with the reason.
            The later version is not recorded.
        is_closed: True once the recorder was closed after its last round; None in recordings of
            older versions.
        model: Class of the model.
        started: Date and time of the start.
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
    sizes: Annotated[dict[Client, Count], Field(max_length=MAX_CLIENTS)] = Field(
        default_factory=dict
    )
    not_uploaded: Annotated[tuple[Text, ...], Field(max_length=MAX_CLIENTS)] = ()
    adapter: TensorNames = Field(default_factory=dict)
    tied: TensorNames = Field(default_factory=dict)
    names: Annotated[
        dict[Client, Annotated[str, Field(max_length=200)]], Field(max_length=MAX_CLIENTS)
    ] = Field(default_factory=dict)
    unaudited: Annotated[
        dict[Annotated[str, Field(max_length=300)], Text], Field(max_length=MAX_CLIENTS)
    ] = Field(default_factory=dict)
    table: Literal["", "joint", "separate"] = ""
    references: Annotated[int, Field(ge=0, le=MAX_REFERENCES)] = 0
    conflicts: Annotated[dict[RoundNumber, Text], Field(max_length=MAX_CLIENTS)] = Field(
        default_factory=dict
    )
    is_closed: bool | None = None
    model: Annotated[str, Field(max_length=500)] = ""
    started: Annotated[str, Field(max_length=40)] = ""

    @property
    def adversary(self) -> View:
        """The adversary's view, with the reference models that it has."""
        view = updates_view(view_named(self.view))
        return with_resources(view, Capability.REFERENCE_MODELS) if self.references else view

    def measured_task(self) -> Task:
        """Return the task for estimates, without importing custom code or computing losses."""
        if self.task.name in TASKS:
            return task_named(self.task.name, self.task.options)
        return task_of_known_losses(self.task.name)


def task_of_known_losses(name: str) -> Task:
    """Return a task whose losses were computed before; computing one raises an error."""
    return of_loss(name, _no_loss)


def _no_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("the losses of a recording were computed before, and no model is stored")


def new_recording(folder: Path, name: str, **settings: object) -> Recording:
    """Return the settings of a new recording, with a random key.

    Args:
        folder: Folder of the recording, whose name is used if ``name`` is empty.
        name: Name of the federation.
        settings: Further fields of :class:`Recording`.

    Raises:
        BadInput: A setting is invalid.
    """
    if not name:
        name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", folder.absolute().name)
        name = name.lstrip("._=,+-")[:_MAX_NAME_LENGTH] or "recording"
    started = datetime.now(UTC).isoformat(timespec="seconds")
    settings = {"name": name, "key": secrets.token_hex(16), "started": started, **settings}
    try:
        return Recording.model_validate(settings)
    except ValidationError as error:
        raise refusal_of(error, Recording, "the recording", settings) from error


def recording_text(recording: Recording, folder: Path) -> str:
    """Return the text of a recording's file; raise if it could not be read back."""
    text = recording.model_dump_json(indent=1) + "\n"
    raise_if_unreadable(folder / RECORDING_FILE, text)
    return text


def write_recording(recording: Recording, folder: Path) -> None:
    """Write a recording's settings; raise if they could not be read back."""
    write_atomically(folder / RECORDING_FILE, recording_text(recording, folder))


def is_recording(folder: Path) -> bool:
    """Return True if a folder holds a live recording."""
    return (folder / RECORDING_FILE).is_file()


def read_recording(folder: Path) -> Recording:
    """Read a recording's settings from an untrusted file.

    Raises:
        BadInput: The folder is not a recording.
        Damaged: The file cannot be read or is invalid.
    """
    raise_if_absent(folder, "the folder of a live recording")
    path = folder / RECORDING_FILE
    if not path.is_file():
        raise BadInput(f"{folder} is not a recording: it has no {RECORDING_FILE}; check the path")
    try:
        return Recording.model_validate(read_object(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise Damaged(f"{path} is not a recording ({reason}); restore it") from error


LOG_FILE = "rounds.jsonl"
_MIN_LINE_BYTES = 50
"""Smallest size of a line of the log, in bytes."""
_MAX_LISTED = 5


GlobalModel = Literal["base", "sent", "after"]
"""Global model at the beginning or at the end of a round, or its frozen parameters."""


class RoundEntry(RecordPart):
    """Log entry of one round, measured or not.

    Attributes:
        round: Number of the round.
        selected: Clients that were sent the model.
        answered: Clients that sent an upload.
        measured: Whether the round was measured.
        unnamed: Number of unidentified clients that were sent the model and did not answer.
        note: Reason why the round could not be measured in full; empty without a fault.
        excluded: Clients whose upload was not measured, with the reason.
        rejected: Clients whose upload the server did not aggregate.
        has_unidentified: True if further clients, which are not identified, may have answered.
        sent: SHA-256 of the models that clients were sent; empty if unknown.
        uploads: SHA-256 of the uploads that can be measured.
        models: SHA-256 of the global model that all clients were sent ("sent"), of the model after
            the round ("after"), and of its frozen parameters ("base"), if these are known; see
            :func:`fedaudit.live.digests.digests_of_globals`.
        weights: Weights of the uploads, stored until the round is measured. Empty if the loop
            passed the model after the round.
        reported: Training metrics that audited clients reported, stored until the round is
            measured.
    """

    round: RoundNumber
    # Earlier recordings have other names for these three fields.
    selected: Clients = Field(validation_alias=AliasChoices("selected", "asked"))
    answered: Clients
    measured: bool
    unnamed: Count = 0
    note: Text = ""
    excluded: dict[Client, Text] = Field(default_factory=dict)
    rejected: Clients = Field(default=(), validation_alias=AliasChoices("rejected", "kept_out"))
    has_unidentified: bool = Field(
        default=False, validation_alias=AliasChoices("has_unidentified", "unknown")
    )
    sent: Digest = ""
    uploads: Digest = ""
    models: dict[GlobalModel, Digest] = Field(default_factory=dict)
    weights: dict[Client, Finite] = Field(default_factory=dict)
    reported: dict[Client, dict[Metric, Finite]] = Field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True if the round could not be measured; False if ``every`` skipped it."""
        return bool(self.note) and not self.measured

    def logged(self, **changes: object) -> "RoundEntry":
        """Return the entry with changes, and without fields that only measuring needs."""
        return self.model_copy(update={"weights": {}, "reported": {}, **changes})

    @property
    def complete(self) -> bool:
        """True if all clients that were sent the model have answered."""
        return set(self.selected) == set(self.answered) and self.unnamed == 0


def round_entry(
    index: int,
    selected: Collection[ClientId],
    answered: Collection[ClientId],
    unnamed: int,
    excluded: Mapping[ClientId, str] | None = None,
    note: str = "",
) -> RoundEntry:
    """Return the log entry of a round that was not measured yet, or will not be measured."""
    try:
        return RoundEntry(
            round=index,
            selected=tuple(sorted({*selected, *answered})),
            answered=tuple(sorted(answered)),
            measured=False,
            unnamed=unnamed,
            excluded={c: clean_text(why)[:2000] for c, why in (excluded or {}).items()},
            note=clean_text(note)[:2000],
        )
    except (TypeError, ValueError) as error:
        clients = ", ".join(repr(client) for client in [*selected, *answered][:_MAX_LISTED])
        raise BadInput(
            f"got round {index!r} and clients {clients}; rounds are whole numbers from 1 to "
            f"{MAX_ROUND}, and clients are whole numbers from 0"
        ) from error


def read_round_log(folder: Path) -> list[RoundEntry]:
    """Read all rounds of a recording in the order in which they were logged.

    An incomplete last line, as after a power failure, is ignored. If a round has two lines, as
    after a killed process, the last line counts.

    Raises:
        BadInput: The log is a link or not a regular file.
        Damaged: A complete line cannot be read.
    """
    text = _read_log(folder)
    if text.count("\n") > MAX_LOG_LINES:
        raise Damaged(
            f"{folder / LOG_FILE} has over {MAX_LOG_LINES:,} rounds; restore it from a copy"
        )
    lines = text.split("\n")[:-1]
    try:
        entries = [RoundEntry.model_validate(parse_json(line)) for line in lines]
        return list({entry.round: entry for entry in entries}.values())
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{folder / LOG_FILE} is not a log of rounds ({error}); restore it from a copy"
        ) from error


def repair_round_log(folder: Path) -> list[RoundEntry]:
    """Read the log, and remove an incomplete last line so that further lines can follow."""
    entries, text = read_round_log(folder), _read_log(folder)
    if text and not text.endswith("\n"):
        write_atomically(folder / LOG_FILE, text[: text.rfind("\n") + 1])
    return entries


def append_round(entry: RoundEntry, folder: Path) -> None:
    """Append a line for one round atomically; raise if the log is full."""
    path, line = folder / LOG_FILE, entry.model_dump_json(exclude_defaults=True)
    size = path.lstat().st_size if path.exists() else 0
    is_full = size + len(line.encode()) + 1 > MAX_LOG_BYTES
    # Count lines only in a log that is large enough to have too many.
    if not is_full and size >= MAX_LOG_LINES * _MIN_LINE_BYTES:
        is_full = _read_log(folder).count("\n") >= MAX_LOG_LINES
    if is_full:
        raise BadInput(
            f"{path} is full: at most {MAX_LOG_BYTES:,} bytes and {MAX_LOG_LINES:,} rounds can be "
            "read; record later rounds in another folder"
        )
    append_line(path, line)


def _read_log(folder: Path) -> str:
    """Return the log's text, empty before the first round."""
    path = folder / LOG_FILE
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise BadInput(
            f"{path} is a link or not a regular file, so rounds could not be stored; remove it, or "
            "choose another folder"
        )
    if not path.exists():
        return ""
    try:
        return read_text(path, max_bytes=MAX_LOG_BYTES)
    except TooLarge as error:
        raise Damaged(f"{error}; restore it from a copy") from error
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
