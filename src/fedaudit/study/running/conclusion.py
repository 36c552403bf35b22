"""From what was measured to the record: figures, controls, usage."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedaudit.core.files import RECORD_FILE, SCORES_FILE
from fedaudit.observe.measurements import Stored, stacked
from fedaudit.results.record import ControlResult, Record, write_record
from fedaudit.study.controls.membership import controls
from fedaudit.study.controls.planted import planted_leak
from fedaudit.study.controls.source import source_controls
from fedaudit.study.figures.analysis import analyse
from fedaudit.study.figures.sample_scores import write_scores
from fedaudit.study.figures.source import SourceFound, source_results
from fedaudit.study.figures.truth import Findings
from fedaudit.study.running.environment import Clock, environment
from fedaudit.study.running.record import assembled
from fedaudit.study.running.used import usage_rows
from fedaudit.study.setup.parts import Setup, Work


def conclude(
    runs: Sequence[Setup],
    stored: Sequence[Sequence[Stored]],
    out: Path,
    work: Work,
    clock: Clock,
    log: Callable[[str], None] = lambda text: None,
    *,
    places: Mapping[int, Path],
) -> Record:
    """Makes figures, controls and record from what was measured, and writes record and scores.

    Args:
        runs: The runs of one study.
        stored: For each run, its measured rounds.
        out: Folder of the record.
        work: How controls train and measure.
        clock: For the record's times.
        log: Takes lines of text for the user.
        places: Folder of each run, by seed.
    """
    # First, so that a folder that cannot be written is found out before the work.
    out.mkdir(parents=True, exist_ok=True)
    findings, checks, sources = Findings(), list[ControlResult](), list[SourceFound]()
    for run, rounds in zip(runs, stored, strict=True):
        log(f"seed {run.seed}: attacks and their figures")
        measured = stacked(one.measured for one in rounds)
        if run.on_membership:
            analyse(run, measured, findings, work.progress)
        sources += source_results(run, measured, findings.failed, rounds[-1].notes, work.progress)
        log(f"seed {run.seed}: controls")
        if run.on_membership:
            checks += controls(run, findings, work.device, work.progress)
        checks += source_controls(run, work.device)
        if run.study.figures.planted_leak:
            log(f"seed {run.seed}: a twin run with a planted leak")
            checks += planted_leak(run, work)
    usage = [
        row
        for run, rounds in zip(runs, stored, strict=True)
        for row in usage_rows(run, places[run.seed], rounds)
    ]
    made = environment(clock, work.device)
    record = assembled(runs, stored, findings, checks, made, usage, sources)
    # The record first: scores without one are taken for somebody else's.
    write_record(record, out / RECORD_FILE)
    write_scores(runs, findings, out / SCORES_FILE)
    return record
