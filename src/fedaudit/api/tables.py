"""Signals and scores of an audit as tables with one row per sample."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy import ndarray

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.files import ATTACKED_FOLDER
from fedaudit.core.metric_names import Origin
from fedaudit.core.values import NO_CLIENT
from fedaudit.evaluation.sample_scores import SampleScores
from fedaudit.live.files import AUDIT_FILE
from fedaudit.live.recording import is_recording
from fedaudit.observe.measurements import MeasuredRound, read_measured
from fedaudit.observe.tensors import read_tensors
from fedaudit.study.running.folder import STUDY_FILE
from fedaudit.study.running.pool import run_folder

Columns = dict[str, ndarray]
"""Columns of one length by name."""


def signal_columns(
    folder: Path, seeds: Collection[int], signals: Sequence[str], names: Mapping[int, str]
) -> Columns:
    """Return the measured signals of an audit, with a row per round, client and audited sample.

    Args:
        folder: Folder of the record.
        seeds: Seeds of the runs to read.
        signals: Names of the signals; all signals if empty.
        names: Names of clients by number. Other clients have only a number.

    Raises:
        BadInput: The measurements are not next to the record, or a signal was not measured.
        Damaged: A file is missing or cannot be read.
    """
    measured_folder = measurements_of(folder)
    if measured_folder is None:
        raise BadInput(
            f"the measured signals are not next to the record in {folder}; open the folder to "
            "which the audit wrote its runs"
        )
    rounds = [
        (seed, run, stored.measured)
        for seed in seeds
        for run in [measured_run(measured_folder, seed)]
        for stored in read_measured(run)
    ]
    measured = list(rounds[0][2].signals)
    for name in signals:
        if name not in measured:
            raise unknown_name("measured signal", name, measured)
    audits = {run: read_tensors(run / AUDIT_FILE)[0] for _, run, _ in rounds}
    parts = list[Columns]()
    for seed, run, round in rounds:
        audit = {name: audits[run][name].numpy() for name in ("ids", "owner", "labels")}
        parts += _round_columns(seed, round, audit, list(signals) or measured, names)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _round_columns(
    seed: int,
    round: MeasuredRound,
    audit: Mapping[str, ndarray],
    signals: Sequence[str],
    names: Mapping[int, str],
) -> Iterator[Columns]:
    # Samples of source inference follow the audited samples, and are left out.
    n_samples = len(audit["ids"])
    for row, client in enumerate(round.clients):
        yield {
            "seed": np.full(n_samples, seed),
            "round": np.full(n_samples, round.index),
            "client": _named(np.full(n_samples, client), names),
            "sample": audit["ids"],
            "label": audit["labels"],
            "owner": _named(audit["owner"], names),
            **{name: round.signals[name][row, :n_samples].numpy() for name in signals},
        }


def _named(clients: ndarray, names: Mapping[int, str]) -> ndarray:
    """Return clients by name if any client has a name; samples without owner have none."""
    if not names:
        return clients
    texts = {client: names.get(client, str(client)) for client in set(clients.tolist())}
    texts[NO_CLIENT] = ""
    return np.array([texts[client] for client in clients.tolist()], dtype=object)


def measurements_of(folder: Path) -> Path | None:
    """Return the folder of the study or live recording of a record; None if it is not known.

    Args:
        folder: Folder of the record.
    """
    # Further attacks are written to a subfolder of the recording that they use.
    candidates = [folder, folder.parent] if folder.name == ATTACKED_FOLDER else [folder]
    return next((c for c in candidates if (c / STUDY_FILE).is_file() or is_recording(c)), None)


def measured_run(measured_folder: Path, seed: int) -> Path:
    """Return the folder with the measurements of a run; a live recording is one run.

    Args:
        measured_folder: Folder of the study or recording, from :func:`measurements_of`.
        seed: Seed of the run.
    """
    return measured_folder if is_recording(measured_folder) else run_folder(measured_folder, seed)


def sample_columns(
    stored: Mapping[tuple[int, int], SampleScores], names: Mapping[int, str]
) -> Columns:
    """Return the audited samples with the scores of all attacks, for each seed and target.

    Args:
        stored: Scores by seed and target.
        names: Names of clients by number.
    """
    attacks = list(dict.fromkeys(name for scores in stored.values() for name in scores.by_attack))
    parts = [
        {
            "seed": np.full(len(ids), seed),
            "target": _named(np.full(len(ids), target), names),
            "sample": ids,
            "origin": np.array([Origin(code).name.lower() for code in origin.tolist()], object),
            "is_member": origin == Origin.MEMBER,
            **{name: by_attack.get(name, np.full(len(ids), np.nan)) for name in attacks},
        }
        for (seed, target), (ids, origin, by_attack) in sorted(stored.items())
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
