"""Training of a run, and measurement of the audited samples in the measured rounds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, format_assignment, format_option
from fedaudit.core.files import CHECKPOINT_FILE
from fedaudit.core.values import flat
from fedaudit.evaluation.accuracy import (
    EvaluationSplit,
    accuracy_notes,
    are_notes_valid,
    evaluation_split,
)
from fedaudit.evaluation.final_models import write_digests
from fedaudit.fl.algorithms.base import ChoosesModels
from fedaudit.observe.measurements import (
    MeasuredRound,
    StoredRound,
    measured_rounds_in,
    measuring_device,
    reason_invalid,
    signal_names,
    write_measured,
)
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import estimated_bytes
from fedaudit.observe.usage import record_usage
from fedaudit.observe.views import seen_from
from fedaudit.plan.parts import Resources, Setup
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import MeasureRound, measure_on_engine, measure_round


def missing_signals(run: Setup) -> list[str]:
    """Return the names of signals for which the run would have to be trained again.

    Before the first round is measured, no signal is missing.
    """
    measured = signal_names(run.folder)
    if not measured:
        return []
    # If updates are stored, any signal can be measured later.
    needed = [] if run.study.audit.keep == "full" else [signal.name for signal in run.signals]
    missing = [name for name in needed if name not in measured]
    return missing + [
        name for extension in run.extensions for name in extension.missing_signals(run)
    ]


def raise_if_retraining_needed(runs: Iterable[Setup]) -> None:
    """Raise if runs would have to be trained again for the signals of their attacks."""
    missing_in = {run.folder: missing_signals(run) for run in runs}
    folders = [folder for folder, names in missing_in.items() if names]
    if not folders:
        return
    signals = dict.fromkeys(name for folder in folders for name in missing_in[folder])
    raise BadInput(
        f"the signals {', '.join(signals)} were not measured in {', '.join(map(str, folders))} and "
        f"no updates were stored there, so {'these runs' if len(folders) > 1 else 'this run'} "
        f"would have to be trained again; give another folder with {format_option('out')}, or "
        "delete "
        'these folders (audit.keep = "full" stores updates, on which more attacks can be run)'
    )


def with_all_signals(
    run: Setup, stored: Sequence[StoredRound], resources: Resources, notes: Callable[[str], None]
) -> list[StoredRound]:
    """Return measured rounds with all signals that the attacks of a run need.

    Missing signals are measured on stored updates. Other signals are dropped: studies that share
    the run may need them.

    Args:
        run: The run.
        stored: Its measured rounds.
        resources: Device and progress.
        notes: Called with a note for the record, if signals were measured on stored updates.

    Raises:
        BadInput: Signals are missing, and the run was measured on another kind of device.
        Damaged: The stored updates have other rounds or clients than the measurements.
    """
    names = [signal.name for signal in run.signals]
    missing = [signal for signal in run.signals if signal.name not in stored[0].measured.signals]
    added: Sequence[Mapping[str, Tensor]] = [{}] * len(stored)
    if missing and run.study.audit.keep == "full":
        if measuring_device(stored) != resources.device.type:
            raise BadInput(
                f"{missing[0].name} must be measured on the same kind of device as {run.folder}: "
                f"give {format_assignment('device', measuring_device(stored))}"
            )
        rounds = measure_kept_updates(run, stored, missing, resources)
        added = [round.signals for round in rounds]
        notes(
            f"The last digits of {', '.join(signal.name for signal in missing)} of seed "
            f"{run.seed}: they were measured on kept updates, which are rounded to 16 bits."
        )
    rounds_with_signals = []
    for old, new in zip(stored, added, strict=True):
        signals = {**old.measured.signals, **new}
        needed = {name: signals[name] for name in signals if name in names}
        rounds_with_signals.append(StoredRound(replace(old.measured, signals=needed), old.notes))
    return rounds_with_signals


def measure_kept_updates(
    run: Setup, stored: Sequence[StoredRound], signals: Sequence[Signal], resources: Resources
) -> list[MeasuredRound]:
    """Measure signals on the updates that a run stored.

    Raises:
        Damaged: The stored updates have other rounds or clients than the measurements.
    """
    from fedaudit.observe.kept_files import read_rounds  # Few runs keep updates.

    rounds = seen_from(read_rounds(run.folder, run.algorithm.architecture), run.view)
    phase, total = f"seed {run.seed}: new signals", len(stored)
    resources.progress(phase, 0, total)
    measured = []
    for round in rounds:
        if not set(run.assignment.clients) >= {*round.selected, *round.group_of}:
            raise Damaged(
                f"round {round.index} stored in {run.folder} is damaged: it has clients that the "
                "run does not have; restore the folder from a copy, or run the study again"
            )
        measured.append(
            measure_round(round, signals, run.assignment.measured, device=resources.device)
        )
        resources.progress(phase, len(measured), total)
    if [(new.index, new.clients) for new in measured] != [
        (old.measured.index, old.measured.clients) for old in stored
    ]:
        raise Damaged(
            f"the updates stored in {run.folder} have other rounds or clients than the "
            "measurements; restore the folder from a copy, or run the study again"
        )
    return measured


def disk_needed(run: Setup) -> int:
    """Estimate how many bytes a run will write.

    Raises:
        BadInput: The model has no trainable parameters.
    """
    initial = run.algorithm.architecture.initial(0)
    if not initial.params:
        raise BadInput(
            f"model {initial.architecture.name!r} has no trainable parameters; give a model with "
            "trainable parameters"
        )
    return estimated_bytes(
        keep=run.study.audit.keep,
        rounds=len(run.measured_rounds),
        clients=len(run.assignment.clients),
        samples=len(run.assignment.measured),
        signals=len(run.signals),
        parameters=len(flat(initial.params)),
    )


_RESULT_BYTES = 17_000
"""Bytes of a record for one attack, target and seed.

The record of the study fedmia-mnist has 675,000 bytes for 13 attacks, one target and three seeds.
"""

_PAGE_BYTES = 1_000_000
"""Bytes of the scripts and styles in a report."""


def results_needed(runs: Sequence[Setup]) -> int:
    """Estimate the bytes of a study's record, report and scores.

    Args:
        runs: Runs of the study, without shadow and reference federations.
    """
    total = _PAGE_BYTES
    for run in runs:
        targets = len(run.study.audit.targets)
        scores = 8 * len(run.assignment.measured) * (len(run.attacks) + 2)
        total += targets * (scores + 2 * _RESULT_BYTES * len(run.attacks))
    return total


def observe(run: Setup, resources: Resources) -> list[StoredRound]:
    """Train and measure a run, and return all measured rounds.

    A stopped run resumes after its last complete round.

    Raises:
        BadInput: The folder belongs to another run, or the disk is full.
        Damaged: A file in the folder cannot be read.
    """
    rounds, key = run.study.training.rounds, run.key(resources.device.type)
    stream = run.simulate(resources.engine, resources.device, run.folder / CHECKPOINT_FILE)
    stream = write_digests(stream, run, key)
    for extension in run.extensions:
        stream = extension.watch(stream, run, key, resources.progress)
    stream = record_usage(stream, run.assignment.clients, run.folder, key)
    split = evaluation_split(run)
    phase = f"seed {run.seed}: training rounds"
    done = 0
    resources.progress(phase, done, rounds)
    with _measuring(run, resources) as measuring:
        for round in seen_from(stream, run.view):
            if round.index in run.measured_rounds:
                _measure(run, round, split, resources.device, measuring)
            done = round.index
            del round  # Frees its models while the next round is trained.
            resources.progress(phase, done, rounds)
    if not done:  # All rounds were trained before this start.
        resources.progress(phase, 0, 0)
    return stored_rounds(run)


def stored_rounds(run: Setup) -> list[StoredRound]:
    """Read all measured rounds of a run, and check that they belong to this run.

    Raises:
        BadInput: Rounds are missing.
        Damaged: A file cannot be read, belongs to another run, or has impossible values.
    """
    stored, folder = measured_rounds_in(run.folder), run.folder
    indices = tuple(round.measured.index for round in stored)
    if indices != run.measured_rounds:
        raise BadInput(
            f"{folder} has the measured rounds {list(indices)} instead of "
            f"{list(run.measured_rounds)}; let the study finish if it is running, or delete the "
            "folder and run it again"
        )
    key = run.key(measuring_device(stored))
    for round in stored:
        description = f"the measured round {round.measured.index} in {folder}"
        if round.notes.get("run") != key:
            raise Damaged(
                f"{description} belongs to another run; restore it from a copy, or delete the "
                "folder and run the study again"
            )
        fault = reason_invalid(round.measured, run.assignment.clients, len(run.assignment.measured))
        is_last = round.measured.index == run.measured_rounds[-1]
        if not fault and not are_notes_valid(run, round.notes, means=is_last):
            fault = "its counts of correct predictions are missing or impossible"
        if fault:
            raise Damaged(
                f"{description} is damaged: {fault}; restore it from a copy, or delete the folder "
                "and run the study again"
            )
    return stored


@contextmanager
def _measuring(run: Setup, resources: Resources) -> Iterator[MeasureRound]:
    """Yield the function that measures audited samples in a round.

    With a measuring engine, the function runs in the engine's processes.
    """
    samples = run.assignment.measured
    # All rounds in a folder must have the same signals. If attacks with other signals were added
    # since the first round, these are measured later on stored updates.
    measured = signal_names(run.folder)
    signals = tuple(signal for signal in run.signals if not measured or signal.name in measured)
    if resources.measuring_engine is not None:
        with measure_on_engine(
            resources.measuring_engine, signals, samples, count=resources.workers
        ) as measuring:
            yield measuring
        return
    yield partial(
        measure_round,
        signals=signals,
        samples=samples,
        workers=resources.workers,
        device=resources.device,
    )


def _measure(
    run: Setup, round: Round, split: EvaluationSplit, device: torch.device, measuring: MeasureRound
) -> None:
    measured = measuring(round)
    if run.study.audit.keep != "signals":
        from fedaudit.observe.kept_files import write_round

        write_round(run.folder, round, run.study.audit.keep)
    notes = {"complete": str(round.complete), "run": run.key(device.type)}
    if device.type != "cpu":
        notes["device"] = device.type
    is_last = round.index == run.measured_rounds[-1]
    notes |= accuracy_notes(run, split, round, device, means=is_last)
    if isinstance(run.algorithm, ChoosesModels):
        from fedaudit.evaluation.clusters import cluster_notes

        notes |= cluster_notes(run, round, device)
    for extension in run.extensions:
        extension.measure(run, round, notes, device)
    if is_last and run.dataset.train.inputs is not None:
        from fedaudit.study.running.pictures import store_pictures

        store_pictures(run, round)
    # Written last, because the round counts as measured as soon as this file exists.
    write_measured(run.folder, measured, notes)
