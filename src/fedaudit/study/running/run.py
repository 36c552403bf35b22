"""Run of a study: train and measure each seed, fit attacks, and write the record."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch

from fedaudit.core.arguments import Condition, checked
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput
from fedaudit.core.files import delete_partial_files, own_folder
from fedaudit.core.importing import refusing_exits
from fedaudit.core.progress import Progress, quiet, size_of
from fedaudit.engines.base import Counted
from fedaudit.engines.local import local_engine, refuse_import_by_worker
from fedaudit.observe.measurements import Stored
from fedaudit.observe.tensors import write_tensors
from fedaudit.plan.algorithm import shadow_cost
from fedaudit.plan.parts import Extension, FitContext, MeasuredRun, Setup, Work
from fedaudit.plan.sections import Study
from fedaudit.results.text import plain
from fedaudit.study.build import resolve, run_of
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import (
    additions_note,
    additions_or_raise,
    as_begun,
    claim,
    claim_record,
)
from fedaudit.study.running.observing import (
    disk_needed,
    observe,
    refuse_unmeasured,
    results_needed,
    stored_rounds,
    with_all_signals,
)
from fedaudit.study.running.pool import assign_folder, is_measured, locked, write_run_folders
from fedaudit.study.running.preflight import check_run, detectable_leaks, refuse_place

if TYPE_CHECKING:
    from fedaudit.results.record import Record

_LISTED = 20
"""Largest number of clients whose sizes are listed one by one."""

SHADOW = "shadow"
"""Folder, within a study's folder, of shadow and reference federations outside a pool."""


_StudyObject = Annotated[
    Study,
    Condition(
        "a study, as fedaudit.read_study(path) returns it", lambda study: isinstance(study, Study)
    ),
]


@checked
@refusing_exits()
def run_study(
    study: _StudyObject,
    out: Path | str,
    *,
    pool: Path | None = None,
    data_dir: Path | None = None,
    workers: int = 1,
    device: torch.device = CPU,
    engine: Counted | None = None,
    progress: Progress = quiet,
    log: Callable[[str], None] = lambda text: None,
) -> "Record":
    """Run a study and write its record.

    Unusable settings and data are refused before training. A stopped study resumes if it is run
    again with the same folder, and ends with the same content hash. If seeds, attacks or figures
    were added since, only these are trained and computed; see
    :mod:`fedaudit.study.running.folder`.

    Args:
        study: The study; :func:`fedaudit.read_study` reads one from a file.
        out: Folder of the record, and of the runs without a pool.
        pool: Folder of runs that several studies share; each run is trained once.
        data_dir: Folder of data sets; by default that of the variable ``FEDAUDIT_DATA``.
        workers: Number of training processes; 0 for one per core, or for one with a GPU. Results do
            not depend on it.
        device: Device that trains clients and computes signals. A study must be finished on the
            kind of device on which it was started, because last digits differ between kinds.
        engine: Engine that trains clients, in place of local processes.
        progress: Called with (phase, done, total) during training, figures and controls.
        log: Called with lines of text for the user.

    Raises:
        FedauditError: Settings, data, the folder or the engine cannot be used.

    Examples:
        >>> from pathlib import Path
        >>> import fedaudit as fa
        >>> study = fa.study_from(
        ...     {"name": "small", "data": {"name": "digits"}, "training": {"rounds": 2}}
        ... )
        >>> fa.run_study(study, Path("runs/small")).name
        'small'
    """
    refuse_import_by_worker()
    out = Path(out)
    clock = Clock()
    refuse_place(device, workers, engine)
    parts = resolve(as_begun(study, out))
    study = parts.study
    if study.pretraining is not None:
        from fedaudit.study.running.pretraining import pretrained_for

        pretrained_for(parts, data_dir, device=device, progress=progress, log=log)
    runs = [run_of(parts, seed, data_dir) for seed in study.seeds]
    for run in runs:
        check_run(run, device)
    work = _work(engine, workers, study.partition.clients, device, progress)
    additions_or_raise(out, study)
    shadows = [federation for run in runs for federation in run.additional_federations]
    runs = [assign_folder(run, out, pool, device.type) for run in runs]
    folder = own_folder(out, SHADOW) if shadows else out / SHADOW
    shadows = [assign_folder(shadow, folder, pool, device.type) for shadow in shadows]
    all_runs = [*runs, *shadows]
    refuse_unmeasured(all_runs)
    notes = additions_note(claim(out, study))
    _announce(all_runs, out, log)
    write_run_folders(all_runs, out)
    for folder in {out, *(run.folder for run in all_runs)}:
        delete_partial_files(folder, before=clock.start_time)
    measured = [
        MeasuredRun(run, _observe_and_measure(run, work, log, notes.append)) for run in runs
    ]
    # Each extension is finished for all runs before the next, so that progress shows one at a time.
    kinds = dict.fromkeys(type(extension) for run in runs for extension in run.extensions)
    folders = {shadow.seed: shadow.folder for shadow in shadows}
    for kind in kinds:
        measured = [
            done._replace(run=_fit_extension(done.run, kind, folders, work, log))
            for done in measured
        ]
    # Imported only now, so that training starts without waiting for the modules of figures.
    from fedaudit.study.running.record import conclude

    check = partial(claim_record, out, study)
    return conclude(measured, out, work, clock, log, notes=notes, check=check)


def _work(
    engine: Counted | None, workers: int, clients: int, device: torch.device, progress: Progress
) -> Work:
    if engine is not None:
        return Work(engine, engine.count, device, progress, measuring=engine)
    limit = workers or (1 if device.type != "cpu" else os.cpu_count() or 1)
    count = min(limit, clients)
    return Work(local_engine(count), count, device, progress)


def _observe_and_measure(
    run: Setup,
    work: Work,
    log: Callable[[str], None],
    notes: Callable[[str], None] = lambda text: None,
) -> list[Stored]:
    with locked(run.folder, log):
        if is_measured(run) and run.folder.name != f"seed-{run.seed}":
            log(f"seed {run.seed}: trained and measured before, in {run.folder}")
            stored = stored_rounds(run)
        else:
            write_tensors(run.deal.tensors(), run.folder / "audit.safetensors", private=True)
            stored = observe(run, work)
        return with_all_signals(run, stored, work, notes)


def _fit_extension(
    run: Setup,
    kind: type[Extension],
    folders: Mapping[int, Path],
    work: Work,
    log: Callable[[str], None],
) -> Setup:
    """Fit an extension of a run on the federations that it trains."""

    def measure(
        federation: Setup, phase: str, construct: Callable[[], Setup] | None
    ) -> list[Stored]:
        folder = folders[federation.seed]
        log(f"seed {run.seed}: {phase}, in {folder}")
        federation = construct() if construct else federation
        return _observe_and_measure(replace(federation, folder=folder), work, log)

    extension = run.extension(kind)
    if extension is None:
        return run
    return extension.fit(run, FitContext(measure, work.progress))


def _announce(runs: Sequence[Setup], out: Path, log: Callable[[str], None]) -> None:
    first = runs[0]
    sizes = _describe_sizes(first)
    place = first.folder.parent
    missing = [run for run in runs if not is_measured(run)]
    need = sum(disk_needed(run) for run in missing)
    results = results_needed([run for run in runs if not run.is_shadow])
    folder = place if place.is_dir() else out
    free = shutil.disk_usage(folder).free
    for line in first.dataset.statement:
        # Names in a table may contain control characters.
        log(plain(line))
    log(f"clients' sizes (seed {first.seed}): {sizes}")
    log(f"adversary: {first.view.description}")
    for line in detectable_leaks(first):
        log(line)
    log(f"disk: about {size_of(need)} in {place}, {size_of(free)} free")
    log(f"results: about {size_of(results)} in {out}")
    for cost in (shadow_cost(first), *(extension.cost() for extension in first.extensions)):
        if cost and missing:
            log(cost)
    if first.ignores_people:
        log(
            "several audited samples are of one person, and intervals will treat them as "
            'independent; audit people instead with audit.unit = "person"'
        )
    for name, reason in first.refused.items():
        log(f"not possible in this view: {name} ({reason})")
    _refuse_full_disk(folder, need, out, results)


def _refuse_full_disk(place: Path, need: int, out: Path, results: int) -> None:
    """Raise if the stored runs or the results of a study do not fit on their disks."""
    if place.stat().st_dev == out.stat().st_dev:
        need, results = need + results, 0
    for folder, bytes_, remedy in (
        (place, need, 'choose another folder, or audit.keep = "signals"'),
        (out, results, "choose another folder for the results, or free some space"),
    ):
        free = shutil.disk_usage(folder).free
        if bytes_ > free:
            raise BadInput(
                f"this study needs about {size_of(bytes_)} and {folder} has {size_of(free)} free; "
                f"{remedy}"
            )


def _describe_sizes(run: Setup) -> str:
    """Return the numbers of samples of all clients, or their range for many clients."""
    sizes, names = run.deal.sizes, run.names
    if len(sizes) > _LISTED:
        return f"{min(sizes.values())} to {max(sizes.values())} samples, {len(sizes)} clients"
    return ", ".join(
        f"{plain(names.get(client, str(client)))}: {size}" for client, size in sizes.items()
    )
