"""Training and measuring of a run: rounds as the adversary sees them, and signals of samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, option
from fedaudit.core.files import own_folder
from fedaudit.core.values import flat
from fedaudit.evaluation.accuracy import (
    EvaluationSplit,
    accuracy_notes,
    counts_fit,
    evaluation_split,
)
from fedaudit.fl.algorithms.base import ChoosesModels
from fedaudit.observe.kept_files import read_rounds, write_round
from fedaudit.observe.measurements import (
    MeasuredRound,
    Stored,
    fault_in,
    measured_names,
    stored_in,
    write_measured,
)
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import estimated_bytes
from fedaudit.observe.usage import keeping_usage
from fedaudit.observe.views import seen_from
from fedaudit.plan.parts import Setup, Work
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import Measuring, measure_round, measuring_on
from fedaudit.study.running.pictures import draw


def unmeasured(run: Setup, folder: Path) -> list[str]:
    """Return names of signals that a run's folder lacks and that only training could give.

    Args:
        run: The run.
        folder: Its folder; nothing is missing as long as no round was measured there.
    """
    there = measured_names(folder)
    if not there:
        return []
    own = [] if run.study.audit.keep == "full" else [s.name for s in run.signals]
    lacking = [name for name in own if name not in there]
    return lacking + [name for one in run.extensions for name in one.missing_signals(run, folder)]


def refuse_unmeasured(places: Sequence[tuple[Setup, Path]]) -> None:
    """Raise if runs would have to be trained again for the signals of their attacks.

    Raises:
        BadInput: Signals were not measured, and no updates were kept.
    """
    lacking = {folder: names for run, folder in places if (names := unmeasured(run, folder))}
    if not lacking:
        return
    names = list(dict.fromkeys(name for some in lacking.values() for name in some))
    folders = ", ".join(map(str, lacking))
    raise BadInput(
        f"the signals {', '.join(names)} were not measured in {folders} and no updates were kept "
        f"there, so that {'these runs' if len(lacking) > 1 else 'this run'} would have to be "
        f"trained again; give another folder with {option('out')}, or delete what is named (audit."
        'keep = "full" keeps updates, on which more attacks can be run)'
    )


def with_all_signals(
    run: Setup,
    folder: Path,
    stored: Sequence[Stored],
    work: Work,
    notes: Callable[[str], None] = lambda text: None,
) -> list[Stored]:
    """Return measured rounds with the run's signals, missing ones measured on kept updates.

    Args:
        run: The run.
        folder: Its folder.
        stored: Its measured rounds. Signals of other studies' attacks are left out.
        work: Device and progress.
        notes: Takes a sentence for the record on signals that were measured on kept updates.

    Raises:
        BadInput: Signals are missing and were measured on another kind of device.
        Damaged: The kept updates are not of the rounds and clients that were measured.
    """
    names = [signal.name for signal in run.signals]
    missing = [signal for signal in run.signals if signal.name not in stored[0].measured.signals]
    more: Sequence[Mapping[str, Tensor]] = [{}] * len(stored)
    if missing and run.study.audit.keep == "full":
        if measured_on(stored) != work.device.type:
            raise BadInput(
                f"{missing[0].name} must be measured on the kind of device that {folder} was: "
                f"give {option('device')} {measured_on(stored)}"
            )
        more = [one.signals for one in measured_of_kept(run, folder, stored, missing, work)]
        notes(
            f"The last digits of {', '.join(signal.name for signal in missing)} of seed "
            f"{run.seed}: they were measured on kept updates, which are rounded to 16 bits."
        )
    found = []
    for old, new in zip(stored, more, strict=True):
        signals = {**old.measured.signals, **new}
        kept = {name: signals[name] for name in signals if name in names}
        found.append(Stored(replace(old.measured, signals=kept), old.notes))
    return found


def measured_of_kept(
    run: Setup, folder: Path, stored: Sequence[Stored], signals: Sequence[Signal], work: Work
) -> list[MeasuredRound]:
    """Measure signals on the updates that a run kept.

    Args:
        run: The run.
        folder: Its folder.
        stored: Its measured rounds.
        signals: Signals to measure.
        work: Device and progress.

    Raises:
        Damaged: The kept updates are not of the rounds and clients that were measured.
    """
    rounds = seen_from(read_rounds(folder, run.algorithm.architecture), run.view)
    phase, total = f"seed {run.seed}: new signals", len(stored)
    work.progress(phase, 0, total)
    more = []
    for round in rounds:
        if not set(run.deal.clients) >= {*round.asked, *round.stands_for}:
            raise Damaged(
                f"round {round.index} kept in {folder} is damaged: it has clients that the run has "
                "not; restore the folder from a copy, or run the study again"
            )
        more.append(measure_round(round, signals, run.deal.measured, device=work.device))
        work.progress(phase, len(more), total)
    if [(new.index, new.clients) for new in more] != [
        (old.measured.index, old.measured.clients) for old in stored
    ]:
        raise Damaged(
            f"the updates kept in {folder} are not of the rounds and clients that were measured; "
            "restore the folder from a copy, or run the study again"
        )
    return more


def disk_needed(setup: Setup) -> int:
    """About how many bytes a run will write.

    Raises:
        BadInput: The model has nothing to train.
    """
    initial = setup.algorithm.architecture.initial(0)
    if not initial.params:
        raise BadInput(
            f"model {initial.architecture.name!r} has no trainable parameters; give one that "
            "clients train"
        )
    return estimated_bytes(
        keep=setup.study.audit.keep,
        rounds=len(setup.measured_rounds),
        clients=len(setup.deal.clients),
        samples=len(setup.deal.measured),
        signals=len(setup.signals),
        parameters=len(flat(initial.params)),
    )


_RESULT_BYTES = 17_000
"""Bytes of a record for one attack on one target and seed: the 39 of the committed record
fedmia-mnist (13 attacks, three seeds) take 675,000."""

_PAGE_BYTES = 1_000_000
"""Bytes of a report for its scripts and styles."""


def results_needed(setups: Sequence[Setup]) -> int:
    """About how many bytes the results of a study will take: record, report and scores.

    Args:
        setups: The study's runs, without shadow and reference federations.
    """
    total = _PAGE_BYTES
    for one in setups:
        targets = len(one.study.audit.targets)
        scores = 8 * len(one.deal.measured) * (len(one.attacks) + 2)
        total += targets * (scores + 2 * _RESULT_BYTES * len(one.attacks))
    return total


def observe(setup: Setup, folder: Path, work: Work) -> list[Stored]:
    """Trains and measures one run, or what is left of it, and returns all measured rounds.

    Args:
        setup: The run.
        folder: Its own; a run that was stopped goes on from its last whole round.
        work: How.

    Raises:
        BadInput: The folder belongs to another run, or the disk is full.
        Damaged: A file in the folder cannot be read.
    """
    own_folder(folder.parent, folder.name)
    rounds, key = setup.study.training.rounds, setup.key(work.device.type)
    stream = setup.simulate(work.engine, work.device, folder / "checkpoint.safetensors")
    for one in setup.extensions:
        stream = one.watch(stream, setup, folder, key, work.progress)
    told = keeping_usage(stream, setup.deal.clients, folder, key)
    given = evaluation_split(setup)
    phase = f"seed {setup.seed}: training rounds"
    done = 0
    work.progress(phase, done, rounds)
    with _measuring(setup, folder, work) as measuring:
        for round in seen_from(told, setup.view):
            if round.index in setup.measured_rounds:
                _measure(setup, round, folder, given, work.device, measuring)
            done = round.index
            del round  # Nobody needs its models while the next ones are trained.
            work.progress(phase, done, rounds)
    if not done:  # all of them in an earlier start
        work.progress(phase, 0, 0)
    return stored_rounds(setup, folder)


def stored_rounds(setup: Setup, folder: Path) -> list[Stored]:
    """All measured rounds of a run from its folder, after checking that they are this run's.

    Raises:
        BadInput: Rounds are missing.
        Damaged: A file cannot be read, is another run's, or says what this run cannot.
    """
    stored = stored_in(folder)
    found = tuple(one.measured.index for one in stored)
    if found != setup.measured_rounds:
        raise BadInput(
            f"{folder} holds the measured rounds {list(found)} instead of "
            f"{list(setup.measured_rounds)}; let the study end if it has not, else delete the "
            "folder and run it again"
        )
    key = setup.key(measured_on(stored))
    for one in stored:
        what = f"the measured round {one.measured.index} in {folder}"
        if one.notes.get("run") != key:
            raise Damaged(
                f"{what} is of another run; restore it from a copy, or delete the folder and run "
                "the study again"
            )
        fault = fault_in(one.measured, setup.deal.clients, len(setup.deal.measured))
        is_last = one.measured.index == setup.measured_rounds[-1]
        if not fault and not counts_fit(setup, one.notes, means=is_last):
            fault = "its counts of correct predictions are missing or cannot be"
        if fault:
            raise Damaged(
                f"{what} is damaged: {fault}; restore it from a copy, or delete the folder and run "
                "the study again"
            )
    return stored


def measured_on(stored: Sequence[Stored]) -> str:
    """The kind of device that the rounds were measured on."""
    return stored[0].notes.get("device", "cpu")


@contextmanager
def _measuring(setup: Setup, folder: Path, work: Work) -> Iterator[Measuring]:
    """The measuring of audited samples in a round, wherever that is done."""
    samples = setup.deal.measured
    # All rounds of a folder have the same signals: those that attacks added later need besides are
    # measured on the updates that it keeps.
    there = measured_names(folder)
    signals = tuple(one for one in setup.signals if not there or one.name in there)
    if work.measuring is not None:
        with measuring_on(work.measuring, signals, samples, count=work.workers) as measuring:
            yield measuring
        return
    yield partial(
        measure_round,
        signals=signals,
        samples=samples,
        workers=work.workers,
        device=work.device,
    )


def _measure(
    setup: Setup,
    round: Round,
    folder: Path,
    given: EvaluationSplit,
    device: torch.device,
    measuring: Measuring,
) -> None:
    measured = measuring(round)
    write_round(folder, round, setup.study.audit.keep)
    key = setup.key(device.type)
    notes = {"complete": str(round.complete), "run": key}
    if device.type != "cpu":
        notes["device"] = device.type
    is_last = round.index == setup.measured_rounds[-1]
    notes |= accuracy_notes(setup, given, round, device, means=is_last)
    if isinstance(setup.algorithm, ChoosesModels):
        from fedaudit.evaluation.clusters import cluster_notes

        notes |= cluster_notes(setup, round, device)
    for one in setup.extensions:
        one.measure(setup, round, folder, notes, device)
    if is_last:
        draw(setup, round, folder)
    # Last, because a round counts as measured once this file is there.
    write_measured(folder, measured, notes)
