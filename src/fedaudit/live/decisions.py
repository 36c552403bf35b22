"""Decisions of a guard, and their log with one JSON line for each checked upload."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field

from fedaudit.core.display import repr_html
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import (
    MAX_LOG_BYTES,
    MAX_LOG_LINES,
    append_line,
    parse_json,
    read_text,
    write_atomically,
)
from fedaudit.live.recording import Digest
from fedaudit.observe.tensors import MAX_ROUND, round_paths
from fedaudit.results.fields import Fraction, RecordPart
from fedaudit.results.runs import (
    MAX_LISTED,
    CheckedUploads,
    DecideBy,
    GuardCoverage,
    GuardOutcome,
    RoundSeries,
)

DECISIONS_FILE = "decisions.jsonl"
"""Log of a guard, in its folder."""

_MAX_NAMED = 10


def value_to_compare(decide_by: DecideBy, value: float, low: float, high: float) -> float:
    """Return the value that a guard compares with its limit.

    An AUC below 0.5 counts as 1 minus the AUC, because an adversary can reverse the scores.

    Args:
        decide_by: Value to compare; see :class:`fedaudit.guard.policy.GuardPolicy`.
        value: AUC.
        low: Lower confidence limit of the AUC.
        high: Upper confidence limit of the AUC.
    """
    by_direction = {
        "upper": (high, 1 - low),
        "estimate": (value, 1 - value),
        "lower": (low, 1 - high),
    }
    return max(by_direction[decide_by])


class AttackAuc(RecordPart):
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

    def value_to_compare(self, decide_by: DecideBy) -> float:
        """Return the value that is compared with the limit."""
        return value_to_compare(decide_by, self.value, self.low, self.high)


class Decision(RecordPart):
    """Decision on one upload.

    Attributes:
        round: Number of the round; 0 if the loop passed no valid number.
        outcome: "sent" unchanged, sent after the site's filter ("filtered"), or "withheld".
        limit: Limit of the policy.
        decide_by: Value that was compared with the limit.
        figures: Figures that decided: of the filtered upload if the filter was applied.
        unfiltered: Figures before the filter, if the filter was applied.
        reason: Error because of which the upload was withheld; empty without an error.
        received: SHA-256 of the model that the client was sent.
        upload: SHA-256 of the upload that the training loop passed to the guard.
        released: SHA-256 of the upload that the guard returned; empty if it was withheld.
        version: Number of uploads that were sent in this round before.
    """

    round: Annotated[int, Field(ge=0, le=MAX_ROUND)]
    outcome: GuardOutcome
    limit: Fraction
    decide_by: DecideBy
    figures: Annotated[tuple[AttackAuc, ...], Field(max_length=100)] = ()
    unfiltered: Annotated[tuple[AttackAuc, ...], Field(max_length=100)] = ()
    reason: Annotated[str, Field(max_length=2000)] = ""
    received: Digest = ""
    upload: Digest = ""
    released: Digest = ""
    version: Annotated[int, Field(ge=0, le=10**6)] = 0

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return f"<Decision on {self}>"

    @property
    def key(self) -> tuple[int, int]:
        """Round and version, by which the measurement of a sent upload is stored."""
        return self.round, self.version

    @property
    def was_sent(self) -> bool:
        """True if the upload was sent, unchanged or filtered."""
        return self.outcome != "withheld"

    @property
    def is_error(self) -> bool:
        """True if the upload was withheld without figures, because the check failed."""
        return not self.was_sent and not self.figures

    @property
    def worst(self) -> AttackAuc | None:
        """The figure nearest to the limit or farthest above it; None if nothing was measured."""
        return max(
            self.figures,
            key=lambda figure: figure.value_to_compare(self.decide_by),
            default=None,
        )

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
        shown_limit = "" if self.decide_by == "estimate" else limits[shows_low]
        return f"AUC {worst.value:.3f}{shown_limit} ({worst.attack})"


def guard_coverage(decisions: Sequence[Decision]) -> GuardCoverage | None:
    """Return the numbers and rounds of sent, filtered and withheld uploads; None without any."""
    if not decisions:
        return None
    uploads = []
    for outcome in get_args(GuardOutcome):
        rounds = [decision.round for decision in decisions if decision.outcome == outcome]
        if rounds:
            # Round 0 stands for an invalid number.
            series = _consecutive({*rounds} - {0})
            uploads.append(
                CheckedUploads(outcome=outcome, count=len(rounds), rounds=series[:MAX_LISTED])
            )
    return GuardCoverage(
        limit=decisions[-1].limit,
        decide_by=decisions[-1].decide_by,
        uploads=uploads,
        n_unmeasured=sum(decision.is_error for decision in decisions),
    )


def reason_nothing_was_sent(folder: Path) -> str:
    """Return a sentence if a guard sent no upload, so that there is nothing to attack; else "".

    Args:
        folder: Folder that may be of a guard.

    Raises:
        Damaged: The log of decisions cannot be read.
    """
    if not (folder / DECISIONS_FILE).is_file() or round_paths(folder / "measured", ".safetensors"):
        return ""
    coverage = guard_coverage(read_decisions(folder))
    if coverage is None:
        return (
            "nothing left the site, so there is nothing to attack: the guard has checked no "
            "upload; run a job first"
        )
    by_outcome = {uploads.outcome: uploads for uploads in coverage.uploads}
    withheld = by_outcome.pop("withheld", None)
    if by_outcome or withheld is None:
        return ""
    are_several = withheld.count > 1
    rounds = ", ".join(map(str, withheld.rounds[:_MAX_NAMED]))
    details = [
        f"round{'s' * are_several} {rounds}" * bool(rounds),
        f"{coverage.n_unmeasured} could not be measured" * bool(coverage.n_unmeasured),
    ]
    uploads = f"all {withheld.count} uploads" if are_several else "its only upload"
    return (
        f"nothing left the site, so there is nothing to attack: the guard withheld {uploads} "
        f"({'; '.join(filter(None, details))}); {DECISIONS_FILE} has the reasons"
    )


def undecided_round(
    folder: Path, measured: Collection[int], decisions: Sequence[Decision]
) -> int | None:
    """Return the measured round whose upload is not listed as sent, as after a killed process.

    Args:
        folder: Folder of the recording; without a log of decisions, the result is None.
        measured: Numbers of the measured rounds.
        decisions: Decisions in the log.

    Raises:
        Damaged: There are several such rounds, which no killed process leaves, or a sent upload has
            no measurement.
    """
    if not (folder / DECISIONS_FILE).is_file():
        return None
    sent = {decision.round for decision in decisions if decision.was_sent}
    if unmeasured := sent - {*measured}:
        raise missing_measurements(folder, min(unmeasured))
    undecided = {*measured} - sent
    if not undecided:
        return None
    if len(undecided) > 1:
        raise outdated_log(folder)
    return min(undecided)


def missing_measurements(folder: Path, round: int) -> Damaged:
    """Return the error about a sent upload without a measurement."""
    return Damaged(
        f"{folder} lacks the measurements of round {round}, whose upload was sent; restore them "
        "from a copy"
    )


def outdated_log(folder: Path) -> Damaged:
    """Return the error about a log that lacks decisions on measured uploads."""
    return Damaged(
        f"{folder / DECISIONS_FILE} lacks decisions on measured uploads, so it may be an older "
        "copy; restore the whole folder from one copy"
    )


def _consecutive(rounds: Collection[int]) -> list[RoundSeries]:
    series = list[RoundSeries]()
    for index in sorted(rounds):
        if series and series[-1].last == index - 1:
            series[-1] = RoundSeries(first=series[-1].first, last=index)
        else:
            series.append(RoundSeries(first=index, last=index))
    return series


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
        return [Decision.model_validate(parse_json(line)) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{folder / DECISIONS_FILE} is not a log of decisions; restore it from a copy"
        ) from error


def opened_decisions(folder: Path, *, is_new: bool) -> list[Decision]:
    """Read the decisions, and remove an incomplete last line so that others can follow.

    Args:
        folder: Folder of the guard.
        is_new: Whether the folder has no recording yet. The log is then created first, so that a
            recording without this file is known to be of no guard, or to lack its log.

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
        write_atomically(path, text[: text.rfind("\n") + 1])
    return decisions


def append_decision(decision: Decision, folder: Path) -> None:
    """Append a decision to the log, and flush it to the disk.

    Raises:
        BadInput: The log is full.
        OSError: The disk is full, or the file cannot be written.
    """
    path, line = folder / DECISIONS_FILE, decision.model_dump_json(exclude_defaults=True)
    if log_size(folder) + len(line.encode()) + 1 > MAX_LOG_BYTES:
        raise BadInput(f"{path} is full; give the guard of later rounds another folder")
    append_line(path, line, durable=True)


def log_size(folder: Path) -> int:
    """Return the size of the log in bytes; 0 without a log."""
    path = folder / DECISIONS_FILE
    return path.lstat().st_size if path.exists() else 0


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
