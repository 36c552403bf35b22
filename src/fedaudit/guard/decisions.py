"""Decisions of a guard, and their log with one JSON line for each checked upload."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import (
    MAX_LOG_BYTES,
    MAX_LOG_LINES,
    append_line,
    parsed_json,
    read_text,
    write_whole,
)
from fedaudit.guard.policy import DecideBy, decisive
from fedaudit.live.recording import Digest
from fedaudit.observe.tensors import MAX_ROUND
from fedaudit.results.fields import Fraction, RecordPart

DECISIONS_FILE = "decisions.jsonl"
"""Log of a guard, in its folder."""

Outcome: TypeAlias = Literal["sent", "filtered", "withheld"]


class Figure(RecordPart):
    """AUC of one attack on the client, with its confidence limits.

    Attributes:
        attack: Name of the attack.
        value: The AUC; 0.5 is guessing.
        low: Lower confidence limit, at the policy's confidence.
        high: Upper confidence limit.
    """

    attack: Annotated[str, Field(max_length=100)]
    value: Fraction
    low: Fraction
    high: Fraction

    def decisive(self, decide_by: DecideBy) -> float:
        """Return the number that is compared with the limit."""
        return decisive(decide_by, self.value, self.low, self.high)


class Decision(RecordPart):
    """Decision on one upload.

    Attributes:
        round: Number of the round; 0 if the loop passed no valid number.
        outcome: "sent" as it was, sent after the site's filter ("filtered"), or "withheld".
        limit: Limit of the policy.
        decide_by: What was compared with it.
        figures: Figures of the upload that is decisive: of the filtered one if there is one.
        unfiltered: Figures before the filter, if the filter was applied.
        reason: Why the upload is withheld; empty if it is not.
        received: SHA-256 of the model that the client was sent.
        upload: SHA-256 of the upload that the loop passed.
        released: SHA-256 of the upload that may leave; empty if it is withheld.
        version: Number of uploads that left in this round before.
    """

    round: Annotated[int, Field(ge=0, le=MAX_ROUND)]
    outcome: Outcome
    limit: Fraction
    decide_by: DecideBy
    figures: Annotated[tuple[Figure, ...], Field(max_length=100)] = ()
    unfiltered: Annotated[tuple[Figure, ...], Field(max_length=100)] = ()
    reason: Annotated[str, Field(max_length=2000)] = ""
    received: Digest = ""
    upload: Digest = ""
    released: Digest = ""
    version: Annotated[int, Field(ge=0, le=10**6)] = 0

    @property
    def key(self) -> tuple[int, int]:
        """Round and version, by which the measurement of an upload that left is stored."""
        return self.round, self.version

    @property
    def left(self) -> bool:
        """True if the upload, or the filtered one, may leave."""
        return self.outcome != "withheld"

    @property
    def is_error(self) -> bool:
        """True if the upload was withheld without figures, because something failed."""
        return not self.left and not self.figures

    @property
    def worst(self) -> Figure | None:
        """The figure that is decisive; None if nothing was measured."""
        return max(self.figures, key=lambda f: f.decisive(self.decide_by), default=None)

    def __str__(self) -> str:
        """Return the decision in one line, without numbers of samples."""
        start = f"round {self.round}: "
        if self.is_error:
            return f"{start}withheld: {self.reason}"
        words = {
            "sent": "sent",
            "filtered": "sent after the filter",
            "withheld": "withheld after the filter" if self.unfiltered else "withheld",
        }[self.outcome]
        return f"{start}{words}: {self._figure}, limit {self.limit:g}"

    @property
    def _figure(self) -> str:
        worst = self.worst
        if worst is None:
            return "nothing was measured"
        limits = [f", at most {worst.high:.3f}", f", at least {worst.low:.3f}"]
        # Below 0.5 the other limit decides.
        shows_low = (self.decide_by == "lower") != (worst.low + worst.high < 1)
        shown = "" if self.decide_by == "estimate" else limits[shows_low]
        return f"AUC {worst.value:.3f}{shown} ({worst.attack})"


def read_decisions(folder: Path) -> list[Decision]:
    """Read the decisions of a guard, oldest first.

    An incomplete last line, as after a power failure, is of a decision that took no effect.

    Raises:
        Damaged: The log cannot be read, or another line is invalid.
    """
    lines = _text(folder).split("\n")[:-1]
    if len(lines) > MAX_LOG_LINES:
        raise Damaged(f"{folder / DECISIONS_FILE} has over {MAX_LOG_LINES:,} lines; restore it")
    try:
        return [Decision.model_validate(parsed_json(line)) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{folder / DECISIONS_FILE} is not a log of decisions; restore it from a copy"
        ) from error


def opened_decisions(folder: Path, *, is_new: bool) -> list[Decision]:
    """Read the decisions, and remove an incomplete last line so that others can follow.

    Args:
        folder: Folder of the guard.
        is_new: Whether the folder has no recording yet. The log is then created first, so that a
            recording without one is known to be of no guard, or to lack its log.

    Raises:
        Damaged: The log is missing or invalid, or the recording is missing.
    """
    path = folder / DECISIONS_FILE
    if not is_new and not path.exists():
        raise Damaged(
            f"{folder} has a recording without {DECISIONS_FILE}, which lists the uploads that "
            "left; restore it from a copy, or give the guard another folder"
        )
    decisions, text = read_decisions(folder), _text(folder)
    if is_new and decisions:
        raise Damaged(f"{folder} has decisions of a guard and no recording; restore it")
    if is_new or not text.endswith("\n"):
        write_whole(path, text[: text.rfind("\n") + 1])
    return decisions


def append_decision(decision: Decision, folder: Path) -> None:
    """Append a decision to the log, and flush it to the disk.

    Raises:
        BadInput: The log is full.
        OSError: The disk is full, or the file cannot be written.
    """
    path, line = folder / DECISIONS_FILE, decision.model_dump_json(exclude_defaults=True)
    size = path.lstat().st_size if path.exists() else 0
    if size + len(line.encode()) + 1 > MAX_LOG_BYTES:
        raise BadInput(f"{path} is full; give the guard of later rounds another folder")
    append_line(path, line, durable=True)


def _text(folder: Path) -> str:
    path = folder / DECISIONS_FILE
    if not path.is_symlink() and not path.exists():
        return ""
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        return read_text(path, max_bytes=MAX_LOG_BYTES)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
