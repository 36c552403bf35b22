"""Attacks on a recording, and the coverage of the recording: measured and missing rounds."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from torch import nn

from fedaudit.attacks import catalogue_spellings
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.importing import (
    code_named_in,
    convert_exits_to_errors,
    is_custom,
    source_digests,
)
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.core.values import Architecture, ClientId
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.evaluation.accuracy import are_notes_valid
from fedaudit.live.clients import ClientRef, number_of
from fedaudit.live.decisions import (
    Decision,
    guard_coverage,
    read_decisions,
    reason_nothing_was_sent,
    undecided_round,
)
from fedaudit.live.files import read_audit, read_untrained, waiting_rounds
from fedaudit.live.recording import (
    UPLOAD_VIEWS,
    Recording,
    RoundEntry,
    read_recording,
    read_round_log,
)
from fedaudit.live.references import read_references
from fedaudit.live.rounds import SENT_NOTE
from fedaudit.live.setup import RECORDED, setup_of_recording
from fedaudit.live.unsent import ESTIMATED_NOTE
from fedaudit.observe.measurements import (
    MeasuredRound,
    StoredRound,
    measured_rounds_in,
    reason_invalid,
    rounds_with,
    warn_of_unhashed,
)
from fedaudit.observe.round import ALL_CLIENTS
from fedaudit.plan.parts import MeasuredRun, RecordingInfo, Resources, Setup
from fedaudit.plan.values import study_from
from fedaudit.results.record import Record
from fedaudit.results.runs import (
    MAX_LISTED,
    MAX_MODELS,
    ClientCoverage,
    Coverage,
    MissingRounds,
    MissingUpload,
    ModelDigests,
)
from fedaudit.results.text import clean_text, plain_json
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import (
    REATTACK_MAY_CHANGE,
    replaceable_record_or_raise,
    replaced_attacks,
)
from fedaudit.study.running.record import evaluate_and_write

_MAX_LISTED = 10


@convert_exits_to_errors()
def attack_recording(
    folder: Path | str,
    names: Sequence[str],
    out: Path | str,
    *,
    targets: Collection[ClientRef] = (),
    figures: Mapping[str, object] | None = None,
    trust: bool = False,
    progress: Progress = ignore_progress,
    log: Callable[[str], None] = lambda text: None,
) -> Record:
    """Run attacks on the measurements of a live recording.

    Clients without a measured round are not attacked, and the record names them.

    Args:
        folder: The recording.
        names: Attacks to run. If empty, all attacks are run whose signals were recorded.
        out: Folder for the result file (``record.json``).
        targets: Clients to attack, by number or name; all audited clients if empty.
        figures: Changed evaluation settings (the section ``figures``), by name.
        trust: Whether to import custom code that the recording names. By default a recording that
            names code is refused.
        progress: Called with (phase, done, total).
        log: Receives lines of text for the user.

    Raises:
        BadInput: The recording has no measured round, or lacks the signals of an attack; the output
            folder holds a record of other settings; or code is not trusted.
        Damaged: The recording is incomplete or altered.

    Examples:
        >>> from torch import nn
        >>> import fedaudit as fa
        >>> import torch
        >>> net = torch.nn.Linear(2, 2)
        >>> data = {c: (torch.randn(60, 2), torch.arange(60) % 2) for c in (0, 1)}
        >>> audited = fa.fair_split(data, audited=40).audit
        >>> with fa.record("runs/loop", net, audited, log=lambda line: None) as recorder:
        ...     for number in (1, 2, 3):
        ...         recorder.round(number, sent=net, uploads={0: net, 1: net})
        >>> fa.attack_recording("runs/loop", ["loss-series"], "runs/loop-record").name
        'loop'
    """
    folder, out, changed = Path(folder), Path(out), dict(figures or {})
    with code_named_in(folder, trusted=trust, folder=Path.cwd()):
        # Check settings first: an error then names the setting as the caller wrote it.
        overrides = {f"figures.{name}" for name in changed}
        study_from({"name": RECORDED, "figures": changed}, source="the attack", overrides=overrides)
        clock = Clock()
        data = _read(folder)
        warn_of_unhashed(folder, log)
        names = catalogue_spellings(names)
        run = _build_run(data, _resolve_targets(data, targets), names, changed, out)

        def check_record() -> str:
            assert run.recording_info is not None
            before = replaceable_record_or_raise(
                out, run.recording_info.config, ignored=REATTACK_MAY_CHANGE
            )
            return replaced_attacks(before, names)

        measured = MeasuredRun(replace(run, folder=folder), data.stored)
        return evaluate_and_write(
            [measured], out, Resources(progress=progress), clock, log, before_writing=check_record
        )


class _RecordingData(NamedTuple):
    """Data in the files of a recording."""

    folder: Path
    recording: Recording
    audit: AuditSet
    log: Sequence[RoundEntry]
    stored: Sequence[StoredRound]
    waiting: Collection[int]
    # Empty unless a guard wrote the recording.
    decisions: Sequence[Decision]
    undecided: int | None

    @property
    def measured(self) -> list[MeasuredRound]:
        return [stored.measured for stored in self.stored]

    def display_name(self, client: ClientId) -> str:
        return clean_text(self.recording.names.get(client, str(client)))

    def list_names(self, clients: Iterable[ClientId]) -> str:
        return _list([self.display_name(client) for client in clients])


def _read(folder: Path) -> _RecordingData:
    """Read a recording; raise if it has no measured round."""
    # Read the log after the waiting rounds, so that it has rounds that are measured in between.
    waiting = {index for index, _ in waiting_rounds(folder)}
    recording, audit, log = read_recording(folder), read_audit(folder), read_round_log(folder)
    stored = measured_rounds_in(folder)
    if not stored:
        raise BadInput(_reason_unmeasured(folder, recording, log))
    for entry in stored:
        if entry.notes.get("run") != recording.key:
            raise Damaged(
                f"the measured round {entry.measured.index} in {folder} belongs to another "
                "recording; restore it"
            )
    decisions = read_decisions(folder)
    undecided = undecided_round(folder, [entry.measured.index for entry in stored], decisions)
    return _RecordingData(folder, recording, audit, log, stored, waiting, decisions, undecided)


def _reason_unmeasured(folder: Path, recording: Recording, log: Sequence[RoundEntry]) -> str:
    """Return why a recording has no measured round, and what to do."""
    if n_waiting := len(waiting_rounds(folder)):
        return (
            f"{folder} has no measured round yet, and {n_waiting} waiting; wait for its recorder, "
            "or open the recording again with fedaudit.record, and close it"
        )
    if reason := reason_nothing_was_sent(folder):
        return f"{folder}: {reason}"
    if failed := [entry for entry in log if entry.failed]:
        return (
            f"{folder} has no measured round: {len(failed)} failed, the first for this reason: "
            f"{clean_text(failed[0].note)}; fix this, and record rounds again"
        )
    return (
        f"{folder} has no measured round yet; record at least {recording.every} rounds, of "
        f"which {len(log)} are recorded"
    )


def _build_run(
    data: _RecordingData,
    targets: tuple[ClientId, ...],
    names: Sequence[str],
    figures: Mapping[str, object],
    out: Path,
) -> Setup:
    """Return the recording as a run of the named attacks; raise if it does not support them."""
    recording, audit = data.recording, data.audit
    measured_targets = _measured_targets(data, targets)
    _raise_if_unrecorded(recording, names)
    has_features = audit.samples.features.flatten(1).shape[1] > 0
    if not has_features:
        figures = {**figures, "blind_classifier": False}
    config = _config(recording.model_copy(update={"targets": targets}), names, figures)
    replaceable_record_or_raise(out, config, ignored=REATTACK_MAY_CHANGE)
    participants = {c for entry in data.log for c in entry.selected}
    for measured in data.measured:
        participants |= {*measured.clients, *measured.group_of}
    limitations = _limitations(data, {*targets} - {*measured_targets}, has_features=has_features)
    untrained: tuple[MeasuredRound, ...] = ()
    if not recording.table:
        untrained = read_untrained(data.folder, recording.key, len(audit))
    run = setup_of_recording(
        recording.model_copy(update={"targets": measured_targets}),
        audit,
        Architecture(recording.model, _no_model, task=recording.measured_task()),
        clients=sorted(participants - {ALL_CLIENTS}),
        rounds=tuple(measured.index for measured in data.measured),
        figures=figures,
        attacks=names,
        recording_info=RecordingInfo(
            untrained=untrained,
            config=config,
            limitations=tuple(limitations),
            names=recording.names,
            coverage=_coverage(data, targets),
            has_models=not recording.table,
            is_separate=recording.table == "separate",
        ),
    )
    if recording.references:
        references = read_references(data.folder, recording.key, recording.references, len(audit))
        run = replace(run, attacks=references.attach_to_attacks(run.attacks))
    run = _without_source_inference(run, data, names)
    _raise_if_damaged_rounds(run, data)
    return run


def _raise_if_unrecorded(recording: Recording, names: Sequence[str]) -> None:
    """Raise if the signals of an attack were not recorded."""
    for name in sorted({*names} - {*recording.attacks}):
        reason = recording.refused.get(name)
        raise BadInput(
            f"the signals of {name!r} were not recorded"
            + (f" ({clean_text(reason)})" if reason else "")
            + f"; this recording supports {', '.join(recording.attacks)}"
        )


def _raise_if_damaged_rounds(run: Setup, data: _RecordingData) -> None:
    for entry in data.stored:
        fault = reason_invalid(entry.measured, run.assignment.clients, len(data.audit))
        if not fault and not are_notes_valid(run, entry.notes):
            fault = "its counts of correct predictions are impossible"
        if fault:
            raise Damaged(
                f"the measured round {entry.measured.index} in {data.folder} is damaged: {fault}; "
                "restore it"
            )


def _no_model() -> nn.Module:
    raise BadInput("a recording has no model to run, only signals that were measured before")


def _without_source_inference(run: Setup, data: _RecordingData, names: Sequence[str]) -> Setup:
    """Return the run without source inference if the recording does not allow it."""
    clients = {c for measured in data.measured for c in measured.clients} - {ALL_CLIENTS}
    owners = {*run.assignment.audit.owner.tolist()}
    without_samples = [client for client in sorted(run.assignment.clients) if client not in owners]
    if len(clients) < 2:
        reason = "source inference needs uploads of at least two clients"
    elif without_samples:
        reason = (
            f"client {data.display_name(without_samples[0])} has no audited sample, so no sample "
            "can be attributed to it"
        )
    else:
        return run
    for name in run.source_attacks:
        if name in names:
            raise BadInput(f"{name!r} cannot be run on this recording: {reason}; omit it")
    return run.without_attacks(dict.fromkeys(run.source_attacks, reason))


def _resolve_targets(data: _RecordingData, clients: Collection[ClientRef]) -> tuple[ClientId, ...]:
    """Return the audited clients to attack; raise if a client is not audited."""
    audited_targets = data.recording.targets
    # Reports print clients without names as "client 3".
    printed = {f"client {client}": client for client in audited_targets}
    numbers = set[ClientId]()
    for client in clients:
        number = printed[client] if client in printed else number_of(client)
        if number not in audited_targets:
            raise BadInput(
                f"client {str(client)[:80]!r} is not audited; audited are "
                f"{data.list_names(audited_targets)}"
            )
        numbers.add(number)
    return tuple(client for client in audited_targets if not clients or client in numbers)


def _measured_targets(data: _RecordingData, targets: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Return the targets with a measured upload; raise if no target has one."""
    measured = tuple(client for client in targets if rounds_with(client, data.measured))
    if measured:
        return measured
    problem = f"no upload of an audited client ({data.list_names(targets)}) was measured"
    excluded = [
        (entry, client) for entry in data.log for client in targets if client in entry.excluded
    ]
    if excluded:
        entry, client = excluded[0]
        raise BadInput(
            f"{problem}: {len(excluded)} were left out, the first of client "
            f"{data.display_name(client)} in round {entry.round} for this reason: "
            f"{clean_text(entry.excluded[client])}"
        )
    measured_clients = sorted({c for entry in data.measured for c in entry.clients})
    raise BadInput(
        f"{problem}, only of {data.list_names(measured_clients)}; record more rounds, or name "
        "clients as in the audited samples"
    )


_NOT_SETTINGS = {"format", "version", "refused", "conflicts", "is_closed", "adapter", "tied"}


def _config(
    recording: Recording, names: Sequence[str], figures: Mapping[str, object]
) -> dict[str, object]:
    """Return the known settings of the federation, for its result file."""
    # Recordings of models, which have neither field, keep the settings of earlier versions.
    excluded = _NOT_SETTINGS | {n for n in ("table", "references") if not getattr(recording, n)}
    settings = recording.model_dump(mode="json", exclude=excluded)
    config = {"name": recording.name, "recording": settings, "figures": dict(figures)}
    if names:
        config["attacks"] = {name: {} for name in names}
    custom_attacks = [("attack", name) for name in (names or recording.attacks) if is_custom(name)]
    if custom_attacks:
        config["code"] = source_digests(custom_attacks)
    # A recording is untrusted, and its texts may contain control characters.
    return {name: plain_json(value) for name, value in config.items()}


def _limitations(
    data: _RecordingData, absent_clients: Collection[ClientId], *, has_features: bool
) -> Iterator[str]:
    """Yield sentences for the report about everything that was not tested, with the reason."""
    recording = data.recording
    yield "How the federation trained: the settings of a recorded federation are unknown."
    if recording.table:
        yield (
            "The models: signals were measured elsewhere and given as a table, so that neither "
            "accuracy nor untrained models are measured here."
        )
    if recording.references:
        yield (
            f"How the {recording.references} reference models were trained, and on what: their "
            "signals were measured elsewhere and given as a table."
        )
    for name, reason in recording.unaudited.items():
        yield f"What training reveals about {clean_text(name)}: {clean_text(reason)}"
    if recording.view == "uploads" and len({c for m in data.measured for c in m.clients}) == 1:
        yield (
            "Attacks that compare clients, such as FedMIA: the uploads of one client are recorded. "
            "A server that sees the uploads of all clients may find more leakage than this report."
        )
    if data.undecided is not None:
        yield (
            f"Whether the upload of round {data.undecided} was sent: the guard's log has no "
            "decision on it, as after a killed process. The figures include this upload."
        )
    if data.decisions:
        yield (
            "Whether the attacks find a planted leak: no leak was planted in this run. Before a "
            "job, `fedaudit check-guard` plants one at the site."
        )
    if recording.not_uploaded:
        listed_names = clean_text(", ".join(recording.not_uploaded[:_MAX_LISTED]))
        yield (
            f"The parameters that stay at the clients ({listed_names}): if uploads lack them, the "
            "values that were sent to the clients were measured instead."
        )
    if estimated := [entry for entry in data.stored if ESTIMATED_NOTE in entry.notes]:
        rounds = _rounds([entry.measured.index for entry in estimated])
        layers = clean_text(estimated[0].notes[ESTIMATED_NOTE])
        yield (
            f"The clients' own running statistics of {layers}, which they do not send: in "
            f"{rounds} they were estimated on audited samples."
        )
    if absent_clients:
        noun = "Client" if len(absent_clients) == 1 else "Clients"
        names = data.list_names(sorted(absent_clients))
        yield f"{noun} {names}: never took part in a measured round."
    # Reports list withheld uploads separately, since these reached no adversary.
    withheld = {decision.round for decision in data.decisions if not decision.was_sent}
    entries = [entry for entry in data.log if entry.measured or entry.round not in withheld]
    if partial := [entry.round for entry in entries if not entry.complete]:
        yield f"Uploads of clients that did not reply, in {_rounds(partial)}."
    if incomplete := [entry for entry in entries if entry.note]:
        rounds = _rounds([entry.round for entry in incomplete])
        yield f"Data of {rounds} that could not be recorded: {clean_text(incomplete[0].note)}"
    for client in sorted({client for entry in data.log for client in entry.excluded}):
        faulty = [entry for entry in data.log if client in entry.excluded]
        reason = clean_text(faulty[0].excluded[client])
        yield f"The upload of client {client} in {_rounds([e.round for e in faulty])}: {reason}"
    logged = {entry.round for entry in data.log}
    if unmeasured := sorted({*data.waiting} - logged):
        yield f"{_rounds(unmeasured).capitalize()}: still to be measured."
    if unknown := sorted({*range(1, max(logged, default=0) + 1)} - logged - {*data.waiting}):
        yield f"{_rounds(unknown).capitalize()}: not received by the recorder."
    if not has_features:
        yield "Whether features distinguish members without a model: no samples are stored."


def _rounds(numbers: Sequence[int]) -> str:
    """Return for example "rounds 1, 2"."""
    return f"round{'s' * (len(numbers) > 1)} {_list([str(number) for number in numbers])}"


def _list(names: Sequence[str]) -> str:
    n_more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {n_more} more" if n_more > 0 else "")


def _coverage(data: _RecordingData, targets: Collection[ClientId]) -> Coverage:
    recording = data.recording
    measured = {entry.index: entry for entry in data.measured}
    entries = {entry.round: entry for entry in data.log}
    last = max([*measured, *entries, *data.waiting], default=0)
    reasons, missing_uploads, n_missing_uploads = dict[int, str](), list[MissingUpload](), 0
    # An adversary that sees only the final model does not see earlier rounds.
    for index in range(last if recording.view == "final" else 1, last + 1):
        if reason := _reason_missing(index, data, targets, measured, entries.get(index)):
            reasons[index] = reason
        elif index in measured:
            missing, has_unknown = _missing_uploads(entries[index], measured[index], targets)
            missing_uploads += missing
            n_missing_uploads += has_unknown + sum(upload.aggregated for upload in missing)
    # Only the first version of a round is measured; list later versions as missing.
    for index, reason in recording.conflicts.items():
        reasons.setdefault(index, clean_text(reason))
    return Coverage(
        rounds=last,
        measured=len(measured),
        last_measured=max(measured, default=0),
        every=recording.every,
        clients=[_client_coverage(client, measured, entries) for client in sorted(targets)],
        is_open=recording.is_closed is False,
        unattacked=sorted({*recording.targets} - {*targets}),
        missing_uploads=missing_uploads[:MAX_LISTED],
        missing_rounds=_spans(reasons)[:MAX_LISTED],
        n_missing_uploads=n_missing_uploads,
        n_missing_rounds=len(reasons),
        identity=_identity(data),
        models=_model_digests(data.log),
        adapter=recording.adapter,
        tied=recording.tied,
        sampled_rounds=_has_skipped_uploads(data, targets),
        guard=guard_coverage(data.decisions),
    )


def _model_digests(log: Iterable[RoundEntry]) -> list[ModelDigests]:
    """Return the digests of the global models of the last rounds."""
    models = [
        ModelDigests.model_validate({"round": entry.round, **entry.models})
        for entry in log
        if entry.models
    ]
    return sorted(models, key=attrgetter("round"))[-MAX_MODELS:]


def _identity(data: _RecordingData) -> str:
    """Return a hash of the models that were sent, or "" if a measured round lacks their digest."""
    digests = [(entry.measured.index, entry.notes.get(SENT_NOTE, "")) for entry in data.stored]
    if not all(digest for _, digest in digests):
        return ""
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _has_skipped_uploads(data: _RecordingData, targets: Collection[ClientId]) -> bool:
    """Return True if ``every`` skipped a round in which a target may have taken part."""
    every = data.recording.every
    for entry in data.log:
        is_skipped = entry.round % every and not entry.failed
        if is_skipped and (entry.has_unidentified or {*targets} & {*entry.answered}):
            return True
    # In rounds of the global model, all clients may take part.
    return every > 1 and any(ALL_CLIENTS in measured.clients for measured in data.measured)


def _reason_missing(
    index: int,
    data: _RecordingData,
    targets: Collection[ClientId],
    measured: Collection[int],
    entry: RoundEntry | None,
) -> str:
    """Return why a round is missing; empty if it is not."""
    if index in measured and entry is not None:
        return ""
    if index in measured:
        return "its entry in the log is missing, so that the clients that replied are unknown"
    if index in data.waiting:
        return "still to be measured"
    if index % data.recording.every and not (entry and entry.failed):
        return ""
    if entry is None:
        return "the recorder did not receive it"
    if not entry.failed:
        return "its measurements are missing"
    # A round without a reply of an audited client has nothing to measure.
    sees_uploads = data.recording.view in UPLOAD_VIEWS
    if sees_uploads and not entry.has_unidentified and not {*targets} & {*entry.answered}:
        return ""
    return clean_text(entry.note).removeprefix(f"round {index} is not recorded: ")


def _missing_uploads(
    entry: RoundEntry, measured: MeasuredRound, targets: Collection[ClientId]
) -> tuple[list[MissingUpload], bool]:
    """Return missing uploads of targets, and True if one of an unidentified client is missing."""
    measured_clients = {*measured.clients, *measured.group_of}
    if ALL_CLIENTS in measured_clients:
        return [], False
    missing = [
        MissingUpload(
            client=client,
            round=entry.round,
            reason=clean_text(entry.excluded.get(client) or "it was not measured")[:2000],
            aggregated=client not in entry.rejected,
        )
        for client in sorted({*targets} & {*entry.answered} - measured_clients)
    ]
    # The unidentified client may be any audited client without a reply.
    return missing, entry.has_unidentified and bool({*targets} - {*entry.answered})


def _client_coverage(
    client: ClientId, measured: Mapping[int, MeasuredRound], entries: Mapping[int, RoundEntry]
) -> ClientCoverage:
    rounds = rounds_with(client, measured.values())
    answered = {index for index, entry in entries.items() if client in entry.answered}
    return ClientCoverage.of(client, len(answered | {*rounds}), rounds)


def _spans(rounds: Mapping[int, str]) -> list[MissingRounds]:
    """Join consecutive rounds that are missing for the same reason."""
    spans = list[MissingRounds]()
    for index, reason in sorted(rounds.items()):
        if spans and spans[-1].last == index - 1 and spans[-1].reason == reason[:2000]:
            spans[-1] = spans[-1].model_copy(update={"last": index})
        else:
            spans.append(MissingRounds(first=index, last=index, reason=reason[:2000]))
    return spans
