"""Size, cost and power of a study before it runs."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput
from fedaudit.core.progress import format_bytes, format_duration, ignore_progress
from fedaudit.engines.local import local_engine
from fedaudit.evaluation.controls import SECONDS_PER_STEP, number_of_controls, twin_steps
from fedaudit.plan.algorithm import shadow_cost
from fedaudit.plan.parts import Resources, Setup
from fedaudit.plan.sections import Study
from fedaudit.results.text import clean_text
from fedaudit.study.build import resolve, run_of
from fedaudit.study.running.observing import disk_needed, observe, results_needed
from fedaudit.study.running.pool import ADDITIONAL_FOLDER, find_folder, is_measured
from fedaudit.study.running.preflight import check_run, detectable_leaks

_MAX_LISTED_CLIENTS = 20
"""Maximum number of clients whose numbers of samples are listed individually."""
_PROBE_SECONDS = 20.0
"""Duration after which no further round is timed."""


@dataclass(frozen=True)
class StudyPlan:
    """Size, cost and power of a study.

    Attributes:
        name: Name of the study.
        seeds: Number of seeds.
        audited: Number of audited samples of the first seed.
        attacks: Number of attacks that run.
        federations: Number of federations to train, including shadow and reference federations.
        trained: Number of them that are already trained and measured.
        rounds: Number of rounds that are still to be trained.
        seconds: Estimated time of training, measurements, attacks and controls on this machine.
        workers: Number of processes for which the time was estimated.
        lines: The plan as text: sizes, adversary, smallest detectable leak, disk space and costs.

    Examples:
        >>> import fedaudit as fa
        >>> study = fa.study_from({"name": "small", "training": {"rounds": 2}})
        >>> plan = fa.plan_study(study, "runs/small")
        >>> plan.federations, plan.trained
        (1, 0)
    """

    name: str
    seeds: int
    audited: int
    attacks: int
    federations: int
    trained: int
    rounds: int
    seconds: float
    workers: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        processes = "1 process" if self.workers == 1 else f"{self.workers} processes"
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return "\n".join(
            [
                f"study: {clean_text(self.name)}, {seeds}, {self.audited:,} audited samples, "
                f"{self.attacks} attacks",
                f"training: {self.rounds:,} rounds; {self.trained} of {self.federations} "
                "federations are already trained",
                f"time: about {format_duration(self.seconds)} with {processes} on this machine",
                *self.lines,
            ]
        )


def plan_study(
    study: Study,
    out: Path | str,
    *,
    pool: Path | None = None,
    data_dir: Path | None = None,
    workers: int = 1,
    device: torch.device = CPU,
) -> StudyPlan:
    """Return what a study will cost and the smallest leak that it can detect, without running it.

    The time is estimated from the first rounds, which are trained and measured in a temporary
    folder. Nothing is written to the study's folder or the pool. Attacks and controls take about
    0.2 s each with a few hundred samples, and longer with more.

    Args:
        study: The study; :func:`fedaudit.read_study` reads a study from a file.
        out: Folder that the study will use.
        pool: Folder of runs that studies share.
        data_dir: Folder of data sets; by default, the folder in the environment variable
            ``FEDAUDIT_DATA``.
        workers: Number of training processes, at least 1.
        device: Device that trains clients and computes signals.

    Raises:
        FedauditError: Settings or data cannot be used.

    Examples:
        >>> import fedaudit as fa
        >>> study = fa.study_from(
        ...     {"name": "small", "data": {"name": "digits"}, "training": {"rounds": 2}}
        ... )
        >>> fa.plan_study(study, "runs/small").rounds
        2
    """
    folder = Path(out)
    parts = resolve(study)
    runs = [run_of(parts, seed, data_dir) for seed in parts.study.seeds]
    for run in runs:
        check_run(run, device)
    additional = [federation for run in runs for federation in run.additional_federations]
    federations = [
        *(find_folder(run, folder, pool, device.type)[0] for run in runs),
        *(find_folder(run, folder / ADDITIONAL_FOLDER, pool, device.type)[0] for run in additional),
    ]
    pending = [run for run in federations if not is_measured(run)]
    count = max(1, min(workers, study.partition.clients))
    resources = Resources(local_engine(count), count, device, ignore_progress)
    first = pending[0] if pending else runs[0]
    needs_probe = bool(pending) or parts.study.figures.planted_leak
    pace = _probe(first, resources) if needs_probe else _Pace(0.0, 0.0, 0.0)
    seconds = sum(pace.seconds(run) for run in pending)
    return StudyPlan(
        name=study.name,
        seeds=len(runs),
        audited=len(runs[0].assignment.audit.samples),
        attacks=len(runs[0].attacks),
        federations=len(federations),
        trained=len(federations) - len(pending),
        rounds=sum(run.study.training.rounds for run in pending),
        seconds=seconds + sum(_evaluation_seconds(run, pace) for run in runs),
        workers=count,
        lines=tuple(plan_lines(federations, folder, with_rates=True)),
    )


class _ProbeEnded(Exception):
    """Ends the training of a probe."""


@dataclass(frozen=True)
class _Pace:
    """Seconds of one round, with and without measurements, and of the start of a run."""

    measured: float
    unmeasured: float
    start: float

    def seconds(self, run: Setup) -> float:
        """Return the estimated time of a run."""
        n_measured = len(run.measured_rounds)
        n_others = run.study.training.rounds - n_measured
        return self.start + n_measured * self.measured + n_others * self.unmeasured


def _probe(run: Setup, resources: Resources) -> _Pace:
    """Train and measure the first rounds in a temporary folder, and return the time of a round."""
    times: dict[bool, list[float]] = {True: [], False: []}
    kinds = {index in run.measured_rounds for index in range(1, run.study.training.rounds + 1)}
    start = last = perf_counter()

    def observe_time(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = perf_counter()
        if done:
            times[done in run.measured_rounds].append(now - last)
        last = now
        has_all = all(times[kind] for kind in kinds) and len(times[1 in run.measured_rounds]) > 1
        if done and (has_all or now - start > _PROBE_SECONDS):
            raise _ProbeEnded

    with TemporaryDirectory(prefix="fedaudit-") as folder, suppress(_ProbeEnded):
        timed = Resources(resources.engine, resources.workers, resources.device, observe_time)
        observe(replace(run, folder=Path(folder)), timed)
    # The first round also starts processes and compiles kernels.
    is_first_measured = 1 in run.measured_rounds
    first, *others = times[is_first_measured]
    later = {kind: fmean(values) for kind, values in times.items() if values}
    later[is_first_measured] = fmean(others or [first])
    known = fmean(later.values())
    start = max(0.0, first - later[is_first_measured])
    return _Pace(later.get(True, known), later.get(False, known), start)


def _evaluation_seconds(run: Setup, pace: _Pace) -> float:
    """Return the estimated time of attacks and controls of a run."""
    targets = len(run.study.audit.targets)
    steps = targets * len(run.membership_attacks) + len(run.source_attacks)
    seconds = SECONDS_PER_STEP * (steps + number_of_controls(run))
    if run.study.figures.planted_leak:
        training = run.study.training
        per_round = training.participation * sum(
            training.epochs * ceil(size / training.batch_size)
            for size in run.assignment.sizes.values()
        )
        seconds += pace.measured * twin_steps(run) / max(per_round, 1.0)
    return seconds


def plan_lines(runs: Sequence[Setup], out: Path, *, with_rates: bool = False) -> Iterator[str]:
    """Yield lines on data, adversary, power, disk space and costs of a study.

    Args:
        runs: All federations, the first seed first, with their folders.
        out: Folder of the study.
        with_rates: Whether to state the smallest detectable TPRs.
    """
    first = runs[0]
    unmeasured = [run for run in runs if not is_measured(run)]
    for line in first.dataset.statement:
        # Names in a table may contain control characters.
        yield clean_text(line)
    yield f"clients' sizes (seed {first.seed}): {_describe_sizes(first)}"
    yield f"adversary: {first.view.description}"
    yield from detectable_leaks(first, with_rates=with_rates)
    space = _Space.of(runs, out)
    yield (
        f"disk: about {format_bytes(space.run_bytes)} in {first.folder.parent}, "
        f"{format_bytes(shutil.disk_usage(space.runs_folder).free)} free"
    )
    yield f"results: about {format_bytes(space.result_bytes)} in {out}"
    for cost in (shadow_cost(first), *(extension.cost() for extension in first.extensions)):
        if cost and unmeasured:
            yield cost
    if first.ignores_people:
        yield (
            "several audited samples belong to the same person, but intervals will treat them as "
            'independent; audit people instead with audit.unit = "person"'
        )
    for name, reason in first.refused.items():
        yield f"not possible in this view: {name} ({reason})"


@dataclass(frozen=True)
class _Space:
    """Disk space that a study needs.

    Attributes:
        run_bytes: Bytes of the runs that are not measured yet.
        result_bytes: Bytes of record, report and scores.
        runs_folder: Existing folder on the disk of the runs.
        out_folder: Existing folder on the disk of the results.
    """

    run_bytes: int
    result_bytes: int
    runs_folder: Path
    out_folder: Path

    @classmethod
    def of(cls, runs: Sequence[Setup], out: Path) -> "_Space":
        """Return the disk space that the runs of a study need."""
        return cls(
            sum(disk_needed(run) for run in runs if not is_measured(run)),
            results_needed([run for run in runs if not run.is_auxiliary]),
            _existing(runs[0].folder.parent),
            _existing(out),
        )


def _existing(folder: Path) -> Path:
    """Return a folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def raise_if_full_disk(runs: Sequence[Setup], out: Path) -> None:
    """Raise if the disks have too little space for the runs or the results of a study."""
    space = _Space.of(runs, out)
    run_bytes, result_bytes = space.run_bytes, space.result_bytes
    if space.runs_folder.stat().st_dev == space.out_folder.stat().st_dev:
        run_bytes, result_bytes = run_bytes + result_bytes, 0
    for folder, needed, remedy in (
        (space.runs_folder, run_bytes, 'choose another folder, or audit.keep = "signals"'),
        (space.out_folder, result_bytes, "choose another folder for the results, or free space"),
    ):
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise BadInput(
                f"this study needs about {format_bytes(needed)}, but {folder} has only "
                f"{format_bytes(free)} free; {remedy}"
            )


def _describe_sizes(run: Setup) -> str:
    """Return the numbers of samples of all clients, or their range for many clients."""
    sizes, names = run.assignment.sizes, run.names
    if len(sizes) > _MAX_LISTED_CLIENTS:
        return f"{min(sizes.values())} to {max(sizes.values())} samples, {len(sizes)} clients"
    return ", ".join(
        f"{clean_text(names.get(client, str(client)))}: {size}" for client, size in sizes.items()
    )
