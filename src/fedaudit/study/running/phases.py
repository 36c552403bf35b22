"""Announcements of the phases of a study, from which its whole remaining time is estimated."""

from collections.abc import Iterable

from fedaudit.core.progress import Progress, announce_phase
from fedaudit.evaluation.controls import number_of_controls
from fedaudit.plan.parts import Setup
from fedaudit.study.running.pool import is_measured

SECONDS = 0.2
"""Seconds for one attack or control, until the first is measured. They took 0.11 to 0.41 s in an
audit of 300 samples of digits on two cores."""


def announce_training(runs: Iterable[Setup], progress: Progress) -> None:
    """Announce the training rounds of all runs that are not measured yet."""
    for run in runs:
        if not is_measured(run):
            announce_phase(progress, f"seed {run.seed}: training rounds", run.study.training.rounds)


def announce_evaluation(runs: Iterable[Setup], progress: Progress) -> None:
    """Announce attacks, source inference and controls of all runs."""
    for run in runs:
        n_attacks = len(run.study.audit.targets) * len(run.membership_attacks)
        for phase, steps in (
            ("attacks", n_attacks),
            ("source inference", len(run.source_attacks)),
            ("controls", number_of_controls(run)),
        ):
            announce_phase(progress, f"seed {run.seed}: {phase}", steps, SECONDS)
