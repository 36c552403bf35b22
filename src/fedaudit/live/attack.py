"""Attacks on a live recording, and its coverage: what was measured, and what is missing."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from fedaudit.attacks import catalogued
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.importing import code_named_in, is_own, refusing_exits, sources_of
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.values import Architecture, ClientId
from fedaudit.live.clients import Called, number_of
from fedaudit.live.files import read_audit, read_untrained, waiting
from fedaudit.live.recording import (
    UPLOAD_VIEWS,
    Recording,
    RoundEntry,
    read_recording,
    read_round_log,
)
from fedaudit.live.rounds import SENT
from fedaudit.live.setup import RECORDED, SEED, live_setup
from fedaudit.live.weights import ESTIMATED
from fedaudit.observe.measurements import (
    MeasuredRound,
    Stored,
    fault_in,
    stored_in,
    tell_of_unhashed,
)
from fedaudit.observe.round import EVERYBODY
from fedaudit.results.coverage import (
    MOST_LISTED,
    ClientCoverage,
    Coverage,
    MissingRounds,
    MissingUpload,
)
from fedaudit.results.record import Record
from fedaudit.results.text import made_plain, plain
from fedaudit.study.figures.accuracy import counts_fit
from fedaudit.study.figures.coverage import client_coverage, rounds_with
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import ATTACKS, refuse_other_record, replaced_attacks
from fedaudit.study.running.record import conclude
from fedaudit.study.settings.values import study_from
from fedaudit.study.setup.parts import Setup, Watched, Work

_MOST_NAMED = 10
_NO_MODEL = "the model of a recording is not there to be run; its signals were measured before"


@refusing_exits()
def attack_recording(
    folder: Path | str,
    names: Sequence[str],
    out: Path | str,
    *,
    targets: Collection[Called] = (),
    figures: Mapping[str, object] | None = None,
    trust: bool = False,
    progress: Progress = quiet,
    log: Callable[[str], None] = lambda text: None,
) -> Record:
    """Runs attacks on what a recorder measured of somebody's federation.

    Clients are attacked that were measured in at least one round; the record names the others.

    Args:
        folder: The recording.
        names: Attacks to run; those that it was made for if empty.
        out: Folder for the record.
        targets: Clients to be attacked, by number or name; all that are audited if empty.
        figures: Settings of figures to change, by name.
        trust: Import code that the recording names. Else it is refused, since the folder may be
            somebody else's.
        progress: Called with (phase, done, total) as the work goes on.
        log: Takes lines of text for the user.

    Raises:
        BadInput: No recording, or one without a measured round, an attack that it was not made
            for, a folder for the record that holds one of other settings, or code that is not
            trusted.
        Damaged: The recording is incomplete or altered.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> net = torch.nn.Linear(2, 2)
        >>> data = {c: (torch.randn(60, 2), torch.arange(60) % 2) for c in (0, 1)}
        >>> audited = fa.fair_split(data, audited=40).audit
        >>> with fa.record("runs/loop", net, audited, log=lambda line: None) as recorder:
        ...     for number in (1, 2, 3):
        ...         recorder.round(number, sent=net, uploads={0: net, 1: net})
        >>> attack_recording("runs/loop", ["loss-series"], "runs/loop-record").name
        'loop'
    """
    folder = Path(folder)
    with code_named_in(folder, trusted=trust, folder=Path.cwd()):
        _refuse_wrong(figures or {})
        return _attacked(folder, names, Path(out), targets, figures or {}, progress, log)


def _refuse_wrong(figures: Mapping[str, object]) -> None:
    """Refuses settings of figures that no study has, in the words of who gave them."""
    given = {f"figures.{name}" for name in figures}
    study_from({"name": RECORDED, "figures": {**figures}}, source="the attack", overrides=given)


def _attacked(
    folder: Path,
    names: Sequence[str],
    out: Path,
    targets: Collection[Called],
    figures: Mapping[str, object],
    progress: Progress,
    log: Callable[[str], None],
) -> Record:
    clock = Clock()
    # First: what is measured in the meantime is then in the log.
    left = {index for index, _ in waiting(folder)}
    recording, audit, told = read_recording(folder), read_audit(folder), read_round_log(folder)
    stored = _stored(folder, recording, told)
    tell_of_unhashed(folder, log)
    wanted_targets = _targets(recording, targets)
    present = _taking_part(recording, wanted_targets, stored, told)
    names = catalogued(names)
    if unasked := sorted(set(names) - set(recording.attacks)):
        known = recording.refused.get(unasked[0])
        raise BadInput(
            f"{unasked[0]!r} was not recorded for"
            + (f": {plain(known)}" if known else "")
            + f"; this recording has what {', '.join(recording.attacks)} need"
        )
    wanted = dict(figures)
    blind = audit.samples.features.flatten(1).shape[1] > 0
    if not blind:
        wanted["blind_classifier"] = False
    config = _config(recording.model_copy(update={"targets": wanted_targets}), names, wanted)
    refuse_other_record(out, config, besides=ATTACKS)
    run = live_setup(
        recording.model_copy(update={"targets": present}),
        audit,
        Architecture(recording.model, _no_model, task=recording.measured_task()),
        clients=_clients(stored, told),
        rounds=tuple(one.measured.index for one in stored),
        figures=wanted,
        attacks=names,
        watched=Watched(
            untrained=read_untrained(folder, recording.key, len(audit)),
            config=config,
            missing=(
                *(
                    f"What training reveals about {plain(name)}: {plain(why)}"
                    for name, why in recording.unaudited.items()
                ),
                *_not_uploaded(recording, stored),
                *_never_took_part(recording, wanted_targets, present),
                *_missing(told, left, blind=blind),
            ),
            names=recording.names,
            coverage=coverage_of(recording, wanted_targets, stored, told, left),
        ),
    )
    run = _without_source(run, recording, stored, names)
    for one in stored:
        fault = fault_in(one.measured, run.deal.clients, len(audit))
        if fault or not counts_fit(run, one.notes):
            raise Damaged(
                f"the measured round {one.measured.index} in {folder} is damaged: "
                f"{fault or 'its counts of correct predictions cannot be'}; restore it"
            )
    replaced = list[str]()

    def check() -> None:
        before = refuse_other_record(out, config, besides=ATTACKS)
        replaced.append(replaced_attacks(before, names))

    record = conclude(
        [run],
        [stored],
        out,
        Work(progress=progress),
        clock,
        log,
        places={SEED: folder},
        check=check,
    )
    if replaced[0]:
        log(f"replaced in {out}: {replaced[0]}")
    return record


def _without_source(
    run: Setup, recording: Recording, stored: Sequence[Stored], names: Sequence[str]
) -> Setup:
    """The run without source inference where it cannot be made, which is no fault of the others.

    Raises:
        BadInput: It cannot be made, and is asked for by name.
    """
    met = {c for one in stored for c in one.measured.clients} - {EVERYBODY}
    reason = ""
    if len(met) < 2:
        reason = "source inference needs uploads of at least two clients"
    elif absent := [c for c in sorted(run.deal.clients) if not (run.deal.audit.owner == c).any()]:
        reason = (
            f"client {_called(recording, absent[0])} has no audited sample, so that no sample can "
            "be found to be its own"
        )
    refused = dict.fromkeys(run.on_source, reason) if reason else {}
    if asked := [name for name in refused if name in names]:
        raise BadInput(f"{asked[0]!r} cannot be run on this recording: {reason}; leave it out")
    return run.without_attacks(refused)


def _targets(recording: Recording, asked: Collection[Called]) -> tuple[ClientId, ...]:
    """Return the clients that are to be attacked.

    Raises:
        BadInput: One of them is not audited.
    """
    numbers = {number_of(client): client for client in asked}
    for number, client in numbers.items():
        if number not in recording.targets:
            audited = ", ".join(_called(recording, one) for one in recording.targets[:_MOST_NAMED])
            raise BadInput(f"client {str(client)[:80]!r} is not audited; audited are {audited}")
    return tuple(client for client in recording.targets if not asked or client in numbers)


def _taking_part(
    recording: Recording,
    targets: Sequence[ClientId],
    stored: Sequence[Stored],
    log: Sequence[RoundEntry],
) -> tuple[ClientId, ...]:
    """Return the targets of whom at least one upload was measured.

    Raises:
        BadInput: There are none.
    """
    present = tuple(c for c in targets if rounds_with(c, [one.measured for one in stored]))
    if not present:
        named = ", ".join(_called(recording, client) for client in targets[:_MOST_NAMED])
        others = sorted({c for one in stored for c in one.measured.clients})
        met = ", ".join(_called(recording, client) for client in others[:_MOST_NAMED])
        left_out = [(one, client) for one in log for client in targets if client in one.excluded]
        for entry, client in left_out[:1]:
            raise BadInput(
                f"no upload of an audited client ({named}) was measured: {len(left_out)} were left "
                f"out, the first of client {_called(recording, client)} in round {entry.round} for "
                f"this reason: {plain(entry.excluded[client])}"
            )
        raise BadInput(
            f"no upload of an audited client ({named}) was measured, only of {met}; record more "
            "rounds, or call clients as in the audited samples"
        )
    return present


def _never_took_part(
    recording: Recording, targets: Sequence[ClientId], present: Collection[ClientId]
) -> list[str]:
    """A note for readers on audited clients of whom nothing was measured."""
    absent = [_called(recording, client) for client in targets if client not in present]
    if not absent:
        return []
    more = len(absent) - _MOST_NAMED
    named = ", ".join(absent[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    which = "Client" if len(absent) == 1 else "Clients"
    return [f"{which} {named}: never took part in a measured round."]


def _called(recording: Recording, client: ClientId) -> str:
    return plain(recording.names.get(client, str(client)))


def _stored(folder: Path, recording: Recording, log: Sequence[RoundEntry]) -> list[Stored]:
    stored = stored_in(folder)
    left = len(waiting(folder))
    if not stored and left:
        raise BadInput(
            f"{folder} has no measured round yet, and {left} to be measured; wait for its recorder "
            "to do so, or open the recording again with fedaudit.record, and close it"
        )
    failed = [one for one in log if one.failed]
    if not stored and failed:
        raise BadInput(
            f"{folder} has no measured round: {len(failed)} failed, the first for this reason: "
            f"{plain(failed[0].note)}; record rounds again once this is mended"
        )
    if not stored:
        raise BadInput(
            f"{folder} has no measured round yet; record {recording.every} rounds or more, of "
            f"which {len(log)} are known"
        )
    strangers = [one.measured.index for one in stored if one.notes.get("run") != recording.key]
    if strangers:
        raise Damaged(
            f"the measured round {strangers[0]} in {folder} is of another recording; restore it"
        )
    return stored


def _clients(stored: Sequence[Stored], told: Sequence[RoundEntry]) -> list[int]:
    measured = {c for one in stored for c in (*one.measured.clients, *one.measured.stands_for)}
    return sorted((measured | {c for one in told for c in one.asked}) - {EVERYBODY})


_NOT_SETTINGS = {"format", "version", "refused", "conflicts", "is_closed"}


def _config(
    recording: Recording, names: Sequence[str], figures: Mapping[str, object]
) -> dict[str, object]:
    """Known settings of the federation; none of a study, since there was none.

    Its keys are among ``OF_A_RECORDER`` of :mod:`fedaudit.results.record`.
    """
    said = recording.model_dump(mode="json", exclude=_NOT_SETTINGS)
    known = {"name": recording.name, "recording": said, "figures": dict(figures)}
    if names:
        known["attacks"] = {name: {} for name in names}
    own = [("attack", name) for name in (names or recording.attacks) if is_own(name)]
    if own:
        known["code"] = sources_of(own)
    # A recording may be anybody's, and hold any character.
    return {name: made_plain(value) for name, value in known.items()}


def _missing(told: Sequence[RoundEntry], left: Collection[int], *, blind: bool) -> list[str]:
    """Notes for readers on parts that were not heard or not recorded."""
    found = []
    partial = [one.round for one in told if not one.complete]
    if partial:
        found.append(f"What clients did that were asked and did not answer, in {_rounds(partial)}.")
    lost = [one.round for one in told if one.note]
    if lost:
        reason = next(plain(one.note) for one in told if one.note)
        found.append(f"What was not recorded of {_rounds(lost)}: {reason}")
    reasons: dict[int, list[tuple[int, str]]] = {}
    for one in told:
        for client, why in one.excluded.items():
            reasons.setdefault(client, []).append((one.round, why))
    found += [
        f"What client {client} sent in {_rounds([r for r, _ in whys])}: {plain(whys[0][1])}"
        for client, whys in sorted(reasons.items())
    ]
    known = {one.round for one in told}
    waits = sorted({*left} - known)
    if waits:
        found.append(f"What happened in {_rounds(waits)}, still to be measured.")
    between = sorted({*range(1, max(known, default=0) + 1)} - known - {*left})
    if between:
        found.append(f"What happened in {_rounds(between)}, which the recorder did not hear of.")
    if not blind:
        found.append(
            "Whether inputs alone tell members from others: the recording keeps no samples."
        )
    return found


def _not_uploaded(recording: Recording, stored: Sequence[Stored]) -> list[str]:
    """Notes for readers on values of the clients' models that nobody sent."""
    notes = []
    if recording.not_uploaded:
        listed = plain(", ".join(recording.not_uploaded[:_MOST_NAMED]))
        notes.append(
            f"What stays at the clients ({listed}): where uploads lack it, it was measured as it "
            "was sent, and not as the clients have it."
        )
    estimated = [one for one in stored if ESTIMATED in one.notes]
    if estimated:
        notes.append(
            f"The clients' own running statistics of {plain(estimated[0].notes[ESTIMATED])}, which "
            f"they do not send: in {_rounds([one.measured.index for one in estimated])} they were "
            "estimated on audited samples."
        )
    return notes


def _rounds(numbers: Sequence[int]) -> str:
    named = ", ".join(str(number) for number in numbers[:_MOST_NAMED])
    more = len(numbers) - _MOST_NAMED
    return f"round{'s' * (len(numbers) > 1)} {named}" + (f" and {more} more" if more > 0 else "")


def _no_model() -> nn.Module:
    raise BadInput(_NO_MODEL)


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
    return client_coverage(client, len(answered | {*rounds}), rounds)


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
