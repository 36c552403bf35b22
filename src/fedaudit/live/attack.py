"""Attacks on a live recording, and its coverage: what was measured, and what is missing."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from fedaudit.attacks import catalogued
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.importing import code_named_in, is_own, refusing_exits, sources_of
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.values import Architecture, ClientId
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.evaluation.accuracy import counts_fit
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
from fedaudit.live.setup import RECORDED, SEED, recorded_run
from fedaudit.live.weights import ESTIMATED
from fedaudit.observe.measurements import (
    MeasuredRound,
    Stored,
    fault_in,
    rounds_with,
    stored_in,
    tell_of_unhashed,
)
from fedaudit.observe.round import EVERYBODY
from fedaudit.plan.parts import Recorded, Setup, Work
from fedaudit.plan.values import study_from
from fedaudit.results.coverage import (
    MOST_LISTED,
    ClientCoverage,
    Coverage,
    MissingRounds,
    MissingUpload,
)
from fedaudit.results.record import Record
from fedaudit.results.text import made_plain, plain
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import ATTACKS, refuse_other_record, replaced_attacks
from fedaudit.study.running.record import conclude

_MOST_NAMED = 10


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
    folder, out, changed = Path(folder), Path(out), dict(figures or {})
    with code_named_in(folder, trusted=trust, folder=Path.cwd()):
        # Wrong settings of figures are refused in the words of whoever gave them.
        given = {f"figures.{name}" for name in changed}
        study_from({"name": RECORDED, "figures": changed}, source="the attack", overrides=given)
        clock = Clock()
        found = _contents(folder)
        tell_of_unhashed(folder, log)
        wanted = _targets(found, targets)
        names = catalogued(names)
        run = _run(found, folder, wanted, names, changed, out)
        replaced = list[str]()

        def check() -> None:
            assert run.recorded is not None
            before = refuse_other_record(out, run.recorded.config, besides=ATTACKS)
            replaced.append(replaced_attacks(before, names))

        work, places = Work(progress=progress), {SEED: folder}
        record = conclude([run], [found.stored], out, work, clock, log, places=places, check=check)
        if replaced[0]:
            log(f"replaced in {out}: {replaced[0]}")
        return record


class _Contents(NamedTuple):
    recording: Recording
    audit: AuditSet
    log: Sequence[RoundEntry]
    stored: Sequence[Stored]
    waiting: Collection[int]

    @property
    def measured(self) -> list[MeasuredRound]:
        """The measured rounds, ascending."""
        return [one.measured for one in self.stored]

    def called(self, client: ClientId) -> str:
        """The name of a client, or its number."""
        return plain(self.recording.names.get(client, str(client)))

    def first_few(self, clients: Iterable[ClientId]) -> str:
        """The first clients by name."""
        return ", ".join(self.called(client) for client in [*clients][:_MOST_NAMED])


def _contents(folder: Path) -> _Contents:
    """Read a recording's folder, with at least one measured round."""
    # First: what is measured in the meantime is then in the log.
    left = {index for index, _ in waiting(folder)}
    recording, audit, log = read_recording(folder), read_audit(folder), read_round_log(folder)
    stored = stored_in(folder)
    if not stored and (still := len(waiting(folder))):
        raise BadInput(
            f"{folder} has no measured round yet, and {still} to be measured; wait for its "
            "recorder to do so, or open the recording again with fedaudit.record, and close it"
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
    return _Contents(recording, audit, log, stored, left)


def _run(
    found: _Contents,
    folder: Path,
    wanted: tuple[ClientId, ...],
    names: Sequence[str],
    figures: dict[str, object],
    out: Path,
) -> Setup:
    """Return the run of a recording, with facts for its record."""
    recording, audit, stored = found.recording, found.audit, found.stored
    present = _taking_part(found, wanted)
    if unasked := sorted(set(names) - set(recording.attacks)):
        known = recording.refused.get(unasked[0])
        raise BadInput(
            f"{unasked[0]!r} was not recorded for"
            + (f": {plain(known)}" if known else "")
            + f"; this recording has what {', '.join(recording.attacks)} need"
        )
    blind = audit.samples.features.flatten(1).shape[1] > 0
    if not blind:
        figures = {**figures, "blind_classifier": False}
    config = _config(recording.model_copy(update={"targets": wanted}), names, figures)
    refuse_other_record(out, config, besides=ATTACKS)
    took_part = {c for one in found.measured for c in (*one.clients, *one.stands_for)}
    took_part |= {c for one in found.log for c in one.asked}
    run = recorded_run(
        recording.model_copy(update={"targets": present}),
        audit,
        Architecture(recording.model, _no_model, task=recording.measured_task()),
        clients=sorted(took_part - {EVERYBODY}),
        rounds=tuple(one.index for one in found.measured),
        figures=figures,
        attacks=names,
        recorded=Recorded(
            untrained=read_untrained(folder, recording.key, len(audit)),
            config=config,
            missing=tuple(_missing(found, [c for c in wanted if c not in present], blind=blind)),
            names=recording.names,
            coverage=_coverage(found, wanted),
        ),
    )
    run = _without_source(run, found, names)
    for one in stored:
        fault = fault_in(one.measured, run.deal.clients, len(audit))
        if fault or not counts_fit(run, one.notes):
            raise Damaged(
                f"the measured round {one.measured.index} in {folder} is damaged: "
                f"{fault or 'its counts of correct predictions cannot be'}; restore it"
            )
    return run


def _no_model() -> nn.Module:
    raise BadInput(
        "the model of a recording is not there to be run; its signals were measured before"
    )


def _without_source(run: Setup, found: _Contents, names: Sequence[str]) -> Setup:
    """Return the run without source inference if that cannot be made; raise if it is asked for."""
    met = {c for one in found.measured for c in one.clients} - {EVERYBODY}
    reason = ""
    if len(met) < 2:
        reason = "source inference needs uploads of at least two clients"
    elif absent := [c for c in sorted(run.deal.clients) if not (run.deal.audit.owner == c).any()]:
        reason = (
            f"client {found.called(absent[0])} has no audited sample, so that no sample can "
            "be found to be its own"
        )
    refused = dict.fromkeys(run.on_source, reason) if reason else {}
    if asked := [name for name in refused if name in names]:
        raise BadInput(f"{asked[0]!r} cannot be run on this recording: {reason}; leave it out")
    return run.without_attacks(refused)


def _targets(found: _Contents, asked: Collection[Called]) -> tuple[ClientId, ...]:
    """Return the clients to attack; raise if one is not audited."""
    audited = found.recording.targets
    numbers = {number_of(client): client for client in asked}
    for number, client in numbers.items():
        if number not in audited:
            raise BadInput(
                f"client {str(client)[:80]!r} is not audited; audited are "
                f"{found.first_few(audited)}"
            )
    return tuple(client for client in audited if not asked or client in numbers)


def _taking_part(found: _Contents, targets: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Return the targets of whom at least one upload was measured; raise if there are none."""
    present = tuple(c for c in targets if rounds_with(c, found.measured))
    if present:
        return present
    start = f"no upload of an audited client ({found.first_few(targets)}) was measured"
    left_out = [(one, client) for one in found.log for client in targets if client in one.excluded]
    for entry, client in left_out[:1]:
        raise BadInput(
            f"{start}: {len(left_out)} were left out, the first of client {found.called(client)} "
            f"in round {entry.round} for this reason: {plain(entry.excluded[client])}"
        )
    others = sorted({c for one in found.measured for c in one.clients})
    raise BadInput(
        f"{start}, only of {found.first_few(others)}; record more rounds, or call clients as in "
        "the audited samples"
    )


_NOT_SETTINGS = {"format", "version", "refused", "conflicts", "is_closed"}


def _config(
    recording: Recording, names: Sequence[str], figures: Mapping[str, object]
) -> dict[str, object]:
    """Return the known settings of the federation.

    Their keys are among ``OF_A_RECORDER`` of :mod:`fedaudit.results.record`.
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


def _missing(found: _Contents, absent: Sequence[ClientId], *, blind: bool) -> Iterator[str]:
    """Yield notes for readers on what is not known of the federation, or was not recorded."""
    recording = found.recording
    yield "How the federation trained: it was watched, and its settings are not known."
    for name, why in recording.unaudited.items():
        yield f"What training reveals about {plain(name)}: {plain(why)}"
    if recording.not_uploaded:
        listed = plain(", ".join(recording.not_uploaded[:_MOST_NAMED]))
        yield (
            f"What stays at the clients ({listed}): where uploads lack it, it was measured as it "
            "was sent, and not as the clients have it."
        )
    estimated = [one for one in found.stored if ESTIMATED in one.notes]
    if estimated:
        yield (
            f"The clients' own running statistics of {plain(estimated[0].notes[ESTIMATED])}, which "
            f"they do not send: in {_rounds([one.measured.index for one in estimated])} they were "
            "estimated on audited samples."
        )
    if absent:
        which = "Client" if len(absent) == 1 else "Clients"
        named = _few([found.called(client) for client in absent])
        yield f"{which} {named}: never took part in a measured round."
    if partial := [one.round for one in found.log if not one.complete]:
        yield f"What clients did that were asked and did not answer, in {_rounds(partial)}."
    if lost := [one for one in found.log if one.note]:
        rounds = _rounds([one.round for one in lost])
        yield f"What was not recorded of {rounds}: {plain(lost[0].note)}"
    excluded = dict[ClientId, list[RoundEntry]]()
    for one in found.log:
        for client in one.excluded:
            excluded.setdefault(client, []).append(one)
    for client, entries in sorted(excluded.items()):
        why = plain(entries[0].excluded[client])
        yield f"What client {client} sent in {_rounds([one.round for one in entries])}: {why}"
    known = {one.round for one in found.log}
    if waits := sorted({*found.waiting} - known):
        yield f"What happened in {_rounds(waits)}, still to be measured."
    if between := sorted({*range(1, max(known, default=0) + 1)} - known - {*found.waiting}):
        yield f"What happened in {_rounds(between)}, which the recorder did not hear of."
    if not blind:
        yield "Whether inputs alone tell members from others: the recording keeps no samples."


def _rounds(numbers: Sequence[int]) -> str:
    return f"round{'s' * (len(numbers) > 1)} {_few([str(number) for number in numbers])}"


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _coverage(found: _Contents, targets: Collection[ClientId]) -> Coverage:
    recording, log = found.recording, found.log
    measured = {one.index: one for one in found.measured}
    entries = {one.round: one for one in log}
    last = max([*measured, *entries, *found.waiting], default=0)
    reasons, uploads, n_uploads = dict[int, str](), list[MissingUpload](), 0
    # Whoever sees the final model alone misses no earlier round.
    for index in range(last if recording.view == "final" else 1, last + 1):
        if reason := _fault_of(index, found, targets, measured, entries.get(index)):
            reasons[index] = reason
        elif index in measured:
            missing, unknown = _missing_uploads(entries[index], measured[index], targets)
            uploads += missing
            n_uploads += unknown + sum(one.aggregated for one in missing)
    # Measured as it came first; what came later is of the same number, and is not measured.
    for index, reason in recording.conflicts.items():
        reasons.setdefault(index, plain(reason))
    by_choice = [one for one in log if one.round % recording.every and not one.failed]
    digests = [(one.measured.index, one.notes.get(SENT, "")) for one in found.stored]
    identity = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    return Coverage(
        rounds=last,
        measured=len(measured),
        last_measured=max(measured, default=0),
        every=recording.every,
        clients=[_of_client(client, measured, entries) for client in sorted(targets)],
        is_open=recording.is_closed is False,
        unattacked=sorted({*recording.targets} - {*targets}),
        missing_uploads=uploads[:MOST_LISTED],
        missing_rounds=[*_spans(reasons)][:MOST_LISTED],
        n_missing_uploads=n_uploads,
        n_missing_rounds=len(reasons),
        # Over the models that were sent, if they are known of every measured round.
        identity=identity if all(digest for _, digest in digests) else "",
        sampled_rounds=any({*targets} & {*one.answered} or one.unknown for one in by_choice)
        or (recording.every > 1 and any(EVERYBODY in one.clients for one in measured.values())),
    )


def _fault_of(
    index: int,
    found: _Contents,
    targets: Collection[ClientId],
    measured: Collection[int],
    entry: RoundEntry | None,
) -> str:
    """Return why a round is missing; empty if it is not."""
    if index in measured:
        unlogged = "its entry in the log is missing, so that it is not known who answered"
        return "" if entry else unlogged
    if index in found.waiting:
        return "still to be measured"
    if index % found.recording.every and not (entry and entry.failed):
        return ""
    if entry is None:
        return "the recorder was not told of it"
    if not entry.failed:
        return "its measurements are missing"
    # A round in which no audited client answered has nothing to be measured.
    sees_uploads = found.recording.view in UPLOAD_VIEWS
    if sees_uploads and not entry.unknown and not {*targets} & {*entry.answered}:
        return ""
    return plain(entry.note).removeprefix(f"round {index} is not recorded: ")


def _missing_uploads(
    entry: RoundEntry, measured: MeasuredRound, targets: Collection[ClientId]
) -> tuple[list[MissingUpload], bool]:
    """Return the targets' uploads that a round lacks, and if it lacks one of unknown sender."""
    seen = {*measured.clients, *measured.stands_for}
    if EVERYBODY in seen:
        return [], False
    missing = [
        MissingUpload(
            client=client,
            round=entry.round,
            reason=plain(entry.excluded.get(client) or "it was not measured")[:2000],
            aggregated=client not in entry.kept_out,
        )
        for client in sorted({*targets} & {*entry.answered} - seen)
    ]
    # An upload of unknown sender may be that of any audited client which has not answered.
    return missing, entry.unknown and bool({*targets} - {*entry.answered})


def _of_client(
    client: ClientId, measured: Mapping[int, MeasuredRound], entries: Mapping[int, RoundEntry]
) -> ClientCoverage:
    rounds = rounds_with(client, measured.values())
    answered = {index for index, one in entries.items() if client in one.answered}
    return ClientCoverage.of(client, len(answered | {*rounds}), rounds)


def _spans(rounds: Mapping[int, str]) -> list[MissingRounds]:
    """Return consecutive rounds that are missing for one reason."""
    spans = list[MissingRounds]()
    for index, reason in sorted(rounds.items()):
        if spans and spans[-1].last == index - 1 and spans[-1].reason == reason[:2000]:
            spans[-1] = spans[-1].model_copy(update={"last": index})
        else:
            spans.append(MissingRounds(first=index, last=index, reason=reason[:2000]))
    return spans
