"""Run of a study: train and measure each seed, fit attacks, and write the record."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch

from fedaudit.core.arguments import Condition, check_arguments
from fedaudit.core.devices import CPU
from fedaudit.core.files import create_subfolder, delete_partial_files
from fedaudit.core.importing import convert_exits_to_errors
from fedaudit.core.progress import Progress, announce_phase, ignore_progress
from fedaudit.engines.base import CountedEngine
from fedaudit.engines.local import local_engine, raise_if_import_by_worker
from fedaudit.evaluation.controls import announce_evaluation
from fedaudit.evaluation.final_models import raise_if_no_server_model, write_models
from fedaudit.observe.measurements import StoredRound
from fedaudit.observe.tensors import write_tensors
from fedaudit.plan.parts import Extension, FitContext, MeasuredRun, Resources, Setup
from fedaudit.plan.sections import Study
from fedaudit.study.build import resolve, run_of
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import (
    additions_note,
    additions_or_raise,
    mark_recorded,
    store_study,
    with_stored_source_samples,
)
from fedaudit.study.running.observing import (
    observe,
    raise_if_retraining_needed,
    stored_rounds,
    with_all_signals,
)
from fedaudit.study.running.planning import plan_lines, raise_if_full_disk
from fedaudit.study.running.pool import (
    ADDITIONAL_FOLDER,
    assign_folder,
    is_measured,
    lock_run,
    write_run_folders,
)
from fedaudit.study.running.preflight import check_run, raise_if_unsupported_device

if TYPE_CHECKING:
    from fedaudit.results.record import Record


_StudyObject = Annotated[
    Study,
    Condition("a study such as fedaudit.read_study(path)", lambda study: isinstance(study, Study)),
]


@check_arguments
@convert_exits_to_errors()
def run_study(
    study: _StudyObject,
    out: Path | str,
    *,
    pool: Path | None = None,
    data_dir: Path | None = None,
    workers: int = 1,
    device: torch.device = CPU,
    engine: CountedEngine | None = None,
    keep_model: bool = False,
    progress: Progress = ignore_progress,
    log: Callable[[str], None] = lambda text: None,
) -> "Record":
    """Run a study and write its record.

    Settings and data are checked before training. A stopped study resumes if it is run again with
    the same folder, and its record has the same content hash as without the stop. If seeds,
    attacks or metrics were added to the study, only these additions are trained and computed (see
    :mod:`fedaudit.study.running.folder`).

    Args:
        study: The study; :func:`fedaudit.read_study` reads a study from a file.
        out: Folder of the record, and of the runs if there is no pool.
        pool: Folder of runs that several studies share; each run is trained once.
        data_dir: Folder of data sets; by default, the folder in the environment variable
            ``FEDAUDIT_DATA``.
        workers: Number of training processes, which does not change results. With 0, one process
            per core, or one process if the device is a GPU.
        device: Device that trains clients and computes signals. A stopped study must resume on the
            same type of device, because CPUs and GPUs differ in the last digits of results.
        engine: Engine that trains clients, instead of local processes.
        keep_model: Whether to write the model after the last round next to the record, as
            ``model.safetensors``. With several seeds or models, there is a file for each.
        progress: Called with (phase, done, total) during training, estimates and controls.
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
    raise_if_import_by_worker()
    out = Path(out)
    clock = Clock()
    raise_if_unsupported_device(device, workers, engine)
    parts = resolve(with_stored_source_samples(study, out))
    study = parts.study
    if study.pretraining is not None:
        from fedaudit.study.running.pretraining import pretrain

        pretrain(parts, data_dir, device=device, progress=progress, log=log)
    runs = [run_of(parts, seed, data_dir) for seed in study.seeds]
    for run in runs:
        check_run(run, device)
    if keep_model:
        raise_if_no_server_model(runs[0])
    resources = _resources(engine, workers, study.partition.clients, device, progress)
    # Raise before any folder is created; the additions are returned again by store_study.
    additions_or_raise(out, study)
    additional_federations = [
        federation for run in runs for federation in run.additional_federations
    ]
    runs = [assign_folder(run, out, pool, device.type) for run in runs]
    if additional_federations:
        folder = create_subfolder(out, ADDITIONAL_FOLDER)
        additional_federations = [
            assign_folder(federation, folder, pool, device.type)
            for federation in additional_federations
        ]
    all_runs = [*runs, *additional_federations]
    raise_if_retraining_needed(all_runs)
    additions = store_study(out, study)
    notes = additions_note(additions)
    for line in plan_lines(all_runs, out):
        log(line)
    raise_if_full_disk(all_runs, out)
    write_run_folders(all_runs, out)
    for folder in {out, *(run.folder for run in all_runs)}:
        delete_partial_files(folder, before=clock.start_time)
    for run in all_runs:
        if not is_measured(run):
            announce_phase(progress, f"seed {run.seed}: training rounds", run.study.training.rounds)
    announce_evaluation(runs, progress)
    measured_runs = [
        MeasuredRun(run, _observe_and_measure(run, resources, log, notes.append)) for run in runs
    ]
    folders = {federation.seed: federation.folder for federation in additional_federations}
    # An extension is an optional section of the study, such as reference federations. It may train
    # auxiliary federations and fit attacks with them. Each extension is fitted in all runs before
    # the next one, so that the progress of one extension is shown at a time.
    for kind in dict.fromkeys(type(extension) for run in runs for extension in run.extensions):
        measured_runs = [
            MeasuredRun(_fit_extension(run, kind, folders, resources, log), rounds)
            for run, rounds in measured_runs
        ]
    # Imported here, so that training starts before the modules of the evaluation are loaded.
    from fedaudit.study.running.record import evaluate_and_write

    record = evaluate_and_write(
        measured_runs,
        out,
        resources,
        clock,
        log,
        notes=notes,
        before_writing=partial(mark_recorded, out, study),
    )
    if keep_model:
        for path in write_models([run for run, _ in measured_runs], out):
            log(f"model: {path}")
    return record


def _resources(
    engine: CountedEngine | None,
    workers: int,
    clients: int,
    device: torch.device,
    progress: Progress,
) -> Resources:
    if engine is not None:
        return Resources(engine, engine.count, device, progress, measuring_engine=engine)
    default = 1 if device.type != "cpu" else os.cpu_count() or 1
    count = min(workers or default, clients)
    return Resources(local_engine(count), count, device, progress)


def _observe_and_measure(
    run: Setup,
    resources: Resources,
    log: Callable[[str], None],
    notes: Callable[[str], None] = lambda text: None,
) -> list[StoredRound]:
    with lock_run(run.folder, log):
        if is_measured(run) and run.folder.name != f"seed-{run.seed}":
            log(f"seed {run.seed}: already trained and measured in {run.folder}")
            stored = stored_rounds(run)
        else:
            write_tensors(
                run.assignment.tensors(), run.folder / "audit.safetensors", owner_only=True
            )
            stored = observe(run, resources)
        return with_all_signals(run, stored, resources, notes)


def _fit_extension(
    run: Setup,
    kind: type[Extension],
    folders: Mapping[int, Path],
    resources: Resources,
    log: Callable[[str], None],
) -> Setup:
    """Train the auxiliary federations that an extension needs, then fit it."""

    def measure(
        federation: Setup, phase: str, construct: Callable[[], Setup] | None
    ) -> list[StoredRound]:
        folder = folders[federation.seed]
        log(f"seed {run.seed}: {phase}, in {folder}")
        federation = construct() if construct else federation
        return _observe_and_measure(replace(federation, folder=folder), resources, log)

    extension = run.extension(kind)
    if extension is None:
        return run
    return extension.fit(run, FitContext(measure, resources.progress))
