"""A whole study: every seed's run trained and measured, attacks fitted, and the record written."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch

from fedaudit.core.arguments import Condition, checked
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput
from fedaudit.core.files import own_folder, sweep
from fedaudit.core.importing import refusing_exits
from fedaudit.core.progress import Progress, quiet, size_of
from fedaudit.core.values import ClientId
from fedaudit.engines.base import Counted
from fedaudit.engines.local import local_engine
from fedaudit.observe.measurements import Stored
from fedaudit.observe.tensors import write_tensors
from fedaudit.plan.algorithm import shadow_cost
from fedaudit.plan.parts import Extension, Means, Setup, Work
from fedaudit.plan.sections import Study
from fedaudit.study.build import resolve, run_of
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import (
    as_begun,
    claim,
    claim_record,
    growth_notes,
    refuse_other_study,
)
from fedaudit.study.running.observing import (
    disk_needed,
    observe,
    refuse_unmeasured,
    results_needed,
    stored_rounds,
    with_all_signals,
)
from fedaudit.study.running.pool import is_measured, locked, place_of, write_run_places
from fedaudit.study.running.preflight import check_run, detectable_leaks, refuse_place

if TYPE_CHECKING:
    from fedaudit.results.record import Record

_LISTED = 20
"""Of more clients than these the sizes are not listed one by one."""

SHADOW = "shadow"
"""Folder, within a study's, of shadow and reference federations that are in no pool."""


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
    """Carries a study out and writes its record.

    Everything that cannot work is refused before anything is trained. A study that was stopped
    at any moment goes on where it was when it is run again with the same folder, and ends with
    the same content hash. So does one that has grown since, as :mod:`fedaudit.study.running.folder`
    says: only what was added is trained or worked out.

    Args:
        study: Its settings.
        out: Folder for the record, and for the runs where there is no pool.
        pool: Folder of runs that several studies share; each is trained once.
        data_dir: Folder with data sets; by default what ``FEDAUDIT_DATA`` says.
        workers: Processes to train in; 0 for one a core, or for the one that a GPU takes. Changes
            no result.
        device: Where clients train and samples are measured. Another kind changes last digits,
            so that a study is finished on the kind that it was begun on.
        progress: Called with (phase, done, total) as training, figures and controls go on.
        log: Takes lines of text for the user.

    Raises:
        FedauditError: Settings, data, the folder or the engine are unusable.

    Examples:
        >>> from pathlib import Path
        >>> import fedaudit as fa
        >>> study = fa.study_from(
        ...     {"name": "small", "data": {"name": "digits"}, "training": {"rounds": 2}}
        ... )
        >>> run_study(study, Path("runs/small")).name
        'small'
    """
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
    refuse_other_study(out, study)
    shadows = [own for run in runs for own in run.own_federations]
    places = {run.seed: place_of(run, out, pool, device.type) for run in runs}
    apart = own_folder(out, SHADOW) if shadows else out / SHADOW
    places |= {shadow.seed: place_of(shadow, apart, pool, device.type) for shadow in shadows}
    refuse_unmeasured([(run, places[run.seed]) for run in (*runs, *shadows)])
    notes = growth_notes(claim(out, study))
    _announce([*runs, *shadows], places, out, log)
    write_run_places(places, out)
    for folder in {out, *places.values()}:
        sweep(folder, before=clock.at)
    stored = [_observed(run, places[run.seed], work, log, notes.append) for run in runs]
    # One extension of all runs after another: what a user waits for is said in that order.
    for kind in dict.fromkeys(type(one) for run in runs for one in run.extensions):
        runs = [_fitted(run, kind, places, work, log) for run in runs]
    # What makes figures is loaded when they are due, so that training need not wait for it.
    from fedaudit.study.running.record import conclude

    return conclude(
        runs,
        stored,
        out,
        work,
        clock,
        log,
        places=places,
        notes=notes,
        check=lambda: claim_record(out, study),
    )


def _work(
    engine: Counted | None, workers: int, clients: int, device: torch.device, progress: Progress
) -> Work:
    if engine is not None:
        return Work(engine, engine.count, device, progress, measuring=engine)
    most = workers or (1 if device.type != "cpu" else os.cpu_count() or 1)
    count = min(most, clients)
    return Work(local_engine(count), count, device, progress)


def _observed(
    run: Setup,
    place: Path,
    work: Work,
    log: Callable[[str], None],
    notes: Callable[[str], None] = lambda text: None,
) -> list[Stored]:
    with locked(place, log):
        if is_measured(run, place) and place.name != f"seed-{run.seed}":
            log(f"seed {run.seed}: trained and measured before, in {place}")
            stored = stored_rounds(run, place)
        else:
            write_tensors(run.deal.tensors(), place / "audit.safetensors", private=True)
            stored = observe(run, place, work)
        return with_all_signals(run, place, stored, work, notes)


def _fitted(
    run: Setup,
    kind: type[Extension],
    places: Mapping[int, Path],
    work: Work,
    log: Callable[[str], None],
) -> Setup:
    """The run, with what an extension of it measures in federations beside it."""

    def measured(one: Setup, what: str, begun: Callable[[], Setup] | None) -> list[Stored]:
        place = places[one.seed]
        log(f"seed {run.seed}: {what}, in {place}")
        return _observed(begun() if begun else one, place, work, log)

    own = run.extension(kind)
    return run if own is None else own.fit(run, Means(places[run.seed], measured, work.progress))


def _announce(
    runs: Sequence[Setup], places: Mapping[int, Path], out: Path, log: Callable[[str], None]
) -> None:
    first = runs[0]
    sizes = _sizes(first.deal.sizes)
    place = places[first.seed].parent
    missing = [run for run in runs if not is_measured(run, places[run.seed])]
    need = sum(disk_needed(run) for run in missing)
    results = results_needed([run for run in runs if not run.is_shadow])
    kept_in = place if place.is_dir() else out
    free = shutil.disk_usage(kept_in).free
    log(f"clients' sizes (seed {first.seed}): {sizes}")
    log(f"adversary: {first.view.description}")
    for line in detectable_leaks(first):
        log(line)
    log(f"disk: about {size_of(need)} in {place}, {size_of(free)} free")
    log(f"results: about {size_of(results)} in {out}")
    shadows = shadow_cost(
        first.study, first.algorithm, sum(first.deal.sizes.values()), first.measured_rounds
    )
    if shadows and missing:
        log(shadows)
    for cost in (one.cost() for one in first.extensions if missing):
        if cost:
            log(cost)
    if first.ignores_people:
        log(
            "several audited samples are of one person, and intervals will take them as "
            'independent; audit people instead with audit.unit = "person"'
        )
    for name, reason in first.refused.items():
        log(f"not possible in this view: {name} ({reason})")
    _refuse_full_disk(kept_in, need, out, results)


def _refuse_full_disk(place: Path, need: int, out: Path, results: int) -> None:
    """Raise if what a study keeps of its runs and its results do not fit on their disks."""
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


def _sizes(of: Mapping[ClientId, int]) -> str:
    """Each client's number of samples, or of many clients the range."""
    if len(of) > _LISTED:
        return f"{min(of.values())} to {max(of.values())} samples, {len(of)} clients"
    return ", ".join(f"{client}: {size}" for client, size in of.items())
