"""Signals of a run's folder: which were measured, and others measured on kept updates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, option
from fedaudit.observe.kept_files import read_rounds
from fedaudit.observe.measurements import MeasuredRound, Stored, measured_names
from fedaudit.observe.views import seen_from
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round
from fedaudit.study.running.observing import measured_on
from fedaudit.study.setup.parts import Setup, Work


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
    return lacking + [name for one in run.extensions for name in one.unmeasured(run, folder)]


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
