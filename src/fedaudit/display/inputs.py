"""Federations, data sets, recordings and rounds as cards and short texts."""

from collections import Counter
from collections.abc import Callable, Iterable, Sized
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from fedaudit.display.cards import LONGEST_NAME, MOST_ROWS, Card, hidden_rows
from fedaudit.formatting.grid import Cells, as_one_line, grid_of, shorten, tile
from fedaudit.formatting.wording import format_count, join_some

if TYPE_CHECKING:
    from fedaudit.api.federation import Federation
    from fedaudit.datasets.dataset import Dataset
    from fedaudit.datasets.draws.audit_set import Assignment, AuditSet
    from fedaudit.live.recorder import Recorder
    from fedaudit.observe.measurements import MeasuredRound
    from fedaudit.observe.round import Round


def _federation_card(federation: "Federation") -> Card:
    from fedaudit.api.references import as_list

    clients = federation.clients
    listed = as_list(federation.defenses) or ["none"]
    number = clients if isinstance(clients, int | str) else getattr(clients, "clients", "")
    rows: list[Cells] = [
        {"part": name, "choice": _part_words(part)}
        for name, part in {
            "data": federation.data,
            "clients": clients,
            "model": federation.model,
            "task": federation.task,
            "algorithm": federation.algorithm,
            "training": federation.training or "default settings",
        }.items()
    ]
    rows += [{"part": "defense", "choice": _part_words(part)} for part in listed]
    return Card(
        "federation",
        f"{as_one_line(str(number))} clients",
        table=grid_of("Parts", rows, words=("choice",)),
        next=("Train and attack it with fa.audit.",),
    )


def _part_words(part: object) -> str:
    """Return the name of a part with its settings, but never samples."""
    from fedaudit.core.naming import changed_fields

    if isinstance(part, str | int):
        return shorten(str(part), 120)
    if isinstance(part, Sized) and not isinstance(part, type):
        return f"{format_count(len(part), 'sample')} ({type(part).__name__})"
    name = getattr(part, "__name__", type(part).__name__)
    settings = changed_fields(part) if is_dataclass(part) and not isinstance(part, type) else {}
    texts = [
        f"{key} = {value}"
        for key, value in settings.items()
        if isinstance(value, str | int | float | tuple)
    ]
    return shorten(" · ".join([name, *texts]), 240)


def _dataset_card(dataset: "Dataset") -> Card:
    shape = " × ".join(map(str, dataset.train.features.shape[1:]))
    numbers = [
        tile("Samples", f"{len(dataset):,}", f"{len(dataset.train):,} to train"),
        tile("Features", shape or "1", shorten(dataset.normalisation, 120)),
        tile("Classes", str(dataset.classes)),
    ]
    statement = tuple(map(as_one_line, dataset.statement))
    return Card(
        "data set",
        shorten(dataset.name, LONGEST_NAME),
        numbers=tuple(numbers),
        notes=statement,
    )


def _audit_set_card(audit: "AuditSet") -> Card:
    owners = Counter(audit.owner[audit.owner >= 0].tolist())
    rows: list[Cells] = [
        {"client": _client(audit, client), "members": f"{count:,}"}
        for client, count in sorted(owners.items())[:MOST_ROWS]
    ]
    fair = int(audit.fair.sum())
    unaudited = [
        f"{as_one_line(name)}: {as_one_line(reason)}" for name, reason in audit.unaudited.items()
    ]
    return Card(
        "audit set",
        f"{format_count(len(audit), 'audited sample')} of {format_count(len(owners), 'client')}",
        numbers=(
            tile("Members", f"{owners.total():,}", "a client trains on them"),
            tile("Held out", f"{len(audit) - owners.total():,}", "no client trains on them"),
            tile("Fair draw", f"{fair:,}", "a coin decided on membership"),
        ),
        table=grid_of("Audited members of each client", rows),
        notes=tuple(f"Not audited: {text}" for text in unaudited[:MOST_ROWS]),
    )


def _client(audit: "AuditSet", number: int) -> str:
    from fedaudit.live.clients import numbers_of

    names = {number: name for name, number in numbers_of(audit.names).items()}
    return shorten(str(names.get(number, f"client {number}")), LONGEST_NAME)


def _split_card(split: Any) -> Card:
    split = getattr(split, "split", split)
    return _audit_set_card(split.audit)._replace(
        status="split",
        next=("Train each client only on its samples in train.", "Pass audit to fa.record."),
    )


def _assignment_card(assignment: "Assignment") -> Card:
    sizes = assignment.sizes
    audited = assignment.audited
    rows: list[Cells] = [
        {"client": f"client {client}", "samples": f"{size:,}", "audited": f"{audited[client]:,}"}
        for client, size in list(sizes.items())[:MOST_ROWS]
    ]
    return Card(
        "partition",
        f"{format_count(len(sizes), 'client')} with {sum(sizes.values()):,} training samples",
        table=grid_of("Samples of each client", rows),
        notes=hidden_rows(len(sizes), "client"),
    )


def _round_card(round: "Round") -> Card:
    return Card(
        "round",
        f"Round {round.index}: {format_count(len(round.answered), 'upload')} of "
        f"{format_count(len(round.selected), 'selected client')}",
        numbers=(
            tile("Visible uploads", str(len(round.uploads))),
            tile("Visible models", str(len(round.observed))),
        ),
        next=("Compute signals with fa.measure.",),
    )


def _measured_round_card(measured: "MeasuredRound") -> Card:
    rows: list[Cells] = [
        {"signal": name, "clients": str(values.shape[0]), "samples": str(values.shape[1])}
        for name, values in measured.signals.items()
    ]
    return Card(
        "round",
        f"Round {measured.index}: {format_count(len(rows), 'signal')} of "
        f"{format_count(len(measured.clients), 'client')}",
        table=grid_of("Signals", rows),
    )


def _recorder_card(recorder: "Recorder") -> Card:
    recording, entries = recorder.recording, recorder.entries
    missing = _missing(entries, recording.names)
    return Card(
        "recording",
        f"{shorten(recording.name, LONGEST_NAME)}: {format_count(len(entries), 'round')} recorded, "
        f"{len(recorder.measured)} measured",
        caveats=(f"Missing uploads: {missing}",) if missing else (),
        numbers=(
            tile("Audited samples", str(len(recorder.run.assignment.audit))),
            tile("Audited clients", str(len(recording.targets))),
            tile("Attacks", str(len(recording.attacks)), join_some(recording.attacks)),
        ),
        next=(f"Attack the recording: {_attack_call(recorder)}",),
    )


def _missing(entries: Iterable[Any], names: Any) -> str:
    counts = Counter(client for entry in entries for client in entry.excluded)
    texts = [
        f"{as_one_line(names.get(client, f'client {client}'))} in {format_count(count, 'round')}"
        for client, count in counts.items()
    ]
    return join_some(texts)


def _attack_call(recorder: "Recorder") -> str:
    folder = str(recorder.folder)
    return f"fedaudit.attack_recording({folder!r}, [], {folder + '-attacked'!r})"


def _recorder_text(recorder: "Recorder") -> str:
    rounds = f"{format_count(len(recorder.entries), 'round')}, {len(recorder.measured)} measured"
    name = shorten(recorder.recording.name, LONGEST_NAME)
    return f"<Recorder {name!r}: {rounds}; next: {_attack_call(recorder)}>"


CARDS: dict[str, Callable[..., Card | str]] = {
    "Federation": _federation_card,
    "Dataset": _dataset_card,
    "AuditSet": _audit_set_card,
    "Split": _split_card,
    "DatasetSplit": _split_card,
    "Assignment": _assignment_card,
    "Round": _round_card,
    "MeasuredRound": _measured_round_card,
    "Recorder": _recorder_card,
}
TEXTS: dict[str, Callable[..., str]] = {
    "Recorder": _recorder_text,
}
"""Functions by the name of the class that they display."""
