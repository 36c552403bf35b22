"""Coverage of a recording: which rounds and uploads were measured, and what is missing."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fedaudit.core.values import ClientId
from fedaudit.live.recording import UPLOAD_VIEWS, Recording, RoundEntry
from fedaudit.live.sound import SENT
from fedaudit.observe.measurements import MeasuredRound, Stored, rounds_with
from fedaudit.observe.round import EVERYBODY
from fedaudit.results.coverage import (
    MOST_LISTED,
    ClientCoverage,
    Coverage,
    MissingRounds,
    MissingUpload,
)
from fedaudit.results.text import plain

_WAITING = "still to be measured"
_NOT_TOLD = "the recorder was not told of it"
_NOT_LOGGED = "its entry in the log is missing, so that it is not known who answered"
_LOST = "its measurements are missing"


@dataclass
class _Found:
    """Rounds and uploads that are missing, as they are found."""

    rounds: dict[int, str] = field(default_factory=dict)
    uploads: list[MissingUpload] = field(default_factory=list)
    n_uploads: int = 0


def coverage_of(
    recording: Recording,
    targets: Collection[ClientId],
    stored: Sequence[Stored],
    log: Sequence[RoundEntry],
    waiting: Collection[int],
) -> Coverage:
    """Return which rounds and uploads of the audited clients were measured.

    Args:
        recording: Its settings.
        targets: Clients under audit.
        stored: The measured rounds, ascending.
        log: What the recorder was told of each round.
        waiting: Rounds that are still to be measured.
    """
    measured = {one.measured.index: one.measured for one in stored}
    entries = {one.round: one for one in log}
    last = max([*measured, *entries, *waiting], default=0)
    found = _Found()
    # Whoever sees the final model alone misses no earlier round.
    for index in range(last if recording.view == "final" else 1, last + 1):
        reason = _fault_of(index, recording, targets, measured, entries, waiting)
        if reason:
            found.rounds[index] = reason
        elif index in measured:
            _add_uploads(found, entries[index], measured[index], targets)
    # Measured as it came first; what came later is of the same number, and is not measured.
    for index, reason in recording.conflicts.items():
        found.rounds.setdefault(index, plain(reason))
    by_choice = [one for one in log if one.round % recording.every and not one.failed]
    return Coverage(
        rounds=last,
        measured=len(measured),
        last_measured=max(measured, default=0),
        every=recording.every,
        clients=[_of_client(client, measured, entries) for client in sorted(targets)],
        is_open=recording.is_closed is False,
        unattacked=sorted({*recording.targets} - {*targets}),
        missing_uploads=found.uploads[:MOST_LISTED],
        missing_rounds=[*_spans(found.rounds)][:MOST_LISTED],
        n_missing_uploads=found.n_uploads,
        n_missing_rounds=len(found.rounds),
        identity=_identity(stored),
        sampled_rounds=any({*targets} & {*one.answered} or one.unknown for one in by_choice)
        or (recording.every > 1 and any(EVERYBODY in one.clients for one in measured.values())),
    )


def _fault_of(
    index: int,
    recording: Recording,
    targets: Collection[ClientId],
    measured: Mapping[int, MeasuredRound],
    entries: Mapping[int, RoundEntry],
    waiting: Collection[int],
) -> str:
    """Return why a round is missing; empty if it is not."""
    entry = entries.get(index)
    if index in measured:
        return "" if entry else _NOT_LOGGED
    if index in waiting:
        return _WAITING
    if index % recording.every and not (entry and entry.failed):
        return ""
    if entry is None:
        return _NOT_TOLD
    if not entry.failed:
        return _LOST
    # A round in which no audited client answered has nothing to be measured.
    sees_uploads = recording.view in UPLOAD_VIEWS
    if sees_uploads and not entry.unknown and not {*targets} & {*entry.answered}:
        return ""
    start = f"round {index} is not recorded: "
    return plain(entry.note).removeprefix(start)


def _add_uploads(
    found: _Found, entry: RoundEntry, measured: MeasuredRound, targets: Collection[ClientId]
) -> None:
    seen = {*measured.clients, *measured.stands_for}
    if EVERYBODY in seen:
        return
    for client in sorted({*targets} & {*entry.answered} - seen):
        aggregated = client not in entry.kept_out
        found.n_uploads += aggregated
        reason = plain(entry.excluded.get(client) or "it was not measured")
        found.uploads.append(
            MissingUpload(
                client=client, round=entry.round, reason=reason[:2000], aggregated=aggregated
            )
        )
    # An upload of nobody knows whom may be that of any audited client which has not answered.
    if entry.unknown and {*targets} - {*entry.answered}:
        found.n_uploads += 1


def _of_client(
    client: ClientId, measured: Mapping[int, MeasuredRound], entries: Mapping[int, RoundEntry]
) -> ClientCoverage:
    rounds = rounds_with(client, measured.values())
    answered = {index for index, one in entries.items() if client in one.answered}
    return ClientCoverage.of(client, len(answered | {*rounds}), rounds)


def _spans(rounds: Mapping[int, str]) -> Iterator[MissingRounds]:
    """Consecutive rounds that are missing for one reason."""
    span: MissingRounds | None = None
    for index, reason in sorted(rounds.items()):
        if span is not None and span.last == index - 1 and span.reason == reason[:2000]:
            span = span.model_copy(update={"last": index})
            continue
        if span is not None:
            yield span
        span = MissingRounds(first=index, last=index, reason=reason[:2000])
    if span is not None:
        yield span


def _identity(stored: Sequence[Stored]) -> str:
    """SHA-256 over the models that were sent; empty if not known of every measured round."""
    digests = [(one.measured.index, one.notes.get(SENT, "")) for one in stored]
    if not all(digest for _, digest in digests):
        return ""
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()
