"""Signals of a run, compared with the updates that it kept."""

from collections.abc import Iterator
from pathlib import Path

import torch

from fedaudit.core.devices import CPU
from fedaudit.core.importing import code_named_in, refusing_exits
from fedaudit.observe.measurements import MeasuredRound, stored_in
from fedaudit.study.running.folder import STUDY_FILE, recorded_study
from fedaudit.study.running.kept_signals import measured_of_kept
from fedaudit.study.running.observing import measured_on, stored_rounds
from fedaudit.study.running.pool import run_folder
from fedaudit.study.running.reattack import refuse_other_data
from fedaudit.study.setup.build import setup
from fedaudit.study.setup.parts import Work

_MOST_APART, _MOST_APART_ONCE = 0.02, 0.1
"""Root mean square and largest difference, in standard deviations over the samples.

Updates are kept in 16 bits: on a small network that moves signals by 1e-4 on average and by 5e-4
at most. A change that moves an AUC is larger."""


def unmeasurable(recording: Path) -> str:
    """Return why signals of a study's run cannot be measured again; empty if they can."""
    study = recorded_study(recording)
    if study.audit.keep != "full":
        return 'the run did not keep its updates (audit.keep = "full")'
    devices = {
        measured_on(stored)
        for seed in study.seeds
        if (stored := stored_in(run_folder(recording, seed)))
    }
    # Digits of signals differ between kinds of devices, on large networks by more than rounding.
    other = sorted(devices - {CPU.type})
    return f"they were measured on {other[0]}, and are measured again on the CPU" if other else ""


def contradicting_signals(
    recording: Path, data_dir: Path | None = None, *, trust: bool = False
) -> list[str]:
    """Measure the signals of a run again and name those that its kept updates contradict.

    Args:
        recording: The folder of a study.
        data_dir: Folder with data sets.
        trust: Import code that the recording's settings name.

    Returns:
        One sentence for each run and round with such signals; empty if :func:`unmeasurable`.

    Raises:
        BadInput: No study in the folder, or code that is not trusted.
        Damaged: The recording is incomplete or altered.
    """
    if unmeasurable(recording):
        return []
    named = code_named_in(recording / STUDY_FILE, trusted=trust, folder=Path.cwd())
    with named, refusing_exits():
        return list(_contradicting(recording, data_dir))


def _contradicting(recording: Path, data_dir: Path | None) -> Iterator[str]:
    study = recorded_study(recording)
    for seed in study.seeds:
        run, folder = setup(study, seed, data_dir), run_folder(recording, seed)
        refuse_other_data(run, folder)
        stored = stored_rounds(run, folder)
        again = measured_of_kept(run, folder, stored, run.signals, Work())
        for old, new in zip(stored, again, strict=True):
            if odd := sorted(_differing(old.measured, new)):
                yield (
                    f"round {new.index} of seed {seed} has other signals than its kept updates "
                    f"give: {', '.join(odd)}"
                )


def _differing(old: MeasuredRound, new: MeasuredRound) -> Iterator[str]:
    """Yield names of what differs between a stored round and the same measured again."""
    for name, values in new.signals.items():
        apart = (old.signals[name] - values).double()
        spread = values.double().std(1, correction=0)
        # Rounding of a signal that is the same for all samples.
        spread = spread + 1e-5 * values.double().abs().amax(1)
        rms = apart.square().mean(1).sqrt()
        worst = apart.abs().amax(1)
        if bool((rms > _MOST_APART * spread).any() or (worst > _MOST_APART_ONCE * spread).any()):
            yield name
    same_base = [one.bases[:, None] == one.bases[None, :] for one in (old, new)]
    if not torch.equal(*same_base):
        yield "which clients were sent the same model"
