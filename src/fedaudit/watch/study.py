"""State of a study that is running or has finished."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedaudit.attacks import attack_set, resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import FedauditError
from fedaudit.core.files import CHECKPOINT_FILE, RECORD_FILE, read_object
from fedaudit.core.importing import is_custom
from fedaudit.core.task_catalogue import TASKS, task_named
from fedaudit.core.values import Architecture, Capability, ClientId
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.files import AUDIT_FILE, read_audit
from fedaudit.live.recording import task_of_known_losses
from fedaudit.live.setup import setup_of_audit
from fedaudit.observe.measurements import StoredRound
from fedaudit.observe.round import ALL_CLIENTS
from fedaudit.observe.tensors import read_notes, read_tensors
from fedaudit.observe.views import view_named
from fedaudit.plan.games import GameStudy
from fedaudit.plan.identity import run_key, settings_of
from fedaudit.plan.optional import ReferencesSection, ShadowSection
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.record import Record
from fedaudit.study.running.folder import STUDY_FILE, read_study_file
from fedaudit.study.running.pool import ADDITIONAL_FOLDER, RUNS_FILE, run_folder
from fedaudit.watch.estimates import RunEstimates, Stamp
from fedaudit.watch.ladder import place_on_leak_ladder
from fedaudit.watch.pace import Milestone, is_silent, seconds_left, seconds_per_round
from fedaudit.watch.reading import Reader, RoundFile, stamp_of
from fedaudit.watch.state import Participation, Phase, RunState, WatchState

_TRAINING_PHASES: tuple[Phase, ...] = ("waiting", "training", "adversary")


class StudyFolder:
    """Folder of a study, whose estimates are computed once for each measured round."""

    def __init__(self, folder: Path, reader: Reader) -> None:
        self._folder, self._reader = folder, reader
        self._compared: tuple[str, Study, bool] | None = None
        self._estimates: dict[Path, tuple[tuple[Stamp | None, ...], RunEstimates]] = {}

    def state(self) -> WatchState:
        """Return the current state of the study.

        Raises:
            FedauditError: The study's file cannot be read.
        """
        study = read_study_file(self._folder).study
        record = self._reader.record(self._folder / RECORD_FILE)
        if isinstance(study, GameStudy):
            return _state_of_games(self._folder, study, record)
        folders = self._folders(study)
        files = {path: self._reader.measured_files(path) for path in folders.values()}
        milestones = {path: _milestones(path, files[path]) for path in folders.values()}
        total = study.training.rounds
        runs = [
            self._run(study, seed, path, files[path], milestones[path])
            for seed, path in folders.items()
        ]
        additional, additional_milestones = self._additional(study)
        times = [milestone.time for by_path in milestones.values() for milestone in by_path]
        times += [milestone.time for milestone in additional_milestones]
        latest = max(
            milestones,
            key=lambda path: max((milestone.time for milestone in milestones[path]), default=0.0),
        )
        # A seed that has just begun has no speed yet, but another seed has about the same.
        by_run = [milestones[latest], *milestones.values()]
        pace = next((p for p in map(seconds_per_round, by_run) if p is not None), None)
        current = [*folders.values()].index(latest)
        changed = stamp_of(self._folder / STUDY_FILE)
        last_change = max([*times, changed.changed / 1e9 if changed else 0.0])
        every = min(study.measured_every, total)
        phase = _phase(runs, additional, is_recorded=self._is_recorded(study, record))
        estimates = self._estimates.get(latest)
        sentence, expected = place_on_leak_ladder(study, runs[current].estimates)
        return WatchState(
            name=study.name,
            kind="study",
            phase=phase,
            runs=tuple(runs),
            additional=tuple(additional),
            current=current,
            seconds_per_round=pace,
            seconds_left=seconds_left(pace, [*runs, *additional]),
            last_change=last_change,
            is_silent=phase in _TRAINING_PHASES
            and is_silent(last_change, self._reader.clock(), pace, every),
            clients=_participation(estimates[1], study) if estimates else None,
            ladder=sentence,
            expected=expected,
            has_report=record is not None,
            is_final=phase == "finished",
            notes=tuple(_notes(study, runs, current, record, phase)),
        )

    def _is_recorded(self, study: Study, record: Record | None) -> bool:
        """Return True if a record has all seeds, attacks and settings of the study."""
        if record is None:
            return False
        if self._compared is None or self._compared[:2] != (record.content_hash, study):
            is_same = _is_record_of(record, study)
            self._compared = (record.content_hash, study, is_same)
        return self._compared[2]

    def _folders(self, study: Study) -> dict[int, Path]:
        """Return the folder of each seed's run."""
        folders = {}
        for seed in study.seeds:
            folders[seed] = self._folder / f"seed-{seed}"
            with self._reader.naming_damage(self._folder):
                folders[seed] = run_folder(self._folder, seed)
        return folders

    def _run(
        self,
        study: Study,
        seed: int,
        folder: Path,
        files: Sequence[RoundFile],
        milestones: Sequence[Milestone],
    ) -> RunState:
        done = max((milestone.round for milestone in milestones), default=0)
        title, total = f"seed {seed}", study.training.rounds
        estimates = self._estimates_of(study, seed, folder) if files else None
        if estimates is None:
            return RunState(title, done, total)

        def check(stored: StoredRound) -> str:
            return _fault(study, seed, stored, estimates)

        self._reader.update(estimates, files, check)
        return RunState(title, done, total, estimates.estimates(), estimates.omitted())

    def _estimates_of(self, study: Study, seed: int, folder: Path) -> RunEstimates | None:
        """Return the estimates of a run; None if their ground truth is unknown."""
        if study.figures.evaluation == "redraw":
            return None
        key = (stamp_of(folder / AUDIT_FILE), stamp_of(self._folder / STUDY_FILE))
        cached = self._estimates.get(folder)
        if cached and cached[0] == key:
            return cached[1]
        with self._reader.naming_damage(folder / AUDIT_FILE):
            estimates = RunEstimates(run_of_files(study, seed, _read_audit(folder)))
            self._estimates[folder] = (key, estimates)
            return estimates
        return None

    def _additional(self, study: Study) -> tuple[list[RunState], list[Milestone]]:
        """Return the progress of federations that are trained after the audited ones."""
        total = study.training.rounds
        folders: list[Path] = []
        if (self._folder / RUNS_FILE).is_file():
            planned = 0
            with self._reader.naming_damage(self._folder / RUNS_FILE):
                for seed in map(int, read_object(self._folder / RUNS_FILE)):
                    if seed not in study.seeds:
                        folders.append(run_folder(self._folder, seed))
        elif (self._folder / ADDITIONAL_FOLDER).is_dir():
            planned = len(study.seeds) * additional_federations(study)
            folders = sorted((self._folder / ADDITIONAL_FOLDER).glob("seed-*"))
        else:
            planned = 0
        runs, all_milestones = [], list[Milestone]()
        for folder in folders:
            milestones = _milestones(folder, self._reader.measured_files(folder))
            done = max((milestone.round for milestone in milestones), default=0)
            runs.append(RunState(folder.name, done, max(total, done)))
            all_milestones += milestones
        missing = max(planned - len(runs), 0)
        return [*runs, *[RunState("", 0, total)] * missing], all_milestones


def _read_audit(folder: Path) -> AuditSet:
    audit = read_audit(folder)
    tensors, _ = read_tensors(folder / AUDIT_FILE)
    person = tensors.get("subject")
    return audit if person is None else replace(audit, person=person.numpy())


def run_of_files(study: Study, seed: int, audit: AuditSet) -> Setup:
    """Return a run of a study with the audited samples of its folder, without loading data.

    The run has those attacks of the catalogue that the view allows.
    """
    view = view_named(study.audit.view)
    task = study.task.name
    known_task = (
        task_named(task, study.task.options) if task in TASKS else task_of_known_losses(task)
    )
    attacks = {
        name: attack
        for name, attack in attacks_of(study).items()
        if not attack.infers_source and not attack.needs & ~_FITTED & ~view.offers
    }
    return setup_of_audit(
        study,
        audit,
        Architecture(study.model.name, _no_model, task=known_task),
        view=view,
        attacks=attacks,
        classes=int(audit.samples.labels.max()) + 1,
        seed=seed,
        clients=range(study.partition.clients),
    )


_FITTED = Capability.AUXILIARY_DATA | Capability.REFERENCE_MODELS
"""What an adversary gets from auxiliary federations."""


def _no_model() -> torch.nn.Module:
    raise RuntimeError("a watched study has no model to run")


def attacks_of(study: Study) -> dict[str, Attack]:
    """Return the attacks of a study by name, without custom ones."""
    if not study.attacks:
        return attack_set(study.attack_set)
    return {
        name: resolve_attack(name).with_settings(settings)
        for name, settings in study.attacks.items()
        if not is_custom(name)
    }


def additional_federations(study: Study) -> int:
    """Return the number of federations that a study trains in addition to that of each seed.

    The number is smaller if too few samples remain for them.
    """
    attacks = attacks_of(study).values()
    sees_uploads = Capability.UPLOADS in view_named(study.audit.view).offers
    has_references = study.references is not None or bool(study.attacks) or not sees_uploads
    count = 0
    if has_references and any(attack.needs_references for attack in attacks):
        count += (study.references or ReferencesSection()).count
    if study.shadow is not None or study.attacks:
        section = study.shadow or ShadowSection()
        count += section.mode == "federation" and any(attack.learns for attack in attacks)
    if study.unlearning is not None:
        count += 1 + (study.unlearning.method in ("continue", "ascent"))
    return count


def _milestones(folder: Path, files: Sequence[RoundFile]) -> list[Milestone]:
    milestones = [file.milestone for file in files]
    start, checkpoint = stamp_of(folder / AUDIT_FILE), folder / CHECKPOINT_FILE
    if start and (not milestones or start.changed / 1e9 < milestones[0].time):
        milestones.insert(0, Milestone(0, start.changed / 1e9))
    stamp = stamp_of(checkpoint)
    if stamp is None:
        return milestones
    # The checkpoint is replaced in every round. A damaged one is refused by the study itself.
    try:
        index = int(read_notes(checkpoint)["round"])
    except (FedauditError, OSError, KeyError, ValueError):
        return milestones
    if index > max((milestone.round for milestone in milestones), default=0):
        milestones.append(Milestone(index, stamp.changed / 1e9))
    return milestones


def _fault(study: Study, seed: int, stored: StoredRound, estimates: RunEstimates) -> str:
    """Return why a measured round does not belong to a run; empty if it does."""
    if stored.notes.get("run") != run_key(study, seed, stored.notes.get("device", "cpu")):
        return "it belongs to another run"
    return estimates.reason_invalid(stored.measured)


def _phase(runs: Sequence[RunState], additional: Sequence[RunState], *, is_recorded: bool) -> Phase:
    if not all(run.is_complete for run in runs):
        return "training" if any(run.done for run in runs) else "waiting"
    if is_recorded:
        return "finished"
    return "evaluating" if all(run.is_complete for run in additional) else "adversary"


def _is_record_of(record: Record, study: Study) -> bool:
    config = resolve_older_settings(dict(record.config))
    try:
        return settings_of(study_from(config, source=RECORD_FILE)) == settings_of(study)
    except FedauditError:
        return False


def _participation(estimates: RunEstimates, study: Study) -> Participation | None:
    """Return the clients in the last measured round; None if the view shows no single client."""
    if not estimates.rounds:
        return None
    last = estimates.rounds[-1]
    seen: set[ClientId] = {*last.clients, *last.group_of}
    if ALL_CLIENTS in seen or estimates.is_reduced:
        return None
    expected = {*estimates.cohort(last.index)}
    missing = sorted(expected - seen)
    names = tuple(f"client {client}" for client in missing)
    return Participation(last.index, len(seen & expected), len(expected), names)


def _notes(
    study: Study, runs: Sequence[RunState], current: int, record: Record | None, phase: Phase
) -> list[str]:
    notes = [*runs[current].omitted]
    if study.figures.evaluation == "redraw":
        notes.append("Redrawn non-members say nothing about leakage, so no estimates are shown.")
    if study.figures.null_members:
        notes.append("No sample is a member here: a sound evaluation finds an AUC of 0.5.")
    if record is not None and phase != "finished":
        notes.append("The report is of an earlier result of this study.")
    return notes


def _state_of_games(folder: Path, study: GameStudy, record: Record | None) -> WatchState:
    changed = stamp_of(folder / STUDY_FILE)
    return WatchState(
        name=study.name,
        kind="games",
        phase="finished" if record else "training",
        last_change=changed.changed / 1e9 if changed else 0.0,
        has_report=record is not None,
        is_final=record is not None,
        notes=("Security games have no rounds, so nothing is shown before the result.",),
    )
